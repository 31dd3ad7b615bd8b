"""Adaptive refinement: the rules of one family from coarse to fine, until the error bars meet the accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..base import budget
from ..base.errors import DomainError
from ..base.options import AlgorithmOptions
from ..base.progress import progress_step, report_remaining_work
from ..channel.nodes import Rotation
from ..integration import Rule, durations
from ..integration.principal_axes import principal_axes_of_proximal_map
from ..integration.rule import DIFFERENCE_SAFETY
from ..integration.sampled import SAMPLES, Sobol
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_fields_of_loss
from ..saddle_point.difference_jacobian import COARSE_NODES, FINE_NODES
from ..saddle_point.iteration import FixedPoint, Status, run_damped_iteration
from ..saddle_point.state_map import SaddlePointMap
from .error_bars import failed_solution, solution_with_error_bars
from .local import (
    overlap_shift_by_quadrature_rule,
    overlap_shifts_by_replicates,
    relative_error_of_replicates,
    solve_by_implicit_steps,
    solve_by_newton,
)
from .replicates import compare_replicates
from .settings import SolveSettings
from .solution import Solution


@dataclass(frozen=True)
class RefinementOptions(AlgorithmOptions):
    """Options of solving by finer and finer quadrature rules.

    Attributes:
        mass_tolerance: largest difference from one of the sum of a rule's weights; smaller rejects more rules.
        retry_size: index of the sample size at which a failed Newton iteration is retried.
        history: number of earlier sizes whose differences bound the error if the accuracy was not reached.
        evaluations_per_rule: evaluations of a finer rule, for its solution and error bars, for which a time limit has
            to leave time; more end earlier, and fewer leave solutions without error bars.
        max_rotated_error: ratio of errors below which Sobol sets are rotated; estimates of it scatter by a quarter.
    """

    mass_tolerance: float = 1e-3
    retry_size: int = 2
    history: int = 2
    evaluations_per_rule: int = 8
    max_rotated_error: float = 0.8


def solve_by_deterministic_rules(
    task: SolveSettings, approach: FixedPoint, rules: Sequence[Rule], patient: bool = True, to_the_end: bool = True
) -> Solution:
    """Solve by deterministic quadrature rules from coarse to fine, until the next finer rule agrees.

    Args:
        task: the settings of the solve.
        approach: a point near the solution.
        rules: quadrature rules of one family, from coarse to fine.
        patient: whether a failure of Newton's method is followed by damped iteration, and then by the next rule.
        to_the_end: whether to try all rules even if the largest, by extrapolation, will miss the accuracy.
    """
    problem, accuracy = task.problem, task.accuracy
    one_field = reduce_to_fields_of_loss(problem).solver.channel.FIELDS == 1
    point, failures, next_number = approach, 0, 0
    solved: tuple[FixedPoint, Rule] | None = None
    solution: Solution | None = None
    relaxed: FixedPoint | None = None
    previous: tuple[int, float] | None = None
    converged_states: list[np.ndarray] = []
    for number, rule in enumerate(rules):
        if number < next_number:
            continue
        if solved is not None:
            budget.check_time_limit(_predicted_seconds_of_rule(problem, rule))
        point = replace(point, u=task.symmetry.project_onto_invariant_states(point.u, point.sizes))
        covered = not rule.in_x or are_rule_weights_normalised(problem, rule, point.overlaps)
        if not covered:
            reached = replace(point, status=Status.MAX_ITERATIONS)
            task.record_quadrature_attempt(
                f"{durations.describe_rule_with_duration(problem, rule)}: its grid does not cover the law of the fields"
            )
        elif relaxed is not None and relaxed.status.success:
            # Where Newton's method failed on one rule its slopes mean little on the next.
            reached = solve_by_implicit_steps(task, rule, point)
        else:
            reached = solve_by_newton(task, rule, point)
        if patient and covered and not reached.status.success and failures == 0:
            # The damped iteration had a coarser rule: a soft branch may be far from there.
            nearer = run_damped_iteration(
                task.state_map_by_quadrature_rule(rule),
                approach.overlaps,
                1e-4,
                max_iterations=60,
                continue_if_slow=False,
            )
            nearer = replace(nearer, jacobian=None, iterations=reached.iterations + nearer.iterations)
            reached = solve_by_newton(task, rule, nearer)
            if not reached.status.success and one_field:
                relaxed = solve_by_implicit_steps(task, rule, approach)
                reached = relaxed if relaxed.status.success else reached
        if not reached.status.success:
            failures += 1
            # The grid may be too wide for the law of the fields; where finer ones are cheap they are tried.
            if not one_field and (solved or not patient or failures >= 2):
                break
            continue
        solved, solution = (reached, rule), None
        converged_states.append(reached.u)
        to_finer = None
        with suppress(DomainError):
            to_finer, _ = overlap_shift_by_quadrature_rule(task, reached, rule.finer_rule())
        budget.offer_partial_result(partial(solution_with_error_bars, task, reached, rule))
        if to_finer is None:
            break
        error = DIFFERENCE_SAFETY * float(np.max(np.abs(to_finer) / reached.overlaps.block_scales))
        next_number = min(number + rule.predict_refinement_steps(error, accuracy), len(rules) - 1)
        if error < accuracy:
            solution = solution_with_error_bars(task, reached, rule)
            if solution.success or solution.status is Status.MINIMA_MISSED:
                return solution
            budget.offer_partial_result(partial(replace, solution))
        report_remaining_work(f"error bar so far about {error:.0e}, asked {accuracy:.0e}")
        task.record_quadrature_attempt(
            f"{durations.describe_rule_with_duration(problem, rule)}: "
            f"a finer rule moves it by {error:.0e}, asked {accuracy:.0e}"
        )
        point = replace(reached, u=reached.u + to_finer)
        if previous is not None and not to_the_end:
            before, larger = previous
            gain = float(np.log(larger / error)) / (number - before)
            if gain * (len(rules) - 1 - number) < float(np.log(error / accuracy)):
                task.record_quadrature_attempt(
                    "extrapolated from the last sizes, the larger ones do not reach the accuracy"
                )
                break
        previous = number, error
    if solved is None:
        return failed_solution(task, replace(reached, outside=relaxed.outside if relaxed else reached.outside), rule)
    solution = solution or solution_with_error_bars(task, *solved)
    if solution.losses is None or solution.success:
        return solution
    # Where a rule does not converge, the next size may be as wrong as this one: the last changes bound the error.
    kept = RefinementOptions.current().history
    earlier = converged_states[-1 - kept : -1]
    moved = [np.abs(solution.overlaps.pack() - _align_sign_of_weights(u, solution.overlaps)) for u in earlier]
    wider = replace(solution, errors=np.max([solution.errors, *moved], axis=0))
    factor = wider.relative_error / solution.relative_error
    return replace(wider, observed={name: (value, factor * e) for name, (value, e) in solution.observed.items()})


def solve_by_sampled_rules(
    task: SolveSettings, approach: FixedPoint, near: Solution | None = None, rules: Sequence[Rule] = SAMPLES
) -> Solution:
    """Solve by larger and larger random sets of nodes, until the replicates agree to the accuracy.

    On a soft branch with jumps Newton's method may fail on few points, whose Jacobian is poor. It is then retried once
    on a larger set with a Jacobian from a still larger one. Sobol sets are rotated to the principal axes of the
    proximal map if that reduces the error.

    Args:
        task: the settings of the solve.
        approach: a point near the solution.
        near: the solution of a neighbouring problem, whose axes are used again, so that errors are alike; None without.
        rules: quadrature rules with replicates, from small to large sets.
    """
    accuracy, last = task.accuracy, min(len(rules), task.effort) - 1
    point, position, patient = approach, 0, False
    are_axes_chosen = False
    if near is not None and isinstance(near.rule, Sobol):
        rules, are_axes_chosen = _rotate_sobol_sets(rules, near.rule.rotation), True
    while True:
        rule = rules[position].with_seed(task.seed)
        point = solve_by_newton(task, rule, point, FINE_NODES if patient else COARSE_NODES)
        if not point.status.success:
            if patient or point.status is not Status.MAX_ITERATIONS:
                return failed_solution(task, point, rule)
            position = max(position, RefinementOptions.current().retry_size)
            patient, point = True, replace(point, jacobian=None)
            continue
        try:
            spread = compare_replicates(task, point, rule)
        except DomainError:
            return failed_solution(task, replace(point, status=Status.LEFT_DOMAIN), rule)
        point, error = spread.point, spread.relative_error
        budget.offer_partial_result(partial(solution_with_error_bars, task, point, rule, spread))
        report_remaining_work(f"error bar so far {error:.0e}, asked {accuracy:.0e}")
        task.record_quadrature_attempt(
            f"{durations.describe_rule_with_duration(task.problem, rule)}: "
            f"replicates differ by {error:.0e}, asked {accuracy:.0e}"
        )
        if error <= accuracy or position >= last:
            return solution_with_error_bars(task, point, rule, spread)
        if not are_axes_chosen:
            axes, ratio = _principal_axes_and_error_ratio(task, point, rule)
            if ratio < RefinementOptions.current().max_rotated_error:
                rules, error = _rotate_sobol_sets(rules, axes), ratio * error
            are_axes_chosen = True
        sizes = range(min(last, position + rule.predict_refinement_steps(error, accuracy)), position, -1)
        seconds = {size: _predicted_seconds_of_rule(task.problem, rules[size]) for size in sizes}
        position = next((size for size in sizes if seconds[size] < budget.remaining_seconds()), sizes[-1])
        budget.check_time_limit(seconds[position])


def _rotate_sobol_sets(rules: Sequence[Rule], axes: Rotation | None) -> list[Rule]:
    return [replace(rule, rotation=axes) if isinstance(rule, Sobol) else rule for rule in rules]


def _principal_axes_and_error_ratio(
    task: SolveSettings, point: FixedPoint, rule: Rule
) -> tuple[Rotation | None, float]:
    """Return the principal axes of the proximal map, and the ratio of the errors of a solution with and without them.

    Without a rotation the coordinates of a set are those of the fields, in which a loss may have its kinks. Errors
    differ more on the next finer sets, which are compared if the axes reduce the error on these.
    """
    if task.problem.inverse_temperature is not None or not isinstance(rule, Sobol):
        return None, 1.0
    rotated = own = 1.0
    with progress_step("comparing Sobol sets along other axes"):
        try:
            axes = principal_axes_of_proximal_map(task.problem, point.overlaps)
            for compared in (rule, rule.finer_rule()):
                rotated, own = (
                    relative_error_of_replicates(overlap_shifts_by_replicates(task, point, each)[0], point)
                    for each in (replace(compared, rotation=axes), compared)
                )
                words = durations.describe_rule_with_duration(task.problem, compared)
                task.record_quadrature_attempt(
                    f"{words}: along axes in which the proximal map changes most, replicates differ by {rotated:.0e}, "
                    f"along those of the fields by {own:.0e}"
                )
                if rotated >= own:
                    break
        except DomainError:
            return None, 1.0
    return axes, rotated / own if own > 0 else 1.0


def _predicted_seconds_of_rule(problem: Problem, rule: Rule) -> float:
    """Return the predicted duration of a solution by a quadrature rule with its error bars; 0 if unknown."""
    evaluations = RefinementOptions.current().evaluations_per_rule
    return evaluations * durations.predicted_evaluation_seconds(problem, rule)


def are_rule_weights_normalised(
    problem: Problem, rule: Rule, overlaps: Overlaps, tolerance: float | None = None
) -> bool:
    """Return whether the weights of a quadrature rule sum to one, so that its nodes cover the distribution of fields.

    A grid that is too coarse for a narrow distribution may miss it, and sharp bends of the loss may do the same.

    Args:
        problem: the problem to solve.
        rule: quadrature rule with nodes in proximal space.
        overlaps: overlaps at which the weights are computed.
        tolerance: largest deviation of the sum from one; `RefinementOptions.mass_tolerance` by default.
    """
    tolerance = RefinementOptions.current().mass_tolerance if tolerance is None else tolerance
    try:
        with progress_step(
            f"whether the law of the fields is covered by {durations.describe_rule_with_duration(problem, rule)}"
        ):
            averages = SaddlePointMap(problem, rule).channel_averages(overlaps)
        return abs(averages.mass - 1) + averages.unconverged < tolerance
    except DomainError:
        return False


def _align_sign_of_weights(u: np.ndarray, overlaps: Overlaps) -> np.ndarray:
    """Return a packed state, with the sign of the weights flipped if that brings it closer to given overlaps."""
    own = Overlaps.unpack(u, overlaps.sizes)
    return (
        u if own.has_positive_leading_entry == overlaps.has_positive_leading_entry else own.with_opposite_sign().pack()
    )
