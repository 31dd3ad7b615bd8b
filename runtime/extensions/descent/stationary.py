"""Where descent ends: fixed points of the equations of motion, their stability, the rate above which one is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ...base.errors import DomainError, InputError, NotConvergedError, require_in
from ...base.presenting import Result
from ...base.progress import left, step
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...saddle_point.starts import branch_of
from .averages import sizes_for
from .flow import Flow, refuse
from .schedule import Schedule, batch_of, schedule_of
from .state import Moments, of_mixture, possible, start_of

_MOST_STEPS = 60
_CREEPING, _MOST_CREEPING = 0.05, 3  # share of Newton's step, and how often in a row
_HALVINGS = 12  # of Newton's step
_KEPT = 0.1  # to what share a step by the slopes of one before has to bring the residual
_RESIDUAL = 1e-11  # of Newton's method, per unit of time and relative to the moments
_SLOWEST = 1e-9  # of rows, per unit of time and relative to them
_RUN_OFF = 1e3  # of rows, relative to those at the start
_EDGE = 1e-7  # of the domain: what rows vary by beside means, encodings and teacher, relative to all that they do
_INSIDE, _SOFT = 1e-6, 1e-5  # how far from there slopes are taken, and growths of what size mean nothing then
_FLAT = 1e-9  # of an eigenvalue relative to the largest: a symmetry of the equations
_FIRST, _GROWTH = 0.05, 1.6  # relative steps of the rate


@dataclass(frozen=True, repr=False)
class StationaryPoint(Result):
    """A fixed point of descent at a constant rate.

    Attributes:
        moments: of the rows; overlaps: which they have (V is not known to descent).
        eigenvalues: of the Jacobian of d moments / dt there, largest real part first, per unit of time; directions:
            their eigenvectors as columns, in the order of `Moments.pack`.
        residual: largest |d moments / dt|, relative to the moments.
        half_widths: of the packed moments: Newton's method by a finer rule.
        soft: growths below this, relative to the largest rate, are not told from none.

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
    half_widths: np.ndarray
    soft: float = _FLAT

    @property
    def overlaps(self) -> Overlaps:
        """q, m and theta."""
        return self.moments.overlaps(self.problem)

    @property
    def branch(self) -> str:
        """semantic, positional, mixed or uninformed."""
        return branch_of(self.overlaps)

    @property
    def unstable(self) -> int:
        """How many directions lead away from it; soft ones of a symmetry do not count."""
        size = np.abs(self.eigenvalues).max(initial=0.0)
        return int(np.sum(self.eigenvalues.real > self.soft * size))

    @property
    def stable(self) -> bool:
        """Whether descent that is close stays close."""
        return not self.unstable


@step("stationary point of descent")
def stationary(
    problem: Problem, rate: Any = "flow", start: Any = "random", *, batch: Any = 1, accuracy: float = 1e-6
) -> StationaryPoint:
    """The fixed point next to a start, by Newton's method on the equations of motion.

    Args:
        rate: constant, or `flow` for the population risk without noise; start: as of `dynamics`, or `Moments`.
        accuracy: half width asked of the moments, relative to the largest.

    Raises:
        InputError: the dynamics do not close, a rate that changes, or a batch of order d.
        NotConvergedError: none is near, or the averages cannot be taken to the accuracy.

    Example:
        >>> point = sf.stationary(sf.problem("ridge_regression"), rate=0.5)
        >>> point.stable, round(float(point.overlaps.theta[0, 0, 0]), 6)
        (True, 0.909091)
    """
    require_in("accuracy", accuracy, "(0, inf)")
    schedule, sentences = constant(problem, rate, batch)
    u = start_of(problem, start)[1].pack()
    rules = sizes_for(problem)
    last: np.ndarray | None = None
    for number, rule in enumerate(rules):
        left(f"rule {number + 1} of at most {len(rules)}")
        flow = Flow(problem, rule, sentences)
        found = settled(flow, u, schedule.rate)
        if found is None:
            raise NotConvergedError(f"{problem.solver.name}: no stationary point of descent is near the start")
        if last is not None:
            off = 1.5 * np.abs(found - last)
            if off.max() <= accuracy * np.abs(found).max():
                return at(flow, found, schedule, off)
        last = u = found
    raise NotConvergedError(f"{problem.solver.name}: averages cannot be taken to an accuracy of {accuracy:g}")


def constant(problem: Problem, rate: Any, batch: Any) -> tuple[Schedule, float]:
    """The schedule and the sentences of a step, infinitely many for gradient flow.

    Raises:
        InputError: the dynamics do not close, the rate changes with time, or the batch is of order d.
    """
    refuse(problem)
    schedule, size = schedule_of(rate), batch_of(batch)
    if not schedule.is_constant:
        raise InputError(f"rate {schedule.words}: fixed points are those of a constant rate")
    if size.share is not None:
        raise InputError(f"batch {size.words}: fixed points are those of batches of a number of samples")
    return schedule, np.inf if schedule.flow else size.sentences


def newton(flow: Flow, u: np.ndarray, rate: float) -> np.ndarray | None:
    """A zero of the slope next to packed moments, in the least-squares sense along soft directions; None where Newton's
    method finds none."""
    value = flow.packed(u, rate)
    if not np.isfinite(value).all():
        return None
    # Averages follow overlaps that rows cannot have, as m where there are no means: no zero there counts.
    basis, creeping = possible(flow.problem), 0
    kept: np.ndarray | None = None
    for _ in range(_MOST_STEPS):
        scale = max(float(np.abs(u).max()), 1e-3)
        if np.abs(value).max() <= _RESIDUAL * rate * scale:
            return u
        if kept is not None:  # slopes of the step before, as long as they bring the zero as near as new ones' cost asks
            new = u + basis @ np.linalg.lstsq(kept, -value, rcond=1e-11)[0]
            ahead = flow.packed(new, rate)
            if np.isfinite(ahead).all() and np.linalg.norm(ahead) < _KEPT * np.linalg.norm(value):
                u, value = new, ahead
                continue
        slopes = flow.jacobian(u, rate, along=basis)
        move = basis @ np.linalg.lstsq(slopes, -value, rcond=1e-11)[0]
        size = 1.0
        for _ in range(_HALVINGS):
            new = u + size * move
            ahead = flow.packed(new, rate)
            if np.isfinite(ahead).all() and np.linalg.norm(ahead) < (1 - 0.1 * size) * np.linalg.norm(value):
                break
            size /= 2
        else:
            # Rounding of the averages is all that is left.
            return u if np.abs(value).max() <= 1e3 * _RESIDUAL * rate * scale else None
        kept = slopes if np.linalg.norm(ahead) < _KEPT * np.linalg.norm(value) else None
        u, value = new, ahead
        creeping = creeping + 1 if size < _CREEPING else 0
        if creeping > _MOST_CREEPING:  # along the edge of the domain, behind which the point lies that it aims at
            return None
    return None


def of_rows(flow: Flow, u: np.ndarray, rate: float) -> np.ndarray | None:
    """As of `newton` without noise, next to the edge of the domain, where parts of the rows vanish.

    Rows are B z + L xi, z = (tau, pi) and xi normal beside: without noise they move as rows do, docs/theory.md (19.4),
    whatever B and L are, while moments a step further on may be those of no rows. A vanishing L is a fixed point by
    itself; what falls by no linear law, as the difference of two units that know the same, falls by a third a step.
    """
    if np.isfinite(flow.batch):
        return None
    problem, gram = flow.problem, flow.problem.law.gram
    moments = Moments.unpack(u, problem)
    known, own = _beside_known(moments, gram)
    values, vectors = np.linalg.eigh(own)
    begun = known, vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :], moments.phi
    ends = np.cumsum([part.size for part in begun])[:-1]

    def parts(x: np.ndarray) -> list[np.ndarray]:
        return [part.reshape(old.shape) for part, old in zip(np.split(x, ends), begun, strict=True)]

    def moments_of(x: np.ndarray) -> Moments:
        B, L, phi = parts(x)
        return replace(of_mixture(problem, B, L @ np.swapaxes(L, 1, 2)), phi=phi)

    def speed(x: np.ndarray) -> np.ndarray:
        B, L, _ = parts(x)
        there = moments_of(x)
        drift, averages = flow.at(there)
        of_rows = ((drift.A @ B + drift.b) @ gram).ravel(), (drift.A @ L).ravel()
        return np.concatenate([-of_rows[0], -of_rows[1], flow.trained(there, averages, 1.0)])

    x = np.concatenate([part.ravel() for part in begun])
    scale = max(float(np.abs(x).max()), 1e-3)
    step = 1e-5 * scale
    try:
        value = speed(x)
        for _ in range(_MOST_STEPS):
            if np.abs(value).max() <= _SLOWEST * scale:
                return moments_of(x).pack()
            ahead = (speed(x + step * unit) - speed(x - step * unit) for unit in np.eye(len(x)))
            move = np.linalg.lstsq(np.stack(list(ahead), axis=1) / (2 * step), -value, rcond=1e-9)[0]
            for _ in range(10):
                following = speed(x + move)
                if np.linalg.norm(following) < np.linalg.norm(value):
                    break
                move = move / 2
            else:
                return None
            x, value = x + move, following
            if np.abs(x).max() > _RUN_OFF * scale:  # where a bounded loss is flat
                return None
    except DomainError:  # rows are no numbers any more
        pass
    return None


def settled(flow: Flow, u: np.ndarray, rate: float) -> np.ndarray | None:
    """The fixed point next to packed moments, inside the domain or at its edge; None where none is found."""
    found = newton(flow, u, rate)
    if found is not None and beside_edge(flow.problem, found) > -_EDGE:
        return found
    at_edge = of_rows(flow, u, rate)
    return found if at_edge is None else at_edge


def beside_edge(problem: Problem, u: np.ndarray) -> float:
    """The least that rows may vary beside what means, encodings and teacher say, relative to how much they do in all:
    zero at the edge of the domain, negative beyond."""
    moments = Moments.unpack(u, problem)
    _, own = _beside_known(moments, problem.law.gram)
    scale = max(float(np.trace(moments.S, axis1=1, axis2=2).max()), 1e-300)
    return float(np.linalg.eigvalsh(own).min() / scale)


def _beside_known(moments: Moments, gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of rows given (tau, pi), atom by atom: what multiplies these in the mean, (A, s, C + t), and the covariance."""
    cross = np.concatenate([np.swapaxes(moments.T, 1, 2), moments.P], axis=2)
    known = cross @ np.linalg.pinv(gram, rcond=1e-10, hermitian=True)
    return known, moments.S - known @ np.swapaxes(cross, 1, 2)


def at(flow: Flow, u: np.ndarray, schedule: Schedule, half_widths: np.ndarray) -> StationaryPoint:
    """With its spectrum."""
    basis, problem = possible(flow.problem), flow.problem
    inner, soft, step = u, _FLAT, 1e-5
    if beside_edge(problem, u) < _EDGE:
        # Differences of moments that are those of no rows say nothing: a little inside of the edge.
        moments = Moments.unpack(u, problem)
        moved = _INSIDE * max(float(np.abs(u).max()), 1e-3) * np.eye(problem.student_rank)
        inner, soft, step = replace(moments, S=moments.S + moved).pack(), _SOFT, _INSIDE / 10
    values, vectors = np.linalg.eig(basis.T @ flow.jacobian(inner, schedule.rate, step, basis))
    order = np.argsort(-values.real, kind="stable")
    vectors = basis @ vectors
    residual = float(np.abs(flow.packed(u, schedule.rate)).max() / max(np.abs(u).max(), 1e-3))
    moments = Moments.unpack(u, problem)
    return StationaryPoint(
        problem, schedule, flow.batch, moments, values[order], vectors[:, order], residual, half_widths, soft
    )


@dataclass(frozen=True, repr=False)
class RateLimit(Result):
    """The largest rate up to which a stationary point is there and stable.

    Attributes:
        value, error: of the rate; kind: "lost" (it ends, or runs off to infinity) or "unstable" (it goes on).
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


@step("the rate above which a solution is lost")
def rate_limit(
    problem: Problem, rate: Any, start: Any, *, batch: Any = 1, accuracy: float = 1e-9, most: float = 1e4
) -> RateLimit:
    """Follow a stable stationary point from a rate up to where it is lost or unstable.

    Args:
        rate: to begin with, constant; start: near the point there, as of `stationary`.
        accuracy: relative, of the last step in the rate that is tried; most: rate at which the search ends.

    Raises:
        InputError: gradient flow has no rate.
        NotConvergedError: there is no stable point at the first rate, or it is stable up to the last one.

    Example:
        >>> limit = sf.rate_limit(sf.problem("ridge_regression"), 0.5, "random")
        >>> round(limit.value, 6), limit.kind
        (2.2, 'lost')
    """
    require_in("accuracy", accuracy, "(0, inf)")
    schedule, sentences = constant(problem, rate, batch)
    if schedule.flow:
        raise InputError("rate flow: gradient flow has no rate that could be too large")
    first = stationary(problem, schedule, start, batch=batch)
    if not first.stable:
        raise NotConvergedError(f"the {first.branch} stationary point at rate {schedule.rate:g} is not stable")
    begin = first.moments.pack()
    near = 1e-8 * np.abs(begin).max() * schedule.rate
    flows = agreeing(problem, sentences, begin, schedule.rate, lambda _: near)
    (coarse, _, _), (value, kind, u) = (_followed(flow, begin, schedule.rate, accuracy, most) for flow in flows)
    error = 4 * accuracy * value + 1.5 * abs(value - coarse)
    here = at(flows[1], u, Schedule(value * (1 - 2 * accuracy)), np.full_like(u, np.nan))
    return RateLimit(value, error, kind, here)


def agreeing(
    problem: Problem, sentences: float, u: np.ndarray, rate: float, near: Callable[[np.ndarray], float]
) -> tuple[Flow, Flow]:
    """The coarsest two rules whose slopes at packed moments differ by no more than `near` says of the finer one's; the
    finest two where none do."""
    flows = [Flow(problem, rule, sentences) for rule in sizes_for(problem)]
    for coarse, fine in pairwise(flows):
        slope = fine.packed(u, rate)
        if np.abs(coarse.packed(u, rate) - slope).max() <= near(slope):
            return coarse, fine
    coarse, fine = [flows[0], *flows][-2:]
    return coarse, fine


def _followed(flow: Flow, u: np.ndarray, rate: float, accuracy: float, most: float) -> tuple[float, str, np.ndarray]:
    """The last rate with a stable point, why it is the last, and the point there."""
    basis = possible(flow.problem)

    def tried(new: float, known: np.ndarray) -> tuple[np.ndarray | None, bool]:
        found = newton(flow, known, new)
        if found is None or not np.isfinite(found).all():
            return None, False
        values = np.linalg.eigvals(basis.T @ flow.jacobian(found, new, along=basis))
        return found, bool(np.all(values.real <= _FLAT * np.abs(values).max()))

    size, kind = _FIRST, "lost"
    while size > accuracy:
        new = rate * (1 + size)
        if new > most:
            raise NotConvergedError(f"the point is stable up to a rate of {most:g}, the last that was tried")
        found, stable = tried(new, u)
        left(f"rate {rate:.10g}, next step {size:.1e}")
        if found is not None and stable:
            u, rate = found, new
            size *= _GROWTH
        else:
            kind = "lost" if found is None else "unstable"
            size /= 4
    return rate, kind, u
