"""Fixed points of the equations of motion of descent, their stability, and the rate above which one is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ...base.deprecation import DeprecatedName, renamed_attribute
from ...base.errors import DomainError, InputError, NotConvergedError, require_in
from ...base.options import AlgorithmOptions
from ...base.presenting import Result
from ...base.progress import progress_step, report_remaining
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...saddle_point.starts import name_branch
from .averages import average_rules_for
from .flow import Flow, require_closed_dynamics
from .schedule import Schedule, parse_batch, parse_schedule
from .state import Moments, moment_basis, moments_of_mixture, named_moments

_EIGENVALUE_ROUNDING = 1e-9  # of an eigenvalue relative to the largest: below it is zero by a symmetry of the equations


@dataclass(frozen=True)
class StationaryOptions(AlgorithmOptions):
    """Options of the search for stationary points of descent.

    Attributes:
        max_iterations: Newton steps.
        max_halvings: halvings of a Newton step.
        short_step: fraction of a Newton step below which it counts as short.
        max_short_steps: short steps in a row, after which the search fails at the edge of the domain.
        jacobian_reuse: ratio of residuals after and before a step up to which its Jacobian is used again.
        residual_tolerance: of Newton's method, per unit of time and relative to the moments.
        row_tolerance: of the motion of rows, per unit of time and relative to them.
        divergence_factor: size of rows relative to the start at which they diverge.
        edge_tolerance: least variance of rows given means, encodings and teacher, relative to their variance, below
            which a point is at the edge of the domain.
        edge_distance: distance from the edge at which its Jacobian is taken.
        edge_growth: growth rates there, relative to the largest, below which their sign is unknown.
        first_rate_step: relative step of the rate at the beginning.
        rate_step_growth: ratio of a step to the last successful one.
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
class StationaryPoint(Result):
    """A fixed point of descent at a constant rate.

    Attributes:
        moments: second moments of the rows.
        eigenvalues: of the Jacobian of d moments / dt, largest real part first, per unit of time; directions:
            their eigenvectors as columns, in the order of `Moments.pack`.
        residual: largest |d moments / dt|, relative to the moments.
        error_bars: error bars of the packed moments, by a finer rule.
        soft: growth rates relative to the largest, below which they count as zero.

    Example:
        >>> point = sf.stationary(sf.problem("ridge_regression"), rate=0.5)
        >>> float(point.eigenvalues[0].real) < 0, point.unstable
        (True, 0)
    """

    problem: Problem
    rate: Schedule
    batch: float
    moments: Moments
    eigenvalues: np.ndarray
    directions: np.ndarray
    residual: float
    error_bars: np.ndarray
    soft: float = _EIGENVALUE_ROUNDING

    half_widths = renamed_attribute("half_widths", DeprecatedName("error_bars", "0.1.0", "0.3.0"))

    @property
    def overlaps(self) -> Overlaps:
        """The overlaps q, m and theta; V is the identity."""
        return self.moments.overlaps(self.problem)

    @property
    def branch(self) -> str:
        """The branch: semantic, positional, mixed or uninformed."""
        return name_branch(self.overlaps)

    @property
    def unstable(self) -> int:
        """The number of unstable directions, without soft ones of a symmetry."""
        size = np.abs(self.eigenvalues).max(initial=0.0)
        return int(np.sum(self.eigenvalues.real > self.soft * size))

    @property
    def stable(self) -> bool:
        """Whether the point is stable."""
        return not self.unstable


@progress_step("stationary point of descent")
def stationary(
    problem: Problem, rate: Any = "flow", start: Any = "random", *, batch: Any = 1, accuracy: float = 1e-6
) -> StationaryPoint:
    """Return the fixed point close to a start, by Newton's method on the equations of motion.

    Args:
        problem: the problem.
        rate: constant learning rate, or `flow` for the population risk without noise.
        start: as of `dynamics`, or `Moments`.
        batch: samples of a step.
        accuracy: required error bar of the moments, relative to the largest.

    Raises:
        InputError: the dynamics do not close, a rate that changes, or a batch of order d.
        NotConvergedError: none is found, or the averages cannot be taken to the accuracy.

    Example:
        >>> point = sf.stationary(sf.problem("ridge_regression"), rate=0.5)
        >>> point.stable, round(float(point.overlaps.theta[0, 0, 0]), 6)
        (True, 0.909091)
    """
    require_in("accuracy", accuracy, "(0, inf)")
    schedule, sentences = require_constant_rate(problem, rate, batch)
    u = named_moments(problem, start)[1].pack()
    rules = average_rules_for(problem)
    last: np.ndarray | None = None
    for number, rule in enumerate(rules):
        report_remaining(f"rule {number + 1} of at most {len(rules)}")
        flow = Flow(problem, rule, sentences)
        found = find_stationary(flow, u, schedule.rate)
        if found is None:
            raise NotConvergedError(f"{problem.solver.name}: no stationary point of descent is near the start")
        if last is not None:
            off = 1.5 * np.abs(found - last)
            if off.max() <= accuracy * np.abs(found).max():
                return stationary_point_at(flow, found, schedule, off)
        last = u = found
    raise NotConvergedError(f"{problem.solver.name}: averages cannot be taken to an accuracy of {accuracy:g}")


def require_constant_rate(problem: Problem, rate: Any, batch: Any) -> tuple[Schedule, float]:
    """Return the schedule of a constant rate and the samples of a step, infinitely many for gradient flow.

    Args:
        problem: the problem.
        rate: as of `stationary`.
        batch: as of `stationary`.

    Raises:
        InputError: the dynamics do not close, the rate changes with time, or the batch is of order d.
    """
    require_closed_dynamics(problem)
    schedule, size = parse_schedule(rate), parse_batch(batch)
    if not schedule.is_constant:
        raise InputError(f"rate {schedule.words}: fixed points are those of a constant rate")
    if size.share is not None:
        raise InputError(f"batch {size.words}: fixed points are those of batches of a number of samples")
    return schedule, np.inf if schedule.flow else size.sentences


def solve_newton(flow: Flow, u: np.ndarray, rate: float) -> np.ndarray | None:
    """Return a zero of d moments / dt by Newton's method, in least squares along soft directions; None without any.

    Args:
        flow: the equations of motion.
        u: packed moments to start from.
        rate: learning rate.
    """
    options = StationaryOptions.current()
    value = flow.packed_slope(u, rate)
    if not np.isfinite(value).all():
        return None
    # Averages exist for overlaps that rows cannot have, as m without means: a zero there is none.
    basis, creeping = moment_basis(flow.problem), 0
    reused: np.ndarray | None = None
    for _ in range(options.max_iterations):
        scale = max(float(np.abs(u).max()), 1e-3)
        if np.abs(value).max() <= options.residual_tolerance * rate * scale:
            return u
        if reused is not None:  # the Jacobian of the step before, as long as it reduces the residual enough
            new = u + basis @ np.linalg.lstsq(reused, -value, rcond=1e-11)[0]
            ahead = flow.packed_slope(new, rate)
            if np.isfinite(ahead).all() and np.linalg.norm(ahead) < options.jacobian_reuse * np.linalg.norm(value):
                u, value = new, ahead
                continue
        slopes = flow.jacobian(u, rate, along=basis)
        move = basis @ np.linalg.lstsq(slopes, -value, rcond=1e-11)[0]
        size = 1.0
        for _ in range(options.max_halvings):
            new = u + size * move
            ahead = flow.packed_slope(new, rate)
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


def find_zero_at_edge(flow: Flow, u: np.ndarray, rate: float) -> np.ndarray | None:
    """Return a zero of d moments / dt at the edge of the domain, where parts of the rows vanish; None without any.

    Only without noise: rows are B z + L xi, z = (tau, pi) and xi an independent normal variable. They move as rows do,
    docs/theory.md (19.4), for any B and L, while moments after a step may be those of no rows. L = 0 is invariant; an
    amplitude without a linear rate, as the difference of two equal units, decreases by a third in a step.

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
    known, own = _conditional_law(moments, gram)
    values, vectors = np.linalg.eigh(own)
    parts = known, vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :], moments.phi
    ends = np.cumsum([part.size for part in parts])[:-1]

    def split_parts(x: np.ndarray) -> list[np.ndarray]:
        return [part.reshape(old.shape) for part, old in zip(np.split(x, ends), parts, strict=True)]

    def moments_of(x: np.ndarray) -> Moments:
        B, L, phi = split_parts(x)
        return replace(moments_of_mixture(problem, B, L @ np.swapaxes(L, 1, 2)), phi=phi)

    def velocity(x: np.ndarray) -> np.ndarray:
        B, L, _ = split_parts(x)
        there = moments_of(x)
        drift, averages = flow.drift_and_averages(there)
        motion = ((drift.A @ B + drift.b) @ gram).ravel(), (drift.A @ L).ravel()
        return np.concatenate([-motion[0], -motion[1], flow.trained_slope(there, averages, 1.0)])

    x = np.concatenate([part.ravel() for part in parts])
    scale = max(float(np.abs(x).max()), 1e-3)
    step = 1e-5 * scale
    try:
        value = velocity(x)
        for _ in range(options.max_iterations):
            if np.abs(value).max() <= options.row_tolerance * scale:
                return moments_of(x).pack()
            ahead = (velocity(x + step * unit) - velocity(x - step * unit) for unit in np.eye(len(x)))
            move = np.linalg.lstsq(np.stack(list(ahead), axis=1) / (2 * step), -value, rcond=1e-9)[0]
            for _ in range(10):
                following = velocity(x + move)
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


def find_stationary(flow: Flow, u: np.ndarray, rate: float) -> np.ndarray | None:
    """Return the fixed point close to packed moments, inside the domain or at its edge; None where none is found.

    Args:
        flow: the equations of motion.
        u: packed moments to start from.
        rate: learning rate.
    """
    found = solve_newton(flow, u, rate)
    if found is not None and distance_from_edge(flow.problem, found) > -StationaryOptions.current().edge_tolerance:
        return found
    at_edge = find_zero_at_edge(flow, u, rate)
    return found if at_edge is None else at_edge


def distance_from_edge(problem: Problem, u: np.ndarray) -> float:
    """Return the least variance of rows given means, encodings and teacher, relative to their variance.

    It is zero at the edge of the domain, negative outside.

    Args:
        problem: the problem.
        u: packed moments.
    """
    moments = Moments.unpack(u, problem)
    _, own = _conditional_law(moments, problem.law.gram)
    scale = max(float(np.trace(moments.S, axis1=1, axis2=2).max()), 1e-300)
    return float(np.linalg.eigvalsh(own).min() / scale)


def _conditional_law(moments: Moments, gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the law of rows given (tau, pi), per atom: factor of these in the mean, (A, s, C + t), and covariance."""
    cross = np.concatenate([np.swapaxes(moments.T, 1, 2), moments.P], axis=2)
    known = cross @ np.linalg.pinv(gram, rcond=1e-10, hermitian=True)
    return known, moments.S - known @ np.swapaxes(cross, 1, 2)


def stationary_point_at(flow: Flow, u: np.ndarray, schedule: Schedule, error_bars: np.ndarray) -> StationaryPoint:
    """Return the stationary point at packed moments, with its spectrum.

    Args:
        flow: the equations of motion.
        u: packed moments of the point.
        schedule: constant learning rate.
        error_bars: error bars of the packed moments.
    """
    basis, problem, options = moment_basis(flow.problem), flow.problem, StationaryOptions.current()
    inner, soft, step = u, _EIGENVALUE_ROUNDING, 1e-5
    if distance_from_edge(problem, u) < options.edge_tolerance:
        # Moments of no rows have no meaningful differences: take them slightly inside the edge.
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
    residual = float(np.abs(flow.packed_slope(u, schedule.rate)).max() / max(np.abs(u).max(), 1e-3))
    moments = Moments.unpack(u, problem)
    return StationaryPoint(
        problem, schedule, flow.batch, moments, values[order], vectors[:, order], residual, error_bars, soft
    )


@dataclass(frozen=True, repr=False)
class RateLimit(Result):
    """The largest rate up to which a stationary point exists and is stable.

    Attributes:
        value, error: the rate and its error bar.
        kind: "lost" (the point ends, or diverges) or "unstable" (it continues).
        last: the stationary point just below.

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
    """Return the rate at which a stable stationary point, continued to larger rates, is lost or unstable.

    Args:
        problem: the problem.
        rate: the first one, constant.
        start: close to the point at this rate, as of `stationary`.
        batch: samples of a step.
        accuracy: smallest step in the rate, relative.
        most: rate at which the search ends.

    Raises:
        InputError: gradient flow has no rate.
        NotConvergedError: there is no stable point at the first rate, or it is stable up to the last one.

    Example:
        >>> limit = sf.rate_limit(sf.problem("ridge_regression"), 0.5, "random")
        >>> round(limit.value, 6), limit.kind
        (2.2, 'lost')
    """
    require_in("accuracy", accuracy, "(0, inf)")
    schedule, sentences = require_constant_rate(problem, rate, batch)
    if schedule.flow:
        raise InputError("rate flow: gradient flow has no rate that could be too large")
    first = stationary(problem, schedule, start, batch=batch)
    if not first.stable:
        raise NotConvergedError(f"the {first.branch} stationary point at rate {schedule.rate:g} is not stable")
    begin = first.moments.pack()
    near = 1e-8 * np.abs(begin).max() * schedule.rate
    flows = find_agreeing_flows(problem, sentences, begin, schedule.rate, lambda _: near)
    (coarse, _, _), (value, kind, u) = (
        _continue_to_limit(flow, begin, schedule.rate, accuracy, most) for flow in flows
    )
    error = 4 * accuracy * value + 1.5 * abs(value - coarse)
    here = stationary_point_at(flows[1], u, Schedule(value * (1 - 2 * accuracy)), np.full_like(u, np.nan))
    return RateLimit(value, error, kind, here)


def find_agreeing_flows(
    problem: Problem, sentences: float, u: np.ndarray, rate: float, near: Callable[[np.ndarray], float]
) -> tuple[Flow, Flow]:
    """Return the equations of motion by the two coarsest successive rules that agree, or by the two finest.

    Args:
        problem: the problem.
        sentences: samples of a step.
        u: packed moments at which slopes are compared.
        rate: learning rate.
        near: returns the largest accepted difference for the slope by the finer rule.
    """
    flows = [Flow(problem, rule, sentences) for rule in average_rules_for(problem)]
    for coarse, fine in pairwise(flows):
        slope = fine.packed_slope(u, rate)
        if np.abs(coarse.packed_slope(u, rate) - slope).max() <= near(slope):
            return coarse, fine
    coarse, fine = [flows[0], *flows][-2:]
    return coarse, fine


def _continue_to_limit(
    flow: Flow, u: np.ndarray, rate: float, accuracy: float, most: float
) -> tuple[float, str, np.ndarray]:
    """Return the last rate with a stable point, how it is lost, and the point there."""
    basis, options = moment_basis(flow.problem), StationaryOptions.current()

    def solve_at_rate(new: float, known: np.ndarray) -> tuple[np.ndarray | None, bool]:
        """Return the stationary point at a rate, or None, and whether it is stable.

        Args:
            new: the rate.
            known: packed moments of the point at a smaller rate.
        """
        found = solve_newton(flow, known, new)
        if found is None or not np.isfinite(found).all():
            return None, False
        values = np.linalg.eigvals(basis.T @ flow.jacobian(found, new, along=basis))
        return found, bool(np.all(values.real <= _EIGENVALUE_ROUNDING * np.abs(values).max()))

    size, kind = options.first_rate_step, "lost"
    while size > accuracy:
        new = rate * (1 + size)
        if new > most:
            raise NotConvergedError(f"the point is stable up to a rate of {most:g}, the last that was tried")
        found, stable = solve_at_rate(new, u)
        report_remaining(f"rate {rate:.10g}, next step {size:.1e}")
        if found is not None and stable:
            u, rate = found, new
            size *= options.rate_step_growth
        else:
            kind = "lost" if found is None else "unstable"
            size /= 4
    return rate, kind, u
