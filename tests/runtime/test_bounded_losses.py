"""Losses that fall without end at the parameters given: refused, or held by the penalty as their author says."""

import numpy as np
import pytest
import sympy as sp

import saddleforge as sf
from saddleforge.base.errors import InputError
from saddleforge.derive.catalogue import SHIPPED
from saddleforge.problems.loss_growth import find_unbounded_rays
from saddleforge.problems.overlaps import Overlaps
from saddleforge.saddle_point.domain import explain_unbounded_loss

FALLING = {
    "a line": (lambda x: 3 - 1e-3 * x[0], 1, 1),
    "a root": (lambda x: -np.sqrt(abs(x[0])), 1, 0.5),
    "a negative logistic loss": (lambda x: -np.logaddexp(0, -x[0]), 1, 1),
    "a parabola": (lambda x: 50 + x[0] - x[0] ** 2 / 100, 1, 2),
    "a cube": (lambda x: float(x[0]) ** 3 + 100 * x[0] ** 2, 1, 3),
    "an exponential that overflows": (lambda x: -(np.e ** float(x[0])) + x[0] ** 2, 1, np.inf),
    "a product": (lambda x: x[0] * x[1] + abs(x[0]), 2, 2),
    "a narrow cone": (lambda x: 100 * (x[0] - x[1]) ** 2 - x[0] ** 2, 2, 2),
}
BOUNDED = {
    "a logarithm": (lambda x: -np.log1p(x[0] ** 2), 1),
    "a deep valley": (lambda x: x[0] ** 2 - 1e3 * abs(x[0]), 1),
    "steps": (lambda x: -1e5 * np.tanh(x[0]), 1),
    "a function that is complex far out": (lambda x: complex(x[0]) ** 0.5, 1),
    "a valley of two": (lambda x: (x[0] - x[1]) ** 2 + abs(x[0]) - 50, 2),
    "a number that overflows everywhere": (lambda x: np.e ** (1000 + float(x[0]) ** 2), 1),
}


@pytest.mark.parametrize("name", FALLING)
def test_a_loss_that_falls_without_end_is_seen_with_its_power(name):
    loss, size, power = FALLING[name]
    found = find_unbounded_rays(loss, size, np.random.default_rng(0))
    assert max(fall.power for fall in found) == pytest.approx(power, rel=0.05)
    assert any(fall.is_faster_than_quadratic for fall in found) == (power > 2)


@pytest.mark.parametrize("name", BOUNDED)
def test_a_loss_with_a_lower_bound_is_not_said_to_fall(name):
    loss, size = BOUNDED[name]
    assert not find_unbounded_rays(loss, size, np.random.default_rng(0))


@pytest.mark.parametrize("name", SHIPPED)
def test_no_loss_of_the_catalogue_falls(name):
    assert not sf.problem(name, alpha=1.0).unbounded_rays


@sf.model()
def weighted(X, Y, *, w_plus=1.0, cube=0.0):
    """A logistic loss with a weight of its own for one class, and a cube."""
    weight = sp.Piecewise((w_plus, Y[0] > 0), (1, True))
    return weight * sf.softplus(-sp.sign(Y[0]) * X[0]) + cube * X[0] ** 3


def test_values_at_which_a_loss_has_no_lower_bound_are_refused_by_name():
    assert sf.problem(weighted, alpha=1.0, w_plus=0.01).parameters["w_plus"] == 0.01
    with pytest.raises(InputError, match=r"no lower bound at w_plus = -1.*falls as \|X\|\^1: .*unbounded=True"):
        sf.problem(weighted, alpha=1.0, w_plus=-1)
    with pytest.raises(InputError, match=r"no lower bound at cube = 0.1: .*faster than \|X\|\^2, so that no penalty"):
        sf.problem(weighted, alpha=1.0, cube=0.1)
    with pytest.raises(InputError, match=r"no lower bound at w_plus = -1"):
        sf.problem(weighted, alpha=1.0).with_(w_plus=-1)


@sf.model()
def raised(X, Y, *, exponent=1.0):
    """Beyond the range of doubles where the exponent is large."""
    return sp.exp(exponent + (X[0] - Y[0]) ** 2)


def test_a_loss_that_is_no_double_anywhere_is_refused_with_a_field():
    """At parameters that are given, and at the defaults before anything is generated."""
    with pytest.raises(InputError, match=r"at exponent = 2000.0 the loss is no finite number .* inf at X = \(\S+\), Y"):
        sf.problem(raised, alpha=1.0, exponent=2000)
    with pytest.raises(InputError, match=r"the loss is no finite number .* e?\S+ at x_0_0 = \S+, y_0_0 = \S+, and not"):
        sf.problem(sf.model()(lambda X, Y: sp.exp(2000 + (X[0] - Y[0]) ** 2)), alpha=1.0)
    assert sf.problem(raised, alpha=1.0, exponent=-3).parameters["exponent"] == -3


@sf.model()
def by_hand(X, Y, *, steep=20.0):
    """The logistic loss as a quotient, under a logarithm."""
    return -sp.log(1 / (1 + sp.exp(-steep * sp.sign(Y[0]) * X[0])))


@sf.model()
def by_name(X, Y, *, steep=20.0):
    """The logistic loss."""
    return sf.softplus(-steep * sp.sign(Y[0]) * X[0])


@pytest.mark.slow
def test_a_loss_by_hand_has_the_solution_of_its_named_form():
    found = [sf.solve(sf.problem(model, alpha=2.0, steep=150.0)) for model in (by_hand, by_name)]
    assert all(solution.success for solution in found)
    assert found[0].overlaps.pack() == pytest.approx(found[1].overlaps.pack(), rel=1e-9)


@pytest.mark.slow
def test_the_complementary_log_log_is_solved():
    """Generation ends though exp(exp(x)) has no digits far out; the loss of margins of one sign is log-concave."""

    @sf.model()
    def complementary(X, Y):
        return -sp.log(1 - sp.exp(-sp.exp(sp.sign(Y[0]) * X[0])))

    solution = sf.solve(sf.problem(complementary, alpha=2.0))
    assert solution.success and solution.overlaps.theta.item() > 0


@sf.model(regulariser=sf.Ridge(10), unbounded=True, starts={"semantic": sf.Start(teacher=sp.Rational(1, 10))})
def concave(X, Y, *, w_plus=-1.0, cube=0.0):
    """A square loss of negative weight for one class, which a strong ridge holds."""
    return sp.Piecewise((w_plus, Y[0] > 0), (1, True)) * sf.half_square(Y[0] - X[0]) + cube * X[0] ** 3


def test_a_declared_loss_is_refused_where_nothing_holds_it_and_elsewhere_where_V_is_too_large():
    problem = sf.problem(concave, alpha=2.0)
    with pytest.raises(InputError, match="so that no penalty"):
        problem.with_(cube=0.1)
    one = np.ones((1, 1, 1))
    held, loose = (Overlaps(one, V * one, one[0], 0 * one, np.zeros(0)) for V in (0.9, 1.1))
    assert explain_unbounded_loss(problem, held) == ""
    assert "falls as -0.5 |X|^2" in explain_unbounded_loss(problem, loose)


@pytest.mark.slow
def test_a_falling_loss_is_solved_where_the_ridge_holds_it_and_left_where_it_does_not():
    """For half of the samples the curvature is -1, for half 1: lambda = 1 / V + 2 V / (1 - V^2) at alpha = 2, which has
    no solution below 3.32."""
    solution = sf.solve(sf.problem(concave, alpha=2.0, lambda_=4.0))
    V = solution.overlaps.V.item()
    strength = 1 / V + 2 * V / (1 - V**2)
    assert solution.success and strength == pytest.approx(4.0, rel=1e-9)
    lost = sf.solve(sf.problem(concave, alpha=2.0, lambda_=3.0))
    assert lost.status == "left_domain"
    assert "try a stronger one" in lost.outside
