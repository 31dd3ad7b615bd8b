"""Values in multiple precision: what vanishes and what does not, in a time that is bounded."""

import mpmath as mp
import pytest
import sympy as sp

from saddleforge.derive.calculus.numeric import OverflowSafeFunctions, find_nonzero_point, is_identically_zero
from saddleforge.derive.calculus.subexpressions import factor_if_short

x, y = sp.symbols("x y", real=True)
k = sp.Symbol("k", integer=True, nonnegative=True)


def logistic(z):
    return 1 / (1 + sp.exp(-z))


@pytest.mark.parametrize(
    "expression",
    [
        sp.cos(x) ** 2 + sp.sin(x) ** 2 - 1,
        sp.sqrt(2) * sp.sqrt(3) - sp.sqrt(6),
        sp.Abs(x) - sp.Max(x, -x),
        y * (logistic(x) + logistic(-x) - 1) ** 2,
        sum(logistic(n * x + n) + logistic(-n * x - n) for n in range(1, 15)) - 14,
        sp.exp(100 * x) * sp.exp(-100 * x + y) - sp.exp(y),
    ],
    ids=str,
)
def test_identically_zero_expressions_are_recognised(expression):
    assert is_identically_zero(expression)


@pytest.mark.parametrize(
    "expression",
    [
        x,
        x * sp.Rational(1, 10**60),
        sp.exp(-x) - 1 + x,
        sp.sqrt(2) - sp.Rational(14142135623730951, 10**16),
        sp.KroneckerDelta(k, 2) * y,
        sp.log(-(x**2) - 1) / sp.log(1),
    ],
    ids=str,
)
def test_nonzero_and_undefined_expressions_are_not_taken_for_zero(expression):
    assert not is_identically_zero(expression)


def test_a_counterexample_is_a_point_and_its_value():
    at, value = find_nonzero_point(x**2 - 1)
    assert float(value) == pytest.approx(float(at[x]) ** 2 - 1, rel=1e-12)


def test_functions_that_would_take_for_ever_take_their_limits():
    functions, large = OverflowSafeFunctions(), mp.mpf(2) ** 10**6
    assert functions.exp(-functions.exp(large)) == 0
    assert functions.exp(functions.exp(mp.mpf(10) ** 6)) == mp.inf
    assert (functions.erfc(large), functions.erfc(-large), functions.tanh(-large)) == (0, 2, -1)
    assert mp.isnan(functions.sin(large))
    assert functions.power(large, large) == mp.inf
    assert functions.power(mp.mpf(2), mp.mpf(10)) == 1024
    assert functions.exp(mp.mpf(-700)) == mp.exp(-700)


def test_only_what_is_short_is_factored():
    assert factor_if_short(x**2 - y**2) == (x - y) * (x + y)
    long = sum(logistic(n * x + sp.Rational(n, 3)) for n in range(14)) - y
    assert factor_if_short(long) is long
