"""Where descent ends: fixed points of the equations of motion, their stability, the rate above which one is lost."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from .. import presenting
from ..errors import InputError, NotConvergedError
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..progress import left, step
from ..saddle_point.starts import branch_of
from .averages import AverageRule, sizes_for
from .flow import Flow, refuse
from .schedule import Schedule, batch_of, schedule_of
from .state import Moments, possible, start_of

_MOST_STEPS = 60
_CREEPING, _MOST_CREEPING = 0.05, 3  # share of Newton's step, and how often in a row
_RESIDUAL = 1e-11  # of Newton's method, per unit of time and relative to the moments
_FLAT = 1e-9  # of an eigenvalue relative to the largest: a symmetry of the equations
_FIRST, _GROWTH = 0.05, 1.6  # relative steps of the rate


@dataclass(frozen=True)
class StationaryPoint:
    """A fixed point of descent at a constant rate.

    Attributes:
        moments: of the rows; overlaps: which they have (V is not known to descent).
        eigenvalues: of the Jacobian of d moments / dt there, largest real part first, per unit of time; directions:
            their eigenvectors as columns, in the order of `Moments.pack`.
        residual: largest |d moments / dt|, relative to the moments.
        half_widths: of the packed moments: Newton's method by a finer rule.
    """

    problem: Problem
    rate: Schedule
    batch: float
    moments: Moments
    eigenvalues: np.ndarray
    directions: np.ndarray
    residual: float
    half_widths: np.ndarray

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
        return int(np.sum(self.eigenvalues.real > _FLAT * size))

    @property
    def stable(self) -> bool:
        """Whether descent that is close stays close."""
        return not self.unstable

    def table(self) -> str:
        """As the command line prints it."""
        return presenting.table(self)

    def to_json(self) -> dict[str, Any]:
        """As an object of JSON."""
        return presenting.to_json(self)


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
    """
    refuse(problem)
    schedule, sentences = constant(rate, batch)
    _, moments = start_of(problem, start)
    u = moments.pack()
    rules = sizes_for(problem)
    last: np.ndarray | None = None
    for number, rule in enumerate(rules):
        left(f"rule {number + 1} of at most {len(rules)}")
        flow = Flow(problem, rule, sentences)
        found = newton(flow, u, schedule.rate)
        if found is None:
            raise NotConvergedError(f"{problem.solver.name}: no stationary point of descent is near the start")
        if last is not None:
            off = 1.5 * np.abs(found - last)
            if off.max() <= accuracy * np.abs(found).max():
                return at(flow, found, schedule, off)
        last = u = found
    raise NotConvergedError(f"{problem.solver.name}: averages cannot be taken to an accuracy of {accuracy:g}")


def constant(rate: Any, batch: Any) -> tuple[Schedule, float]:
    """The schedule and the sentences of a step, infinitely many for gradient flow.

    Raises:
        InputError: the rate changes with time, or the batch is of order d.
    """
    schedule, size = schedule_of(rate), batch_of(batch)
    if not schedule.is_constant:
        raise InputError(f"rate {schedule.words}: fixed points are those of a constant rate")
    if size.share is not None:
        raise InputError(f"batch {size.words}: fixed points are those of batches of a number of sentences")
    return schedule, np.inf if schedule.flow else size.sentences


def newton(flow: Flow, u: np.ndarray, rate: float) -> np.ndarray | None:
    """A zero of the slope next to packed moments, in the least-squares sense along soft directions; None where Newton's
    method finds none."""
    value = flow.packed(u, rate)
    if not np.isfinite(value).all():
        return None
    creeping = 0
    for _ in range(_MOST_STEPS):
        scale = max(float(np.abs(u).max()), 1e-3)
        if np.abs(value).max() <= _RESIDUAL * rate * scale:
            return u
        move = np.linalg.lstsq(flow.jacobian(u, rate), -value, rcond=1e-11)[0]
        size = 1.0
        for _ in range(30):
            new = u + size * move
            ahead = flow.packed(new, rate)
            if np.isfinite(ahead).all() and np.linalg.norm(ahead) < (1 - 0.1 * size) * np.linalg.norm(value):
                break
            size /= 2
        else:
            # Rounding of the averages is all that is left.
            return u if np.abs(value).max() <= 1e3 * _RESIDUAL * rate * scale else None
        u, value = new, ahead
        creeping = creeping + 1 if size < _CREEPING else 0
        if creeping > _MOST_CREEPING:  # along the edge of the domain, behind which the point lies that it aims at
            return None
    return None


def at(flow: Flow, u: np.ndarray, schedule: Schedule, half_widths: np.ndarray) -> StationaryPoint:
    """With its spectrum."""
    basis = possible(flow.problem)
    values, vectors = np.linalg.eig(basis.T @ flow.jacobian(u, schedule.rate) @ basis)
    order = np.argsort(-values.real, kind="stable")
    vectors = basis @ vectors
    residual = float(np.abs(flow.packed(u, schedule.rate)).max() / max(np.abs(u).max(), 1e-3))
    moments = Moments.unpack(u, flow.problem)
    return StationaryPoint(
        flow.problem, schedule, flow.batch, moments, values[order], vectors[:, order], residual, half_widths
    )


@dataclass(frozen=True)
class RateLimit:
    """The largest rate up to which a stationary point is there and stable.

    Attributes:
        value, error: of the rate; kind: "lost" (it ends, or runs off to infinity) or "unstable" (it goes on).
        last: the stationary point just below.
    """

    value: float
    error: float
    kind: str
    last: StationaryPoint


@step("the rate above which a solution is lost")
def rate_limit(
    problem: Problem, rate: float, start: Any, *, batch: Any = 1, accuracy: float = 1e-9, most: float = 1e4
) -> RateLimit:
    """Follow a stable stationary point from a rate up to where it is lost or unstable.

    Args:
        rate: to begin with; start: near the point there, as of `stationary`.
        accuracy: relative, of the last step in the rate that is tried; most: rate at which the search ends.

    Raises:
        InputError: gradient flow has no rate.
        NotConvergedError: there is no stable point at the first rate, or it is stable up to the last one.
    """
    refuse(problem)
    schedule, sentences = constant(rate, batch)
    if schedule.flow:
        raise InputError("rate flow: gradient flow has no rate that could be too large")
    first = stationary(problem, schedule, start, batch=batch)
    if not first.stable:
        raise NotConvergedError(f"the {first.branch} stationary point at rate {schedule.rate:g} is not stable")
    rules = sizes_for(problem)
    limits = []
    for rule in _two_rules(problem, first, schedule, sentences, rules):
        flow = Flow(problem, rule, sentences)
        limits.append(_followed(flow, first.moments.pack(), schedule.rate, accuracy, most))
    (value, kind, u), (coarse, _, _) = limits[-1], limits[0]
    error = 4 * accuracy * value + 1.5 * abs(value - coarse)
    here = at(flow, u, Schedule(value * (1 - 2 * accuracy)), np.full_like(u, np.nan))
    return RateLimit(value, error, kind, here)


def _two_rules(
    problem: Problem, first: StationaryPoint, schedule: Schedule, sentences: float, rules: tuple[AverageRule, ...]
) -> tuple[AverageRule, AverageRule]:
    """The coarsest two that agree at the first point."""
    u = first.moments.pack()
    for coarse, fine in pairwise(rules):
        values = [Flow(problem, rule, sentences).packed(u, schedule.rate) for rule in (coarse, fine)]
        if np.abs(values[0] - values[1]).max() <= 1e-8 * np.abs(u).max() * schedule.rate:
            return coarse, fine
    return rules[-2], rules[-1]


def _followed(flow: Flow, u: np.ndarray, rate: float, accuracy: float, most: float) -> tuple[float, str, np.ndarray]:
    """The last rate with a stable point, why it is the last, and the point there."""
    basis = possible(flow.problem)

    def tried(new: float, known: np.ndarray) -> tuple[np.ndarray | None, bool]:
        found = newton(flow, known, new)
        if found is None or not np.isfinite(found).all():
            return None, False
        values = np.linalg.eigvals(basis.T @ flow.jacobian(found, new) @ basis)
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
