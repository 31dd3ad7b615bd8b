"""Solve a problem from a start: damped iteration, Newton's method, adaptive refinement, error bars, checks.

start           `approach.starting_overlaps`: of a named start, or those given
damped solve    `approach.approach`: to the neighbourhood of a solution, by a coarse rule
Newton          `local.newton_at`: to the tolerance of a rule
refinement      `strategies` chooses families of rules, `refinement` goes from coarse to fine in one of them
error bars      `error_bars.finish_point`: of overlaps, training loss, test errors and multipliers
checks          `checks`: divergence, missed minima; `trivial`: W = 0; `retrying`: a start that left its branch
verdict         `solution.Solution.stability`: when first asked for
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..base import budget
from ..base.errors import TimeLimitError, require_in
from ..base.progress import step
from ..channel.search import searched
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.symmetry import NO_SYMMETRY, of_state
from ..saddle_point.iteration import Status
from ..saddle_point.starts import as_start, default_start
from .approach import APPROACH_RULE, approach, approach_rules, is_near, starting_overlaps, symmetry_of
from .checks import growth
from .compilation import compiling, is_new
from .error_bars import best_in_time, failed_solution
from .retrying import has_left, retried
from .solution import Solution, has_lost
from .strategies import Strategy, strategy_for
from .task import Task
from .trivial import trivial_state

_VANISHED = 1e-24  # of q: below it weights have no digits, however many are asked for


def solve(
    problem: Problem,
    start: Any = None,
    *,
    accuracy: float = 1e-4,
    integrator: str = "auto",
    points: int | None = None,
    seed: int = 0,
    effort: int = 100,
    time_limit: float | None = None,
) -> Solution:
    """Solve the replica symmetric saddle point from a start: `sf.solve` at rsb = 0, whose arguments it has.

    A start that left its branch is tried again by way of easier problems (`retried`) before that is the status.

    Raises:
        InputError: an unknown start or integrator, what is no start, or an accuracy that is not positive.
    """
    start = as_start(default_start(problem) if start is None else start)
    by_rule = partial(reach, integrator=integrator, points=points, seed=seed)
    own: dict[str, Any] = {"accuracy": accuracy, "effort": effort}
    with budget.time_limit(time_limit):
        found = by_rule(problem, start, **own)
        lost = found.success and has_lost(problem, start, found)
        again, words = None, ""
        if not isinstance(start, Solution) and (lost or (found.losses is None and has_left(problem, start, found))):
            with suppress(TimeLimitError):
                again, words = retried(by_rule, problem, start, found, **own)
    if again is not None:
        return replace(again, tried=(*again.tried, f"the start left its branch at first: {words}"))
    status = Status.ENDED_ELSEWHERE if lost else found.status
    grown = growth(problem, found.overlaps) if found.losses is None and status is Status.MAX_ITERATIONS else ""
    words = words or found.outside
    if grown not in words:
        words = "; ".join(filter(None, (words, grown)))
    return replace(found, status=status, outside=words)


def reach(
    problem: Problem,
    start: str | Overlaps | Solution = "semantic",
    *,
    accuracy: float = 1e-4,
    integrator: str = "auto",
    points: int | None = None,
    seed: int = 0,
    effort: int = 100,
    alone: bool = True,
    afar: bool = True,
    extrapolate: bool = True,
) -> Solution:
    """Solve the saddle point from a start without checking which branch was reached, as `solve` does.

    Args:
        alone: whether there is no other start to try: else one that extrapolation leads nowhere is given up.
        afar: whether a solution from which Newton's method leads nowhere is approached with damping.
        extrapolate: whether the approach mixes earlier iterates: faster, but it leads to saddles, too.
    """
    require_in("accuracy", accuracy, "(0, 1)")
    refine = strategy_for(problem, integrator, points, seed)
    _ = problem.alpha  # raises where it is missing, before anything is compiled
    overlaps = starting_overlaps(problem, start)
    name = start if isinstance(start, str) else (start.start if isinstance(start, Solution) else "given")
    task = Task(problem, name, NO_SYMMETRY, accuracy, seed, effort)
    known = start if isinstance(start, Solution) else None
    with step(f"solving from the start {name}"), budget.offers() as best:
        try:
            with compiling(problem, overlaps, is_new(problem)):
                return _converge(task, overlaps, known, refine, alone, afar, extrapolate)
        except TimeLimitError as error:
            return best_in_time(task, overlaps, best[0], error)


def _converge(
    task: Task, overlaps: Overlaps, known: Solution | None, refine: Strategy, alone: bool, afar: bool, extrapolate: bool
) -> Solution:
    """Return what overlaps to start from, those of a known solution or others, lead to; the rest as of `reach`."""
    if known is not None and known.symmetry is not None:
        problem = searched(task.problem, overlaps)
        task = replace(task, problem=problem)
        symmetry = replace(known.symmetry, exchanges=of_state(problem, overlaps))
        point = known.fixed_point if symmetry == known.symmetry else replace(known.fixed_point, jacobian=None)
        near = refine(replace(task, symmetry=symmetry), point, known)
        if near.losses is not None or not afar:
            return near
    found = _from_afar(task, overlaps, known is None, refine, extrapolate)
    failed = found.losses is None and found.status in (Status.LEFT_DOMAIN, Status.MAX_ITERATIONS)
    if alone and extrapolate and failed:
        # Along a soft direction a residual is small far from the solution, and extrapolation is soon there.
        found = _from_afar(task, overlaps, known is None, refine, False)
    return found


def _from_afar(task: Task, overlaps: Overlaps, is_guess: bool, refine: Strategy, extrapolate: bool) -> Solution:
    """Return what overlaps, of a guessed size or not, lead to by damped iteration and then Newton's method."""
    problem, seed = task.problem, task.seed
    point = approach(problem, overlaps, seed, extrapolate, is_guess)
    thorough = searched(problem, point.overlaps) if is_near(point) else problem
    if thorough.search != problem.search:
        # The quick search missed minima: what it led to solves another map.
        again = approach(thorough, point.overlaps, seed, extrapolate)
        point = replace(again, iterations=point.iterations + again.iterations)
    task = replace(task, problem=thorough)
    if is_near(point):
        # Newton's method (local.py), refinement of the rule (refinement.py), error bars and checks (error_bars.py).
        found = refine(replace(task, symmetry=symmetry_of(thorough, point)), point, None)
        if found.success or (found.losses is not None and np.abs(found.overlaps.q).max() >= _VANISHED):
            return found
    else:
        found = failed_solution(task, point, APPROACH_RULE)
    zero = trivial_state(thorough, point.overlaps, *approach_rules(thorough, seed))
    if zero is None:
        return found
    failed = found if found.losses is None else failed_solution(task, point, APPROACH_RULE)
    return replace(failed, overlaps=zero[0], errors=zero[1], status=Status.COLLAPSED, outside="")
