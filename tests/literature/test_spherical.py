"""Given norms: Gardner's perceptron, the ridge that keeps them, and ridges of no or negative strength.

E. Gardner, J. Phys. A 21 (1988) 257; E. Gardner, B. Derrida, J. Phys. A 21 (1988) 271.
"""

from typing import Any

import numpy as np
import pytest
import sympy as sp
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

import saddleforge as sf
from saddleforge import Solution
from saddleforge.base.numbers import format_value_with_error
from saddleforge.derive.catalogue import catalogue_model
from saddleforge.problems.overlaps import Conjugates
from saddleforge.saddle_point import observables
from saddleforge.saddle_point.state_map import SaddlePointMap
from saddleforge.stability.assess import replicons_by_replicate


def solved(model: Any, start: str = "semantic", accuracy: float = 1e-10, **parameters: Any) -> Solution:
    solution = sf.solve(sf.problem(model, **parameters), start, accuracy=accuracy)
    assert solution.status == "converged"
    return solution


def value(solution: Solution, name: str) -> float:
    return float(getattr(solution.overlaps, name).item())


# Gardner: labels that nobody taught are all +1.

NOBODY = {"uninformed": sf.Start(noise=1, susceptibility=5)}


def errors(X, Y, *, kappa=0):
    """Number of errors, the margin included."""
    return sp.Heaviside(kappa - X[0, 0])


def shortfall(X, Y, *, kappa=0):
    """By how much samples miss the margin."""
    return sp.Max(0, kappa - X[0, 0])


ERRORS = sf.model(regulariser=sf.Sphere(), starts=NOBODY)(errors)
SHORTFALL = sf.model(regulariser=sf.Sphere(), starts=NOBODY)(shortfall)


def errors_by_gardner_and_derrida(alpha: float, kappa: float) -> tuple[float, float]:
    """V and errors per d: samples within sqrt(2 V) of the margin are moved to it."""

    def missing(V: float) -> float:
        return (
            alpha * quad(lambda t: norm.pdf(t) * (kappa - t) ** 2, kappa - np.sqrt(2 * V), kappa, epsabs=1e-13)[0] - 1
        )

    V = brentq(missing, 1e-3, 1e3, xtol=1e-14)
    return V, alpha * norm.cdf(kappa - np.sqrt(2 * V))


@pytest.mark.parametrize(
    ("alpha", "published"),
    [
        pytest.param(4.0, 0.2480130061, marks=pytest.mark.slow),
        pytest.param(6.0, 0.6314921352, marks=pytest.mark.slow),
        pytest.param(10.0, 1.5803088933, marks=pytest.mark.slow),
    ],
)
def test_least_number_of_errors_beyond_the_capacity(alpha, published):
    """Replica symmetric; without a teacher there is no overlap with one, and without a margin no scale."""
    solution = solved(ERRORS, "uninformed", alpha=alpha)
    assert solution.training_loss == pytest.approx(published, abs=6e-11)
    assert solution.losses.penalty == 0 and abs(solution.losses.identity_gap) < 1e-12
    assert value(solution, "q") == pytest.approx(1, abs=1e-12)
    assert value(solution, "theta") == value(solution, "m") == 0
    assert solution.multipliers == pytest.approx(0, abs=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "published"), [(4.0, 0.3094716), (6.0, 0.8015847), (10.0, 2.0028967)])
def test_errors_beyond_the_capacity(alpha, published):
    """A perceptron on random labels, |w|^2 = d: one-step energies compared with the data of arXiv 2302.14112."""
    found = sf.solve(sf.problem(ERRORS, alpha=alpha), "uninformed", rsb=1, accuracy=1e-7)
    assert found.success
    assert found.energy == pytest.approx(published, abs=6e-8)
    assert found.energy_error < 1e-8
    assert found.overlaps.q.item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("alpha", "kappa"), [(2.0, 0.5), (5.0, -0.3), (1.0, 1.5)])
def test_errors_within_a_margin(alpha, kappa):
    solution = solved(ERRORS, "uninformed", alpha=alpha, kappa=kappa)
    V, least = errors_by_gardner_and_derrida(alpha, kappa)
    assert value(solution, "V") == pytest.approx(V, abs=1e-9)
    assert solution.training_loss == pytest.approx(least, abs=1e-11)


def capacity(model: Any, kappa: float) -> float:
    """Where the training loss vanishes, by secants of a convex function from above, down to a loss of 1e-7.

    V diverges there, and its error bar before; the loss is stationary.
    """
    alphas, losses, start = [gardner(kappa) + 0.4, gardner(kappa) + 0.3], [], "uninformed"
    while not losses or losses[-1] > 1e-7:
        alpha = alphas[len(losses)]
        start = sf.solve(sf.problem(model, alpha=alpha, kappa=kappa), start, accuracy=1e-7)
        losses.append(start.training_loss)
        assert start.training_loss_error < 1e-4 * losses[-1]
        if len(losses) > 1:
            (before, last), slope = alphas[-2:], (losses[-1] - losses[-2]) / (alphas[-1] - alphas[-2])
            alphas.append(last - losses[-1] / slope)
            assert last < before
    return alphas[-1]


def gardner(kappa: float) -> float:
    """One over the mean of (z + kappa)^2 over z > -kappa."""
    return 1 / quad(lambda z: norm.pdf(z) * (z + kappa) ** 2, -kappa, np.inf, epsabs=1e-13)[0]


def test_errors_begin_at_gardners_capacity():
    assert capacity(ERRORS, 0.5) == pytest.approx(gardner(0.5), abs=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kappa", [0.0, 0.5, 1.0])
def test_shortfalls_begin_at_gardners_capacity(kappa):
    """A convex loss: 2 without a margin, 0.9612050528 and 0.5195722296 at 1/2 and 1."""
    assert gardner(kappa) == pytest.approx({0.0: 2, 0.5: 0.9612050528, 1.0: 0.5195722296}[kappa], abs=1e-10)
    assert capacity(SHORTFALL, kappa) == pytest.approx(gardner(kappa), abs=1e-7)


# The ridge that keeps the norms


def test_slope_of_the_loss_in_the_norm_is_the_multiplier():
    """docs/theory.md section 6: de_t/dsigma = -lambda sigma."""
    step = 1e-3
    ends = [solved("perceptron", alpha=2.0, norm=1 + way * step).training_loss for way in (-2, -1, 1, 2)]
    slope = (ends[0] - 8 * ends[1] + 8 * ends[2] - ends[3]) / (12 * step)
    assert slope == pytest.approx(-solved("perceptron", alpha=2.0).multipliers.item(), abs=1e-9)


@pytest.mark.parametrize("rule", [{"integrator": "pieces", "points": 8}, {"integrator": "sobol", "accuracy": 5e-3}])
def test_error_bars_of_multipliers_hold_them(rule):
    precise = solved("perceptron", alpha=2.0)
    found = sf.solve(precise.problem, **{"accuracy": 1e-2, **rule})
    assert precise.multipliers_error < 1e-10
    assert 0 < found.multipliers_error < 0.02
    assert abs(found.multipliers - precise.multipliers) <= found.multipliers_error + precise.multipliers_error
    width = found.multipliers_error.item()
    assert f"kept by a ridge of {format_value_with_error(found.multipliers.item(), width)}" in found.table()
    assert found.to_json()["errors"]["multipliers"] == found.multipliers_error


def test_a_second_rule_verifies_the_multipliers():
    first = sf.solve(sf.problem("perceptron", alpha=2.0), accuracy=1e-4)
    found, other = sf.verified(first), sf.solve(first.problem, first, accuracy=1e-6, integrator="lines")
    assert found.error_kind == "verified"
    assert np.all(found.multipliers_error >= np.abs(first.multipliers - other.multipliers))


def test_a_curve_holds_multipliers_with_their_error_bars():
    curve = sf.curve(sf.problem("perceptron"), alpha=(2, 3, 2))
    table, frame = curve.to_xarray(), curve.to_pandas(stability=False)
    assert frame["multiplier_1"].tolist() == [solution.multipliers.item() for solution in curve.solutions]
    assert frame["multiplier_1_error"].tolist() == [solution.multipliers_error.item() for solution in curve.solutions]
    for row, solution in enumerate(curve.solutions):
        assert table["multiplier"].values[row].tolist() == solution.multipliers.tolist()
        assert table["multiplier_error"].values[row].tolist() == solution.multipliers_error.tolist()
        assert np.all(solution.multipliers_error < 1e-4)


def assert_kept_by_its_ridge(kept: Solution, ridge: Any, **parameters: Any) -> None:
    """A solution under given norms is one of the ridge at the multipliers, by the same rule."""
    strengths, hats = kept.multipliers, kept.conjugates
    free = sf.problem(ridge, **parameters, lambda_=strengths)
    images = [SaddlePointMap(problem, kept.rule)(kept.overlaps.pack(), free.sizes) for problem in (kept.problem, free)]
    assert images[0] == pytest.approx(images[1], rel=1e-12, abs=1e-12)
    assert images[1] == pytest.approx(kept.overlaps.pack(), abs=2 * kept.residual * kept.overlaps.block_scales.max())
    squares = [kept.rule.jacobian_averages(problem, kept.overlaps).square for problem in (kept.problem, free)]
    both = [
        replicons_by_replicate(problem, hats, square)
        for problem, square in zip((kept.problem, free), squares, strict=True)
    ]
    assert both[0] == pytest.approx(both[1], rel=1e-12)
    losses = observables.free_entropy_and_losses(free, kept.overlaps, hats, kept.averages)
    assert kept.losses.data == losses.data
    assert kept.training_loss == pytest.approx(
        losses.training_loss - strengths @ kept.problem.strengths**2 / 2, abs=1e-12
    )


def with_norm(name: str) -> Any:
    """A model of the catalogue with given norms in place of its ridge."""
    given = catalogue_model(name)
    return type(given)(**{**vars(given), "regulariser": sf.Sphere(), "name": f"{name}_of_given_norm"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "strength", "accuracy"),
    [("hinge", 0.3, 1e-9), ("ridge_regression", -0.05, 1e-10), ("dot_product_attention", 0.01, 1e-6)],
)
def test_norm_of_a_ridges_solution_gives_the_ridge_back(name, strength, accuracy):
    ridge = solved(name, alpha=2.0, lambda_=strength, accuracy=accuracy)
    square = ridge.overlaps.q[0, 0, 0] / ridge.problem.law.gamma[0, 0]
    kept = solved(with_norm(name), alpha=2.0, norm=np.sqrt(square), accuracy=accuracy)
    assert kept.multipliers == pytest.approx(strength, abs=10 * accuracy)
    assert kept.multipliers_error < 100 * accuracy
    assert_kept_by_its_ridge(kept, name, alpha=2.0)


@pytest.mark.slow
def test_a_rounded_corner_leaves_the_multiplier_of_the_corner_within_its_error_bar():
    @sf.model(regulariser=sf.Sphere(), starts={"semantic": sf.Start(teacher="3/5", noise="2/5")})
    def rounded(X, Y, *, rounding=sf.Parameter(0.02, 0, open_low=True, vanishing=True)):  # noqa: B008
        return sf.rounded_hinge(1 - sp.sign(Y[0]) * X[0], rounding)

    found = solved(rounded, alpha=3.0, norm=2.0, accuracy=1e-6)
    corner = solved(with_norm("hinge"), alpha=3.0, norm=2.0)
    assert 1e-5 < abs(found.multipliers - corner.multipliers).item() < found.multipliers_error.item() < 1e-2
    assert corner.multipliers_error < 1e-10


def two_columns(X, Y):
    """A sum of two fields learns one, the first half of it."""
    return ((X[0, 0] + X[0, 1] - Y[0, 0]) ** 2 + (X[0, 0] - Y[0, 0] / 2) ** 2 / 2) / 2


@pytest.mark.slow
@pytest.mark.parametrize("norm_of_each", [[0.6, 1.4], [3.0, 2.0]])
def test_norms_of_two_columns_in_a_spectrum(norm_of_each):
    """One multiplier of either sign each; the norms are means over coordinates, q those over eigenvalues."""
    start = {"semantic": sf.Start(teacher="3/5", noise="1/5", susceptibility=2)}
    sphere, ridge = (
        sf.model(regulariser=given, student=2, name=f"two_columns_{name}", starts=start)(two_columns)
        for name, given in (("sphere", sf.Sphere()), ("ridge", sf.Ridge()))
    )
    spectrum = [[0.3, 0.2], [0.7, 1.5]]
    kept = solved(sphere, alpha=2.0, norm=norm_of_each, spectrum=spectrum, accuracy=1e-8)
    assert kept.multipliers.min() < 0 < kept.multipliers.max()
    assert_kept_by_its_ridge(kept, ridge, alpha=2.0, spectrum=spectrum)


@pytest.mark.slow
def test_weights_on_a_sphere_at_a_temperature():
    """Their squared norm is that of a sample; log Z has the slopes -energy in beta and beta lambda sigma in sigma."""
    model = sf.model(regulariser=sf.Sphere(), name="warm", starts={"semantic": sf.Start(teacher="3/5", noise="1/5")})(
        lambda X, Y: (X[0, 0] - Y[0, 0]) ** 2 / 2 + sp.log(sp.cosh(X[0, 0])) / 3
    )
    step, spectrum = 1e-3, [[0.3, 0.2], [0.7, 1.5]]

    def at(beta: float = 2.0, sigma: float = 1.0) -> Solution:
        return solved(model, alpha=2.0, inverse_temperature=beta, norm=sigma, spectrum=spectrum)

    def slope(plus: Solution, minus: Solution) -> float:
        return (plus.thermal.free_entropy - minus.thermal.free_entropy) / (2 * step)

    here = at()
    assert slope(at(2 + step), at(2 - step)) == pytest.approx(-here.thermal.energy, abs=1e-7)
    assert slope(at(sigma=1 + step), at(sigma=1 - step)) == pytest.approx(2 * here.multipliers.item(), abs=1e-5)
    isotropic = solved(model, alpha=2.0, inverse_temperature=2.0)
    assert isotropic.thermal.self_overlap.item() == pytest.approx(1, abs=1e-9)


def test_multipliers_keep_norms_at_any_conjugates():
    """Soft and stiff directions, hardly any field or a strong one: the prior's own equation is met, or refused."""
    generator = np.random.default_rng(3)
    for _ in range(200):
        eigenvalues = 10 ** generator.uniform(-3, 2, size=4)
        problem = sf.problem("perceptron", alpha=1.0, norm=10 ** generator.uniform(-3, 3),
                             spectrum=np.stack([np.full(4, 0.25), eigenvalues], axis=1))  # fmt: skip
        q, V, m, theta = 10 ** generator.uniform(-3, 3, size=4) * generator.choice([-1, 1], size=4)
        hats = Conjugates(*(np.full((1, 1, 1), z) for z in (abs(q), V)), np.full((1, 1), m), np.full((1, 1, 1), theta))
        strength = problem.multipliers(hats).item()
        stiffness = strength + eigenvalues * V
        assert stiffness.min() > 0
        square = np.mean((eigenvalues**2 * theta**2 + eigenvalues * abs(q)) / stiffness**2)
        assert square == pytest.approx(problem.strengths.item() ** 2, rel=1e-6)


# Ridges without strength


@pytest.mark.parametrize("strength", [0.0, -0.05, -0.12])
def test_ridge_of_no_or_negative_strength(strength):
    """Least squares in closed form: V solves lambda + alpha / (1 + V) = 1 / V as long as the least eigenvalue of the
    data is stiffer, (sqrt(alpha) - 1)^2 = 0.17 at alpha = 2."""
    solution = solved("ridge_regression", alpha=2.0, Delta=0.25, lambda_=strength)
    V = brentq(lambda V: strength + 2 / (1 + V) - 1 / V, 1e-3, 3)
    assert value(solution, "V") == pytest.approx(V, abs=1e-9)
    if not strength:
        assert value(solution, "V") == pytest.approx(1)
        assert value(solution, "q") == pytest.approx(1.25)
        assert solution.training_loss == pytest.approx(0.25 * (2 - 1) / 2, abs=1e-12)


def test_a_ridge_more_negative_than_the_data_are_stiff_has_no_solution():
    assert not sf.solve(sf.problem("ridge_regression", alpha=2.0, lambda_=-0.3)).success


def modulus(X, Y):
    """Phase retrieval from moduli."""
    return (sp.Abs(Y[0, 0]) - sp.Abs(X[0, 0])) ** 2


@pytest.mark.slow
@pytest.mark.parametrize(("strength", "energy"), [(0.0, 0.206107276128), (0.13317552342239194, 0.289852364129)])
def test_moduli_without_a_trace_of_the_teacher(strength, energy):
    """The uninformed branch of phase retrieval; weights of the start are too small for a ridge of none."""
    model = sf.model(starts={"uninformed": sf.Start(noise="3/5", susceptibility=2)})(modulus)
    solution = solved(model, "uninformed", alpha=3.0, lambda_=strength)
    assert solution.training_loss == pytest.approx(energy, abs=1e-12)
    assert value(solution, "theta") == 0


# What does not know given norms


def test_functions_that_cannot_fix_norms_refuse_with_the_reason():
    problem = sf.problem("perceptron", alpha=2.0)
    with pytest.raises(sf.InputError, match="the loss of perceptron is discontinuous"):
        sf.simulate(problem, d=20)
    with pytest.raises(sf.InputError, match="given column norms, as in"):
        sf.solve_precisely(problem, accuracy=1e-20)
    with pytest.raises(sf.InputError, match=r"norm = 0 is out of range; allowed is \(0, inf\)"):
        sf.problem("perceptron", alpha=2.0, norm=0)
