"""Weak ridges and penalties against limits known without replicas: largest margins, and recovery of sparse vectors.

Largest margins of logistic labels: E. Candes, P. Sur, Ann. Statist. 48 (2020) 27, arXiv 1804.09753 (where data stop
being separable); A. Montanari, F. Ruan, Y. Sohn, J. Yan, arXiv 1911.01544 (the margin below). Recovery by the l1 norm:
D. Donoho, J. Tanner, PNAS 102 (2005) 9446; D. Donoho, A. Maleki, A. Montanari, PNAS 106 (2009) 18914.
"""

import numpy as np
import pytest
import sympy as sp
from scipy.integrate import quad
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit
from scipy.stats import norm

import saddleforge as sf

STEEPNESS = 2


@sf.model(
    noise={"label": sf.DiscreteNoise((1, -1), lambda Y: (p := sf.sigmoid(STEEPNESS * Y[0, 0]), 1 - p))},
    starts={"semantic": sf.Start(teacher="3/5", noise=1, susceptibility=30)},
)
def hinge_on_logistic_labels(X, Y, label):
    return sp.Max(0, 1 - label * X[0, 0])


def samples_at_margin(kappa: float) -> tuple[float, float]:
    """Largest alpha with a unit vector of margin kappa, and its overlap with the teacher: Gordon's inequality.

    alpha = 1 / min over the overlap c of E[(kappa - c label Y - s Z)_+^2] / s^2, s^2 = 1 - c^2.
    """

    def cost(angle: float) -> float:
        c, s = np.cos(angle), np.sin(angle)

        def over_labels(y: float) -> float:
            found = 0.0
            for label in (1, -1):
                a = (kappa - c * label * y) / s
                found += expit(STEEPNESS * label * y) * ((1 + a * a) * norm.cdf(a) + a * norm.pdf(a))
            return found * norm.pdf(y)

        return quad(over_labels, -9, 9, epsabs=1e-12, limit=400)[0]

    found = minimize_scalar(cost, bounds=(1e-3, np.pi / 2), method="bounded", options={"xatol": 1e-10})
    return 1 / found.fun, float(np.cos(found.x))


@pytest.mark.slow
def test_the_hinge_with_a_weak_ridge_has_the_largest_margin():
    """Unit margins of a vector of norm^2 q are margins 1 / sqrt(q) of a unit vector."""
    kappa = brentq(lambda k: samples_at_margin(k)[0] - 1.0, 1e-6, 3, xtol=1e-13)
    for ridge, accuracy in ((0.03, 1e-9), (0.01, 1e-9)):
        found = sf.solve(sf.problem(hinge_on_logistic_labels, alpha=1.0, lambda_=ridge), accuracy=1e-8)
        q, theta = found.overlaps.q.item(), found.overlaps.theta.item()
        assert found.success
        assert q == pytest.approx(1 / kappa**2, rel=accuracy)
        assert theta / np.sqrt(q) == pytest.approx(samples_at_margin(kappa)[1], rel=1e-6)
        assert 2 * found.training_loss / ridge == pytest.approx(q, rel=accuracy)


@pytest.mark.slow
def test_logistic_data_stop_being_separable_where_candes_and_sur_say():
    """Below, the training loss of a weak ridge is the ridge's alone; above, samples are left on the wrong side."""
    line = samples_at_margin(0.0)[0]
    assert line == pytest.approx(2.899137876, rel=1e-8)
    below, above = (
        sf.solve(sf.problem(hinge_on_logistic_labels, alpha=line + by, lambda_=1e-4), accuracy=1e-6) for by in (-1, 1)
    )
    assert below.success and above.success
    assert below.training_loss == pytest.approx(1e-4 / 2 * below.overlaps.q.item(), rel=1e-6)
    assert above.training_loss > 100 * 1e-4 / 2 * above.overlaps.q.item()


@pytest.mark.slow
def test_the_lasso_recovers_sparse_vectors_beyond_the_line_of_donoho_and_tanner():
    """Without noise its error falls like lambda^2 there, and stays below."""
    density = 0.2

    def risk(threshold: float) -> float:
        """Of soft thresholding, at the worst law of the entries that are not zero."""
        zero = 2 * ((1 + threshold**2) * norm.cdf(-threshold) - threshold * norm.pdf(threshold))
        return density * (1 + threshold**2) + (1 - density) * zero

    line = minimize_scalar(risk, bounds=(0, 5), method="bounded", options={"xatol": 1e-12}).fun
    errors = {
        (by, penalty): sf.solve(
            sf.problem("lasso_regression", alpha=line + by, Delta=0.0, density=density, lambda_=penalty), accuracy=1e-6
        ).test_error
        for by in (-0.03, 0.03)
        for penalty in (1e-3, 1e-4)
    }
    assert errors[0.03, 1e-3] / errors[0.03, 1e-4] == pytest.approx(100, rel=0.1)
    assert errors[-0.03, 1e-4] == pytest.approx(errors[-0.03, 1e-3], rel=0.01) and errors[-0.03, 1e-4] > 0.01


def lasso_without_noise(alpha: float, penalty: float, density: float) -> tuple[float, float]:
    """Error and V of the lasso on a Gauss-Bernoulli teacher of variance 1, by state evolution.

    tau^2 = E[(eta(W + tau Z; a tau) - W)^2] / alpha and penalty = a tau (alpha - P[eta is not zero]): M. Bayati,
    A. Montanari, IEEE Trans. Inf. Theory 58 (2012) 1997.
    """

    def moments(a: float, tau: float) -> tuple[float, float]:
        """E[(eta - W)^2] / tau^2, and the probability that eta is not zero."""
        error, active = (1 - density) * 2 * ((1 + a * a) * norm.cdf(-a) - a * norm.pdf(a)), 0.0
        size = np.sqrt(1 + 1 / density / tau**2)  # of W + tau Z in units of tau, where W is not zero
        c, shrunk = a / size, 1 / size**2
        outside = 2 * (norm.cdf(-c) + c * norm.pdf(c)) * size**2
        error += density * (shrunk**2 * outside - 4 * shrunk * a * size * norm.pdf(c) + a * a * 2 * norm.cdf(-c))
        error += density * ((1 - shrunk) ** 2 * (size**2 - outside) + 1 - shrunk)
        active = (1 - density) * 2 * norm.cdf(-a) + density * 2 * norm.cdf(-c)
        return error, active

    def threshold(tau: float) -> float:
        least = brentq(lambda a: alpha - moments(a, tau)[1], 0, 50) if alpha < 1 else 0.0
        return brentq(lambda a: a * tau * (alpha - moments(a, tau)[1]) - penalty, least, 1e3 + 10 * penalty / tau)

    def excess(log_tau: float) -> float:
        tau = np.exp(log_tau)
        return moments(threshold(tau), tau)[0] - alpha

    tau = np.exp(brentq(excess, np.log(penalty) - 3, 2, xtol=1e-14))
    active = moments(threshold(tau), tau)[1]
    return alpha * tau**2, active / (alpha - active)


TRANSITION = 0.51112961  # of a fifth of entries that are not zero


@pytest.mark.parametrize(
    ("by", "penalty"),
    [(-0.1, 1e-6), (-0.002, 1e-4), (-0.002, 1e-7), (-0.002, 1e-8), (0.002, 1e-5), (0.09, 1e-5), (0.29, 1e-3)],
)
def test_the_lasso_is_solved_next_to_its_transition_at_any_penalty(by, penalty):
    """V grows like 1 / lambda below the transition; above, the error falls like lambda^2, far below q."""
    solution = sf.solve(sf.problem("lasso_regression", alpha=TRANSITION + by, Delta=0.0, density=0.2, lambda_=penalty))
    error, V = lasso_without_noise(TRANSITION + by, penalty, 0.2)
    assert solution.success
    assert solution.overlaps.V.item() == pytest.approx(V, rel=1e-4)
    assert solution.test_error == pytest.approx(error, rel=1e-3)


def test_an_error_of_which_double_precision_holds_no_digits_is_named():
    """The error bars say how far off V is."""
    problem = sf.problem("lasso_regression", alpha=TRANSITION + 0.002, Delta=0.0, density=0.2, lambda_=3e-7)
    solution = sf.solve(problem)
    assert solution.status == "accuracy_not_reached" and "double precision does not hold its digits" in solution.advice
    width = sf.Overlaps.unpack(solution.errors, solution.overlaps.sizes).V
    assert (
        abs(solution.overlaps.V - lasso_without_noise(TRANSITION + 0.002, 3e-7, 0.2)[1]) < width < solution.overlaps.V
    )


@pytest.mark.parametrize(
    ("model", "given"),
    [
        ("hinge", {"alpha": 300.0, "lambda_": 1e-3}),
        ("squared_hinge", {"alpha": 1e5}),
        ("squared_hinge", {"alpha": 1e7}),
    ],
)
def test_many_samples_fix_the_direction_of_the_weights(model, given):
    """Of a ridge: V (lambda + V^) = 1, lambda theta = alpha E[f Y], D (lambda + V^)^2 = alpha E[f^2] with the force
    f = Y (prox - omega) / V, where omega is theta Y and noise of variance D = q - theta^2."""
    problem = sf.problem(model, **given)
    solution = sf.solve(problem)
    assert solution.success
    q, V, theta = (getattr(solution.overlaps, name).item() for name in ("q", "V", "theta"))
    ridge, size = problem.strengths.item(), np.sqrt(q - theta**2)
    reach = V if model == "hinge" else np.inf  # of 1 - omega, at which the force of the hinge no longer grows
    slope = 1 / V if model == "hinge" else 1 / (1 + V)

    def over_noise(y: float) -> tuple[float, float, float]:
        """E[f], E[f^2] and E[-df/domega] at a teacher's field |Y|."""
        mean, total = (1 - theta * y), np.zeros(3)
        for end, sign in ((0.0, 1), (reach, -1)):
            if np.isfinite(end):
                x = (mean - end) / size
                cdf, pdf = norm.cdf(x), norm.pdf(x)
                first, second = size * (x * cdf + pdf), size**2 * ((1 + x * x) * cdf + x * pdf)
                total += sign * np.array([slope * first, slope**2 * (second + 2 * end * first), slope * cdf])
        return tuple(total)

    def average(number: int, power: int) -> float:
        far = min((1 + 12 * size) / theta, 12.0)
        return 2 * quad(lambda y: y**power * over_noise(y)[number] * norm.pdf(y), 0, far, epsrel=1e-10, limit=400)[0]

    alpha, held = problem.alpha, 1 / V
    assert ridge + alpha * average(2, 0) == pytest.approx(held, rel=1e-4)
    assert alpha * average(0, 1) == pytest.approx(ridge * theta, rel=1e-4)
    assert alpha * average(1, 0) == pytest.approx(held**2 * size**2, rel=1e-4)
