"""The words in which a model is written: softmax, squares, logistic terms, and exact numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sympy as sp

from ..calculus.functions import Sigmoid, SoftmaxEntry, Softplus


class _TokenWeights:
    """Placeholder for rho = diag(rho_1, ..., rho_L), the trace of each token's covariance per dimension."""

    def __repr__(self) -> str:
        return "rho"


rho = _TokenWeights()


def token_weight(token: int) -> sp.Symbol:
    """The symbol rho_l that stands for Tr Sigma_{l, k_l} / d of token `token` (from 0) in a loss."""
    return sp.Symbol(f"rho_{token}", positive=True)


def exact(value: Any) -> Any:
    """A number as the exact rational it prints as; expressions pass unchanged; nested lists become tuples.

    >>> exact(0.3)
    3/10
    """
    if isinstance(value, bool):
        return sp.Integer(int(value))
    if isinstance(value, float):
        return sp.Rational(repr(value)) if value == value and abs(value) != float("inf") else sp.Float(value)
    if isinstance(value, (int, str)):
        return sp.sympify(value, rational=True)
    if isinstance(value, sp.MatrixBase):
        return value.applyfunc(lambda e: sp.nsimplify(e, rational=True) if e.has(sp.Float) else e)
    if isinstance(value, sp.Basic):
        floats = {f: sp.Rational(str(f)) for f in value.atoms(sp.Float)}
        return value.xreplace(floats) if floats else value
    if isinstance(value, Iterable):
        return tuple(exact(item) for item in value)
    raise TypeError(f"{value!r} is not a number, an expression or a nested list of them")


def Matrix(rows: Any) -> sp.Matrix:
    """A SymPy matrix whose decimals are the exact rationals they print as."""
    if isinstance(rows, sp.MatrixBase):
        return rows
    return sp.Matrix(exact(rows))


def softmax(scores: Any) -> sp.Matrix:
    """softmax of each row of a matrix of scores, shape kept."""
    scores = Matrix(scores)
    rows, columns = scores.shape
    return sp.Matrix(rows, columns, lambda i, j: SoftmaxEntry(sp.Integer(j), *[scores[i, b] for b in range(columns)]))


def sigmoid(z: Any) -> sp.Expr:
    """1 / (1 + exp(-z))."""
    return Sigmoid(exact(z))


def softplus(z: Any) -> sp.Expr:
    """log(1 + exp(z))."""
    return Softplus(exact(z))


def by_label(label: Any, *values: Any) -> sp.Expr:
    """values[k] where a token's label is k: different losses, as of several tasks that share the weights."""
    return sp.Add(*[sp.KroneckerDelta(label, k) * exact(value) for k, value in enumerate(values)])


def rounded_hinge(z: Any, width: Any) -> sp.Expr:
    """max(0, z) with its corner rounded to a parabola over |z| < width; convex, with a continuous slope.

    The rounding moves a loss by at most width / 4 and a proximal point by at most width.
    """
    z, width = exact(z), exact(width)
    return sp.Piecewise((z, z > width), ((z + width) ** 2 / (4 * width), z > -width), (0, True))


def _weights(weight: Any, columns: int) -> list[sp.Expr]:
    if weight is None:
        return [sp.Integer(1)] * columns
    if weight is rho:
        return [token_weight(j) for j in range(columns)]
    weights = list(exact(weight))
    if len(weights) != columns:
        raise ValueError(f"weight has {len(weights)} entries, the matrix has {columns} columns")
    return weights


def square(error: Any, weight: Any = None) -> sp.Expr:
    """Tr[E diag(weight) E^T]; `weight` may be `rho`, a list with one entry a column, or absent (ones)."""
    error = Matrix(error if isinstance(error, sp.MatrixBase) else [[error]])
    weights = _weights(weight, error.shape[1])
    return sp.Add(*[weights[j] * error[i, j] ** 2 for i in range(error.shape[0]) for j in range(error.shape[1])])


def half_square(error: Any, weight: Any = None) -> sp.Expr:
    """1/2 Tr[E diag(weight) E^T], the square loss of docs/theory.md (1.10)."""
    return square(error, weight) / 2
