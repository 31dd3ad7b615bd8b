"""Local solvers with one quadrature rule: Newton's method, implicit steps, and changes of a solution by rules."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from ..base.errors import DomainError
from ..base.options import AlgorithmOptions
from ..base.progress import progress_step
from ..integration import Rule, SaddlePointAverages, durations
from ..saddle_point.difference_jacobian import COARSE_NODES, map_jacobian_by_rule
from ..saddle_point.iteration import FixedPoint, Status, run_newton_iteration
from ..saddle_point.pseudo_transient import pseudo_transient_continuation
from .settings import SolveSettings


@dataclass(frozen=True)
class LocalSolveOptions(AlgorithmOptions):
    """Options of Newton's method with one rule.

    Attributes:
        smooth_floor: residual below which a deterministic rule may stall; larger accepts slow convergence.
        non_adaptive_floor: the same of a rule whose nodes do not adapt to jumps, relative to the accuracy.
        slope_range: distance, in block scales, that the state may move before slopes are recomputed at the end; larger
            saves slopes and makes error bars less accurate.
    """

    smooth_floor: float = 1e-7
    non_adaptive_floor: float = 1e-2
    slope_range: float = 1e-2


def solve_by_newton(task: SolveSettings, rule: Rule, point: FixedPoint, sample: Rule = COARSE_NODES) -> FixedPoint:
    """Return the point to which Newton's method with a quadrature rule converges.

    A deterministic rule that stalls above a floor (`LocalSolveOptions`) ends with MAX_ITERATIONS, not FLOOR. Slopes
    that were taken far from the end are recomputed there.

    Args:
        task: the settings of the solve.
        rule: quadrature rule that integrates the map.
        point: point to start from, with slopes where they are known.
        sample: sets over which the slopes of a sampled rule are taken.
    """
    options = LocalSolveOptions.current()

    def map_jacobian_at(u: np.ndarray) -> np.ndarray:
        return map_jacobian_by_rule(task.problem, rule, u, point.sizes, sample, task.symmetry)

    with progress_step(f"Newton's method on {durations.describe_rule_with_duration(task.problem, rule)}"):
        start = replace(point, u=task.symmetry.project_onto_invariant_states(point.u, point.sizes))
        reached = run_newton_iteration(
            task.state_map_of_rule(rule), start, rule.newton_tolerance(task.accuracy), map_jacobian_at
        )
        floor = max(options.smooth_floor, options.non_adaptive_floor * task.accuracy if rule.is_nonadaptive else 0.0)
        if reached.status is Status.FLOOR and not rule.replicated and reached.residual > floor:
            # A smooth map has no floor: this is a slow approach, as to a point where two branches meet.
            reached = replace(reached, status=Status.MAX_ITERATIONS)
        elif reached.status.success and reached.drift > options.slope_range:
            # Newton converges with slopes that are off by half; error bars, (I - J)^{-1} times the residuals of other
            # rules, would be off by more.
            with suppress(DomainError):
                reached = replace(reached, jacobian=map_jacobian_at(reached.u), drift=0.0)
    return _record_iteration_result(task, rule, "Newton's method", reached)


def solve_by_implicit_steps(task: SolveSettings, rule: Rule, start: FixedPoint) -> FixedPoint:
    """Return the point to which implicit Euler steps with a quadrature rule converge.

    Args:
        task: the settings of the solve.
        rule: quadrature rule that integrates the map.
        start: the point to start from.
    """
    with progress_step(f"implicit steps on {durations.describe_rule_with_duration(task.problem, rule)}"):
        reached = pseudo_transient_continuation(
            task.state_map_of_rule(rule), start, rule.newton_tolerance(task.accuracy)
        )
    return _record_iteration_result(task, rule, "implicit steps", reached)


def _record_iteration_result(task: SolveSettings, rule: Rule, method: str, reached: FixedPoint) -> FixedPoint:
    failure = "" if reached.status.success else f": {reached.status.words}"
    task.record_rule_attempt(
        f"{durations.describe_rule_with_duration(task.problem, rule)}: {method}, "
        f"residual {reached.residual:.0e}{failure}"
    )
    return reached


def overlap_shifts_by_replicates(
    task: SolveSettings, point: FixedPoint, rule: Rule
) -> tuple[np.ndarray, SaddlePointAverages]:
    """Return the shifts (R, n) of a solution's overlaps by each replicate of a rule, and its averages.

    Args:
        task: the settings of the solve.
        point: u, with J where it is known.
        rule: the rule, one row for each of its replicates.

    Raises:
        DomainError: the averages leave the domain of definition.
    """
    state_map = task.state_map_of_rule(rule)
    with progress_step(f"comparing with {durations.describe_rule_with_duration(task.problem, rule)}"):
        averages = state_map.channel_averages(point.overlaps)
    images = state_map.images_by_replicate(point.u, averages, point.sizes)
    matrix = point.jacobian
    if matrix is None:
        matrix = map_jacobian_by_rule(task.problem, rule, point.u, point.sizes, COARSE_NODES, task.symmetry)
    return state_map.newton_correction(matrix, point.u, images - point.u, point.sizes), averages


def overlap_shift_by_rule(task: SolveSettings, point: FixedPoint, rule: Rule) -> tuple[np.ndarray, SaddlePointAverages]:
    """Return the shift (n,) of a solution's overlaps by a quadrature rule, and its channel averages.

    Args:
        task: the settings of the solve.
        point: the solution, with slopes where they are known.
        rule: the rule that would move it.

    Raises:
        DomainError: the averages leave the domain of definition.
    """
    shifts, averages = overlap_shifts_by_replicates(task, point, rule)
    return shifts.mean(axis=0), averages
