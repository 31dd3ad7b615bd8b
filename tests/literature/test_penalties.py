"""Penalties other than the ridge (docs/theory.md section 6): closed forms, and the ridge through the general path."""

from typing import Any

import numpy as np
import pytest
import sympy as sp
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import erfc
from scipy.stats import norm, truncnorm

import saddleforge as sf
from saddleforge import Solution


def solved(model: Any, accuracy: float = 1e-9, **parameters: Any) -> Solution:
    solution = sf.solve(sf.problem(model, **parameters), accuracy=accuracy)
    assert solution.status == "converged"
    return solution


def square_loss(**fields: Any) -> Any:
    """The square loss on y = Y + z of variance 1/4, as in the catalogue's ridge regression."""

    @sf.model(noise={"z": sf.GaussianNoise("1/4")}, metric=lambda h, Y, z: (h[0] - Y[0] - z) ** 2, **fields)
    def square_loss_with_a_penalty(X, Y, z):
        return (X[0] - Y[0] - z) ** 2 / 2

    return square_loss_with_a_penalty


@sf.penalty
def quadratic(w, *, strength=0.1):
    """The ridge, written as a penalty."""
    return sum(strength * a**2 / 2 for a in w)


@sf.penalty
def toward(w, pi, *, strength=0.3):
    """A ridge toward the teacher's second row: fine-tuning of weights trained before."""
    return strength * (w[0] - pi[1]) ** 2 / 2


@pytest.mark.slow
def test_a_quadratic_penalty_is_the_ridge():
    general = solved(square_loss(regulariser=quadratic), alpha=1.7)
    closed = solved("ridge_regression", alpha=1.7)
    assert general.overlaps.pack() == pytest.approx(closed.overlaps.pack(), rel=1e-11, abs=1e-13)
    assert general.training_loss == pytest.approx(closed.training_loss, rel=1e-11)
    assert general.losses.penalty == pytest.approx(closed.losses.penalty, rel=1e-11)
    assert general.stability.replicon == pytest.approx(closed.stability.replicon, rel=1e-9)


@pytest.mark.slow
def test_a_quadratic_penalty_is_the_ridge_for_two_columns():
    def loss(X, Y, z):
        return (X[0] + X[1] / 2 - Y[0] - z) ** 2 / 2 + (X[1] - sp.tanh(X[0])) ** 2 / 2

    pair = []
    for regulariser in (quadratic, sf.Ridge(0.1)):
        made = sf.model(
            name=f"two_columns_{regulariser.kind}",
            student=2,
            regulariser=regulariser,
            noise={"z": sf.GaussianNoise(0.1)},
        )
        pair.append(solved(made(loss), accuracy=1e-6, alpha=0.7))
    general, closed = pair
    assert general.overlaps.pack() == pytest.approx(closed.overlaps.pack(), rel=1e-9, abs=1e-11)
    assert general.training_loss == pytest.approx(closed.training_loss, rel=1e-11)
    assert general.stability.replicon == pytest.approx(closed.stability.replicon, rel=1e-6)


def soft_threshold_equations(solution: Solution, l1: float, l2: float, density: float) -> np.ndarray:
    """V, q, theta that follow from those of a solution, by the closed Gaussian integrals of the soft threshold.

    State evolution of the LASSO (Bayati, Montanari, arXiv 1008.2581), square loss, Delta = 1/4, teacher rows zero or of
    variance 1 / density.
    """
    alpha = solution.problem.alpha
    q, V, theta = (float(getattr(solution.overlaps, name).ravel()[0]) for name in ("q", "V", "theta"))
    slope = alpha / (1 + V)
    noise = alpha * (1 + 0.25 + q - 2 * theta) / (1 + V) ** 2
    new = np.zeros(3)
    for weight, variance in ((density, 1 / density), (1 - density, 0.0)):
        S = slope**2 * variance + noise
        beyond = erfc(l1 / np.sqrt(2 * S))
        square = (S + l1**2) * beyond - l1 * np.sqrt(2 * S / np.pi) * np.exp(-(l1**2) / (2 * S))
        new += weight * np.array([beyond, square / (l2 + slope), slope * variance * beyond]) / (l2 + slope)
    return new - np.array([V, q, theta])


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.6, 1.5])
def test_lasso_solves_the_equations_of_the_soft_threshold(alpha):
    solution = solved("lasso_regression", alpha=alpha, density=0.3, **{"lambda": 0.4})
    assert np.abs(soft_threshold_equations(solution, 0.4, 0.0, 0.3)).max() < 1e-8
    assert abs(solution.losses.identity_gap) < 1e-9


@pytest.mark.slow
def test_elastic_net_solves_the_equations_of_the_soft_threshold():
    solution = solved("elastic_net_regression", alpha=0.8, l1=0.2, l2=0.3)
    assert np.abs(soft_threshold_equations(solution, 0.2, 0.3, 0.2)).max() < 1e-8


@pytest.mark.slow
def test_elastic_net_without_l1_is_the_ridge_whatever_the_teacher():
    net = solved("elastic_net_regression", alpha=0.8, l1=0.0, l2=0.3)
    ridge = solved("ridge_regression", alpha=0.8, **{"lambda": 0.3})
    assert net.overlaps.pack() == pytest.approx(ridge.overlaps.pack(), rel=1e-10, abs=1e-12)


def test_a_sparse_teacher_is_easier_for_lasso_than_a_dense_one():
    sparse, dense = (solved("lasso_regression", alpha=0.6, density=density, accuracy=1e-6) for density in (0.1, 1.0))
    assert sparse.test_error < dense.test_error - 0.1


def fine_tuning_law(structure: Any, *, overlap: Any = 0.8) -> sf.Tokens:
    gram = sp.Matrix([[0, 0, 0], [0, 1, overlap], [0, overlap, 1]])
    return sf.Tokens([1], [[1]], [gram], [1], [[0, 0]])


@pytest.mark.parametrize("overlap", [0.8, -0.3])
@pytest.mark.slow
def test_a_penalty_that_knows_the_teacher_is_the_ridge_around_the_known_row(overlap):
    """w - w_0 is the ridge estimate of the teacher w* - w_0, |w* - w_0|^2 = 2 (1 - overlap)."""
    model = square_loss(teacher=2, law=fine_tuning_law, regulariser=toward)
    solution = solved(model, alpha=0.7, overlap=overlap)
    strength, alpha = 0.3, 0.7
    b = strength + alpha - 1
    V = 2 / (b + np.sqrt(b * b + 4 * strength))
    noise = alpha * V**2 / (1 + V) ** 2
    error = (strength**2 * V**2 * 2 * (1 - overlap) + noise * 0.25) / (1 - noise)
    assert float(solution.overlaps.V.item()) == pytest.approx(V, rel=1e-9)
    assert solution.test_error == pytest.approx(error + 0.25, rel=1e-8)
    # Along w* - w_0: w = w_0 + (1 - strength V) (w* - w_0).
    gain = 1 - strength * V
    expected = [overlap + gain * (1 - overlap), 1 - gain * (1 - overlap)]
    assert solution.overlaps.theta.ravel() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda w: -(w[0] ** 2), r"the penalty is not convex: it lies above its chord from w = "),
        (lambda w: sp.sqrt(sp.Abs(w[0])), r"the penalty is not convex"),
        (lambda w: sp.Abs(w[0] ** 2 - 1), r"must be linear in w"),
        (lambda w: w[0] ** 2 * sp.Symbol("stray"), r"uses stray, which it does not declare"),
        (lambda w, x: w[0] ** 2, r"penalty .* has an unknown argument 'x': give it a default"),
        (lambda w: w, r"returned Matrix\(\[\[w_0\]\]\); it must return a single number"),
    ],
)
def test_a_penalty_that_is_none_is_refused(function, message):
    with pytest.raises((sf.InputError, sf.ModelError), match=message):
        sf.problem(square_loss(regulariser=sf.penalty(function)))


def test_a_corner_needs_one_column():
    with pytest.raises(sf.ModelError, match=r"corners as in .* are supported for one column of W"):
        square_loss(student=2, regulariser=sf.penalty(lambda w: sp.Abs(w[0]) + w[1] ** 2))


def test_values_at_which_a_penalty_is_not_convex_are_refused():
    with pytest.raises(sf.InputError, match=r"the penalty of elastic_net_regression is out of range|l2 = -0.1"):
        sf.problem("elastic_net_regression", l2=-0.1)
    with pytest.raises(sf.InputError, match=r"is not convex at strength = -0.1"):
        sf.problem(square_loss(regulariser=quadratic), strength=-0.1)


@sf.penalty
def boxed(w, *, bound=1.0):
    """The convex relaxation of weights of +bound and -bound."""
    return sf.box(w[0], -bound, bound)


def box_relaxation(**fields: Any) -> Any:
    return square_loss(regulariser=boxed, law=sf.binary_teacher, starts={"semantic": sf.Start(teacher=0.6)}, **fields)


def clipped(function: Any, bound: float, tau: float) -> float:
    """E function(w), w = 1 + tau Z clipped to the interval of weights, Z standard normal."""
    ends = [(end - 1) / tau for end in (-bound, bound)]
    inside = quad(lambda z: function(1 + tau * z) * norm.pdf(z), *ends, epsabs=1e-13, epsrel=1e-13)[0]
    return inside + function(-bound) * norm.cdf(ends[0]) + function(bound) * norm.sf(ends[1])


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "bound"), [(1.5, 1.0), (0.8, 1.0), (1.5, 0.7)])
def test_box_relaxation_of_binary_weights_is_that_of_clipped_gaussians(alpha, bound):
    """alpha tau^2 = Delta + E (w - 1)^2, Thrampoulidis, Xu, Hassibi, arXiv 1711.11215, for BPSK."""

    def excess(tau):
        return alpha * tau**2 - 0.25 - clipped(lambda w: (w - 1) ** 2, bound, tau)

    tau = brentq(excess, 0.05, 10, xtol=1e-14)
    solution = solved(box_relaxation(), alpha=alpha, bound=bound)
    overlaps = solution.overlaps
    assert overlaps.q.item() == pytest.approx(clipped(lambda w: w * w, bound, tau), abs=1e-10)
    assert overlaps.theta.item() == pytest.approx(clipped(lambda w: w, bound, tau), abs=1e-10)
    assert abs(solution.losses.identity_gap) < 1e-10
    # The share of wrong signs, which is no metric of the fields, follows from the test error.
    assert (solution.test_error / alpha) ** 0.5 == pytest.approx(tau, abs=1e-10)
    runs = sf.simulate(solution.problem, d=200, seeds=24, threads=2)
    mean, error = runs.overlaps
    assert len(runs.converged) == 24
    for name in ("q", "theta"):
        assert np.all(np.abs(getattr(mean, name) - getattr(overlaps, name)) < 4 * getattr(error, name))


@pytest.mark.slow
def test_a_box_at_a_finite_temperature_has_truncated_gaussian_rows():
    """G = alpha / (1 + V), and b = G pi + sqrt(q^) eta of variance q^ = alpha (Delta + 1 - 2 theta + q) / (1 + V)^2."""
    alpha, beta = 0.8, 10.0
    solution = solved(box_relaxation(), alpha=alpha, inverse_temperature=beta)
    q, V, theta = (float(getattr(solution.overlaps, name).item()) for name in ("q", "V", "theta"))
    G, spread = alpha / (1 + V), np.sqrt(alpha * (1.25 - 2 * theta + q)) / (1 + V)
    scale = 1 / np.sqrt(beta * G)

    def of_row(eta):
        centre = (G + spread * eta) / G
        return truncnorm.stats((-1 - centre) / scale, (1 - centre) / scale, centre, scale)

    z, weight = np.polynomial.hermite_e.hermegauss(81)
    mean, variance = of_row(z)
    weight = weight / weight.sum()
    found = weight @ np.stack([mean**2, beta * variance, mean], axis=1)
    assert found == pytest.approx([q, V, theta], abs=1e-8)


@pytest.mark.slow
def test_a_quadratic_penalty_is_the_ridge_for_a_teacher_of_few_values():
    """Rows of two columns on both sides, of unequal probabilities; broken replica symmetry of one."""

    def law(structure):
        return sf.Tokens([1], [[1]], rows=(["1/4", "1/4", "1/2"], [[-1, 0], [1, "1/2"], [1, -1]]))

    def two_columns(X, Y, z):
        return (X[0] + X[1] / 2 - Y[0] - Y[1] / 3 - z) ** 2 / 2

    def bounded(X, Y, z):
        error = Y[0] + 4 * z - X[0]
        return sp.Piecewise((error**2 / 2, sp.Abs(error) < 1), (sp.Rational(1, 2), True))

    for loss, rsb, fields in ((two_columns, None, {"student": 2, "teacher": 2, "law": law}), (bounded, 1, {})):
        pair = []
        for regulariser in (quadratic, sf.Ridge(0.1)):
            made = sf.model(
                name=f"{loss.__name__}_{regulariser.kind}",
                **({"law": sf.binary_teacher} | fields),
                regulariser=regulariser,
                noise={"z": sf.GaussianNoise("1/4")},
            )
            at = sf.problem(made(loss), alpha=1.5)
            pair.append(sf.solve(at, accuracy=1e-6, **({} if rsb is None else {"rsb": rsb})))
        general, closed = pair
        assert general.training_loss == pytest.approx(closed.training_loss, rel=1e-8)
        assert general.overlaps.pack() == pytest.approx(closed.overlaps.pack(), rel=1e-7, abs=1e-9)
