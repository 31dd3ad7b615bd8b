"""The specification of a threshold to locate, and the accuracy of overlaps that the search needs."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.errors import InputError, require_in_interval
from ..base.options import AlgorithmOptions
from ..problems.problem import Problem
from ..saddle_point.starts import find_start
from ..solving.solution import Solution


@dataclass(frozen=True)
class ThresholdSearchOptions(AlgorithmOptions):
    """Options of locating thresholds.

    Attributes:
        finest_sampled: smallest relative error bar of overlaps by rules with replicates; half of it costs four times
            as much.
        finest_smooth: the same by deterministic rules.
        verify_below: accuracy of a threshold below which a rule of another family confirms it by default.
    """

    finest_sampled: float = 2e-5
    finest_smooth: float = 1e-13
    verify_below: float = 1e-6


@dataclass(frozen=True)
class ThresholdSearch:
    """The specification of a threshold to locate, checked on construction.

    Attributes:
        kind: kind of the threshold, for messages and results.
        branches: names of their starts; bracket: interval to search, default [0.1, 2.5] for alpha.
        accuracy: error bar of the threshold; verify: whether a rule of another family confirms it, None if the
            accuracy decides.

    Raises:
        InputError: no such parameter, start or interval, or an accuracy that is not positive.
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
        names = tuple(find_start(self.problem, name, "branch") for name in self.branches)
        object.__setattr__(self, "branches", names)
        _ = self.interval_to_search

    @property
    def interval_to_search(self) -> tuple[float, float]:
        """Return the lower and upper end of the interval to search."""
        return threshold_search_interval(self.parameter, self.bracket)

    @property
    def requires_second_rule(self) -> bool:
        """Return whether a quadrature rule of another family has to confirm the threshold."""
        return self.accuracy < ThresholdSearchOptions.current().verify_below if self.verify is None else self.verify


def threshold_search_interval(parameter: str, bracket: tuple[float, float] | None) -> tuple[float, float]:
    """Return the interval to search, ascending; alpha has a default interval.

    Args:
        parameter: name of the parameter.
        bracket: the interval, or None.

    Raises:
        InputError: none is given for another parameter than alpha.
    """
    if bracket is None:
        if parameter != "alpha":
            raise InputError(f"give an interval to search for {parameter}, as bracket=(0.1, 1)")
        bracket = (0.1, 2.5)
    return float(min(bracket)), float(max(bracket))


def finest_overlap_accuracy(solution: Solution) -> float:
    """Return the smallest relative error bar to which overlaps are solved when a threshold is located."""
    options = ThresholdSearchOptions.current()
    return options.finest_sampled if solution.rule.replicated else options.finest_smooth
