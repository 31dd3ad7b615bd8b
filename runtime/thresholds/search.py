"""The specification of a threshold to locate, and the accuracy of overlaps that it needs."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.errors import InputError, require_in, require_known
from ..base.options import AlgorithmOptions
from ..problems.problem import Problem
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
        kind: of the threshold, for messages and results.
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
        require_in("accuracy", self.accuracy, "(0, inf)")
        self.problem.require_scalar_parameters(self.parameter)
        starts = self.problem.solver.model.STARTS
        for name in self.branches:
            if not isinstance(name, str):
                raise InputError(f"{name!r} is no branch: between takes names of starts, bracket an interval")
            require_known("branch", name, starts, self.problem.solver.name)
        _ = self.interval

    @property
    def interval(self) -> tuple[float, float]:
        """Return the lower and upper end of the interval to search."""
        return search_interval(self.parameter, self.bracket)

    @property
    def is_verified(self) -> bool:
        """Return whether a rule of another family confirms it."""
        return self.accuracy < ThresholdSearchOptions.current().verify_below if self.verify is None else self.verify


def search_interval(parameter: str, bracket: tuple[float, float] | None) -> tuple[float, float]:
    """Return the interval to search, ascending; that of alpha has a default.

    Args:
        parameter: its name.
        bracket: the interval, or None.

    Raises:
        InputError: none is given for another parameter than alpha.
    """
    if bracket is None:
        if parameter != "alpha":
            raise InputError(f"give an interval to search for {parameter}")
        bracket = (0.1, 2.5)
    return float(min(bracket)), float(max(bracket))


def finest_accuracy(solution: Solution) -> float:
    """Return the smallest relative error bar to which overlaps are solved for a threshold, by the kind of rule."""
    options = ThresholdSearchOptions.current()
    return options.finest_sampled if solution.rule.replicated else options.finest_smooth
