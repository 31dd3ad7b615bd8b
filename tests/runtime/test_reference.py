"""Beyond double precision: digits that two rules agree on, and sentences where the method does not reach."""

import json
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import sympy as sp

import saddleforge as sf
from saddleforge import InputError
from saddleforge.derive.emit.sources.reference_source import reduce_integral
from saddleforge.extensions.reference.improve import value_and_error_strings
from saddleforge.extensions.reference.numbers import PreciseParameters, array_from_decimals
from saddleforge.extensions.reference.quadrature import QuadratureRule
from saddleforge.extensions.reference.rule_channel import QuadratureChannelAverages
from saddleforge.extensions.reference.system import SaddlePointState
from saddleforge.extensions.reference.thresholds import check_high_precision_threshold
from saddleforge.problems.overlaps import Overlaps
from saddleforge.report.contract import json_text

# alpha = 2, lambda = 0.1; tests/literature/test_digits.py checks them against another rule.
LOGISTIC = {
    "q": "4.145803620747949413734979178989",
    "V": "3.976545789103861482804724157374",
    "theta": "1.720313092592676284011330211864",
}


@pytest.fixture(scope="module")
def logistic() -> sf.PreciseSolution:
    return sf.solve_precisely(sf.problem("logistic_regression", alpha=2.0), accuracy=1e-14)


def test_error_bars_hold_the_truth_and_meet_the_accuracy(logistic):
    assert (logistic.status, logistic.error_kind) == ("converged", "verified")
    with mp.workdps(40):
        for name, text in LOGISTIC.items():
            value, error = getattr(logistic.overlaps, name).item(), getattr(logistic.errors, name).item()
            assert abs(value - mp.mpf(text)) <= error < 1e-14 * abs(value)


def test_double_precision_agrees(logistic):
    near = sf.solve(logistic.problem, accuracy=1e-9)
    assert np.array(logistic.overlaps.pack(), float) == pytest.approx(near.overlaps.pack(), rel=1e-9, abs=1e-12)
    for name in ("training_loss", "free_entropy", "test_error"):
        assert float(logistic.observables[name][0]) == pytest.approx(getattr(near, name), rel=1e-8)
    assert float(logistic.observables["replicon"][0]) == pytest.approx(near.stability.replicon, rel=1e-8)


def test_phi_is_minus_the_sum_of_its_parts(logistic):
    """The undamped residual alone could be small for a wrong free entropy."""
    with mp.workdps(30):
        numbers = PreciseParameters.from_problem(logistic.problem)
        _, gap = SaddlePointState(numbers, logistic.overlaps, QuadratureRule(False, 6)).free_entropy_and_deviation
        assert abs(gap) < 1e-14


def test_json_holds_decimal_strings(logistic):
    found = json.loads(json_text(logistic.to_json()))
    assert found["overlaps"]["q"][0][0][0][0].startswith("4.14580362074794")
    assert found["overlaps"]["m"] == [[["0"]]]
    assert float(found["errors"]["overlaps"]["V"][0][0][0][0]) < 1e-13
    assert {rule["rule"] for rule in found["evidence"]["rules"]} == {"gauss-legendre", "trapezoid"}


def test_a_threshold_that_is_known_exactly():
    """All digits of the decimal in a condition count: V of alpha = 2 gives alpha = 2 back."""
    problem = sf.problem("logistic_regression")
    found = sf.where(problem, f"V = {LOGISTIC['V']}", on="semantic", bracket=(1.5, 2.5), accuracy=1e-20)
    assert isinstance(found, sf.PreciseThreshold)
    assert (found.status, found.error_kind) == ("converged", "verified")
    value = found.to_json()["value"]
    assert len(value) > 20
    with mp.workdps(40):
        assert abs(mp.mpf(value) - 2) < 1e-20 + 1e-29
    assert "2.00000000000000000000" in repr(found) or "1.99999999999999999999" in repr(found)
    assert found.rs_verdict.startswith("informed: RS stable")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squared_hinge", "hinge"])
def test_kinks_in_x_are_split(name):
    """Two rules agree to 14 digits on kinks 2 and 2e-7 apart, and with doubles on what these can tell."""
    found = sf.solve_precisely(sf.problem(name, alpha=2.0), accuracy=1e-14)
    assert found.status == "converged"
    near = sf.solve(found.problem, accuracy=1e-8)
    assert np.array(found.overlaps.pack(), float) == pytest.approx(near.overlaps.pack(), rel=1e-8, abs=1e-12)


@pytest.mark.slow
def test_kinks_that_move_with_teacher_and_noise_are_split():
    """Huber's loss has equations in closed form: with r = Y + u - omega, g = r / (1 + V), cut at the width."""
    found = sf.solve_precisely(sf.problem("huber_regression", alpha=2.0), accuracy=1e-14)
    assert found.status == "converged"
    with mp.workdps(30):
        q, V, theta = (getattr(found.overlaps, name).item() for name in ("q", "V", "theta"))
        spread = mp.sqrt(mp.mpf(5) / 4 - 2 * theta + q)
        edge = (1 + V) / spread
        inside = 1 - 2 * mp.ncdf(-edge)
        V_hat = 2 * inside / (1 + V)
        q_hat = 2 * (spread**2 / (1 + V) ** 2 * (inside - 2 * edge * mp.npdf(edge)) + 1 - inside)
        R = 1 / (mp.mpf(1) / 10 + V_hat)
        image = R**2 * (V_hat**2 + q_hat), R, R * V_hat  # theta^ = V^ where g depends on Y - omega alone
        assert max(abs(a - b) for a, b in zip(image, (q, V, theta), strict=True)) < 1e-14


@pytest.mark.slow
def test_classes_of_a_mixture_are_summed_over():
    found = sf.solve_precisely(sf.problem("mixture_classification", alpha=2.0), "positional", accuracy=1e-20)
    assert found.status == "converged"
    with mp.workdps(30):
        m, q = found.overlaps.m, found.overlaps.q
        assert abs(m[0, 0] + m[1, 0]) < 1e-20
        assert abs(found.observables["test_error"][0] - mp.ncdf(-abs(m[0, 0]) / mp.sqrt(q[0, 0, 0]))) < 1e-19


# Averages that need no solution


def noisy_signs(X: Any, Y: Any, u: Any) -> Any:
    """Logistic loss on sign(Y + u): one combination of teacher and noise decides."""
    return sf.softplus(-sp.sign(Y[0, 0] + u) * X[0, 0])


def flipped_signs(X: Any, Y: Any, u: Any) -> Any:
    """Logistic loss on a label that is wrong once in ten."""
    return sf.softplus(-u * sp.sign(Y[0, 0]) * X[0, 0])


NOISY = sf.model(name="noisy_signs", noise={"u": sf.GaussianNoise(0.5)})(noisy_signs)
FLIPPED = sf.model(name="flipped_signs", noise={"u": sf.DiscreteNoise((1, -1), ("9/10", "1/10"))})(flipped_signs)


@pytest.mark.parametrize(("model", "weights"), [(NOISY, (1, 1)), (FLIPPED, (1,))], ids=["noisy", "flipped"])
def test_labels_are_integrated_in_one_dimension(model, weights):
    at = model.at(model.default_structure())
    integral = reduce_integral(at, [at.loss])
    assert integral is not None
    assert (integral.drive, integral.weights, integral.steps) == ("steps", weights, (0,))


@pytest.mark.parametrize(
    ("loss", "alone"),
    [
        (lambda X, Y, u: sp.Abs(X[0, 0] - Y[0, 0] - u) ** 3, True),
        (lambda X, Y, u: (X[0, 0] - Y[0, 0] - u) ** 2 * (1 + X[0, 0] ** 2), False),
        (lambda X, Y, u: (X[0, 0] + Y[0, 0] + u) ** 2, False),
    ],
)
def test_losses_of_a_difference_alone_are_reported(loss, alone):
    """What they leave is one-dimensional: X - Y - u given omega - Y - u."""
    model = sf.model(name="difference", noise={"u": sf.GaussianNoise(0.5)})(loss)
    at = model.at(model.default_structure())
    integral = reduce_integral(at, [at.loss])
    assert integral is not None
    assert (integral.drive, integral.difference) == ("smooth", alone)


def test_two_combinations_of_teacher_and_noise_are_too_many():
    model = sf.model(name="two", noise={"u": sf.GaussianNoise(0.5)})(lambda X, Y, u: (X[0] - Y[0] - u) ** 2 + u * X[0])
    at = model.at(model.default_structure())
    assert reduce_integral(at, [at.loss]) is None


def moments(model: Any, theta: float = 0.9, **parameters: float) -> np.ndarray:
    """E[g], E[g dY], E[g domega], E[g g] at q = 2, V = 3, m = 0."""
    problem = sf.problem(model, alpha=1.0, **parameters)
    state = Overlaps.unpack(array_from_decimals(np.array([2.0, 3.0, 0.0, theta])), problem.sizes)
    return (
        QuadratureChannelAverages(PreciseParameters.from_problem(problem), state)
        .saddle_point_averages(QuadratureRule(False, 5))
        .moments[0]
    )


@pytest.mark.slow
def test_noise_on_a_label_is_that_of_a_wider_teacher():
    """f = Y + u has variance 1 + 1/2 and the same covariance with omega; Y given omega and f is linear in f."""
    with mp.workdps(25):
        q, rho, theta, noise = mp.mpf(2), mp.mpf(1), mp.mpf("0.9"), mp.mpf("0.5")
        own, wide = moments(NOISY), moments("logistic_regression", sigma=float(mp.sqrt(rho + noise)))
        share = (rho - theta**2 / q) / (rho + noise - theta**2 / q)
        linear = theta / q * wide[2] + share * (wide[1] - theta / q * wide[2])
        assert own.astype(float) == pytest.approx([0.0, float(linear), float(wide[2]), float(wide[3])], abs=1e-14)


@pytest.mark.slow
def test_flips_mix_two_teachers():
    """A flipped label is the label of the opposite teacher."""
    with mp.workdps(25):
        own, right, wrong = moments(FLIPPED), moments("logistic_regression"), moments("logistic_regression", -0.9)
        wrong[1] *= -1
        assert max(abs(own - (9 * right + wrong) / 10)) < 1e-18


def test_every_average_of_a_rule_agrees_with_the_compiled_one():
    from saddleforge.integration import ProxSpaceRule

    problem = sf.problem("logistic_regression", alpha=2.0)
    u = np.array([2.0, 3.0, 0.1, 0.9])
    state = Overlaps.unpack(u, problem.sizes)
    compiled = ProxSpaceRule(432, 160).averages(problem, state)
    with mp.workdps(20):
        saddle_point_averages = QuadratureChannelAverages(
            PreciseParameters.from_problem(problem), Overlaps.unpack(array_from_decimals(u), problem.sizes)
        ).saddle_point_averages(QuadratureRule(False, 5))
    assert saddle_point_averages.moments.astype(float) == pytest.approx(compiled.moments[0], rel=1e-12, abs=1e-13)
    assert float(saddle_point_averages.moreau) == pytest.approx(compiled.moreau[0], rel=1e-12)


# Refusals


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("dot_product_attention", r"one token, one student and one teacher column; .* L, s, t = \(2, 1, 1\)"),
        ("committee_machine", r"L, s, t = \(1, 2, 2\)"),
        ("lasso_regression", "ridge penalties"),
    ],
)
def test_models_out_of_reach_are_refused_before_anything_is_solved(name, sentence):
    with pytest.raises(InputError, match=sentence):
        sf.solve_precisely(sf.problem(name), accuracy=1e-20)


@pytest.mark.parametrize(
    ("condition", "accuracy", "sentence"),
    [
        ("bistable_fraction = 0", 1e-20, "unknown quantity 'bistable_fraction' of .*; known are training_loss"),
        ("q = 1", 1e-300, r"allowed is \[1e-200, 1\)"),
        ("q == 1", 1e-20, "joined by one '='"),
    ],
)
def test_conditions_out_of_reach_are_refused(condition, accuracy, sentence):
    with pytest.raises(InputError, match=sentence):
        check_high_precision_threshold(sf.problem("logistic_regression"), condition, accuracy)


def test_losses_with_competing_minima_are_refused():
    """Phase retrieval: the sign of X is free."""
    problem = sf.problem("phase_retrieval", alpha=1)
    u = array_from_decimals(np.array([0.93, 0.58, 0.0, 0.96]))
    with mp.workdps(20), pytest.raises(InputError, match="minima may compete"):
        QuadratureChannelAverages(
            PreciseParameters.from_problem(problem), Overlaps.unpack(u, problem.sizes)
        ).saddle_point_averages(QuadratureRule(False, 4))


def test_weights_that_do_not_add_up_as_decimals_are_refused():
    third = 1 / 3
    problem = sf.problem("logistic_regression", alpha=1, spectrum=[[third, 0.5], [third, 1.0], [third, 1.5]])
    with (
        mp.workdps(30),
        pytest.raises(InputError, match=r"weights add up to 1 only to within 1\.0e-16"),
    ):
        PreciseParameters.from_problem(problem)


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        ("1.23456789", "0.0001", ("1.234568", "0.0001")),
        ("0.00123456", "0.00001", ("0.0012346", "1.0e-5")),
        ("-41.5", "0.25", ("-41.500", "0.25")),
        ("0", "0.25", ("0", "0.25")),
    ],
)
def test_decimals_show_two_digits_beyond_the_error_bar(value, error, shown):
    assert value_and_error_strings(mp.mpf(value), mp.mpf(error)) == shown
