"""Narrow features of metrics and of the teacher in a loss, against closed forms."""

from itertools import pairwise

import numpy as np
import pytest
import sympy as sp
from scipy.integrate import quad

import saddleforge as sf
from saddleforge.channel.fields import field_law, overlaps_of_loss_fields
from saddleforge.integration.sampled import TeacherFieldRule
from saddleforge.problems.overlaps import Overlaps
from saddleforge.problems.reduced import reduce_to_fields_of_loss
from saddleforge.saddle_point import observables


def normal(y):
    return np.exp(-y * y / 2) / np.sqrt(2 * np.pi)


def bump_average(width, mean, variance):
    """E exp(-(z / width)^2) of a normal variable z."""
    return np.exp(-(mean**2) / (width**2 + 2 * variance)) / np.sqrt(1 + 2 * variance / width**2)


def log_average(variance):
    """E log(1 + 4 e^2) of a normal variable e."""
    width = np.sqrt(variance)
    ends = [0, *np.geomspace(1e-3, 10 * width, 12)]
    return sum(
        quad(lambda e: 2 * np.log1p(4 * e * e) * normal(e / width) / width, *pair, epsabs=1e-15, epsrel=1e-13)[0]
        for pair in pairwise(ends)
    )


def step_average(scale, place):
    """E Y tanh(scale (Y - place)), by parts."""
    return quad(lambda t: normal(place + t / scale) / np.cosh(t) ** 2, -20, 20, epsabs=1e-14)[0]


FACTOR = 1000
METRICS = {
    "near": lambda h, Y: sp.exp(-((100 * (h[0, 0] - Y[0, 0])) ** 2)),
    "along_h": lambda h, Y: sp.exp(-((FACTOR * (h[0, 0] - 1)) ** 2)),
    "along_Y": lambda h, Y: h[0, 0] * sp.tanh(FACTOR * (Y[0, 0] - 1)),
    "product": lambda h, Y: sp.cos(10 * h[0, 0] * Y[0, 0]),
    "log": lambda h, Y: sp.log(1 + 4 * (h[0, 0] - Y[0, 0]) ** 2),
    "ordinary": lambda h, Y: 1 / (1 + sp.exp(2 * h[0, 0])) + 0 * Y[0, 0],
}
EXACT = {  # of q and theta
    "near": lambda q, theta: bump_average(1e-2, 0, q - 2 * theta + 1),
    "along_h": lambda q, theta: bump_average(1 / FACTOR, 1, q),
    "along_Y": lambda q, theta: theta * step_average(FACTOR, 1),
    "product": lambda q, theta: ((1 - 20j * theta + 100 * (q - theta**2)) ** -0.5).real,
    "log": lambda q, theta: log_average(q - 2 * theta + 1),
    "ordinary": lambda q, theta: 0.5,
}


@sf.model(regulariser=sf.Ridge(0.1), noise={"u": sf.GaussianNoise(variance="Delta")}, metric=METRICS)
def bumps(X, Y, u, *, Delta=0.25):
    """A square loss on a teacher with a narrow bump."""
    return sf.half_square(Y[0, 0] + 3 * sp.exp(-((100 * (Y[0, 0] - 1)) ** 2)) + u - X[0, 0])


def overlaps(q, theta):
    one = np.ones((1, 1, 1))
    return Overlaps(q * one, one, np.zeros((1, 1)), theta * one)


@pytest.mark.parametrize(
    ("name", "q", "theta"),
    [
        (name, q, theta) for name in METRICS for q, theta in ((1.0238, 0.9156), (0.99, 0.9949), (7216.5, 0.9156))
        if (name, q) != ("product", 7216.5)
    ],
)  # fmt: skip
def test_test_errors_follow_what_is_narrow_to_the_accuracy_asked(name, q, theta):
    problem = sf.problem(bumps).with_metric(name)
    exact = EXACT[name](q, theta)
    value, error, rule = observables.test_error(problem, overlaps(q, theta), 0.0, relative=1e-8)
    assert abs(value - exact) <= max(error, 1e-12 * exact)
    assert error <= 1e-8 * max(abs(exact), 1e-3)
    assert observables.average_metric_by_quadrature(problem, overlaps(q, theta), rule) == pytest.approx(exact, rel=1e-7)


def test_a_test_error_that_cells_are_too_many_for_is_sampled_and_says_so():
    problem, there = sf.problem(bumps).with_metric("product"), overlaps(7216.5, 0.9156)
    value, error, rule = observables.test_error(problem, there, 0.0, relative=1e-8, most=2e5)
    assert rule.family == "sobol"
    assert abs(value - EXACT["product"](7216.5, 0.9156)) <= 1.5 * error


@sf.model(tokens=3, regulariser=sf.Ridge(0.1), metric=lambda h, Y: (sp.Max(*Y) - sp.Max(*h)) ** 2)
def largest(X, Y):
    """Scores that sum to the largest of three."""
    return sf.half_square(sp.Max(*Y) - sum(X))


@pytest.mark.slow
def test_a_metric_with_many_kinks_is_refined_no_further_than_asked():
    """The largest of three independent normal variables has the mean 3 / (2 sqrt pi), the square 1 + sqrt 3 / 2 pi."""
    one, q = np.ones((3, 1, 1)), 0.5
    there = Overlaps(q * one, one, np.zeros((3, 1)), 0 * one)
    value, error, rule = observables.test_error(sf.problem(largest), there, 0.0, relative=2e-3, most=4e6)
    exact = (1 + np.sqrt(3) / (2 * np.pi)) * (1 + q) - 2 * np.sqrt(q) * 9 / (4 * np.pi)
    assert abs(value - exact) <= 1.5 * error < 3e-3 * exact
    assert rule.family == "sobol" and rule.size < 15


@sf.model(
    student=2,
    regulariser=sf.Ridge(0.1),
    metric=lambda h, Y: (sp.Max(Y[0], 0) - sp.Max(h[0, 0], 0) - sp.Max(h[0, 1], 0)) ** 2,
)
def two_rectified_units(X, Y):
    """Two units on one."""
    return sf.half_square(sp.Max(Y[0], 0) - sp.Max(X[0, 0], 0) - sp.Max(X[0, 1], 0))


@pytest.mark.parametrize(("accuracy", "most"), [(3e-3, 30), (1e-9, 64)])
def test_a_product_rule_on_many_panels_has_no_more_nodes_than_asked(accuracy, most):
    """Averages of products of rectified units have a closed form (Cho, Saul, NeurIPS 2009)."""
    q, theta, rho = np.array([[0.25, 0.05], [0.05, 0.3]]), np.array([0.1, 0.2]), 1.0
    law = np.block([[np.array([[rho]]), theta[None]], [theta[:, None], q]])
    scales = np.sqrt(np.diag(law))
    angles = np.arccos(np.clip(law / np.outer(scales, scales), -1, 1))
    kernel = np.outer(scales, scales) * (np.sin(angles) + (np.pi - angles) * np.cos(angles)) / (2 * np.pi)
    signs = np.array([1.0, -1.0, -1.0])
    there = Overlaps(q[None], np.eye(2)[None], np.zeros((1, 2)), theta.reshape(1, 2, 1))
    value, error, rule = observables.test_error(sf.problem(two_rectified_units), there, 0.0, relative=accuracy)
    assert abs(value - signs @ kernel @ signs) <= max(error, 1e-14) and error <= accuracy * value
    assert rule.family == "product" and rule.size <= most


@pytest.mark.parametrize("points", [16, 48])
def test_nodes_of_the_teacher_see_a_narrow_feature_of_the_loss(points):
    problem = reduce_to_fields_of_loss(sf.problem(bumps))
    labels = problem.label_probabilities[0][0]
    fields = field_law(problem, overlaps_of_loss_fields(problem, overlaps(1.0, 0.9)), labels)
    nodes, weights = TeacherFieldRule.teacher_rule_for_loss(problem, fields, points, equidistant=True).nodes_and_weights
    y = fields.teacher_mean[0, 0] + nodes[:, 0] * fields.teacher_factor[0, 0, 0]
    seen = weights @ np.exp(-((100 * (y - 1)) ** 2))
    assert seen == pytest.approx(bump_average(1e-2, 1, 1), rel=10.0 ** (-2 - points / 8))


def ridge(slope, square, alpha=2.0, strength=0.1):
    """q of ridge regression on labels f with E[f Y] and E[f^2]."""
    from scipy.optimize import brentq

    V = brentq(lambda v: v * (strength + alpha / (1 + v)) - 1, 1e-9, 100, xtol=1e-15)
    theta = V * alpha / (1 + V) * slope
    gain = V**2 * alpha / (1 + V) ** 2
    return (theta**2 + gain * (square - 2 * slope * theta)) / (1 - gain)


def labels_of(width, place, noise):
    """E[f Y] and E[f^2] of f = Y + 3 exp(-((Y - place) / width)^2) + u, or with the bump in u around zero."""
    if place is None:
        return 1.0, 1 + noise + 9 * bump_average(width / 2**0.5, 0, noise)
    once, twice = (bump_average(width / n**0.5, place, 1) for n in (1, 2))
    moment = place / (1 + width**2 / 2) * once
    return 1 + 3 * moment, 1 + noise + 6 * moment + 9 * twice


def square_loss(labels):
    def loss(X, Y, u, *, Delta=0.25):
        return sf.half_square(labels(Y[0, 0], u) - X[0, 0])

    return sf.model(regulariser=sf.Ridge(0.1), noise={"u": sf.GaussianNoise(variance="Delta")})(loss)


def steep():
    """E[f Y] and E[f^2] of f = tanh(500 Y) + u."""
    from scipy.integrate import quad

    inside = quad(lambda t: normal(t / 500) / np.cosh(t) ** 2 / 500, -20, 20, epsabs=1e-16)[0]
    return step_average(500, 0), 1.25 - inside


TEACHERS = {
    "bump": (lambda y, u: y + 3 * sp.exp(-((100 * (y - 1)) ** 2)) + u, labels_of(1e-2, 1, 0.25)),
    "narrower": (lambda y, u: y + 3 * sp.exp(-((10**4 * (3 * y + 1)) ** 2)) + u, labels_of(1e-4 / 3, -1 / 3, 0.25)),
    "in the noise": (lambda y, u: y + 3 * sp.exp(-((100 * u) ** 2)) + u, labels_of(1e-2, None, 0.25)),
    "step": (lambda y, u: sp.tanh(500 * y) + u, steep()),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", TEACHERS)
def test_solutions_see_a_narrow_feature_of_the_teacher(name):
    labels, moments = TEACHERS[name]
    solution = sf.solve(sf.problem(square_loss(labels), alpha=2.0), accuracy=1e-8)
    exact = ridge(*moments)
    assert solution.success
    assert abs(solution.overlaps.q.item() - exact) <= max(solution.error_bars.q.item(), 1e-10) < 1e-7
