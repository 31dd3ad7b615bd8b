"""A branch of one-step breaking along a parameter, every solution from the states of its neighbour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, overload

import numpy as np

from ...base.errors import TimeLimitError
from ...base.progress import bar
from ...branches.along import Along, Curve
from ...branches.curve import bisected, continue_along, outward
from ...branches.curve import curve as symmetric_curve
from ...branches.grid import checked_grid
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem, check_is_problem
from ...saddle_point.iteration import Status
from ...saddle_point.starts import default_start
from ...solving.solution import Solution, has_lost
from ...solving.solve import solve as solve_symmetric
from .solution import BrokenSolution
from .solve import broken, checked_steps, continued
from .state import Broken

_HALVINGS = 2  # of a step along the parameter that leads away from the states


@dataclass(frozen=True)
class BrokenCurve(Along[BrokenSolution]):
    """One step of breaking along a branch, each solution beside its replica symmetric one.

    It may go on where replica symmetry has none (`BrokenSolution.alone`).

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
    """Follow a branch along a parameter from whichever end it is found at.

    Args:
        rsb: 0 for replica symmetry; 1 for one step of breaking it, as of `solve`: from the highest value where the
            replica symmetric branch was found, each from its neighbour's states, and on where replica symmetry ends.
        start: named start, see `Branch`.
        accuracy, seed: as for `solve`.
        over, values: parameter and its grid; or give `alpha=(0.1, 2)`, `alpha=(0.1, 2, 40)` or `alpha=[0.5, 1, 4]`.
            `A=(first, last, 11)` with two arrays goes along the line between them (`Between`), by `path_A` from 0 to 1.
        refine_end: bisections of the interval in which the branch ends.
        reached: what the solutions go by where that is not the start's name (see `Branch`).
        on_point: called with every solution found, as it is found.
        seeds: overlaps of a problem nearby at values of the grid, to begin from where the named start leads to the
            branch at neither end nor in the middle.

    Raises:
        InputError: no grid, an unknown parameter, no such start, or with rsb = 1 a model that is out of its reach.

    Example:
        >>> found = sf.curve(sf.problem("ridge_regression"), alpha=(1, 3, 5))
        >>> len(found.solutions)
        5
    """
    check_is_problem(problem)
    start = default_start(problem) if start is None else start
    chosen: dict[str, Any] = {"start": start, "accuracy": accuracy, "seed": seed, "refine_end": refine_end,
                              "reached": reached, "seeds": seeds}  # fmt: skip
    if rsb == 0:
        return symmetric_curve(problem, over=over, values=values, on_point=on_point, **chosen, **ranges)
    checked_steps(rsb, problem, most=1, along=True)
    problem, over, grid = checked_grid(problem, over, values, ranges)
    beside = symmetric_curve(problem, over=over, values=grid, **chosen)
    symmetric = dict(zip(beside.values.tolist(), beside.solutions, strict=True))
    branch = BrokenBranch(problem, over, start, symmetric.get, accuracy, seed)
    if beside.out_of_time or not beside.solutions:
        return BrokenCurve(over, start, (), beside.ends, beside.out_of_time)
    words = f"{start} branch, one step of breaking"
    ways, end = outward(grid, float(beside.values[-1])), partial(branch.end, bisections=refine_end)
    with bar(words, len(grid)) as task:
        return BrokenCurve(over, start, *continue_along(branch, ways, end, words, task, on_point))


@dataclass
class BrokenBranch:
    """Asked for at one value after another, each beside the last.

    Attributes:
        symmetric: the replica symmetric solution of the branch at a value, where it is known; known: what was found, by
            value.
    """

    problem: Problem
    parameter: str
    start: str
    symmetric: Callable[[float], Solution | None]
    accuracy: float
    seed: int
    known: dict[float, BrokenSolution] = field(default_factory=dict)

    def at(self, value: float, halvings: int = _HALVINGS) -> BrokenSolution | None:
        """From the neighbour's states, else from replica symmetry, else by way of values between; None where the branch
        has none of them.

        Raises:
            TimeLimitError: the time limit came first.
        """
        if value in self.known:
            return self.known[value]
        beside = self.symmetric(value)
        guess = self._guess(value)
        found = None
        if guess is not None:
            found = continued(beside or self._elsewhere(value, guess[0]), *guess, accuracy=self.accuracy)
        if found is not None and has_lost(found.problem, self.start, found):
            found = None
        if found is None and beside is not None:
            found = broken(beside, accuracy=self.accuracy)
        if found is not None:
            return self._kept(value, found)
        if guess is not None and halvings:
            nearest = min(self.known, key=lambda known: abs(known - value))
            if self.at((nearest + value) / 2, halvings - 1) is not None:
                return self.at(value, 0)
        return None

    def refined(self, solution: BrokenSolution) -> BrokenSolution | None:
        """The same solution to the accuracy that is asked for now; None where it is lost.

        Raises:
            TimeLimitError: the time limit came first.
        """
        found: BrokenSolution | None
        if solution.state is None:
            finer = solve_symmetric(solution.problem, solution.symmetric, accuracy=self.accuracy, seed=self.seed)
            found = replace(solution, symmetric=finer) if not finer.success else broken(finer, accuracy=self.accuracy)
        else:
            found = continued(solution.symmetric, solution.state, solution.rates, accuracy=self.accuracy)
        return None if found is None else self._kept(solution.problem.value_of(self.parameter), found)

    def _kept(self, value: float, found: BrokenSolution) -> BrokenSolution:
        if found.status is Status.TIME_LIMIT:
            raise TimeLimitError("the time limit ended the search for a branch")
        self.known[value] = found
        return found

    def end(self, missing: float, bisections: int) -> tuple[float, float]:
        """Bisect between the nearest value where the branch was found and one where it was not."""
        return bisected(self.known, partial(self.at, halvings=0), missing, bisections)

    def _guess(self, value: float) -> tuple[Broken, tuple[float, ...]] | None:
        """Where the two nearest broken solutions point to in the state and log y; None without one."""
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
        state = Broken.unpack(one.state.pack() + step * (one.state.pack() - other.state.pack()), one.state.sizes)
        grown = np.linalg.eigvalsh(state.distance).min() > 0.5 * np.linalg.eigvalsh(one.state.distance).min()
        turned = np.any(state.between.pack() * one.state.between.pack() < 0)
        if abs(step) > 2 or turned or not grown:
            return one.state, one.rates
        return state, tuple(y * (y / there) ** step for y, there in zip(one.rates, other.rates, strict=True))

    def _elsewhere(self, value: float, near: Broken) -> Solution:
        """What replica symmetry has where its branch has ended: something that starts nearby leads to."""
        problem = self.problem.with_(**{self.parameter: value})
        found = solve_symmetric(problem, near.within, accuracy=self.accuracy, seed=self.seed)
        return replace(found, start=self.start)
