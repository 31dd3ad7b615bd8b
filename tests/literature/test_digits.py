"""High precision against exact results and against an independent rule.

Random labels: T. M. Cover, IEEE Trans. Electron. Comput. EC-14 (1965) 326 (separable up to alpha = 2); E. Gardner,
J. Phys. A 21 (1988) 257 (capacity at a margin). The maximum-margin solution with unit margin has q = 1 / kappa^2 at the
capacity of margin kappa. It is the limit lambda -> 0 of the hinge loss, which is reached like exp(-const / lambda^2):
only fields below 1 - V, V ~ 1 / lambda, tell a finite lambda from none.
"""

from itertools import pairwise
from typing import Any

import mpmath as mp
import numpy as np
import pytest

import saddleforge as sf
from saddleforge.extensions.digits import refine_threshold
from saddleforge.extensions.reference.improve import SolutionWithErrorBars, refine_solution
from saddleforge.extensions.reference.system import SaddlePointSystem

ROUNDING = 1e-40  # of the hinge's corner, which moves the solution by about as much


def hinge(X: Any, Y: Any, *, rounding: Any = sf.Parameter("1e-7", 0, 1, True, True)) -> Any:  # noqa: B008
    """Unit margin; labels do not depend on the teacher, so that all may be taken as +1."""
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


@pytest.mark.slow
def test_the_threshold_at_norm_four_has_gardners_39_digits():
    """As a user would find it: in double precision with a corner that is rounded more, then refined."""
    rough = sf.problem(RANDOM_LABELS, **{"lambda": 0.01})
    near = sf.where(rough, "q = 4", on="uninformed", bracket=(0.9, 1.0), accuracy=1e-4)
    found = refine_threshold(near, "q = 4", 1e-39, rough.with_(rounding=ROUNDING))
    assert (found.status, found.error_kind) == ("converged", "verified")
    assert found.to_json()["value"].startswith("0.96120505280154")
    with mp.workdps(60):
        assert abs(found.exact - capacity(mp.mpf(1) / 2)) < 1e-39


def at_margin(kappa: float, penalty: float) -> SolutionWithErrorBars:
    """alpha and overlaps at q = 1 / kappa^2; Newton starts from Gardner's values, rounded to doubles."""
    alpha, q = float(capacity(kappa)), 1 / kappa**2
    start = np.array([q, (1 - alpha * float(mp.ncdf(kappa))) / penalty, 0.0, 0.0, alpha])
    scales = np.array([q, start[1], np.sqrt(q), q, alpha])
    problem = sf.problem(RANDOM_LABELS, alpha=1.0, rounding=ROUNDING, **{"lambda": penalty})
    system = SaddlePointSystem(
        problem, scales, "alpha", lambda state: state.evaluate_observable("q") * mp.mpf(kappa) ** 2 - 1
    )
    return refine_solution(system, start, 1e-34, lambda errors: errors[-1], f"margin {kappa:g}")


def test_the_norm_of_the_maximum_margin_solution_is_gardners():
    """q = 4 at alpha = 0.96120505280154, kappa = 1/2; at lambda = 0.01 what is left of lambda is below 1e-50."""
    found = at_margin(0.5, 0.01)
    assert found.status.success
    with mp.workdps(50):
        assert mp.nstr(found.root.z[-1], 14) == "0.96120505280154"
        assert abs(found.root.z[-1] - capacity(mp.mpf(1) / 2)) < found.error_bars[-1] + 1e-39


@pytest.mark.slow
def test_the_limit_of_a_weak_ridge_is_reached_faster_than_any_power():
    """log(alpha - alpha_c) grows like -1 / lambda^2."""
    logs = []
    with mp.workdps(50):
        for penalty in (0.04, 0.03, 0.02):
            logs.append(mp.log(abs(at_margin(0.5, penalty).root.z[-1] - capacity(mp.mpf(1) / 2))))
    first, second = (b - a for a, b in pairwise(logs))
    steps = [b**-2 - a**-2 for a, b in pairwise((0.04, 0.03, 0.02))]
    assert float(second / first) == pytest.approx(steps[1] / steps[0], rel=0.2)


@pytest.mark.slow
def test_random_labels_are_separable_up_to_alpha_two():
    """The capacity at margins 2^-2 ... 2^-10, each to 30 digits, extrapolated to none by polynomials (Neville)."""
    kappas = [2.0**-k for k in range(2, 11)]
    with mp.workdps(45):
        column = []
        for kappa in kappas:
            found = at_margin(kappa, kappa**2 / 20)
            assert found.status.success
            assert abs(found.root.z[-1] - capacity(mp.mpf(kappa))) < 1e-30
            column.append(found.root.z[-1])
        corners = [column[-1]]
        for order in range(1, len(kappas)):
            column = [
                (kappas[i] * b - kappas[i + order] * a) / (kappas[i] - kappas[i + order])
                for i, (a, b) in enumerate(pairwise(column))
            ]
            corners.append(column[-1])
        error = abs(corners[-1] - corners[-2])
        assert error < 1e-16
        assert abs(corners[-1] - 2) < error


def logistic_image(q: Any, V: Any, theta: Any, alpha: Any, penalty: Any, nodes: int) -> list[Any]:
    """q, V, theta that follow from given ones by the equations of a textbook: equidistant nodes in omega, proximal
    points by Newton's method, and V^ from the slope of the field where the package uses Stein's lemma."""
    spread, width = mp.sqrt(1 - theta**2 / q), mp.sqrt(q)
    step, sums = 30 * width / nodes, [mp.mpf(0)] * 3
    for k in range(nodes + 1):
        w = -15 * width + k * step
        x, move = w, mp.mpf(1)
        while abs(move) > mp.mpf(10) ** (5 - mp.mp.dps):
            g = 1 / (1 + mp.exp(x))  # -dloss/dx for the label +1
            move = (x - w - V * g) / (1 + V * g * (1 - g))
            x -= move
        g = 1 / (1 + mp.exp(x))
        centre = theta * w / q / spread
        weight = 2 * step * mp.npdf(w, 0, width)  # twice: both labels give the same
        sums[0] += weight * g * g * mp.ncdf(centre)
        sums[1] += weight * g * mp.npdf(centre) / spread
        sums[2] += weight * g * (1 - g) / (1 + V * g * (1 - g)) * mp.ncdf(centre)
    q_hat, theta_hat, V_hat = (alpha * z for z in sums)
    R = 1 / (penalty + V_hat)
    return [R**2 * (theta_hat**2 + q_hat), R, R * theta_hat]


@pytest.mark.slow
def test_thirty_digits_of_logistic_regression_agree_with_another_rule():
    """alpha = 2, lambda = 0.1: numbers of tests/literature/test_logistic.py, twice as long."""
    found = sf.solve_precisely(sf.problem("logistic_regression", alpha=2.0), accuracy=1e-32)
    assert (found.status, found.error_kind) == ("converged", "verified")
    with mp.workdps(45):
        q, V, theta = (getattr(found.overlaps, name).item() for name in ("q", "V", "theta"))
        images = [logistic_image(q, V, theta, mp.mpf(2), mp.mpf(1) / 10, nodes) for nodes in (900, 1200)]
        for value, coarse, fine in zip((q, V, theta), *images, strict=True):
            assert abs(coarse - fine) < 1e-30
            assert abs(value - fine) < 1e-30
        assert abs(found.observables["test_error"][0] - mp.acos(theta / mp.sqrt(q)) / mp.pi) < 1e-31
        assert mp.nstr(q, 30) == "4.14580362074794941373497917899"


@pytest.mark.slow
def test_forty_digits_of_ridge_regression_agree_with_the_closed_form():
    """The closed form of tests/literature/test_ridge.py, with decimals taken as they print."""
    problem = sf.problem("ridge_regression", alpha=2.0)
    found = sf.solve_precisely(problem, accuracy=1e-40)
    assert found.status == "converged"
    with mp.workdps(60):
        penalty, noise = mp.mpf(1) / 10, mp.mpf(1) / 4
        b = penalty + 2 - 1
        V = 2 / (b + mp.sqrt(b * b + 4 * penalty))
        R2 = (V * V + V) / (2 * penalty * V + b)
        error = noise + penalty**2 * R2 + noise * (V - penalty * R2)
        assert abs(found.overlaps.V.item() - V) < 1e-40
        assert abs(found.overlaps.theta.item() - (1 - penalty * V)) < 1e-40
        assert abs(found.observables["test_error"][0] - error) < 1e-39
