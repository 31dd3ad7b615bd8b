"""Natural continuation: a branch solved at successive values of a parameter, and the values where it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ..base.errors import TimeLimitError
from ..base.progress import ProgressTask, progress_bar
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point.starts import find_start_name
from ..solving.solution import Solution
from .branch import Branch
from .curve_results import Curve
from .grid import check_parameter_grid


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
    """Return a replica symmetric branch along a parameter; this is `sf.curve` with rsb = 0.

    Args:
        problem: the problem at any value of the parameter.
        start: named start of the branch; the default one of the model if None.
        over: name of the parameter.
        values: values of the parameter; or give a range by its name, as alpha=(0.1, 2, 40).
        accuracy: error bar of the overlaps, relative to the size of their block (q, V, m, ...).
        seed: seed of the sampled quadrature rules.
        refine_end: number of bisections that locate an end of the branch.
        reached: name of the solutions' branch where that differs from the start.
        on_point: called with every solution.
        seeds: overlaps by parameter value, from which the branch is started if `start` does not lead to it.
        **ranges: a range or list by the name of its parameter.

    Raises:
        InputError: no grid, an unknown parameter, or no such start.
    """
    problem, over, grid = check_parameter_grid(problem, over, values, ranges)
    start = find_start_name(problem, start)
    branch = Branch(problem, over, start, accuracy, seed, effort=2, reached=reached, refined=True)
    span = f"{over.rstrip('_')} = {grid[0]:.4g} to {grid[-1]:.4g}"
    sequences = _values_outward_from_branch(branch, grid, seeds or {})
    end = partial(bisect_branch_end, branch, bisections=refine_end)
    with progress_bar(f"{start} branch, {span}", len(grid)) as task:
        return Curve(
            over, start, *natural_parameter_continuation(branch, sequences, end, f"{start} branch", task, on_point)
        )


def natural_parameter_continuation(
    branch: Any,
    sequences: Iterable[list[float]],
    end: Callable[[float], tuple[float, float]],
    words: str,
    task: ProgressTask,
    on_point: Callable[[Any], None] | None,
) -> tuple[tuple[Any, ...], tuple[tuple[float, float] | None, tuple[float, float] | None], bool]:
    """Solve a branch at successive parameter values, each from the neighbouring solutions.

    Args:
        branch: branch with `solution_at_parameter`, `known` and `parameter` as of `Branch`.
        sequences: lists of values in order, the anchor first, then one direction and the other; each list is left
            where the branch is not found.
        end: function that locates the end of the branch by bisection, given a value at which it was not found.
        words: name of the branch, for progress reports.
        task: progress bar.
        on_point: called with every solution.

    Returns:
        solutions, ends and `out_of_time` of `CurveResults`.
    """
    ends: list[tuple[float, float] | None] = [None, None]
    out_of_time, anchor = False, None
    try:
        for values_in_order in sequences:
            for value in values_in_order:
                anchor = value if anchor is None else anchor
                solution = branch.solution_at_parameter(value)
                task.count_finished_step(f"{words}, {branch.parameter.rstrip('_')} = {value:.4g}")
                if solution is None:
                    ends[value > anchor] = end(value)
                    break
                if on_point:
                    try:
                        on_point(solution)
                    except TimeLimitError:
                        del branch.known[value]  # the point is not complete without it
                        raise
    except TimeLimitError:
        out_of_time = True
    return tuple(branch.known[value] for value in sorted(branch.known)), (ends[0], ends[1]), out_of_time


def _values_outward_from_branch(
    branch: Branch, grid: list[float], seeds: Mapping[float, Overlaps]
) -> Iterator[list[float]]:
    """Yield lists of parameter values, outward from a value at which the branch was found."""
    known = sorted(set(seeds) & set(grid))
    inner = sorted(known, key=lambda value: abs(known.index(value) - len(known) // 2))
    for anchor in dict.fromkeys((grid[-1], grid[0], grid[len(grid) // 2], *inner)):
        if branch.solution_at_parameter(anchor) is not None or (
            anchor in seeds and branch.solve_from_overlaps(anchor, seeds[anchor]) is not None
        ):
            yield from values_outward_from_anchor(grid, anchor)
            return


def values_outward_from_anchor(grid: list[float], anchor: float) -> list[list[float]]:
    """Return lists of parameter values: the anchor, the values below it descending, the values above it ascending.

    Args:
        grid: parameter values, ascending.
        anchor: one of these values, at which the continuation starts.
    """
    return [[anchor], [v for v in reversed(grid) if v < anchor], [v for v in grid if v > anchor]]


def bisect_branch_end(branch: Branch, missing: float, bisections: int) -> tuple[float, float]:
    """Return the parameter values between which a branch ends, by bisection: the last with it, the first without it.

    Solves start from neighbouring solutions only, since the named start failed at the end.

    Args:
        branch: the branch.
        missing: a parameter value at which the branch was not found.
        bisections: number of bisections.
    """
    return bisect_existence_limit(
        branch.known, replace(branch, followed=True).solution_at_parameter, missing, bisections
    )


def bisect_existence_limit(
    known: Iterable[float], at: Callable[[float], object], missing: float, bisections: int
) -> tuple[float, float]:
    """Return the parameter values between which results cease to exist, by bisection: the last with, the first without.

    Args:
        known: parameter values with a result.
        at: function of the parameter value that returns the result, or None without one.
        missing: a parameter value without a result.
        bisections: number of bisections.
    """
    found = min(known, key=lambda v: abs(v - missing))
    for _ in range(bisections):
        middle = (found + missing) / 2
        if at(middle) is None:
            missing = middle
        else:
            found = middle
    return found, missing
