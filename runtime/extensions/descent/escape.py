"""Leaving the uninformed state: what grows there and how fast, and when overlaps of order d^(-1/2) have grown."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base.errors import InputError, NotConvergedError, require_in, require_whole
from ...base.presenting import Result
from ...base.progress import left, step
from ...problems.columns import block_columns
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...saddle_point.starts import branch_of
from .flow import Flow
from .state import RANDOM, Moments, start_of
from .stationary import StationaryPoint, agreeing, at, constant, newton

_LEAST_SHARE = 0.2  # of the largest entry: what words about a direction name
_MOST_EXPONENT = 6
_SMALL = 2.0 ** -np.arange(3, 9)  # overlaps at which the order of the drift is read off
_SAME_GROWTH = 1e-6


@dataclass(frozen=True)
class Growth:
    """An eigenvector of the linearised equations in which overlaps take part: its rate per unit of time, in words."""

    rate: float
    words: str


@dataclass(frozen=True, repr=False)
class Escape(Result):
    """What happens next to no overlap.

    Attributes:
        point: the stationary point without overlaps. growths: of its eigenvectors that hold m or theta, fastest first.
        information_exponent: order of the first term of the population loss in the overlaps with the teacher: 1 where
            the drift does not vanish without overlaps, 2 where it is linear in them; None where none up to 6 shows.
        d, threshold: of the draws; None, and nothing below, without a d.
        times, branches: when each passes the threshold (infinity where it does not), and what it has reached at last.

    Example:
        >>> found = sf.escape(sf.problem("phase_retrieval"), 0.01, d=1000, seeds=2)
        >>> len(found.times), found.branches
        (2, ('semantic', 'semantic'))
    """

    point: StationaryPoint
    growths: tuple[Growth, ...]
    information_exponent: int | None
    d: int | None
    threshold: float
    times: np.ndarray
    branches: tuple[str, ...]

    @property
    def rate(self) -> float:
        """Of the fastest growth; overlaps of order d^(-1/2) need about log(d) / (2 rate)."""
        return max((growth.rate for growth in self.growths), default=-np.inf)

    @property
    def reached(self) -> dict[str, int]:
        """How many draws have reached what."""
        return dict(Counter(self.branches))


@step("escape from no overlap")
def escape(
    problem: Problem,
    rate: Any,
    *,
    d: int | None = None,
    seeds: int = 16,
    first: int = 0,
    time: float = 200.0,
    batch: Any = 1,
    threshold: float = 0.1,
    accuracy: float = 1e-4,
) -> Escape:
    """The uninformed state, linearised, and draws of a random start at finite d followed from it.

    A draw takes the overlaps that W standard normal of d rows has, of order d^(-1/2), as its start; the equations are
    those of infinite d. The draws are told what a simulation at d does up to the noise of its steps.

    Args:
        rate: constant, or flow. time: how long draws are followed. threshold: of the largest cosine,
            |theta| / sqrt(q rho*) or |m| / sqrt(q E[tau^2] / rho), that a draw is to pass.
        accuracy: of the rule for averages.

    Raises:
        InputError: the dynamics do not close, or an argument is out of range.
        NotConvergedError: there is no stationary point without overlaps.

    Example:
        >>> found = sf.escape(sf.problem("phase_retrieval"), 0.01)
        >>> found.information_exponent, round(found.rate, 4)
        (2, 0.0395)
    """
    schedule, sentences = constant(problem, rate, batch)
    if d is not None:
        require_whole("d", d, 2)
    require_whole("seeds", seeds, 1)
    require_in("threshold", threshold, "(0, 1)")
    require_in("time", time, "(0, inf)")
    # A random start with overlaps, at which the slopes of two rules tell whether the finer one will do.
    some = drawn(problem, 30, 0).pack()
    _, flow = agreeing(problem, sentences, some, schedule.rate, lambda slope: accuracy * np.abs(slope).max())
    u = _without_overlaps(flow, schedule.rate)
    point = at(flow, u, schedule, np.full_like(u, np.nan))
    exponent = _information_exponent(flow, point)
    found: list[tuple[float, str]] = []
    if d is not None:
        for number in range(seeds):
            left(f"draw {number + 1} of {seeds}")
            begin = drawn(problem, d, first + number)
            found.append(_followed(flow, begin, schedule.rate, time, threshold, accuracy))
    times, branches = np.array([when for when, _ in found]), tuple(branch for _, branch in found)
    return Escape(point, _growths(point), exponent, d, threshold, times, branches)


def drawn(problem: Problem, d: int, seed: int) -> Moments:
    """Moments of W standard normal of d rows, (tau, pi) having their Gram matrix exactly, as simulations have it.

    Raises:
        InputError: d is too small for the law.
    """
    law, contexts, s = problem.law, problem.contexts, problem.student_rank
    generator = np.random.default_rng([seed, d, 27])
    S, with_z = [], []
    for weight, gram in zip(law.weights, law.gram, strict=True):
        values, vectors = np.linalg.eigh(gram)
        kept = values > 1e-12 * max(values[-1], 1e-300)
        factor = vectors[:, kept] * np.sqrt(values[kept])
        count, rank = max(1, round(weight * d)), int(kept.sum())
        if count < rank:
            raise InputError(
                f"d = {d} leaves {count} coordinates to a spectral atom of {rank} directions; take a larger d"
            )
        along = generator.standard_normal((rank, s))
        # What is orthogonal to (tau, pi): a Wishart matrix by Bartlett's decomposition.
        rest = count - rank
        other = np.zeros((s, s))
        if rest < s:
            columns = generator.standard_normal((rest, s))
            other = columns.T @ columns
        else:
            lower = np.tril(generator.standard_normal((s, s)), -1)
            lower[np.diag_indices(s)] = np.sqrt(generator.chisquare(rest - np.arange(s)))
            other = lower @ lower.T
        S.append((along.T @ along + other) / count)
        with_z.append((factor @ along).T / np.sqrt(count))
    z = np.array(with_z)
    phi = start_of(problem, RANDOM)[1].phi
    return Moments(np.array(S), np.swapaxes(z[..., :contexts], 1, 2), z[..., contexts:], phi)


def _without_overlaps(flow: Flow, rate: float) -> np.ndarray:
    """The stationary point next to a random start, overlaps held at zero.

    Raises:
        NotConvergedError: overlaps grow without a seed, or there is none.
    """
    problem = flow.problem
    nothing = start_of(problem, RANDOM)[1]
    slope = flow.slope(nothing, rate)
    size = max(float(np.abs(slope.S).max()), rate * 1e-6)
    if max(np.abs(slope.T).max(initial=0.0), np.abs(slope.P).max(initial=0.0)) > _SAME_GROWTH * size:
        raise NotConvergedError(
            f"{problem.solver.name}: overlaps grow from none at once (information exponent 1): there is nothing to "
            "escape from"
        )
    u = newton(flow, nothing.pack(), rate)
    if u is None or branch_of(Moments.unpack(u, problem).overlaps(problem)) != "uninformed":
        raise NotConvergedError(f"{problem.solver.name}: no stationary point without overlaps is near a random start")
    return u


def _growths(point: StationaryPoint) -> tuple[Growth, ...]:
    """Of the eigenvectors along which m or theta move."""
    problem, found = point.problem, []
    for value, direction in zip(point.eigenvalues, point.directions.T, strict=True):
        along = Moments.unpack(np.real(direction), problem)
        overlaps = along.overlaps(problem)
        size = max(np.abs(overlaps.m).max(initial=0.0), np.abs(overlaps.theta).max(initial=0.0))
        if size > 1e-6 * np.abs(direction).max():
            found.append(Growth(float(value.real), _words(problem, overlaps)))
    return tuple(sorted(found, key=lambda growth: -growth.rate))


def _words(problem: Problem, overlaps: Overlaps) -> str:
    """The entries of m and theta that a direction moves most, as 0.71 m_1 - 0.71 m_2."""
    entries = {k: v for k, v in block_columns(problem, overlaps).items() if k.startswith(("m", "theta"))}
    size = np.sqrt(sum(value**2 for value in entries.values()))
    sign = np.sign(max(entries.values(), key=abs))
    named = [(name, sign * value / size) for name, value in entries.items()]
    largest = max(abs(value) for _, value in named)
    kept = [(name, value) for name, value in named if abs(value) > _LEAST_SHARE * largest]
    text = " ".join(f"{'-' if value < 0 else '+'} {abs(value):.2f} {name}" for name, value in kept)
    return text.removeprefix("+ ")


def _information_exponent(flow: Flow, point: StationaryPoint) -> int | None:
    """1 + the order at which the drift of theta along itself sets in, beyond what the norm of W alone does.

    The drift of an overlap that the loss does not see is -(A) theta with the A of no overlap; what is left is the pull
    toward the teacher, a power of theta.
    """
    rate = point.rate.rate
    base = point.moments
    if not base.P.size:
        return None
    scale = np.sqrt(np.abs(base.S).max())
    A, _ = flow.at(base)
    pulls = []
    for small in _SMALL:
        P = np.zeros_like(base.P)
        P[:, 0, 0] = small * scale
        moved = Moments(base.S, base.T, P, base.phi)
        drift = flow.slope(moved, rate).P + rate * A.A @ P
        pulls.append(float(np.abs(drift).max()))
    values = np.array(pulls)
    floor = 1e-10 * rate * scale
    if values[-1] <= floor and values[0] <= floor:
        return None
    known = values > 10 * floor
    if known.sum() < 2:
        return None
    orders = -np.diff(np.log2(values[known]))
    order = round(float(orders[-1]))
    return order + 1 if order + 1 <= _MOST_EXPONENT and abs(orders[-1] - order) < 0.2 else None


def _cosine(problem: Problem, overlaps: Overlaps) -> float:
    """The largest of |theta| / sqrt(q rho*) and |m| / sqrt(q / rho E[tau^2])."""
    law = problem.law
    q = np.diagonal(overlaps.q, axis1=1, axis2=2)
    rho = np.diagonal(law.rho_star, axis1=1, axis2=2)
    tau = np.einsum("a,aii->i", law.weights, law.gram)[: problem.contexts]
    size = np.sqrt(np.maximum(q, 1e-300))
    with np.errstate(invalid="ignore", divide="ignore"):
        theta = np.abs(overlaps.theta) / (size[:, :, None] * np.sqrt(rho)[:, None, :])
        m = np.abs(overlaps.m) / (size / np.sqrt(law.rho)[:, None] * np.sqrt(tau)[:, None])
    return float(max(np.nan_to_num(theta).max(initial=0.0), np.nan_to_num(m, posinf=0.0).max(initial=0.0)))


def _followed(
    flow: Flow, begin: Moments, rate: float, time: float, threshold: float, accuracy: float
) -> tuple[float, str]:
    """When the cosine passes the threshold, and what is reached at the end."""
    from scipy.integrate import solve_ivp

    problem = flow.problem

    def passing(_: float, u: np.ndarray) -> float:
        return _cosine(problem, Moments.unpack(u, problem).overlaps(problem)) - threshold

    passing.direction = 1.0  # type: ignore[attr-defined]
    u = begin.pack()
    with np.errstate(all="ignore"):
        found = solve_ivp(
            lambda _, at_u: flow.packed(at_u, rate), (0.0, time), u, method="DOP853", rtol=accuracy / 10,
            atol=accuracy / 1e4 * np.abs(u).max(), events=passing,
        )  # fmt: skip
    when = float(found.t_events[0][0]) if len(found.t_events[0]) else (0.0 if passing(0.0, u) > 0 else np.inf)
    end = found.y[:, -1]
    if not found.success or not np.isfinite(end).all():
        return when, "diverged"
    return when, branch_of(Moments.unpack(end, problem).overlaps(problem))
