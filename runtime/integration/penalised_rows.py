"""Averages with replica symmetry broken over a row of W with any penalty: of one column, on panels of a line.

At b^0 and the teacher's row, with b = b^0 + z and z ~ N(0, D), <.> is the average over z tilted by exp(y N(b)), N the
maximum over w of w b - G w^2 / 2 - r(w) (docs/theory.md (18.9), (18.17)). -N and w are to a row what M and g are to a
sentence; a level between b^0 and b is averaged over as there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from ..base.errors import DomainError
from ..channel.nodes import highest_coefficients, tensor, trapezoid
from ..problems.compiled import loops
from .panels import Panels
from .pieces import REACH, Pieces
from .tilted import PANEL, Level, Scale, halved, outwards, tilted_at

_HALVINGS = 40  # of a panel of b: w(b) bends at corners
_DOUBLINGS = 40  # of the line
_LONGEST = 0.5  # panel of b^0 to begin with, in its spread: <w> bends near corners alone
LIGHT = 1e-18  # of a node in what the penalty knows of the teacher's row


class Minimum(NamedTuple):
    """Rows at fields (N, s): w (N, s), r(w) (N,), J = dw/db (N, s, s) and N(b) (N,)."""

    w: np.ndarray
    penalty: np.ndarray
    response: np.ndarray
    value: np.ndarray


Minimiser = Callable[[np.ndarray, np.ndarray], Minimum]
"""From fields b (N, s), and what the penalty knows of the teacher's row (N, KNOWN)."""


@dataclass(frozen=True)
class RowAverages:
    """Of one spectral atom, with K levels of b around b^0.

    Attributes:
        overlaps: E[<w><w>^T] and, of one level after the other, <w><w>^T down to E[<w w^T>], (K + 1, s, s).
        slope: E[d<w>/db^0], (s, s); with_fields: E[<w> z^T], z = (tau, pi), (s, C + t).
        free: E[(1 / y) log E_z exp(y N)], the same of the levels within, and E[<N>] the last, (K + 1,).
        penalty: E[<r>]; squares: E[R (x) R] of R = d<w>/db^0, and E[<J (x) J>], axes a, b, e, f of R_ab R_ef,
            (2, s, s, s, s).
    """

    overlaps: np.ndarray
    slope: np.ndarray
    with_fields: np.ndarray
    free: np.ndarray
    penalty: float
    squares: np.ndarray


def row_averages(
    minimiser: Minimiser, covariance: np.ndarray, cross: np.ndarray, variances: np.ndarray, rates: np.ndarray,
    rule: Pieces, listed: tuple[np.ndarray, np.ndarray] | None = None,
) -> RowAverages:  # fmt: skip
    """Of a row of one column, given by its minimum at a field.

    Args:
        covariance: of (pi, b^0), pi what averages run over, (GIVEN + 1, GIVEN + 1); cross: with z, (GIVEN + 1, C + t).
        listed: probabilities and values of pi, where it takes few.
        variances: D of every level, (K,).
    """
    factor = np.empty_like(covariance)
    loops("matrices").factor(covariance, factor)
    spread, count = float(factor[-1, -1]), len(factor) - 1
    if not (spread > 0 and np.all(variances > 0)):
        raise DomainError("the fields of rows do not vary within states, or between them")
    zeta, weight = teacher_nodes(factor, count, rule.outer, listed)
    zeta, weight = zeta[weight > LIGHT], weight[weight > LIGHT]
    known, centre = zeta @ factor[:-1, :-1].T, zeta @ factor[-1, :-1]
    level, reach = _fields(minimiser, known, centre, spread, variances, rates, rule)
    # N grows as softest b^2 / 2: with that much of it in the normal law, what is left tilts near nodes only.
    ends = np.concatenate([level.rows[:-1], level.rows[1:] - 1])
    softest = float(np.sqrt(level.columns[ends, -1].min()))
    for k in range(len(rates) - 1, 0, -1):
        averages = partial(_averages, level, softest, float(rates[k]), float(variances[k]))
        longest = PANEL * float(np.sqrt(variances[k - 1])) / float(reach[k - 1])
        softest /= 1 - float(rates[k] * variances[k]) * softest
        level = outwards(averages, centre, float(reach[k - 1]), longest, rule, Scale())
    averages = partial(_averages, level, softest, float(rates[0]), float(variances[0]))
    levels = len(rates)
    sums, own = np.zeros(4 + 2 * levels + 2), np.zeros(count + 1)
    longest = max(PANEL * float(np.sqrt(variances[0])) / spread, _LONGEST)
    for which, z, share, out in halved(averages, centre, spread, longest, rule, Scale()):
        mean, free, drift, with_w, _, *linear = np.moveaxis(out, -1, 0)
        heavy = share * weight[which][:, None]
        slope = (with_w - drift * mean) / variances[0]  # z counted from elsewhere has the same covariance
        values = np.stack([slope, slope**2, mean**2, free, *linear], axis=-1)
        sums += np.einsum("pj,pjf->f", heavy, values)
        own[:-1] += np.einsum("pj,pj,pk->k", heavy, mean, zeta[which])
        own[-1] += float(np.sum(heavy * mean * z))
    with_fields = np.empty((1, cross.shape[1]))
    loops("weight_rows").to_fields(factor, cross, own[None], with_fields)
    slope, bent, *_, penalty, own_bent = map(float, sums)
    overlaps, free = sums[2:-2].reshape(levels + 1, 2).T
    squares = np.array([bent, own_bent]).reshape(2, 1, 1, 1, 1)
    return RowAverages(overlaps[:, None, None], np.array([[slope]]), with_fields, free, penalty, squares)


def teacher_nodes(
    factor: np.ndarray, count: int, points: int, listed: tuple[np.ndarray, np.ndarray] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return standard normal coordinates (N, count) of the teacher's row, and their weights (N,)."""
    if listed is None or not count:
        return tensor([trapezoid(points)] * count)
    return listed[1] @ np.linalg.pinv(factor[:count, :count]).T, listed[0]


def _on_line(minimiser: Minimiser, b: np.ndarray, known: np.ndarray) -> Minimum:
    """At fields (N,), everything of that shape."""
    least = minimiser(b[:, None], known)
    return least._replace(w=least.w[:, 0], response=least.response[:, 0, 0])


def _averages(
    level: Level, softest: float, rate: float, variance: float, which: np.ndarray, places: np.ndarray
) -> np.ndarray:
    """`tilted_at` with softest b^2 / 2 of what f grows by in the normal law."""
    wider = 1 / (1 - rate * variance * softest)
    costs = softest * level.omega**2 / 2 - level.columns[:, 2]
    out = tilted_at(level, costs, rate, variance * wider, which, wider * places)
    out[..., 1] += wider * softest * places**2 / 2 + np.log(wider) / (2 * rate)
    return out


def _fields(
    minimiser: Minimiser, known: np.ndarray, centre: np.ndarray, spread: float, variances: np.ndarray,
    rates: np.ndarray, rule: Pieces,
) -> tuple[Level, np.ndarray]:  # fmt: skip
    """Nodes of b with w, w^2, N, r and J^2 there, and the spreads of fields of the levels between b^0 and b, (K - 1,),
    that reach as far as they do.

    Panels are halved until w(b) is a polynomial: it bends where w comes to rest on a corner.
    """
    reach, drag = REACH * (spread + np.sqrt(variances).sum()), float(rates @ variances)

    def drifts(b: np.ndarray) -> np.ndarray:
        return b - drag * _on_line(minimiser, b, known).w

    far = [_end(drifts, centre, side, reach) for side in (-1.0, 1.0)]
    # Where b of a level has weight those of the levels outside have it where the tilt has moved it from.
    moved = np.cumsum((rates * variances)[:0:-1])[::-1]
    between = [np.abs(end - np.outer(moved, _on_line(minimiser, end, known).w) - centre).max(axis=1) for end in far]
    low_end, high_end = far
    count = int(np.ceil((high_end - low_end).max() / (PANEL * np.sqrt(variances[-1]))))
    ends = np.linspace(low_end, high_end, count + 1, axis=1)
    panels = Panels(np.repeat(np.arange(len(centre)), count), ends[:, :-1].ravel(), ends[:, 1:].ravel())
    parts: list[tuple[np.ndarray, ...]] = []
    for level in range(_HALVINGS + 1):
        b, lengths = panels.nodes(rule.points)
        which = np.repeat(panels.line, rule.points)
        least = _on_line(minimiser, b.ravel(), known[which])
        values = least.w.reshape(b.shape)
        scale = np.abs(values).max() or 1.0
        tail = np.abs(values @ highest_coefficients(rule.points).T).max(axis=1) / scale
        open_ = (tail * panels.half > rule.resolution * spread) & (level < _HALVINGS)
        done = np.repeat(~open_, rule.points)
        parts.append(tuple(each[done] for each in (which, b.ravel(), lengths.ravel(), *least)))
        if not open_.any():
            break
        panels = panels.halved(open_)
    row, fields, weights, *rest = (np.concatenate(each) for each in zip(*parts, strict=True))
    least, order = Minimum(*rest), np.lexsort((fields, row))
    rows = np.searchsorted(row[order], np.arange(len(centre) + 1))
    columns = np.stack([least.w, least.w**2, least.value, least.penalty, least.response**2], axis=1)
    return Level(rows, fields[order], weights[order], columns[order]), np.maximum(*between) / REACH


def _end(drifts: Callable[[np.ndarray], np.ndarray], centre: np.ndarray, side: float, reach: float) -> np.ndarray:
    """Beyond which b has no weight at any b^0 that has: the tilt moves its law to where b - sum y D w(b) = b^0, (R,).

    Raises:
        DomainError: the tilt grows faster than the law of z falls: r(w) + (G - y D) w^2 / 2 is not strictly convex.
    """
    end = centre + side * reach
    for _ in range(_DOUBLINGS):
        short = side * (drifts(end) - centre) < reach
        if not short.any():
            return end
        end = np.where(short, centre + 2 * (end - centre), end)
    raise DomainError("the regulariser with G = sum gamma V~^ is not strictly convex")
