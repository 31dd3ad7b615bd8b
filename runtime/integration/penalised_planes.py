"""Averages with one step of replica symmetry breaking over a row of W of two columns with any penalty, on grids.

For a row of W, -N takes the place of the Moreau envelope M of the channel, and w that of g. N grows as b^T S b / 2,
S = J far out. With this quadratic part in the normal law of z,

    E_z exp(y N(b^0 + z)) = det(A)^(1/2) exp(y b^0^T S A b^0 / 2) E exp(y (N - b^T S b / 2)),   A = (1 - y D S)^(-1),

b being normal around A b^0 with the covariance A D. The remainder on a grid is tilted as the channel is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..base.errors import DomainError
from ..base.options import AlgorithmOptions
from ..base.threads import run_loop_in_threads
from ..problems.compiled import load_compiled_loops
from .penalised_rows import Minimiser, RowAverageOptions, SpectralAtomAverages, teacher_weight_nodes
from .tilted_grid import MAX_EXPONENT, GridLayout, TiltedGridRule, grid_point_coordinates

_COLUMNS = 2
_LENGTH = (
    3 + _COLUMNS + 3 * _COLUMNS**2 + 2 + 2 * _COLUMNS**4
)  # of a row of `fill_tilted_sums_on_grids`, with added columns


@dataclass(frozen=True)
class PlaneAverageOptions(AlgorithmOptions):
    """Options of averages over a row of a two-column W with replica symmetry broken.

    Attributes:
        extra_reach: standard deviations added to the reach of the channel's grids.
        bend_ratio: number of grid steps per standard deviation of the field b, per unit of grid density: the minimiser
            w(b) bends at corners of the penalty.
        far_factor: distance from the centre, in units of the reach, at which the maximum N(b) over w of
            w^T b - w^T G w / 2 - r(w) is assumed to be quadratic.
        far_directions: number of directions over which the quadratic form is averaged at this distance.
    """

    extra_reach: float = 2.0
    bend_ratio: float = 16.0
    far_factor: float = 4.0
    far_directions: int = 8


def two_column_row_averages(
    minimiser: Minimiser, covariance: np.ndarray, cross: np.ndarray, variance: np.ndarray, y: float,
    rule: TiltedGridRule, listed: tuple[np.ndarray, np.ndarray] | None = None,
) -> SpectralAtomAverages:  # fmt: skip
    """Return the averages over a row of a two-column W with one step of replica symmetry breaking.

    Args:
        minimiser: function that returns the minimising w at fields b.
        covariance: covariance of (pi, b^0), where pi are teacher variables and b^0 is the field common to all states.
        cross: covariance of (pi, b^0) with the coordinates of class means and teacher.
        variance: covariance of the field b between states, shape (2, 2).
        y: Parisi parameter.
        rule: rule that defines nodes and grids.
        listed: probabilities and values of pi if it takes few values; None for a normal pi.

    Raises:
        DomainError: a variance is not positive, the averages diverge, or grids would be too large.
    """
    options, count = PlaneAverageOptions.current(), len(covariance) - _COLUMNS
    factor = np.empty_like(covariance)
    load_compiled_loops("matrices").semidefinite_cholesky(covariance, factor)
    root = factor[count:, count:]
    if not (np.diagonal(root).min() > 0 and np.linalg.eigvalsh(variance)[0] > 0):
        raise DomainError("the field of a row of W must have positive variances common to and between replica states")
    spread = root @ root.T
    zeta, weight = teacher_weight_nodes(factor, count, rule.points, listed)
    reach = rule.reach + options.extra_reach
    left = reach**2 - (zeta**2).sum(axis=1)
    kept = (weight > RowAverageOptions.current().negligible_weight) & (left > 0)
    zeta, weight, left = zeta[kept], weight[kept], left[kept]
    known, centres = zeta @ factor[:count, :count].T, zeta @ factor[count:, :count].T
    far = options.far_factor * reach * np.sqrt(np.trace(spread + variance))
    squared = _asymptotic_response(minimiser, known, centres, far)
    stiffness = np.linalg.inv(variance) - y * squared
    if not np.linalg.eigvalsh(stiffness)[0] > 0:
        raise DomainError(
            "averages over rows of W diverge: the Parisi parameter y times the variance of fields between states "
            "exceeds the curvature of the regularised row energy; use a smaller y"
        )
    wider = np.linalg.inv(stiffness)
    A = wider @ np.linalg.inv(variance)
    # Axes along which the law over states is a product.
    widths, axes = np.linalg.eigh(wider)
    to_axes = axes.T @ A
    outer = to_axes @ spread @ to_axes.T
    narrow = np.sqrt(np.minimum(widths, np.linalg.eigvalsh(outer)[0]))
    steps = np.minimum(narrow, np.sqrt(np.diagonal(outer) + widths) / options.bend_ratio) / rule.density
    half = np.sqrt(np.maximum(left, 1.0))[:, None] * np.sqrt(np.diagonal(outer)) + 2 * steps
    half = half + load_compiled_loops("tilted_grid").MARGIN * np.sqrt(widths)
    layout = GridLayout.grids_around_centres(zeta, weight, centres @ to_axes.T, half, steps)
    precision, norm = np.linalg.inv(outer), 1 / np.sqrt(np.linalg.det(2 * np.pi * outer))
    sums, first = np.empty((len(zeta), _LENGTH)), 0
    for batch in layout.grid_batches():
        which, places = grid_point_coordinates(batch)
        at = slice(first, first + len(batch.nodes))
        first = at.stop
        b = places @ axes.T
        least = minimiser(b, known[at][which])
        costs = np.einsum("ni,ij,nj->n", b, squared, b) / 2 - least.value
        if y * float(np.ptp(costs)) > MAX_EXPONENT:
            raise DomainError(f"Parisi parameter y too large: y times energies of rows vary by over {MAX_EXPONENT:g}")
        products = np.einsum("nab,nef->nabef", least.response, least.response).reshape(len(b), -1)
        more = np.column_stack([least.penalty, least.value, products])
        out = np.zeros((len(batch.nodes), _LENGTH))
        starts = np.concatenate([[0], np.cumsum(batch.counts.prod(axis=1))])
        run_loop_in_threads(
            load_compiled_loops("tilted_grid").fill_tilted_sums_on_grids, len(out), starts, batch.counts, steps,
            batch.corners, costs, least.w @ axes, more, np.array([y]), np.diag(widths)[None], centres[at] @ to_axes.T,
            precision, norm, np.zeros(_COLUMNS), True, out,
        )  # fmt: skip
        sums[at] = out
    mean, along, between, within = (
        sums[:, low : low + _COLUMNS**power].reshape(-1, *[_COLUMNS] * power)
        for low, power in ((3, 1), (5, 2), (9, 2), (13, 2))
    )
    penalty, value, *rest = weight @ sums[:, 17:]
    whole, bent = np.array(rest).reshape(2, *[_COLUMNS] * 4)
    # Back to w, and to b^0 from its mean.
    away = axes @ (along - mean[:, :, None] * (centres @ to_axes.T)[:, None]) @ np.linalg.inv(to_axes).T
    away = np.einsum("p,pab->ab", weight, away)
    with_known = np.einsum("p,pa,pk->ak", weight, mean @ axes.T, zeta)
    with_fields = np.empty((_COLUMNS, cross.shape[1]))
    load_compiled_loops("weight_rows").fill_weight_field_correlations(
        factor, cross, np.concatenate([with_known, away @ np.linalg.inv(root).T], axis=1), with_fields
    )
    square = weight @ (np.einsum("pi,ij,pj->p", centres, squared @ A, centres) + np.trace(squared @ A @ spread)) / 2
    free = float(square + np.linalg.slogdet(A)[1] / (2 * y) * weight.sum() - weight @ sums[:, 1])
    return SpectralAtomAverages(
        overlaps=axes @ np.einsum("p,kpab->kab", weight, np.stack([between, within])) @ axes.T,
        slope=away @ np.linalg.inv(spread),
        with_fields=with_fields,
        free=np.array([free, value]),
        penalty=float(penalty),
        squares=np.stack([np.einsum("ia,jc,abcd,bk,dl->ikjl", axes, axes, bent, to_axes, to_axes), whole]),
    )


def _asymptotic_response(minimiser: Minimiser, known: np.ndarray, centres: np.ndarray, reach: float) -> np.ndarray:
    """Return the mean Jacobian dw/db of the minimising row w at large fields b, shape (2, 2)."""
    directions = PlaneAverageOptions.current().far_directions
    angles = 2 * np.pi * (np.arange(directions) + 0.5) / directions
    ends = centres[:, None] + reach * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    found = minimiser(ends.reshape(-1, _COLUMNS), np.repeat(known, directions, axis=0)).response.mean(axis=0)
    return np.asarray(found + found.T) / 2
