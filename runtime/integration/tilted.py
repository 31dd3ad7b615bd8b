"""Averages of one-step replica symmetry breaking over the channel, of losses that read one student field.

At omega_0 and Y, with omega = omega_0 + z and z ~ N(0, Delta), <.> is the average over z tilted by exp(-y M), and
f_1 = (1/y) log E_z exp(-y M) (docs/theory.md section 18).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..channel.fields import Fields, fields_of, overlaps_of
from ..channel.nodes import gauss_legendre, highest_coefficients
from ..channel.points import noise_choices, points_at
from ..errors import DomainError
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.reduced import ReducedProblem, integrated
from ..problems.solver import loops
from .pieces import LONGEST, REACH, Pieces, between_steps, features_at
from .rule import moments_by_context
from .sampled import TeacherRule

_LENGTH = 2.5  # of a panel, in widths of what is integrated over it
_HALVINGS = 14  # of a panel
_LEAST = 1e-7  # of q_0: the root of a smaller Delta takes too many nodes to resolve
_LIGHT = 1e-18  # of the heaviest line


@dataclass(frozen=True)
class TiltedAverages:
    """Averages over omega_0, Y and noise.

    Attributes:
        moments: (2, C, row), the generated MOMENTS with <g> in place of g and omega_0 of omega; in the second set
            <g g^T> is averaged where the first has <g><g>^T.
        free, moreau, loss: E[f_1], E[<M>] and E[<loss(X_prox)>].
        bistable: probability, tilted, that a second minimum was seen.
        squares: E[G (x) G] of G~ = d<g>/domega_0, and E[<G (x) G>] of G = dg/domega where the proximal map is smooth,
            as of `JacobianAverages.square`; empty where they were not asked for.
        mass: total weight, 1 for an exact rule.
    """

    moments: np.ndarray
    free: float
    moreau: float
    loss: float
    bistable: float
    squares: tuple[np.ndarray, ...]
    mass: float


@dataclass(frozen=True)
class _Lines:
    """omega along N values of what the loss knows of Y and noise.

    Attributes:
        known: features, (N, values of the labelled noise, F); y (N, t), noise (N, U): coordinates of Y and of Gaussian
            noise.
        centre: of omega_0, (N,), whose law is normal with this `spread`; weight: (N,).
        between: where Y lies, (N, 2), in units of its spread beside its mean; None where it is `y`.
    """

    known: np.ndarray
    y: np.ndarray
    noise: np.ndarray
    centre: np.ndarray
    spread: float
    weight: np.ndarray
    between: np.ndarray | None


def suits(problem: Problem) -> bool:
    """Whether the loss reads one student field, on lines that are not too many."""
    return Pieces.suits(problem)


def tilted_averages(
    problem: Problem, overlaps: Overlaps, distance: np.ndarray, rate: float, rule: Pieces, slopes: bool = False
) -> TiltedAverages:
    """Averages at q_0, V, m, theta (as `overlaps`), Delta (`distance`, (C, s, s)) and the Parisi parameter y (`rate`).

    Args:
        slopes: whether squares of slopes are asked for.

    Raises:
        DomainError: outside the domain of the overlaps, or Delta is not positive definite.
    """
    part = integrated(problem)
    if not isinstance(part, ReducedProblem):
        return _averages(part, overlaps, distance, rate, rule, slopes)
    read = part.combinations
    found = _averages(part, overlaps_of(part, overlaps), read.squared(distance), rate, rule, slopes)
    regression, _ = read.regression(overlaps)
    own, asked = part.solver.channel, problem.solver.channel
    moments = read.moments(found.moments, regression, own.MOMENTS, asked.MOMENTS, asked.ROW)
    return replace(found, moments=moments, squares=tuple(read.square(square) for square in found.squares))


def _averages(
    problem: Problem, overlaps: Overlaps, distance: np.ndarray, rate: float, rule: Pieces, slopes: bool
) -> TiltedAverages:
    """The same over all fields of the problem: one token, one column."""
    if not np.all(distance > _LEAST * overlaps.q):
        raise DomainError("Delta is not positive definite, or too small to be told from zero")
    channel = problem.solver.channel
    rows: list[list[np.ndarray]] = [[], []]
    totals = np.zeros(5)
    squares: list[list[np.ndarray]] = [[], []]
    for labels, probability in problem.label_choices:
        fields = fields_of(problem, overlaps, labels)
        variance = float(distance[problem.context_of(labels)][0, 0, 0])
        sums = _on_lines(problem, fields, _lines(problem, fields, rule), variance, rate, rule, slopes)
        free, moreau, loss, bistable, mass, mean, along, between, within, smooth, whole = sums[:_SUMS]
        with_teacher = sums[_SUMS : _SUMS + problem.teacher_rank]
        for out, square in zip(rows, (between, within), strict=True):
            known = {"g": mean, "g*dY.T": with_teacher, "g*domega.T": along, "g*g.T": square}
            row = np.zeros(channel.ROW)
            for text, shape, at in channel.MOMENTS:
                row[at : at + int(np.prod(shape))] = known[text]
            out.append(row)
        totals += probability * np.array([free, moreau, loss, bistable, mass])
        for out, square in zip(squares, (smooth, whole), strict=True):
            out.append(np.full((1,) * 6, square))
    moments = np.stack([moments_by_context(problem, each, channel.ROW) for each in rows])
    known_squares = tuple(np.stack(each)[None] for each in squares) if slopes else ()
    free, moreau, loss, bistable, mass = map(float, totals)
    return TiltedAverages(moments, free, moreau, loss, bistable, known_squares, mass)


def _lines(problem: Problem, fields: Fields, rule: Pieces) -> _Lines:
    """Those that a rule takes."""
    mean, slope = float(fields.field_mean[0, 0]), fields.field_from_teacher[0, 0]
    own = float(fields.field_factor[0, 0, 0])
    at, factor = fields.teacher_mean[0], fields.teacher_factor[0]
    if problem.solver.proximal.TEACHER_STEPS:
        places, inside = between_steps(problem, fields)
        between = np.stack([places[:-1], places[1:]], axis=1)
        y, noise = inside[:, None], np.zeros((len(between), 0))
        centre, spread, weight = np.full(len(y), mean), float(np.hypot(slope[0], own)), np.ones(len(y))
    else:
        known = TeacherRule.of(problem, fields, rule.outer, equidistant=True)
        heavy = known.weights > _LIGHT * known.weights.max()
        y, noise = np.split(known.nodes[heavy], [problem.teacher_rank], axis=1)
        centre, spread, weight, between = mean + y @ slope, own, known.weights[heavy], None
    features = features_at(problem, fields, at + y @ factor.T, noise * problem.noise_scale)
    return _Lines(features, y, noise, centre, spread, weight, between)


_SUMS = 11  # over lines: f_1, <M>, <loss>, bistable, mass, <g>, <g> omega_0, <g>^2, <g^2>, G~^2, <G^2>; then <g> Y


def _on_lines(
    problem: Problem, fields: Fields, lines: _Lines, variance: float, rate: float, rule: Pieces, slopes: bool
) -> np.ndarray:
    """Sums over all lines."""
    V = float(fields.variance[0, 0, 0])
    width = float(np.sqrt(min(variance, V / rate)))
    spread = float(np.sqrt(lines.spread**2 + variance))
    row, z, share = rule.panels(
        problem, fields, lines.known, lines.centre, np.full(len(lines.centre), spread), longest=_LENGTH * width / spread
    )
    order = np.lexsort((z, row))
    row, z, share = row[order], z[order], share[order]
    rows = np.searchsorted(row, np.arange(len(lines.centre) + 1))
    lengths = share * np.exp(z * z / 2) * np.sqrt(2 * np.pi) * spread
    omega = lines.centre[row] + spread * z
    # Coordinates of the nodes: Y and noise as they are, omega by what is left.
    centre = fields.field_mean[0, 0] + lines.y @ fields.field_from_teacher[0, 0]
    along = (omega - centre[row]) / fields.field_factor[0, 0, 0]
    nodes = np.concatenate([lines.y[row], along[:, None], lines.noise[row]], axis=1)
    sums = np.zeros(_SUMS + problem.teacher_rank)
    for choice in noise_choices(problem):
        points = points_at(problem, fields, nodes, choice=choice)
        g, x = points.g[:, 0, 0], points.x[:, 0, 0]
        smooth = _slopes(problem, fields, omega, lines.known[row, choice]) if slopes else np.zeros(len(z))
        loss = points.value - (x - omega) ** 2 / (2 * V)
        columns = np.stack([g, g * g, points.value, loss, points.minima > 1, smooth**2], axis=1)
        chance = _chances(problem, fields, lines, choice)

        averages = partial(_tilted, rows, omega, lengths, points.value, rate, variance, g, columns)
        for which, z_0, share, out in _halved(averages, lines, _LENGTH * width / lines.spread, rule):
            mean, free, drift, with_g, _, square, moreau, loss, bistable, whole = np.moveaxis(out, -1, 0)
            weight = share * (lines.weight * chance)[which][:, None]
            if lines.between is None:
                teachers = (lines.y @ fields.teacher_factor[0].T)[which][:, None]
            else:
                low, high = lines.between[which].T[:, :, None]
                within, teachers = _between(fields, z_0, low, high)
                weight, teachers = weight * within, teachers[..., None]
            response = (with_g - drift * mean) / variance
            apart = lines.centre[which][:, None] + lines.spread * z_0 - fields.field_mean[0, 0]
            ones = np.ones(z_0.shape)
            values = free, moreau, loss, bistable, ones, mean, mean * apart, mean**2, square, response**2, whole
            rest = np.broadcast_to(mean[..., None] * teachers, (*z_0.shape, problem.teacher_rank))
            sums += (weight[..., None] * np.concatenate([np.stack(values, axis=-1), rest], axis=-1)).sum(axis=(0, 1))
    return sums


def _tilted(*known: Any) -> np.ndarray:
    """<g>, f_1, <z>, <z g> and <columns> at places (P, n), (P, n, ...), see `loops.tilted`; columns begin with g."""
    columns, _, places = known[-3:]
    free, out = np.empty(places.shape), np.empty((*places.shape, 2 + columns.shape[1]))
    loops("tilted").tilted(*known, free, out)
    return np.concatenate([out[..., 2:3], free[..., None], out], axis=-1)


def _halved(
    averages: Callable[[np.ndarray, np.ndarray], np.ndarray], lines: _Lines, longest: float, rule: Pieces
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Panels of omega_0, halved until <g> is a polynomial there: it changes fast where two wells change places.

    Args:
        averages: of lines (P,) at places (P, n), (P, n, ...) with <g> first; longest: panel, in units of the spread.

    Yields:
        Numbers of the lines (P,), z_0 = (omega_0 - centre) / spread and weights (P, n), and the averages.
    """
    t, w = gauss_legendre(rule.points)
    count = int(np.ceil(2 * REACH / min(longest, LONGEST)))
    ends = np.linspace(-REACH, REACH, count + 1)
    which = np.repeat(np.arange(len(lines.centre)), count)
    low, high = np.tile(ends[:-1], len(lines.centre)), np.tile(ends[1:], len(lines.centre))
    largest = 0.0
    for level in range(_HALVINGS + 1):
        middle, half = (low + high) / 2, (high - low) / 2
        z = middle[:, None] + half[:, None] * t
        found = averages(which, lines.centre[which][:, None] + lines.spread * z)
        share = half[:, None] * w * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
        largest = max(largest, float(np.abs(found[..., 0]).max()))
        tail = np.abs(found[..., 0] @ highest_coefficients(rule.points).T).max(axis=1) / largest
        nearest = np.clip(0.0, low, high)
        open_ = tail * half * np.exp(-nearest * nearest / 2) > rule.resolution
        if level == _HALVINGS:
            open_[:] = False
        yield which[~open_], z[~open_], share[~open_], found[~open_]
        if not open_.any():
            return
        which, low, middle, high = (np.concatenate([each[open_]] * 2) for each in (which, low, middle, high))
        left = np.arange(len(which)) < len(which) // 2
        low, high = np.where(left, low, middle), np.where(left, middle, high)


def _chances(problem: Problem, fields: Fields, lines: _Lines, choice: int) -> np.ndarray:
    """Probability of a value of the labelled noise on every line."""
    if not problem.solver.channel.LABELLED_NOISE:
        return np.ones(len(lines.y))
    teachers = fields.teacher_mean[0] + lines.y @ fields.teacher_factor[0].T
    return problem.solver.labelled.noise_law_at(np.ascontiguousarray(teachers), fields.constants)[:, choice]


def _slopes(problem: Problem, fields: Fields, omega: np.ndarray, known: np.ndarray) -> np.ndarray:
    """dg/domega at omega (N,), for features (N, F)."""
    _, found = problem.solver.proximal.proximal_at(
        omega[:, None], fields.precision, fields.variance, known, fields.constants, problem.search
    )
    return found[:, 0, 0]


def _between(fields: Fields, beside: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probability that Y lies in an interval, given omega_0, and the average of Y - E[Y] there.

    Args:
        beside: omega_0 in units of its spread, beside its mean; low, high: of Y, likewise.
    """
    slope, own = float(fields.field_from_teacher[0, 0, 0]), float(fields.field_factor[0, 0, 0])
    shared, width = slope / np.hypot(slope, own), own / np.hypot(slope, own)
    a, b = (low - shared * beside) / width, (high - shared * beside) / width
    chance = loops("between").measures(a.ravel(), b.ravel()).reshape(a.shape)
    density = (np.exp(-a * a / 2) - np.exp(-b * b / 2)) / np.sqrt(2 * np.pi)
    mean = shared * beside + width * np.divide(density, chance, out=np.zeros_like(chance), where=chance > 1e-300)
    return chance, float(fields.teacher_factor[0, 0, 0]) * mean
