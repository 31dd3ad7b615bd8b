"""All solutions that the starts of a model lead to, ranked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ..base.errors import TimeLimitError
from ..base.progress import bar, say
from ..problems.problem import Problem, check_is_problem
from ..saddle_point.starts import branch_of, start_overlaps
from .deflation import deflated, same_orbit
from .retrying import has_left, retried
from .saddles import descended
from .solution import Solution, agree_within_errors, has_lost
from .solve import reach

_ROUGH, _EFFORT = 1e-3, 2  # accuracy and effort with which solutions below a saddle are compared with known ones


def solutions(
    problem: Problem,
    *,
    starts: Iterable[str] | None = None,
    deflate: int = 0,
    on_failure: Callable[[Solution], None] | None = None,
    **options: Any,
) -> list[Solution]:
    """All solutions found from the named starts (default: all of the model), ranked by training loss, [0] the best.

    Args:
        deflate: attempts to find others, with the known ones divided out (`deflation`): saddles, too.
        on_failure: called with the last iterate of every start that fails.
        options: as for `solve`.

    Solutions that agree within their errors are reported once, from a start that holds their overlaps where one of
    them does. Starts that fail are named on stderr and left out. Of saddles the minima on both sides are looked for;
    starts that left their branch are tried again as by `solve`, unless a solution that holds what they do is known.

    Example:
        >>> best = sf.solutions(sf.problem("ridge_regression", alpha=2))[0]
        >>> best.rank
        1
    """
    check_is_problem(problem)
    ranked: list[Solution] = []
    lost: dict[str, Solution] = {}
    names = list(starts or problem.solver.model.STARTS)
    with bar("solving", len(names)) as task:
        for name in names:
            task.describe(f"solving from the start {name}")
            solution = reach(problem, name, **options)
            task.advance()
            if has_left(problem, name, solution):
                lost[name] = solution
            if solution.losses is None:
                say(f"start {name}: {solution.status.words}; {solution.advice}")
                if on_failure:
                    on_failure(solution)
                continue
            twin = next((i for i, other in enumerate(ranked) if agree_within_errors(solution, other)), None)
            if twin is None:
                ranked.append(solution)
            elif _is_own(solution, name) and not _is_own(ranked[twin], ranked[twin].start):
                ranked[twin] = solution
    with suppress(TimeLimitError):
        ranked += _below(problem, names, ranked, **options)
        ranked += _tried_again(problem, lost, ranked, **options)
    if deflate and ranked:
        known = {name: options[name] for name in ("accuracy", "seed") if name in options}
        ranked += deflated(problem, ranked, deflate, **known)
    ranked.sort(key=lambda s: s.training_loss)
    return [replace(s, rank=i) for i, s in enumerate(ranked, start=1)]


def _below(problem: Problem, starts: Sequence[str], known: Sequence[Solution], **options: Any) -> list[Solution]:
    """Solutions on both sides of the saddles among the known ones, those that are known left out.

    They go by a start that holds their overlaps, or else by that of the saddle.
    """
    rough = {**options, "accuracy": max(options.get("accuracy", 1e-4), _ROUGH), "effort": _EFFORT}
    found: list[Solution] = []
    for saddle in known:
        for solution in descended(partial(reach, **rough), saddle):
            if solution.success and not any(same_orbit(solution, other) for other in (*known, *found)):
                finished = reach(problem, solution, **options)
                own = (name for name in starts if _is_own(finished, name))
                found.append(replace(finished, start=next(own, saddle.start)))
    return [solution for solution in found if solution.losses is not None]


def _tried_again(
    problem: Problem, lost: Mapping[str, Solution], known: Sequence[Solution], **options: Any
) -> list[Solution]:
    """Solutions from starts that left their branch, by name with what they led to; those that are known left out."""
    own = {name: options.pop(name) for name in ("accuracy", "effort") if name in options}
    found: list[Solution] = []
    for name, solution in lost.items():
        if all(has_lost(problem, name, other) for other in (*known, *found)):
            again, words = retried(partial(reach, **options), problem, name, solution, **own)
            if again is not None:
                found.append(again)
            elif words:
                say(f"start {name}: {words}")
    return found


def _is_own(solution: Solution, start: str) -> bool:
    """Return whether a start by name has the overlaps that a solution has."""
    return branch_of(start_overlaps(solution.problem, start)) == solution.branch
