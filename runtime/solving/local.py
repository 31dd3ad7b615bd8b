"""Local solvers with one quadrature rule: Newton's method, implicit steps, and changes of a solution by rules."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from ..base.errors import DomainError
from ..base.options import AlgorithmOptions
from ..base.progress import progress_step
from ..integration import Rule, SaddlePointAverages, durations
from ..integration.estimates import replicate_error_bar
from ..saddle_point.difference_jacobian import COARSE_NODES, map_jacobian_by_quadrature_rule
from ..saddle_point.iteration import FixedPoint, Status, run_newton_iteration
from ..saddle_point.pseudo_transient import pseudo_transient_continuation
from .settings import SolveSettings


@dataclass(frozen=True)
class LocalSolveOptions(AlgorithmOptions):
    """Options of Newton's method with one quadrature rule.

    Attributes:
        smooth_floor: residual below which Newton's method by a deterministic rule may stall and count as converged.
        non_adaptive_floor: the same for rules whose nodes do not adapt to jumps, relative to the accuracy.
        slope_range: relative change of the overlaps since the Jacobian was computed, above which it is recomputed at
            the end; larger saves time and makes error bars less accurate.
    """

    smooth_floor: float = 1e-7
    non_adaptive_floor: float = 1e-2
    slope_range: float = 1e-2


def solve_by_newton(task: SolveSettings, rule: Rule, point: FixedPoint, sample: Rule = COARSE_NODES) -> FixedPoint:
    """Return the point to which Newton's method with a quadrature rule converges.

    By a deterministic rule, a residual that stalls above the floor of `LocalSolveOptions` gives the status
    MAX_ITERATIONS, not FLOOR. A Jacobian that was computed far from the last state is recomputed there.

    Args:
        task: the settings of the solve.
        rule: quadrature rule that integrates the map.
        point: point to start from, with its Jacobian if that is known.
        sample: quadrature rule by which the Jacobian of a sampled rule is computed.
    """
    options = LocalSolveOptions.current()

    def map_jacobian_at_state(u: np.ndarray) -> np.ndarray:
        return map_jacobian_of_task(task, rule, replace(point, u=u), sample)

    with progress_step(f"Newton's method on {durations.describe_rule_with_duration(task.problem, rule)}"):
        start = replace(point, u=task.symmetry.project_onto_invariant_states(point.u, point.sizes))
        reached = run_newton_iteration(
            task.state_map_by_quadrature_rule(rule), start, rule.newton_tolerance(task.accuracy), map_jacobian_at_state
        )
        floor = max(options.smooth_floor, options.non_adaptive_floor * task.accuracy if rule.is_nonadaptive else 0.0)
        if reached.status is Status.FLOOR and not rule.replicated and reached.residual > floor:
            # A smooth map has no floor: this is a slow approach, as to a point where two branches meet.
            reached = replace(reached, status=Status.MAX_ITERATIONS)
        elif reached.status.success and reached.drift > options.slope_range:
            # Newton converges with slopes that are off by half; error bars, (I - J)^{-1} times the residuals of other
            # rules, would be off by more.
            with suppress(DomainError):
                reached = replace(reached, jacobian=map_jacobian_at_state(reached.u), drift=0.0)
    return _record_iteration_result(task, rule, "Newton's method", reached)


def solve_by_implicit_steps(task: SolveSettings, rule: Rule, start: FixedPoint) -> FixedPoint:
    """Return the point to which implicit Euler steps (pseudo-transient continuation) with a quadrature rule converge.

    Args:
        task: the settings of the solve.
        rule: quadrature rule that integrates the map.
        start: the point to start from.
    """
    with progress_step(f"implicit steps on {durations.describe_rule_with_duration(task.problem, rule)}"):
        reached = pseudo_transient_continuation(
            task.state_map_by_quadrature_rule(rule), start, rule.newton_tolerance(task.accuracy)
        )
    return _record_iteration_result(task, rule, "implicit steps", reached)


def _record_iteration_result(task: SolveSettings, rule: Rule, method: str, reached: FixedPoint) -> FixedPoint:
    failure = "" if reached.status.success else f": {reached.status.words}"
    task.record_quadrature_attempt(
        f"{durations.describe_rule_with_duration(task.problem, rule)}: {method}, "
        f"residual {reached.residual:.0e}{failure}"
    )
    return reached


def map_jacobian_of_task(task: SolveSettings, rule: Rule, point: FixedPoint, sample: Rule = COARSE_NODES) -> np.ndarray:
    """Return the Jacobian dG/du of the saddle-point map at a point, by differences that suit its quadrature rule.

    Args:
        task: the settings of the solve.
        rule: quadrature rule of the map.
        point: state where the Jacobian is taken.
        sample: quadrature rule that is used instead if the rule is a sampled one.
    """
    return map_jacobian_by_quadrature_rule(task.problem, rule, point.u, point.sizes, sample, task.symmetry)


def overlap_shifts_by_replicates(
    task: SolveSettings, point: FixedPoint, rule: Rule
) -> tuple[np.ndarray, SaddlePointAverages]:
    """Return how much each replicate of a quadrature rule shifts the overlaps of a solution, and the channel averages.

    Args:
        task: the settings of the solve.
        point: the solution, with its Jacobian if that is known.
        rule: quadrature rule with replicates.

    Raises:
        DomainError: the overlaps lie outside the domain of definition by this rule.
    """
    state_map = task.state_map_by_quadrature_rule(rule)
    with progress_step(f"comparing with {durations.describe_rule_with_duration(task.problem, rule)}"):
        averages = state_map.channel_averages(point.overlaps)
    images = state_map.map_images_by_replicate(point.u, averages, point.sizes)
    matrix = map_jacobian_of_task(task, rule, point) if point.jacobian is None else point.jacobian
    return state_map.newton_correction(matrix, point.u, images - point.u, point.sizes), averages


def relative_error_of_replicates(shifts: np.ndarray, point: FixedPoint) -> float:
    """Return the largest error bar that changes by replicates give the overlaps, relative to the sizes of q, V, m, ...

    Args:
        shifts: change of the packed overlaps by each replicate, (replicates, components).
        point: the solution.
    """
    return float(np.max(replicate_error_bar(shifts) / point.overlaps.block_scales))


def overlap_shift_by_quadrature_rule(
    task: SolveSettings, point: FixedPoint, rule: Rule
) -> tuple[np.ndarray, SaddlePointAverages]:
    """Return how much another quadrature rule shifts the overlaps of a solution (one Newton step), and its averages.

    Args:
        task: the settings of the solve.
        point: the solution, with its Jacobian if that is known.
        rule: the other quadrature rule.

    Raises:
        DomainError: the overlaps lie outside the domain of definition by this rule.
    """
    shifts, averages = overlap_shifts_by_replicates(task, point, rule)
    return shifts.mean(axis=0), averages
