"""Error bars of a solution: by how much other quadrature rules and the residual would change every number.

For a deterministic rule an error bar is the largest difference to other rules of its family, each with its factor; for
a rule with replicates two standard errors. `solution_with_error_bars` computes those of overlaps, training loss,
observables (`ObservableEstimate`) and multipliers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..base import budget
from ..base.errors import DomainError, TimeLimitError
from ..base.options import AlgorithmOptions
from ..base.progress import print_message, progress_step
from ..integration import Rule, SaddlePointAverages, durations
from ..integration.estimates import RuleChange, RuleComparison, compare_rules, replicate_error_bar
from ..integration.rule import DIFFERENCE_SAFETY
from ..problems import gauge
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point import observables
from ..saddle_point.difference_jacobian import COARSE_NODES
from ..saddle_point.domain import explain_lost_digits_of_covariance
from ..saddle_point.iteration import FixedPoint, Status
from ..saddle_point.observables import Observable, all_observables_of_problem, free_entropy_at_overlaps
from ..saddle_point.state_map import SaddlePointMap, relative_residual
from .approach import APPROACH_RULE
from .checks import describe_divergence, describe_missed_minima
from .local import overlap_shift_by_quadrature_rule
from .replicates import ReplicateShifts, compare_replicates, principal_error_of_replicates
from .settings import SolveSettings
from .solution import Solution

_ROUNDING = 16 * float(np.finfo(float).eps)  # of overlaps in block scales, which sums of averages leave
_SHIFT_ROUNDING = 1e-8  # in block scales: smaller shifts change Phi, which is stationary, by less than rounding


@dataclass(frozen=True)
class SolutionErrorOptions(AlgorithmOptions):
    """Options for computing the error bars of a solution.

    Attributes:
        limit_factor: ratio of the error bar due to a regularising parameter that should vanish to the change when it is
            halved: 2 to first order, plus a safety margin.
        max_test_nodes: largest number of quadrature nodes for a test error; more take time and give digits.
        change_nodes: number of quadrature nodes for changes of a test error.
    """

    limit_factor: float = 2.2
    max_test_nodes: float = 4e6
    change_nodes: float = 1.5e5


@dataclass(frozen=True)
class SolutionDeviation:
    """The change of a solution by another quadrature rule, or by a change of a parameter, which adds to its error bars.

    Attributes:
        shift: change of the packed overlaps.
        averages: channel averages by that rule at the solution.
        factor: factor by which changes are multiplied in error bars, except that of the training loss.
        loss_factor: factor by which the change of the training loss is multiplied in its error bar.
    """

    shift: np.ndarray
    averages: SaddlePointAverages
    factor: float
    loss_factor: float

    def contribution_to_loss_error(self, problem: Problem, averages: SaddlePointAverages) -> float:
        """Return the contribution of this deviation to the error bar of the training loss.

        Args:
            problem: the problem that was solved.
            averages: channel averages at the solution by its own quadrature rule.
        """
        return self.loss_factor * problem.alpha * abs(float((self.averages.moreau - averages.moreau).mean()))


def solution_with_error_bars(
    task: SolveSettings, point: FixedPoint, rule: Rule, spread: ReplicateShifts | None = None
) -> Solution:
    """Return the solution at a converged point, with observables, error bars and a recomputed residual.

    Args:
        task: the settings of the solve.
        point: last state of Newton's method or implicit steps; if it has not converged, a failed solution is returned.
        rule: quadrature rule by which the problem was solved.
        spread: changes of the point by the replicates of the rule, if these are known.

    Raises:
        TimeLimitError: the time ends first; the exception has the state as `point`.
    """
    if not point.status.success:
        return failed_solution(task, point, rule)
    words = durations.describe_rule_with_duration(task.problem, rule)
    try:
        budget.check_time_limit(durations.predicted_evaluation_seconds(task.problem, rule))
        # One step for the clock: half of it would have to be done again.
        with progress_step(f"error bars, losses and test error on {words}"), budget.allow_step_overtime():
            if not point.overlaps.has_positive_leading_entry and gauge.is_loss_sign_symmetric(task.problem):
                point, spread = replace(point, u=point.overlaps.with_opposite_sign().pack(), jacobian=None), None
            return _solution_at_converged_point(task, point, rule, spread)
    except DomainError:
        return failed_solution(task, replace(point, status=Status.LEFT_DOMAIN), rule)
    except TimeLimitError as error:
        error.point = point
        raise


def _solution_at_converged_point(
    task: SolveSettings, point: FixedPoint, rule: Rule, spread: ReplicateShifts | None
) -> Solution:
    """Return the solution at a converged point, with its error bars.

    Raises:
        DomainError: the state is outside the domain by another quadrature rule or by a replicate.
    """
    problem, state_map, overlaps = task.problem, task.state_map_by_quadrature_rule(rule), point.overlaps
    scales = overlaps.block_scales
    others: list[SolutionDeviation] = []
    if rule.replicated:
        spread = spread or compare_replicates(task, point, rule)
        point, shifts, averages, errors = spread.point, spread.shifts, spread.averages, spread.errors
        loss_error = problem.alpha * float(replicate_error_bar(averages.moreau))
    else:
        averages = state_map.channel_averages(overlaps)
        others = _deviations_by_other_rules(task, point, rule, averages)
        shifts = np.stack([other.factor * other.shift for other in others])
        # No number is more accurate than the sum of the weights, which is one exactly.
        errors = np.max([abs(averages.mass - 1) * scales, *np.abs(shifts)], axis=0)
        loss_error = max(other.contribution_to_loss_error(problem, averages) for other in others)
    limits = [
        _deviation_by_halved_parameter(task, point, rule, parameter) for parameter in problem.vanishing_parameters
    ]

    is_cut = False  # whether the time limit ended the refinement of a test error

    def error_bar_of_estimate(estimate: ObservableEstimate) -> float:
        nonlocal is_cut
        is_cut |= budget.is_in_overtime() and estimate.own > task.accuracy * abs(estimate.value)
        if rule.replicated:
            changes = estimate.changes_of_observable_by_shifts(point.u, shifts)
            error = np.inf if np.inf in changes else float(replicate_error_bar(changes))
        else:
            error = max(
                0.0,
                *(other.factor * abs(estimate.change_of_observable_by_shift(point.u, other.shift)) for other in others),
            )
        error += estimate.own
        for limit in limits:
            error += limit.factor * abs(estimate.change_of_observable_by_shift(point.u, limit.shift))
        return error

    observed = estimate_observables(problem, overlaps, task.accuracy, error_bar_of_estimate)
    hats = state_map.conjugates_at_overlaps(overlaps, averages.means)
    image = state_map(point.u, point.sizes)
    residual, residual_shift = (
        relative_residual(image, point.u, point.sizes),
        _solve_newton_correction(state_map, point, image - point.u),
    )
    rounded = np.abs(_solve_newton_correction(state_map, point, np.diag(_ROUNDING * scales))).max(axis=0)
    errors = errors + rounded
    relative = float(np.max(errors / scales))  # without vanishing parameters: `accuracy` is that of the integrals
    residual_error = np.maximum(residual * scales, np.abs(residual_shift))
    errors = errors + residual_error + sum((limit.factor * np.abs(limit.shift) for limit in limits), 0.0 * scales)
    loss = observables.free_entropy_and_losses(problem, overlaps, hats, averages)
    if not np.isfinite(loss.training_loss):
        raise DomainError("the training loss is not finite")
    second_order = _second_order_loss_error(state_map, point, shifts, loss.free_entropy, relative)
    for limit in limits:
        loss_error += limit.contribution_to_loss_error(problem, averages)
    status, outside = (
        _status_by_accuracy(point.status, residual, relative, task.accuracy),
        describe_missed_minima(problem, overlaps),
    )
    if outside:
        status = Status.MINIMA_MISSED
    elif is_cut and status.success:
        status = Status.TIME_LIMIT
    elif float(np.max(rounded / scales)) > task.accuracy:
        outside = explain_lost_digits_of_covariance(problem, overlaps)
    if averages.unconverged > 1e-3 * task.accuracy:
        fraction = f"a fraction {averages.unconverged:.2g} of the samples"
        print_message(f"warning: the search for proximal points did not converge at {fraction}")
    strengths = _multiplier_error_bars(state_map, overlaps, averages, shifts, others, limits, residual_shift)
    return Solution(
        problem=problem,
        start=task.start,
        overlaps=overlaps,
        conjugates=hats,
        status=status,
        residual=residual,
        iterations=point.iterations,
        rule=rule,
        errors=errors,
        losses=loss,
        training_loss_error=loss_error + (second_order + loss.rounding),
        observed=observed,
        second_order=second_order,
        jacobian=point.jacobian,
        drift=point.drift,
        averages=averages,
        symmetry=task.symmetry,
        shifts=shifts,
        residual_shift=residual_shift,
        outside=outside,
        tried=tuple(task.attempts),
        multipliers_error=strengths,
    )


def _status_by_accuracy(reached: Status, residual: float, relative: float, accuracy: float) -> Status:
    """Return the status of a converged point, which depends on its residual and on the error bars of its overlaps."""
    if reached is Status.FLOOR and residual > max(0.1 * relative, 1e-9):
        return Status.MAX_ITERATIONS if residual > relative else Status.ACCURACY_NOT_REACHED
    return Status.ACCURACY_NOT_REACHED if relative > accuracy else reached


def _deviations_by_other_rules(
    task: SolveSettings, point: FixedPoint, rule: Rule, averages: SaddlePointAverages
) -> list[SolutionDeviation]:
    """Return the changes of a solution by other quadrature rules of its family, with factors for its error bars.

    Raises:
        DomainError: the solution is outside the domain by the finer rule.
    """
    scales, moreau = point.overlaps.block_scales, averages.moreau
    loss_unit = float(np.max(np.abs(moreau))) or 1.0

    def _compare_with_changed_quadrature(change: RuleChange) -> RuleComparison:
        shift, there = overlap_shift_by_quadrature_rule(task, point, change(rule))
        return RuleComparison((shift / scales, (there.moreau - moreau) / loss_unit), (there,))

    known = compare_rules([rule], [averages], _compare_with_changed_quadrature)
    return [SolutionDeviation(each.differences[0] * scales, each.averages[0], *counts) for each, counts in known]


def _deviation_by_halved_parameter(task: SolveSettings, point: FixedPoint, rule: Rule, name: str) -> SolutionDeviation:
    """Return the change of a solution when a regularising parameter that should vanish is halved (two Newton steps).

    Raises:
        DomainError: the solution leaves the domain.
    """
    problem = task.problem
    half = replace(problem.with_(**{name: np.asarray(problem.parameters[name]) / 2}), search=problem.search)
    task = replace(task, problem=half)
    first, averages = overlap_shift_by_quadrature_rule(task, point, rule)
    second, _ = overlap_shift_by_quadrature_rule(task, replace(point, u=point.u + first), rule)
    factor = SolutionErrorOptions.current().limit_factor
    return SolutionDeviation(first + second, averages, factor, factor)


def _solve_newton_correction(state_map: SaddlePointMap, point: FixedPoint, gap: np.ndarray) -> np.ndarray:
    """Return the Newton correction (I - J)^{-1} gap of a residual, or the residual if the Jacobian is unknown."""
    if point.jacobian is None:
        return gap
    try:
        return state_map.newton_correction(point.jacobian, point.u, gap, point.sizes)
    except np.linalg.LinAlgError:
        return gap


def _second_order_loss_error(
    state_map: SaddlePointMap, point: FixedPoint, shifts: np.ndarray, phi: float, relative: float
) -> float:
    """Return the error of the training loss due to errors of the overlaps, in which it is stationary.

    It is computed along the direction in which replicates spread most, otherwise along the largest shift. Outside the
    domain of definition the square of the relative error of the overlaps, or the free entropy itself, bounds it.
    """

    def _free_entropy_of_map(by: SaddlePointMap, shift: np.ndarray) -> float:
        return free_entropy_at_overlaps(by, Overlaps.unpack(point.u + shift, point.sizes))

    if state_map.rule.replicated:
        # The second difference needs few nodes: by any of them the first order cancels.
        width = principal_error_of_replicates(shifts, point.overlaps.block_scales)
        few = replace(state_map, rule=COARSE_NODES)
        try:
            below, here, above = (_free_entropy_of_map(few, sign * width) for sign in (-1.0, 0.0, 1.0))
        except DomainError:
            return relative**2 * abs(phi)
        return DIFFERENCE_SAFETY * abs((below + above) / 2 - here)
    size = partial(_largest_relative_shift, point.overlaps)
    if size(end := max(shifts, key=size)) <= _SHIFT_ROUNDING:
        return 0.0
    try:
        return abs(_free_entropy_of_map(state_map, end) - phi)
    except DomainError:
        return abs(phi)


def _largest_relative_shift(overlaps: Overlaps, shift: np.ndarray) -> float:
    """Return the largest component of a shift of the overlaps, relative to the size of its block (q, V, m, ...)."""
    return float(np.max(np.abs(shift) / overlaps.block_scales))


def _multiplier_error_bars(
    state_map: SaddlePointMap,
    overlaps: Overlaps,
    averages: SaddlePointAverages,
    shifts: np.ndarray,
    others: Sequence[SolutionDeviation],
    limits: Sequence[SolutionDeviation],
    residual_shift: np.ndarray,
) -> np.ndarray | None:
    """Return error bars of the ridge strengths that keep prescribed column norms (docs/theory.md (6.6)); None without.

    Ridge strengths depend on overlaps and channel averages; changes through both are added in absolute value.

    `shifts` has the changes of the overlaps by each replicate, `others` the deviations by other quadrature rules,
    `limits` those by parameters that should vanish, `residual_shift` the change of the overlaps by the residual.
    """
    problem = state_map.problem
    if not problem.regulariser.keeps_norms:
        return None

    def _multipliers_from_moments(moments: np.ndarray, at: Overlaps = overlaps) -> np.ndarray:
        strengths = problem.multipliers(state_map.conjugates_at_overlaps(at, moments))
        assert strengths is not None
        return strengths

    def _multipliers_at_shifted_overlaps(shift: np.ndarray, by: SaddlePointMap = state_map) -> np.ndarray:
        there = Overlaps.unpack(overlaps.pack() + shift, overlaps.sizes)
        return _multipliers_from_moments(by.channel_averages(there).means, there)

    here = _multipliers_from_moments(averages.means)

    def error_contribution_of_deviation(deviation: SolutionDeviation) -> np.ndarray:
        by_averages = np.abs(_multipliers_from_moments(deviation.averages.means) - here)
        return deviation.factor * (by_averages + np.abs(_multipliers_at_shifted_overlaps(deviation.shift) - here))

    # Weights of nodes that do not add up to one, and rounding of the stiffness, of which strengths are a difference.
    softening = np.einsum("ac,cbb->ab", problem.law.gamma, state_map.conjugates_at_overlaps(overlaps, averages.means).V)
    rounding = (_ROUNDING + abs(averages.mass - 1)) * (np.abs(here) + np.abs(softening).max(axis=0))
    try:
        errors = np.max([np.zeros_like(here), *map(error_contribution_of_deviation, others)], axis=0)
        if state_map.rule.replicated:
            at_once = np.array([_multipliers_from_moments(moments) for moments in averages.moments])
            replicates = zip(shifts, state_map.rule.replicates, strict=True)
            there = np.array(
                [_multipliers_at_shifted_overlaps(shift, replace(state_map, rule=rule)) for shift, rule in replicates]
            )
            errors = replicate_error_bar(at_once) + replicate_error_bar(there - at_once)
        errors = sum(map(error_contribution_of_deviation, limits), errors)
        return errors + np.abs(_multipliers_at_shifted_overlaps(residual_shift) - here) + rounding
    except DomainError:
        return np.full_like(here, np.inf)  # outside the domain of definition


@dataclass(frozen=True)
class ObservableEstimate:
    """The value of an observable at given overlaps, with its integration error.

    Attributes:
        value: value of the observable.
        own: error of its integral.
        rule: quadrature rule for changes of the observable; None if it has a formula.
        here: value by that rule, from which changes are measured.
    """

    observable: Observable
    value: float
    own: float
    rule: observables.MetricRule | None
    here: float

    @classmethod
    def estimate_at_overlaps(cls, observable: Observable, overlaps: Overlaps, accuracy: float) -> ObservableEstimate:
        """Return the estimate of an observable at given overlaps, with its integration error.

        Args:
            observable: the observable.
            overlaps: overlaps at which it is evaluated.
            accuracy: accuracy of the integral, relative to its value.
        """
        options = SolutionErrorOptions.current()
        value, own, rule = observable.estimate_with_error(overlaps, 0.0, relative=accuracy, most=options.max_test_nodes)
        here = value
        if rule is not None:
            usual = observables.metric_rule_of_family(observable.problem, rule.family, options.change_nodes)
            if usual.size < rule.size and rule.family != "cells":  # changes need fewer digits
                rule, here = usual, observable.value_by_quadrature_rule(overlaps, usual)
        return cls(observable, value, own, rule, here)

    def change_of_observable_by_shift(self, u: np.ndarray, shift: np.ndarray) -> float:
        """Return the change of the observable from packed overlaps u to u + shift; infinite outside the domain.

        Args:
            u: packed overlaps, (n,).
            shift: change of the packed overlaps.
        """
        try:
            there = Overlaps.unpack(u + shift, self.observable.problem.sizes)
            return self.observable.value_by_quadrature_rule(there, self.rule) - self.here
        except DomainError:
            return np.inf

    def changes_of_observable_by_shifts(self, u: np.ndarray, shifts: Iterable[np.ndarray]) -> np.ndarray:
        """Return the changes of the observable from packed overlaps u to each u + shift.

        Args:
            u: packed overlaps, (n,).
            shifts: changes of the packed overlaps.
        """
        return np.array([self.change_of_observable_by_shift(u, shift) for shift in shifts])


def estimate_observables(
    problem: Problem, overlaps: Overlaps, accuracy: float, error_bar: Callable[[ObservableEstimate], float]
) -> dict[str, tuple[float, float]]:
    """Return values and error bars of all observables, by name.

    Args:
        problem: the problem that was solved.
        overlaps: overlaps of the solution.
        accuracy: accuracy of the integral of each observable, relative to its value.
        error_bar: function that returns the error bar of an estimate, its integration error included.
    """
    estimates = [
        ObservableEstimate.estimate_at_overlaps(each, overlaps, accuracy)
        for each in all_observables_of_problem(problem)
    ]
    return {each.observable.name: (each.value, error_bar(each)) for each in estimates}


def failed_solution(task: SolveSettings, point: FixedPoint, rule: Rule) -> Solution:
    """Return the last iterate of a failed solve as a `Solution` without losses, with nan as error bars.

    If the iterate had converged, and a later step failed, the status is MAX_ITERATIONS.

    Args:
        task: the settings of the solve.
        point: the last iterate.
        rule: quadrature rule of the iteration.
    """
    status = point.status if not point.status.success else Status.MAX_ITERATIONS
    outside = describe_divergence(task.problem, point.overlaps)
    if not outside and status in (Status.LEFT_DOMAIN, Status.MAX_ITERATIONS):
        outside = point.outside
    if not outside and status is Status.MAX_ITERATIONS:
        outside = describe_missed_minima(task.problem, point.overlaps)
    return Solution(
        problem=task.problem,
        start=task.start,
        overlaps=point.overlaps,
        conjugates=None,
        status=status,
        residual=point.residual,
        iterations=point.iterations,
        rule=rule,
        errors=np.full(len(point.u), np.nan),
        outside=outside,
        tried=tuple(task.attempts),
    )


def best_solution_at_time_limit(
    task: SolveSettings, overlaps: Overlaps, finish: Callable[[], Solution] | None, ended: TimeLimitError
) -> Solution:
    """Return the best solution found when the time limit ended a solve, or the last iterate as a failed solution.

    Args:
        task: the settings of the solve.
        overlaps: overlaps of the start, which are returned if there is no iterate.
        finish: function that completes the best result so far to a solution; None without one.
        ended: the exception that ended the solve.
    """
    try:
        with budget.allow_step_overtime():
            if finish is not None:
                found = finish()
                return found if found.success else replace(found, status=Status.TIME_LIMIT)
    except TimeLimitError as late:  # error bars take longer than that
        ended = late
    nowhere = FixedPoint(overlaps.pack(), overlaps.sizes, np.nan, Status.TIME_LIMIT, 0, None)
    point = ended.point if isinstance(ended.point, FixedPoint) else nowhere
    return failed_solution(task, replace(point, status=Status.TIME_LIMIT), APPROACH_RULE)
