"""Proofs in balls: what is proved holds exact results, and what is not so is refused with the reason."""

from typing import Any

import mpmath as mp
import numpy as np
import pytest
import sympy as sp
from flint import acb, arb

import saddleforge as sf
from saddleforge.base.errors import NotProvedError
from saddleforge.base.options import options_in_force
from saddleforge.derive.models.mixture_classification import gaussian_mixture_law, weight_columns_along_class_means
from saddleforge.extensions.proof.channel import IntegralAccuracy
from saddleforge.extensions.proof.duals import DualNumber, ball_from_number, dual_from_number
from saddleforge.extensions.proof.krawczyk import (
    BallSaddlePointSystem,
    KrawczykOptions,
    KrawczykProof,
    prove_solution_exists,
    prove_solution_in_box,
    use_ball_precision,
)
from saddleforge.extensions.proof.quadrature import enclose_integral
from saddleforge.extensions.proof.tails import arb_to_exact_mpf
from saddleforge.extensions.reference.numbers import PreciseParameters, array_from_decimals
from saddleforge.extensions.reference.quadrature import QuadratureRule
from saddleforge.extensions.reference.rule_channel import QuadratureChannelAverages
from saddleforge.extensions.reference.thresholds import make_condition_residual
from saddleforge.problems.overlaps import Overlaps

RIDGE = [1.0238, 0.8443, 0.0, 0.9156]  # q, V, m, theta at alpha = 2, lambda = 0.1, to a few digits
BITS = 150


def system(model: Any, near: list[float], parameter: str = "alpha", condition: str | None = None, **given: Any) -> Any:
    """The equations in balls at overlaps (q, V, m, theta), with a condition the parameter's value behind them."""
    problem = sf.problem(model, **given)
    scales = Overlaps.unpack(np.array(near[:4]), problem.sizes).block_scales
    if condition is None:
        return BallSaddlePointSystem(problem, scales)
    read = make_condition_residual(condition, problem, lambda text: dual_from_number(ball_from_number(text)))
    return BallSaddlePointSystem(problem, np.append(scales, abs(near[4])), parameter, read)


def proof(equations: BallSaddlePointSystem, near: list[float], digits: int = 30, carried: int = 45) -> KrawczykProof:
    """A solution with error bars below 10^-digits of the blocks."""
    scales = equations.scales
    found = prove_solution_exists(
        equations, near, carried, digits, lambda radius: max(map(float, radius / scales)), 10.0**-digits
    )
    assert found.reached
    return found


def holds(found: arb, exactly: Any) -> bool:
    """Whether a ball narrower than 1e-28 holds a number of mpmath's."""
    return arb(found.rad()) < 1e-28 and abs(arb_to_exact_mpf(found.mid()) - exactly) <= arb_to_exact_mpf(found.rad())


def ridge_closed_form() -> dict[str, Any]:
    """As tests/literature/test_ridge.py, with decimals taken as they print: alpha = 2, lambda = 0.1, Delta = 0.25."""
    penalty, noise = mp.mpf(1) / 10, mp.mpf(1) / 4
    b = penalty + 2 - 1
    V = 2 / (b + mp.sqrt(b * b + 4 * penalty))
    R2 = (V * V + V) / (2 * penalty * V + b)
    error = noise + penalty**2 * R2 + noise * (V - penalty * R2)
    return {"V": V, "theta": 1 - penalty * V, "test_error": error}


def test_the_closed_form_of_ridge_regression_lies_in_the_proved_balls():
    found = proof(system("ridge_regression", RIDGE, alpha=2.0), RIDGE)
    assert found.contraction < 0.25
    with mp.workdps(50), use_ball_precision(BITS):
        for name, value in ridge_closed_form().items():
            assert holds(found.enclose_quantity(lambda state, name=name: state.evaluate_observable(name)), value)
        loss = found.enclose_quantity(lambda state: state.evaluate_observable("training_loss"))
        assert holds(
            found.enclose_quantity(lambda state: state.free_entropy_and_deviation[1]), 0
        )  # Phi is minus the sum of its parts
        assert float(loss.mid()) == pytest.approx(0.1813321657766857)


def test_hubers_equations_in_closed_form_hold_at_what_is_proved():
    """Kinks at an error of one; r = Y + u - omega, g = r / (1 + V), cut at the width."""
    near = [1.0223, 0.8515, 0.0, 0.9148]
    found = proof(system("huber_regression", near, alpha=2.0), near)
    with mp.workdps(45):
        q, V, _, theta = (arb_to_exact_mpf(z) for z in found.z)
        spread = mp.sqrt(mp.mpf(5) / 4 - 2 * theta + q)
        edge = (1 + V) / spread
        inside = 1 - 2 * mp.ncdf(-edge)
        V_hat = 2 * inside / (1 + V)
        q_hat = 2 * (spread**2 / (1 + V) ** 2 * (inside - 2 * edge * mp.npdf(edge)) + 1 - inside)
        R = 1 / (mp.mpf(1) / 10 + V_hat)
        image = R**2 * (V_hat**2 + q_hat), R, R * V_hat
        assert max(abs(a - b) for a, b in zip(image, (q, V, theta), strict=True)) < 1e-29


@pytest.mark.slow
def test_a_proved_threshold_of_logistic_regression_has_thirty_digits():
    near = [5.6, 3.1, 0.0, 2.1, 2.66]
    found = proof(system("logistic_regression", near, condition="test_error = 0.15"), near)
    with mp.workdps(50):
        assert abs(arb_to_exact_mpf(found.z[-1]) - mp.mpf("2.65911553103841159080058996")) < 1e-26
    q, theta, alpha = (
        found.enclose_quantity(lambda state, name=name: state.evaluate_observable(name))
        for name in ("q", "theta", "alpha")
    )
    with use_ball_precision(BITS):
        assert (theta / q.sqrt()).acos().overlaps(arb.pi() * 3 / 20)  # the angle between teacher and student
        assert alpha.rad() < 1e-29


def test_the_norm_at_gardners_capacity_of_margin_one_half_is_proved():
    """tests/literature/test_digits.py: q = 4 at his capacity 0.96120505280154; lambda = 0.01 moves it by < 1e-50."""
    model = sf.model(
        name="random_labels_proved",
        regulariser=sf.Ridge(0.01),
        starts={"uninformed": sf.Start(noise=2, susceptibility=30)},
        loss_kinks=lambda X, rounding: [X[0, 0] - 1 - rounding, X[0, 0] - 1 + rounding],
    )(random_labels)
    with mp.workdps(60):
        half = mp.mpf(1) / 2
        capacity = 1 / ((1 + half**2) * mp.ncdf(half) + half * mp.npdf(half))
    near = [4.0, (1 - float(capacity * mp.ncdf(0.5))) / 0.01, 0.0, 0.0, float(capacity)]
    found = proof(system(model, near, condition="q = 4", rounding=1e-40, **{"lambda": 0.01}), near, 32, 90)
    with mp.workdps(60):
        alpha = arb_to_exact_mpf(found.z[-1])
        assert mp.nstr(alpha, 14) == "0.96120505280154"
        assert abs(alpha - capacity) < arb_to_exact_mpf(found.radius[-1]) + 1e-39


def random_labels(X: Any, Y: Any, *, rounding: Any = sf.Parameter("1e-7", 0, 1, True, True)) -> Any:  # noqa: B008
    """Hinge loss with unit margin; labels do not depend on the teacher."""
    return sf.rounded_hinge(1 - X[0, 0], rounding)


# Pieces of a proof


@pytest.mark.parametrize(
    ("model", "near", "parameter", "given"),
    [
        ("hinge", [3.7, 2.0, 0.1, 1.6, 0.3], "lambda_", {"alpha": 2.0}),
        ("huber_regression", [1.02, 0.85, 0.1, 0.91, 1.2], "width", {"alpha": 2.0}),
    ],
)
def test_derivatives_are_those_of_the_equations_kinks_that_move_included(model, near, parameter, given):
    """Against differences: noise, labels, the ridge and the test error enter, too."""
    equations = system(model, near, parameter, "test_error = 0.2", **given)
    step = 1e-9
    with use_ball_precision(200):
        z = [ball_from_number(x) for x in near]
        _, derivatives = equations.residual_and_jacobian_on_box(z, 0.0)

        def residual(moved: list[arb]) -> list[arb]:
            state = equations.evaluate_saddle_point_map(
                np.array([DualNumber(x) for x in moved], dtype=object), IntegralAccuracy.from_decimal_digits(19)
            )
            return [entry.value for entry in equations.saddle_point_residual(state)]

        base = residual(z)
        for i, scale in enumerate(equations.scales):
            there = residual(
                [x + ball_from_number(float(scale)) * ball_from_number(step) if j == i else x for j, x in enumerate(z)]
            )
            for row, (a, b) in enumerate(zip(there, base, strict=True)):
                assert float(derivatives[row, i].mid()) == pytest.approx(
                    float((a - b) / ball_from_number(step)), rel=1e-6, abs=1e-7
                )


def test_derivatives_over_a_box_hold_those_within_it_however_coarse():
    """Tails of derivatives are bounded, too: the first goal is one digit."""
    near = [3.7, 2.0, 0.1, 1.6, 0.3]
    equations = system("hinge", near, "lambda_", "test_error + training_loss + replicon = 0.2", alpha=2.0)
    with use_ball_precision(120):
        z = [ball_from_number(x) for x in near]
        _, fine = equations.residual_and_jacobian_on_box(z, 0.0)
        _, over = equations.residual_and_jacobian_on_box(z, 1e-3)
        with options_in_force(KrawczykOptions(derivative_digits=1)):
            _, coarse = equations.residual_and_jacobian_on_box(z, 0.0)
        for corner in ((1, 1, -1, 1, -1), (-1, 1, 1, 1, 1)):
            moved = [
                x + way * ball_from_number(9e-4 * scale)
                for x, way, scale in zip(z, corner, equations.scales, strict=True)
            ]
            _, there = equations.residual_and_jacobian_on_box([x.mid() for x in moved], 0.0)
            assert all(a.overlaps(b) for a, b in zip(over.flat, there.flat, strict=True))
        assert all(a.contains(b.mid()) for a, b in zip(coarse.flat, fine.flat, strict=True))
        assert max(float(z.rad()) for z in coarse.flat) > 1e-3 > 1e-5 > max(float(z.rad()) for z in fine.flat)


@pytest.mark.parametrize("digits", [0.5, 3, 20])
def test_balls_hold_the_averages_however_coarse(digits):
    """Half a digit: tails from two deviations on, and intervals with few nodes; both errors are bounds."""
    problem = sf.problem("logistic_regression", alpha=2.0)
    u = np.array([2.0, 3.0, 0.1, 0.9])
    with mp.workdps(30):
        right = QuadratureChannelAverages(
            PreciseParameters.from_problem(problem), Overlaps.unpack(array_from_decimals(u), problem.sizes)
        ).saddle_point_averages(QuadratureRule(False, 5))
    with use_ball_precision(BITS), mp.workdps(40):
        equations = BallSaddlePointSystem(problem, np.ones(4))
        saddle_point_averages = equations.evaluate_saddle_point_map(
            np.array([dual_from_number(ball_from_number(repr(x))) for x in u.tolist()]),
            IntegralAccuracy.from_decimal_digits(digits),
        ).saddle_point_averages
        for found, known in [
            *zip(saddle_point_averages.moments[0], right.moments[0], strict=True),
            (saddle_point_averages.moreau, right.moreau),
            (saddle_point_averages.loss, right.loss),
            (saddle_point_averages.mass, mp.mpf(1)),
        ]:
            assert abs(arb_to_exact_mpf(found.value.mid()) - known) <= arb_to_exact_mpf(found.value.rad()) + mp.mpf(
                "1e-24"
            )
            assert found.value.rad() < 10 ** (2 - digits)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-12, 1e-40])
def test_gauss_legendre_meets_an_integral_of_arbs_own(tolerance):
    def f(z: Any) -> list[Any]:
        return [(-20 * z * z).exp(), 1 / (1 + (-9 * z + 4).exp()), 1 / (1 + 25 * z * z)]

    with use_ball_precision(200):
        for i, found in enumerate(enclose_integral(f, tolerance)):
            own = acb.integral(lambda z, _, i=i: f(z)[i], -1, 1).real
            assert found.overlaps(own)
            assert found.rad() < 20 * tolerance


def test_a_logarithm_is_not_followed_across_its_cut():
    """Continued across, its primitive would be smooth; the branch point 1/10 above the axis is met at any ellipse."""

    def f(z: Any) -> list[Any]:
        return [DualNumber(z * z + ball_from_number("0.01")).log().value]

    with use_ball_precision(120):
        (found,) = enclose_integral(f, 1e-25)
        edge = arb(101) / 100
        assert found.overlaps(2 * edge.log() - 4 + 4 * (arb(10)).atan() / 10)
        assert found.rad() < 1e-22


# Refusals


def test_a_box_without_the_solution_is_refused():
    equations = system("ridge_regression", RIDGE, alpha=2.0)
    with use_ball_precision(BITS):
        wrong = [ball_from_number(x) for x in RIDGE]
        wrong[1] += ball_from_number("0.01")
        with pytest.raises(NotProvedError, match="may leave the box"):
            prove_solution_in_box(equations, wrong, BITS, 25, lambda radius: max(map(float, radius)), 1e-20)


@pytest.mark.parametrize(
    ("model", "near", "sentence"),
    [
        ("tukey_regression", [0.852, 3.0, 0.0, 0.7], "not proved convex .* the proximal map may jump"),
        ("phase_retrieval", [0.93, 0.1, 0.0, 0.96], "integrals of two dimensions"),
    ],
)
def test_an_impossible_proof_is_refused_with_the_reason(model, near, sentence):
    with pytest.raises(NotProvedError, match=sentence):
        prove_solution_exists(
            system(model, near, alpha=1.0), near, 40, 20, lambda radius: max(map(float, radius)), 1e-20
        )


def test_python_flint_is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.setattr("saddleforge.extensions.digits.find_spec", lambda _: None)
    with pytest.raises(sf.InputError, match=r"pip install 'saddleforge\[proof\]'"):
        sf.solve_precisely(sf.problem("ridge_regression"), proof=True)


# As a user would ask


def test_a_solution_says_what_was_proved():
    found = sf.solve_precisely(sf.problem("ridge_regression", alpha=2.0), accuracy=1e-30, proof=True)
    assert (found.status, found.error_kind) == ("converged", "proved")
    assert "exactly one solution" in found.table()
    with mp.workdps(50):
        for name, value in ridge_closed_form().items():
            mine = found.observables.get(name)
            pair = mine or (getattr(found.overlaps, name).item(), getattr(found.errors, name).item())
            assert abs(pair[0] - value) <= pair[1] < 1e-29
    shown = found.to_json()
    assert shown["evidence"]["proof"]["box"] >= 1e-8
    assert shown["error_kind"] == "proved"


def test_an_unconfirmed_solution_stays_an_estimate():
    """Phase retrieval: the sign of X is free, so that two rules refuse it as well."""
    near = sf.solve(sf.problem("ridge_regression", alpha=2.0))
    with pytest.raises(NotProvedError, match="phase_retrieval leaves integrals of two dimensions") as failed:
        sf.solve_precisely(sf.problem("phase_retrieval", alpha=2.0), near, accuracy=1e-14, proof=True)
    assert failed.value.estimate is near


@pytest.mark.slow
def test_agreement_of_rules_alone_is_not_called_a_proof(monkeypatch):
    def fails(*_: Any) -> None:
        raise NotProvedError("no box was small enough")

    monkeypatch.setattr("saddleforge.extensions.proof.results.prove_solution_exists", fails)
    problem = sf.problem("squared_hinge", alpha=2.0)
    found = sf.solve_precisely(problem, sf.solve(sf.problem("ridge_regression", alpha=2.0)), accuracy=1e-6, proof=True)
    assert (found.status, found.error_kind, found.success) == ("not_proved", "verified", False)
    assert found.evidence["not_proved"] == "no box was small enough"


@pytest.mark.slow
def test_noise_and_flips_of_labels_are_summed_over():
    def loss(X: Any, Y: Any, u: Any, v: Any) -> Any:
        return sf.softplus(-u * sp.sign(Y[0, 0] + v - sp.Rational(1, 5)) * X[0, 0])

    flips = {"u": sf.DiscreteNoise((1, -1), ("9/10", "1/10")), "v": sf.GaussianNoise("0.5")}
    problem = sf.problem(sf.model(name="noisy_flips", noise=flips)(loss), alpha=2.0)
    u = np.array([2.0, 3.0, 0.1, 0.9])
    with mp.workdps(30):
        right = QuadratureChannelAverages(
            PreciseParameters.from_problem(problem), Overlaps.unpack(array_from_decimals(u), problem.sizes)
        ).saddle_point_averages(QuadratureRule(False, 5))
    with use_ball_precision(BITS), mp.workdps(40):
        z = np.array([dual_from_number(ball_from_number(repr(x))) for x in u.tolist()])
        saddle_point_averages = (
            BallSaddlePointSystem(problem, np.ones(4))
            .evaluate_saddle_point_map(z, IntegralAccuracy.from_decimal_digits(20))
            .saddle_point_averages
        )
        for found, known in zip(saddle_point_averages.moments[0], right.moments[0], strict=True):
            assert abs(arb_to_exact_mpf(found.value.mid()) - known) <= arb_to_exact_mpf(found.value.rad()) < 1e-18


@pytest.mark.slow
def test_a_solution_for_a_mixture_of_two_clusters_is_proved():
    """Cross-entropy of two classes as softplus; the replicon is the largest eigenvalue of a matrix of balls."""

    def loss(X: Any, k: Any) -> Any:
        score = sp.sqrt(2) * X[0, 0]
        return sf.by_label(k[0], sf.softplus(-score), sf.softplus(score))

    model = sf.model(
        name="two_clusters",
        clusters=sf.structural(2, low=2),
        law=gaussian_mixture_law,
        regulariser=sf.Ridge(0.1),
        starts={"positional": sf.Start(encodings=weight_columns_along_class_means)},
        metric=lambda h, k: sf.by_label(k[0], sp.Heaviside(-h[0, 0]), sp.Heaviside(h[0, 0])),
    )(loss)
    found = sf.solve_precisely(sf.problem(model, alpha=2.0), "positional", accuracy=1e-20, proof=True)
    assert found.error_kind == "proved"
    with mp.workdps(33):
        m, q = found.overlaps.m, found.overlaps.q
        assert abs(m[0, 0] + m[1, 0]) < 1e-20
        assert abs(found.observables["test_error"][0] - mp.ncdf(-abs(m[0, 0]) / mp.sqrt(q[0, 0, 0]))) < 1e-19
    assert float(found.observables["replicon"][0]) == pytest.approx(found.near.stability.replicon, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("hinge", [3.67, 2.013, 0.0, 1.6]),
        ("tukey_regression", [0.98605, 1.10354, 0.0, 0.88965]),
    ],
)
def test_two_rules_of_mpmath_lie_in_the_proved_balls(name, near):
    problem = sf.problem(name, alpha=2.0)
    verified = sf.solve_precisely(problem, accuracy=1e-14)
    found = proof(system(name, near, alpha=2.0), near, 30, 60)
    with mp.workdps(40):
        for mine, radius, own, error in zip(
            found.z, found.radius, verified.overlaps.pack(), verified.errors.pack(), strict=True
        ):
            assert abs(arb_to_exact_mpf(mine) - own) <= arb_to_exact_mpf(radius) + error
