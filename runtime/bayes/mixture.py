"""Posterior of the fields where hidden coordinates are a fixed table: sums over them are products of matrices.

The logarithm of the normal weight of Y around omega is linear in omega but for terms of Y or omega alone, so that the
weights of all hidden nodes (H) at all omega (M) are exp of a product of matrices, and their sums another one. Where
little is left unknown most of these weights are negligible: omega is divided into cells, and to a cell belong the
hidden nodes that may matter somewhere in it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from scipy.linalg import block_diag

from .averages import width

_PRODUCT = 400_000  # multiplications of a product, small enough for one thread of the library that does it
_CELL, _SMALLEST = 2.5, 24  # radius of a cell in standard deviations of Y around omega, and its nodes
_NEGLIGIBLE = 40.0  # logarithm of the share of the largest weight at which others are left out


def averages_by_omega(
    fields: np.ndarray,
    measure: np.ndarray,
    log_weights: np.ndarray,
    omega: np.ndarray,
    weights: np.ndarray,
    precision: np.ndarray,
    log_norm: float,
    curved: bool,
    threads: int,
) -> np.ndarray:
    """Averages over omega and what is observed, (1, log Z, g_l g_l^T, with `curved` squares of dg/domega).

    Args:
        fields, measure: of all hidden nodes at every observed one, (N, H, D) and (N, H): logarithms of Jacobian,
            likelihood and weights of the hidden coordinates.
        log_weights: of the observed nodes, (N,); omega, weights: (M, D) and (M,).
        precision: V_l^{-1}, (L, t, t); log_norm: -1/2 log det(2 pi V).
    """
    t = precision.shape[1]
    cells = cells_of(omega, weights, block_diag(*precision))
    rows = np.zeros((len(fields), width(fields.shape[2], t, curved)))

    def fill(n: int) -> None:
        values, g, curvature = posterior_at(
            fields[n], measure[n], omega, precision, curved, cells, log_norm + float(log_weights[n])
        )
        values += log_norm
        shares = weights * np.exp(values + log_weights[n])
        kept = shares > 0
        rows[n, 0] = shares.sum()
        rows[n, 1] = shares[kept] @ values[kept]
        rows[n, 2:] = squares(shares[kept], g[kept], curvature[kept], t)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(fill, range(len(fields))))
    return rows.sum(axis=0)


@dataclass(frozen=True)
class Cells:
    """Nodes of omega (M, D) in groups that lie close together.

    Attributes:
        members: of every cell, indices of its nodes; centres: (cells, D); radii: largest distance of a node from the
            centre, in standard deviations of Y around omega; heaviest: logarithm of the largest weight of a node.
    """

    members: tuple[np.ndarray, ...]
    centres: np.ndarray
    radii: np.ndarray
    heaviest: np.ndarray


def cells_of(omega: np.ndarray, weights: np.ndarray, precision: np.ndarray) -> Cells:
    """Cells by halving along the longest extent; weights: (M,); precision: V^{-1}, (D, D)."""
    scaled = omega @ np.linalg.cholesky(precision)
    done, waiting = [], [np.arange(len(omega))]
    while waiting:
        members = waiting.pop()
        points = scaled[members]
        extent = np.ptp(points, axis=0)
        if np.linalg.norm(extent) < 2 * _CELL or len(members) <= _SMALLEST:
            done.append(members)
            continue
        order = np.argsort(points[:, np.argmax(extent)], kind="stable")
        waiting += [members[part] for part in np.array_split(order, 2)]
    centres = np.array([omega[members].mean(axis=0) for members in done])
    middles = [scaled[members].mean(axis=0) for members in done]
    radii = [np.linalg.norm(scaled[m] - at, axis=1).max() for m, at in zip(done, middles, strict=True)]
    heaviest = np.log([weights[members].max() for members in done])
    return Cells(tuple(done), centres, np.array(radii), heaviest)


def _that_matter(
    fields: np.ndarray, measure: np.ndarray, precision: np.ndarray, cells: Cells, log_weight: float
) -> np.ndarray:
    """Which hidden nodes may have a weight in a cell that is not negligible, (cells, H), by the triangle inequality:
    beside those of others at the same omega, and beside all there is, which is 1."""
    root = np.linalg.cholesky(precision)
    points, centres = fields @ root, cells.centres @ root
    squares = (centres**2).sum(axis=1)[:, None] + (points**2).sum(axis=1) - 2 * centres @ points.T
    distances, radii = np.sqrt(np.maximum(squares, 0.0)), cells.radii[:, None]
    most = measure - np.maximum(distances - radii, 0.0) ** 2 / 2
    least = (measure - (distances + radii) ** 2 / 2).max(axis=1)
    return most > np.maximum(least - _NEGLIGIBLE, -_NEGLIGIBLE - cells.heaviest - log_weight)[:, None]


def posterior_at(
    fields: np.ndarray,
    measure: np.ndarray,
    omega: np.ndarray,
    precision: np.ndarray,
    curved: bool,
    cells: Cells,
    log_weight: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log Z (M,) without the normalisation of the Gaussian, g (M, D) and dg/domega (M, D, D), empty unless `curved`.

    Where all of Z is negligible log Z is -inf; log_weight: of what is not in the measure.
    """
    P = block_diag(*precision)
    D, M = fields.shape[1], len(omega)
    pairs = np.triu_indices(D) if curved else (np.zeros(0, int), np.zeros(0, int))
    powers = np.concatenate([np.ones((len(fields), 1)), fields, fields[:, pairs[0]] * fields[:, pairs[1]]], axis=1)
    alone = measure - 0.5 * np.einsum("hi,ij,hj->h", fields, P, fields)
    sums, top = np.zeros((M, powers.shape[1])), np.full(M, -np.inf)
    sums[:, 0] = 1.0
    matter = _that_matter(fields, measure, P, cells, log_weight)
    for members, kept in zip(cells.members, matter, strict=True):
        if not kept.any():
            continue
        some = slice(None) if kept.all() else np.flatnonzero(kept)
        moments, own = powers[some], alone[some]
        forward = (fields[some] @ P).T
        block = max(1, _PRODUCT // max(moments.size, 1))
        for begin in range(0, len(members), block):
            part = members[begin : begin + block]
            exponent = omega[part] @ forward
            exponent += own
            top[part] = exponent.max(axis=1)
            exponent -= top[part, None]
            np.exp(exponent, out=exponent)
            sums[part] = exponent @ moments
    means = sums[:, 1 : 1 + D] / sums[:, :1]
    values = top + np.log(sums[:, 0]) - 0.5 * np.einsum("mi,ij,mj->m", omega, P, omega)
    g = (means - omega) @ P
    if not curved:
        return values, g, np.empty((M, 0, 0))
    covariance = np.empty((M, D, D))
    covariance[:, pairs[0], pairs[1]] = sums[:, 1 + D :] / sums[:, :1] - means[:, pairs[0]] * means[:, pairs[1]]
    covariance[:, pairs[1], pairs[0]] = covariance[:, pairs[0], pairs[1]]
    return values, g, P @ covariance @ P - P


def squares(shares: np.ndarray, g: np.ndarray, curvature: np.ndarray, t: int) -> np.ndarray:
    """Sums of g_l g_l^T and of squares of dg/domega, in the order of `posterior.collect`."""
    count = g.shape[1] // t
    blocks = g.reshape(len(g), count, t)
    first = np.stack([(shares[:, None] * blocks[:, l]).T @ blocks[:, l] for l in range(count)])
    if not curvature.shape[1]:
        return first.ravel()
    response = np.empty((count, t, t, count, t, t))
    for l in range(count):
        for k in range(count):
            D = curvature[:, l * t : (l + 1) * t, k * t : (k + 1) * t].reshape(len(g), t * t)
            response[l, :, :, k] = ((shares[:, None] * D).T @ D).reshape(t, t, t, t).transpose(0, 2, 1, 3)
    return np.concatenate([first.ravel(), response.ravel()])
