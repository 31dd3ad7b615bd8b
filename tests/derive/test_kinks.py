"""Where losses and metrics are not smooth, read off their expressions."""

import pytest
import sympy as sp

import saddleforge as sf
from saddleforge.derive.catalogue import SHIPPED, catalogue_model
from saddleforge.derive.models.mixture_classification import mixture_classification
from saddleforge.derive.theory.kinks import integration_variables, loss_kinks, metric_is_steps, metric_kinks


def shown(expressions):
    return {str(sp.expand(e)) for e in expressions}


def made(loss=None, metric=None, **fields):
    def default(X, Y):
        return (Y[0, 0] - X[0, 0]) ** 2

    return sf.model(metric=metric, **fields)(loss or default).at()


@pytest.mark.parametrize(
    ("metric", "planes", "curved"),
    [
        (lambda h, Y: sp.sign(h[0, 0]) * sp.sign(Y[0, 0]), {"x_0_0", "y_0_0"}, 0),
        (lambda h, Y: sp.Heaviside(h[0, 0] * Y[0, 0]), {"x_0_0", "y_0_0"}, 0),
        (lambda h, Y: sp.Abs(h[0, 0] - Y[0, 0]), {"x_0_0 - y_0_0"}, 0),
        (lambda h, Y: sp.Max(h[0, 0], 2 * Y[0, 0], 1), {"x_0_0 - 2*y_0_0", "x_0_0 - 1", "2*y_0_0 - 1"}, 0),
        (lambda h, Y: sp.Piecewise((1, h[0, 0] ** 2 > 4), (0, True)), {"x_0_0 - 2", "x_0_0 + 2"}, 0),
        (lambda h, Y: sp.Heaviside(1 - sp.Abs(h[0, 0])), {"x_0_0", "x_0_0 - 1", "x_0_0 + 1"}, 0),
        (lambda h, Y: sp.sign(sp.tanh(h[0, 0]) - sp.tanh(Y[0, 0])), {"x_0_0 - y_0_0"}, 0),
        (lambda h, Y: sp.sign(sp.sin(h[0, 0])), set(), 1),
        (lambda h, Y: sp.sign(h[0, 0] ** 2 + Y[0, 0] ** 2 - 1), set(), 1),
        (lambda h, Y: sp.log(1 + h[0, 0] ** 2) + 1 / (1 + Y[0, 0] ** 2), set(), 0),
        (lambda h, Y: sp.log(sp.Abs(h[0, 0])), {"x_0_0"}, 0),
        (lambda h, Y: sp.cbrt(h[0, 0] - Y[0, 0]), {"x_0_0 - y_0_0"}, 0),
        (lambda h, Y: (h[0, 0] - Y[0, 0]) ** 2, set(), 0),
    ],
)  # fmt: skip
def test_planes_of_a_metric(metric, planes, curved):
    found = metric_kinks(made(metric=metric))
    assert {frozenset({e, str(-sp.sympify(e))}) for e in planes} == {
        frozenset({str(sp.expand(e)), str(sp.expand(-e))}) for e in found.planes
    }
    assert len(found.curved) == curved


def noisy(share):
    return {"v": sf.DiscreteNoise((0, 1), lambda Y: (1 - share(Y), share(Y)))}


@pytest.mark.parametrize(
    ("metric", "noise", "steps"),
    [
        (lambda h, Y: sp.Heaviside(-h[0, 0] * Y[0, 0]), {}, True),
        (lambda h, Y: sp.Piecewise((2, sp.Abs(h[0, 0]) > 1), (sp.sign(Y[0, 0]), True)), {}, True),
        (lambda h, Y: sp.Abs(sp.sign(h[0, 0]) - sp.sign(Y[0, 0])), {}, True),
        (lambda h, Y, v: v * sp.sign(h[0, 0]), noisy(lambda Y: sp.Heaviside(Y[0, 0])), True),
        (lambda h, Y, v: v * sp.sign(h[0, 0]), noisy(lambda Y: 1 / (1 + sp.exp(-Y[0, 0]))), False),
        (lambda h, Y: sp.Abs(h[0, 0]), {}, False),
        (lambda h, Y: Y[0, 0] * sp.sign(h[0, 0]), {}, False),
        (None, {}, False),
    ],
)  # fmt: skip
def test_a_metric_of_steps_is_constant_between_its_planes(metric, noise, steps):
    def loss(X, Y, **_):
        return (Y[0, 0] - X[0, 0]) ** 2

    def with_label(X, Y, v):
        return (v - X[0, 0]) ** 2

    assert metric_is_steps(made(with_label if noise else loss, metric, noise=noise)) == steps


def test_planes_hold_parameters_trained_numbers_and_overlaps():
    def loss(X, Y, *, b=sf.trained(0), width=1.5):
        return (X[0, 0] + b - Y[0, 0]) ** 2

    def metric(h, Y, Q, b, width):
        return sp.Heaviside(h[0, 0] + b - width * Q[0][0, 0])

    (plane,) = metric_kinks(made(loss, metric)).planes
    assert str(sp.expand(plane)) == "b_ - q_0_0_0*width_ + x_0_0"


def test_labelled_noise_moves_a_plane_for_every_value():
    noise = {"u": sf.DiscreteNoise((-1, 1), ("1/2", "1/2"))}
    at = made(metric=lambda h, Y, u: sp.sign(h[0, 0] - 2 * u), noise=noise)
    assert shown(metric_kinks(at).planes) == {"x_0_0 - 2", "x_0_0 + 2"}


def test_steps_in_the_law_of_a_label_are_kinks():
    noise = {"u": sf.DiscreteNoise((-1, 1), lambda Y: [sp.Heaviside(Y[0, 0] - 1), 1 - sp.Heaviside(Y[0, 0] - 1)])}
    at = made(noise=noise, metric=lambda h, u: (h[0, 0] - u) ** 2)
    assert shown(loss_kinks(at).planes) == shown(metric_kinks(at).planes) == {"y_0_0 - 1"}


def test_declared_planes_are_added_to_those_that_the_expression_shows():
    at = made(metric=lambda h, Y: sp.sign(Y[0, 0]) * sp.tanh(100 * h[0, 0]), metric_kinks=lambda h: h[0, 0])
    assert shown(metric_kinks(at).planes) == {"x_0_0", "y_0_0"}


def test_classes_are_told_apart_on_planes_through_the_origin():
    structure = mixture_classification.structure(clusters=3, student_rank=2)
    found = metric_kinks(mixture_classification.at(structure))
    assert len(found.planes) == 3 and not found.curved
    assert all(plane.subs(dict.fromkeys(plane.free_symbols, 0)) == 0 for plane in found.planes)


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_every_metric_of_the_catalogue_can_be_split(name):
    at = catalogue_model(name).at()
    assert not metric_kinks(at).curved
    for plane in (*loss_kinks(at).planes, *metric_kinks(at).planes):
        assert plane.has(*integration_variables(at))
