"""A branch of solutions, solved at any value of a parameter."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..base.errors import TimeLimitError
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point.iteration import Status
from ..saddle_point.starts import branch_names, named_starts, translate_start_name
from ..solving.retrying import extrapolate_solution, has_solve_left_branch_of_start, retry_lost_start
from ..solving.solution import Solution, has_lost_overlap_of_start
from ..solving.solve import solve_without_branch_check


@dataclass
class Branch:
    """A named branch, solved at any value of a parameter from the nearest known solution.

    Args:
        problem: the problem at any value of the parameter.
        parameter: name of the parameter.
        name: name of the start used first, and of the branch to stay on; if no branch has this name, the branch of the
            first solution.
        reached: name of its solutions (`Solution.branch`) where that differs from `name`: for example mixed for the
            start positional, if one column of W aligns with the teacher.
        accuracy, seed, effort, integrator, points: as for `solve`; a solution that misses the accuracy is used with
            the error bar that it has.
        known: solutions found so far, by parameter value.
        failed: failed solutions by parameter value.
        most: largest effort where `solution_at_parameter` is called with an accuracy.
        exhausted: values at which that effort missed the accuracy, so that it is not tried again.
        followed: whether only Newton's method from known solutions is tried, once there is one.
        retries: how often a start that left its branch is tried again, from easier problems (`retry_lost_start`).
        refined: whether a point that misses the accuracy with `effort` is solved with that of `most` where its rule
            adapts to jumps, so that finer ones soon reach the accuracy.
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
    retries: int = 2
    refined: bool = False

    def __post_init__(self) -> None:
        self.name = translate_start_name(self.problem, self.name)
        if self.reached is None and self.name in branch_names(self.problem):
            self.reached = self.name

    def solution_at_parameter(
        self, value: float, accuracy: float | None = None, guess: Solution | None = None
    ) -> Solution | None:
        """Return the solution of this branch at a parameter value; None if it was not found (see `failed`).

        Args:
            value: value of the parameter.
            accuracy: error bar of the overlaps; that of the branch by default.
            guess: solution to start from; if that fails, an extrapolated one and the named start are tried.
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
            candidates.append(extrapolate_solution(self.known, value))
        if self.name in named_starts(problem) and not (self.followed and candidates):
            candidates.append(self.name)
        for candidate in candidates:
            sizes, last = self.effort if accuracy is None else self.most, candidate is candidates[-1]
            rule: dict[str, Any] = {"seed": self.seed, "integrator": self.integrator, "points": self.points}
            solution = solve_without_branch_check(
                problem, candidate, accuracy=wanted, effort=sizes, alone=last, globalise=not self.followed, **rule
            )
            _raise_if_time_limit_reached(solution)
            tried = not self.known and self.retries and isinstance(candidate, str)
            if tried and has_solve_left_branch_of_start(problem, candidate, solution):
                self.retries -= 1
                settings: dict[str, Any] = {"accuracy": wanted, "effort": sizes}
                solver = partial(solve_without_branch_check, **rule)
                again, _ = retry_lost_start(solver, problem, candidate, solution, self._contains_solution, **settings)
                solution = again or solution
            if self._contains_solution(solution):
                self.reached = solution.branch
                self.known[value] = solution
                if solution.status is Status.ACCURACY_NOT_REACHED:
                    if accuracy is not None:
                        self.exhausted.add(value)
                    elif self.refined and not solution.rule.is_nonadaptive:
                        return self.solution_at_parameter(value, wanted) or solution
                return solution
            self.failed[value] = solution
        return None

    def solve_from_overlaps(self, value: float, overlaps: Overlaps) -> Solution | None:
        """Return the solution at a parameter value, started from overlaps; None if it is on another branch.

        Args:
            value: value of the parameter.
            overlaps: overlaps to start from, for example of a neighbouring problem.
        """
        problem = self.problem.with_(**{self.parameter: value})
        solution = solve_without_branch_check(
            problem, overlaps, accuracy=self.accuracy, seed=self.seed, effort=self.effort
        )
        _raise_if_time_limit_reached(solution)
        if not self._contains_solution(solution):
            return None
        self.known[value] = solution
        return solution

    def _contains_solution(self, solution: Solution) -> bool:
        """Return whether a result has converged and belongs to this branch."""
        if solution.losses is None:
            return False
        if self.reached is None and self.name in named_starts(solution.problem):
            return not has_lost_overlap_of_start(solution.problem, self.name, solution)
        return solution.branch == (self.reached or solution.branch)


def _raise_if_time_limit_reached(solution: Solution) -> None:
    """Raise TimeLimitError if a solve failed because of the time limit: the branch may exist nevertheless."""
    if solution.status is Status.TIME_LIMIT:
        raise TimeLimitError("the time limit ended the search for a branch")
