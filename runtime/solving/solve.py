"""Solve a problem from a start: damped iteration, Newton's method, adaptive refinement, error bars, checks.

start           `approach.overlaps_of_any_start`: of a named start, or those given
damped solve    `approach.approach_solution_by_damping`: to the neighbourhood of a solution, by a coarse rule
Newton          `local.solve_by_newton`: to the tolerance of a rule
refinement      `strategies` chooses families of rules, `refinement` goes from coarse to fine in one of them
error bars      `error_bars.solution_with_error_bars`: of overlaps, training loss, test errors and multipliers
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
from ..base.errors import TimeLimitError, require_in_interval
from ..base.progress import progress_step
from ..channel.search import choose_proximal_search
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.symmetry import NO_SYMMETRY, symmetries_of_state
from ..saddle_point.iteration import Status
from ..saddle_point.starts import convert_start_argument, default_start, find_start_name
from .approach import (
    APPROACH_RULE,
    approach_solution_by_damping,
    detect_symmetry_of_state,
    is_near_solution,
    overlaps_of_any_start,
    quadrature_rules_of_damped_iteration,
)
from .checks import describe_unbounded_growth
from .compilation import compile_in_second_process, is_solver_new_on_machine
from .error_bars import best_solution_at_time_limit, failed_solution
from .retrying import has_solve_left_branch_of_start, retry_lost_start
from .settings import SolveSettings
from .solution import Solution, has_lost_overlap_of_start
from .strategies import Strategy, choose_integration_strategy
from .trivial import find_trivial_solution

_Q_ROUNDING = 1e-24  # of q: the weights are rounding errors below it, at any accuracy


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
    """Solve the replica symmetric saddle point from a start; this is `sf.solve` with rsb = 0.

    A start that left its branch is tried again, from easier problems (`retry_lost_start`).

    Args:
        problem: the problem to solve.
        start: name of a start, overlaps, or a solution; by default `default_start`.
        accuracy: error bar of the overlaps, relative to the size of their block (q, V, m, ...).
        integrator: name of a family of quadrature rules, or "auto".
        points: size of that rule, for example its number of nodes.
        seed: seed of the sampled quadrature rules.
        effort: largest number of sizes that are tried in each family of quadrature rules.
        time_limit: limit in seconds; None for none.

    Raises:
        InputError: an unknown start or integrator, or an accuracy that is not positive.
    """
    start = convert_start_argument(default_start(problem) if start is None else start)
    by_rule = partial(solve_without_branch_check, integrator=integrator, points=points, seed=seed)
    own: dict[str, Any] = {"accuracy": accuracy, "effort": effort}
    with budget.time_limit(time_limit):
        found = by_rule(problem, start, **own)
        lost = found.success and has_lost_overlap_of_start(problem, start, found)
        again, words = None, ""
        if not isinstance(start, Solution) and (
            lost or (found.losses is None and has_solve_left_branch_of_start(problem, start, found))
        ):
            with suppress(TimeLimitError):
                again, words = retry_lost_start(by_rule, problem, start, found, **own)
    if again is not None:
        return replace(again, tried=(*again.tried, f"the start left its branch at first: {words}"))
    status = Status.LEFT_BASIN if lost else found.status
    growth_message = (
        describe_unbounded_growth(problem, found.overlaps)
        if found.losses is None and status is Status.MAX_ITERATIONS
        else ""
    )
    words = words or found.outside
    if growth_message not in words:
        words = "; ".join(filter(None, (words, growth_message)))
    return replace(found, status=status, outside=words)


def solve_without_branch_check(
    problem: Problem,
    start: str | Overlaps | Solution | None = None,
    *,
    accuracy: float = 1e-4,
    integrator: str = "auto",
    points: int | None = None,
    seed: int = 0,
    effort: int = 100,
    alone: bool = True,
    globalise: bool = True,
    extrapolate: bool = True,
) -> Solution:
    """Solve the saddle point from a start, without checking that the branch of the start was reached (see `solve`).

    Args:
        problem: the problem to solve.
        start: name of a start, overlaps, or a solution; by default `default_start`.
        accuracy: error bar of the overlaps, relative to the size of their block (q, V, m, ...).
        integrator: name of a family of quadrature rules, or "auto".
        points: size of that rule, for example its number of nodes.
        seed: seed of the sampled quadrature rules.
        effort: largest number of sizes that are tried in each family of quadrature rules.
        alone: whether this is the only start; a failure is then retried without extrapolation.
        globalise: whether damped iteration is tried if Newton's method fails from a known solution.
        extrapolate: whether to mix in earlier iterates: faster, but it may converge to saddles.

    Raises:
        InputError: an unknown start or integrator, or an accuracy outside (0, 1).
    """
    require_in_interval("accuracy", accuracy, "(0, 1)")
    refine = choose_integration_strategy(problem, integrator, points, seed)
    _ = problem.alpha  # raises where it is missing, before anything is compiled
    if start is None or isinstance(start, str):
        start = find_start_name(problem, start)
    overlaps = overlaps_of_any_start(problem, start)
    name = start if isinstance(start, str) else (start.start if isinstance(start, Solution) else "given")
    task = SolveSettings(problem, name, NO_SYMMETRY, accuracy, seed, effort)
    known = start if isinstance(start, Solution) else None
    with progress_step(f"solving from the start {name}"), budget.collect_partial_result() as best:
        try:
            with compile_in_second_process(problem, overlaps, is_solver_new_on_machine(problem)):
                return _solve_from_overlaps(task, overlaps, known, refine, alone, globalise, extrapolate)
        except TimeLimitError as error:
            return best_solution_at_time_limit(task, overlaps, best[0], error)


def _solve_from_overlaps(
    task: SolveSettings,
    overlaps: Overlaps,
    known: Solution | None,
    refine: Strategy,
    alone: bool,
    globalise: bool,
    extrapolate: bool,
) -> Solution:
    """Solve from given overlaps, by Newton's method if they are those of a known solution; return the solution."""
    if known is not None and known.symmetry is not None:
        problem = choose_proximal_search(task.problem, overlaps)
        task = replace(task, problem=problem)
        symmetry = replace(known.symmetry, exchanges=symmetries_of_state(problem, overlaps))
        point = known.fixed_point if symmetry == known.symmetry else replace(known.fixed_point, jacobian=None)
        local_solution = refine(replace(task, symmetry=symmetry), point, known)
        if local_solution.losses is not None or not globalise:
            return local_solution
    found = _solve_by_damped_iteration_first(task, overlaps, known is None, refine, extrapolate)
    failed = found.losses is None and found.status in (Status.LEFT_DOMAIN, Status.MAX_ITERATIONS)
    if alone and extrapolate and failed:
        # Along a soft direction the residual is small far from the solution, where extrapolation may stop.
        found = _solve_by_damped_iteration_first(task, overlaps, known is None, refine, False)
    return found


def _solve_by_damped_iteration_first(
    task: SolveSettings, overlaps: Overlaps, is_guess: bool, refine: Strategy, extrapolate: bool
) -> Solution:
    """Solve from given overlaps by damped iteration and then Newton's method; return the solution."""
    problem, seed = task.problem, task.seed
    point = approach_solution_by_damping(problem, overlaps, seed, extrapolate, is_guess)
    thorough = choose_proximal_search(problem, point.overlaps) if is_near_solution(point) else problem
    if thorough.search != problem.search:
        # The quick search missed minima, so that its fixed point belongs to another map.
        again = approach_solution_by_damping(thorough, point.overlaps, seed, extrapolate)
        point = replace(again, iterations=point.iterations + again.iterations)
    task = replace(task, problem=thorough)
    if is_near_solution(point):
        # Newton's method (local.py), refinement of the rule (refinement.py), error bars and checks (error_bars.py).
        found = refine(replace(task, symmetry=detect_symmetry_of_state(thorough, point)), point, None)
        if found.success or (found.losses is not None and np.abs(found.overlaps.q).max() >= _Q_ROUNDING):
            return found
    else:
        found = failed_solution(task, point, APPROACH_RULE)
    zero = find_trivial_solution(thorough, point.overlaps, *quadrature_rules_of_damped_iteration(thorough, seed))
    if zero is None:
        return found
    failed = found if found.losses is None else failed_solution(task, point, APPROACH_RULE)
    return replace(failed, overlaps=zero[0], errors=zero[1], status=Status.TRIVIAL, outside="")
