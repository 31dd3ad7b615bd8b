"""Where losses and metrics are not smooth, read off their expressions."""

import pytest
import sympy as sp

import saddleforge as sf
from saddleforge.derive.calculus.piecewise import closed_form_zeros, switching_functions
from saddleforge.derive.catalogue import SHIPPED, catalogue_model
from saddleforge.derive.models.mixture_classification import mixture_classification
from saddleforge.derive.theory.corners import split_loss_by_signs
from saddleforge.derive.theory.kinks import (
    describe_gradient_jump,
    integration_variables,
    is_metric_piecewise_constant,
    loss_kinks,
    metric_kinks,
)
from saddleforge.derive.theory.reduced import reduce_model_for_loss


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
def test_kink_planes_of_a_metric_are_found(metric, planes, curved):
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

    assert is_metric_piecewise_constant(made(with_label if noise else loss, metric, noise=noise)) == steps


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


def test_classes_are_distinguished_on_planes_through_the_origin():
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


SECOND = sf.Parameter(0, 0, 1)
HALVES = (sp.Rational(1, 2), sp.Rational(1, 2))


def two_labels(structure):
    """Two clusters of one law."""
    return sf.Tokens(weights=[1], covariance=[[1, 1]], labels=HALVES, teacher=sp.eye(1))


@pytest.mark.parametrize(
    "loss",
    [
        lambda X, Y, by: sp.Max(0, 1 - by(1, -1) * X[0]),
        lambda X, Y, by: sp.Abs(X[0] - by(60, -90)) + X[0] ** 2,
        lambda X, Y, by: by(sf.half_square(Y[0] - X[0]), sp.Abs(Y[0] - X[0])),
        lambda X, Y, by: by(0, 1) * sp.Max(Y[0] - X[0], 3 * (X[0] - Y[0])) + X[0] ** 2,
        lambda X, Y, by: sp.Max(0, by(sp.Rational(1, 1000), 1) - sp.Abs(X[0])) + X[0] ** 2,
    ],
)
def test_a_corner_is_found_whichever_of_labels_noise_and_parameters_chooses_it(loss):
    @sf.model(clusters=2, law=two_labels)
    def by_labels(X, Y, k):
        return loss(X, Y, lambda *values: sf.by_label(k[0], *values))

    @sf.model(noise={"s": sf.DiscreteNoise((0, 1), HALVES)})
    def by_noise(X, Y, s):
        return loss(X, Y, lambda one, other: one + s * (other - one))

    @sf.model()
    def by_parameter(X, Y, *, second=SECOND):
        return loss(X, Y, lambda one, other: one + second * (other - one))

    for at in (by_labels.at(), by_noise.at(), by_parameter.at()):
        assert describe_gradient_jump(at).startswith("the slope of the loss in x_0_0 jumps where")
    assert describe_gradient_jump(reduce_model_for_loss(by_labels.at()) or by_labels.at())


def test_a_slope_that_no_label_makes_jump_is_none():
    @sf.model(clusters=2, law=two_labels)
    def smooth(X, Y, k):
        return sf.by_label(k[0], sp.Max(0, X[0]) ** 2, sf.rounded_hinge(Y[0] - X[0], sp.Rational(1, 5)))

    assert describe_gradient_jump(smooth.at()) == ""


def test_switches_are_one_only_where_they_are_multiples_at_every_label():
    @sf.model(clusters=2, student=2, law=two_labels)
    def crossed(X, Y, k):
        sign = sf.by_label(k[0], 1, -1)
        return sp.Max(0, 1 - sign * X[0]) + sp.Max(0, 1 + sign * X[0]) / 2 + sp.Abs(X[1]) + sp.Abs(sign * X[1])

    assert len(split_loss_by_signs(crossed.at()).switches) == 3


def test_a_root_that_one_label_makes_singular_is_a_kink():
    @sf.model(clusters=2, law=two_labels, metric=lambda h, Y, k: sp.cbrt(sf.by_label(k[0], 2 + h[0] ** 2, h[0])))
    def square(X, Y, k):
        return sf.half_square(Y - X)

    at = square.at()
    found = metric_kinks(at)
    assert any(e.subs({at.labels[0]: 1, at.X[0]: 0}) == 0 for e in (*found.planes, *found.curved))


@pytest.mark.parametrize(
    ("loss", "corners"),
    [(lambda x, y: sp.Min(1, sp.Max(0, 1 - sp.sign(y) * x)), (0, 1)),
     (lambda x, y: sp.Min(1, sp.Max(0, 1 - sp.sign(y) * x) ** 2), (0, 1)),
     (lambda x, y: sp.Max(0, sp.Abs(sp.Abs(y) - x) - 1), (1, 3)),
     (lambda x, y: sp.Max(0, 1 - x * sp.Abs(x)), (1,))],
)  # fmt: skip
def test_corners_within_corners_have_places(loss, corners):
    x, y = sp.symbols("x y", real=True)
    places = [
        zero
        for switch in switching_functions([loss(x, y)])
        for zero in (closed_form_zeros(switch, x) if switch.has(x) else [])
    ]
    found = {complex(place.subs(y, 2)) for place in places}
    assert {complex(corner) for corner in corners} <= found and not any(place.imag for place in found)


def test_the_zero_of_a_line_is_among_those_of_a_parabola_that_may_be_none():
    x, bend = sp.symbols("x bend", real=True)
    places = closed_form_zeros(bend * x**2 + x - 1, x)
    assert sp.Integer(1) in [place.subs(bend, 0) for place in places]
    assert {sp.Rational(1, 2), sp.Integer(-1)} <= {place.subs(bend, 2) for place in places}
