"""Averages with replica symmetry broken over a row of W of one column with any penalty, on panels of a line.

At b^0 and the teacher's row, with b = b^0 + z and z ~ N(0, D), <.> is the average over z tilted by exp(y N(b)), N the
maximum over w of w b - G w^2 / 2 - r(w) (docs/theory.md (18.9), (18.17)). -N and w take the places of M and g of the
channel; levels between b^0 and b are averaged over as in the channel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from ..base.errors import DomainError
from ..base.options import AlgorithmOptions
from ..channel.nodes import highest_legendre_coefficient_matrix, tensor_product_rule, trapezoid_rule
from ..problems.compiled import load_compiled_loops
from .one_field import REACH, SmoothPiecesRule
from .panels import QuadraturePanels
from .tilted import (
    BreakingLevelNodes,
    RunningMaximum,
    TiltedPanelOptions,
    averages_on_panels,
    nodes_of_outer_breaking_level,
    tilted_averages_at_fields,
)


@dataclass(frozen=True)
class RowAverageOptions(AlgorithmOptions):
    """Options of averages over a row of W of one column with replica symmetry broken.

    Attributes:
        max_bisections: largest number of bisections of a panel of the field b: the minimiser w(b) bends at corners.
        max_doublings: largest number of doublings of the interval of b until its ends have negligible weight.
        min_first_panel: smallest length of the first panels of b^0 (the part of b common to all states), in its
            standard deviations.
        negligible_weight: weight of a negligible quadrature node of the teacher's row.
    """

    max_bisections: int = 40
    max_doublings: int = 40
    min_first_panel: float = 0.5
    negligible_weight: float = 1e-18


class WeightRowMinimum(NamedTuple):
    """The minimising rows of W at given fields b; the first axis of each array runs over the fields.

    Attributes:
        w: minimising row.
        penalty: penalty r(w).
        response: Jacobian J = dw/db.
        value: N(b), the maximum over w of w^T b - w^T G w / 2 - r(w).
    """

    w: np.ndarray
    penalty: np.ndarray
    response: np.ndarray
    value: np.ndarray


Minimiser = Callable[[np.ndarray, np.ndarray], WeightRowMinimum]
"""A function of fields b, one per row, and of the teacher's coordinates on which the penalty depends."""


@dataclass(frozen=True)
class SpectralAtomAverages:
    """The averages over a row w of W with replica symmetry broken, for one atom of the spectral law of the data.

    <.> is the average over states; R = d<w>/db^0 and J = dw/db are responses to the field b^0 of all states and to
    the field b; N(b) is the maximum of w^T b - w^T G w / 2 - r(w).

    Attributes:
        overlaps: averages of w w^T of every level, from E[<w><w>^T] to E[<w w^T>], shape (levels + 1, s, s).
        slope: E[R], shape (s, s).
        with_fields: E[<w> z^T] with z = (tau, pi), the coordinates of class means and teacher.
        free: free energy (1 / y) log E exp(y N) of every level, the outermost first, then E[<N>].
        penalty: average of the penalty r(w).
        squares: E[R_ab R_ef] and E[<J_ab J_ef>], shape (2, s, s, s, s).
    """

    overlaps: np.ndarray
    slope: np.ndarray
    with_fields: np.ndarray
    free: np.ndarray
    penalty: float
    squares: np.ndarray


def one_column_row_averages(
    minimiser: Minimiser, covariance: np.ndarray, cross: np.ndarray, variances: np.ndarray, rates: np.ndarray,
    rule: SmoothPiecesRule, listed: tuple[np.ndarray, np.ndarray] | None = None,
) -> SpectralAtomAverages:  # fmt: skip
    """Return the averages over a row of a single-column W with replica symmetry broken.

    Args:
        minimiser: function that returns the minimising w at fields b.
        covariance: covariance of (pi, b^0), where pi are teacher variables and b^0 is the field common to all states.
        cross: covariance of (pi, b^0) with the coordinates of class means and teacher.
        variances: variance of the field b between states, for each level.
        rates: Parisi parameter y of each level.
        rule: rule that defines nodes and panels.
        listed: probabilities and values of pi if it takes few values; None for a normal pi.

    Raises:
        DomainError: a variance is not positive, or the averages diverge.
    """
    factor = np.empty_like(covariance)
    load_compiled_loops("matrices").semidefinite_cholesky(covariance, factor)
    spread, count = float(factor[-1, -1]), len(factor) - 1
    if not (spread > 0 and np.all(variances > 0)):
        raise DomainError("the field of a row of W must have positive variances common to and between replica states")
    zeta, weight = teacher_weight_nodes(factor, count, rule.teacher_axis_points, listed)
    options, max_panel = RowAverageOptions.current(), TiltedPanelOptions.current().max_panel
    heavy_nodes = weight > options.negligible_weight
    zeta, weight = zeta[heavy_nodes], weight[heavy_nodes]
    known, centre = zeta @ factor[:-1, :-1].T, zeta @ factor[-1, :-1]
    level, reach = _tabulate_weight_minima(minimiser, known, centre, spread, variances, rates, rule)
    # N grows as softest b^2 / 2: with that much of it in the normal law, the remainder tilts near nodes only.
    ends = np.concatenate([level.rows[:-1], level.rows[1:] - 1])
    softest = float(np.sqrt(level.columns[ends, -1].min()))
    for k in range(len(rates) - 1, 0, -1):
        averages = partial(_tilted_weight_averages, level, softest, float(rates[k]), float(variances[k]))
        longest = max_panel * float(np.sqrt(variances[k - 1])) / float(reach[k - 1])
        softest /= 1 - float(rates[k] * variances[k]) * softest
        level = nodes_of_outer_breaking_level(averages, centre, float(reach[k - 1]), longest, rule, RunningMaximum())
    averages = partial(_tilted_weight_averages, level, softest, float(rates[0]), float(variances[0]))
    levels = len(rates)
    sums, own = np.zeros(4 + 2 * levels + 2), np.zeros(count + 1)
    longest = max(max_panel * float(np.sqrt(variances[0])) / spread, options.min_first_panel)
    for which, z, share, out in averages_on_panels(averages, centre, spread, longest, rule, RunningMaximum()):
        mean, free, drift, with_w, _, *linear = np.moveaxis(out, -1, 0)
        heavy = share * weight[which][:, None]
        slope = (with_w - drift * mean) / variances[0]  # z counted from elsewhere has the same covariance
        values = np.stack([slope, slope**2, mean**2, free, *linear], axis=-1)
        sums += np.einsum("pj,pjf->f", heavy, values)
        own[:-1] += np.einsum("pj,pj,pk->k", heavy, mean, zeta[which])
        own[-1] += float(np.sum(heavy * mean * z))
    with_fields = np.empty((1, cross.shape[1]))
    load_compiled_loops("weight_rows").fill_weight_field_correlations(factor, cross, own[None], with_fields)
    slope, bent, *_, penalty, own_bent = map(float, sums)
    overlaps, free = sums[2:-2].reshape(levels + 1, 2).T
    squares = np.array([bent, own_bent]).reshape(2, 1, 1, 1, 1)
    return SpectralAtomAverages(overlaps[:, None, None], np.array([[slope]]), with_fields, free, penalty, squares)


def teacher_weight_nodes(
    factor: np.ndarray, count: int, points: int, listed: tuple[np.ndarray, np.ndarray] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return quadrature nodes for the teacher's row in standard normal coordinates, one per row, and their weights.

    Args:
        factor: lower triangular factor of the covariance of the teacher variables pi and the field b^0.
        count: number of coordinates of the teacher's row.
        points: nodes per axis.
        listed: probabilities and values of pi if it takes few values; None for a normal pi.
    """
    if listed is None or not count:
        return tensor_product_rule([trapezoid_rule(points)] * count)
    return listed[1] @ np.linalg.pinv(factor[:count, :count]).T, listed[0]


def _minimise_weight_at_fields(minimiser: Minimiser, b: np.ndarray, known: np.ndarray) -> WeightRowMinimum:
    """Return the minimising weight w of a single-column W and its derivative dw/db at every field b, as scalars."""
    least = minimiser(b[:, None], known)
    return least._replace(w=least.w[:, 0], response=least.response[:, 0, 0])


def _tilted_weight_averages(
    level: BreakingLevelNodes, softest: float, rate: float, variance: float, which: np.ndarray, places: np.ndarray
) -> np.ndarray:
    """Return averages over the field b of a weight at one level, as `tilted_averages_at_fields` returns them.

    The free energy of the level grows as softest b^2 / 2 at large b. This part is made part of the normal law of b; the
    rest varies near the nodes only.
    """
    wider = 1 / (1 - rate * variance * softest)
    costs = softest * level.omega**2 / 2 - level.columns[:, 2]
    out = tilted_averages_at_fields(level, costs, rate, variance * wider, which, wider * places)
    out[..., 1] += wider * softest * places**2 / 2 + np.log(wider) / (2 * rate)
    return out


def _tabulate_weight_minima(
    minimiser: Minimiser, known: np.ndarray, centre: np.ndarray, spread: float, variances: np.ndarray,
    rates: np.ndarray, rule: SmoothPiecesRule,
) -> tuple[BreakingLevelNodes, np.ndarray]:  # fmt: skip
    """Return quadrature nodes of the field b with the minimising weights there, and widths of intermediate levels.

    The columns are w, w^2, the maximum N(b) of w b - G w^2 / 2 - r(w), penalty r and (dw/db)^2. Panels are halved until
    w(b) is a polynomial on each; one width of the field is returned for each level between the outermost and b.
    """
    options, max_panel = RowAverageOptions.current(), TiltedPanelOptions.current().max_panel
    reach, drag = REACH * (spread + np.sqrt(variances).sum()), float(rates @ variances)

    def _field_before_tilt_shift(b: np.ndarray) -> np.ndarray:
        """Return the field b^0 of all states for which the tilted law of b is centred at a given b."""
        return b - drag * _minimise_weight_at_fields(minimiser, b, known).w

    far = [_locate_field_line_end(_field_before_tilt_shift, centre, side, reach) for side in (-1.0, 1.0)]
    # Where b of a level has weight, those of the levels outside have it at the places before the shift by the tilt.
    moved = np.cumsum((rates * variances)[:0:-1])[::-1]
    between = [
        np.abs(end - np.outer(moved, _minimise_weight_at_fields(minimiser, end, known).w) - centre).max(axis=1)
        for end in far
    ]
    low_end, high_end = far
    count = int(np.ceil((high_end - low_end).max() / (max_panel * np.sqrt(variances[-1]))))
    ends = np.linspace(low_end, high_end, count + 1, axis=1)
    panels = QuadraturePanels(np.repeat(np.arange(len(centre)), count), ends[:, :-1].ravel(), ends[:, 1:].ravel())
    parts: list[tuple[np.ndarray, ...]] = []
    for level in range(options.max_bisections + 1):
        b, lengths = panels.gauss_legendre_nodes(rule.points)
        which = np.repeat(panels.line, rule.points)
        least = _minimise_weight_at_fields(minimiser, b.ravel(), known[which])
        values = least.w.reshape(b.shape)
        scale = np.abs(values).max() or 1.0
        tail = np.abs(values @ highest_legendre_coefficient_matrix(rule.points).T).max(axis=1) / scale
        open_ = (tail * panels.half_lengths > rule.coefficient_tolerance * spread) & (level < options.max_bisections)
        done = np.repeat(~open_, rule.points)
        parts.append(tuple(each[done] for each in (which, b.ravel(), lengths.ravel(), *least)))
        if not open_.any():
            break
        panels = panels.halve_panels(open_)
    row, fields, weights, *rest = (np.concatenate(each) for each in zip(*parts, strict=True))
    least, order = WeightRowMinimum(*rest), np.lexsort((fields, row))
    rows = np.searchsorted(row[order], np.arange(len(centre) + 1))
    columns = np.stack([least.w, least.w**2, least.value, least.penalty, least.response**2], axis=1)
    return BreakingLevelNodes(rows, fields[order], weights[order], columns[order]), np.maximum(*between) / REACH


def _locate_field_line_end(
    _field_before_tilt_shift: Callable[[np.ndarray], np.ndarray], centre: np.ndarray, side: float, reach: float
) -> np.ndarray:
    """Return for each line the end of the interval of fields b beyond which b has negligible weight.

    N(b) is the maximum of w b - G w^2 / 2 - r(w). The tilt by exp(y N) of every level with variance D of b moves the
    centre of the law of b from b^0 to the solution of b - sum y D w(b) = b^0.

    Raises:
        DomainError: the averages diverge, since the tilt grows faster than the normal law falls.
    """
    end = centre + side * reach
    for _ in range(RowAverageOptions.current().max_doublings):
        short = side * (_field_before_tilt_shift(end) - centre) < reach
        if not short.any():
            return end
        end = np.where(short, centre + 2 * (end - centre), end)
    raise DomainError(
        "averages over rows of W diverge: the Parisi parameter y times the variance of fields between states exceeds "
        "the curvature of the regularised row energy; use a smaller y"
    )
