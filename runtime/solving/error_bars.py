"""Error bars of a converged point: how far other rules and the residual would move everything that is reported.

Of a deterministic rule the largest difference to other rules of its family, each with its factor; of a rule with
replicates two standard errors. `finish_point` makes those of the overlaps, the training loss, what the overlaps
determine (`ObservableEstimate`) and the multipliers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..base import budget
from ..base.errors import DomainError, TimeLimitError
from ..base.progress import say, step
from ..integration import Averages, Rule, pace
from ..integration.estimates import Change, Comparison, compared, two_standard_errors
from ..integration.rule import DIFFERENCE_SAFETY
from ..problems import gauge
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point import observables
from ..saddle_point.domain import rounded_in_words
from ..saddle_point.iteration import FixedPoint, Status
from ..saddle_point.observables import Observable, free_entropy_at, observables_of
from ..saddle_point.state_map import StateMap, residual_of
from .approach import APPROACH_RULE
from .checks import divergence, missed_minima
from .local import replicate_shifts, rule_shift
from .solution import Solution
from .task import Task

_ROUNDING = 16 * float(np.finfo(float).eps)  # of overlaps in block scales, which sums of averages leave
_VANISHING = 2.2  # times what half of a parameter moves: its limit to first order, and a tenth more
_FIRST_ORDER = 1e-2  # error bars, in block scales, that are trusted to first order
_FLAT = 1e-8  # in block scales: what moves the solution by less changes Phi, which is stationary, by less than rounding
_MOST_TEST_NODES, _CHANGE_NODES = 4e6, 1.5e5  # of a test error, and of its changes
_CURVED_STEPS, _UNKNOWN_CURVATURE = 3, 3.0


@dataclass(frozen=True)
class Deviation:
    """The deviation of a solution by another rule, or of another problem.

    Attributes:
        shift: how far it would move the packed overlaps, (n,); averages: its own at the solution.
        factor, loss_factor: times which the change counts in error bars, and the one of the training loss in its own.
    """

    shift: np.ndarray
    averages: Averages
    factor: float
    loss_factor: float

    def of_loss(self, problem: Problem, averages: Averages) -> float:
        """Return its part of the error bar of the training loss, from the averages at the solution."""
        return self.loss_factor * problem.alpha * abs(float((self.averages.moreau - averages.moreau).mean()))


def finish_point(task: Task, point: FixedPoint, rule: Rule) -> Solution:
    """Return the solution at a converged point: observables and error bars; the residual is recomputed here."""
    if not point.status.success:
        return failed_solution(task, point, rule)
    words = pace.words(task.problem, rule)
    try:
        budget.check(pace.expected(task.problem, rule))
        # One step for the clock: half of it would have to be done again.
        with step(f"error bars, losses and test error on {words}"), budget.overtime():
            if not point.overlaps.free_sign_is_positive and gauge.sign_is_free(task.problem):
                point = replace(point, u=point.overlaps.flipped().pack(), jacobian=None)
            return _finished(task, point, rule)
    except DomainError:
        return failed_solution(task, replace(point, status=Status.LEFT_DOMAIN), rule)
    except TimeLimitError as error:
        error.point = point
        raise


def _finished(task: Task, point: FixedPoint, rule: Rule) -> Solution:
    """Return `finish_point` of a point that has converged.

    Raises:
        DomainError: another rule, or a replicate, leaves the domain.
    """
    problem, state_map, overlaps = task.problem, task.map_by(rule), point.overlaps
    scales = overlaps.block_scales
    others: list[Deviation] = []
    if rule.replicated:
        shifts, averages = replicate_shifts(task, point, rule)
        errors = two_standard_errors(shifts)
        if float(np.max(errors / scales)) > _FIRST_ORDER:
            farther = _curvature(state_map, point, shifts)
            errors, shifts = farther * errors, shifts.mean(axis=0) + farther * (shifts - shifts.mean(axis=0))
        loss_error = problem.alpha * float(two_standard_errors(averages.moreau))
    else:
        averages = state_map.averages(overlaps)
        others = _other_rules(task, point, rule, averages)
        shifts = np.stack([other.factor * other.shift for other in others])
        # Weights that do not add up to one: nothing is known better than that.
        errors = np.max([abs(averages.mass - 1) * scales, *np.abs(shifts)], axis=0)
        loss_error = max(other.of_loss(problem, averages) for other in others)
    limits = [_halved(task, point, rule, parameter) for parameter in problem.vanishing]

    def error_bar(estimate: ObservableEstimate) -> float:
        if rule.replicated:
            changes = estimate.changes(point.u, shifts)
            error = np.inf if np.inf in changes else float(two_standard_errors(changes))
        else:
            error = max(0.0, *(other.factor * abs(estimate.change(point.u, other.shift)) for other in others))
        error += estimate.own
        for limit in limits:
            error += limit.factor * abs(estimate.change(point.u, limit.shift))
        return error

    observed = observe(problem, overlaps, task.accuracy, error_bar)
    hats = state_map.conjugates(overlaps, averages.means)
    image = state_map(point.u, point.sizes)
    residual, residual_shift = residual_of(image, point.u, point.sizes), _correction(state_map, point, image - point.u)
    rounded = np.abs(_correction(state_map, point, np.diag(_ROUNDING * scales))).max(axis=0)
    errors = errors + rounded
    relative = float(np.max(errors / scales))  # without limits: the accuracy is that of the integrals
    errors = errors + residual * scales + sum((limit.factor * np.abs(limit.shift) for limit in limits), 0.0 * scales)
    loss = observables.losses(problem, overlaps, hats, averages)
    if not np.isfinite(loss.training_loss):
        raise DomainError("the training loss is not finite")
    second_order = _second_order(state_map, point, shifts, loss.free_entropy, relative)
    for limit in limits:
        loss_error += limit.of_loss(problem, averages)
    status, outside = _status(point.status, residual, relative, task.accuracy), missed_minima(problem, overlaps)
    if outside:
        status = Status.MINIMA_MISSED
    elif float(np.max(rounded / scales)) > task.accuracy:
        outside = rounded_in_words(problem, overlaps)
    if averages.unconverged > 1e-3 * task.accuracy:
        say(f"warning: the proximal map did not converge at a fraction {averages.unconverged:.2g} of the measure")
    strengths = _multiplier_errors(state_map, overlaps, averages, shifts, others, limits, residual_shift)
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
        tried=tuple(task.told),
        multipliers_error=strengths,
    )


def _status(reached: Status, residual: float, relative: float, accuracy: float) -> Status:
    """Return the status of a converged point by its residual and the error bars of its overlaps, in block scales."""
    if reached is Status.FLOOR and residual > max(0.1 * relative, 1e-9):
        return Status.MAX_ITERATIONS if residual > relative else Status.ACCURACY_NOT_REACHED
    return Status.ACCURACY_NOT_REACHED if relative > accuracy else reached


def _other_rules(task: Task, point: FixedPoint, rule: Rule, averages: Averages) -> list[Deviation]:
    """Return what other rules of the family make of a point, with factors by their rate of convergence.

    Raises:
        DomainError: the finer rule's map leaves the domain.
    """
    scales, moreau = point.overlaps.block_scales, averages.moreau
    loss_unit = float(np.max(np.abs(moreau))) or 1.0

    def ask(change: Change) -> Comparison:
        shift, there = rule_shift(task, point, change(rule))
        return Comparison((shift / scales, (there.moreau - moreau) / loss_unit), (there,))

    known = compared([rule], [averages], ask)
    return [Deviation(each.differences[0] * scales, each.averages[0], *counts) for each, counts in known]


def _halved(task: Task, point: FixedPoint, rule: Rule, name: str) -> Deviation:
    """Return how far half of a parameter that is meant to vanish would move the solution, and its averages there.

    Two steps of Newton's method, so that slopes of another point will do.

    Raises:
        DomainError: its map leaves the domain.
    """
    problem = task.problem
    half = replace(problem.with_(**{name: np.asarray(problem.parameters[name]) / 2}), search=problem.search)
    task = replace(task, problem=half)
    first, averages = rule_shift(task, point, rule)
    second, _ = rule_shift(task, replace(point, u=point.u + first), rule)
    return Deviation(first + second, averages, _VANISHING, _VANISHING)


def _curvature(state_map: StateMap, point: FixedPoint, shifts: np.ndarray) -> float:
    """How much farther than to first order replicates spread, at least 1, along the direction in which they do most.

    The averages are off by what moves the solution by two standard errors, either way, and the equations are solved
    with that. It also mends what a rough Jacobian makes of a soft direction. Beyond the domain nothing is known: 3.
    """
    if point.jacobian is None:
        return 1.0
    scales = point.overlaps.block_scales
    width = _widest(shifts, scales)
    gap = width - point.jacobian @ width
    farthest = 1.0
    for way in (1.0, -1.0):
        u = point.u + way * width
        try:
            for _ in range(_CURVED_STEPS):
                u = u + state_map.correction(point.jacobian, u, state_map(u, point.sizes) - u + way * gap, point.sizes)
        except (DomainError, np.linalg.LinAlgError):
            return _UNKNOWN_CURVATURE
        farthest = max(farthest, float(np.linalg.norm((u - point.u) / scales) / np.linalg.norm(width / scales)))
    return min(farthest, _UNKNOWN_CURVATURE)


def _widest(shifts: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Two standard errors of the mean of replicates (R, n) along the direction in which they spread most."""
    scaled = (shifts - shifts.mean(axis=0)) / scales
    _, sizes, directions = np.linalg.svd(scaled, full_matrices=False)
    return 2 * sizes[0] / np.sqrt(len(shifts) * (len(shifts) - 1)) * directions[0] * scales


def _correction(state_map: StateMap, point: FixedPoint, gap: np.ndarray) -> np.ndarray:
    """(I - J)^{-1} gap, where J is known; the gap itself else."""
    if point.jacobian is None:
        return gap
    try:
        return state_map.correction(point.jacobian, point.u, gap, point.sizes)
    except np.linalg.LinAlgError:
        return gap


def _second_order(state_map: StateMap, point: FixedPoint, shifts: np.ndarray, reached: float, relative: float) -> float:
    """Return how far errors of the overlaps move Phi, which is stationary, from its value at the solution.

    By the direction in which replicates spread most, which on a soft branch is one in which Phi is flat; else by what
    moves the solution farthest. Beyond the domain the square of the relative error of the overlaps, or Phi itself,
    bounds it.
    """
    if state_map.rule.replicated:
        width = _widest(shifts, point.overlaps.block_scales)
        ends, factor, unknown = [width, -width], DIFFERENCE_SAFETY, relative**2 * abs(reached)
    else:
        size = partial(_size, point.overlaps)
        ends, factor, unknown = [max(shifts, key=size)], 1.0, abs(reached)
        if size(ends[0]) <= _FLAT:
            return 0.0
    try:
        there = [free_entropy_at(state_map, Overlaps.unpack(point.u + end, point.sizes)) for end in ends]
        return factor * max(abs(value - reached) for value in there)
    except DomainError:
        return unknown


def _size(overlaps: Overlaps, shift: np.ndarray) -> float:
    """The largest entry of a shift of packed overlaps, in block scales."""
    return float(np.max(np.abs(shift) / overlaps.block_scales))


def _multiplier_errors(
    state_map: StateMap,
    overlaps: Overlaps,
    averages: Averages,
    shifts: np.ndarray,
    others: Sequence[Deviation],
    limits: Sequence[Deviation],
    residual_shift: np.ndarray,
) -> np.ndarray | None:
    """Return the error bars of the strengths (s,) of the ridge that keeps given norms, docs/theory.md (6.6), or None.

    They follow from the conjugates, and so from overlaps and averages: what moves a solution moves them through both.
    The two parts are added, not set off against each other, so that an error bar holds where only the averages are
    taken again.

    Args:
        overlaps, averages: of the solution.
        shifts: of replicates, (R, n), where there is more than one.
        others: other rules; limits: parameters that are meant to vanish.
        residual_shift: how far what is left of the residual would move the overlaps, (n,).
    """
    problem = state_map.problem
    if not problem.regulariser.keeps_norms:
        return None

    def strengths(moments: np.ndarray, at: Overlaps = overlaps) -> np.ndarray:
        found = problem.multipliers(state_map.conjugates(at, moments))
        assert found is not None
        return found

    def moved(shift: np.ndarray, by: StateMap = state_map) -> np.ndarray:
        there = Overlaps.unpack(overlaps.pack() + shift, overlaps.sizes)
        return strengths(by.averages(there).means, there)

    here = strengths(averages.means)

    def part(deviation: Deviation) -> np.ndarray:
        by_averages = np.abs(strengths(deviation.averages.means) - here)
        return deviation.factor * (by_averages + np.abs(moved(deviation.shift) - here))

    # Weights of the nodes that do not add up to one, and doubles: of the stiffness, of which they are a difference.
    softening = np.einsum("ac,cbb->ab", problem.law.gamma, state_map.conjugates(overlaps, averages.means).V)
    rounding = (_ROUNDING + abs(averages.mass - 1)) * (np.abs(here) + np.abs(softening).max(axis=0))
    try:
        errors = np.max([np.zeros_like(here), *map(part, others)], axis=0)
        if state_map.rule.replicated:
            at_once = np.array([strengths(moments) for moments in averages.moments])
            replicates = zip(shifts, state_map.rule.replicates, strict=True)
            there = np.array([moved(shift, replace(state_map, rule=rule)) for shift, rule in replicates])
            errors = two_standard_errors(at_once) + two_standard_errors(there - at_once)
        errors = sum(map(part, limits), errors)
        return errors + np.abs(moved(residual_shift) - here) + rounding
    except DomainError:
        return np.full_like(here, np.inf)  # nothing is known beyond the domain


@dataclass(frozen=True)
class ObservableEstimate:
    """An observable at overlaps.

    Attributes:
        value, own: itself, and the error of its own integral.
        rule: by which changes are followed, None of a formula; here: the value by that rule.
    """

    observable: Observable
    value: float
    own: float
    rule: observables.MetricRule | None
    here: float

    @classmethod
    def of(cls, observable: Observable, overlaps: Overlaps, accuracy: float) -> ObservableEstimate:
        """Return the estimate whose own integral is known to an accuracy relative to its value."""
        value, own, rule = observable.estimate(overlaps, 0.0, relative=accuracy, most=_MOST_TEST_NODES)
        here = value
        if rule is not None:
            usual = observables.rule_within(observable.problem, rule.family, _CHANGE_NODES)
            if usual.size < rule.size and rule.family != "cells":  # changes need fewer digits
                rule, here = usual, observable.value(overlaps, usual)
        return cls(observable, value, own, rule, here)

    def change(self, u: np.ndarray, shift: np.ndarray) -> float:
        """Return the change from packed overlaps u to u + shift."""
        try:
            there = Overlaps.unpack(u + shift, self.observable.problem.sizes)
            return self.observable.value(there, self.rule) - self.here
        except DomainError:
            return np.inf  # nothing is known beyond the domain

    def changes(self, u: np.ndarray, shifts: Iterable[np.ndarray]) -> np.ndarray:
        """Return the changes from packed overlaps u to each u + shift."""
        return np.array([self.change(u, shift) for shift in shifts])


def observe(
    problem: Problem, overlaps: Overlaps, accuracy: float, error_bar: Callable[[ObservableEstimate], float]
) -> dict[str, tuple[float, float]]:
    """Return everything that overlaps determine with an error bar, as `observed` of a solution.

    Args:
        error_bar: of an estimate, its own integral included.
    """
    estimates = [ObservableEstimate.of(each, overlaps, accuracy) for each in observables_of(problem)]
    return {each.observable.name: (each.value, error_bar(each)) for each in estimates}


def failed_solution(task: Task, point: FixedPoint, rule: Rule) -> Solution:
    """Return the last iterate as a solution that is none: no losses, error bars nan.

    A point that had converged, so that it was the rest that failed, gets MAX_ITERATIONS.
    """
    status = point.status if not point.status.success else Status.MAX_ITERATIONS
    outside = divergence(task.problem, point.overlaps)
    if not outside and status in (Status.LEFT_DOMAIN, Status.MAX_ITERATIONS):
        outside = point.outside
    if not outside and status is Status.MAX_ITERATIONS:
        outside = missed_minima(task.problem, point.overlaps)
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
        tried=tuple(task.told),
    )


def best_in_time(
    task: Task, overlaps: Overlaps, finish: Callable[[], Solution] | None, ended: TimeLimitError
) -> Solution:
    """Return the best that was found before the time ended: what was offered, or the last iterate."""
    try:
        with budget.overtime():
            if finish is not None:
                found = finish()
                return found if found.success else replace(found, status=Status.TIME_LIMIT)
    except TimeLimitError as late:  # error bars take longer than that
        ended = late
    nowhere = FixedPoint(overlaps.pack(), overlaps.sizes, np.nan, Status.TIME_LIMIT, 0, None)
    point = ended.point if isinstance(ended.point, FixedPoint) else nowhere
    return failed_solution(task, replace(point, status=Status.TIME_LIMIT), APPROACH_RULE)
