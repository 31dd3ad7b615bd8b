"""Ridge regression against its closed form, from the Marchenko-Pastur law (Hastie, Montanari, Rosset, Tibshirani 2022).

Loss 1/2 (y - X)^2, y = Y + u, u ~ N(0, Delta), rho* = 1, inputs of unit covariance, alpha = n / d. The closed form here
uses random matrix theory only: W = (X X^T + lambda)^(-1) X y, and the resolvent's trace at -lambda.
"""

from dataclasses import dataclass

import numpy as np
import pytest

import saddleforge as sf
from saddleforge import Solution

DELTA, LAMBDA = 0.25, 0.1


@dataclass(frozen=True)
class ClosedForm:
    """Traces per d of the ridge estimator: resolvent R = (S + lambda)^(-1) of S = sum of x x^T / d."""

    theta: float
    q: float
    V: float
    test_error: float
    training_loss: float
    replicon: float


def closed_form(alpha: float) -> ClosedForm:
    """From V = tr R, which solves lambda V^2 + (lambda + alpha - 1) V - 1 = 0, and its derivative in lambda."""
    b = LAMBDA + alpha - 1
    root = np.sqrt(b * b + 4 * LAMBDA)
    V = 2 / (b + root)
    # d/dlambda of the quadratic: tr R^2 = -dV/dlambda.
    R2 = (V * V + V) / (2 * LAMBDA * V + b)
    theta = 1 - LAMBDA * V  # w = R (S w* + noise): tr(R S)
    noise = DELTA * (V - LAMBDA * R2)  # tr(R S R)
    q = 1 - 2 * LAMBDA * V + LAMBDA**2 * R2 + noise  # tr(R S S R) + noise
    # Data term: residuals are I - S^ R^ for the dual matrix, whose spectrum is that of S with alpha - 1 more zeros.
    # 1/2 |y - X w|^2 = lambda^2/2 (sum of s / (s + lambda)^2 + Delta (sum of 1 / (s + lambda)^2 over the dual matrix)).
    dual_R2 = R2 + (alpha - 1) / LAMBDA**2
    data = LAMBDA**2 / 2 * (V - LAMBDA * R2 + DELTA * dual_R2)
    penalty = LAMBDA / 2 * q
    # Replicon of a convex square loss: alpha R^2 / (1 + V)^2 with R = V.
    return ClosedForm(theta, q, V, 1 + DELTA - 2 * theta + q, data + penalty, alpha * V**2 / (1 + V) ** 2)


@pytest.fixture(scope="module", params=[0.5, 1.0, 2.0])
def case(request: pytest.FixtureRequest) -> tuple[ClosedForm, Solution]:
    alpha = request.param
    problem = sf.problem("ridge_regression", alpha=alpha, Delta=DELTA, **{"lambda": LAMBDA})
    return closed_form(alpha), sf.solve(problem, accuracy=1e-12)


def test_closed_form_is_that_of_a_finite_system():
    """The formulas above against the exact estimator at d = 1000, within its fluctuations."""
    rng = np.random.default_rng(3)
    d, alpha = 1000, 2.0
    n = int(alpha * d)
    x = rng.standard_normal((n, d)) / np.sqrt(d)
    teacher = rng.standard_normal(d)
    y = x @ teacher + np.sqrt(DELTA) * rng.standard_normal(n)
    S = x.T @ x + LAMBDA * np.eye(d)
    w = np.linalg.solve(S, x.T @ y)
    expected = closed_form(alpha)
    rho = teacher @ teacher / d
    assert np.trace(np.linalg.inv(S)) / d == pytest.approx(expected.V, rel=0.01)
    assert teacher @ w / d / rho == pytest.approx(expected.theta, rel=0.02)
    assert w @ w / d / rho == pytest.approx(expected.q, rel=0.05)
    loss = ((y - x @ w) @ (y - x @ w) + LAMBDA * w @ w) / (2 * d)
    assert loss == pytest.approx(expected.training_loss, rel=0.05)


def test_the_ridge_solution_converges_to_a_tiny_residual(case):
    _, solution = case
    assert solution.status == "converged"
    assert solution.residual < 1e-13


@pytest.mark.parametrize("name", ["q", "V", "theta"])
def test_overlaps_agree_to_twelve_digits(case, name):
    expected, solution = case
    assert getattr(solution.overlaps, name).item() == pytest.approx(getattr(expected, name), rel=0, abs=1e-12)


def test_there_is_no_mean_direction_to_learn(case):
    assert case[1].overlaps.m.item() == 0.0


@pytest.mark.parametrize("name", ["training_loss", "test_error"])
def test_losses_agree_to_twelve_digits(case, name):
    expected, solution = case
    assert getattr(solution, name) == pytest.approx(getattr(expected, name), rel=0, abs=1e-12)


def test_replicon_agrees_to_twelve_digits(case):
    expected, solution = case
    assert solution.stability is not None
    assert solution.stability.replicon == pytest.approx(expected.replicon, rel=0, abs=1e-12)
    assert solution.stability.verdict.startswith("RS stable")


def test_error_bars_are_as_small_as_asked(case):
    _, solution = case
    assert np.all(solution.errors <= 1e-12 * solution.overlaps.block_scales)
    assert solution.training_loss_error < 1e-12
    assert solution.test_error_error < 1e-12


def test_the_published_point_of_robust_regression_by_squares():
    """V lambda = v, v = 1 / (1 + alpha / (lambda + v)), at alpha = 0.1, lambda = 1.4: arXiv 2305.18974."""
    found = sf.solve(sf.problem("ridge_regression", alpha=0.1, lambda_=1.4), accuracy=1e-10)
    assert 1.4 * found.overlaps.V.item() == pytest.approx(0.95934, abs=5e-6)
