"""Posterior of the fields where hidden coordinates are a fixed table: sums over them are products of matrices.

The logarithm of the normal weight of Y around omega is linear in omega but for terms of Y or omega alone, so that the
weights of all hidden nodes (H) at all omega (M) are exp of a product of matrices, and their sums another one.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from scipy.linalg import block_diag

_PRODUCT = 400_000  # multiplications of a product, small enough for one thread of the library that does it


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
    rows = np.zeros((len(fields), 2 + fields.shape[2] * t + int(curved) * (fields.shape[2] * t) ** 2))

    def fill(n: int) -> None:
        values, g, curvature = posterior_at(fields[n], measure[n], omega, precision, curved)
        values += log_norm
        shares = weights * np.exp(values + log_weights[n])
        kept = shares > 0
        rows[n, 0] = shares.sum()
        rows[n, 1] = shares[kept] @ values[kept]
        rows[n, 2:] = squares(shares[kept], g[kept], curvature[kept], t)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(fill, range(len(fields))))
    return rows.sum(axis=0)


def posterior_at(
    fields: np.ndarray, measure: np.ndarray, omega: np.ndarray, precision: np.ndarray, curved: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log Z (M,) without the normalisation of the Gaussian, g (M, D) and dg/domega (M, D, D), empty unless `curved`."""
    P = block_diag(*precision)
    (H, D), M = fields.shape, len(omega)
    pairs = np.triu_indices(D) if curved else (np.zeros(0, int), np.zeros(0, int))
    powers = np.concatenate([np.ones((H, 1)), fields, fields[:, pairs[0]] * fields[:, pairs[1]]], axis=1)
    alone = measure - 0.5 * np.einsum("hi,ij,hj->h", fields, P, fields)
    sums, top = np.empty((M, powers.shape[1])), np.empty(M)
    block = max(1, _PRODUCT // (H * powers.shape[1]))
    forward = np.ascontiguousarray((fields @ P).T)
    for begin in range(0, M, block):
        part = slice(begin, begin + block)
        exponent = omega[part] @ forward
        exponent += alone
        top[part] = exponent.max(axis=1)
        exponent -= top[part, None]
        np.exp(exponent, out=exponent)
        sums[part] = exponent @ powers
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
