"""The law of the tokens from data: means, a binned joint spectrum, and how well its assumption holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InputError
from .law import TokenLaw


@dataclass(frozen=True)
class DataLaw:
    """What was estimated.

    Attributes:
        misfit: norm of what the token covariances have off the diagonal in their common eigenbasis, relative to their
            own norm; 0 where all share eigenvectors, as the theory assumes.
        misfit_of_noise: the value that finitely many samples alone give, were the eigenvectors shared.
    """

    law: TokenLaw
    misfit: float
    misfit_of_noise: float


def law_of_data(
    x: Any, labels: Any = None, *, encodings: Any = None, teacher: Any = None, atoms: int | None = None
) -> DataLaw:
    """Estimate the law of the tokens (docs/theory.md (1.6)) from samples.

    The common eigenbasis is that of the average covariance; its coordinates are sorted by their average eigenvalue and
    binned. The squared length of a mean is corrected for sampling noise, which is of order one where n is of order d.

    Args:
        x: tokens, (n, L, d), or (n, d) for one token.
        labels: cluster of every token, whole numbers from 0, (n, L); one cluster by default.
        encodings: positional encodings p_l, (L, d); none by default.
        teacher: W*, (d, t); by default rows standard normal and independent of the tokens, t = 1.
        atoms: bins of the spectrum, at most d; 8 by default where d allows.

    Raises:
        InputError: shapes that do not fit, numbers that are not finite, a label seen fewer than twice.
    """
    x = np.asarray(x, float)
    x = x[:, None, :] if x.ndim == 2 else x
    if x.ndim != 3 or not np.isfinite(x).all():
        raise InputError(f"x must hold finite numbers in shape (n, L, d) or (n, d), not {x.shape}")
    n, tokens, d = x.shape
    labels = np.zeros((n, tokens), int) if labels is None else np.asarray(labels)
    labels = labels[:, None] if labels.ndim == 1 else labels
    if labels.shape != (n, tokens) or not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
        raise InputError(f"labels must be whole numbers from 0 in shape {(n, tokens)}, not {labels.shape}")
    atoms = min(8, d) if atoms is None else atoms
    if not 1 <= atoms <= d:
        raise InputError(f"atoms = {atoms}: allowed are 1 to d = {d}")
    p = np.zeros((tokens, d)) if encodings is None else np.asarray(encodings, float)
    rows = None if teacher is None else np.asarray(teacher, float).reshape(d, -1)
    if p.shape != (tokens, d):
        raise InputError(f"encodings have shape {p.shape}; {(tokens, d)} is expected")
    clusters = int(labels.max()) + 1

    contexts = [(l, k) for l in range(tokens) for k in range(clusters)]
    counts, means, covariances = [], [], []
    for l, k in contexts:
        own = x[labels[:, l] == k, l]
        if len(own) < 2:
            raise InputError(f"label {k} of token {l} was seen {len(own)} times; at least 2 are needed")
        counts.append(len(own))
        means.append(own.mean(axis=0))
        covariances.append(np.atleast_2d(np.cov(own, rowvar=False)))
    share = np.array(counts) / (n * tokens)
    _, basis = np.linalg.eigh(np.einsum("c,cij->ij", share, np.array(covariances)))
    turned = np.einsum("ia,cij,jb->cab", basis, np.array(covariances), basis)
    gamma = np.einsum("caa->ca", turned)
    whole = float((turned**2).sum())
    noise = sum((g.sum() ** 2 - (g**2).sum()) / count for g, count in zip(gamma, counts, strict=True))

    # Rows of tau in the eigenbasis, then those of the teacher.
    shifted = np.array([mean + p[l] for (l, _), mean in zip(contexts, means, strict=True)])
    tau = np.sqrt(d) * shifted @ basis
    pi = np.zeros((0, d)) if rows is None else rows.T @ basis
    z = np.concatenate([tau, pi])
    t = 1 if rows is None else len(pi)
    weights, binned, gram = [], [], []
    for group in np.array_split(np.arange(d), atoms):
        weights.append(len(group) / d)
        binned.append(gamma[:, group].mean(axis=1))
        matrix = np.eye(len(contexts) + t)
        matrix[: len(contexts)] = matrix[:, : len(contexts)] = 0.0
        matrix[: len(z), : len(z)] = z[:, group] @ z[:, group].T / len(group)
        matrix[range(len(contexts)), range(len(contexts))] -= d * binned[-1] / np.array(counts)
        gram.append(_possible(matrix, len(contexts)))
    law = TokenLaw(
        labels=_frequencies(labels, clusters),
        weights=np.array(weights),
        gamma=np.array(binned),
        gram=np.array(gram),
        teacher_means=np.zeros((len(contexts), t)) if rows is None else np.array(means) @ rows / np.sqrt(d),
    )
    law.check()
    off_diagonal = max(whole - float((gamma**2).sum()), 0.0)  # rounding for one context
    return DataLaw(law, float(np.sqrt(off_diagonal / whole)), float(np.sqrt(noise / whole)))


def _possible(gram: np.ndarray, contexts: int) -> np.ndarray:
    """The Gram matrix with the products of means corrected to be possible; those with the teacher hold as they are."""
    cross, teacher = gram[:contexts, contexts:], gram[contexts:, contexts:]
    shown = cross @ np.linalg.pinv(teacher, hermitian=True) @ cross.T
    values, vectors = np.linalg.eigh(gram[:contexts, :contexts] - shown)
    gram = gram.copy()
    gram[:contexts, :contexts] = (vectors * np.maximum(values, 0.0)) @ vectors.T + shown
    return gram


def _frequencies(labels: np.ndarray, clusters: int) -> np.ndarray:
    """How often each assignment of labels occurs, (K,) * L."""
    found = np.zeros((clusters,) * labels.shape[1])
    np.add.at(found, tuple(labels.T), 1.0)
    return found / len(labels)
