"""Finite temperature: closed forms, the volume of a perceptron's solutions, the cold limit, and sampled weights."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import sympy as sp
from scipy.optimize import brentq
from scipy.stats import norm

import saddleforge as sf
from saddleforge.integration import GaussHermite, ProxSpaceRule, Sobol
from saddleforge.problems import regulariser
from saddleforge.problems.overlaps import Conjugates, Overlaps
from saddleforge.saddle_point.state_map import SaddlePointMap

ERRORS = {"u": sf.DiscreteNoise((-1, 1), ("1/2", "1/2"))}


def errors_on_random_labels(X, Y, u):
    """Whether a perceptron errs on a label that nobody taught."""
    return sp.Heaviside(-u * X[0, 0])


def errors_on_a_teacher(X, Y):
    """Whether a perceptron errs on a label of a teacher."""
    return sp.Heaviside(-sp.sign(Y[0, 0]) * X[0, 0])


def tokens_that_agree(X):
    """Whether the scores of two tokens have one sign: a jump along two lines of the plane of fields."""
    return sp.Heaviside(X[0, 0] * X[1, 0])


# The teacher of random labels is nobody's: the start must not know one.
CAPACITY = sf.model(
    noise=ERRORS, loss_kinks=lambda X: X[0, 0], starts={"semantic": sf.Start(noise="3/5")}, name="gardner_volume"
)(errors_on_random_labels)
AGREEING = sf.model(
    tokens=2,
    loss_kinks=lambda X: [X[0, 0], X[1, 0]],
    starts={"semantic": sf.Start(teacher="3/5")},
    name="agreeing_tokens",
)(tokens_that_agree)
LEARNING = sf.model(
    loss_kinks=lambda X, Y: [X[0, 0], Y[0, 0]],
    metric=lambda h, Y: (1 - sp.sign(h[0, 0]) * sp.sign(Y[0, 0])) / 2,
    metric_kinks=lambda h, Y: [h[0, 0], Y[0, 0]],
    starts={"semantic": sf.Start(teacher="3/5", noise="3/5")},
    name="version_space",
)(errors_on_a_teacher)


OWN = {model.name: model for model in (CAPACITY, LEARNING)}


@cache
def solved(name, accuracy=1e-8, **values):
    return sf.solve(sf.problem(OWN.get(name, name), **values), accuracy=accuracy)


def cold_volume(name, alpha, b):
    """A temperature at which errors cost e^-b, and weights with the normal law of variance 1."""
    return solved(name, alpha=alpha, inverse_temperature=b, **{"lambda": 1 / b})


def log_volume(solution):
    """(1/d) log of the normal measure of the weights without errors."""
    return solution.thermal.free_entropy - np.log(2 * np.pi) / 2


def within(value, expected, error, floor=1e-12):
    return abs(value - expected) <= error + floor


# Ridge regression, whose Gibbs measure is normal


@pytest.mark.slow
@pytest.mark.parametrize("b", [0.3, 20.0])
def test_ridge_regression_has_the_same_mean_at_every_temperature(b):
    alpha = 2.0
    warm = solved("ridge_regression", alpha=alpha, inverse_temperature=b)
    strength, noise = warm.problem.strengths.item(), float(warm.problem.noise_scale[0] ** 2)
    V = max(np.roots([strength, strength + alpha - 1, -1]).real)
    theta = alpha * V / (1 + V)
    error = 1 - 2 * theta + noise
    hat = alpha / (1 + V) ** 2
    q = V**2 * ((alpha / (1 + V)) ** 2 + hat * error) / (1 - V**2 * hat)
    assert warm.status.success
    assert within(warm.overlaps.V.item(), V, warm.error_bars.V.item())
    assert within(warm.overlaps.theta.item(), theta, warm.error_bars.theta.item())
    assert within(warm.overlaps.q.item(), q, warm.error_bars.q.item())
    gibbs_averages = warm.thermal
    assert within(gibbs_averages.self_overlap.item(), q + V / b, gibbs_averages.self_overlap_error.item())
    residual = error + q
    data = alpha * (residual / (1 + V) ** 2 / 2 + V / (1 + V) / (2 * b))
    energy = data + strength * (q + V / b) / 2
    assert within(gibbs_averages.energy, energy, gibbs_averages.energy_error)
    entropic = np.log(2 * np.pi * V / b) / 2 + V * alpha / (1 + V) / 2
    minimum = alpha * residual / (1 + V) ** 2 / 2 + strength * q / 2
    free_entropy = -b * minimum + entropic - alpha * np.log(1 + V) / 2
    assert within(gibbs_averages.free_entropy, free_entropy, gibbs_averages.free_entropy_error)
    assert within(gibbs_averages.entropy, free_entropy + b * energy, gibbs_averages.entropy_error)


def test_weights_drawn_at_a_temperature_do_worse_than_their_mean():
    warm = solved("ridge_regression", alpha=2.0, inverse_temperature=0.3)
    assert warm.thermal.test_error - warm.test_error == pytest.approx(warm.overlaps.V.item() / 0.3, rel=1e-9)


def test_a_rule_refined_in_the_fields_alone_agrees():
    warm = solved("ridge_regression", alpha=2.0, inverse_temperature=20.0)
    one, other = (GaussHermite(8, inner=inner).averages(warm.problem, warm.overlaps).moments for inner in (1.0, 1.7))
    assert np.allclose(one, other, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("b", [0.0, -1.0, np.inf, np.nan, "cold"])
def test_only_positive_inverse_temperatures_are_allowed(b):
    with pytest.raises(sf.InputError, match="inverse_temperature"):
        sf.problem("ridge_regression", inverse_temperature=b)


def test_a_loss_that_jumps_in_two_fields_says_that_it_needs_a_temperature():
    with pytest.raises(sf.InputError, match=r"the loss jumps where .*give inverse_temperature"):
        sf.problem(AGREEING)


def test_zero_temperature_methods_refuse_a_finite_temperature():
    warm = solved("ridge_regression", alpha=2.0, inverse_temperature=20.0)
    problem = warm.problem
    for attempt in (
        lambda: ProxSpaceRule().averages(problem, warm.overlaps),
        lambda: sf.solve(problem, integrator="lines"),
        lambda: sf.sensitivities(warm),
        lambda: sf.verified(warm),
        lambda: sf.simulate(problem, d=20),
        lambda: sf.follow(problem, between=(2.0, 1.0)),
        lambda: sf.tune(problem, "lambda"),
        lambda: sf.solve_precisely(problem),
    ):
        with pytest.raises(sf.InputError, match="at zero temperature only"):
            attempt()


def test_a_problem_keeps_its_temperature_and_can_lose_it():
    problem = sf.problem("ridge_regression", inverse_temperature=3.0)
    assert problem.with_(alpha=1.5).inverse_temperature == 3.0
    assert problem.with_(inverse_temperature=None).temperature == 0.0
    assert problem.value_of_parameter("inverse_temperature") == 3.0


@pytest.mark.slow
def test_too_many_fields_are_refused():
    wide = sf.model(tokens=5, name="five_tokens")(lambda X, Y: sum(x**2 for x in X))
    with pytest.raises(sf.InputError, match="5 fields"):
        sf.problem(wide, inverse_temperature=1.0)


# The free entropy is stationary, and its slope in b is the energy


def free_entropy_at_overlaps(problem, u, hats, rule):
    """Phi per beta as a function of overlaps and conjugates alone."""
    from saddleforge.saddle_point import observables

    overlaps = Overlaps.unpack(u, problem.sizes)
    averages = rule.averages(problem, overlaps)
    return observables.free_entropy_and_losses(problem, overlaps, hats, averages).free_entropy


@pytest.mark.slow
@pytest.mark.parametrize("model", ["logistic_regression", "lasso_regression"])
def test_the_free_entropy_is_stationary_in_overlaps_and_conjugates(model):
    warm = solved(model, alpha=1.3, inverse_temperature=4.0)
    rule, problem, u = warm.rule.finer_rule(), warm.problem, warm.overlaps.pack()
    hats = SaddlePointMap(problem, rule).conjugates_at_overlaps(
        warm.overlaps, rule.averages(problem, warm.overlaps).moments[0]
    )

    def slope(function, size):
        step = 1e-3 * max(abs(size), 0.1)
        ends = [function(way * step) for way in (-2, -1, 1, 2)]
        return (ends[0] - 8 * ends[1] + 8 * ends[2] - ends[3]) / (12 * step)

    for i in (0, 1, 3):  # m vanishes by symmetry
        unit = np.eye(len(u))[i]
        assert abs(slope(lambda h, unit=unit: free_entropy_at_overlaps(problem, u + h * unit, hats, rule), u[i])) < 1e-7
    for name in ("q", "V", "theta"):
        block = getattr(hats, name)

        def moved(h, name=name, block=block):
            changed = Conjugates(**{**{n: getattr(hats, n) for n in ("q", "V", "m", "theta")}, name: block + h})
            return free_entropy_at_overlaps(problem, u, changed, rule)

        assert abs(slope(moved, block.item())) < 1e-7


@pytest.mark.slow
@pytest.mark.parametrize("model", ["logistic_regression", "lasso_regression"])
def test_the_energy_is_the_slope_of_the_free_entropy(model):
    b, step = 5.0, 0.02
    here = solved(model, alpha=1.3, inverse_temperature=b).thermal
    ends = [solved(model, alpha=1.3, inverse_temperature=b + n * step).thermal.free_entropy for n in (-2, -1, 1, 2)]
    slope = (ends[0] - 8 * ends[1] + 8 * ends[2] - ends[3]) / (12 * step)
    assert here.energy == pytest.approx(-slope, abs=2e-7)


# b -> infinity


@pytest.mark.slow
def test_logistic_regression_reaches_zero_temperature_as_1_over_b():
    limit = solved("logistic_regression", alpha=2.0, accuracy=1e-9).overlaps
    gaps = []
    for b in (100.0, 200.0, 400.0):
        u = solved("logistic_regression", alpha=2.0, accuracy=1e-9, inverse_temperature=b).overlaps
        gaps.append([getattr(u, name).item() - getattr(limit, name).item() for name in ("q", "V", "theta")])
    powers = np.log2(np.array(gaps[:-1]) / gaps[1:])
    assert powers == pytest.approx(np.ones_like(powers), abs=2.5e-3)
    # Richardson's extrapolation removes the first power.
    assert np.abs(2 * np.array(gaps[2]) - gaps[1]).max() < 2e-5


@pytest.mark.slow
def test_attention_reaches_zero_temperature_as_1_over_b(attention):
    limit = attention(2.0, "semantic", 1e-6).overlaps
    gaps = []
    for b in (3000.0, 6000.0):
        warm = solved("dot_product_attention", accuracy=1e-3, alpha=2.0, inverse_temperature=b)
        assert warm.status.success and np.abs(warm.overlaps.m).max() == 0.0
        gaps.append(
            [getattr(warm.overlaps, name)[0].item() - getattr(limit, name)[0].item() for name in ("q", "theta")]
        )
    assert gaps[0] == pytest.approx(2 * np.array(gaps[1]), rel=0.15)


# Volumes of solutions


NODES, WEIGHTS = (12 * part for part in np.polynomial.legendre.leggauss(600))
WEIGHTS = WEIGHTS * norm.pdf(NODES)


def gardner(alpha):
    """q and log volume per d of perceptrons that store alpha d random labels (J. Phys. A 21 (1988) 257)."""

    def slope(q):
        at = NODES * np.sqrt(q / (1 - q))
        return q * np.sqrt(q / (1 - q)) - alpha * WEIGHTS @ (NODES * np.exp(norm.logpdf(at) - norm.logsf(at)))

    q = brentq(slope, 1e-3, 0.999, xtol=1e-15)
    return q, np.log(1 - q) / 2 + q / (2 * (1 - q)) + alpha * WEIGHTS @ norm.logsf(NODES * np.sqrt(q / (1 - q)))


def gyorgyi(alpha):
    """The same where a teacher gives the labels (Phys. Rev. Lett. 64 (1990) 2957)."""

    def slope(q):
        at = NODES * np.sqrt(q / (1 - q))
        return q * np.sqrt(q / (1 - q)) * (1 - q) - 2 * alpha * WEIGHTS @ (NODES * norm.pdf(at) * (norm.logcdf(at) + 1))

    q = brentq(slope, 1e-3, 0.999, xtol=1e-15)
    at = NODES * np.sqrt(q / (1 - q))
    return q, np.log(1 - q) / 2 + q / 2 + 2 * alpha * WEIGHTS @ (norm.cdf(at) * norm.logcdf(at))


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "b"), [(0.5, 60.0), (1.0, 60.0), (1.5, 300.0)])
def test_the_volume_of_a_perceptron_that_stores_random_labels_is_gardners(alpha, b):
    warm = cold_volume("gardner_volume", alpha, b)
    q, volume = gardner(alpha)
    assert warm.status.success
    assert log_volume(warm) == pytest.approx(volume, abs=1e-9)
    assert warm.overlaps.q.item() == pytest.approx(q, abs=1e-8)
    assert warm.thermal.self_overlap.item() == pytest.approx(1.0, abs=1e-8)  # cones know no length
    assert warm.stability.longitudinally_stable and warm.stability.replicon < 1


@pytest.mark.slow
def test_the_gardner_volume_vanishes_at_the_capacity_two():
    """alpha = 2 q^2 (1 + O((1 - q)^(3/2))): the leading coefficient is the capacity."""
    loads = np.array([1.4, 1.5, 1.6, 1.7])
    q = np.array([cold_volume("gardner_volume", alpha, 300.0).overlaps.q.item() for alpha in loads])
    terms = q[:, None] ** 2 * (1 - q)[:, None] ** np.array([0.0, 1.5, 2.0, 2.5])
    assert np.linalg.solve(terms, loads)[0] == pytest.approx(2.0, abs=5e-3)


@pytest.mark.slow
def test_a_drawn_solution_of_a_teachers_labels_is_as_close_to_the_teacher_as_to_another():
    """Nishimori: theta = q and a length of 1, with the volume that G. Gyorgyi found."""
    warm = cold_volume("version_space", 1.0, 300.0)
    q = warm.overlaps.q.item()
    assert warm.overlaps.theta.item() == pytest.approx(q, abs=1e-10)
    assert warm.thermal.self_overlap.item() == pytest.approx(1.0, abs=1e-10)
    expected, volume = gyorgyi(1.0)
    assert q == pytest.approx(expected, abs=1e-10)
    assert log_volume(warm) == pytest.approx(volume, abs=1e-10)
    assert warm.thermal.test_error == pytest.approx(np.arccos(q) / np.pi, abs=1e-9)
    assert warm.test_error == pytest.approx(np.arccos(np.sqrt(q)) / np.pi, abs=1e-9)


# Regularisers


@pytest.mark.slow
@pytest.mark.parametrize("student", [1, 2])
def test_a_ridge_written_as_a_penalty_gives_the_same(student):
    """The integral over a row by quadrature, against its closed form."""

    def loss(X, Y):
        return sum((x - Y[0]) ** 2 for x in X) / 2 + sp.Rational(1, 10) * sp.cos(X[0])

    def rows(w, *, strength=0.3):
        return strength * sum(a**2 for a in w) / 2

    sizes = {"student": student, "teacher": 1}
    closed = sf.model(regulariser=sf.Ridge(0.3), name="closed_ridge", **sizes)(loss)
    written = sf.model(regulariser=sf.penalty(rows), name="written_ridge", **sizes)(loss)
    one, other = (
        sf.solve(sf.problem(model, alpha=1.5, inverse_temperature=3.0), accuracy=1e-6) for model in (closed, written)
    )
    assert other.overlaps.pack() == pytest.approx(one.overlaps.pack(), abs=1e-7)
    assert other.thermal.free_entropy == pytest.approx(one.thermal.free_entropy, abs=1e-7)
    assert other.thermal.energy == pytest.approx(one.thermal.energy, abs=1e-7)
    assert other.stability.replicon == pytest.approx(one.stability.replicon, rel=1e-5)


@pytest.mark.slow
def test_a_cold_lasso_keeps_its_digits_where_weights_rest_on_a_corner(monkeypatch):
    states = []
    for points in (64, 120):
        monkeypatch.setattr(regulariser, "PRIOR_POINTS", points)
        problem = sf.problem("lasso_regression", alpha=1.0, inverse_temperature=3000.0)
        states.append(sf.solve(problem, accuracy=1e-8).overlaps.pack())
    assert states[0] == pytest.approx(states[1], abs=1e-9)


# Rules, and weights drawn at finite d


@pytest.mark.slow
def test_sobol_sets_agree_with_the_product_rule(agree):
    warm = solved("logistic_regression", alpha=2.0, inverse_temperature=5.0)
    sampled = sf.solve(warm.problem, accuracy=1e-3, integrator="sobol")
    assert isinstance(sampled.rule, Sobol) and sampled.status.success
    overlaps, energies = (
        [(s.overlaps.pack(), s.errors) for s in (sampled, warm)],
        [(s.thermal.energy, s.thermal.energy_error) for s in (sampled, warm)],
    )
    agree(*overlaps, "three standard errors", rounding=1e-9)
    agree(*energies, "three standard errors")


def hamiltonian_monte_carlo(energy, start, steps, generator, length=12):
    """Samples of exp(-energy), energy(w) -> (value, slope), the step adapted in the first third."""
    w, size, kept = start, 0.1, []
    value, slope = energy(w)
    for n in range(steps):
        momentum = generator.standard_normal(len(w))
        before = value + momentum @ momentum / 2
        new, new_slope = w, slope
        momentum = momentum - size * new_slope / 2
        for k in range(length):
            new = new + size * momentum
            new_value, new_slope = energy(new)
            momentum = momentum - size * new_slope * (0.5 if k == length - 1 else 1.0)
        accepted = np.log(generator.random()) < before - new_value - momentum @ momentum / 2
        if accepted:
            w, value, slope = new, new_value, new_slope
        if n < steps // 3:
            size *= 1.05 if accepted else 0.8
        else:
            kept.append(w)
    return np.array(kept)


@pytest.mark.slow
def test_weights_of_logistic_regression_drawn_at_finite_d_have_the_overlaps():
    d, alpha, b, strength = 250, 2.0, 5.0, 0.1
    warm = solved("logistic_regression", alpha=alpha, inverse_temperature=b)
    found = []
    for seed in range(6):
        generator = np.random.default_rng(seed)
        x = generator.standard_normal((int(alpha * d), d)) / np.sqrt(d)
        teacher = generator.standard_normal(d)
        labels = np.sign(x @ teacher)

        def energy(w, x=x, labels=labels):
            margin = labels * (x @ w)
            slope = -(x.T @ (labels / (1 + np.exp(margin)))) + strength * w
            return b * (np.logaddexp(0, -margin).sum() + strength * w @ w / 2), b * slope

        drawn = hamiltonian_monte_carlo(energy, generator.standard_normal(d), 900, generator)
        mean, losses = drawn.mean(axis=0), [energy(w)[0] / b / d for w in drawn]
        found.append([(drawn**2).sum(axis=1).mean() / d, mean @ mean / d, mean @ teacher / d, np.mean(losses)])
    expected = [
        warm.thermal.self_overlap.item(), warm.overlaps.q.item(), warm.overlaps.theta.item(), warm.thermal.energy
    ]  # fmt: skip
    spread = np.std(found, axis=0) / np.sqrt(len(found) - 1)
    assert np.all(np.abs(np.mean(found, axis=0) - expected) <= 3 * spread + 0.02 * np.abs(expected))


def test_conjugates_carry_nothing_of_the_temperature():
    """The map from averages to conjugates and back is that of zero temperature for a ridge."""
    warm = solved("ridge_regression", alpha=2.0, inverse_temperature=20.0)
    cold = replace(warm.problem, inverse_temperature=None)
    moments = warm.averages.moments[0]
    one, other = (
        SaddlePointMap(problem, warm.rule).image_from_channel_averages(warm.overlaps, moments)
        for problem in (warm.problem, cold)
    )
    assert np.array_equal(one, other)
