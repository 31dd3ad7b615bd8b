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
