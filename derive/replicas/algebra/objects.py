"""What the replica calculation is written in, beyond averages.py: sums over replicas, samples and rows, log integrals.

Replicated symbols carry their replica indices behind a bar: q|ab is the overlap of replicas a and b.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ...calculus.averages import Average, MatrixAverage, Symbols, symmetrised, trace_gradient

# Kinds of `Average` that are sums: over replicas a, over ordered pairs a != b, over samples mu, over rows i of W.
REPLICAS, PAIRS, SAMPLES, ROWS = "replicas", "pairs", "samples", "rows"
# The average over the field b of one row of W: normal with mean B and covariance Q.
FIELD = "field"

n = sp.Symbol("n", positive=True)
beta = sp.Symbol("beta", positive=True)


class LogDet(sp.Expr):
    """log det of a matrix, unevaluated."""

    def __new__(cls, matrix: MatrixExpr) -> LogDet:
        """The scalar, its matrix not looked into; `scalars_out` takes numbers out of it."""
        return sp.Expr.__new__(cls, matrix)

    @property
    def matrix(self) -> MatrixExpr:
        """The matrix under the determinant, of any symbolic size."""
        return self.args[0]


class LogIntegral(sp.Expr):
    """log of the integral of exp(exponent) over all entries of a variable, unevaluated."""

    def __new__(cls, exponent: sp.Expr, variable: MatrixExpr) -> LogIntegral:
        """The scalar; the variable is bound, the exponent may hold any other symbol."""
        return sp.Expr.__new__(cls, sp.sympify(exponent), variable)

    @property
    def exponent(self) -> sp.Expr:
        """What stands in the exponential, a scalar."""
        return self.args[0]

    @property
    def variable(self) -> MatrixExpr:
        """The matrix symbol that is integrated over."""
        return self.args[1]


def replicated(symbol: Any, indices: str) -> Any:
    """The symbol of one replica ("a") or of a pair ("ab"), shape and assumptions kept."""
    name = f"{symbol.name}|{indices}"
    return sp.MatrixSymbol(name, *symbol.shape) if symbol.is_Matrix else sp.Symbol(name, real=True)


def scalars_out(expression: sp.Expr) -> sp.Expr:
    """A scalar with sums and numbers taken out of traces, log determinants and averages."""
    if isinstance(expression, sp.Add):
        return sp.Add(*[scalars_out(term) for term in expression.args])
    if isinstance(expression, sp.Mul):
        return sp.expand(sp.Mul(*[scalars_out(factor) for factor in expression.args]), deep=False)
    if isinstance(expression, sp.Trace):
        return _trace(expression.arg)
    if isinstance(expression, LogDet):
        scalar, matrix = _common(expression.matrix)
        return LogDet(matrix) + (sp.log(scalar) * matrix.shape[0] if scalar != 1 else 0)
    if isinstance(expression, LogIntegral):
        return LogIntegral(scalars_out(expression.exponent), expression.variable)
    if isinstance(expression, Average):
        return sp.Add(*[_averaged(expression.kind, term) for term in sp.Add.make_args(scalars_out(expression.summand))])
    return expression


def _averaged(kind: str, term: sp.Expr) -> sp.Expr:
    """Numbers, n and beta pass an average."""
    outside, inside = sp.sympify(term), sp.Integer(1)
    for factor in sp.Mul.make_args(term):
        if factor.free_symbols - {n, beta} or factor.has(sp.MatrixSymbol):
            outside, inside = outside / factor, inside * factor
    return outside * Average(kind, inside)


def _trace(matrix: MatrixExpr) -> sp.Expr:
    matrix = distributed(matrix)
    total: sp.Expr = sp.Integer(0)
    for term in sp.MatAdd.make_args(matrix):
        if term.is_ZeroMatrix:
            continue
        scalar, bare = term.as_coeff_mmul() if isinstance(term, sp.MatMul) else (sp.Integer(1), term)
        total += sp.expand(scalar) * sp.Trace(bare)
    return sp.expand(total, deep=False)


def distributed(matrix: MatrixExpr) -> MatrixExpr:
    """Products over sums, scalars in front, (c A)^{-1} = A^{-1} / c."""
    if isinstance(matrix, sp.MatAdd):
        return sp.MatAdd(*[distributed(term) for term in matrix.args]).doit()
    if isinstance(matrix, sp.Transpose):
        return distributed(matrix.arg).T.doit()
    if isinstance(matrix, sp.Inverse):
        scalar, bare = _common(matrix.arg)
        return (bare.inv() / scalar).doit()
    if isinstance(matrix, MatrixAverage):
        terms = sp.MatAdd.make_args(distributed(matrix.summand))
        return sp.MatAdd(*[MatrixAverage(matrix.kind, term) for term in terms]).doit()
    if isinstance(matrix, sp.MatMul):
        scalar, factors = matrix.as_coeff_matrices()
        made = [distributed(factor) for factor in factors]
        if [*made] != [*factors] or any(isinstance(factor, sp.MatAdd) for factor in made):
            return sp.MatAdd.fromiter([distributed((scalar * sp.MatMul(*made)).expand().doit())]).doit()
        return (scalar * sp.MatMul(*factors)).doit()
    return matrix


def _common(matrix: MatrixExpr) -> tuple[sp.Expr, MatrixExpr]:
    """(c, A) with matrix = c A: powers of beta that every term has."""
    matrix = distributed(matrix)
    terms = [
        term.as_coeff_mmul() if isinstance(term, sp.MatMul) else (sp.Integer(1), term)
        for term in sp.MatAdd.make_args(matrix)
    ]
    powers = {scalar.as_independent(beta)[1] for scalar, _ in terms}
    if len(powers) != 1:
        return sp.Integer(1), matrix
    (power,) = powers
    return power, sp.MatAdd(*[scalar / power * bare for scalar, bare in terms]).doit()


def with_letters(expression: sp.Expr, function: Callable[[sp.Expr], sp.Expr]) -> sp.Expr:
    """Return a function of an expression whose traces, log determinants and averages are letters meanwhile."""
    letters = {a: sp.Dummy(positive=True) for a in expression.atoms(sp.Trace, LogDet, Average)}
    return function(expression.xreplace(letters)).xreplace({letter: a for a, letter in letters.items()})


def gathered(expression: sp.Expr) -> sp.Expr:
    """Averages of one kind with one prefactor as the average of a sum."""
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


def same(first: sp.Expr, second: sp.Expr, p: Symbols) -> bool:
    """Whether two sums of traces and averages agree, multiplied out and up to the cycle and transpose of a trace."""
    difference = scalars_out(untransposed(scalars_out(first) - scalars_out(second), p))
    return sp.expand(difference.xreplace({a: _least_cycle(a, p) for a in difference.atoms(sp.Trace)})) == 0


def untransposed(expression: Any, p: Symbols) -> Any:
    """A^T = A for the symmetric matrices."""
    return expression.xreplace({a.T: a for a in p.symmetric})


def _least_cycle(trace: sp.Trace, p: Symbols) -> sp.Trace:
    candidates = []
    for product in (trace.arg, untransposed(trace.arg.T.doit(), p)):
        factors = list(sp.MatMul.make_args(product))
        candidates += [factors[i:] + factors[:i] for i in range(len(factors))]
    return sp.Trace(sp.MatMul(*min(candidates, key=str)))


def matrix_gradient(scalar: sp.Expr, variable: sp.MatrixSymbol, p: Symbols) -> MatrixExpr:
    """Return the gradient of a sum of traces and log determinants: d log det A = Tr[A^{-1} dA]."""
    total: MatrixExpr = sp.ZeroMatrix(*variable.shape)
    for term in sp.Add.make_args(scalar):
        (factor,) = [a for a in sp.Mul.make_args(term) if isinstance(a, sp.Trace | LogDet)]
        if isinstance(factor, LogDet):
            frozen = sp.MatrixSymbol("frozen", *factor.matrix.shape)
            part = trace_gradient(sp.Trace(frozen * factor.matrix), variable, p)
            part = part.subs(frozen, factor.matrix.inv()).doit()
        else:
            part = trace_gradient(factor, variable, p)
        total = total + term / factor * part
    return symmetrised(total.doit(), p)
