"""Averages with one step of replica symmetry breaking over a row of W with any penalty: of two columns, on grids.

-N is to a row what M is to a sentence, w what g is. N grows as b^T S b / 2, S = J far out: with that much of it in the
normal law of z,

    E_z exp(y N(b^0 + z)) = det(A)^(1/2) exp(y b^0^T S A b^0 / 2) E exp(y (N - b^T S b / 2)),   A = (1 - y D S)^(-1),

b normal around A b^0 with the covariance A D, what is left on a grid is tilted as the channel is.
"""

from __future__ import annotations

import numpy as np

from ..base.errors import DomainError
from ..base.threads import share
from ..problems.compiled import loops
from .penalised_rows import LIGHT, Minimiser, RowAverages, teacher_nodes
from .tilted_grid import STEEPEST, Grids, Layout, places_of

_COLUMNS = 2
_BEYOND = 2.0  # farther out than the channel is looked at, at little cost
_BENDS = 16.0  # places on the spread of b for every one on the narrowest law: w(b) bends at corners
_FAR = 4.0  # reaches from the centre, where N has become a square
_WAYS = 8  # directions in which that is looked at
_LENGTH = 3 + _COLUMNS + 3 * _COLUMNS**2 + 2 + 2 * _COLUMNS**4  # of what `tilted_on_grids` fills, with what is added


def plane_averages(
    minimiser: Minimiser, covariance: np.ndarray, cross: np.ndarray, variance: np.ndarray, y: float, rule: Grids,
    listed: tuple[np.ndarray, np.ndarray] | None = None,
) -> RowAverages:  # fmt: skip
    """Of a row of two columns, given by its minimum at a field.

    Args:
        covariance: of (pi, b^0), pi what averages run over, (GIVEN + 2, GIVEN + 2); cross: with z, (GIVEN + 2, C + t).
        variance: D, (2, 2).
        listed: as of `row_averages`.

    Raises:
        DomainError: no such averages exist, or their grids would be too large.
    """
    count = len(covariance) - _COLUMNS
    factor = np.empty_like(covariance)
    loops("matrices").factor(covariance, factor)
    root = factor[count:, count:]
    if not (np.diagonal(root).min() > 0 and np.linalg.eigvalsh(variance)[0] > 0):
        raise DomainError("the fields of rows do not vary within states, or between them")
    spread = root @ root.T
    zeta, weight = teacher_nodes(factor, count, rule.points, listed)
    reach = rule.reach + _BEYOND
    left = reach**2 - (zeta**2).sum(axis=1)
    kept = (weight > LIGHT) & (left > 0)
    zeta, weight, left = zeta[kept], weight[kept], left[kept]
    known, centres = zeta @ factor[:count, :count].T, zeta @ factor[count:, :count].T
    squared = _squared(minimiser, known, centres, _FAR * reach * np.sqrt(np.trace(spread + variance)))
    stiffness = np.linalg.inv(variance) - y * squared
    if not np.linalg.eigvalsh(stiffness)[0] > 0:
        raise DomainError("the regulariser with G = sum gamma V~^ is not strictly convex")
    wider = np.linalg.inv(stiffness)
    A = wider @ np.linalg.inv(variance)
    # Axes along which the law within a state is a product.
    widths, axes = np.linalg.eigh(wider)
    to_axes = axes.T @ A
    outer = to_axes @ spread @ to_axes.T
    narrow = np.sqrt(np.minimum(widths, np.linalg.eigvalsh(outer)[0]))
    steps = np.minimum(narrow, np.sqrt(np.diagonal(outer) + widths) / _BENDS) / rule.density
    half = np.sqrt(np.maximum(left, 1.0))[:, None] * np.sqrt(np.diagonal(outer)) + 2 * steps
    half = half + loops("tilted_grid").MARGIN * np.sqrt(widths)
    layout = Layout.around(zeta, weight, centres @ to_axes.T, half, steps)
    precision, norm = np.linalg.inv(outer), 1 / np.sqrt(np.linalg.det(2 * np.pi * outer))
    sums, begun = np.empty((len(zeta), _LENGTH)), 0
    for batch in layout.batches():
        which, places = places_of(batch)
        at = slice(begun, begun + len(batch.nodes))
        begun = at.stop
        b = places @ axes.T
        least = minimiser(b, known[at][which])
        costs = np.einsum("ni,ij,nj->n", b, squared, b) / 2 - least.value
        if y * float(np.ptp(costs)) > STEEPEST:
            raise DomainError("exp(y N) is beyond double precision")
        products = np.einsum("nab,nef->nabef", least.response, least.response).reshape(len(b), -1)
        more = np.column_stack([least.penalty, least.value, products])
        out = np.zeros((len(batch.nodes), _LENGTH))
        starts = np.concatenate([[0], np.cumsum(batch.counts.prod(axis=1))])
        share(
            loops("tilted_grid").tilted_on_grids, len(out), starts, batch.counts, steps, batch.corners, costs,
            least.w @ axes, more, np.array([y]), np.diag(widths)[None], centres[at] @ to_axes.T,
            precision, norm, np.zeros(_COLUMNS), True, out,
        )  # fmt: skip
        sums[at] = out
    mean, along, between, within = (
        sums[:, low : low + _COLUMNS**power].reshape(-1, *[_COLUMNS] * power)
        for low, power in ((3, 1), (5, 2), (9, 2), (13, 2))
    )
    penalty, value, *rest = weight @ sums[:, 17:]
    whole, bent = np.array(rest).reshape(2, *[_COLUMNS] * 4)
    # Back to w, and to b^0 beside its mean.
    away = axes @ (along - mean[:, :, None] * (centres @ to_axes.T)[:, None]) @ np.linalg.inv(to_axes).T
    away = np.einsum("p,pab->ab", weight, away)
    with_known = np.einsum("p,pa,pk->ak", weight, mean @ axes.T, zeta)
    with_fields = np.empty((_COLUMNS, cross.shape[1]))
    loops("weight_rows").to_fields(
        factor, cross, np.concatenate([with_known, away @ np.linalg.inv(root).T], axis=1), with_fields
    )
    square = weight @ (np.einsum("pi,ij,pj->p", centres, squared @ A, centres) + np.trace(squared @ A @ spread)) / 2
    free = float(square + np.linalg.slogdet(A)[1] / (2 * y) * weight.sum() - weight @ sums[:, 1])
    return RowAverages(
        overlaps=axes @ np.einsum("p,kpab->kab", weight, np.stack([between, within])) @ axes.T,
        slope=away @ np.linalg.inv(spread),
        with_fields=with_fields,
        free=np.array([free, value]),
        penalty=float(penalty),
        squares=np.stack([np.einsum("ia,jc,abcd,bk,dl->ikjl", axes, axes, bent, to_axes, to_axes), whole]),
    )


def _squared(minimiser: Minimiser, known: np.ndarray, centres: np.ndarray, reach: float) -> np.ndarray:
    """S: the mean response J far from every centre, (2, 2)."""
    angles = 2 * np.pi * (np.arange(_WAYS) + 0.5) / _WAYS
    ends = centres[:, None] + reach * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    found = minimiser(ends.reshape(-1, _COLUMNS), np.repeat(known, _WAYS, axis=0)).response.mean(axis=0)
    return np.asarray(found + found.T) / 2
