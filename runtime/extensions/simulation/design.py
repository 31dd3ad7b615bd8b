"""The fields of every token as a linear map of the weights: X = A W, rows a_{mu,l} = z_{mu,l} / sqrt(d) + tau_c / d."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .instance import Instance

ZERO_EIGENVALUE = 1e-12
"""Rounding level: eigenvalues of the weights of samples below it count as zero."""


def eigendecompose(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues (n, D) and eigenvectors (n, D, D), in columns, of symmetric matrices (n, D, D)."""
    if matrices.shape[-1] == 1:
        return matrices[:, 0], np.ones_like(matrices)
    values, vectors = np.linalg.eigh(matrices)
    return values, vectors


def solve_positive(matrix: Callable[[], np.ndarray], right: np.ndarray, least: float, factor: float) -> np.ndarray:
    """Return matrix^{-1} right, in the shape of right, by Cholesky's method.

    If the symmetric matrix is not positive definite, `least` is added to its diagonal, and `factor` times as much until
    it is.

    Args:
        matrix: function that returns the matrix (d s, d s), which is overwritten.
        right: right-hand side, d s numbers in the first axes.
        least: first shift of the diagonal.
        factor: ratio of successive shifts.
    """
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    shift = 0.0
    while True:
        tried = matrix()
        tried[np.diag_indices_from(tried)] += shift
        try:
            lower = cho_factor(tried.T, lower=True, overwrite_a=True, check_finite=False)
        except LinAlgError:
            shift = max(factor * shift, least)
            continue
        return cho_solve(lower, right.reshape(len(tried), -1), check_finite=False).reshape(right.shape)


class Design:
    """The design matrix A of an instance: products with it and its transpose.

    Attributes:
        shape: (n, L, s) of the fields.
        means: mean tau_c / d of the rows of each context, (C, d).
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.means = instance.coordinates.tau.T / instance.d
        self.shape = instance.n, instance.problem.tokens, instance.problem.student_rank

    def fields(self, W: np.ndarray) -> np.ndarray:
        """Return the fields A W, (n, L, s)."""
        out = (self.means @ W)[self.instance.contexts]
        self.instance.add_fields(out, W)
        return out

    def apply_transpose(self, x: np.ndarray) -> np.ndarray:
        """Return A^T x, (d, s)."""
        instance, d, s = self.instance, self.instance.d, self.shape[2]
        out = np.zeros((d, s))
        along_means = np.zeros((len(self.means), s))
        for span, tokens in instance.blocks():
            by_token = x[span].reshape(-1, s)
            out += tokens.reshape(-1, d).T @ by_token / np.sqrt(d)
            np.add.at(along_means, instance.contexts[span].ravel(), by_token)
        return out + self.means.T @ along_means

    def sample_rows(self, span: slice, tokens: np.ndarray, chosen: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return rows of A of chosen samples of a block, (samples, L, d).

        Args:
            span: samples of the block.
            tokens: their centred tokens, (samples, L, d).
            chosen: which of them, possibly repeated.
        """
        rows = tokens[chosen] / np.sqrt(self.instance.d)
        if self.means.any():
            rows += self.means[self.instance.contexts[span][chosen]]
        return rows

    def add_weighted_gram(self, total: np.ndarray, weights: np.ndarray) -> None:
        """Add A^T weights A to a matrix.

        Args:
            total: the matrix (d s, d s).
            weights: symmetric weights of the samples, (n, L s, L s).
        """
        (n, L, s), d = self.shape, self.instance.d
        values, vectors = eigendecompose(weights)
        pending: list[np.ndarray] = []
        signs: list[np.ndarray] = []
        for span, tokens in self.instance.blocks():
            sample, which = np.nonzero(np.abs(values[span]) > ZERO_EIGENVALUE)
            along = vectors[span][sample, :, which] * np.sqrt(np.abs(values[span][sample, which]))[:, None]
            rows = self.sample_rows(span, tokens, sample)
            pending.append(np.einsum("jli,jla->jia", rows, along.reshape(-1, L, s)).reshape(-1, d * s))
            signs.append(np.sign(values[span][sample, which]))
            # Few large products are faster than many small ones.
            if sum(map(len, pending)) >= d * s or span.stop == n:
                together, sign = np.concatenate(pending), np.concatenate(signs)
                for one_sign in (1, -1):
                    part = together[sign == one_sign]
                    if len(part):
                        total += one_sign * (part.T @ part)
                pending, signs = [], []
