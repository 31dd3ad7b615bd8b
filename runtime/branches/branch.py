"""A branch followed in a parameter: warm-started solutions on a grid, and where the branch ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from ..base import presenting
from ..base.errors import InputError, TimeLimitError, describe_unknown, require_known
from ..base.presenting import Recorded
from ..base.progress import Task, bar
from ..problems.between import Between
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point.iteration import Status
from ..saddle_point.starts import BRANCH_NAMES, default_start
from ..solving.retrying import extrapolated, has_left, retried
from ..solving.solution import Solution, has_lost
from ..solving.solve import reach

if TYPE_CHECKING:
    import pandas
    import xarray

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
        """The solution of this branch at a value, or None where it was not found (see `failed`).

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
        """The solution of this branch at a value, from overlaps of a problem nearby; None where they lead away."""
        problem = self.problem.with_(**{self.parameter: value})
        solution = reach(problem, overlaps, accuracy=self.accuracy, seed=self.seed, effort=self.effort)
        _refuse_unfinished(solution)
        if not self._holds(solution):
            return None
        self.known[value] = solution
        return solution

    def _holds(self, solution: Solution) -> bool:
        """Whether it is a solution, and one of this branch."""
        if solution.losses is None:
            return False
        if self.reached is None and self.name in solution.problem.solver.model.STARTS:
            return not has_lost(solution.problem, self.name, solution)
        return solution.branch == (self.reached or solution.branch)


def _refuse_unfinished(solution: Solution) -> None:
    """Where the time ended says nothing about a branch.

    Raises:
        TimeLimitError: it ended before the solution was found.
    """
    if solution.status is Status.TIME_LIMIT:
        raise TimeLimitError("the time limit ended the search for a branch")


class Point(Protocol):
    """What stands at a value of the parameter."""

    @property
    def problem(self) -> Problem:
        """With that value."""


AnyPoint = TypeVar("AnyPoint", bound=Point)


class AlongBranch(Recorded, Generic[AnyPoint]):
    """Solutions of one branch, in the order in which a parameter or the arclength passes them."""

    parameter: str
    solutions: tuple[AnyPoint, ...]

    @property
    def values(self) -> np.ndarray:
        """The parameter at every solution, (N,), in their order."""
        return np.array([s.problem.value_of(self.parameter) for s in self.solutions])

    def to_xarray(self, stability: bool = True) -> xarray.Dataset:
        """All overlaps, errors, losses and verdicts as a Dataset along the parameter, and along the arclength where
        the branch was followed by it (a variable of its own; events are among the attributes)."""
        return presenting.to_dataset(self, stability)

    def to_pandas(self, stability: bool = True, names: Mapping[str, str] | None = None) -> pandas.DataFrame:
        """One row a solution, columns named q_1, V_1, ... per token; `names` are symbols of the reader's own."""
        return presenting.to_frame(self, stability, names)

    def plot(self, path: str | Path | None = None) -> Any:
        """Figure of overlaps and errors along the parameter, stable stretches solid; saved where a path is given."""
        return presenting.plot(self.to_xarray(), path)


@dataclass(frozen=True)
class Along(AlongBranch[AnyPoint]):
    """Solutions of one branch along a parameter, and how far the branch was found to exist.

    Attributes:
        solutions: in ascending order of the parameter.
        ends: for each side, (last value where found, first value where not found) or None if it reaches the edge.
        out_of_time: whether a time limit ended it before all values were asked for.
    """

    parameter: str
    name: str
    solutions: tuple[AnyPoint, ...]
    ends: tuple[tuple[float, float] | None, tuple[float, float] | None]
    out_of_time: bool = False

    def __getitem__(self, column: str) -> np.ndarray:
        """Return a column of `to_pandas` by its name, as curve["test_error"], (N,)."""
        frame = self.to_pandas()
        if column not in frame:
            raise KeyError(describe_unknown("column", column, map(str, frame.columns)))
        return frame[column].to_numpy()

    def __iter__(self) -> Iterator[AnyPoint]:
        """Yield the solutions."""
        return iter(self.solutions)

    def end_text(self, symbol: str | None = None) -> str:
        """Where the branch ends, in words; a symbol may stand for the parameter."""
        parts, shown = [], symbol or self.parameter
        for side, end in zip(("below", "above"), self.ends, strict=True):
            if end is not None:
                parts.append(f"ends between {shown} = {min(end):.4g} and {max(end):.4g} ({side})")
        span = f"found on [{self.values[0]:.4g}, {self.values[-1]:.4g}]" if len(self.solutions) else "not found"
        parts += ["the time limit ended it"] if self.out_of_time else []
        return "; ".join([f"{self.name} branch {span}", *parts])

    def to_latex(self, names: Mapping[str, str] | None = None) -> str:
        """A tabular of overlaps, training loss and test error with their errors, one row a solution (booktabs)."""
        return presenting.to_tabular(self, names)


@dataclass(frozen=True)
class Curve(Along[Solution]):
    """A branch of replica symmetric solutions.

    Example:
        >>> found = sf.curve(sf.problem("ridge_regression"), alpha=(1, 3, 3))
        >>> found.values.tolist(), found.to_pandas()["test_error"].round(4).tolist()
        ([1.0, 2.0, 3.0], [0.6911, 0.4427, 0.3618])
    """


def curve(
    problem: Problem,
    *,
    start: str | None = None,
    over: str = "alpha",
    values: Iterable[float] | None = None,
    accuracy: float = 1e-3,
    seed: int = 0,
    refine_end: int = 4,
    reached: str | None = None,
    on_point: Callable[[Solution], None] | None = None,
    seeds: Mapping[float, Overlaps] | None = None,
    **ranges: Any,
) -> Curve:
    """Follow a replica symmetric branch along a parameter: `sf.curve` at rsb = 0, whose arguments it has.

    Raises:
        InputError: no grid, an unknown parameter, or no such start.
    """
    problem, over, grid = checked_grid(problem, over, values, ranges)
    start = default_start(problem) if start is None else start
    require_known("start", start, problem.solver.model.STARTS, problem.solver.name)
    branch = Branch(problem, over, start, accuracy, seed, effort=2, reached=reached)
    span = f"{over.rstrip('_')} = {grid[0]:.4g} to {grid[-1]:.4g}"
    ways, end = _ways(branch, grid, seeds or {}), partial(bisected_end, branch, bisections=refine_end)
    with bar(f"{start} branch, {span}", len(grid)) as task:
        return Curve(over, start, *continue_along(branch, ways, end, f"{start} branch", task, on_point))


def continue_along(
    branch: Any,
    ways: Iterable[list[float]],
    end: Callable[[float], tuple[float, float]],
    words: str,
    task: Task,
    on_point: Callable[[Any], None] | None,
) -> tuple[tuple[Any, ...], tuple[tuple[float, float] | None, tuple[float, float] | None], bool]:
    """Solve a branch at one value after another, each solution from its neighbours (natural continuation).

    Args:
        branch: with `at`, `known` and `parameter` as of `Branch`.
        ways: values in the order in which they are visited, the anchor first, then one way and the other; each way is
            left where the branch is not found.
        end: bisects toward a value at which it was not.
        words: for the branch; on_point: called with every solution.

    Returns:
        Solutions, ends and `out_of_time` of `Along`.
    """
    ends: list[tuple[float, float] | None] = [None, None]
    out_of_time, anchor = False, None
    try:
        for way in ways:
            for value in way:
                anchor = value if anchor is None else anchor
                solution = branch.at(value)
                task.advance(f"{words}, {branch.parameter.rstrip('_')} = {value:.4g}")
                if solution is None:
                    ends[value > anchor] = end(value)
                    break
                if on_point:
                    try:
                        on_point(solution)
                    except TimeLimitError:
                        del branch.known[value]  # what belongs to a finished point is missing
                        raise
    except TimeLimitError:
        out_of_time = True
    return tuple(branch.known[value] for value in sorted(branch.known)), (ends[0], ends[1]), out_of_time


def checked_grid(
    problem: Problem, over: str, values: Iterable[float] | None, ranges: Mapping[str, Sequence[float]]
) -> tuple[Problem, str, list[float]]:
    """The problem, its parameter and the values, ascending, from the arguments of `curve`; between two arrays a line.

    Raises:
        InputError: no grid, an unknown parameter, or a value out of range.
    """
    if ranges:
        if len(ranges) > 1 or values is not None:
            raise InputError("give one range, as alpha=(0.1, 2, 40), or a list of values, as alpha=[0.5, 1, 4]")
        ((over, span),) = ranges.items()
        if isinstance(span, list | tuple) and len(span) > 1 and np.ndim(span[0]) and np.ndim(span[1]):
            problem = problem.with_(**{over: Between(span[0], span[1])})
            over, span = f"path_{over.rstrip('_')}", (0.0, 1.0, *span[2:])
        values = grid_of(over, span)
    if values is None:
        raise InputError("give a range, as alpha=(0.1, 2, 40), or a list of values, as alpha=[0.5, 1, 4]")
    grid = sorted({float(v) for v in values})
    if not grid:
        raise InputError("the grid is empty")
    problem.check_varied(over)
    for value in grid:
        problem.with_(**{over: value})
    return problem, over, grid


def grid_of(name: str, span: Any) -> np.ndarray:
    """Return the values of `name=(low, high)` or `name=(low, high, count)`, or those of a list or an array.

    Raises:
        InputError: it is neither.
    """
    try:
        numbers = np.asarray(span, float)
    except (TypeError, ValueError):
        numbers = np.empty((0, 0))
    if numbers.ndim == 1 and not isinstance(span, tuple):
        return numbers
    if numbers.shape == (2,):
        return np.linspace(numbers[0], numbers[1], 25)
    if numbers.shape == (3,) and numbers[2].is_integer() and numbers[2] >= 1:
        return np.linspace(numbers[0], numbers[1], int(numbers[2]))
    raise InputError(f"{name} = {span!r}: a range (low, high, count) or a list of values [0.5, 1, 4] is expected")


def _ways(branch: Branch, grid: list[float], seeds: Mapping[float, Overlaps]) -> Iterator[list[float]]:
    """Begin at the highest value, else the lowest, else the middle, else a seed; then go outward from there."""
    known = sorted(set(seeds) & set(grid))
    inner = sorted(known, key=lambda value: abs(known.index(value) - len(known) // 2))
    for anchor in dict.fromkeys((grid[-1], grid[0], grid[len(grid) // 2], *inner)):
        if branch.at(anchor) is not None or (anchor in seeds and branch.begin(anchor, seeds[anchor]) is not None):
            yield from outward(grid, anchor)
            return


def outward(grid: list[float], anchor: float) -> list[list[float]]:
    """Return an anchor, the values below it in descending order, and those above it in ascending order."""
    return [[anchor], [v for v in reversed(grid) if v < anchor], [v for v in grid if v > anchor]]


def bisected_end(branch: Branch, missing: float, bisections: int) -> tuple[float, float]:
    """Bisect between the nearest value where the branch was found and one where it was not.

    So close to where it was found it is followed; its start, which led nowhere at the end, is not tried again.
    """
    return bisected(branch.known, replace(branch, followed=True).at, missing, bisections)


def bisected(
    known: Iterable[float], at: Callable[[float], object], missing: float, bisections: int
) -> tuple[float, float]:
    """Bisect between the nearest known value and one at which there is nothing: the last with, the first without.

    Args:
        at: None at values without.
    """
    found = min(known, key=lambda v: abs(v - missing))
    for _ in range(bisections):
        middle = (found + missing) / 2
        if at(middle) is None:
            missing = middle
        else:
            found = middle
    return found, missing
