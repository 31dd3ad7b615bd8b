"""Expressions of the written-out saddle point: averages replaced, matrices of one entry as scalars, sums kept short."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ...authoring.model import FixedSizeModel
from ...calculus.averages import Average, Jacobian, MatrixAverage


def scalar_form(expression: Any, at: FixedSizeModel) -> Any:
    """Return an expression of 1 x 1 matrices as a scalar.

    Args:
        expression: matrix or scalar expression.
        at: model, whose teacher fields give Y its symbols.
    """

    def _convert_to_scalar(e: Any) -> Any:
        if isinstance(e, MatrixAverage | Average):
            return Average(e.kind, _convert_to_scalar(e.summand))
        if isinstance(e, Jacobian):
            return sp.Symbol(f"d{e.args[0].name}/d{e.args[1].name}", real=True)
        if isinstance(e, sp.MatrixSymbol):
            stem, _, index = e.name.partition("@")
            return at.Y[int(index or 1) - 1, 0] if stem == "Y" else sp.Symbol(e.name, real=True)
        if isinstance(e, sp.MatrixBase):
            return e[0, 0]
        if isinstance(e, sp.Identity):
            return sp.Integer(1)
        if isinstance(e, sp.ZeroMatrix):
            return sp.Integer(0)
        if isinstance(e, sp.Transpose | sp.Trace):
            return _convert_to_scalar(e.arg)
        if isinstance(e, sp.Inverse):
            return 1 / _convert_to_scalar(e.arg)
        if isinstance(e, sp.MatPow):
            return _convert_to_scalar(e.base) ** e.exp
        if isinstance(e, sp.MatAdd | sp.Add):
            return sp.Add(*[_convert_to_scalar(a) for a in e.args])
        if isinstance(e, sp.MatMul | sp.Mul):
            return sp.Mul(*[_convert_to_scalar(a) for a in e.args])
        return e.func(*[_convert_to_scalar(a) for a in e.args]) if e.args and e.has(MatrixExpr) else e

    return _convert_to_scalar(expression)


def replace_averages(
    expression: MatrixExpr, rule: Callable[[Any], Any], kind: str, names: dict[Any, Any] | None = None
) -> MatrixExpr:
    """Return an expression with averages of one kind replaced and other symbols renamed.

    Args:
        expression: matrix expression.
        rule: maps an average of this kind to what replaces it.
        kind: kind of the averages.
        names: symbol -> what replaces it, before the averages.
    """

    def _is_average_of_kind(e: Any) -> bool:
        return isinstance(e, MatrixAverage | Average) and e.kind == kind

    return expression.xreplace(names or {}).replace(_is_average_of_kind, rule).doit()


def sum_matrices(terms: list[MatrixExpr], shape: tuple[int, int]) -> MatrixExpr:
    """Return the sum of matrices, the zero matrix if there are none.

    Args:
        terms: matrices of one shape.
        shape: (rows, columns) of the sum.
    """
    kept = [term for term in terms if not getattr(term, "is_ZeroMatrix", False)]
    return sp.MatAdd(sp.ZeroMatrix(*shape), *kept).doit()


def simplify_matrix(matrix: sp.Matrix) -> Any:
    """Return a matrix as zero, as a multiple of the identity, or as it is: the simplest form that applies."""
    matrix = sp.Matrix(matrix)
    if all(e == 0 for e in matrix):
        return sp.ZeroMatrix(*matrix.shape)
    if matrix.is_square and matrix == matrix[0, 0] * sp.eye(matrix.rows):
        return matrix[0, 0] * sp.Identity(matrix.rows)
    return sp.ImmutableDenseMatrix(matrix)


def shorten_expression(expression: sp.Expr) -> sp.Expr:
    """Return the form of an expression with the fewest operations; a long product with one sum is multiplied out."""
    ways = [expression, sp.factor_terms(expression)]
    if sp.count_ops(expression) < 40:
        ways.append(sp.factor(expression))
    best = min(ways, key=sp.count_ops)
    sums = [f for f in sp.Mul.make_args(best) if f.is_Add]
    if best.is_Mul and len(sums) == 1 and sp.count_ops(best) > 30:
        outside = best / sums[0]
        return sp.Add(*[outside * term for term in sums[0].args])
    return best


def shorten_by_collecting_factors(expression: sp.Expr, symbols: list[sp.Symbol]) -> sp.Expr:
    """Return the form with the fewest operations: as it is, with common factors taken out, or in powers of one symbol.

    Args:
        expression: scalar expression.
        symbols: candidates for the symbol in whose powers terms are collected.
    """
    ways = [expression, sp.factor_terms(expression)]
    if sp.count_ops(expression) < 60:
        expanded = sp.expand(expression)
        ways += [sp.collect(expanded, z) for z in symbols if expression.has(z)]
        weights = [z for z in expression.free_symbols if z.name.startswith("rho_")]
        ways += [sp.collect(expanded, sorted(weights, key=str), sp.factor_terms)] if weights else []
    return min(ways, key=sp.count_ops)
