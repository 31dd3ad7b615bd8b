"""The functions and constants that models are written with: softmax, squares, logistic terms, and exact numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from keyword import iskeyword
from typing import Any

import sympy as sp

from ..calculus.functions import Box, Sigmoid, SoftmaxEntry, Softplus
from ..errors import ModelError


class _TokenWeights:
    """A placeholder for the weights rho_1, ..., rho_L: the trace of each token's covariance over the dimension d.

    Example:
        >>> a, b = sp.symbols("a b")
        >>> sf.square(sf.Matrix([[a, b]]), weight=sf.rho)
        a**2*rho_0 + b**2*rho_1
    """

    def __repr__(self) -> str:
        return "rho"


rho = _TokenWeights()
CLUSTERS: ContextVar[Mapping[sp.Basic, int] | None] = ContextVar("CLUSTERS", default=None)
"""Numbers of clusters by label, while a model's functions are called."""


def _exponential_of_single_entry(matrix: sp.MatrixBase, exponential: Callable[[], sp.Matrix]) -> sp.Matrix:
    """Return the exponential of a 1 x 1 matrix.

    Raises:
        TypeError: the matrix has several entries, whose matrix exponential is unlikely to be intended.
    """
    if matrix.shape != (1, 1):
        raise TypeError("exp of several entries would be the matrix exponential, which is hardly intended")
    return exponential()


class _ImmutableFieldMatrix(sp.ImmutableDenseMatrix):
    """An immutable matrix of fields, into which SymPy converts a `FieldMatrix` that is an argument of a function."""

    def exp(self) -> sp.Matrix:
        return _exponential_of_single_entry(self, super().exp)


class FieldMatrix(sp.Matrix):
    """A SymPy matrix of fields or parameters, the form in which an author's functions receive them."""

    def exp(self) -> sp.Matrix:
        """Return the exponential of a 1 x 1 matrix.

        Raises:
            TypeError: the matrix has several entries.
        """
        return _exponential_of_single_entry(self, super().exp)

    def as_immutable(self) -> sp.ImmutableDenseMatrix:
        """Return an immutable copy of the matrix."""
        return _ImmutableFieldMatrix(self)


def token_variance_symbol(token: int) -> sp.Symbol:
    """Return the symbol rho_l of the variance of a token l (numbered from 0): the trace of its covariance over d."""
    return sp.Symbol(f"rho_{token}", positive=True)


def to_exact_rationals(value: Any) -> Any:
    """Convert floats to the exact rationals that they are printed as, in numbers, expressions and nested lists.

    >>> to_exact_rationals(0.3)
    3/10

    Raises:
        ModelError: a string is not an expression.
        TypeError: the value is neither a number, an expression nor a nested list of these.
    """
    if isinstance(value, bool):
        return sp.Integer(int(value))
    if isinstance(value, float):
        return sp.Rational(repr(float(value))) if value == value and abs(value) != float("inf") else sp.Float(value)
    if isinstance(value, (int, str)):
        try:
            return sp.sympify(value, rational=True)
        except (sp.SympifyError, AttributeError, TypeError) as error:
            keyword = f" ({value} is a word of Python; a parameter is {value}_)" if iskeyword(str(value)) else ""
            raise ModelError(
                f"{value!r} is neither a number nor an expression of parameters' names{keyword}"
            ) from error
    if isinstance(value, sp.MatrixBase):
        return value.applyfunc(to_exact_rationals)
    if isinstance(value, sp.Basic):
        floats = {f: sp.Rational(str(f)) for f in value.atoms(sp.Float)}
        return value.xreplace(floats) if floats else value
    if isinstance(value, Iterable):
        return tuple(to_exact_rationals(item) for item in value)
    raise TypeError(f"{value!r} is not a number, an expression or a nested list of them")


def Matrix(rows: Any) -> sp.Matrix:
    """Return a SymPy matrix whose decimals are the exact rationals they print as.

    Example:
        >>> sf.Matrix([[0.6, 0.4], [0.4, 0.6]])[0, 1]
        2/5
    """
    if isinstance(rows, sp.MatrixBase):
        return rows
    return sp.Matrix(to_exact_rationals(rows))


def softmax(scores: Any) -> sp.Matrix:
    """Return the softmax of each row of a matrix of scores, in the same shape; a list of scores is one row.

    Raises:
        TypeError: `scores` is a single number.

    Example:
        >>> x = sp.Symbol("x", real=True)
        >>> sf.softmax(sp.Matrix([[x, 0]])).subs(x, 0).evalf()
        Matrix([[0.5, 0.5]])
    """
    if not isinstance(scores, sp.MatrixBase):
        scores = to_exact_rationals(scores)
        if not isinstance(scores, tuple):
            raise TypeError(
                f"softmax of the single score {scores!r}: pass a matrix (softmax of each row) or a list of scores"
            )
        scores = sp.Matrix(scores if isinstance(scores[0], tuple) else [scores])
    rows, columns = scores.shape
    return sp.Matrix(rows, columns, lambda i, j: SoftmaxEntry(sp.Integer(j), *[scores[i, b] for b in range(columns)]))


def sigmoid(z: Any) -> sp.Expr:
    """Return the logistic function 1 / (1 + exp(-z)) of a number or expression z.

    Example:
        >>> x = sp.Symbol("x", real=True)
        >>> float(sf.sigmoid(x).subs(x, 0))
        0.5
    """
    return Sigmoid(to_exact_rationals(z))


def softplus(z: Any) -> sp.Expr:
    """Return the softplus function log(1 + exp(z)) of a number or expression z.

    Example:
        >>> x = sp.Symbol("x", real=True)
        >>> sp.diff(sf.softplus(x), x) == sf.sigmoid(x)
        True
    """
    return Softplus(to_exact_rationals(z))


def box(z: Any, low: Any, high: Any) -> sp.Expr:
    """Return 0 where low <= z <= high, infinity elsewhere: a term of a penalty that keeps a weight in an interval.

    Args:
        z: the weight, an expression.
        low: lower end of the interval, a number or expression in parameters.
        high: upper end.

    Example:
        >>> @sf.penalty
        ... def relaxed_binary(w, *, bound=1):
        ...     return sf.box(w[0], -bound, bound)
        >>> sf.box(sp.Symbol("w"), -1, 1)
        Box(w, -1, 1)
    """
    return Box(*map(to_exact_rationals, (z, low, high)))


def by_label(label: Any, *values: Any) -> sp.Expr:
    """Return values[k] for the cluster label k of a token, for example a different loss for each of several tasks.

    Args:
        label: label of one token, as k[0].
        *values: one number or expression for each label, from 0.

    Raises:
        ModelError: the number of values is not that of the model's clusters.

    Example:
        >>> x, label = sp.symbols("x label")
        >>> loss = sf.by_label(label, x**2, abs(x))
        >>> loss.subs(label, 1)
        Abs(x)
    """
    if isinstance(label, tuple | sp.Tuple):
        raise ModelError("by_label takes the label of one token, as k[0]; k is the tuple of the labels of all tokens")
    clusters = (CLUSTERS.get() or {}).get(label, len(values))
    if clusters != len(values):
        raise ModelError(
            f"by_label has {len(values)} values, but the model has {clusters} clusters: give one value for each "
            f"cluster, or declare @sf.model(clusters={len(values)})"
        )
    return sp.Add(*[sp.KroneckerDelta(label, k) * to_exact_rationals(value) for k, value in enumerate(values)])


def rounded_hinge(z: Any, width: Any) -> sp.Expr:
    """Return max(0, z) with the corner replaced by a parabola for |z| < width: convex and continuously differentiable.

    The rounding moves a loss by at most width / 4 and a proximal point by at most width.

    Args:
        z: the argument, a number or expression.
        width: half the length of the interval in which the corner is rounded, positive.

    Example:
        >>> [sf.rounded_hinge(z, 0.1) for z in (-1, 0, 1)]
        [0, 1/40, 1]
    """
    z, width = to_exact_rationals(z), to_exact_rationals(width)
    return sp.Piecewise((z, z > width), ((z + width) ** 2 / (4 * width), z > -width), (0, True))


def _column_weights(weight: Any, columns: int) -> list[sp.Expr]:
    """Return the list of weights of all columns: ones, token variances or the given numbers."""
    if weight is None:
        return [sp.Integer(1)] * columns
    if weight is rho:
        return [token_variance_symbol(j) for j in range(columns)]
    weights = list(to_exact_rationals(weight))
    if len(weights) != columns:
        raise ValueError(f"weight has {len(weights)} entries; it must have one for each of the {columns} columns")
    return weights


def square(error: Any, weight: Any = None) -> sp.Expr:
    """Return the sum of squared entries of a matrix E, weighted by column: Tr[E diag(weight) E^T].

    Args:
        error: the matrix E, or a single entry.
        weight: `rho`, a list with one number for each column of E, or None for ones.

    Example:
        >>> a, b = sp.symbols("a b")
        >>> sf.square(sf.Matrix([[a, b]]))
        a**2 + b**2
    """
    error = Matrix(error if isinstance(error, sp.MatrixBase) else [[error]])
    weights = _column_weights(weight, error.shape[1])
    return sp.Add(*[weights[j] * error[i, j] ** 2 for i in range(error.shape[0]) for j in range(error.shape[1])])


def half_square(error: Any, weight: Any = None) -> sp.Expr:
    """Return half the weighted sum of squared entries of a matrix E: 1/2 Tr[E diag(weight) E^T].

    Args:
        error: the matrix E, or a single entry.
        weight: `rho`, a list with one number for each column of E, or None for ones.

    Example:
        >>> a, b = sp.symbols("a b")
        >>> sf.half_square(sf.Matrix([[a, b]]), weight=[1, 0.1])
        a**2/2 + b**2/20
    """
    return square(error, weight) / 2
