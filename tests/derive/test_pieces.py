"""Pieces of a loss of one field: where they end, and how little they bend."""

import pytest
import sympy as sp

import saddleforge as sf
from saddleforge.derive.calculus.piecewise import closed_form_zeros
from saddleforge.derive.catalogue import catalogue_model
from saddleforge.derive.theory.piecewise_losses import smooth_loss_pieces

y = sp.Symbol("y_0_0", real=True)


@pytest.mark.parametrize(
    ("loss", "least"),
    [
        (lambda X, Y: (Y[0, 0] - X[0, 0]) ** 2 / 2, 1),
        (lambda X, Y: sf.softplus(-X[0, 0] * Y[0, 0]), 0),
        (lambda X, Y: sp.Max(0, 1 - X[0, 0] * Y[0, 0]), 0),
        (lambda X, Y: sum(sf.softplus(n * X[0, 0] + sp.Rational(n, 3)) for n in range(1, 15)), 0),
        (lambda X, Y: -sp.log(sum(1 / (1 + sp.exp(n * X[0, 0] - n / 3)) for n in range(1, 15))), -sp.oo),
        (lambda X, Y: (Y[0, 0] ** 2 - X[0, 0] ** 2) ** 2 / 4, -(y**2)),
        (lambda X, Y: sp.Piecewise((X[0, 0] ** 4 - X[0, 0] ** 2, X[0, 0] > Y[0, 0]), (0, True)), -2),
        (lambda X, Y: sp.tanh(X[0, 0]) * Y[0, 0], -sp.oo),
        (lambda X, Y: -(X[0, 0] ** 4) + sp.exp(X[0, 0]), -sp.oo),
        (lambda X, Y: X[0, 0] ** 3 * Y[0, 0], -sp.oo),
    ],
)
def test_the_least_curvature_of_a_loss_has_its_known_value(loss, least):
    model = sf.model()(loss).at()
    assert sp.expand(smooth_loss_pieces(model, model.loss).least) == least


def test_the_least_curvature_of_tukeys_loss_is_minus_four_fifths():
    model = catalogue_model("tukey_regression").at()
    assert smooth_loss_pieces(model, model.loss).least == -sp.Rational(4, 5)


@pytest.mark.parametrize(
    ("growing", "value"),
    [
        (lambda x: x + x**3 / 3, sp.Rational(7, 3)),
        (lambda x: 2 * (x - 1) ** 3 + 5 * x, sp.Rational(-3, 2)),
        (lambda x: sp.tanh(2 * x - 1), sp.Rational(1, 3)),
        (lambda x: sp.exp(x + x**3), 5),
        (lambda x: sf.sigmoid(3 * x), sp.Rational(1, 7)),
        (lambda x: sf.softplus(x - 2), 3),
        (lambda x: sp.sinh(sp.Abs(x)), 2),
        (lambda x: -sp.log(x), -3),
        (lambda x: sp.atan(x), 1),
        (lambda x: (1 - x * sp.Abs(x)) ** 2 / 2, 3),
        (lambda x: (2 - sp.tanh(x)) ** 3, 2),
    ],
)
def test_zeros_of_cubic_and_increasing_functions_have_formulas(growing, value):
    x, y = sp.symbols("x y", real=True)
    places = [complex(place.subs(y, value)) for place in closed_form_zeros(growing(x) - y, x)]
    real = [sp.Float(place.real) for place in places if not place.imag]
    assert any(abs(growing(place) - value) < 1e-12 for place in real)


def test_zeros_of_a_product_are_those_of_its_factors():
    x, y = sp.symbols("x y", real=True)
    a = sp.Symbol("a", positive=True)
    assert closed_form_zeros(-a * (y - sp.tanh(x)) - y + sp.tanh(x), x) == [sp.atanh(y)]
    assert set(closed_form_zeros(x * sp.exp(x) * (sp.tanh(x) - y) ** 2, x)) == {0, sp.atanh(y)}
    assert closed_form_zeros(x * (sp.tanh(x) + x - y), x) is None


@pytest.mark.parametrize("growing", [lambda x: x**3 - 3 * x, lambda x: x**5 + x, sp.erf, lambda x: sp.tanh(x) + x])
def test_zeros_that_no_formula_gives_are_none(growing):
    x, y = sp.symbols("x y", real=True)
    assert closed_form_zeros(growing(x) - y, x) is None


def test_a_loss_that_bends_where_no_formula_says_is_one_piece_that_holds_both_sides():
    model = sf.model()(lambda X, Y: sp.Max(0, 1 - Y[0] * sp.erf(X[0])) ** 2).at()
    found, x = smooth_loss_pieces(model, model.loss), model.X[0]
    assert found.implicit_kinks and not found.places and not found.quadratic
    assert sp.simplify(found.loss - model.loss) == 0 and found.loss.has(x)
