"""Losses of several fields whose slope jumps: minima on corners, their response, and averages over them."""

from __future__ import annotations

import numpy as np
import pytest
import sympy as sp

import saddleforge as sf
from saddleforge.base.errors import InputError
from saddleforge.derive.theory.corners import split_loss_by_signs
from saddleforge.derive.theory.kinks import describe_gradient_jump
from saddleforge.integration import GaussHermite, LatticeRule, ProxSpaceRule, rule_by_name

NOISE = {"u": sf.GaussianNoise("Delta"), "v": sf.GaussianNoise("Delta")}
STATE = 0.7, 1.2  # q and V of every token


@sf.model(tokens=2, noise=NOISE, metric=lambda h, Y, u, v: ((Y[0] + u - h[0]) ** 2 + (Y[1] + v - h[1]) ** 2) / 2)
def separable(X, Y, u, v, *, Delta=0.25):
    """The absolute errors of two tokens."""
    return sp.Abs(Y[0] + u - X[0]) + sp.Abs(Y[1] + v - X[1])


def target(Y, omega):
    return (1 - omega) * sf.softmax(Y @ Y.T) + omega * sp.eye(2)


@sf.model(tokens=2, metric=lambda h, Y, omega: sf.square(target(Y, omega) - sf.softmax(h @ h.T)))
def attention(X, Y, *, omega=0.5):
    """Absolute errors of attention weights."""
    return sum(map(sp.Abs, target(Y, omega) - sf.softmax(X @ X.T)))


@sf.model(tokens=2, metric=lambda h, Y, omega, width: sf.square(target(Y, omega) - sf.softmax(h @ h.T)))
def rounded(X, Y, *, omega=0.5, width=0.03):
    """The same with corners rounded."""
    errors = target(Y, omega) - sf.softmax(X @ X.T)
    return sum(sf.rounded_hinge(e, width) + sf.rounded_hinge(-e, width) for e in errors)


@sf.model(tokens=2)
def hinge_of_two(X, Y):
    """A margin of two fields, in one of them squared."""
    return sp.Max(0, 1 - sp.sign(Y[0]) * (X[0] + X[1] ** 2))


@sf.model(tokens=2)
def nested(X, Y):
    """Moduli in moduli, of products, and a maximum of three."""
    inner = sp.Abs(sp.Abs(X[0]) - X[1] * Y[0]) + sp.Abs(X[0] * X[1]) / 2
    return inner + sp.Max(X[0] ** 2, X[1] - Y[1], 1 - X[0])


@sf.model(tokens=2, noise={"flip": sf.DiscreteNoise((1, "-1/5"), ("1/2", "1/2"))})
def clipped(X, Y, flip):
    """The larger of two fields within bounds: which piece a comparison is on depends on the piece of another."""
    return sp.Min(1, sp.Max(0, 2 - flip * sp.sign(Y[0]) * sp.Max(X[0], X[1])))


MODELS = {model.name: model for model in (separable, attention, hinge_of_two, nested)}
COMPILED = [pytest.param(name, marks=pytest.mark.slow) for name in MODELS]  # half a minute each, once


def points(name: str, count: int, seed: int = 0):
    """Problem, its channel, and random omega (N, 2), V, its inverse, features and constants."""
    problem = sf.problem(MODELS[name], alpha=1.0)
    channel = problem.solver.proximal
    random = np.random.default_rng(seed)
    omega, teachers = random.normal(size=(2, count, 2))
    noise = random.normal(size=(count, len(problem.solver.model.NOISE)))
    c = problem.constants((0, 0))
    variance = np.full((2, 1, 1), STATE[1])
    return channel, omega, variance, 1 / variance, channel.features_at(teachers, noise, c), c


def objective(channel, x, omega, known, c):
    """Of points x (N, 2) at one omega and its features."""
    known = np.repeat(known[None], len(x), axis=0)
    return channel.losses_at(np.ascontiguousarray(x), known, c)[0] + np.sum((x - omega) ** 2, axis=1) / 2 / STATE[1]


def lowest(channel, omega, known, c, start):
    """The lowest value on a grid of the ball that the value at a point bounds, and on finer ones around it."""
    best = objective(channel, start[None], omega, known, c)[0]
    middle, half = omega, np.sqrt(2 * STATE[1] * best)
    axis = np.linspace(-1, 1, 121)
    square = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    for _ in range(8):
        grid = middle + half * square
        values = objective(channel, grid, omega, known, c)
        middle, best, half = grid[np.argmin(values)], min(best, values.min()), half / 20
    return best


def test_switches_of_one_place_are_one():
    """Rows of two softmax entries have one zero set, products those of their factors, moduli inside are decided."""
    assert len(split_loss_by_signs(attention.at(attention.default_structure())).switches) == 2
    x, y = [sp.Symbol(f"x_{i}_0", real=True) for i in range(2)], sp.Symbol("y_0_0", real=True)
    found = split_loss_by_signs(nested.at(nested.default_structure())).switches
    ratios = [[sp.simplify(switch / known) for switch in found] for known in (*x, x[0] - x[1] * y, x[0] + x[1] * y)]
    assert all(any(ratio.is_number for ratio in row) for row in ratios)
    assert len(found) == 7


@pytest.mark.parametrize("model", [*MODELS.values(), clipped], ids=lambda model: model.name)
def test_sides_give_the_loss_back_by_comparisons_of_numbers(model):
    at = model.at(model.default_structure())
    found = split_loss_by_signs(at)
    assert not found.loss.has(sp.ITE) and not any(
        e.has(sp.Piecewise) for e in found.loss.atoms(sp.core.relational.Relational)
    )
    symbols = sorted(at.loss.free_symbols, key=str)
    random = np.random.default_rng(1)
    for _ in range(20):
        values = zip(symbols, random.normal(size=len(symbols)), strict=True)
        drawn = {s: sp.Float(abs(z) if s.is_positive else z) for s, z in values}
        sides = {s: sp.sign(c.xreplace(drawn).evalf()) for s, c in zip(found.sides, found.switches, strict=True)}
        one, other = (e.xreplace(drawn).evalf() for e in (found.loss.xreplace(sides), at.loss))
        assert abs(one - other) < 1e-12


def test_corners_of_conditions_are_found():
    """A Piecewise whose slope jumps, one of continuous slope, and one that jumps."""

    def at(pieces):
        model = sf.model(tokens=2)(lambda X, Y: pieces(X[0] - Y[0] * X[1]))
        return model.at(model.default_structure())

    kinked = at(lambda r: sp.Piecewise((r, (r > 0) & (r < 1)), (2 * r - 1, r >= 1), (-r / 2, True)))
    assert describe_gradient_jump(kinked).startswith("the slope of the loss")
    assert describe_gradient_jump(at(lambda r: sf.rounded_hinge(r, sp.Rational(1, 10)))) == ""
    assert describe_gradient_jump(at(lambda r: sp.Piecewise((r, r > 1), (0, True)))).startswith("the loss jumps")


@pytest.mark.parametrize("name", COMPILED)
def test_minima_are_the_lowest_of_all(name):
    channel, omega, variance, precision, known, c = points(name, 100)
    x, _ = channel.proximal_at(omega, precision, variance, known, c, 2)
    for n in range(len(x)):
        value = objective(channel, x[n : n + 1], omega[n], known[n], c)[0]
        assert value < lowest(channel, omega[n], known[n], c, x[n]) + 1e-9


@pytest.mark.parametrize("name", COMPILED)
def test_responses_at_corners_are_differences(name):
    """G by (11.16) is dg/domega wherever the surface that holds X is the same on both sides of omega."""
    channel, omega, variance, precision, known, c = points(name, 400)
    _, slopes = channel.proximal_at(omega, precision, variance, known, c, 2)
    step = 1e-5

    def g(shift):
        return (channel.proximal_at(omega + shift, precision, variance, known, c, 2)[0] - omega - shift) / STATE[1]

    differences = np.stack([(g(step * e) - g(-step * e)) / (2 * step) for e in np.eye(2)], axis=2)
    off = np.abs(differences - slopes).max(axis=(1, 2))
    assert np.mean(off < 1e-6) > 0.99
    # As many eigenvalues of dX/domega vanish as independent switches do: minima lie inside, on lines and on points.
    vanishing = np.sum(np.abs(np.linalg.eigvals(np.eye(2) + STATE[1] * slopes)) < 1e-9, axis=1)
    expected = {"separable": {0, 1, 2}, "attention": {0, 1, 2}, "hinge_of_two": {0, 1}, "nested": {0, 1, 2}}
    assert set(vanishing) == expected[name]


@pytest.mark.slow
def test_rules_that_know_no_corners_are_refused_or_left_out():
    problem = sf.problem(separable, alpha=1.5)
    assert not ProxSpaceRule.is_applicable(problem)
    assert not GaussHermite.quadrature_rules_for_cross_check(
        problem, 0.0
    ) and not LatticeRule.quadrature_rules_for_cross_check(problem, 0.0)
    with pytest.raises(InputError, match="without jumps of its derivative; use sobol"):
        sf.solve(problem, integrator="prox-space")
    with pytest.raises(InputError, match="pieces is for one student field, and the loss depends on 2; use sobol"):
        sf.solve(problem, integrator="pieces")
    with pytest.raises(InputError, match="high precision is for one token"):
        sf.solve_precisely(problem, accuracy=1e-20)


def test_a_loss_that_jumps_in_several_fields_is_refused():
    @sf.model(tokens=2)
    def stepped(X, Y):
        return sp.Heaviside(X[0] * X[1] - Y[0] * Y[1])

    with pytest.raises(InputError, match=r"the loss jumps .*; in a loss of several fields only the slope may jump"):
        sf.problem(stepped, alpha=1.0)


@pytest.mark.slow
def test_averages_of_two_tokens_are_those_of_one():
    """Absolute errors of two tokens are two samples of one: moments at a state, by the same rule in omega and Y."""
    alone, both = sf.problem("l1_regression", alpha=3.0), sf.problem(separable, alpha=1.5)
    found = sf.solve(alone, accuracy=1e-8)
    sizes = both.sizes
    blocks = {k: np.repeat(getattr(found.overlaps, k), 2, axis=0) for k in ("q", "V", "m", "theta")}
    there = type(found.overlaps)(**blocks, phi=np.zeros(0))
    assert there.sizes == sizes
    rule = rule_by_name("sobol", 11, 0)
    one, two = found.rule.averages(alone, found.overlaps), rule.averages(both, there)
    error = 4 * two.moments.std(axis=0) / np.sqrt(len(two.moments)) + 1e-12
    off = np.abs(two.moments.mean(axis=0) - one.moments.mean(axis=0))
    assert np.all(off <= error) and np.max(error) < 2e-2
    assert two.moreau.mean() == pytest.approx(2 * one.moreau.mean(), rel=1e-3)
    assert two.unconverged == 0 and two.bistable == 0
    # The replicon counts slopes of g at corners and next to them.
    one, two = found.rule.jacobian_averages(alone, found.overlaps), rule.jacobian_averages(both, there)
    for k in range(2):
        assert two.square[:, 0, k, k].mean() == pytest.approx(one.square.mean(), rel=2e-2)
    assert np.abs(two.square[:, 0, 0, 1].mean()) < 1e-12


@pytest.mark.slow
def test_rounded_corners_come_to_the_exact_ones():
    """Absolute errors of attention weights and the same rounded over shorter and shorter widths, at the same points.

    Rounding moves the loss by its width at the most, and averages in proportion.
    """
    _, omega, variance, precision, _, _ = points("attention", 2000)
    teachers = np.random.default_rng(5).normal(size=omega.shape)

    def averages(problem):
        channel, c = problem.solver.proximal, problem.constants((0, 0))
        known = channel.features_at(teachers, np.zeros((len(omega), 0)), c)
        x, _ = channel.proximal_at(omega, precision, variance, known, c, 2)
        g = (x - omega) / STATE[1]
        losses = channel.losses_at(x, known, c)[0]
        return np.array([np.mean(g**2), np.mean(g * teachers), np.mean(g * omega), np.mean(losses)])

    exact = averages(sf.problem(attention, alpha=2.0))
    one, two = (averages(sf.problem(rounded, alpha=2.0, width=width)) for width in (0.02, 0.01))
    assert np.abs(one - exact).max() > 1e-3
    assert np.all(np.abs(2 * two - one - exact) < 0.2 * np.abs(one - exact) + 1e-3)


@pytest.mark.slow
def test_samples_at_corners_are_those_of_theory():
    """Absolute errors of two tokens at d = 200: the minimum, found from any start, is that of the theory."""
    problem = sf.problem(separable, alpha=1.5, lambda_=0.3)
    found = sf.simulate(problem, d=200, seeds=4)
    alone = sf.solve(sf.problem("l1_regression", alpha=3.0, lambda_=0.3), accuracy=1e-6)
    assert found.plan.method == "newton" and len(found.converged) == 4
    for name in ("training_loss", "test_error"):
        estimate = found.estimate(name)
        assert abs(estimate.mean - getattr(alone, name)) < 4 * estimate.standard_error + 0.01


@pytest.mark.slow
def test_absolute_errors_of_two_tokens_are_those_of_one():
    """Solved: n samples of two tokens are 2 n of one."""
    alone = sf.solve(sf.problem("l1_regression", alpha=3.0, lambda_=0.3), accuracy=1e-8)
    both = sf.solve(sf.problem(separable, alpha=1.5, lambda_=0.3), accuracy=1e-3)
    assert both.success and both.rule.name == "sobol"
    for block in ("q", "V", "theta"):
        found, known = getattr(both.overlaps, block).ravel(), getattr(alone.overlaps, block).ravel()
        assert np.all(np.abs(found - known) < 2 * both.errors.max())
    assert both.training_loss == pytest.approx(alone.training_loss, abs=2 * both.training_loss_error)
    assert both.test_error == pytest.approx(alone.test_error, abs=2 * both.test_error_error)
    assert both.stability.replicon == pytest.approx(alone.stability.replicon, abs=2 * both.stability.replicon_error)


@pytest.mark.slow
def test_absolute_errors_of_attention_weights_are_solved_and_simulated():
    """With corners on curved surfaces of two fields, and theta that is not zero.

    Theory to error bars of half a percent, weights of d = 100 within four standard errors of it.
    """
    problem = sf.problem(attention, alpha=4.0, omega=0.3, lambda_=0.6)
    solution = sf.solve(problem, accuracy=2e-2)
    assert solution.success and solution.rule.name == "sobol"
    found = sf.simulate(problem, d=100, seeds=12)
    assert found.plan.method == "newton" and len(found.converged) == 12
    means, errors = found.aligned(solution.overlaps).overlaps
    for block in ("q", "theta"):
        theory, width = (getattr(o, block).ravel() for o in (solution.overlaps, solution.error_bars))
        assert np.all(theory > 1) and np.all(width < 5e-3 * theory)
        off, spread = getattr(means, block).ravel() - theory, getattr(errors, block).ravel()
        assert np.all(np.abs(off) < 4 * np.hypot(spread, width / 2))
