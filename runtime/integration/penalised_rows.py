"""Averages of one-step replica symmetry breaking over a row of W with any penalty, one column.

At b^0 and the teacher's row, with b = b^0 + z and z ~ N(0, D), <.> is the average over z tilted by exp(y N(b)), N the
maximum over w of w b - G w^2 / 2 - r(w) (docs/theory.md (18.9), (18.17)). -N and w are to a row what M and g are to a
sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from ..channel.nodes import gauss_legendre, highest_coefficients, tensor, trapezoid
from ..errors import DomainError
from ..problems.overlaps import Conjugates
from ..problems.problem import Problem
from ..problems.solver import loops
from .pieces import REACH, Pieces
from .tilted import PANEL, Scale, halved, tilted_at

_HALVINGS = 40  # of a panel of b: w(b) bends at corners
_DOUBLINGS = 40  # of the line
_LONGEST = 0.5  # panel of b^0 to begin with, in its spread: <w> bends near corners alone
_LIGHT = 1e-18  # of a node in what the penalty knows of the teacher's row


class Minimum(NamedTuple):
    """Rows at fields (N,): w, r(w), J = dw/db and N(b)."""

    w: np.ndarray
    penalty: np.ndarray
    response: np.ndarray
    value: np.ndarray


Minimiser = Callable[[np.ndarray, np.ndarray], Minimum]
"""From fields b (N,), and what the penalty knows of the teacher's row (N, KNOWN)."""


@dataclass(frozen=True)
class RowAverages:
    """Of one spectral atom.

    Attributes:
        between, within: E[<w>^2] and E[<w^2>]; slope: E[d<w>/db^0]; with_fields: E[<w> z], z = (tau, pi), (C + t,).
        free: E[(1 / y) log E_z exp(y N)]; value, penalty: E[<N>], E[<r>].
        squares: E[(d<w>/db^0)^2] and E[<J^2>], (2,).
    """

    between: float
    within: float
    slope: float
    with_fields: np.ndarray
    free: float
    value: float
    penalty: float
    squares: np.ndarray


def penalised_rows(
    problem: Problem, outer: Conjugates, inner: Conjugates, rate: float, rule: Pieces
) -> list[RowAverages]:
    """Of every atom, at V~^, q_0^, m^ and theta^ (`outer`), V^ and q_1^ (`inner`) and the Parisi parameter y (`rate`).

    Raises:
        DomainError: no such averages exist.
    """
    law, known = problem.law, problem.solver.penalty.KNOWN
    found = []
    for gamma, gram in zip(law.gamma, law.gram, strict=True):
        stiffness, spread, apart = (
            float(gamma @ block[:, 0, 0]) for block in (inner.V, outer.q, inner.q - outer.q)
        )  # fmt: skip
        field = np.concatenate([outer.m[:, 0], gamma @ outer.theta[:, 0]])[None]
        covariance = np.empty((known + 1, known + 1))
        cross = np.empty((known + 1, gram.shape[0]))
        loops("weight_rows").covariances(len(gamma), gram, field, np.array([[spread]]), covariance, cross)
        minimiser = partial(_minimum, problem, stiffness)
        found.append(row_averages(minimiser, covariance, cross, apart, rate, rule))
    return found


def _minimum(problem: Problem, stiffness: float, b: np.ndarray, known: np.ndarray) -> Minimum:
    """By the generated penalty, at G.

    Raises:
        DomainError: r(w) + G w^2 / 2 is not strictly convex.
    """
    penalty = problem.solver.penalty
    matrix = np.full((len(b), 1, 1), stiffness)
    rows, responses = penalty.minimisers_at(b[:, None], matrix, known, problem.strengths)
    if np.isnan(rows).any():
        raise DomainError("the regulariser with G = sum gamma V^ is not strictly convex")
    w, r = rows[:, 0], penalty.penalties_at(rows, known, problem.strengths)[0]
    return Minimum(w, r, responses[:, 0, 0], w * b - stiffness * w * w / 2 - r)


def row_averages(
    minimiser: Minimiser, covariance: np.ndarray, cross: np.ndarray, variance: float, rate: float, rule: Pieces
) -> RowAverages:
    """Of a row given by its minimum at a field.

    Args:
        covariance: of (pi, b^0), pi what the penalty knows, (KNOWN + 1, KNOWN + 1); cross: with z, (KNOWN + 1, C + t).
        variance: D.
    """
    factor = np.empty_like(covariance)
    loops("matrices").factor(covariance, factor)
    spread, count = float(factor[-1, -1]), len(factor) - 1
    if not (spread > 0 and variance > 0):
        raise DomainError("the fields of rows do not vary within states, or between them")
    zeta, weight = tensor([trapezoid(rule.outer)] * count)
    zeta, weight = zeta[weight > _LIGHT], weight[weight > _LIGHT]
    known, centre = zeta @ factor[:-1, :-1].T, zeta @ factor[-1, :-1]
    width = float(np.sqrt(variance))
    rows, b, lengths, least = _fields(minimiser, known, centre, spread, variance, rate, rule)
    columns = np.stack([least.w, least.w**2, least.value, least.penalty, least.response**2], axis=1)
    # N grows as softest b^2 / 2: with that much of it in the normal law, what is left tilts near nodes only.
    softest = float(least.response[np.concatenate([rows[:-1], rows[1:] - 1])].min())
    wider = 1 / (1 - rate * variance * softest)
    costs = softest * b * b / 2 - least.value

    def averages(which: np.ndarray, places: np.ndarray) -> np.ndarray:
        out = tilted_at(rows, b, lengths, costs, rate, variance * wider, least.w, columns, which, wider * places)
        out[..., 1] += wider * softest * places**2 / 2 + np.log(wider) / (2 * rate)
        return out

    sums, own = np.zeros(8), np.zeros(count + 1)
    longest = max(PANEL * width / spread, _LONGEST)
    for which, z, share, out in halved(averages, centre, spread, longest, rule, Scale()):
        mean, free, drift, with_w, _, square, value, penalty, bent = np.moveaxis(out, -1, 0)
        heavy = share * weight[which][:, None]
        slope = (with_w - drift * mean) / variance  # z counted from elsewhere has the same covariance
        values = np.stack([mean**2, square, slope, free, value, penalty, slope**2, bent], axis=-1)
        sums += np.einsum("pj,pjf->f", heavy, values)
        own[:-1] += np.einsum("pj,pj,pk->k", heavy, mean, zeta[which])
        own[-1] += float(np.sum(heavy * mean * z))
    with_fields = np.empty((1, cross.shape[1]))
    loops("weight_rows").to_fields(factor, cross, own[None], with_fields)
    between, within, slope, free, value, penalty = map(float, sums[:6])
    return RowAverages(between, within, slope, with_fields[0], free, value, penalty, sums[6:])


def _fields(
    minimiser: Minimiser, known: np.ndarray, centre: np.ndarray, spread: float, variance: float, rate: float,
    rule: Pieces,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Minimum]:  # fmt: skip
    """Where lines begin (R + 1,), nodes of b on them, quadrature weights of db, and rows there.

    Panels are halved until w(b) is a polynomial: it bends where w comes to rest on a corner.
    """
    t, w = gauss_legendre(rule.points)
    low_end, high_end = (_end(minimiser, known, centre, side, spread, variance, rate) for side in (-1.0, 1.0))
    count = int(np.ceil((high_end - low_end).max() / (PANEL * np.sqrt(variance))))
    ends = np.linspace(low_end, high_end, count + 1, axis=1)
    which = np.repeat(np.arange(len(centre)), count)
    low, high = ends[:, :-1].ravel(), ends[:, 1:].ravel()
    parts: list[tuple[np.ndarray, ...]] = []
    for level in range(_HALVINGS + 1):
        middle, half = (low + high) / 2, (high - low) / 2
        b = middle[:, None] + half[:, None] * t
        least = minimiser(b.ravel(), known[np.repeat(which, len(t))])
        values = least.w.reshape(b.shape)
        scale = np.abs(values).max() or 1.0
        tail = np.abs(values @ highest_coefficients(rule.points).T).max(axis=1) / scale
        open_ = (tail * half > rule.resolution * spread) & (level < _HALVINGS)
        done = np.repeat(~open_, len(t))
        lengths = (half[:, None] * w).ravel()
        parts.append(tuple(each[done] for each in (np.repeat(which, len(t)), b.ravel(), lengths, *least)))
        if not open_.any():
            break
        which, low, middle, high = which[open_], low[open_], middle[open_], high[open_]
        which, low, high = np.tile(which, 2), np.concatenate([low, middle]), np.concatenate([middle, high])
    row, fields, lengths, *rest = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.lexsort((fields, row))
    rows = np.searchsorted(row[order], np.arange(len(centre) + 1))
    return rows, fields[order], lengths[order], Minimum(*(each[order] for each in rest))


def _end(
    minimiser: Minimiser,
    known: np.ndarray,
    centre: np.ndarray,
    side: float,
    spread: float,
    variance: float,
    rate: float,
) -> np.ndarray:
    """Beyond which b has no weight at any b^0 that has: the tilt moves its law to where b - y D w(b) = b^0, (R,).

    Raises:
        DomainError: the tilt grows faster than the law of z falls: r(w) + (G - y D) w^2 / 2 is not strictly convex.
    """
    reach = REACH * (spread + np.sqrt(variance))
    end = centre + side * reach
    for _ in range(_DOUBLINGS):
        drift = end - rate * variance * minimiser(end, known).w
        short = side * (drift - centre) < reach
        if not short.any():
            return end
        end = np.where(short, centre + 2 * (end - centre), end)
    raise DomainError("the regulariser with G = sum gamma V~^ is not strictly convex")
