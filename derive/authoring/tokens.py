"""The law of the tokens: cluster labels, joint spectrum of the covariances, and second moments of (tau, pi).

One coordinate i of the common eigenbasis carries gamma_c (eigenvalue of Sigma_c), tau_c = sqrt(d) (mu_c + p_l)_i and
pi = row i of W* (docs/theory.md (1.6)). With ridge only the second moments of z = (tau_1, ..., tau_C, pi_1, ..., pi_t)
given the spectral atom matter: one Gram matrix an atom. Contexts c = (l, k) are ordered with k fastest.
"""

from __future__ import annotations

import cmath
import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from typing import Any

import sympy as sp

from ..errors import ModelError
from .language import to_exact_rationals
from .parameters import Parameter, Structure, shape_of_nested_tuples


@dataclass(frozen=True)
class Tokens:
    """The law of the tokens, with numbers or expressions in parameters as entries.

    Cluster means, positional encodings and the teacher's weights enter by their scalar products only. A product that
    is not given is zero. Each product is one matrix, or a list with one matrix for each spectral atom (a value of the
    eigenvalues of all covariances). Contexts are the pairs (token, cluster), with the cluster fastest.

    Args:
        weights: probability of each spectral atom, shape (atoms,).
        covariance: eigenvalues of the tokens' covariances in each atom, shape (atoms, contexts).
        gram: second moments of (mean + encoding of each context, row of the teacher) in each atom, shape (atoms,
            contexts + t, contexts + t), instead of all products below but `encodings_taught`.
        labels: joint probabilities of the labels of all tokens, last label fastest, shape (K^L,).
        teacher_means: overlaps of the means with the teacher, shape (contexts, t); derived if not given.
        rows: (probabilities, values), shapes (n,) and (n, t), if the teacher's rows take n values; by default they
            are Gaussian.
        means: means . means, shape (contexts, contexts).
        encodings: encodings . encodings, shape (L, L).
        along: means . encodings, shape (contexts, L).
        teacher: teacher . teacher, second moments of the rows of W*, shape (t, t).
        taught: means . teacher, shape (contexts, t).
        encodings_taught: encodings . teacher, shape (L, t); together with `gram`, averaged over the atoms.

    Example:
        >>> x = np.random.default_rng(1).normal(size=(400, 20)) * np.linspace(0.5, 1.5, 20)
        >>> law = sf.Tokens.from_arrays(x)
        >>> sf.solve(sf.problem("ridge_regression", alpha=2, law=law)).success
        True
    """

    weights: Sequence[Any]
    covariance: Sequence[Sequence[Any]]
    gram: Sequence[Any] | None = None
    labels: Sequence[Any] = (1,)
    teacher_means: Sequence[Sequence[Any]] | None = None
    rows: Sequence[Any] = ()
    means: Any = None
    encodings: Any = None
    along: Any = None
    teacher: Any = None
    taught: Any = None
    encodings_taught: Any = None

    @classmethod
    def from_arrays(
        cls, x: Any, labels: Any = None, *, encodings: Any = None, teacher: Any = None, atoms: int | None = None
    ) -> Tokens:
        """Return the law of the tokens, estimated from data.

        `law_of_data` describes the arguments; it also measures and warns of deviations of the data from the law.

        Args:
            x: tokens, as `law_of_data` takes them.
            labels: cluster labels of the tokens, or None.
            encodings: positional encodings contained in the tokens, or None.
            teacher: the teacher's weights, or None.
            atoms: number of spectral atoms, or None for the default of `law_of_data`.

        Raises:
            InputError: the arrays do not fit together.
        """
        # The estimate is numerical: NumPy is loaded when data are given, not by writing a model.
        law = import_module("saddleforge").law_of_data(x, labels, encodings=encodings, teacher=teacher, atoms=atoms).law
        return cls(
            weights=law.weights.tolist(),
            covariance=law.gamma.tolist(),
            gram=law.gram.tolist(),
            labels=law.labels.ravel().tolist(),
            encodings_taught=law.encodings_taught.tolist(),
        )

    def exact_arrays_of_law(self) -> dict[str, Any]:
        """Return all arrays of the law by name, as nested tuples of exact numbers or expressions.

        The names are weights, covariance, gram, labels, teacher_means and, for teacher rows of few values, rows.

        Raises:
            ModelError: shapes of the products of vectors do not fit, or both they and `gram` are given.
        """
        arrays = {"weights": _to_exact_tuples(self.weights), "covariance": _to_exact_tuples(self.covariance)}
        arrays["gram"] = self._gram_matrices_from_products() if self.gram is None else self._validated_gram_matrices()
        arrays["labels"] = _to_exact_tuples(self.labels)
        given = self.teacher_means is not None
        arrays["teacher_means"] = (
            _to_exact_tuples(self.teacher_means) if given else self._derive_teacher_means(arrays["gram"])
        )
        return arrays | ({"rows": _to_exact_tuples(self.rows)} if self.rows else {})

    def check_teacher_means(self) -> None:
        """Raise ModelError if the given teacher means contradict the Gram matrices, whose shapes must be correct.

        Raises:
            ModelError: a teacher mean differs from the value that follows from the Gram matrices.
        """
        if self.teacher_means is None:
            return
        arrays = self.exact_arrays_of_law()
        for c, (given, derived) in enumerate(
            zip(arrays["teacher_means"], self._derive_teacher_means(arrays["gram"]), strict=True)
        ):
            for b, (one, other) in enumerate(zip(given, derived, strict=True)):
                if not _is_identically_zero(one - other):
                    raise ModelError(
                        f"law.teacher_means[{c}][{b}] is {one}, but the rest of the law gives {other}: gram holds the "
                        "overlap of mean and encoding with the teacher, teacher_means that of the mean. Leave "
                        "teacher_means out; where encodings overlap the teacher, give encodings_taught (L x t)"
                    )

    def _validated_gram_matrices(self) -> Any:
        """Return the user's Gram matrices, after checking that the scalar products in them are not given separately."""
        given = [
            name for name in ("means", "encodings", "along", "teacher", "taught") if getattr(self, name) is not None
        ]
        if given:
            raise ModelError(f"law.gram contains law.{given[0]} already: give either gram or the products of vectors")
        return _to_exact_tuples(self.gram)

    @property
    def _numbers_of_atoms_and_contexts(self) -> tuple[int, int]:
        """Return the number of spectral atoms and the number of contexts (token, cluster)."""
        covariance = _to_exact_tuples(self.covariance)
        return len(covariance), len(covariance[0])

    def _gram_matrices_from_products(self) -> Any:
        """Return the Gram matrix of mean coordinates and teacher row in each spectral atom."""
        atoms, contexts = self._numbers_of_atoms_and_contexts
        teacher = self.teacher
        if teacher is None and self.rows:
            shares, values = (sp.Matrix(_to_exact_tuples(part)) for part in self.rows)
            teacher = values.T * sp.diag(*shares) * values
        if teacher is None:
            raise ModelError("law: teacher is missing, the second moments of the teacher's rows (t x t)")
        teachers = shape_of_nested_tuples(_to_exact_tuples(teacher))[-1]
        tokens = self._token_count
        if contexts % tokens:
            raise ModelError(
                f"law: covariance has {contexts} columns, which are not tokens x clusters for the {tokens} tokens of "
                "the encodings"
            )

        def _expand_per_spectral_atom(name: str, value: Any, *shape: int) -> Any:
            return _one_matrix_per_spectral_atom(name, value, atoms, shape)

        means, along = (
            _expand_per_spectral_atom("means", self.means, contexts, contexts),
            _expand_per_spectral_atom("along", self.along, contexts, tokens),
        )
        encodings, pi = (
            _expand_per_spectral_atom("encodings", self.encodings, tokens, tokens),
            _expand_per_spectral_atom("teacher", teacher, teachers, teachers),
        )
        taught = _expand_per_spectral_atom("taught", self.taught, contexts, teachers)
        shown = _expand_per_spectral_atom("encodings_taught", self.encodings_taught, tokens, teachers)
        token = [c * tokens // contexts for c in range(contexts)]
        grams = []
        for a in range(atoms):
            gram = sp.zeros(contexts + teachers, contexts + teachers)
            gram[contexts:, contexts:] = sp.Matrix(pi[a])
            for c in range(contexts):
                for e in range(contexts):
                    cross = sp.factor_terms(along[a][c][token[e]] + along[a][e][token[c]])
                    gram[c, e] = means[a][c][e] + cross + encodings[a][token[c]][token[e]]
                for b in range(teachers):
                    gram[c, contexts + b] = gram[contexts + b, c] = taught[a][c][b] + shown[a][token[c]][b]
            grams.append(gram)
        return _to_exact_tuples(grams)

    @property
    def _token_count(self) -> int:
        """Return the number L of tokens, from the shapes of the given products of encodings; 1 without encodings."""
        for value, axis in ((self.encodings, -1), (self.along, -1), (self.encodings_taught, -2)):
            if value is not None:
                return shape_of_nested_tuples(_to_exact_tuples(value))[axis]
        return 1

    def _derive_teacher_means(self, gram: Any) -> Any:
        """Return the overlaps of all means with the teacher, from the Gram matrices; () if shapes do not fit."""
        atoms, contexts = self._numbers_of_atoms_and_contexts
        weights = _to_exact_tuples(self.weights)
        size = shape_of_nested_tuples(gram)[-1] if gram else 0
        tokens = self._token_count
        if (
            shape_of_nested_tuples(gram) != (atoms, size, size)
            or size <= contexts
            or len(weights) != atoms
            or contexts % tokens
        ):
            return ()
        shown = _one_matrix_per_spectral_atom(
            "encodings_taught", self.encodings_taught, atoms, (tokens, size - contexts)
        )
        return tuple(
            tuple(
                sp.Add(
                    *[
                        weights[a] * (gram[a][c][contexts + b] - shown[a][c * tokens // contexts][b])
                        for a in range(atoms)
                    ]
                )
                for b in range(size - contexts)
            )
            for c in range(contexts)
        )


def _one_matrix_per_spectral_atom(name: str, value: Any, atoms: int, shape: tuple[int, ...]) -> Any:
    """Return one matrix for each spectral atom: a single matrix is repeated, a missing one replaced by zeros.

    Raises:
        ModelError: the value is neither one matrix of the given shape nor one for each atom.
    """
    if value is None:
        value = sp.zeros(*shape)
    value = _to_exact_tuples(value)
    found = shape_of_nested_tuples(value)
    if found == shape:
        return (value,) * atoms
    if found != (atoms, *shape):
        content = {"means": "products of the means of any two contexts (token, cluster)"}.get(
            name, "products of vectors"
        )
        raise ModelError(
            f"law.{name} has shape {found}, expected {shape} ({content}) or {(atoms, *shape)} (one matrix for each "
            "spectral atom)"
        )
    return value


def _is_identically_zero(expression: sp.Expr) -> bool:
    """Return whether an expression is zero, to rounding, at random values of its symbols."""
    expression = sp.expand(expression)
    generator = random.Random(6)
    for _ in range(3):
        point = {s: sp.Rational(generator.randrange(100, 900), 1000) for s in sorted(expression.free_symbols, key=str)}
        value = complex(expression.xreplace(point).evalf())
        if cmath.isfinite(value) and abs(value) > 1e-9:
            return False
    return True


def _to_exact_tuples(value: Any) -> Any:
    if isinstance(value, sp.MatrixBase):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return tuple(_to_exact_tuples(item) for item in value)
    return to_exact_rationals(value)


def simplex_gram_matrix(structure: Structure) -> tuple[tuple[sp.Rational, ...], ...]:
    """Return the Gram matrix of a regular simplex of L unit vectors, one per token: -1/(L-1) off the diagonal."""
    count = structure.tokens
    return tuple(
        tuple(sp.Integer(1) if i == j else -sp.Rational(1, count - 1) for j in range(count)) for i in range(count)
    )


def isotropic_tokens(
    structure: Structure,
    *,
    sigma: Any = Parameter(0.5, low=0, open_low=True, doc="standard deviation of a token's coordinates"),  # noqa: B008
    encodings: Any = Parameter(simplex_gram_matrix, doc="Gram matrix of the positional encodings, L x L"),  # noqa: B008
) -> Tokens:
    """Return the law of independent tokens N(0, sigma^2 I) with positional encodings.

    Rows of the teacher are standard normal.

    Args:
        structure: sizes of the model.
        sigma: standard deviation of a token's coordinates, positive.
        encodings: Gram matrix of the positional encodings, L x L.

    Example:
        >>> @sf.model(tokens=2, law=sf.isotropic_tokens)
        ... def regression(X, Y):
        ...     return sf.half_square(Y - X)
        >>> sf.problem(regression, alpha=2).parameters["encodings"].tolist()
        [[1.0, -1.0], [-1.0, 1.0]]
    """
    count, teachers = structure.tokens, structure.teacher_rank
    return Tokens(
        weights=[1],
        covariance=[[sigma**2] * count],
        encodings=encodings,
        teacher=sp.eye(teachers),
    )


def unstructured_tokens(
    structure: Structure,
    *,
    sigma: Any = Parameter(1, low=0, open_low=True, doc="standard deviation of an input's coordinates"),  # noqa: B008
) -> Tokens:
    """Return the law of inputs N(0, sigma^2 I) without encodings: the usual generalised linear setting.

    Rows of the teacher are standard normal.

    Args:
        structure: sizes of the model.
        sigma: standard deviation of an input's coordinates, positive.

    Example:
        >>> @sf.model(law=sf.unstructured_tokens)
        ... def regression(X, Y):
        ...     return sf.half_square(Y - X)
        >>> sf.problem(regression, alpha=2, sigma=2).parameters["sigma"]
        2.0
    """
    count, teachers = structure.tokens, structure.teacher_rank
    return Tokens(
        weights=[1],
        covariance=[[sigma**2] * count],
        teacher=sp.eye(teachers),
    )


def binary_teacher(
    structure: Structure,
    *,
    sigma: Any = Parameter(1, low=0, open_low=True, doc="standard deviation of an input's coordinates"),  # noqa: B008
) -> Tokens:
    """Return the law of inputs N(0, sigma^2 I) with a teacher of independent entries +1 or -1, equally likely.

    Args:
        structure: sizes of the model.
        sigma: standard deviation of an input's coordinates, positive.

    Example:
        >>> @sf.model(law=sf.binary_teacher)
        ... def regression(X, Y):
        ...     return sf.half_square(Y - X)
        >>> sf.problem(regression, alpha=2).law.rows
        (array([0.5, 0.5]), array([[-1.],
               [ 1.]]))
    """
    count, teachers = structure.tokens, structure.teacher_rank
    values = list(product((-1, 1), repeat=teachers))
    return Tokens(
        weights=[1],
        covariance=[[sigma**2] * count],
        rows=([sp.Rational(1, len(values))] * len(values), values),
    )


def sparse_teacher(
    structure: Structure,
    *,
    sigma: Any = Parameter(1, low=0, open_low=True, doc="standard deviation of an input's coordinates"),  # noqa: B008
    density: Any = Parameter(0.2, 0, 1, open_low=True, doc="share of the teacher's rows that are not zero"),  # noqa: B008
) -> Tokens:
    """Return the law of inputs N(0, sigma^2 I) whose teacher's rows are zero or, with probability `density`, Gaussian.

    A row that is not zero has the distribution N(0, I / density), so that entries have variance one on average.

    Args:
        structure: sizes of the model.
        sigma: standard deviation of an input's coordinates, positive.
        density: probability that a row of the teacher is not zero, in (0, 1].

    Example:
        >>> @sf.model(law=sf.sparse_teacher)
        ... def regression(X, Y):
        ...     return sf.half_square(Y - X)
        >>> sf.problem(regression, alpha=2, density=0.1).law.weights
        array([0.1, 0.9])
    """
    count, teachers = structure.tokens, structure.teacher_rank
    rows = [sp.eye(teachers) / density, sp.zeros(teachers, teachers)]
    return Tokens(
        weights=[density, 1 - density],
        covariance=[[sigma**2] * count] * 2,
        teacher=rows,
    )


def uniform_label_probabilities(structure: Structure) -> tuple[sp.Rational, ...]:
    """Return equal probabilities for all K^L assignments of clusters to the L tokens."""
    count = structure.clusters**structure.tokens
    return (sp.Rational(1, count),) * count


def gram_of_opposite_means(structure: Structure) -> tuple[tuple[sp.Expr, ...], ...]:
    """Return the Gram matrix of the means of all (token, cluster) pairs.

    The K means of a token are evenly spaced from -1 to 1 on a line of its own.
    """
    last = structure.clusters - 1
    places = [sp.Rational(2 * k - last, last) if last else sp.Integer(0) for k in range(structure.clusters)]
    along = places * structure.tokens
    return tuple(tuple(a * b for b in along) for a in along)


def _repeat_by_context(value: Any) -> Any:
    return lambda structure: (sp.Rational(value),) * (structure.tokens * structure.clusters)


def _zeros_by_context(columns: str) -> Any:
    def zero_matrix(structure: Structure) -> tuple[tuple[sp.Integer, ...], ...]:
        count = getattr(structure, columns)
        return ((sp.Integer(0),) * count,) * (structure.tokens * structure.clusters)

    return zero_matrix


def clustered_tokens(
    structure: Structure,
    *,
    sigma: Any = Parameter(_repeat_by_context("1/2"), low=0, open_low=True, doc="deviation of a context's coordinates"),  # noqa: B008
    labels: Any = Parameter(uniform_label_probabilities, 0, 1, doc="p(k_1..k_L), the last label fastest"),  # noqa: B008
    separation: Any = Parameter(1, 0, doc="length of the means, a factor on `means`"),  # noqa: B008
    means: Any = Parameter(gram_of_opposite_means, doc="Gram matrix of the means at separation 1, contexts x contexts"),  # noqa: B008
    along: Any = Parameter(_zeros_by_context("tokens"), doc="means . encodings at separation 1, contexts x L"),  # noqa: B008
    encodings: Any = Parameter(simplex_gram_matrix, doc="Gram matrix of the positional encodings, L x L"),  # noqa: B008
    taught: Any = Parameter(_zeros_by_context("teacher_rank"), doc="means . teacher at separation 1, contexts x t"),  # noqa: B008
) -> Tokens:
    """Return the law of tokens that are Gaussian mixtures N(mu_{l,k}, sigma_{l,k}^2 I) with positional encodings.

    Tokens l are correlated through the joint distribution of their cluster labels k. Arrays over contexts list all
    pairs (token, cluster), the cluster fastest (docs/theory.md (1.1)).

    Args:
        structure: sizes of the model.
        sigma: standard deviation of a context's coordinates, (L K,), positive.
        labels: p(k_1..k_L), the last label fastest, (K^L,).
        separation: length of the means, a factor on `means`.
        means: Gram matrix of the means at separation 1, contexts x contexts.
        along: means . encodings at separation 1, contexts x L.
        encodings: Gram matrix of the positional encodings, L x L.
        taught: means . teacher at separation 1, contexts x t.

    Example:
        >>> @sf.model(clusters=2, law=sf.clustered_tokens)
        ... def regression(X, Y):
        ...     return sf.half_square(Y - X)
        >>> problem = sf.problem(regression, alpha=2, separation=3, labels=[0.3, 0.7])
        >>> problem.contexts, problem.parameters["sigma"]
        (2, array([0.5, 0.5]))
    """
    return Tokens(
        weights=[1],
        covariance=[[sigma[c] ** 2 for c in range(structure.tokens * structure.clusters)]],
        labels=list(labels),
        means=separation**2 * means,
        encodings=encodings,
        along=separation * along,
        teacher=sp.eye(structure.teacher_rank),
        taught=separation * taught,
    )
