"""The law of the tokens in numbers (docs/theory.md (1.6)): labels, joint spectrum, Gram matrices, teacher overlaps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..base.errors import InputError

_ROUNDING = 1e-10  # of probabilities, Gram matrices and their products, relative to 1


@dataclass(frozen=True)
class TokenLaw:
    """The joint law of cluster labels, token covariances, token means and teacher, as numbers.

    A context c is a pair of a token and a cluster, ordered by token, then by cluster. tau_c is the mean of its tokens
    plus their encoding and pi the teacher, as coordinates in the common eigenbasis; atoms are groups of eigenvalues.

    Attributes:
        labels: probability of every assignment of clusters to the L tokens, one axis per token.
        weights: probability of each spectral atom, (atoms,).
        gamma: eigenvalue of every context's token covariance in each atom, (atoms, contexts).
        gram: Gram matrix of all tau_c and the t teacher columns in each atom, (atoms, contexts + t, contexts + t).
        teacher_means: overlap of every context's mean with the teacher, (contexts, t).
        rows: probabilities and values (values, t) of the teacher's rows if these are discrete; None if Gaussian.
    """

    labels: np.ndarray
    weights: np.ndarray
    gamma: np.ndarray
    gram: np.ndarray
    teacher_means: np.ndarray
    rows: tuple[np.ndarray, np.ndarray] | None = None

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], tokens: int, clusters: int) -> TokenLaw:
        """Return the law of the tokens built from arrays, after checking that it is valid.

        Args:
            arrays: arrays by name, as the generated function `law` and `Tokens.exact_arrays_of_law` return them.
            tokens: number of tokens of a sample.
            clusters: number of clusters of a token.

        Raises:
            InputError: probabilities, eigenvalues or Gram matrices are not valid; the message says which.
        """
        law = cls(
            labels=np.asarray(arrays["labels"], float).reshape((clusters,) * tokens),
            weights=np.asarray(arrays["weights"], float),
            gamma=np.asarray(arrays["covariance"], float),
            gram=np.asarray(arrays["gram"], float),
            teacher_means=np.asarray(arrays["teacher_means"], float),
            rows=tuple(np.asarray(part, float) for part in arrays["rows"]) if "rows" in arrays else None,  # type: ignore[arg-type]
        )
        law.refuse_invalid_law()
        return law

    def with_spectrum(self, spectrum: np.ndarray) -> TokenLaw:
        """Return the law with another joint spectrum of the token covariances, independent of means and teacher.

        Args:
            spectrum: one row per atom: its weight, then one eigenvalue for all contexts (token, cluster) or one for
                each; a further column is a factor on the second moments of the teacher's rows.

        Raises:
            InputError: that factor is given, but the teacher's rows are discrete or overlap with means or encodings.
        """
        contexts = self.gamma.shape[1]
        weights, taught = spectrum[:, 0], spectrum[:, 1 + contexts :]
        gamma = np.broadcast_to(spectrum[:, 1 : 1 + contexts], (len(spectrum), contexts))
        own, new = len(self.weights), len(spectrum)
        if taught.size:
            if self.rows is not None or np.any(self.gram[:, :contexts, contexts:]) or np.any(self.teacher_means):
                raise InputError(
                    "the spectrum has a column with the teacher's variance, which requires Gaussian teacher rows that "
                    "overlap neither means nor encodings; give the law as Tokens instead"
                )
            gram = np.tile(self.gram[:, None], (1, new, 1, 1))
            gram[:, :, contexts:, contexts:] *= taught[None, :, :, None]
            gram = gram.reshape(own * new, *self.gram.shape[1:])
        else:
            gram = np.repeat(self.gram, new, axis=0)
        return TokenLaw(
            labels=self.labels,
            weights=np.outer(self.weights, weights).ravel(),
            gamma=np.tile(gamma, (own, 1)),
            gram=gram,
            teacher_means=self.teacher_means,
            rows=self.rows,
        )

    @cached_property
    def rho(self) -> np.ndarray:
        """Mean eigenvalue (trace over d) of the token covariance of every context (token, cluster), (contexts,)."""
        return self.weights @ self.gamma

    @cached_property
    def rho_star(self) -> np.ndarray:
        """Covariance of the teacher fields in every context (token, cluster), (contexts, t, t)."""
        contexts = self.gamma.shape[1]
        return np.einsum("a,ac,aij->cij", self.weights, self.gamma, self.gram[:, contexts:, contexts:])

    @property
    def contexts_with_nonzero_mean(self) -> np.ndarray:
        """Mask of the contexts (token, cluster) whose mean plus encoding is not zero; in the others m is 0."""
        contexts = self.gamma.shape[1]
        return np.any(np.diagonal(self.gram, axis1=1, axis2=2)[:, :contexts] != 0, axis=0)

    @property
    def encodings_taught(self) -> np.ndarray:
        """Overlap p_l^T W* / sqrt(d) of every token's positional encoding p_l with the teacher, (L, t)."""
        tokens = self.labels.ndim
        return self._teacher_overlaps_of_encodings().reshape(tokens, -1, self.teacher_means.shape[1])[:, 0]

    def _teacher_overlaps_of_encodings(self) -> np.ndarray:
        """Return the overlap of the encoding with the teacher for every context (token, cluster), (contexts, t)."""
        contexts = self.gamma.shape[1]
        return np.einsum("a,acb->cb", self.weights, self.gram[:, :contexts, contexts:]) - self.teacher_means

    def refuse_invalid_law(self) -> None:
        """Raise InputError unless probabilities, eigenvalues and Gram matrices form a valid law of the tokens."""
        for name, values in (("label probabilities", self.labels), ("spectral weights", self.weights)):
            if np.any(values < 0) or abs(values.sum() - 1) > _ROUNDING:
                raise InputError(f"{name} must be non-negative and add up to 1; they add up to {values.sum():.12g}")
        if not np.all(self.gamma > 0):
            raise InputError(
                f"eigenvalues gamma of the token covariances must be positive; the lowest is {np.min(self.gamma):.6g}"
            )
        for atom, matrix in enumerate(self.gram):
            of_atom = "" if len(self.gram) == 1 else f" of spectral atom {atom}"
            if np.abs(matrix - matrix.T).max() > _ROUNDING:
                raise InputError(f"the Gram matrix of encodings and teacher{of_atom} is not symmetric; correct it")
            lowest = np.linalg.eigvalsh(matrix)[0]
            if lowest < -_ROUNDING:
                raise InputError(
                    f"the products of means, encodings and teacher's rows{of_atom} are not positive semidefinite "
                    f"(lowest eigenvalue {lowest:.6g}): no such vectors exist; the product of a vector of length l "
                    "with itself is l**2, with its opposite -l**2"
                )
        beyond = self._teacher_overlaps_of_encodings().reshape(self.labels.ndim, -1, self.teacher_means.shape[1])
        if np.abs(beyond - beyond[:, :1]).max() > _ROUNDING * (1 + np.abs(self.gram).max()):
            raise InputError(
                "the Gram matrix and the teacher means imply overlaps of teacher and encoding that differ between the "
                "clusters of a token, which share one encoding: no such vectors exist; correct one of the two"
            )
        if self.rows is not None:
            shares, values = self.rows
            moments = np.einsum("n,ni,nj->ij", shares, values, values)
            if np.any(shares <= 0) or abs(shares.sum() - 1) > _ROUNDING:
                raise InputError(
                    f"probabilities of the teacher's rows must be positive and add up to 1; they are {shares}"
                )
            if np.abs(self.gram[:, self.gamma.shape[1] :, self.gamma.shape[1] :] - moments).max() > _ROUNDING:
                raise InputError(
                    "the teacher blocks of the Gram matrices must be the second moments of the teacher's rows"
                )
        for context, matrix in enumerate(self.rho_star):
            if np.linalg.eigvalsh(matrix)[0] <= 0:
                raise InputError(f"teacher overlap rho* of (token, cluster) pair {context} is not positive definite")
