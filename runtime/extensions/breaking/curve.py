"""A branch with one step of replica symmetry breaking along a parameter, each solution started from its neighbour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, overload

import numpy as np

from ...base.errors import TimeLimitError
from ...base.options import AlgorithmOptions
from ...base.progress import progress_bar
from ...branches.curve import bisect_existence_limit, natural_parameter_continuation, values_outward_from_anchor
from ...branches.curve import curve as symmetric_curve
from ...branches.curve_results import Curve, CurveResults
from ...branches.grid import check_parameter_grid
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem, require_problem
from ...saddle_point.iteration import Status
from ...saddle_point.starts import find_start_name
from ...solving.solution import Solution, has_lost_overlap_of_start
from ...solving.solve import solve as solve_symmetric
from .solution import BrokenSolution
from .solve import break_replica_symmetry, check_number_of_breaking_steps, solve_from_neighbour
from .state import BrokenSymmetryState


@dataclass(frozen=True)
class BrokenCurveOptions(AlgorithmOptions):
    """Options of branches with one step of replica symmetry breaking.

    Attributes:
        max_halvings: largest number of halvings of a parameter step at which the branch is lost; each costs a solution.
    """

    max_halvings: int = 2


@dataclass(frozen=True)
class BrokenCurve(CurveResults[BrokenSolution]):
    """A branch with one step of replica symmetry breaking along a parameter, with its replica symmetric solutions.

    It may continue where there is no replica symmetric solution (`BrokenSolution.alone`).

    Example:
        >>> found = sf.curve(sf.problem("perceptron"), rsb=1, alpha=(4, 6, 2), accuracy=1e-2)
        >>> [round(point.energy, 4) for point in found.solutions]
        [1.2263, 2.2173]
    """


@overload
def curve(problem: Problem, *, rsb: Literal[0] = 0, **options: Any) -> Curve: ...
@overload
def curve(problem: Problem, *, rsb: Literal[1], **options: Any) -> BrokenCurve: ...
@overload
def curve(problem: Problem, *, rsb: int, **options: Any) -> Curve | BrokenCurve: ...


def curve(
    problem: Problem,
    *,
    rsb: int = 0,
    start: str | None = None,
    over: str = "alpha",
    values: Iterable[float] | None = None,
    accuracy: float = 1e-3,
    seed: int = 0,
    refine_end: int = 4,
    reached: str | None = None,
    on_point: Callable[[Any], None] | None = None,
    seeds: Mapping[float, Overlaps] | None = None,
    **ranges: Any,
) -> Curve | BrokenCurve:
    """Return a branch along a parameter, continued from the end of the grid at which it is found.

    Args:
        problem: the problem.
        rsb: 0 for replica symmetry; 1 for one step of breaking as in `solve`, continued from the highest value where
            the replica symmetric branch was found, also beyond the end of this branch.
        start: named start, see `Branch`.
        over: name of the parameter.
        values: values of the parameter; or give `alpha=(0.1, 2)`, `alpha=(0.1, 2, 40)` or `alpha=[0.5, 1, 4]`.
            `A=(first, last, 11)` with two arrays is the line between them (`Between`), with `path_A` from 0 to 1.
        accuracy: as for `solve`.
        seed: as for `solve`.
        refine_end: number of bisections of the interval in which the branch ends.
        reached: name of the branch of the solutions if it differs from the start's (see `Branch`).
        on_point: function that is called with every solution as soon as it is found.
        seeds: overlaps of a nearby problem by value, used as starts if the named start leads to the branch neither at
            the ends nor in the middle of the grid.
        ranges: the parameter and its grid, as above.

    Raises:
        InputError: no grid, an unknown parameter, no such start, or with rsb = 1 a model for which it is not
            implemented.

    Example:
        >>> found = sf.curve(sf.problem("ridge_regression"), alpha=(1, 3, 5))
        >>> len(found.solutions)
        5
    """
    require_problem(problem)
    start = find_start_name(problem, start)
    chosen: dict[str, Any] = {"start": start, "accuracy": accuracy, "seed": seed, "refine_end": refine_end,
                              "reached": reached, "seeds": seeds}  # fmt: skip
    if rsb == 0:
        return symmetric_curve(problem, over=over, values=values, on_point=on_point, **chosen, **ranges)
    check_number_of_breaking_steps(rsb, problem, most=1, along=True)
    problem, over, grid = check_parameter_grid(problem, over, values, ranges)
    replica_symmetric = symmetric_curve(problem, over=over, values=grid, **chosen)
    symmetric = dict(zip(replica_symmetric.values.tolist(), replica_symmetric.solutions, strict=True))
    branch = BrokenSymmetryBranch(problem, over, start, symmetric.get, accuracy, seed)
    if replica_symmetric.out_of_time or not replica_symmetric.solutions:
        return BrokenCurve(over, start, (), replica_symmetric.ends, replica_symmetric.out_of_time)
    words = f"{start} branch, one step of breaking"
    directions = values_outward_from_anchor(grid, float(replica_symmetric.values[-1]))
    end = partial(branch.locate_branch_end, bisections=refine_end)
    with progress_bar(words, len(grid)) as task:
        return BrokenCurve(over, start, *natural_parameter_continuation(branch, directions, end, words, task, on_point))


@dataclass
class BrokenSymmetryBranch:
    """A branch with one step of replica symmetry breaking, solved at one parameter value after another.

    Attributes:
        problem, parameter: the problem and the name of its parameter that varies.
        start: named start of the branch.
        symmetric: function that returns the replica symmetric solution of the branch at a value, or None.
        accuracy, seed: as for `solve`.
        known: solutions found so far, by parameter value.
    """

    problem: Problem
    parameter: str
    start: str
    symmetric: Callable[[float], Solution | None]
    accuracy: float
    seed: int
    known: dict[float, BrokenSolution] = field(default_factory=dict)

    def solution_at_parameter(self, value: float, halvings: int | None = None) -> BrokenSolution | None:
        """Return the solution of the branch at a parameter value, or None where the branch does not exist.

        The start is the neighbouring solution, the replica symmetric one, or one at an intermediate value.

        Args:
            value: value of the parameter.
            halvings: largest number of halvings of the distance from the neighbour.

        Raises:
            TimeLimitError: the time limit ended the search.
        """
        halvings = BrokenCurveOptions.current().max_halvings if halvings is None else halvings
        if value in self.known:
            return self.known[value]
        replica_symmetric = self.symmetric(value)
        guess = self._extrapolate_states(value)
        found = None
        if guess is not None:
            found = solve_from_neighbour(
                replica_symmetric or self._replica_symmetric_solution_nearby(value, guess[0]),
                *guess,
                accuracy=self.accuracy,
            )
        if found is not None and has_lost_overlap_of_start(found.problem, self.start, found):
            found = None
        if found is None and replica_symmetric is not None:
            found = break_replica_symmetry(replica_symmetric, accuracy=self.accuracy)
        if found is not None:
            return self._store_solution(value, found)
        if guess is not None and halvings:
            nearest = min(self.known, key=lambda known: abs(known - value))
            if self.solution_at_parameter((nearest + value) / 2, halvings - 1) is not None:
                return self.solution_at_parameter(value, 0)
        return None

    def refine_to_accuracy(self, solution: BrokenSolution) -> BrokenSolution | None:
        """Return a solution of the branch, refined to the accuracy of the branch; None if it is not found again.

        Raises:
            TimeLimitError: the time limit ended the search.
        """
        found: BrokenSolution | None
        if solution.state is None:
            finer = solve_symmetric(solution.problem, solution.symmetric, accuracy=self.accuracy, seed=self.seed)
            found = (
                replace(solution, symmetric=finer)
                if not finer.success
                else break_replica_symmetry(finer, accuracy=self.accuracy)
            )
        else:
            found = solve_from_neighbour(solution.symmetric, solution.state, solution.rates, accuracy=self.accuracy)
        return (
            None if found is None else self._store_solution(solution.problem.value_of_parameter(self.parameter), found)
        )

    def _store_solution(self, value: float, found: BrokenSolution) -> BrokenSolution:
        if found.status is Status.TIME_LIMIT:
            raise TimeLimitError("the time limit ended the search for replica symmetry breaking; allow more time")
        self.known[value] = found
        return found

    def locate_branch_end(self, missing: float, bisections: int) -> tuple[float, float]:
        """Return the interval of the parameter in which the branch ends, by bisection.

        Args:
            missing: value at which the branch was not found; bisection begins between it and the nearest solution.
            bisections: number of bisections.
        """
        return bisect_existence_limit(self.known, partial(self.solution_at_parameter, halvings=0), missing, bisections)

    def _extrapolate_states(self, value: float) -> tuple[BrokenSymmetryState, tuple[float, ...]] | None:
        """Return a state and Parisi parameters extrapolated linearly from the two nearest solutions with breaking.

        None is returned if there is no such solution.
        """
        broken_at = [known for known, solution in self.known.items() if solution.state is not None]
        if not broken_at:
            return None
        nearest, *others = sorted(broken_at, key=lambda known: abs(known - value))[:2]
        one = self.known[nearest]
        assert one.state is not None
        if not others:
            return one.state, one.rates
        other = self.known[others[0]]
        step = (value - nearest) / (nearest - others[0])
        assert other.state is not None
        packed = one.state.pack()
        state = BrokenSymmetryState.unpack(packed + step * (packed - other.state.pack()), one.state.overlap_sizes)
        smallest, nearest_smallest = (np.linalg.eigvalsh(at.overlap_difference).min() for at in (state, one.state))
        turned = np.any(state.between.pack() * one.state.between.pack() < 0)
        if abs(step) > 2 or turned or smallest <= 0.5 * nearest_smallest:
            return one.state, one.rates
        return state, tuple(y * (y / there) ** step for y, there in zip(one.rates, other.rates, strict=True))

    def _replica_symmetric_solution_nearby(self, value: float, near: BrokenSymmetryState) -> Solution:
        """Return a replica symmetric solution, from a nearby state with breaking, where its own branch is missing."""
        problem = self.problem.with_(**{self.parameter: value})
        found = solve_symmetric(problem, near.minimiser_overlaps, accuracy=self.accuracy, seed=self.seed)
        return replace(found, start=self.start)
