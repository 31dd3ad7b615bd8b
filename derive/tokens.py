"""The law of the tokens: cluster labels, joint spectrum of the covariances, and second moments of (tau, pi).

One coordinate i of the common eigenbasis carries gamma_c (eigenvalue of Sigma_c), tau_c = sqrt(d) (mu_c + p_l)_i and
pi = row i of W* (theory.md section 2). With ridge only the second moments of z = (tau_1, ..., tau_C, pi_1, ..., pi_t)
given the spectral atom matter: one Gram matrix an atom. Contexts c = (l, k) are ordered with k fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from typing import Any

import sympy as sp

from .language import exact
from .parameters import Parameter, Structure


@dataclass(frozen=True)
class Tokens:
    """Law of the tokens; entries are numbers or expressions in parameters.

    Args:
        weights: probability of each spectral atom, shape (atoms,).
        covariance: gamma, shape (atoms, C), C = L K contexts.
        gram: E[z z^T] given the atom, shape (atoms, C + t, C + t).
        labels: p(k_1, ..., k_L), flattened with the last label fastest, shape (K^L,).
        teacher_means: m*_c, shape (C, t); E[tau_c pi^T] beyond it belongs to the encodings.
        rows: (probabilities, values), shapes (n,) and (n, t), where the teacher's rows take few values; the default is
            Gaussian rows. `gram` then holds their second moments.
    """

    weights: Sequence[Any]
    covariance: Sequence[Sequence[Any]]
    gram: Sequence[Any]
    labels: Sequence[Any]
    teacher_means: Sequence[Sequence[Any]]
    rows: Sequence[Any] = ()

    @classmethod
    def from_arrays(
        cls, x: Any, labels: Any = None, *, encodings: Any = None, teacher: Any = None, atoms: int | None = None
    ) -> Tokens:
        """The law of tokens seen as data, with numbers for entries; `law_of_data` has the arguments and its quality.

        Raises:
            InputError: the arrays do not fit together.
        """
        # The estimate is numerical: NumPy is loaded when data are given, not by writing a model.
        law = (
            import_module("saddleforge.data")
            .law_of_data(x, labels, encodings=encodings, teacher=teacher, atoms=atoms)
            .law
        )
        return cls(
            weights=law.weights.tolist(),
            covariance=law.gamma.tolist(),
            gram=law.gram.tolist(),
            labels=law.labels.ravel().tolist(),
            teacher_means=law.teacher_means.tolist(),
        )

    def arrays(self) -> dict[str, Any]:
        """All fields as nested tuples of exact expressions."""
        names = ("weights", "covariance", "gram", "labels", "teacher_means", *(["rows"] if self.rows else []))
        return {name: _tuples(getattr(self, name)) for name in names}


def _tuples(value: Any) -> Any:
    if isinstance(value, sp.MatrixBase):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return tuple(_tuples(item) for item in value)
    return exact(value)


def simplex(structure: Structure) -> tuple[tuple[sp.Rational, ...], ...]:
    """Gram matrix of a regular simplex of unit vectors, one a token: -1/(L-1) off the diagonal."""
    count = structure.tokens
    return tuple(
        tuple(sp.Integer(1) if i == j else -sp.Rational(1, count - 1) for j in range(count)) for i in range(count)
    )


def isotropic_tokens(
    structure: Structure,
    *,
    sigma: Any = Parameter(0.5, low=0, open_low=True, doc="standard deviation of a token's coordinates"),  # noqa: B008
    encodings: Any = Parameter(simplex, doc="Gram matrix of the positional encodings, L x L"),  # noqa: B008
) -> Tokens:
    """Independent tokens N(0, sigma^2 I) with positional encodings, teacher rows standard normal (paper, section 5)."""
    count, teachers = structure.tokens, structure.teacher_rank
    return Tokens(
        weights=[1],
        covariance=[[sigma**2] * count],
        gram=[sp.diag(encodings, sp.eye(teachers))],
        labels=[1],
        teacher_means=[[0] * teachers] * count,
    )


def unstructured_tokens(
    structure: Structure,
    *,
    sigma: Any = Parameter(1, low=0, open_low=True, doc="standard deviation of an input's coordinates"),  # noqa: B008
) -> Tokens:
    """Inputs N(0, sigma^2 I) without encodings, teacher rows standard normal: the usual generalised linear setting."""
    count, teachers = structure.tokens, structure.teacher_rank
    return Tokens(
        weights=[1],
        covariance=[[sigma**2] * count],
        gram=[sp.diag(sp.zeros(count), sp.eye(teachers))],
        labels=[1],
        teacher_means=[[0] * teachers] * count,
    )


def binary_teacher(
    structure: Structure,
    *,
    sigma: Any = Parameter(1, low=0, open_low=True, doc="standard deviation of an input's coordinates"),  # noqa: B008
) -> Tokens:
    """Inputs N(0, sigma^2 I), every entry of the teacher's rows +1 or -1, alike and independent."""
    count, teachers = structure.tokens, structure.teacher_rank
    values = list(product((-1, 1), repeat=teachers))
    return Tokens(
        weights=[1],
        covariance=[[sigma**2] * count],
        gram=[sp.diag(sp.zeros(count), sp.eye(teachers))],
        labels=[1],
        teacher_means=[[0] * teachers] * count,
        rows=([sp.Rational(1, len(values))] * len(values), values),
    )


def sparse_teacher(
    structure: Structure,
    *,
    sigma: Any = Parameter(1, low=0, open_low=True, doc="standard deviation of an input's coordinates"),  # noqa: B008
    density: Any = Parameter(0.2, 0, 1, open_low=True, doc="share of the teacher's rows that are not zero"),  # noqa: B008
) -> Tokens:
    """Inputs N(0, sigma^2 I), teacher rows zero or, in a share `density`, N(0, I / density): of variance one in all.

    Two atoms of the law of a coordinate differ in the teacher's row only; within an atom (tau, pi) is Gaussian.
    """
    count, teachers = structure.tokens, structure.teacher_rank
    rows = [sp.eye(teachers) / density, sp.zeros(teachers, teachers)]
    return Tokens(
        weights=[density, 1 - density],
        covariance=[[sigma**2] * count] * 2,
        gram=[sp.diag(sp.zeros(count), row) for row in rows],
        labels=[1],
        teacher_means=[[0] * teachers] * count,
    )


def uniform_labels(structure: Structure) -> tuple[sp.Rational, ...]:
    """Independent labels, each cluster as likely as the others."""
    count = structure.clusters**structure.tokens
    return (sp.Rational(1, count),) * count


def opposite_means(structure: Structure) -> tuple[tuple[sp.Expr, ...], ...]:
    """Gram matrix of balanced means along one direction shared by the tokens: evenly spaced from -1 to 1."""
    last = structure.clusters - 1
    places = [sp.Rational(2 * k - last, last) if last else sp.Integer(0) for k in range(structure.clusters)]
    along = places * structure.tokens
    return tuple(tuple(a * b for b in along) for a in along)


def _per_context(value: Any) -> Any:
    return lambda structure: (sp.Rational(value),) * (structure.tokens * structure.clusters)


def _zeros(columns: str) -> Any:
    def zeros(structure: Structure) -> tuple[tuple[sp.Integer, ...], ...]:
        count = getattr(structure, columns)
        return ((sp.Integer(0),) * count,) * (structure.tokens * structure.clusters)

    return zeros


def clustered_tokens(
    structure: Structure,
    *,
    sigma: Any = Parameter(_per_context("1/2"), low=0, open_low=True, doc="deviation of a context's coordinates"),  # noqa: B008
    labels: Any = Parameter(uniform_labels, 0, 1, doc="p(k_1..k_L), the last label fastest"),  # noqa: B008
    separation: Any = Parameter(1, 0, doc="length of the means, a factor on `means`"),  # noqa: B008
    means: Any = Parameter(opposite_means, doc="Gram matrix of the means at separation 1, contexts x contexts"),  # noqa: B008
    along: Any = Parameter(_zeros("tokens"), doc="means . encodings at separation 1, contexts x L"),  # noqa: B008
    encodings: Any = Parameter(simplex, doc="Gram matrix of the positional encodings, L x L"),  # noqa: B008
    taught: Any = Parameter(_zeros("teacher_rank"), doc="means . teacher at separation 1, contexts x t"),  # noqa: B008
) -> Tokens:
    """Gaussian mixtures N(mu_{l,k}, sigma_{l,k}^2 I) with positional encodings; the labels' law correlates tokens.

    Contexts are (token, cluster) with the cluster fastest (RC.2 of the paper).
    """
    tokens, clusters, teachers = structure.tokens, structure.clusters, structure.teacher_rank
    contexts = tokens * clusters
    token = [c // clusters for c in range(contexts)]
    gram = sp.zeros(contexts + teachers, contexts + teachers)
    for c in range(contexts):
        for e in range(contexts):
            cross = along[c, token[e]] + along[e, token[c]]
            gram[c, e] = encodings[token[c], token[e]] + separation * cross + separation**2 * means[c, e]
        for b in range(teachers):
            gram[c, contexts + b] = gram[contexts + b, c] = separation * taught[c, b]
    for b in range(teachers):
        gram[contexts + b, contexts + b] = 1
    return Tokens(
        weights=[1],
        covariance=[[sigma[c] ** 2 for c in range(contexts)]],
        gram=[gram],
        labels=list(labels),
        teacher_means=[[separation * taught[c, b] for b in range(teachers)] for c in range(contexts)],
    )
