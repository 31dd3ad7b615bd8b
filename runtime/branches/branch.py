"""A branch of solutions that can be asked for at any value of a parameter."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..base.errors import TimeLimitError
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point.iteration import Status
from ..saddle_point.starts import BRANCH_NAMES
from ..solving.retrying import extrapolated, has_left, retried
from ..solving.solution import Solution, has_lost
from ..solving.solve import reach

_RETRIES = 2  # of a start that left its branch, while no solution is known


@dataclass
class Branch:
    """A named branch that can be asked for at any value of a parameter, starting from the nearest known solution.

    Args:
        name: start used first, and the branch to stay on: the one of this name, or for a start with a name of its own
            the one that it first reaches.
        reached: what its solutions go by (`Solution.branch`) where that is not its name: a value column that follows
            the teacher makes a positional solution a mixed one.
        accuracy, seed, effort, integrator, points: as for `solve`; a soft branch that misses the accuracy is used with
            the error it has.
        most: in place of the effort where an accuracy is asked for at a value; where that misses it (`exhausted`), no
            finer one is tried again.
        followed: whether it is only followed, once a solution is known: where Newton's method from there leads nowhere,
            nothing else is tried.
        retries: how often the start is tried again by way of easier problems where it left its branch (`retried`).
    """

    problem: Problem
    parameter: str
    name: str
    accuracy: float = 1e-3
    seed: int = 0
    effort: int = 1
    known: dict[float, Solution] = field(default_factory=dict)
    failed: dict[float, Solution] = field(default_factory=dict)
    exhausted: set[float] = field(default_factory=set)
    reached: str | None = None
    integrator: str = "auto"
    points: int | None = None
    most: int = 100
    followed: bool = False
    retries: int = _RETRIES

    def __post_init__(self) -> None:
        if self.reached is None and self.name in BRANCH_NAMES:
            self.reached = self.name

    def at(self, value: float, accuracy: float | None = None, guess: Solution | None = None) -> Solution | None:
        """Return the solution of this branch at a value, or None where it was not found (see `failed`).

        Tries a guess, if one is given, the solution extrapolated from the nearest known ones, then the branch's named
        start.
        """
        wanted = accuracy or self.accuracy
        value = float(value)
        if value in self.known:
            found = self.known[value]
            if accuracy is None or found.relative_error <= accuracy or value in self.exhausted:
                return found
        problem = self.problem.with_(**{self.parameter: value})
        candidates: list[Any] = [guess] if guess is not None else []
        if self.known:
            candidates.append(extrapolated(self.known, value))
        if self.name in problem.solver.model.STARTS and not (self.followed and candidates):
            candidates.append(self.name)
        for candidate in candidates:
            sizes, last = self.effort if accuracy is None else self.most, candidate is candidates[-1]
            how: dict[str, Any] = {"seed": self.seed, "integrator": self.integrator, "points": self.points}
            solution = reach(
                problem, candidate, accuracy=wanted, effort=sizes, alone=last, afar=not self.followed, **how
            )
            _refuse_unfinished(solution)
            tried = not self.known and self.retries and isinstance(candidate, str)
            if tried and has_left(problem, candidate, solution):
                self.retries -= 1
                own: dict[str, Any] = {"accuracy": wanted, "effort": sizes}
                again, _ = retried(partial(reach, **how), problem, candidate, solution, self._holds, **own)
                solution = again or solution
            if self._holds(solution):
                self.reached = solution.branch
                self.known[value] = solution
                if accuracy is not None and solution.status is Status.ACCURACY_NOT_REACHED:
                    self.exhausted.add(value)
                return solution
            self.failed[value] = solution
        return None

    def begin(self, value: float, overlaps: Overlaps) -> Solution | None:
        """Return the solution at a value from overlaps of a problem nearby; None where they lead to another branch."""
        problem = self.problem.with_(**{self.parameter: value})
        solution = reach(problem, overlaps, accuracy=self.accuracy, seed=self.seed, effort=self.effort)
        _refuse_unfinished(solution)
        if not self._holds(solution):
            return None
        self.known[value] = solution
        return solution

    def _holds(self, solution: Solution) -> bool:
        """Return whether it is a solution, and one of this branch."""
        if solution.losses is None:
            return False
        if self.reached is None and self.name in solution.problem.solver.model.STARTS:
            return not has_lost(solution.problem, self.name, solution)
        return solution.branch == (self.reached or solution.branch)


def _refuse_unfinished(solution: Solution) -> None:
    """Refuse a point that a time limit ended: it says nothing about a branch.

    Raises:
        TimeLimitError: it ended before the solution was found.
    """
    if solution.status is Status.TIME_LIMIT:
        raise TimeLimitError("the time limit ended the search for a branch")
