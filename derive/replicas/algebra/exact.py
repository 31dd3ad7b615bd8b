"""Exact values of the expressions of a step at explicit matrices: what its checks compare.

Numbers are rationals, or symbols where a check keeps some; Gaussian integrals are done in closed form. An expression
and what it is compared with meet only here, so that a wrong term in either shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from itertools import permutations
from operator import mul
from random import Random
from typing import Any

import sympy as sp

from ...calculus.averages import Average, Jacobian, MatrixAverage
from .objects import PAIRS, REPLICAS, LogDet, LogIntegral

Terms = Sequence[tuple[Any, Mapping[str, Any]]]  # (weight, values of its own) of the terms of a sum


@dataclass(frozen=True)
class Law:
    """A normal law of named vectors, for exact averages of polynomials of second degree and of their exponentials.

    Attributes:
        names: the vectors, stacked; mean: their mean; covariance: their covariance.
    """

    names: tuple[str, ...]
    mean: sp.Matrix
    covariance: sp.Matrix

    def draw(self, at: Values) -> tuple[list[sp.Symbol], Values]:
        """Return fresh symbols for the entries, and the values with the vectors replaced by them."""
        letters = [sp.Dummy(f"z{i}", real=True) for i in range(len(self.mean))]
        bound: dict[str, sp.Matrix] = {}
        rest = letters
        for name in self.names:
            size = at.values[name].rows
            bound[name], rest = sp.Matrix(rest[:size]), rest[size:]
        return letters, at.having(bound)

    def average(self, expression: Any, at: Values) -> Any:
        """Return E[expression] of polynomials of second degree, entry by entry.

        Raises:
            ValueError: it is not of second degree.
        """
        letters, bound = self.draw(at)
        value = bound(expression)
        if isinstance(value, sp.MatrixBase):
            return value.applyfunc(lambda entry: self._average(entry, letters))
        return self._average(value, letters)

    def _average(self, polynomial: sp.Expr, letters: list[sp.Symbol]) -> sp.Expr:
        constant, linear, quadratic = coefficients(polynomial, letters)
        m = self.mean
        return constant + (linear.T * m)[0] - ((m.T * quadratic * m)[0] + sp.trace(quadratic * self.covariance)) / 2

    def log_average_exp(self, exponent: sp.Expr, at: Values) -> sp.Expr:
        """Return log E[exp(exponent)] of a polynomial of second degree; the covariance must be regular.

        Raises:
            ValueError: it is not of second degree, or the integral diverges.
        """
        letters, bound = self.draw(at)
        precision, mean = self.covariance.inv(), self.mean
        norm = sp.log(self.covariance.det()) / 2 + sp.Rational(len(letters), 2) * sp.log(2 * sp.pi)
        constant, linear, quadratic = coefficients(bound(exponent), letters)
        constant -= (mean.T * precision * mean)[0] / 2
        return _log_normal_integral(constant, linear + precision * mean, quadratic + precision) - norm

    def tilted(self, exponent: sp.Expr, at: Values) -> Law:
        """Return the law with the weight exp(exponent), of second degree in the vectors; it must stay normal."""
        letters, bound = self.draw(at)
        _, linear, precision = coefficients(bound(exponent), letters)
        own = self.covariance.inv()
        covariance = (own + precision).inv()
        return Law(self.names, covariance * (own * self.mean + linear), covariance)


def coefficients(polynomial: sp.Expr, letters: list[sp.Symbol]) -> tuple[sp.Expr, sp.Matrix, sp.Matrix]:
    """(c, h, P) of c + h^T z - 1/2 z^T P z.

    Raises:
        ValueError: the exponent is not a polynomial of second degree.
    """
    place = {letter: i for i, letter in enumerate(letters)}
    constants: list[sp.Expr] = []
    linear = [sp.Integer(0)] * len(letters)
    quadratic = [[sp.Integer(0)] * len(letters) for _ in letters]
    for term in sp.Add.make_args(sp.expand(polynomial)):
        number, rest = term.as_independent(*letters, as_Add=False)
        factors = [base for base, power in rest.as_powers_dict().items() for _ in range(int(power)) if base != 1]
        if len(factors) > 2 or not set(factors) <= set(letters):
            raise ValueError("not a polynomial of second degree")
        if not factors:
            constants.append(number)
        elif len(factors) == 1:
            linear[place[factors[0]]] += number
        else:
            i, j = (place[factor] for factor in factors)
            quadratic[i][j] -= number
            quadratic[j][i] -= number
    return sp.Add(*constants), sp.Matrix(len(letters), 1, linear), sp.Matrix(quadratic)


def log_integral(exponent: sp.Expr, letters: list[sp.Symbol]) -> sp.Expr:
    """log of the integral of exp(c + h^T z - 1/2 z^T P z): c + 1/2 h^T P^{-1} h - 1/2 log det P + k/2 log(2 pi)."""
    return _log_normal_integral(*coefficients(exponent, letters))


def _log_normal_integral(constant: sp.Expr, linear: sp.Matrix, precision: sp.Matrix) -> sp.Expr:
    if precision.is_hermitian and not precision.free_symbols and not _is_positive(precision):
        raise ValueError("the integral diverges")
    return (
        constant
        + (linear.T * precision.inv() * linear)[0] / 2
        - sp.log(sp.factor(precision.det())) / 2
        + sp.Rational(linear.rows, 2) * sp.log(2 * sp.pi)
    )


def _is_positive(matrix: sp.Matrix) -> bool:
    """Whether a symmetric matrix is positive definite: the pivots of its elimination, in fractions."""
    if not all(entry.is_Rational for entry in matrix):
        return bool(matrix.is_positive_definite)
    rows = [[Fraction(int(entry.p), int(entry.q)) for entry in matrix.row(i)] for i in range(matrix.rows)]
    for i, pivot in enumerate(rows):
        if pivot[i] <= 0:
            return False
        for other in rows[i + 1 :]:
            factor = other[i] / pivot[i]
            other[:] = [a - factor * b for a, b in zip(other, pivot, strict=True)]
    return True


@dataclass(frozen=True)
class Values:
    """Explicit matrices and numbers by name, laws by the kind of average, and how many replicas there are.

    Attributes:
        values: name -> matrix or number, or a function of (these values, replica suffix) for what depends on others;
            those of replica 1 or of the pair (1, 2) are called w|1, q|12, a derivative dw/db where it is given.
        sums: kind of average -> (weight, values of their own) of each of its terms, or a function of these values where
            they depend on the term of a sum outside; one term by default.
        laws: kind of average -> normal law of each term, or a function of these values where it depends on the term or
            on what is drawn outside.
        replicas: n where sums over replicas are written out.
        indices: what the replica letters a, b stand for at this place.
    """

    values: Mapping[str, Any]
    sums: Mapping[str, Terms | Callable[[Values], Terms]] = field(default_factory=dict)
    laws: Mapping[str, Law | Callable[[Values], Law]] = field(default_factory=dict)
    replicas: int = 1
    indices: Mapping[str, str] = field(default_factory=dict)

    def having(self, values: Mapping[str, Any] | None = None, /, **indices: str) -> Values:
        """These with further values, which take precedence, and replica letters bound: `having(a="1")`."""
        merged = {**self.values, **(values or {})}
        return Values(merged, self.sums, self.laws, self.replicas, {**self.indices, **indices})

    def law(self, kind: str) -> Law:
        """The law of a kind of average, here."""
        found = self.laws[kind]
        return found if isinstance(found, Law) else found(self)

    def __call__(self, expression: Any) -> Any:
        """The value of an expression.

        Raises:
            TypeError: something has no value here.
        """
        return _value(expression, self)


def _symbol(expression: Any, at: Values) -> Any:
    stem, bar, letters = expression.name.partition("|")
    name = stem + bar + "".join(at.indices.get(letter, letter) for letter in letters)
    if name in at.values:
        found = at.values[name]
        return found(at, "") if callable(found) else found
    if bar and callable(at.values.get(stem)):
        return at.values[stem](at, name.removeprefix(stem))
    if expression.is_Matrix:
        raise KeyError(f"no value for {name}")
    return expression


def _average(expression: Average | MatrixAverage, at: Values) -> Any:
    kind, inside = expression.kind, expression.summand
    numbers = [str(a) for a in range(1, at.replicas + 1)]
    if kind == REPLICAS:
        return _sum([at.having(a=a)(inside) for a in numbers], inside)
    if kind == PAIRS:
        return _sum([at.having(a=a, b=b)(inside) for a, b in permutations(numbers, 2)], inside)
    terms = at.sums.get(kind, ((1, {}),))
    places = [(weight, at.having(own)) for weight, own in (terms(at) if callable(terms) else terms)]
    if kind in at.laws:
        return _sum([weight * here.law(kind).average(inside, here) for weight, here in places], inside)
    return _sum([weight * here(inside) for weight, here in places], inside)


def _sum(values: list[Any], like: Any) -> Any:
    if getattr(like, "is_Matrix", False):
        return sum(values[1:], values[0])
    return sp.Add(*values)


_OF_MATRIX: dict[type, Callable[[sp.Matrix], Any]] = {
    sp.Transpose: lambda matrix: matrix.T,
    sp.Inverse: lambda matrix: matrix.inv(),
    sp.Trace: sp.trace,
    LogDet: lambda matrix: sp.log(sp.factor(matrix.det())),
}


def _value(expression: Any, at: Values) -> Any:
    if isinstance(expression, sp.Symbol | sp.MatrixSymbol):
        return _symbol(expression, at)
    if isinstance(expression, Average | MatrixAverage):
        return _average(expression, at)
    if isinstance(expression, Jacobian):
        field, variable = expression.args
        named = field
        while isinstance(named, MatrixAverage):  # a tilted field goes by the field's name
            named = named.summand
        given = at.values.get(f"d{getattr(named, 'name', '')}/d{variable.name}")
        return at(field).jacobian(at(variable)) if given is None else given
    if isinstance(expression, sp.MatrixBase):
        return sp.Matrix(expression.applyfunc(at))
    if isinstance(expression, sp.BlockMatrix):
        blocks = expression.blocks
        rows = [sp.Matrix.hstack(*[at(block) for block in blocks.row(i)]) for i in range(blocks.rows)]
        return sp.Matrix.vstack(*rows)
    if isinstance(expression, sp.MatAdd):
        return _sum([at(a) for a in expression.args], expression)
    if isinstance(expression, sp.MatMul):
        scalar, factors = expression.as_coeff_matrices()
        return at(scalar) * reduce(mul, map(at, factors))
    if type(expression) in _OF_MATRIX:
        return _OF_MATRIX[type(expression)](at(expression.args[0]))
    if isinstance(expression, sp.MatPow):
        return at(expression.base) ** int(expression.exp)
    if isinstance(expression, LogIntegral):
        name = expression.variable.name
        letters, bound = Law((name,), at.values[name] * 0, sp.Matrix()).draw(at)
        return log_integral(bound(expression.exponent), letters)
    if isinstance(expression, sp.log) and isinstance(expression.args[0], Average):
        average = expression.args[0]
        if average.kind in at.laws and isinstance(average.summand, sp.exp):
            return at.law(average.kind).log_average_exp(average.summand.args[0], at)
    if getattr(expression, "is_Matrix", False):
        if isinstance(expression, sp.ZeroMatrix | sp.Identity):
            shape = (int(at(size)) for size in expression.shape)
            return (sp.zeros if isinstance(expression, sp.ZeroMatrix) else sp.eye)(*shape)
        raise TypeError(f"no value for {expression!r}")
    if expression.args:
        return expression.func(*[at(a) for a in expression.args])
    return expression


def is_zero(expression: Any) -> bool:
    """Whether a sum of rationals and of rational multiples of logarithms of rationals vanishes, exactly."""
    if isinstance(expression, sp.MatrixBase):
        return all(is_zero(entry) for entry in expression)
    rest, argument = sp.Integer(0), sp.Integer(1)
    for term in sp.Add.make_args(sp.expand(expression)):
        logarithms = [factor for factor in sp.Mul.make_args(term) if isinstance(factor, sp.log)]
        if len(logarithms) == 1 and (term / logarithms[0]).is_Rational:
            argument *= logarithms[0].args[0] ** (2 * term / logarithms[0])
        else:
            rest += term
    return sp.cancel(sp.together(rest)) == 0 and sp.powsimp(sp.cancel(argument)) == 1


class Source:
    """Rational matrices at random, the same for the same name: small, so that exact arithmetic stays fast."""

    def __init__(self, name: str) -> None:
        self.random = Random(name)

    def number(self) -> sp.Rational:
        """The next p / q of either sign, p from 1 to 29 and q of 5, 7, 11, 13: never zero."""
        return sp.Rational(self.random.choice([-1, 1]) * self.random.randint(1, 29), self.random.choice([5, 7, 11, 13]))

    def matrix(self, rows: int, columns: int) -> sp.Matrix:
        """Independent entries as of `number`."""
        return sp.Matrix(rows, columns, lambda i, j: self.number())

    def positive(self, size: int, least: Any = 1) -> sp.Matrix:
        """Symmetric, its eigenvalues at least `least`."""
        half = self.matrix(size, size) / 4
        return half * half.T + sp.eye(size) * least

    def symmetric(self, size: int) -> sp.Matrix:
        """A + A^T, of no definite sign; see `positive`."""
        half = self.matrix(size, size)
        return half + half.T


def explicit(A: sp.Matrix, levels: Sequence[tuple[int, Any]], replicas: int) -> sp.Matrix:
    """Return I (x) A + sum over levels (k, C) of I (x) J_k (x) C, J_k the k x k matrix of ones, written out."""
    total = sp.Matrix(sp.kronecker_product(sp.eye(replicas), A))
    for size, C in levels:
        total += sp.Matrix(sp.kronecker_product(sp.eye(replicas // size), sp.ones(size, size), C))
    return total
