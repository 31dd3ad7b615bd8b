"""What averages over an output channel are, and what every rule for them needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import block_diag


def root(matrix: np.ndarray) -> np.ndarray:
    """Square root of positive semidefinite matrices (..., n, n)."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]) @ np.swapaxes(vectors, -1, -2)


def varying(blocks: np.ndarray, scale: float) -> np.ndarray:
    """Factor (L t, R) of a normal law with covariance blocks (L, t, t), without directions of no variance.

    Directions of less than 1e-15 of `scale` are taken for those of none.
    """
    columns = []
    for block in blocks:
        values, vectors = np.linalg.eigh(block)
        kept = values > 1e-15 * scale
        columns.append(root(block) if kept.all() else vectors[:, kept] * np.sqrt(values[kept]))
    return np.ascontiguousarray(block_diag(*columns))


def width(fields: int, teacher: int, curved: bool) -> int:
    """Length of a row (1, log Z, g_l g_l^T[, squares of dg/domega])."""
    return 2 + fields * teacher + int(curved) * (fields * teacher) ** 2


@dataclass(frozen=True)
class Averages:
    """Averages at one overlap.

    Attributes:
        outer: E_c[g_l g_l^T] summed over the tokens of a context, (C, t, t).
        log_evidence: E log Z_out, nats a sample (densities of what is observed and continuous).
        norm: sum of all weights, 1 if the rule is fine enough.
        response: d outer / dq, (C, t, t, C, t, t), docs/theory.md (13.9); None where it was not asked for.
        samples: replicates of a sampled rule, whose mean this is; empty for others.
    """

    outer: np.ndarray
    log_evidence: float
    norm: float
    response: np.ndarray | None = None
    samples: tuple[Averages, ...] = ()


def add_up(outer: np.ndarray, response: np.ndarray | None, contexts: np.ndarray, row: np.ndarray) -> None:
    """Add a row of averages over tokens, g_l g_l^T and, where asked for, squares of dg/domega, to those of contexts."""
    count, t = len(contexts), outer.shape[1]
    np.add.at(outer, contexts, row[: count * t * t].reshape(count, t, t))
    if response is not None:
        squares = row[count * t * t :].reshape(count, t, t, count, t, t)
        for l, context in enumerate(contexts):
            for k, other in enumerate(contexts):
                response[context, :, :, other] += squares[l, :, :, k]


def change(one: Averages, other: Averages) -> float:
    """Largest difference, of squares relative to their size."""
    scale = max(np.abs(other.outer).max(), 1e-12)
    moved = np.abs(one.outer - other.outer).max() / scale
    return float(max(moved, abs(one.norm - other.norm), abs(one.log_evidence - other.log_evidence)))


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


def half(nodes: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One of each pair of opposite nodes, with the weight of both."""
    if not nodes.shape[1]:
        return nodes, weights
    signs = np.sign(np.where(np.abs(nodes) < 1e-12, 0.0, nodes))
    leading = np.take_along_axis(signs, np.argmax(signs != 0, axis=1)[:, None], axis=1)[:, 0]
    return np.ascontiguousarray(nodes[leading >= 0]), np.where(leading > 0, 2.0, 1.0)[leading >= 0] * weights[
        leading >= 0
    ]
