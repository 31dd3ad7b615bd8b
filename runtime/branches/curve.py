"""A curve: a branch solved at one value of a parameter after another, and where it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ..base.errors import TimeLimitError, require_known
from ..base.progress import Task, bar
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point.starts import default_start
from ..solving.solution import Solution
from .along import Curve
from .branch import Branch
from .grid import checked_grid


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


def _ways(branch: Branch, grid: list[float], seeds: Mapping[float, Overlaps]) -> Iterator[list[float]]:
    """Yield the ways outward from the highest value, else the lowest, else the middle, else a seed."""
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
    """Return the last value with the branch and the first without, bisected.

    So close to where it was found it is followed; its start, which led nowhere at the end, is not tried again.
    """
    return bisected(branch.known, replace(branch, followed=True).at, missing, bisections)


def bisected(
    known: Iterable[float], at: Callable[[float], object], missing: float, bisections: int
) -> tuple[float, float]:
    """Return the last value with something and the first without, bisected from the nearest known one.

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
