"""The request for a threshold, and how finely overlaps are solved for it."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.errors import InputError, require_in, require_known
from ..problems.problem import Problem
from ..solving.solution import Solution

# Overlaps are solved to no less than these relative error bars: half the error costs replicates four times as much.
_FINEST_SAMPLED, _FINEST_SMOOTH = 2e-5, 1e-13
_VERIFIED_BELOW = 1e-6  # accuracies from here on are verified unless told otherwise


@dataclass(frozen=True)
class Search:
    """A kind of threshold along a parameter, checked on construction.

    Attributes:
        branches: names of their starts; bracket: interval to search, default [0.1, 2.5] for alpha.
        accuracy: error bar asked for; verify: whether a rule of another family is to confirm it, None where the
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
        self.problem.check_varied(self.parameter)
        starts = self.problem.solver.model.STARTS
        for name in self.branches:
            if not isinstance(name, str):
                raise InputError(f"{name!r} is no branch: between takes names of starts, bracket an interval")
            require_known("branch", name, starts, self.problem.solver.name)
        _ = self.interval

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper end."""
        return search_interval(self.parameter, self.bracket)

    @property
    def verifies(self) -> bool:
        """Whether a rule of another family confirms it."""
        return self.accuracy < _VERIFIED_BELOW if self.verify is None else self.verify


def search_interval(parameter: str, bracket: tuple[float, float] | None) -> tuple[float, float]:
    """Return the interval asked for, or the default one of alpha.

    Raises:
        InputError: none is given for another parameter.
    """
    if bracket is None:
        if parameter != "alpha":
            raise InputError(f"give an interval to search for {parameter}")
        bracket = (0.1, 2.5)
    return float(min(bracket)), float(max(bracket))


def finest_accuracy(solution: Solution) -> float:
    """Return the least relative error bar to which overlaps are solved for a threshold, by the kind of rule."""
    return _FINEST_SAMPLED if solution.rule.replicated else _FINEST_SMOOTH
