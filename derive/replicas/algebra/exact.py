"""Exact values of the expressions of a step at explicit matrices, for its checks.

Numbers are rationals, or symbols where a check keeps some; Gaussian integrals are done in closed form. A check compares
the values of an expression and of its reference, which are computed separately, so that an error in either shows.
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

Terms = Sequence[tuple[Any, Mapping[str, Any]]]  # (weight, additional values) of the terms of a sum


@dataclass(frozen=True)
class NormalLaw:
    """A normal law of named vectors, for exact averages of quadratic polynomials and of their exponentials.

    Attributes:
        names: the vectors, in the order in which they are stacked.
        mean: mean of the stacked vectors.
        covariance: covariance of the stacked vectors.
    """

    names: tuple[str, ...]
    mean: sp.Matrix
    covariance: sp.Matrix

    def replace_vectors_by_symbols(self, at: ExactValues) -> tuple[list[sp.Symbol], ExactValues]:
        """Return new symbols for the entries of the vectors, and values in which the vectors consist of them."""
        letters = [sp.Dummy(f"z{i}", real=True) for i in range(len(self.mean))]
        bound: dict[str, sp.Matrix] = {}
        rest = letters
        for name in self.names:
            size = at.values[name].rows
            bound[name], rest = sp.Matrix(rest[:size]), rest[size:]
        return letters, at.with_added_values(bound)

    def mean_of_polynomial(self, expression: Any, at: ExactValues) -> Any:
        """Return the mean of a polynomial of second degree in the vectors; that of a matrix entry by entry.

        Args:
            expression: scalar or matrix polynomial in the vectors.
            at: matrices and numbers by name, for all other symbols.

        Raises:
            ValueError: the expression is not of second degree.
        """
        letters, bound = self.replace_vectors_by_symbols(at)
        value = bound(expression)
        if isinstance(value, sp.MatrixBase):
            return value.applyfunc(lambda entry: self._average_polynomial(entry, letters))
        return self._average_polynomial(value, letters)

    def _average_polynomial(self, polynomial: sp.Expr, letters: list[sp.Symbol]) -> sp.Expr:
        constant, linear, quadratic = quadratic_coefficients(polynomial, letters)
        m = self.mean
        return constant + (linear.T * m)[0] - ((m.T * quadratic * m)[0] + sp.trace(quadratic * self.covariance)) / 2

    def log_expectation_of_exp(self, exponent: sp.Expr, at: ExactValues) -> sp.Expr:
        """Return log E[exp(f)] for a polynomial f of second degree in the vectors.

        The covariance must be regular.

        Args:
            exponent: scalar polynomial in the vectors.
            at: matrices and numbers by name, for all other symbols.

        Raises:
            ValueError: the exponent is not of second degree, or the integral diverges.
        """
        letters, bound = self.replace_vectors_by_symbols(at)
        precision, mean = self.covariance.inv(), self.mean
        norm = sp.log(self.covariance.det()) / 2 + sp.Rational(len(letters), 2) * sp.log(2 * sp.pi)
        constant, linear, quadratic = quadratic_coefficients(bound(exponent), letters)
        constant -= (mean.T * precision * mean)[0] / 2
        return _log_normal_integral(constant, linear + precision * mean, quadratic + precision) - norm

    def exponentially_tilted_law(self, exponent: sp.Expr, at: ExactValues) -> NormalLaw:
        """Return the normal law with an additional weight exp(f), f of second degree in the vectors.

        Args:
            exponent: scalar polynomial in the vectors.
            at: matrices and numbers by name, for all other symbols.
        """
        letters, bound = self.replace_vectors_by_symbols(at)
        _, linear, precision = quadratic_coefficients(bound(exponent), letters)
        own = self.covariance.inv()
        covariance = (own + precision).inv()
        return NormalLaw(self.names, covariance * (own * self.mean + linear), covariance)


def quadratic_coefficients(polynomial: sp.Expr, letters: list[sp.Symbol]) -> tuple[sp.Expr, sp.Matrix, sp.Matrix]:
    """Return the number c, vector h and matrix P of a polynomial c + h^T z - 1/2 z^T P z.

    Args:
        polynomial: scalar polynomial.
        letters: symbols of the entries of z.

    Raises:
        ValueError: the polynomial is not of second degree.
    """
    place = {letter: i for i, letter in enumerate(letters)}
    constants: list[sp.Expr] = []
    linear = [sp.Integer(0)] * len(letters)
    quadratic = [[sp.Integer(0)] * len(letters) for _ in letters]
    for term in sp.Add.make_args(sp.expand(polynomial)):
        number, rest = term.as_independent(*letters, as_Add=False)
        factors = [base for base, power in rest.as_powers_dict().items() for _ in range(int(power)) if base != 1]
        if len(factors) > 2 or not set(factors) <= set(letters):
            raise ValueError(f"{term} is not of second degree in {letters}: only quadratic polynomials can be averaged")
        if not factors:
            constants.append(number)
        elif len(factors) == 1:
            linear[place[factors[0]]] += number
        else:
            i, j = (place[factor] for factor in factors)
            quadratic[i][j] -= number
            quadratic[j][i] -= number
    return sp.Add(*constants), sp.Matrix(len(letters), 1, linear), sp.Matrix(quadratic)


def log_gaussian_integral(exponent: sp.Expr, letters: list[sp.Symbol]) -> sp.Expr:
    """Return the logarithm of the integral of exp(c + h^T z - 1/2 z^T P z) over all vectors z.

    This is c + 1/2 h^T P^{-1} h - 1/2 log det P + k/2 log(2 pi), with k the size of z.

    Args:
        exponent: polynomial of second degree.
        letters: symbols of the entries of z.
    """
    return _log_normal_integral(*quadratic_coefficients(exponent, letters))


def _log_normal_integral(constant: sp.Expr, linear: sp.Matrix, precision: sp.Matrix) -> sp.Expr:
    if precision.is_hermitian and not precision.free_symbols and not _is_positive_definite(precision):
        raise ValueError("the Gaussian integral diverges: its quadratic form is not positive definite")
    return (
        constant
        + (linear.T * precision.inv() * linear)[0] / 2
        - sp.log(sp.factor(precision.det())) / 2
        + sp.Rational(linear.rows, 2) * sp.log(2 * sp.pi)
    )


def _is_positive_definite(matrix: sp.Matrix) -> bool:
    """Return whether a symmetric matrix is positive definite, by exact Gaussian elimination."""
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
class ExactValues:
    """Matrices and numbers by name, at which the expressions of a derivation are evaluated exactly.

    Attributes:
        values: matrices and numbers by name, or functions of (these values, replica suffix) that compute them;
            quantities of replica 1 or of the pair (1, 2) are called w|1, q|12, a derivative dw/db.
        sums: (weight, additional values) of each term of an average, by kind of average, or a function of these values
            where the terms depend on an outer sum; one term by default.
        laws: normal law of each term of an average, by kind of average, or a function of these values where it
            depends on the term or on an outer average.
        replicas: number n of replicas over which sums are written out.
        indices: number of the replica for each replica letter a, b.
    """

    values: Mapping[str, Any]
    sums: Mapping[str, Terms | Callable[[ExactValues], Terms]] = field(default_factory=dict)
    laws: Mapping[str, NormalLaw | Callable[[ExactValues], NormalLaw]] = field(default_factory=dict)
    replicas: int = 1
    indices: Mapping[str, str] = field(default_factory=dict)

    def with_added_values(self, values: Mapping[str, Any] | None = None, /, **indices: str) -> ExactValues:
        """Return a copy with further values, which take precedence, and with replica letters set to numbers.

        For example, `with_added_values(a="1")` sets the replica a to number 1.

        Args:
            values: name -> matrix, number or function, as for the attribute.
            **indices: replica letter -> number of the replica.
        """
        merged = {**self.values, **(values or {})}
        return ExactValues(merged, self.sums, self.laws, self.replicas, {**self.indices, **indices})

    def law_of_average(self, kind: str) -> NormalLaw:
        """Return the normal law that averages of a given kind are taken over."""
        found = self.laws[kind]
        return found if isinstance(found, NormalLaw) else found(self)

    def __call__(self, expression: Any) -> Any:
        """Return the exact value of an expression at these matrices and numbers.

        Raises:
            TypeError: a part of the expression has no value here.
        """
        return _evaluate_expression(expression, self)


def _value_of_symbol(expression: Any, at: ExactValues) -> Any:
    stem, bar, letters = expression.name.partition("|")
    name = stem + bar + "".join(at.indices.get(letter, letter) for letter in letters)
    if name in at.values:
        found = at.values[name]
        return found(at, "") if callable(found) else found
    if bar and callable(at.values.get(stem)):
        return at.values[stem](at, name.removeprefix(stem))
    if expression.is_Matrix:
        raise KeyError(f"no value is given for the matrix symbol {name}, at which an expression is evaluated")
    return expression


def _evaluate_average(expression: Average | MatrixAverage, at: ExactValues) -> Any:
    kind, inside = expression.kind, expression.summand
    numbers = [str(a) for a in range(1, at.replicas + 1)]
    if kind == REPLICAS:
        return _sum_values([at.with_added_values(a=a)(inside) for a in numbers], inside)
    if kind == PAIRS:
        return _sum_values([at.with_added_values(a=a, b=b)(inside) for a, b in permutations(numbers, 2)], inside)
    terms = at.sums.get(kind, ((1, {}),))
    places = [(weight, at.with_added_values(own)) for weight, own in (terms(at) if callable(terms) else terms)]
    if kind in at.laws:
        return _sum_values(
            [weight * here.law_of_average(kind).mean_of_polynomial(inside, here) for weight, here in places], inside
        )
    return _sum_values([weight * here(inside) for weight, here in places], inside)


def _sum_values(values: list[Any], like: Any) -> Any:
    if getattr(like, "is_Matrix", False):
        return sum(values[1:], values[0])
    return sp.Add(*values)


_MATRIX_FUNCTIONS: dict[type, Callable[[sp.Matrix], Any]] = {
    sp.Transpose: lambda matrix: matrix.T,
    sp.Inverse: lambda matrix: matrix.inv(),
    sp.Trace: sp.trace,
    LogDet: lambda matrix: sp.log(sp.factor(matrix.det())),
}


def _evaluate_expression(expression: Any, at: ExactValues) -> Any:
    if isinstance(expression, sp.Symbol | sp.MatrixSymbol):
        return _value_of_symbol(expression, at)
    if isinstance(expression, Average | MatrixAverage):
        return _evaluate_average(expression, at)
    if isinstance(expression, Jacobian):
        field, variable = expression.args
        named = field
        while isinstance(named, MatrixAverage):  # a tilted field has the name of the field
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
        return _sum_values([at(a) for a in expression.args], expression)
    if isinstance(expression, sp.MatMul):
        scalar, factors = expression.as_coeff_matrices()
        return at(scalar) * reduce(mul, map(at, factors))
    if type(expression) in _MATRIX_FUNCTIONS:
        return _MATRIX_FUNCTIONS[type(expression)](at(expression.args[0]))
    if isinstance(expression, sp.MatPow):
        return at(expression.base) ** int(expression.exp)
    if isinstance(expression, LogIntegral):
        name = expression.integration_variable.name
        letters, bound = NormalLaw((name,), at.values[name] * 0, sp.Matrix()).replace_vectors_by_symbols(at)
        return log_gaussian_integral(bound(expression.log_integrand), letters)
    if isinstance(expression, sp.log) and isinstance(expression.args[0], Average):
        average = expression.args[0]
        if average.kind in at.laws and isinstance(average.summand, sp.exp):
            return at.law_of_average(average.kind).log_expectation_of_exp(average.summand.args[0], at)
    if getattr(expression, "is_Matrix", False):
        if isinstance(expression, sp.ZeroMatrix | sp.Identity):
            shape = (int(at(size)) for size in expression.shape)
            return (sp.zeros if isinstance(expression, sp.ZeroMatrix) else sp.eye)(*shape)
        raise TypeError(f"no rule evaluates the expression {expression!r}, a {type(expression).__name__}")
    if expression.args:
        return expression.func(*[at(a) for a in expression.args])
    return expression


def is_exactly_zero(expression: Any) -> bool:
    """Return whether a sum of rationals and rational multiples of logarithms of rationals vanishes exactly."""
    if isinstance(expression, sp.MatrixBase):
        return all(is_exactly_zero(entry) for entry in expression)
    rest, argument = sp.Integer(0), sp.Integer(1)
    for term in sp.Add.make_args(sp.expand(expression)):
        logarithms = [factor for factor in sp.Mul.make_args(term) if isinstance(factor, sp.log)]
        if len(logarithms) == 1 and (term / logarithms[0]).is_Rational:
            argument *= logarithms[0].args[0] ** (2 * term / logarithms[0])
        else:
            rest += term
    return sp.cancel(sp.together(rest)) == 0 and sp.powsimp(sp.cancel(argument)) == 1


class RandomRationals:
    """A source of random rational matrices, seeded by a name; small entries keep exact arithmetic fast."""

    def __init__(self, name: str) -> None:
        self.random = Random(name)

    def draw_number(self) -> sp.Rational:
        """Return a random rational number, never zero: +-p / q with p from 1 to 29 and q 5, 7, 11 or 13."""
        return sp.Rational(self.random.choice([-1, 1]) * self.random.randint(1, 29), self.random.choice([5, 7, 11, 13]))

    def draw_matrix(self, rows: int, columns: int) -> sp.Matrix:
        """Return a matrix of independent random rational numbers.

        Args:
            rows: number of rows.
            columns: number of columns.
        """
        return sp.Matrix(rows, columns, lambda i, j: self.draw_number())

    def draw_spd_matrix(self, size: int, least: Any = 1) -> sp.Matrix:
        """Return a random symmetric matrix whose eigenvalues are at least `least`.

        Args:
            size: number of rows.
            least: lower bound of the eigenvalues.
        """
        half = self.draw_matrix(size, size) / 4
        return half * half.T + sp.eye(size) * least

    def draw_symmetric_matrix(self, size: int) -> sp.Matrix:
        """Return a random symmetric matrix, in general not definite."""
        half = self.draw_matrix(size, size)
        return half + half.T


def nested_block_matrix(A: sp.Matrix, levels: Sequence[tuple[int, Any]], replicas: int) -> sp.Matrix:
    """Return the matrix of all replicas, with a block on the diagonal and one more within each larger block.

    It is I (x) A + sum over levels (k, C) of I (x) J_k (x) C, with J_k the k x k matrix of ones.

    Args:
        A: block on the diagonal.
        levels: (replicas in a block, matrix within such blocks) of each level.
        replicas: number of diagonal blocks.
    """
    total = sp.Matrix(sp.kronecker_product(sp.eye(replicas), A))
    for size, C in levels:
        total += sp.Matrix(sp.kronecker_product(sp.eye(replicas // size), sp.ones(size, size), C))
    return total
