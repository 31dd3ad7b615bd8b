"""Half widths of a fixed point: how far other rules and the residual would move what is reported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from .. import budget
from ..channel.search import missed
from ..errors import DomainError, TimeLimitError
from ..integration import Averages, Rule, pace
from ..integration.estimates import Change, Comparison, compared, two_standard_errors
from ..integration.rule import DIFFERENCE_SAFETY
from ..problems import gauge
from ..problems.overlaps import Overlaps, Sizes
from ..problems.problem import Problem
from ..progress import say, step
from ..saddle_point import observables
from ..saddle_point.domain import rounded_in_words
from ..saddle_point.iteration import FixedPoint, Status
from ..saddle_point.observables import free_entropy_at
from ..saddle_point.slopes import HASTY, jacobian_by_rule
from ..saddle_point.state_map import StateMap, residual_of
from .multipliers import Multipliers
from .solution import Solution
from .task import Task

_ROUNDING = 16 * float(np.finfo(float).eps)  # of overlaps in block scales, which sums of averages leave
_VANISHING = 2.2  # times what half of a parameter moves: its limit to first order, and a tenth more
_FIRST_ORDER = 1e-2  # half widths, in block scales, that are trusted to first order
_RUN_OFF = 20.0  # times the size of its start that a trained number is from where solving failed
_GROWN = 2.0  # times the size of its start that a trained number without a ridge has moved
_LOOSE = 1e6  # times the inputs' variance that V is where weights are free to move
_FAR = 1e8  # times the inputs' variance that q is where solving failed
_FLAT = 1e-8  # in block scales: what moves the solution by less changes Phi, which is stationary, by less than rounding
_MOST_TEST_NODES, _CHANGE_NODES = 4e6, 1.5e5  # of a test error, and of its changes
_CURVED_STEPS, _UNKNOWN_CURVATURE = 3, 3.0


def replicate_shifts(task: Task, point: FixedPoint, rule: Rule) -> tuple[np.ndarray, Averages] | None:
    """How far a rule would move the solution to first order, a replicate a row, (R, n): (I - J)^{-1} (G_r(u) - u).

    And its averages; None where they leave the domain.
    """
    state_map = task.map_by(rule)
    averages = point.averages_by(task.problem, rule)
    try:
        if averages is None:
            with step(f"comparing with {pace.words(task.problem, rule)}"):
                averages = state_map.averages(point.overlaps)
        images = state_map.images(point.u, averages, point.sizes)
        matrix = point.jacobian
        if matrix is None:
            matrix = jacobian_by_rule(task.problem, rule, point.u, point.sizes, HASTY, task.symmetry)
    except DomainError:
        return None
    return state_map.correction(matrix, point.u, images - point.u, point.sizes), averages


def rule_shift(task: Task, point: FixedPoint, rule: Rule) -> tuple[np.ndarray, Averages] | None:
    """The mean of `replicate_shifts`, (n,), and the averages."""
    moved = replicate_shifts(task, point, rule)
    return None if moved is None else (moved[0].mean(axis=0), moved[1])


def finish_point(
    task: Task, point: FixedPoint, rule: Rule, finer: tuple[np.ndarray, Averages] | None = None
) -> Solution:
    """Observables and errors at a converged point; the residual is recomputed here.

    Args:
        finer: shift and averages of the next finer rule at this point, where they are known already.
    """
    if not point.status.success:
        return failed_solution(task, point, rule)
    words = pace.words(task.problem, rule)
    try:
        budget.check(pace.expected(task.problem, rule))
        # One step for the clock: half of it would have to be done again.
        with step(f"error bars, losses and test error on {words}"), budget.overtime():
            return _finished(task, point, rule, finer)
    except TimeLimitError as error:
        error.point = point
        raise


def _finished(task: Task, point: FixedPoint, rule: Rule, finer: tuple[np.ndarray, Averages] | None) -> Solution:
    """`finish_point` of a point that has converged."""
    problem, state_map = task.problem, task.map_by(rule)
    if not point.overlaps.free_sign_is_positive and gauge.sign_is_free(problem):
        point, finer = point.moved(point.overlaps.flipped().pack(), jacobian=None), None
    sizes, overlaps = point.sizes, point.overlaps
    try:
        differences: list[tuple[np.ndarray, Averages, float, float]] = []
        if rule.replicated:
            found = replicate_shifts(task, point, rule)
            if found is None:
                raise DomainError("a replicate's map leaves the domain")
            shifts, averages = found
            errors = two_standard_errors(shifts)
            if float(np.max(errors / overlaps.block_scales)) > _FIRST_ORDER:
                farther = _curvature(state_map, point, shifts)
                errors, shifts = farther * errors, shifts.mean(axis=0) + farther * (shifts - shifts.mean(axis=0))
            loss_error = problem.alpha * float(two_standard_errors(averages.moreau))
            tested = Tested.by_metric(problem, overlaps, task.accuracy)
            tests_error = [float(two_standard_errors(test.changes(point.u, shifts))) + test.own for test in tested]
        else:
            averages = point.averages_by(problem, rule) or state_map.averages(overlaps)
            differences = _differences(task, point, rule, averages, finer)
            tested = Tested.by_metric(problem, overlaps, task.accuracy)
            tests_error = [test.own for test in tested]
            errors, loss_error, second_order = np.zeros(len(point.u)), 0.0, 0.0
            # Weights that do not add up to one: nothing is known better than that.
            errors += abs(averages.mass - 1) * overlaps.block_scales
            reached = free_entropy_at(state_map, overlaps, averages)
            shifts = np.stack([factor * shift for shift, _, factor, _ in differences])
            for shift, other, factor, loss_factor in differences:
                errors = np.maximum(errors, factor * np.abs(shift))
                moreau = abs(float(other.moreau.mean() - averages.moreau.mean()))
                loss_error = max(loss_error, loss_factor * problem.alpha * moreau)
                for n, test in enumerate(tested):
                    moved = abs(float(test.changes(point.u, [shift])[0]))
                    tests_error[n] = max(tests_error[n], factor * moved + test.own)
            # Phi is flat: what moves the solution farthest tells, of rules that mostly move it along one direction.
            farthest = max((factor * shift for shift, _, factor, _ in differences), key=partial(_size, overlaps))
            if _size(overlaps, farthest) > _FLAT:
                second_order = _change(state_map, Overlaps.unpack(point.u + farthest, sizes), reached)
        to_limit = np.zeros(len(point.u))  # no part of the accuracy, which is that of the integrals
        halved = [_halved(task, point, rule, parameter) for parameter in problem.vanishing]
        for shift, other in halved:
            to_limit += _VANISHING * np.abs(shift)
            loss_error += _VANISHING * problem.alpha * abs(float((other.moreau - averages.moreau).mean()))
            for n, test in enumerate(tested):
                tests_error[n] += _VANISHING * abs(float(test.changes(point.u, [shift])[0]))
        hats = state_map.conjugates(overlaps, averages.means)
        image = state_map.kept(point.u, state_map.image(overlaps, averages.means), sizes)
    except DomainError:
        return failed_solution(task, replace(point, status=Status.LEFT_DOMAIN), rule)
    residual = residual_of(image, point.u, sizes)
    scales = overlaps.block_scales
    rounded = np.abs(_correction(state_map, point, np.diag(_ROUNDING * scales))).max(axis=0)
    errors = errors + rounded
    relative = float(np.max(errors / scales))
    errors = errors + residual * scales + to_limit
    loss = observables.losses(problem, overlaps, hats, averages)
    if not np.isfinite(loss.training_loss):
        return failed_solution(task, replace(point, status=Status.LEFT_DOMAIN), rule)
    residual_shift = _correction(state_map, point, image - point.u)
    if rule.replicated:
        second_order = _second_order(state_map, point, shifts, loss.free_entropy, relative)
    loss_error += second_order + loss.rounding
    status = point.status
    if status is Status.FLOOR and residual > max(0.1 * relative, 1e-9):
        status = Status.MAX_ITERATIONS if residual > relative else Status.ACCURACY_NOT_REACHED
    if status.success and relative > task.accuracy:
        status = Status.ACCURACY_NOT_REACHED
    outside = _missed_in_words(problem, overlaps)
    if outside:
        status = Status.MINIMA_MISSED
    elif float(np.max(rounded / scales)) > task.accuracy:
        outside = rounded_in_words(problem, overlaps)
    if averages.unconverged > 1e-3 * task.accuracy:
        say(f"warning: the proximal map did not converge at a fraction {averages.unconverged:.2g} of the measure")
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
        training_loss_error=loss_error,
        test_error=tested[0].value,
        test_error_error=tests_error[0],
        other_errors=others_by_name(tested, tests_error),
        second_order=second_order,
        jacobian=point.jacobian,
        drift=point.drift,
        averages=averages,
        symmetry=task.symmetry,
        shifts=shifts,
        residual_shift=residual_shift,
        outside=outside,
        tried=tuple(task.told),
        multipliers_error=(
            Multipliers(state_map, overlaps, averages).half_widths(
                shifts,
                [(shift, other, factor) for shift, other, factor, _ in differences],
                [(shift, other, _VANISHING) for shift, other in halved],
                residual_shift,
            )
            if problem.has_sphere
            else None
        ),
    )


def with_sign_of(u: np.ndarray, overlaps: Overlaps) -> np.ndarray:
    """A packed state with the free sign of the weights that another one has."""
    own = Overlaps.unpack(u, overlaps.sizes)
    return u if own.free_sign_is_positive == overlaps.free_sign_is_positive else own.flipped().pack()


def _halved(task: Task, point: FixedPoint, rule: Rule, name: str) -> tuple[np.ndarray, Averages]:
    """How far half of a parameter that is meant to vanish would move the solution, and its averages where that is.

    Two steps of Newton's method, so that slopes of another point will do.

    Raises:
        DomainError: its map leaves the domain.
    """
    problem = task.problem
    half = replace(problem.with_(**{name: np.asarray(problem.parameters[name]) / 2}), search=problem.search)
    task = replace(task, problem=half)
    first = rule_shift(task, point, rule)
    second = None if first is None else rule_shift(task, point.moved(point.u + first[0]), rule)
    if first is None or second is None:
        raise DomainError(f"half of {name} leaves the domain")
    return first[0] + second[0], first[1]


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
    """What the spread of the replicates costs in Phi, from the direction (R, n) in which they spread most.

    A soft branch spreads far along few directions in which Phi is flat. Beyond the domain, the square of the relative
    error stands in.
    """
    width = _widest(shifts, point.overlaps.block_scales)
    try:
        ends = [Overlaps.unpack(point.u + way * width, point.sizes) for way in (1, -1)]
        return DIFFERENCE_SAFETY * max(abs(free_entropy_at(state_map, end) - reached) for end in ends)
    except DomainError:
        return relative**2 * abs(reached)


def _size(overlaps: Overlaps, shift: np.ndarray) -> float:
    """The largest entry of a shift of packed overlaps, in block scales."""
    return float(np.max(np.abs(shift) / overlaps.block_scales))


def _change(state_map: StateMap, there: Overlaps, reached: float) -> float:
    """|Phi(there) - Phi reached|; beyond the domain the loss itself bounds what is not known."""
    try:
        return abs(free_entropy_at(state_map, there) - reached)
    except DomainError:
        return abs(reached)


def _differences(
    task: Task,
    point: FixedPoint,
    rule: Rule,
    averages: Averages,
    finer: tuple[np.ndarray, Averages] | None,
) -> list[tuple[np.ndarray, Averages, float, float]]:
    """(shift, averages, counts): what other rules of the family say, and what their difference counts for in the
    overlaps and in the training loss, each with its own rate of convergence.

    Raises:
        DomainError: the finer rule's map leaves the domain.
    """
    scales, moreau = point.overlaps.block_scales, averages.moreau
    loss_unit = float(np.max(np.abs(moreau))) or 1.0

    def comparison(shift: np.ndarray, there: Averages) -> Comparison:
        return Comparison((shift / scales, (there.moreau - moreau) / loss_unit), (there,))

    def ask(change: Change) -> Comparison:
        moved = rule_shift(task, point, change(rule))
        if moved is None:
            raise DomainError("another rule's map leaves the domain")
        return comparison(*moved)

    known = compared([rule], [averages], ask, finer=comparison(*finer) if finer else None)
    return [(each.differences[0] * scales, each.averages[0], *counts) for each, counts in known]


def _other_metrics(problem: Problem) -> list[Problem]:
    return [problem.by_metric(name) for name in problem.metric_names[1:]]


@dataclass(frozen=True)
class Tested:
    """A test error at a solution.

    Attributes:
        value, own: itself, and the error of its own integral.
        rule: by which changes are followed, None without a metric; here: the value by that rule.
    """

    problem: Problem
    sizes: Sizes
    value: float
    own: float
    rule: observables.MetricRule | None
    here: float

    @classmethod
    def by_metric(cls, problem: Problem, overlaps: Overlaps, accuracy: float) -> list[Tested]:
        """By the metric of a problem, then by each of the others that it has by name."""
        others = problem.once(_other_metrics) if problem.solver.base is None else []
        return [cls.of(each, overlaps, accuracy) for each in (problem, *others)]

    @classmethod
    def of(cls, problem: Problem, overlaps: Overlaps, accuracy: float) -> Tested:
        """Return that by the problem's metric, its own integral known to an accuracy relative to its value."""
        value, own, rule = observables.test_error(problem, overlaps, 0.0, relative=accuracy, most=_MOST_TEST_NODES)
        here = value
        if rule is not None:
            usual = observables.rule_within(problem, rule.family, _CHANGE_NODES)
            if usual.size < rule.size and rule.family != "cells":  # changes need fewer digits
                rule, here = usual, observables.average_metric(problem, overlaps, usual)
        return cls(problem, overlaps.sizes, value, own, rule, here)

    def changes(self, u: np.ndarray, shifts: Iterable[np.ndarray]) -> np.ndarray:
        """Return the changes from overlaps u to u + shift; nan without a metric or outside the domain."""
        return np.array([self._at(u + shift) - self.here for shift in shifts])

    def _at(self, u: np.ndarray) -> float:
        if self.rule is None:
            return np.nan
        try:
            return observables.average_metric(self.problem, Overlaps.unpack(u, self.sizes), self.rule)
        except DomainError:
            return np.nan


def others_by_name(tested: Sequence[Tested], errors: Sequence[float]) -> dict[str, tuple[float, float]]:
    """Value and half width of all test errors but the first."""
    pairs = list(zip(tested, errors, strict=True))
    return {test.problem.metric_name: (test.value, error) for test, error in pairs[1:]}


def run_off(problem: Problem, overlaps: Overlaps) -> str:
    """Which trained number runs off without anything that holds it, or that the weights do, in words; else empty."""
    for number, value in zip(problem.trained, overlaps.phi.tolist(), strict=True):
        if not abs(value) < _RUN_OFF * (1 + abs(float(number["start"]))):
            ridge = f"its ridge {float(number['ridge']):g} does not bound it; give it a larger one"
            remedy = ridge if number["ridge"] else "it has no ridge; give it one"
            return (
                f"the trained number {number['name']} diverges ({value:.3g}): the risk falls without end along it "
                f"and {remedy}, sf.trained({float(number['start']):g}, ridge)"
            )
    longest = float(np.max(np.trace(overlaps.q, axis1=1, axis2=2)))
    if not longest < _FAR * float(np.max(problem.law.rho)) and not problem.has_sphere:
        return (
            f"the weights diverge (q {longest:.3g}): neither data nor penalty bounds them, as where samples are "
            "separable and the loss falls without end; try a stronger regulariser or a larger alpha"
        )
    return ""


def far_off(problem: Problem, overlaps: Overlaps) -> str:
    """Return what has grown on the way to where solving failed and may be held by nothing, in words; else empty."""
    if reason := run_off(problem, overlaps):
        return reason
    for number, value in zip(problem.trained, overlaps.phi.tolist(), strict=True):
        start = float(number["start"])
        if not number["ridge"] and abs(value - start) > _GROWN * (1 + abs(start)):
            return (
                f"the trained number {number['name']} went from {start:g} to {value:.3g} and has no ridge: where the "
                "risk falls along it without end, as if weights of half the size with twice the number do the same, "
                f"give it one, sf.trained({start:g}, ridge)"
            )
    widest = float(np.max(np.trace(overlaps.V, axis1=1, axis2=2)))
    if not widest < _LOOSE * float(np.max(problem.law.rho)):
        return (
            f"V grew to {widest:.3g}: weights move without a change of the loss, as where many fit every sample; take "
            "a larger alpha, a stronger regulariser, or --inverse-temperature, at which all of them count"
        )
    return ""


def _missed_in_words(problem: Problem, overlaps: Overlaps) -> str:
    """Return how often the search for proximal points is seen to miss the global minimum; empty where it is not."""
    with suppress(DomainError):
        if share := missed(problem, overlaps):
            return (
                f"the search for proximal points misses the lowest minimum of the loss at {share:.1%} of random points"
            )
    return ""


def failed_solution(task: Task, point: FixedPoint, rule: Rule) -> Solution:
    """The last iterate as a solution that is none: no losses, half widths nan.

    A point that had converged, so that it was the rest that failed, gets MAX_ITERATIONS.
    """
    status = point.status if not point.status.success else Status.MAX_ITERATIONS
    outside = run_off(task.problem, point.overlaps)
    if not outside and status is Status.LEFT_DOMAIN:
        outside = point.outside
    elif not outside and status is Status.MAX_ITERATIONS:
        outside = point.outside or _missed_in_words(task.problem, point.overlaps)
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
        losses=None,
        training_loss_error=np.nan,
        test_error=np.nan,
        test_error_error=np.nan,
        outside=outside,
        tried=tuple(task.told),
    )
