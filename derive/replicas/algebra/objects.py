"""Objects of the replica calculation: sums over replicas, samples and rows, log determinants and log integrals.

Replicated symbols carry their replica indices behind a bar: q|ab is the overlap of replicas a and b.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ...calculus.averages import (
    Average,
    MatrixAverage,
    OrderParameterSymbols,
    drop_transposes_of_symmetric_matrices,
    gradient_of_trace,
)

# Kinds of `Average` that are sums: over replicas a, over ordered pairs a != b, over samples mu, over rows i of W.
REPLICAS, PAIRS, SAMPLES, ROWS = "replicas", "pairs", "samples", "rows"
# The average over the field b of one row of W: normal with mean B and covariance Q.
FIELD = "field"

n = sp.Symbol("n", positive=True)
beta = sp.Symbol("beta", positive=True)


class LogDet(sp.Expr):
    """The logarithm of the determinant of a matrix, unevaluated."""

    def __new__(cls, matrix: MatrixExpr) -> LogDet:
        """Create the log determinant without simplifying its matrix; `factor_out_scalars` does that."""
        return sp.Expr.__new__(cls, matrix)

    @property
    def determinant_matrix(self) -> MatrixExpr:
        """Return the matrix whose determinant is taken."""
        return self.args[0]


class LogIntegral(sp.Expr):
    """The logarithm of the integral of exp(exponent) over all entries of a variable, unevaluated."""

    def __new__(cls, exponent: sp.Expr, variable: MatrixExpr) -> LogIntegral:
        """Create the log integral of exp(exponent) over all entries of a matrix symbol."""
        return sp.Expr.__new__(cls, sp.sympify(exponent), variable)

    @property
    def log_integrand(self) -> sp.Expr:
        """Return the logarithm of the integrand, a scalar."""
        return self.args[0]

    @property
    def integration_variable(self) -> MatrixExpr:
        """Return the matrix symbol that is integrated over."""
        return self.args[1]


def replica_symbol(symbol: Any, indices: str) -> Any:
    """Return the symbol of one replica or of a pair, with the same shape and assumptions.

    Args:
        symbol: scalar or matrix symbol.
        indices: "a" for a replica, "ab" for a pair.
    """
    name = f"{symbol.name}|{indices}"
    return sp.MatrixSymbol(name, *symbol.shape) if symbol.is_Matrix else sp.Symbol(name, real=True)


def factor_out_scalars(expression: sp.Expr) -> sp.Expr:
    """Return a scalar with numbers and sums taken out of its traces, log determinants and averages."""
    if isinstance(expression, sp.Add):
        return sp.Add(*[factor_out_scalars(term) for term in expression.args])
    if isinstance(expression, sp.Mul):
        return sp.expand(sp.Mul(*[factor_out_scalars(factor) for factor in expression.args]), deep=False)
    if isinstance(expression, sp.Trace):
        return _expand_trace(expression.arg)
    if isinstance(expression, LogDet):
        scalar, matrix = _common_power_of_beta(expression.determinant_matrix)
        return LogDet(matrix) + (sp.log(scalar) * matrix.shape[0] if scalar != 1 else 0)
    if isinstance(expression, LogIntegral):
        return LogIntegral(factor_out_scalars(expression.log_integrand), expression.integration_variable)
    if isinstance(expression, Average):
        terms = sp.Add.make_args(factor_out_scalars(expression.summand))
        return sp.Add(*[_average_of_term(expression.kind, term) for term in terms])
    return expression


def _average_of_term(kind: str, term: sp.Expr) -> sp.Expr:
    """Return the average of a term, with numbers, the number n of replicas and beta taken out of it."""
    outside, inside = sp.sympify(term), sp.Integer(1)
    for factor in sp.Mul.make_args(term):
        if factor.free_symbols - {n, beta} or factor.has(sp.MatrixSymbol):
            outside, inside = outside / factor, inside * factor
    return outside * Average(kind, inside)


def _expand_trace(matrix: MatrixExpr) -> sp.Expr:
    matrix = multiply_out_matrix(matrix)
    total: sp.Expr = sp.Integer(0)
    for term in sp.MatAdd.make_args(matrix):
        if term.is_ZeroMatrix:
            continue
        scalar, bare = term.as_coeff_mmul() if isinstance(term, sp.MatMul) else (sp.Integer(1), term)
        total += sp.expand(scalar) * sp.Trace(bare)
    return sp.expand(total, deep=False)


def multiply_out_matrix(matrix: MatrixExpr) -> MatrixExpr:
    """Return a matrix expression with products multiplied out and scalars in front, also those of inverses."""
    if isinstance(matrix, sp.MatAdd):
        return sp.MatAdd(*[multiply_out_matrix(term) for term in matrix.args]).doit()
    if isinstance(matrix, sp.Transpose):
        return multiply_out_matrix(matrix.arg).T.doit()
    if isinstance(matrix, sp.Inverse):
        scalar, bare = _common_power_of_beta(matrix.arg)
        return (bare.inv() / scalar).doit()
    if isinstance(matrix, MatrixAverage):
        terms = sp.MatAdd.make_args(multiply_out_matrix(matrix.summand))
        return sp.MatAdd(*[MatrixAverage(matrix.kind, term) for term in terms]).doit()
    if isinstance(matrix, sp.MatMul):
        scalar, factors = matrix.as_coeff_matrices()
        made = [multiply_out_matrix(factor) for factor in factors]
        if [*made] != [*factors] or any(isinstance(factor, sp.MatAdd) for factor in made):
            return sp.MatAdd.fromiter([multiply_out_matrix((scalar * sp.MatMul(*made)).expand().doit())]).doit()
        return (scalar * sp.MatMul(*factors)).doit()
    return matrix


def _common_power_of_beta(matrix: MatrixExpr) -> tuple[sp.Expr, MatrixExpr]:
    """Return (c, A) with matrix = c A, where c is the power of beta that all terms have in common."""
    matrix = multiply_out_matrix(matrix)
    terms = [
        term.as_coeff_mmul() if isinstance(term, sp.MatMul) else (sp.Integer(1), term)
        for term in sp.MatAdd.make_args(matrix)
    ]
    powers = {scalar.as_independent(beta)[1] for scalar, _ in terms}
    if len(powers) != 1:
        return sp.Integer(1), matrix
    (power,) = powers
    return power, sp.MatAdd(*[scalar / power * bare for scalar, bare in terms]).doit()


def apply_function_outside_traces(expression: sp.Expr, function: Callable[[sp.Expr], sp.Expr]) -> sp.Expr:
    """Return function(expression), with traces, log determinants and averages taken as symbols.

    Args:
        expression: scalar expression.
        function: applied after the replacement by symbols, which is undone afterwards.
    """
    letters = {a: sp.Dummy(positive=True) for a in expression.atoms(sp.Trace, LogDet, Average)}
    return function(expression.xreplace(letters)).xreplace({letter: a for a, letter in letters.items()})


def merge_averages(expression: sp.Expr) -> sp.Expr:
    """Return a sum in which averages of the same kind and prefactor are merged into one average."""
    terms: dict[tuple[str, sp.Expr], list[tuple[sp.Expr, sp.Expr]]] = {}
    rest: list[sp.Expr] = []
    for term in sp.Add.make_args(expression):
        averages = [factor for factor in sp.Mul.make_args(term) if isinstance(factor, Average)]
        if len(averages) != 1:
            rest.append(term)
            continue
        number, symbols = (term / averages[0]).as_coeff_Mul()
        terms.setdefault((averages[0].kind, symbols), []).append((number, averages[0].summand))
    for (kind, symbols), parts in terms.items():
        if len(parts) == 1:
            rest.append(parts[0][0] * symbols * Average(kind, parts[0][1]))
        else:
            rest.append(symbols * Average(kind, sp.Add(*[number * inside for number, inside in parts])))
    return sp.Add(*rest)


def is_equal_up_to_trace_cycles(first: sp.Expr, second: sp.Expr, p: OrderParameterSymbols) -> bool:
    """Return whether two sums of traces and averages are equal, up to cyclic order and transposes in traces.

    Args:
        first: scalar expression.
        second: scalar expression.
        p: symbols of the order parameters, which tell which matrices are symmetric.
    """
    difference = drop_symmetric_transposes(factor_out_scalars(first) - factor_out_scalars(second), p)
    difference = factor_out_scalars(difference)
    return sp.expand(difference.xreplace({a: _canonical_trace(a, p) for a in difference.atoms(sp.Trace)})) == 0


def drop_symmetric_transposes(expression: Any, p: OrderParameterSymbols) -> Any:
    """Return an expression with A^T replaced by A for the symmetric order parameters A.

    Args:
        expression: matrix or scalar.
        p: symbols of the order parameters, which tell which matrices are symmetric.
    """
    return expression.xreplace({a.T: a for a in p.symmetric_matrices})


def _canonical_trace(trace: sp.Trace, p: OrderParameterSymbols) -> sp.Trace:
    candidates = []
    for product in (trace.arg, drop_symmetric_transposes(trace.arg.T.doit(), p)):
        factors = list(sp.MatMul.make_args(product))
        candidates += [factors[i:] + factors[:i] for i in range(len(factors))]
    return sp.Trace(sp.MatMul(*min(candidates, key=str)))


def matrix_gradient(scalar: sp.Expr, variable: sp.MatrixSymbol, p: OrderParameterSymbols) -> MatrixExpr:
    """Return the gradient in a matrix of a sum of traces and log determinants.

    For example, d log det A = Tr[A^{-1} dA].

    Args:
        scalar: sum of terms, each with one trace or log determinant.
        variable: matrix in which the scalar is differentiated.
        p: symbols of the order parameters, which tell which matrices are symmetric.
    """
    total: MatrixExpr = sp.ZeroMatrix(*variable.shape)
    for term in sp.Add.make_args(scalar):
        (factor,) = [a for a in sp.Mul.make_args(term) if isinstance(a, sp.Trace | LogDet)]
        if isinstance(factor, LogDet):
            frozen = sp.MatrixSymbol("frozen", *factor.determinant_matrix.shape)
            part = gradient_of_trace(sp.Trace(frozen * factor.determinant_matrix), variable, p)
            part = part.subs(frozen, factor.determinant_matrix.inv()).doit()
        else:
            part = gradient_of_trace(factor, variable, p)
        total = total + term / factor * part
    return drop_transposes_of_symmetric_matrices(total.doit(), p)
