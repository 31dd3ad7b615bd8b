"""The fields of every token as a linear map of the weights: X = A W, rows a_{mu,l} = z_{mu,l} / sqrt(d) + tau_c / d."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .instance import Instance

FLAT = 1e-12
"""Eigenvalues of the weights of samples below it are none."""


def eigen(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (n, D) and eigenvectors (n, D, D), in columns, of symmetric matrices (n, D, D)."""
    if matrices.shape[-1] == 1:
        return matrices[:, 0], np.ones_like(matrices)
    values, vectors = np.linalg.eigh(matrices)
    return values, vectors


def solve_positive(matrix: Callable[[], np.ndarray], right: np.ndarray, least: float, factor: float) -> np.ndarray:
    """Return matrix^{-1} right, in the shape of right, by Cholesky's method.

    Where the symmetric matrix is not positive definite, `least` is added to its diagonal, and `factor` times as much
    until it is.

    Args:
        matrix: returns the matrix (d s, d s), which is overwritten.
    """
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    more = 0.0
    while True:
        tried = matrix()
        tried[np.diag_indices_from(tried)] += more
        try:
            lower = cho_factor(tried.T, lower=True, overwrite_a=True, check_finite=False)
        except LinAlgError:
            more = max(factor * more, least)
            continue
        return cho_solve(lower, right.reshape(len(tried), -1), check_finite=False).reshape(right.shape)


class Design:
    """A and its transpose, of an instance.

    Attributes:
        shape: (n, L, s) of the fields.
        means: what the rows of each context share, tau_c / d, (C, d).
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.means = instance.coordinates.tau.T / instance.d
        self.shape = instance.n, instance.problem.tokens, instance.problem.student_rank

    def fields(self, W: np.ndarray) -> np.ndarray:
        """A W, (n, L, s)."""
        out = (self.means @ W)[self.instance.contexts]
        self.instance.add_fields(out, W)
        return out

    def back(self, x: np.ndarray) -> np.ndarray:
        """A^T x, (d, s)."""
        instance, d, s = self.instance, self.instance.d, self.shape[2]
        out = np.zeros((d, s))
        along_means = np.zeros((len(self.means), s))
        for span, tokens in instance.blocks():
            by_token = x[span].reshape(-1, s)
            out += tokens.reshape(-1, d).T @ by_token / np.sqrt(d)
            np.add.at(along_means, instance.contexts[span].ravel(), by_token)
        return out + self.means.T @ along_means

    def rows(self, span: slice, tokens: np.ndarray, chosen: np.ndarray | slice = slice(None)) -> np.ndarray:
        """The rows of chosen samples of a block, some of them perhaps repeatedly, (samples, L, d)."""
        rows = tokens[chosen] / np.sqrt(self.instance.d)
        if self.means.any():
            rows += self.means[self.instance.contexts[span][chosen]]
        return rows

    def weigh(self, total: np.ndarray, weights: np.ndarray) -> None:
        """Add A^T weights A to total (d s, d s), weights (n, L s, L s) symmetric."""
        (n, L, s), d = self.shape, self.instance.d
        values, vectors = eigen(weights)
        kept: list[np.ndarray] = []
        signs: list[np.ndarray] = []
        for span, tokens in self.instance.blocks():
            sample, which = np.nonzero(np.abs(values[span]) > FLAT)
            along = vectors[span][sample, :, which] * np.sqrt(np.abs(values[span][sample, which]))[:, None]
            rows = self.rows(span, tokens, sample)
            kept.append(np.einsum("jli,jla->jia", rows, along.reshape(-1, L, s)).reshape(-1, d * s))
            signs.append(np.sign(values[span][sample, which]))
            # Few large products are faster than many small ones.
            if sum(map(len, kept)) >= d * s or span.stop == n:
                together, sign = np.concatenate(kept), np.concatenate(signs)
                for way in (1, -1):
                    part = together[sign == way]
                    if len(part):
                        total += way * (part.T @ part)
                kept, signs = [], []
