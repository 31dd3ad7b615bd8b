"""Escape of descent from the uninformed state: growth rates of small overlaps, and escape times at finite d."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base.errors import InputError, NotConvergedError, require_in_interval, require_whole_number
from ...base.options import AlgorithmOptions
from ...base.presenting import PresentableResult
from ...base.progress import progress_step, report_remaining_work
from ...problems.columns import overlap_entries_by_column
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...saddle_point.starts import name_branch
from .flow import EquationsOfMotion
from .state import RANDOM, Moments, moments_of_start
from .stationary import (
    StationaryPoint,
    equations_with_agreeing_quadratures,
    find_stationary_moments_by_newton,
    require_constant_learning_rate,
    stationary_point_with_spectrum,
)

_SMALL = 2.0 ** -np.arange(3, 9)  # overlaps at which the order of the drift is fitted


@dataclass(frozen=True)
class EscapeOptions(AlgorithmOptions):
    """Options of the analysis of escape from the uninformed state.

    Attributes:
        named_fraction: size of an entry, relative to the largest, from which the text on a direction contains it.
        max_exponent: largest information exponent that is reported.
        drift_tolerance: speed at which zero overlaps grow, relative to that of the squared weights, above which the
            information exponent is 1.
    """

    named_fraction: float = 0.2
    max_exponent: int = 6
    drift_tolerance: float = 1e-6


@dataclass(frozen=True)
class OverlapGrowth:
    """A growth rate of small overlaps.

    Attributes:
        rate: growth rate per unit of time, an eigenvalue of the linearised equations of motion.
        words: text that names the overlaps that grow, such as 0.71 m_1 - 0.71 m_2.
    """

    rate: float
    words: str


@dataclass(frozen=True, repr=False)
class Escape(PresentableResult):
    """The dynamics close to zero overlaps: growth rates, information exponent and random starts.

    Attributes:
        point: the stationary point without overlaps.
        growths: growth rates of eigenvectors in which m or theta change, fastest first.
        information_exponent: order of the first term of the population loss in the overlaps with the teacher: 1 where
            the drift does not vanish at zero overlaps, 2 where it is linear in them; None if it is above 6.
        d: dimension of the random starts; None without any.
        threshold: cosine between weights and teacher, or means, at which a random start counts as escaped.
        times: escape time of every random start; infinite if it does not escape.
        branches: name of the branch at which every random start ends.

    Example:
        >>> found = sf.escape(sf.problem("phase_retrieval"), 0.01, d=1000, seeds=2)
        >>> len(found.times), found.branches
        (2, ('informed', 'informed'))
    """

    point: StationaryPoint
    growths: tuple[OverlapGrowth, ...]
    information_exponent: int | None
    d: int | None
    threshold: float
    times: np.ndarray
    branches: tuple[str, ...]

    @property
    def rate(self) -> float:
        """The largest growth rate; overlaps of order d^(-1/2) grow in a time of about log(d) / (2 rate)."""
        return max((growth.rate for growth in self.growths), default=-np.inf)

    @property
    def reached(self) -> dict[str, int]:
        """The number of random starts that ended on each branch, by its name."""
        return dict(Counter(self.branches))


@progress_step("escape from no overlap")
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
    """Linearise the dynamics at the uninformed state, and integrate them from random starts at finite d.

    A random start has the overlaps of a standard normal W of dimension d, of order d^(-1/2); the equations are those of
    infinite d. They predict a simulation at dimension d up to the noise of its steps.

    Args:
        problem: the problem.
        rate: constant learning rate, or flow.
        d: dimension of the random starts; without it there are none.
        seeds: number of random starts.
        first: seed of the first random start.
        time: time of integration.
        batch: samples per step.
        threshold: cosine between weights and teacher, or weights and means, at which a random start has escaped.
        accuracy: relative accuracy of the averages.

    Raises:
        InputError: descent has no closed equations, or an argument is out of range.
        NotConvergedError: there is no stationary point without overlaps.

    Example:
        >>> found = sf.escape(sf.problem("phase_retrieval"), 0.01)
        >>> found.information_exponent, round(found.rate, 4)
        (2, 0.0395)
    """
    schedule, sentences = require_constant_learning_rate(problem, rate, batch)
    if d is not None:
        require_whole_number("d", d, 2)
    require_whole_number("seeds", seeds, 1)
    require_in_interval("threshold", threshold, "(0, 1)")
    require_in_interval("time", time, "(0, inf)")
    # A random start with overlaps, at which the slopes of two rules are compared.
    random_start = draw_moments_of_gaussian_weights(problem, 30, 0).pack()
    _, flow = equations_with_agreeing_quadratures(
        problem, sentences, random_start, schedule.rate, lambda slope: accuracy * np.abs(slope).max()
    )
    u = _find_uninformed_stationary_point(flow, schedule.rate)
    point = stationary_point_with_spectrum(flow, u, schedule, np.full_like(u, np.nan))
    exponent = _information_exponent(flow, point)
    found: list[tuple[float, str]] = []
    if d is not None:
        for number in range(seeds):
            report_remaining_work(f"draw {number + 1} of {seeds}")
            begin = draw_moments_of_gaussian_weights(problem, d, first + number)
            found.append(_integrate_random_start(flow, begin, schedule.rate, time, threshold, accuracy))
    times, branches = np.array([when for when, _ in found]), tuple(branch for _, branch in found)
    return Escape(point, _growth_rates(point), exponent, d, threshold, times, branches)


def draw_moments_of_gaussian_weights(problem: Problem, d: int, seed: int) -> Moments:
    """Draw standard normal weights W of dimension d at random, and return their second moments.

    Args:
        problem: the problem.
        d: dimension.
        seed: seed of the draw.

    Raises:
        InputError: d is too small to contain the means and the teacher.
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
                f"d = {d} is too small: an eigenvalue of the spectrum has a space of {count} dimensions, and the means "
                f"and the teacher need {rank}; take a larger d"
            )
        along = generator.standard_normal((rank, s))
        # The part orthogonal to (tau, pi): a Wishart matrix by Bartlett's decomposition.
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
    phi = moments_of_start(problem, RANDOM)[1].phi
    return Moments(np.array(S), np.swapaxes(z[..., :contexts], 1, 2), z[..., contexts:], phi)


def _find_uninformed_stationary_point(flow: EquationsOfMotion, rate: float) -> np.ndarray:
    """Return the packed moments of the stationary point of descent with zero overlaps m and theta.

    Raises:
        NotConvergedError: overlaps grow from zero, or there is no such point.
    """
    problem = flow.problem
    nothing = moments_of_start(problem, RANDOM)[1]
    slope = flow.moment_derivatives(nothing, rate)
    size = max(float(np.abs(slope.S).max()), rate * 1e-6)
    if (
        max(np.abs(slope.T).max(initial=0.0), np.abs(slope.P).max(initial=0.0))
        > EscapeOptions.current().drift_tolerance * size
    ):
        raise NotConvergedError(
            f"{problem.solver.name}: overlaps grow from zero at once (information exponent 1), so that there is no "
            "uninformed state to escape from; integrate with sf.dynamics"
        )
    u = find_stationary_moments_by_newton(flow, nothing.pack(), rate)
    if u is None or name_branch(problem, Moments.unpack(u, problem).overlaps(problem)) != "uninformed":
        raise NotConvergedError(
            f"{problem.solver.name}: Newton's method finds no stationary point with zero overlaps near a random start; "
            "try a smaller rate"
        )
    return u


def _growth_rates(point: StationaryPoint) -> tuple[OverlapGrowth, ...]:
    """Return the growth rates of small overlaps m and theta at a stationary point, fastest first."""
    problem, found = point.problem, []
    for value, direction in zip(point.eigenvalues, point.directions.T, strict=True):
        along = Moments.unpack(np.real(direction), problem)
        overlaps = along.overlaps(problem)
        size = max(np.abs(overlaps.m).max(initial=0.0), np.abs(overlaps.theta).max(initial=0.0))
        if size > 1e-6 * np.abs(direction).max():
            found.append(OverlapGrowth(float(value.real), _describe_overlap_direction(problem, overlaps)))
    return tuple(sorted(found, key=lambda growth: -growth.rate))


def _describe_overlap_direction(problem: Problem, overlaps: Overlaps) -> str:
    """Return text on the largest entries of m and theta in a growing direction, such as 0.71 m_1 - 0.71 m_2."""
    entries = {k: v for k, v in overlap_entries_by_column(problem, overlaps).items() if k.startswith(("m", "theta"))}
    size = np.sqrt(sum(value**2 for value in entries.values()))
    sign = np.sign(max(entries.values(), key=abs))
    named = [(name, sign * value / size) for name, value in entries.items()]
    largest = max(abs(value) for _, value in named)
    kept = [(name, value) for name, value in named if abs(value) > EscapeOptions.current().named_fraction * largest]
    text = " ".join(f"{'-' if value < 0 else '+'} {abs(value):.2f} {name}" for name, value in kept)
    return text.removeprefix("+ ")


def _information_exponent(flow: EquationsOfMotion, point: StationaryPoint) -> int | None:
    """Return the information exponent, or None if it cannot be determined.

    It is 1 plus the power of the overlap theta with which the motion of theta towards the teacher begins. The decay of
    theta that is independent of the teacher is subtracted from its motion.
    """
    rate = point.rate.rate
    base = point.moments
    if not base.P.size:
        return None
    scale = np.sqrt(np.abs(base.S).max())
    A, _ = flow.weight_drift_and_averages(base)
    pulls = []
    for small in _SMALL:
        P = np.zeros_like(base.P)
        P[:, 0, 0] = small * scale
        moved = Moments(base.S, base.T, P, base.phi)
        drift = flow.moment_derivatives(moved, rate).P + rate * A.A @ P
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
    return order + 1 if order + 1 <= EscapeOptions.current().max_exponent and abs(orders[-1] - order) < 0.2 else None


def _largest_overlap_cosine(problem: Problem, overlaps: Overlaps) -> float:
    """Return the largest cosine of an angle between weights and teacher, or weights and means, from the overlaps."""
    law = problem.law
    q = np.diagonal(overlaps.q, axis1=1, axis2=2)
    rho = np.diagonal(law.rho_star, axis1=1, axis2=2)
    tau = np.einsum("a,aii->i", law.weights, law.gram)[: problem.contexts]
    size = np.sqrt(np.maximum(q, 1e-300))
    with np.errstate(invalid="ignore", divide="ignore"):
        theta = np.abs(overlaps.theta) / (size[:, :, None] * np.sqrt(rho)[:, None, :])
        m = np.abs(overlaps.m) / (size / np.sqrt(law.rho)[:, None] * np.sqrt(tau)[:, None])
    return float(max(np.nan_to_num(theta).max(initial=0.0), np.nan_to_num(m, posinf=0.0).max(initial=0.0)))


def _integrate_random_start(
    flow: EquationsOfMotion, begin: Moments, rate: float, time: float, threshold: float, accuracy: float
) -> tuple[float, str]:
    """Return the time at which descent from a random start escapes, and the name of the branch where it ends.

    It escapes where the largest cosine between weights and teacher, or weights and means, passes the threshold.
    """
    from scipy.integrate import solve_ivp

    problem = flow.problem

    def cosine_threshold_event(_: float, u: np.ndarray) -> float:
        """Return the largest cosine between weights and teacher, or means, minus the threshold of escape."""
        return _largest_overlap_cosine(problem, Moments.unpack(u, problem).overlaps(problem)) - threshold

    cosine_threshold_event.direction = 1.0  # type: ignore[attr-defined]
    u = begin.pack()
    with np.errstate(all="ignore"):
        found = solve_ivp(
            lambda _, at_u: flow.packed_moment_derivatives(at_u, rate), (0.0, time), u, method="DOP853", rtol=accuracy /
                10,
            atol=accuracy / 1e4 * np.abs(u).max(), events=cosine_threshold_event,
        )  # fmt: skip
    when = (
        float(found.t_events[0][0])
        if len(found.t_events[0])
        else (0.0 if cosine_threshold_event(0.0, u) > 0 else np.inf)
    )
    end = found.y[:, -1]
    if not found.success or not np.isfinite(end).all():
        return when, "diverged"
    return when, name_branch(problem, Moments.unpack(end, problem).overlaps(problem))
