"""The fields of every token as a linear map of the weights: X = A W, rows a_{mu,l} = z_{mu,l} / sqrt(d) + tau_c / d."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .instance import Instance

ZERO_EIGENVALUE = 1e-12
"""The rounding level below which eigenvalues of matrices of sample weights count as zero."""


def eigendecompose_symmetric(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues and eigenvectors, as columns, of a stack of symmetric matrices (matrices, rows, columns)."""
    if matrices.shape[-1] == 1:
        return matrices[:, 0], np.ones_like(matrices)
    values, vectors = np.linalg.eigh(matrices)
    return values, vectors


def solve_positive_definite(
    matrix: Callable[[], np.ndarray], right: np.ndarray, least: float, factor: float
) -> np.ndarray:
    """Return the solution of a linear system with a symmetric positive definite matrix, by Cholesky's method.

    If the matrix is not positive definite, growing shifts are added to its diagonal until it is.

    Args:
        matrix: function that returns the matrix, which is overwritten.
        right: right-hand side, whose shape the solution has.
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


class DesignMatrix:
    """The design matrix A that maps weights W to fields A W, with one row for every token of every sample.

    Attributes:
        shape: shape of the fields, (n samples, L tokens, s columns).
        means: mean of the rows of A, shape ((token, cluster) pairs, d).
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.means = instance.eigenbasis_coordinates.tau.T / instance.d
        self.shape = instance.sample_count, instance.problem.tokens, instance.problem.student_rank

    def compute_fields(self, W: np.ndarray) -> np.ndarray:
        """Return the fields (preactivations) A W of all samples at weights W, shape (n samples, L tokens, s)."""
        out = (self.means @ W)[self.instance.token_contexts]
        self.instance.add_centred_fields(out, W)
        return out

    def apply_design_transpose(self, x: np.ndarray) -> np.ndarray:
        """Return A^T x, shape (d, s), for the design matrix A and an array x in the shape of the fields, (n, L, s)."""
        instance, d, s = self.instance, self.instance.d, self.shape[2]
        out = np.zeros((d, s))
        along_means = np.zeros((len(self.means), s))
        for span, tokens in instance.iterate_blocks_of_samples():
            by_token = x[span].reshape(-1, s)
            out += tokens.reshape(-1, d).T @ by_token / np.sqrt(d)
            np.add.at(along_means, instance.token_contexts[span].ravel(), by_token)
        return out + self.means.T @ along_means

    def design_rows_of_samples(
        self, span: slice, tokens: np.ndarray, chosen: np.ndarray | slice = slice(None)
    ) -> np.ndarray:
        """Return the rows of the design matrix A for chosen samples of a block, (samples, L, d).

        Args:
            span: samples of the block.
            tokens: centred tokens of these samples, (samples, L, d).
            chosen: indices of the chosen samples in the block, possibly repeated.
        """
        rows = tokens[chosen] / np.sqrt(self.instance.d)
        if self.means.any():
            rows += self.means[self.instance.token_contexts[span][chosen]]
        return rows

    def add_weighted_gram_matrix(self, total: np.ndarray, weights: np.ndarray) -> None:
        """Add A^T D A to a matrix of shape (d s, d s): A is the design matrix, D has a weight block for every sample.

        Args:
            total: the matrix, changed in place.
            weights: symmetric weights of the samples, (n, L s, L s).
        """
        (n, L, s), d = self.shape, self.instance.d
        values, vectors = eigendecompose_symmetric(weights)
        pending: list[np.ndarray] = []
        signs: list[np.ndarray] = []
        for span, tokens in self.instance.iterate_blocks_of_samples():
            sample, which = np.nonzero(np.abs(values[span]) > ZERO_EIGENVALUE)
            along = vectors[span][sample, :, which] * np.sqrt(np.abs(values[span][sample, which]))[:, None]
            rows = self.design_rows_of_samples(span, tokens, sample)
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
