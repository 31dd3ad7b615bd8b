"""What is told of the pieces of a loss of one field."""

import pytest
import sympy as sp

import saddleforge as sf
from saddleforge.derive.catalogue import catalogue_model
from saddleforge.derive.theory.pieces import pieces_of

y = sp.Symbol("y_0_0", real=True)


@pytest.mark.parametrize(
    ("loss", "least"),
    [
        (lambda X, Y: (Y[0, 0] - X[0, 0]) ** 2 / 2, 1),
        (lambda X, Y: sf.softplus(-X[0, 0] * Y[0, 0]), 0),
        (lambda X, Y: sp.Max(0, 1 - X[0, 0] * Y[0, 0]), 0),
        (lambda X, Y: (Y[0, 0] ** 2 - X[0, 0] ** 2) ** 2 / 4, -(y**2)),
        (lambda X, Y: sp.Piecewise((X[0, 0] ** 4 - X[0, 0] ** 2, X[0, 0] > Y[0, 0]), (0, True)), -2),
        (lambda X, Y: sp.tanh(X[0, 0]) * Y[0, 0], -sp.oo),
        (lambda X, Y: -(X[0, 0] ** 4) + sp.exp(X[0, 0]), -sp.oo),
        (lambda X, Y: X[0, 0] ** 3 * Y[0, 0], -sp.oo),
    ],
)
def test_the_least_curvature_of_a_loss(loss, least):
    model = sf.model()(loss).at()
    assert sp.expand(pieces_of(model, model.loss).least) == least


def test_the_least_curvature_of_tukeys_loss():
    model = catalogue_model("tukey_regression").at()
    assert pieces_of(model, model.loss).least == -sp.Rational(4, 5)
