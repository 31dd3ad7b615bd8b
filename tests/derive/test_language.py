"""The words of a model: exact numbers, and nonlinear functions with the right derivatives."""

import math
import re

import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from saddleforge.derive.authoring.language import (
    Matrix,
    half_square,
    rho,
    sigmoid,
    softmax,
    softplus,
    square,
    to_exact_rationals,
    token_variance_symbol,
)
from saddleforge.derive.calculus.chain import two_entry_softmax_to_sigmoid
from saddleforge.derive.calculus.functions import Softplus
from saddleforge.derive.errors import ModelError

LOGIT = st.floats(-6, 6)


@pytest.mark.parametrize(
    ("decimal", "rational"),
    [
        (0.1, sp.Rational(1, 10)),
        (0.30, sp.Rational(3, 10)),
        (1e-3, sp.Rational(1, 1000)),
        ("0.25", sp.Rational(1, 4)),
        ("2/3", sp.Rational(2, 3)),
        (2, sp.Integer(2)),
        (1.0, sp.Integer(1)),
    ],
)
def test_a_decimal_is_the_rational_it_prints_as(decimal, rational):
    assert to_exact_rationals(decimal) == rational
    assert to_exact_rationals(decimal).is_Rational


@given(st.floats(-1e6, 1e6).filter(lambda value: "e" not in repr(value)))
@settings(max_examples=50, deadline=None)
def test_every_decimal_survives_the_round_trip(value):
    assert float(to_exact_rationals(value)) == value
    assert to_exact_rationals(value) == sp.Rational(repr(value))


def test_lists_matrices_and_expressions_become_exact_as_a_whole():
    x = sp.Symbol("x")
    assert to_exact_rationals([[0.6, 0.4], [0.4, 0.6]]) == to_exact_rationals(
        ((sp.Rational(3, 5), "2/5"), ("0.4", 0.6))
    )
    assert to_exact_rationals(0.1 * x + 0.7) == x / 10 + sp.Rational(7, 10)
    assert Matrix([[0.5]])[0, 0] == sp.Rational(1, 2)
    assert to_exact_rationals(sp.Matrix([[0.1 * x]])) == sp.Matrix([[x / 10]])


def test_an_object_that_is_no_number_is_refused():
    with pytest.raises(TypeError, match="not a number"):
        to_exact_rationals(object())


def finite_difference(function, point, index, step=1e-5):
    def at(shift):
        return float(function(*[z + shift * (i == index) for i, z in enumerate(point)]))

    return (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)


@given(st.lists(LOGIT, min_size=2, max_size=3), st.data())
@settings(max_examples=25, deadline=None)
def test_derivatives_of_softmax_agree_with_differences(point, data):
    index = data.draw(st.integers(0, len(point) - 1))
    entry = data.draw(st.integers(0, len(point) - 1))
    z = sp.symbols(f"z0:{len(point)}", real=True)
    derivative = softmax([list(z)])[0, entry].diff(z[index])

    def plain(*logits):
        weights = [math.exp(a) for a in logits]
        return weights[entry] / sum(weights)

    value = float(derivative.subs(dict(zip(z, point, strict=True))).evalf())
    assert value == pytest.approx(finite_difference(plain, point, index), abs=1e-9)


@given(LOGIT)
@settings(max_examples=25, deadline=None)
def test_derivatives_of_sigmoid_and_softplus_agree_with_differences(point):
    z = sp.Symbol("z", real=True)
    for function, plain in (
        (sigmoid, lambda a: 1 / (1 + math.exp(-a))),
        (softplus, lambda a: math.log1p(math.exp(a))),
    ):
        slope = float(function(z).diff(z).subs(z, point).evalf())
        assert slope == pytest.approx(finite_difference(plain, [point], 0), abs=1e-9)
        curvature = float(function(z).diff(z, 2).subs(z, point).evalf())
        assert curvature == pytest.approx(
            finite_difference(lambda a, f=function: f(z).diff(z).subs(z, a).evalf(), [point], 0), abs=1e-8
        )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("1 +", "'1 +' is neither a number nor an expression"), ("lambda", "a word of Python; a parameter is lambda_")],
)
def test_strings_that_are_no_expression_are_named(text, sentence):
    with pytest.raises(ModelError, match=re.escape(sentence)):
        to_exact_rationals([0.5, text])


def test_softmax_rows_are_normalised_and_do_not_overflow():
    row = softmax([[1000, 999, -1000]])
    values = [float(e.evalf()) for e in row]
    assert sum(values) == pytest.approx(1)
    assert values[0] / values[1] == pytest.approx(math.e)
    assert softmax([[3.0]])[0, 0] == 1


def test_squares_weigh_columns():
    E = sp.Matrix(2, 2, sp.symbols("a b c d"))
    a, b, c, d = E
    assert square(E) == a**2 + b**2 + c**2 + d**2
    assert half_square(E, weight=rho) == sp.expand(
        (token_variance_symbol(0) * (a**2 + c**2) + token_variance_symbol(1) * (b**2 + d**2)) / 2
    )
    assert square(E, weight=[2, "1/2"]) == 2 * (a**2 + c**2) + (b**2 + d**2) / 2
    with pytest.raises(ValueError, match="2 entries"):
        square(E[:, 0], weight=[1, 2])


def test_logarithms_of_two_class_probabilities_hold_where_these_round_to_one():
    """-log(1 - sigmoid(z)) is z for a large one, of slope 1; 1 - sigmoid(40) is zero in double precision."""
    x = sp.Symbol("x", real=True)
    for index, sign in ((0, 1), (1, -1)):
        assert two_entry_softmax_to_sigmoid(-sp.log(softmax(Matrix([[x, -x]]))[index])) == Softplus(-2 * sign * x)
