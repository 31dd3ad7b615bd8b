"""High precision against exact results and against an independent rule.

Random labels: T. M. Cover, IEEE Trans. Electron. Comput. EC-14 (1965) 326 (separable up to alpha = 2); E. Gardner,
J. Phys. A 21 (1988) 257 (capacity at a margin). The maximum-margin solution with unit margin has q = 1 / kappa^2 at the
capacity of margin kappa; it is the limit lambda -> 0 of the hinge loss, approached like exp(-const / lambda^2) because
only margins below 1 - V with V ~ 1 / lambda are not on the margin or beyond it.
"""

from functools import cache
from typing import Any

import mpmath as mp
import pytest

import saddleforge as sf
from saddleforge.reference.solution import PreciseSolution, solve
from saddleforge.reference.thresholds import PreciseThreshold, refine

ALPHA_AT_TWO = "0.96120505280154"  # capacity at kappa = 1/2, where q = 4


def hinge(X: Any, Y: Any, *, rounding: Any = sf.Parameter("1e-7", 0, 1, True, True)) -> Any:  # noqa: B008
    """Hinge loss with unit margin; labels are independent of the teacher, so that they may be taken as +1."""
    return sf.rounded_hinge(1 - X[0, 0], rounding)


RANDOM_LABELS = sf.model(
    name="random_labels",
    regulariser=sf.Ridge(0.01),
    starts={"uninformed": sf.Start(noise=2, susceptibility=30)},
    loss_kinks=lambda X, rounding: [X[0, 0] - 1 - rounding, X[0, 0] - 1 + rounding],
)(hinge)


def capacity(kappa: Any) -> Any:
    """Gardner's alpha_c(kappa) = 1 / E[(z + kappa)^2; z > -kappa], z standard normal."""
    return 1 / ((1 + kappa**2) * mp.ncdf(kappa) + kappa * mp.npdf(kappa))


def at_margin(kappa: float, penalty: float, rounding: str, accuracy: float) -> PreciseThreshold:
    """alpha at which q = 1 / kappa^2."""
    rough = sf.problem(RANDOM_LABELS, **{"lambda": penalty})
    condition = f"q = {1 / kappa**2}"
    expected = float(capacity(kappa))
    found = sf.where(rough, condition, on="uninformed", bracket=(0.97 * expected, 1.03 * expected), accuracy=1e-5)
    return refine(found, accuracy, condition, rough.with_(rounding=float(rounding)))


@pytest.mark.slow
def test_the_norm_of_the_maximum_margin_solution_is_gardners():
    found = at_margin(0.5, 0.01, "1e-40", 1e-30)
    with mp.workdps(45):
        assert found.error_kind == "verified"
        assert found.status == "converged"
        assert mp.nstr(found.exact, 14) == ALPHA_AT_TWO
        assert abs(found.exact - capacity(mp.mpf(1) / 2)) < found.half_width + mp.mpf("1e-38")


# Logistic regression


@cache
def logistic(accuracy: float) -> PreciseSolution:
    return solve(sf.problem("logistic_regression", alpha=2.0), accuracy=accuracy)


def image_by_another_rule(q: Any, V: Any, theta: Any, alpha: Any, penalty: Any) -> list[Any]:
    """q, V, theta that follow from given ones: proximal points by Newton at nodes in omega, V^ from the derivative of
    the field (Stein's lemma is not used), mpmath's own adaptive rule."""
    spread = mp.sqrt(1 - theta**2 / q)

    def averages(w: Any) -> Any:
        x = w
        while True:
            step = (x - w - V / (1 + mp.exp(x))) / (1 + V * mp.exp(x) / (1 + mp.exp(x)) ** 2)
            x -= step
            if abs(step) < mp.mpf(10) ** (5 - mp.dps):
                break
        g = 1 / (1 + mp.exp(x))
        curvature = g * (1 - g)
        centre = theta * w / q / spread
        weight = 2 * mp.npdf(w, 0, mp.sqrt(q))
        share = mp.ncdf(centre)
        return weight * mp.matrix(
            [g * g * share, g * mp.npdf(centre) / spread, curvature / (1 + V * curvature) * share]
        )

    ends = [k * mp.sqrt(q) for k in range(-14, 15, 4)]
    nodes = [mp.quadrature.GaussLegendre(mp).calc_nodes(6, mp.prec)] if False else None
    del nodes
    sums = [mp.quad(lambda w, i=i: averages(w)[i], ends, method="gauss-legendre") for i in range(3)]
    q_hat, theta_hat, V_hat = (alpha * z for z in sums)
    R = 1 / (penalty + V_hat)
    return [R**2 * (theta_hat**2 + q_hat), R, R * theta_hat]
