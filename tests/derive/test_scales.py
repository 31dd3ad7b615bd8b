"""Arguments of the functions in losses and metrics, and the places around which they may be narrow."""

import numpy as np
import pytest
import sympy as sp

import saddleforge as sf
from saddleforge.derive.emit.kernel import make_kernel
from saddleforge.derive.emit.printers.arrays import ARRAYS
from saddleforge.derive.theory.scales import length_scales_in_teacher_fields, length_scales_of_metric


def default(X, Y):
    return (Y[0, 0] - X[0, 0]) ** 2


def shown(expressions):
    return {frozenset({str(sp.expand(e)), str(sp.expand(-e))}) for e in map(sp.sympify, expressions)}


@pytest.mark.parametrize(
    ("metric", "arguments", "bases", "places"),
    [
        (lambda h, Y: (h[0, 0] - Y[0, 0]) ** 2, [], [], []),
        (lambda h, Y: sp.tanh(30 * Y[0, 0]) * h[0, 0], ["30*y_0_0"], [], ["30*y_0_0"]),
        (lambda h, Y: sp.exp(-(9 * (h[0, 0] - Y[0, 0])) ** 2), ["81*(x_0_0 - y_0_0)**2"], [], ["x_0_0 - y_0_0"]),
        (lambda h, Y: sp.cos(10 * h[0, 0] * Y[0, 0]), ["10*x_0_0*y_0_0"], [], ["x_0_0", "y_0_0"]),
        (lambda h, Y: 1 / (1 + (h[0, 0] - 2) ** 2), [], ["1 + (x_0_0 - 2)**2"], ["x_0_0 - 2"]),
        (lambda h, Y: sp.log(1 + h[0, 0] ** 2), [], ["1 + x_0_0**2"], ["x_0_0"]),
        (
            lambda h, Y: sp.tanh(h[0, 0] ** 2 - 2),
            ["x_0_0**2 - 2"], [], ["x_0_0 - sqrt(2)", "x_0_0 + sqrt(2)", "x_0_0"],
        ),
        (lambda h, Y: sp.erf(5 * sp.tanh(h[0, 0])), ["5*tanh(x_0_0)", "x_0_0"], [], ["x_0_0"]),
        (lambda h, Y: sf.softmax([[h[0, 0], 7 * Y[0, 0]]])[0], ["x_0_0 - 7*y_0_0"], [], ["x_0_0 - 7*y_0_0"]),
        (lambda h, Y: sp.Abs(h[0, 0]), [], [], []),
    ],
)  # fmt: skip
def test_nonlinear_arguments_of_a_metric_are_found(metric, arguments, bases, places):
    found = length_scales_of_metric(sf.model(metric=metric)(default).at())
    assert shown(found.arguments) == shown(arguments)
    assert shown(found.bases) == shown(bases)
    assert shown(found.places) == shown(places)


def test_those_of_the_teacher_hold_no_field_of_the_student_and_count_probabilities_of_noise():
    def loss(X, Y, v):
        return (v - sp.tanh(9 * X[0, 0]) + sp.exp(Y[0, 0])) ** 2

    share = sf.sigmoid(50 * (Y_ := sp.Symbol("y_0_0", real=True)))
    noise = {"v": sf.DiscreteNoise((0, 1), lambda Y: (1 - sf.sigmoid(50 * Y[0, 0]), sf.sigmoid(50 * Y[0, 0])))}
    found = length_scales_in_teacher_fields(sf.model(noise=noise)(loss).at())
    assert shown(found.arguments) == shown([share.args[0], Y_])


def test_functions_of_arrays_have_the_values_of_their_expressions():
    x = sp.Symbol("x", real=True)
    shapes = [
        sp.Max(x, 1) + sp.Min(x, 0), sp.Abs(x) + sp.sign(x), sf.sigmoid(3 * x), sf.softplus(3 * x),
        sp.Piecewise((x, (x > 0) & (x < 1)), (x**2, True)), sf.softmax([[x, 2 * x, 1]])[1], sp.atan(x), sp.exp(-(x**2)),
    ]  # fmt: skip
    kernel = make_kernel({f"value_{n}": e for n, e in enumerate(shapes)})
    known = {"np": np, "x": np.linspace(-2.1, 2.3, 7)}
    exec("\n".join(ARRAYS.kernel_body_lines(kernel)), known)
    for n, e in enumerate(shapes):
        assert known[f"value_{n}"] == pytest.approx([float(e.subs(x, z).evalf()) for z in known["x"]], rel=1e-12)
