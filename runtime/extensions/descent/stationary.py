"""Stationary points of one-pass descent, their stability, and the learning rate above which one is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ...base.deprecation import DeprecatedName, deprecated_attribute
from ...base.errors import DomainError, InputError, NotConvergedError, require_in_interval
from ...base.options import AlgorithmOptions
from ...base.presenting import PresentableResult
from ...base.progress import progress_step, report_remaining_work
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...saddle_point.starts import name_branch
from .averages import gradient_average_rules
from .flow import EquationsOfMotion, require_closed_dynamics
from .schedule import LearningRateSchedule, parse_batch_size, parse_learning_rate
from .state import Moments, basis_of_moment_space, moments_of_linear_gaussian_weights, moments_of_start

_EIGENVALUE_ROUNDING = (
    1e-9  # eigenvalues smaller than this part of the largest are zero, by a symmetry of the equations
)


@dataclass(frozen=True)
class StationaryOptions(AlgorithmOptions):
    """Options of the search for stationary points of descent.

    Attributes:
        max_iterations: largest number of Newton steps.
        max_halvings: largest number of halvings of a Newton step.
        short_step: fraction of a Newton step below which it counts as short.
        max_short_steps: number of short steps in a row after which Newton's method has failed.
        jacobian_reuse: ratio of the residuals after and before a step up to which the Jacobian is used again.
        residual_tolerance: largest time derivative of the moments at the solution, relative to the moments.
        row_tolerance: largest time derivative of the rows of weights at the solution, relative to the rows.
        divergence_factor: size of the rows, relative to the start, above which they have diverged.
        edge_tolerance: relative variance of the rows, given means, encodings and teacher, below which a point is at
            the edge of the domain of moments that weights can have.
        edge_distance: distance from that edge at which the Jacobian is computed.
        edge_growth: growth rates at the edge, relative to the largest, below which their sign is unknown.
        first_rate_step: first relative step of the learning rate.
        rate_step_growth: ratio of a step of the learning rate to the last successful one.
    """

    max_iterations: int = 60
    max_halvings: int = 12
    short_step: float = 0.05
    max_short_steps: int = 3
    jacobian_reuse: float = 0.1
    residual_tolerance: float = 1e-11
    row_tolerance: float = 1e-9
    divergence_factor: float = 1e3
    edge_tolerance: float = 1e-7
    edge_distance: float = 1e-6
    edge_growth: float = 1e-5
    first_rate_step: float = 0.05
    rate_step_growth: float = 1.6


@dataclass(frozen=True, repr=False)
class StationaryPoint(PresentableResult):
    """A stationary point of descent at a constant learning rate.

    Attributes:
        problem: the problem; rate: constant learning rate; batch: samples per step.
        moments: second moments of the rows of the weights.
        eigenvalues: growth rates of small deviations from the point, per unit of time, largest real part first.
        directions: their eigenvectors as columns, in the order of `Moments.pack`.
        residual: largest time derivative of a moment, relative to the moments.
        error_bars: error bars of the packed moments, by a finer quadrature rule.
        soft: growth rate, relative to the largest, below which it counts as zero.

    Example:
        >>> point = sf.stationary(sf.problem("ridge_regression"), rate=0.5)
        >>> float(point.eigenvalues[0].real) < 0, point.unstable
        (True, 0)
    """

    problem: Problem
    rate: LearningRateSchedule
    batch: float
    moments: Moments
    eigenvalues: np.ndarray
    directions: np.ndarray
    residual: float
    error_bars: np.ndarray
    soft: float = _EIGENVALUE_ROUNDING

    half_widths = deprecated_attribute("half_widths", DeprecatedName("error_bars", "0.1.0", "0.3.0"))

    @property
    def overlaps(self) -> Overlaps:
        """The overlaps q, m and theta at the stationary point; V is set to the identity."""
        return self.moments.overlaps(self.problem)

    @property
    def branch(self) -> str:
        """The name of the branch of solutions to which the stationary point belongs, such as informed."""
        return name_branch(self.problem, self.overlaps)

    @property
    def unstable(self) -> int:
        """The number of directions in which small deviations grow; symmetry directions (growth rate 0) do not count."""
        size = np.abs(self.eigenvalues).max(initial=0.0)
        return int(np.sum(self.eigenvalues.real > self.soft * size))

    @property
    def stable(self) -> bool:
        """Whether small deviations from the stationary point grow in no direction."""
        return not self.unstable


@progress_step("stationary point of descent")
def stationary(
    problem: Problem, rate: Any = "flow", start: Any = "random", *, batch: Any = 1, accuracy: float = 1e-6
) -> StationaryPoint:
    """Return the stationary point of descent close to a start, by Newton's method on the equations of motion.

    Args:
        problem: the problem.
        rate: constant learning rate, or `flow` for the population risk without noise.
        start: start in one of the forms that `dynamics` takes.
        batch: samples per step.
        accuracy: required error bar of the moments, relative to the largest.

    Raises:
        InputError: descent has no closed equations, a rate that changes, or a batch of order d.
        NotConvergedError: no stationary point is found, or the quadrature does not reach the accuracy.

    Example:
        >>> point = sf.stationary(sf.problem("ridge_regression"), rate=0.5)
        >>> point.stable, round(float(point.overlaps.theta[0, 0, 0]), 6)
        (True, 0.909091)
    """
    require_in_interval("accuracy", accuracy, "(0, inf)")
    schedule, sentences = require_constant_learning_rate(problem, rate, batch)
    u = moments_of_start(problem, start)[1].pack()
    rules = gradient_average_rules(problem)
    last: np.ndarray | None = None
    for number, rule in enumerate(rules):
        report_remaining_work(f"rule {number + 1} of at most {len(rules)}")
        flow = EquationsOfMotion(problem, rule, sentences)
        found = find_stationary_moments(flow, u, schedule.rate)
        if found is None:
            raise NotConvergedError(
                f"{problem.solver.name}: Newton's method finds no stationary point of descent near the start; try "
                "another start or a smaller rate"
            )
        if last is not None:
            off = 1.5 * np.abs(found - last)
            if off.max() <= accuracy * np.abs(found).max():
                return stationary_point_with_spectrum(flow, found, schedule, off)
        last = u = found
    raise NotConvergedError(
        f"{problem.solver.name}: the quadrature does not reach error bars of {accuracy:g}; allow larger ones (accuracy)"
    )


def require_constant_learning_rate(problem: Problem, rate: Any, batch: Any) -> tuple[LearningRateSchedule, float]:
    """Return a constant learning rate as a schedule, and the samples per step; raise InputError if it is not constant.

    Args:
        problem: the problem.
        rate: constant learning rate, or flow for gradient flow, which has infinitely many samples per step.
        batch: samples per step.

    Raises:
        InputError: descent has no closed equations, the rate changes with time, or the batch is of order d.
    """
    require_closed_dynamics(problem)
    schedule, size = parse_learning_rate(rate), parse_batch_size(batch)
    if not schedule.is_constant:
        raise InputError(f"rate {schedule.command_line_text}: stationary points need a constant rate; give a number")
    if size.share is not None:
        raise InputError(
            f"batch {size.command_line_text}: stationary points need a batch of a fixed number of samples, not of "
            "order d; give a whole number"
        )
    return schedule, np.inf if schedule.flow else size.sentences


def find_stationary_moments_by_newton(flow: EquationsOfMotion, u: np.ndarray, rate: float) -> np.ndarray | None:
    """Return the packed moments of the stationary point close to given ones, or None if Newton's method fails.

    Args:
        flow: the equations of motion.
        u: packed moments to start from.
        rate: learning rate.
    """
    options = StationaryOptions.current()
    value = flow.packed_moment_derivatives(u, rate)
    if not np.isfinite(value).all():
        return None
    # Averages exist for overlaps that rows cannot have, as m without means: a zero there is none.
    basis, creeping = basis_of_moment_space(flow.problem), 0
    reused: np.ndarray | None = None
    for _ in range(options.max_iterations):
        scale = max(float(np.abs(u).max()), 1e-3)
        if np.abs(value).max() <= options.residual_tolerance * rate * scale:
            return u
        if reused is not None:  # the Jacobian of the step before, as long as it reduces the residual enough
            new = u + basis @ np.linalg.lstsq(reused, -value, rcond=1e-11)[0]
            ahead = flow.packed_moment_derivatives(new, rate)
            if np.isfinite(ahead).all() and np.linalg.norm(ahead) < options.jacobian_reuse * np.linalg.norm(value):
                u, value = new, ahead
                continue
        slopes = flow.jacobian(u, rate, along=basis)
        move = basis @ np.linalg.lstsq(slopes, -value, rcond=1e-11)[0]
        size = 1.0
        for _ in range(options.max_halvings):
            new = u + size * move
            ahead = flow.packed_moment_derivatives(new, rate)
            if np.isfinite(ahead).all() and np.linalg.norm(ahead) < (1 - 0.1 * size) * np.linalg.norm(value):
                break
            size /= 2
        else:
            # The residual is due to rounding of the averages.
            return u if np.abs(value).max() <= 1e3 * options.residual_tolerance * rate * scale else None
        reused = slopes if np.linalg.norm(ahead) < options.jacobian_reuse * np.linalg.norm(value) else None
        u, value = new, ahead
        creeping = creeping + 1 if size < options.short_step else 0
        if creeping > options.max_short_steps:  # along the edge of the domain, as the zero is outside
            return None
    return None


def find_stationary_moments_at_domain_edge(flow: EquationsOfMotion, u: np.ndarray, rate: float) -> np.ndarray | None:
    """Return the packed moments of a stationary point at which some weights are functions of means and teacher only.

    Such points are at the edge of the domain of moments that weights can have, and exist only for gradients without
    noise. None is returned if there is none. Newton's method then uses parameters of the weights, for which every value
    is allowed: coefficients of means and teacher, and amplitudes of an independent normal part (docs/theory.md (19.4)).

    Args:
        flow: the equations of motion.
        u: packed moments to start from.
        rate: learning rate.
    """
    options = StationaryOptions.current()
    if np.isfinite(flow.batch):
        return None
    problem, gram = flow.problem, flow.problem.law.gram
    moments = Moments.unpack(u, problem)
    known, own = _weight_distribution_given_teacher(moments, gram)
    values, vectors = np.linalg.eigh(own)
    parts = known, vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :], moments.phi
    ends = np.cumsum([part.size for part in parts])[:-1]

    def split_weight_parameters(x: np.ndarray) -> list[np.ndarray]:
        return [part.reshape(old.shape) for part, old in zip(np.split(x, ends), parts, strict=True)]

    def moments_from_weight_parameters(x: np.ndarray) -> Moments:
        B, L, phi = split_weight_parameters(x)
        return replace(moments_of_linear_gaussian_weights(problem, B, L @ np.swapaxes(L, 1, 2)), phi=phi)

    def time_derivative_of_weight_parameters(x: np.ndarray) -> np.ndarray:
        B, L, _ = split_weight_parameters(x)
        there = moments_from_weight_parameters(x)
        drift, averages = flow.weight_drift_and_averages(there)
        motion = ((drift.A @ B + drift.b) @ gram).ravel(), (drift.A @ L).ravel()
        return np.concatenate([-motion[0], -motion[1], flow.trained_number_derivatives(there, averages, 1.0)])

    x = np.concatenate([part.ravel() for part in parts])
    scale = max(float(np.abs(x).max()), 1e-3)
    step = 1e-5 * scale
    try:
        value = time_derivative_of_weight_parameters(x)
        for _ in range(options.max_iterations):
            if np.abs(value).max() <= options.row_tolerance * scale:
                return moments_from_weight_parameters(x).pack()
            ahead = (
                time_derivative_of_weight_parameters(x + step * unit)
                - time_derivative_of_weight_parameters(x - step * unit)
                for unit in np.eye(len(x))
            )
            move = np.linalg.lstsq(np.stack(list(ahead), axis=1) / (2 * step), -value, rcond=1e-9)[0]
            for _ in range(10):
                following = time_derivative_of_weight_parameters(x + move)
                if np.linalg.norm(following) < np.linalg.norm(value):
                    break
                move = move / 2
            else:
                return None
            x, value = x + move, following
            if np.abs(x).max() > options.divergence_factor * scale:  # a bounded loss is flat at infinity
                return None
    except DomainError:  # rows are not finite
        pass
    return None


def find_stationary_moments(flow: EquationsOfMotion, u: np.ndarray, rate: float) -> np.ndarray | None:
    """Return the packed moments of the stationary point close to given ones, or None if none is found.

    Args:
        flow: the equations of motion.
        u: packed moments to start from.
        rate: learning rate.
    """
    found = find_stationary_moments_by_newton(flow, u, rate)
    if (
        found is not None
        and distance_from_domain_edge(flow.problem, found) > -StationaryOptions.current().edge_tolerance
    ):
        return found
    at_edge = find_stationary_moments_at_domain_edge(flow, u, rate)
    return found if at_edge is None else at_edge


def distance_from_domain_edge(problem: Problem, u: np.ndarray) -> float:
    """Return the distance of moments from the edge of the domain of moments that weights can have.

    It is the smallest relative variance of the weights given means, encodings and teacher, and negative outside.

    Args:
        problem: the problem.
        u: packed moments.
    """
    moments = Moments.unpack(u, problem)
    _, own = _weight_distribution_given_teacher(moments, problem.law.gram)
    scale = max(float(np.trace(moments.S, axis1=1, axis2=2).max()), 1e-300)
    return float(np.linalg.eigvalsh(own).min() / scale)


def _weight_distribution_given_teacher(moments: Moments, gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the Gaussian distribution of the weights given means and teacher, for every spectral atom.

    It is returned as coefficients of means and teacher in the conditional mean, and as conditional covariances.
    """
    cross = np.concatenate([np.swapaxes(moments.T, 1, 2), moments.P], axis=2)
    known = cross @ np.linalg.pinv(gram, rcond=1e-10, hermitian=True)
    return known, moments.S - known @ np.swapaxes(cross, 1, 2)


def stationary_point_with_spectrum(
    flow: EquationsOfMotion, u: np.ndarray, schedule: LearningRateSchedule, error_bars: np.ndarray
) -> StationaryPoint:
    """Return the stationary point with given packed moments, after computing the eigenvalues of its Jacobian.

    Args:
        flow: the equations of motion.
        u: packed moments of the point.
        schedule: constant learning rate.
        error_bars: error bars of the packed moments.
    """
    basis, problem, options = basis_of_moment_space(flow.problem), flow.problem, StationaryOptions.current()
    inner, soft, step = u, _EIGENVALUE_ROUNDING, 1e-5
    if distance_from_domain_edge(problem, u) < options.edge_tolerance:
        # Differences need moments that weights can have: take them slightly inside the edge.
        moments = Moments.unpack(u, problem)
        moved = options.edge_distance * max(float(np.abs(u).max()), 1e-3) * np.eye(problem.student_rank)
        inner, soft, step = (
            replace(moments, S=moments.S + moved).pack(),
            options.edge_growth,
            options.edge_distance / 10,
        )
    values, vectors = np.linalg.eig(basis.T @ flow.jacobian(inner, schedule.rate, step, basis))
    order = np.argsort(-values.real, kind="stable")
    vectors = basis @ vectors
    residual = float(np.abs(flow.packed_moment_derivatives(u, schedule.rate)).max() / max(np.abs(u).max(), 1e-3))
    moments = Moments.unpack(u, problem)
    return StationaryPoint(
        problem, schedule, flow.batch, moments, values[order], vectors[:, order], residual, error_bars, soft
    )


@dataclass(frozen=True, repr=False)
class RateLimit(PresentableResult):
    """The largest learning rate up to which a stationary point of descent exists and is stable.

    Attributes:
        value, error: the largest rate and its error bar.
        kind: "lost" (the stationary point ends or diverges there) or "unstable" (it exists beyond, and is unstable).
        last: the stationary point just below that rate.

    Example:
        >>> limit = sf.rate_limit(sf.problem("ridge_regression"), 0.5, "random")
        >>> limit.error < 1e-7, limit.last.stable
        (True, True)
    """

    value: float
    error: float
    kind: str
    last: StationaryPoint


@progress_step("the rate above which a solution is lost")
def rate_limit(
    problem: Problem, rate: Any, start: Any, *, batch: Any = 1, accuracy: float = 1e-9, most: float = 1e4
) -> RateLimit:
    """Return the learning rate at which a stable stationary point, continued to larger rates, is lost or unstable.

    Args:
        problem: the problem.
        rate: constant learning rate at which the continuation begins.
        start: start close to the stationary point at this rate, as for `stationary`.
        batch: samples per step.
        accuracy: relative accuracy of the rate.
        most: largest learning rate that is tried.

    Raises:
        InputError: gradient flow has no rate.
        NotConvergedError: there is no stable point at the first rate, or it is stable up to the last one.

    Example:
        >>> limit = sf.rate_limit(sf.problem("ridge_regression"), 0.5, "random")
        >>> round(limit.value, 6), limit.kind
        (2.2, 'lost')
    """
    require_in_interval("accuracy", accuracy, "(0, inf)")
    schedule, sentences = require_constant_learning_rate(problem, rate, batch)
    if schedule.flow:
        raise InputError(
            "rate flow: gradient flow has no learning rate, so that no rate is too large; give a number as rate"
        )
    first = stationary(problem, schedule, start, batch=batch)
    if not first.stable:
        raise NotConvergedError(
            f"the {first.branch} stationary point at the first rate, {schedule.rate:g}, is not stable; "
            "give a smaller first rate"
        )
    begin = first.moments.pack()
    near = 1e-8 * np.abs(begin).max() * schedule.rate
    flows = equations_with_agreeing_quadratures(problem, sentences, begin, schedule.rate, lambda _: near)
    (coarse, _, _), (value, kind, u) = (
        _continue_to_rate_limit(flow, begin, schedule.rate, accuracy, most) for flow in flows
    )
    error = 4 * accuracy * value + 1.5 * abs(value - coarse)
    here = stationary_point_with_spectrum(
        flows[1], u, LearningRateSchedule(value * (1 - 2 * accuracy)), np.full_like(u, np.nan)
    )
    return RateLimit(value, error, kind, here)


def equations_with_agreeing_quadratures(
    problem: Problem, sentences: float, u: np.ndarray, rate: float, near: Callable[[np.ndarray], float]
) -> tuple[EquationsOfMotion, EquationsOfMotion]:
    """Return the equations of motion by the first two successive quadrature rules that agree, or by the two finest.

    Args:
        problem: the problem.
        sentences: samples per step.
        u: packed moments at which time derivatives by both rules are compared.
        rate: learning rate.
        near: function that returns the largest accepted difference, from the time derivatives by the finer rule.
    """
    flows = [EquationsOfMotion(problem, rule, sentences) for rule in gradient_average_rules(problem)]
    for coarse, fine in pairwise(flows):
        slope = fine.packed_moment_derivatives(u, rate)
        if np.abs(coarse.packed_moment_derivatives(u, rate) - slope).max() <= near(slope):
            return coarse, fine
    coarse, fine = [flows[0], *flows][-2:]
    return coarse, fine


def _continue_to_rate_limit(
    flow: EquationsOfMotion, u: np.ndarray, rate: float, accuracy: float, most: float
) -> tuple[float, str, np.ndarray]:
    """Return the largest learning rate with a stable stationary point, what becomes of the point, and its moments.

    At larger learning rates the point is "lost" or "unstable".
    """
    basis, options = basis_of_moment_space(flow.problem), StationaryOptions.current()

    def stationary_moments_at_learning_rate(new: float, known: np.ndarray) -> tuple[np.ndarray | None, bool]:
        """Return the packed moments of the stationary point at a learning rate (or None), and whether it is stable.

        Args:
            new: learning rate.
            known: packed moments of the stationary point at a smaller learning rate.
        """
        found = find_stationary_moments_by_newton(flow, known, new)
        if found is None or not np.isfinite(found).all():
            return None, False
        values = np.linalg.eigvals(basis.T @ flow.jacobian(found, new, along=basis))
        return found, bool(np.all(values.real <= _EIGENVALUE_ROUNDING * np.abs(values).max()))

    size, kind = options.first_rate_step, "lost"
    while size > accuracy:
        new = rate * (1 + size)
        if new > most:
            raise NotConvergedError(
                f"the stationary point is still stable at a rate of {most:g}, the largest that was tried; "
                "give a larger `most`"
            )
        found, stable = stationary_moments_at_learning_rate(new, u)
        report_remaining_work(f"rate {rate:.10g}, next step {size:.1e}")
        if found is not None and stable:
            u, rate = found, new
            size *= options.rate_step_growth
        else:
            kind = "lost" if found is None else "unstable"
            size /= 4
    return rate, kind, u
