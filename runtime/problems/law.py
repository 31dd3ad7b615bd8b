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
    """The joint law of labels, token covariances, means and teacher; contexts c = (l, k), k fastest, C = L K of them.

    Attributes:
        labels: p(k_1, ..., k_L), shape (K,) * L.
        weights: probability of each spectral atom, (atoms,).
        gamma: eigenvalue of Sigma_c in each atom, (atoms, C).
        gram: E[z z^T] for z = (tau_1..tau_C, pi_1..pi_t) in each atom, (atoms, C + t, C + t).
        teacher_means: m*_c, (C, t).
        rows: probabilities (n,) and values (n, t) of the teacher's rows, or None where they are Gaussian.
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
            arrays: arrays of a generated module's `law` or of `Tokens`, by name.
            tokens: L.
            clusters: K.

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
        """Return the law with another joint spectrum of the covariances, independent of (tau, pi) within each atom.

        Args:
            spectrum: (atoms, 2) or (atoms, 1 + C): weight, then the eigenvalue of every context (one for all); an
                additional column, (atoms, 2 + C), is a factor on the second moments of the teacher's rows.

        Raises:
            InputError: there is such a factor, and the teacher's rows are discrete or overlap means or encodings.
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
        """Mean eigenvalue Tr Sigma_c / d of every context, (C,)."""
        return self.weights @ self.gamma

    @cached_property
    def rho_star(self) -> np.ndarray:
        """Teacher overlap rho*_c = E[gamma_c pi pi^T], (C, t, t)."""
        contexts = self.gamma.shape[1]
        return np.einsum("a,ac,aij->cij", self.weights, self.gamma, self.gram[:, contexts:, contexts:])

    @property
    def contexts_with_means(self) -> np.ndarray:
        """Mask of the contexts whose mean plus encoding tau_c is not zero, (C,); in all others m_c = 0."""
        contexts = self.gamma.shape[1]
        return np.any(np.diagonal(self.gram, axis1=1, axis2=2)[:, :contexts] != 0, axis=0)

    @property
    def encodings_taught(self) -> np.ndarray:
        """Overlap of encodings and teacher p_l^T W* / sqrt(d), the part of E[tau pi^T] not due to means, (L, t)."""
        tokens = self.labels.ndim
        return self._encoding_overlaps().reshape(tokens, -1, self.teacher_means.shape[1])[:, 0]

    def _encoding_overlaps(self) -> np.ndarray:
        """Return E[tau_c pi^T] - m*_c, (C, t)."""
        contexts = self.gamma.shape[1]
        return np.einsum("a,acb->cb", self.weights, self.gram[:, :contexts, contexts:]) - self.teacher_means

    def refuse_invalid_law(self) -> None:
        """Raise InputError if the law of the tokens is not valid."""
        for name, values in (("label probabilities", self.labels), ("spectral weights", self.weights)):
            if np.any(values < 0) or abs(values.sum() - 1) > _ROUNDING:
                raise InputError(f"{name} must be non-negative and add up to 1; they add up to {values.sum():.12g}")
        if not np.all(self.gamma > 0):
            raise InputError(
                f"eigenvalues gamma of the token covariances must be positive; the lowest is {np.min(self.gamma):.6g}"
            )
        for atom, matrix in enumerate(self.gram):
            where = "" if len(self.gram) == 1 else f" of spectral atom {atom}"
            if np.abs(matrix - matrix.T).max() > _ROUNDING:
                raise InputError(f"the Gram matrix of encodings and teacher{where} is not symmetric")
            lowest = np.linalg.eigvalsh(matrix)[0]
            if lowest < -_ROUNDING:
                raise InputError(
                    f"the products of means, encodings and teacher's rows{where} are not positive semidefinite "
                    f"(lowest eigenvalue {lowest:.6g}): no such vectors exist; the product of a vector of length l "
                    "with itself is l**2, with its opposite -l**2"
                )
        beyond = self._encoding_overlaps().reshape(*self.encodings_taught.shape[:1], -1, self.teacher_means.shape[1])
        if np.abs(beyond - beyond[:, :1]).max() > _ROUNDING * (1 + np.abs(self.gram).max()):
            raise InputError(
                "the Gram matrix and the teacher means imply overlaps of teacher and encoding that differ between the "
                "clusters of a token, which share one encoding: no such vectors exist"
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
                raise InputError(f"the teacher overlap rho* of context {context} is not positive definite")
