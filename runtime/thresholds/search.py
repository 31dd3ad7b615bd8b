"""The specification of a threshold to locate, and the accuracy of overlaps that the search needs."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.errors import InputError, require_in_interval
from ..base.options import AlgorithmOptions
from ..problems.problem import Problem
from ..saddle_point.starts import find_start_name
from ..solving.solution import Solution


@dataclass(frozen=True)
class ThresholdSearchOptions(AlgorithmOptions):
    """Options of locating thresholds.

    Attributes:
        finest_sampled: smallest relative error bar of overlaps that is requested of sampled quadrature rules; half of
            it takes four times as long.
        finest_smooth: smallest relative error bar of overlaps that is requested of deterministic quadrature rules.
        verify_below: accuracy below which a quadrature rule of another family confirms a threshold by default.
    """

    finest_sampled: float = 2e-5
    finest_smooth: float = 1e-13
    verify_below: float = 1e-6


@dataclass(frozen=True)
class ThresholdSearch:
    """The settings of a search for a threshold: kind, branches, interval and accuracy, checked on construction.

    Attributes:
        kind: kind of the threshold, as messages and results name it.
        branches: names of the starts of the branches.
        bracket: interval to search, default [0.1, 2.5] for alpha.
        accuracy: requested error bar of the threshold.
        verify: whether a quadrature rule of another family confirms the threshold; None: if the accuracy is high.

    Raises:
        InputError: the parameter or a start is unknown, no interval is given, or the accuracy is not positive.
    """

    kind: str
    problem: Problem
    parameter: str
    branches: tuple[str, ...]
    bracket: tuple[float, float] | None
    accuracy: float
    verify: bool | None

    def __post_init__(self) -> None:
        require_in_interval("accuracy", self.accuracy, "(0, inf)")
        self.problem.require_scalar_parameters(self.parameter)
        for name in self.branches:
            if not isinstance(name, str):
                raise InputError(
                    f"{name!r} is not the name of a start: between takes two names of starts, bracket an interval"
                )
        names = tuple(find_start_name(self.problem, name, "branch") for name in self.branches)
        object.__setattr__(self, "branches", names)
        _ = self.search_interval_ends

    @property
    def search_interval_ends(self) -> tuple[float, float]:
        """Return the lower and upper end of the interval to search."""
        return threshold_search_interval(self.parameter, self.bracket)

    @property
    def requires_independent_check(self) -> bool:
        """Return whether a quadrature rule of another family has to confirm the threshold."""
        return self.accuracy < ThresholdSearchOptions.current().verify_below if self.verify is None else self.verify


def threshold_search_interval(parameter: str, bracket: tuple[float, float] | None) -> tuple[float, float]:
    """Return lower and upper end of the interval to search; alpha has a default interval.

    Args:
        parameter: name of the parameter.
        bracket: the interval as the user gave it, or None.

    Raises:
        InputError: no interval is given for a parameter other than alpha.
    """
    if bracket is None:
        if parameter != "alpha":
            raise InputError(f"give an interval to search for {parameter}, as bracket=(0.1, 1)")
        bracket = (0.1, 2.5)
    return float(min(bracket)), float(max(bracket))


def finest_overlap_accuracy(solution: Solution) -> float:
    """Return the smallest relative error bar of overlaps that is requested when a threshold is located."""
    options = ThresholdSearchOptions.current()
    return options.finest_sampled if solution.rule.replicated else options.finest_smooth
