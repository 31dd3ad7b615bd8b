"""One-pass descent of infinite d: exact answers, the derivation's equations, the saddle point's averages, finite d."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import sympy as sp
from scipy.linalg import expm

import saddleforge as sf
from saddleforge.derive.calculus.averages import CHANNEL, CONTEXTS, COORDINATE, MatrixAverage, OrderParameterSymbols
from saddleforge.derive.replicas import dynamics as derivation
from saddleforge.derive.replicas.algebra.exact import ExactValues
from saddleforge.derive.theory import descent as equations
from saddleforge.extensions.descent.averages import LossGradientAverages, gradient_average_rules
from saddleforge.extensions.descent.escape import draw_moments_of_gaussian_weights
from saddleforge.extensions.descent.flow import EquationsOfMotion
from saddleforge.extensions.descent.schedule import parse_batch_size, parse_learning_rate
from saddleforge.extensions.descent.state import Moments, moments_of_start
from saddleforge.extensions.descent.stationary import find_stationary_moments, find_stationary_moments_by_newton
from saddleforge.extensions.simulation.instance import Instance
from saddleforge.extensions.simulation.methods.sgd import draw_weights_with_moments, run_one_pass_sgd
from saddleforge.integration import GaussHermite
from saddleforge.report.plots.dynamics import plot_one_pass_runs
from saddleforge.report.simulation_tables import add_dynamics_at_infinite_d, load_simulation_runs
from saddleforge.report.tables import load_netcdf_dataset

BASE = {"sigma": 0.5, "omega": 0.3, "lambda": 0.002}
START = {"q": 0.125, "theta": 0.025, "m_1": 0.1}


@cache
def attention(**values):
    return sf.problem("dot_product_attention", **(BASE | values))


def ridge(**values):
    return sf.problem("ridge_regression", **values)


# Exact answers


def test_the_base_case_has_its_known_overlaps():
    """Of an independent implementation, to the five digits that were written down."""
    found = sf.dynamics(attention(), 4.0, [0, 8, 20, 40], START, accuracy=1e-5)
    assert found.success
    S, T, P = found.path[1:, 0], found.path[1:, 1], found.path[1:, 3]
    np.testing.assert_allclose(S, [0.35776, 0.29773, 0.35346], atol=1e-5)
    np.testing.assert_allclose(P, [0.12513, 0.20003, 0.43715], atol=1e-5)
    np.testing.assert_allclose(T, [0.05451, 0.05333, 0.05257], atol=1e-5)
    assert np.all(found.error_bars < 1e-5)
    np.testing.assert_array_equal(found.path[:, 1], -found.path[:, 2])  # the encodings are opposite


SPECTRUM = [[0.5, 0.5], [0.3, 1.0], [0.2, 2.0]]
LAMBDA, DELTA = 0.03, 0.25


def regression():
    """Least squares of noisy labels, three atoms."""
    return ridge(spectrum=SPECTRUM, Delta=DELTA, **{"lambda": LAMBDA})


def linear_system(rate):
    """d u / dt = M u of u = (S, P of every atom, 1): D = x - y - u, so that H = 1, K = -1."""
    weights, gamma = np.array(SPECTRUM).T
    atoms = len(weights)
    M = np.zeros((2 * atoms + 1, 2 * atoms + 1))
    noise = rate**2 * gamma
    M[:atoms, :atoms] = np.diag(-2 * rate * (gamma + LAMBDA)) + np.outer(noise, weights * gamma)
    M[:atoms, atoms:-1] = np.diag(2 * rate * gamma) - 2 * np.outer(noise, weights * gamma)
    M[:atoms, -1] = noise * (weights @ gamma + DELTA)
    M[atoms:-1, atoms:-1] = -np.diag(rate * (gamma + LAMBDA))
    M[atoms:-1, -1] = rate * gamma
    return M


def test_linear_regression_follows_the_matrix_exponential():
    rate, times = 0.6, np.array([0.0, 0.7, 3.0, 6.0])
    found = sf.dynamics(regression(), rate, times, "random", accuracy=2e-11)
    u = np.concatenate([np.ones(3), np.zeros(3), [1.0]])
    exact = np.array([(expm(t * linear_system(rate)) @ u)[:-1] for t in times])
    own = found.path[:, [0, 1, 2, 6, 7, 8]]
    assert found.success and np.abs(own - exact).max() < 1e-10
    assert np.all(np.abs(own - exact) <= found.error_bars[:, [0, 1, 2, 6, 7, 8]] + 1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("spectrum", [[[1.0, 1.0]], SPECTRUM])
def test_regression_is_lost_at_the_rate_at_which_its_noise_feeds_itself(spectrum):
    """sum of nu eta gamma^2 / (2 (gamma + lambda)) = 1, there the stationary norm of W runs off to infinity."""
    weights, gamma = np.array(spectrum).T
    exact = 1 / (weights @ (gamma**2 / (2 * (gamma + LAMBDA))))
    found = sf.rate_limit(ridge(spectrum=spectrum, Delta=DELTA, **{"lambda": LAMBDA}), 0.4, "random")
    assert abs(found.value - exact) < 1e-8 * exact and abs(found.value - exact) <= found.error
    assert found.kind == "lost" and found.last.stable


def test_at_that_rate_the_matrix_has_a_zero():
    weights, gamma = np.array(SPECTRUM).T
    exact = 1 / (weights @ (gamma**2 / (2 * (gamma + LAMBDA))))
    assert abs(np.max(np.linalg.eigvals(linear_system(exact)[:-1, :-1]).real)) < 1e-12


def test_noise_halves_with_two_sentences_a_step():
    """Of regression at rate eta the stationary S - P^2 is noise / (A eigenvalue): the batch divides its source."""
    one, many = (sf.stationary(ridge(), 0.02, "random", batch=batch).moments for batch in (1, 8))
    none = sf.stationary(ridge(), "flow", "random").moments
    ratio = (one.S - none.S) / (many.S - none.S)
    assert ratio[0, 0, 0] == pytest.approx(8, rel=0.02)


@pytest.mark.parametrize("rate", [1e-3, 2e-3])
def test_a_map_of_small_steps_is_the_flow(rate):
    """A step of a share beta of d against a unit of time of batches of beta sentences: the rest is of second order."""
    problem = regression()
    rule = gradient_average_rules(problem)[1]
    moments = moments_of_start(problem, {"q": 0.5, "theta": 0.2})[1]
    moved = EquationsOfMotion(problem, rule).moments_after_step(moments, rate, 0.5).pack() - moments.pack()
    slope = EquationsOfMotion(problem, rule, 0.5).moment_derivatives(moments, rate).pack()
    assert np.abs(moved - slope).max() < 20 * rate**2 and np.abs(slope).max() > 0.1 * rate


# The equations are those of the derivation, their averages those of the saddle point


def random_averages(problem, seed=3):
    C, s, t, P = problem.sizes
    r = np.random.default_rng(seed)
    square = r.normal(size=(C, s, s))
    return LossGradientAverages(
        mean=r.normal(size=(C, s)), square=square @ np.swapaxes(square, 1, 2), with_fields=r.normal(size=(C, s, s)),
        with_teacher=r.normal(size=(C, s, t)), loss=0.0, in_q=np.zeros((C, s, s)), in_phi=np.zeros(P),
    )  # fmt: skip


class Fixed:
    """A rule that says the same of any overlaps."""

    def __init__(self, averages):
        self.averages = averages

    def __call__(self, _):
        return self.averages


def evaluated(problem, moments, averages, rate, share, batch):
    """The derivation's equations in numbers, for the only atom of the law."""
    s, t, contexts = problem.student_rank, problem.teacher_rank, problem.contexts
    step = derivation.descent_step(s=s, t=t)
    rows = equations.RowMoments(OrderParameterSymbols(s, t))
    p, law = rows.p, problem.law
    gram, gamma = law.gram[0], law.gamma[0]
    named = {
        rows.mean: sp.MatrixSymbol("mean", s, 1), rows.mean.T.doit(): sp.MatrixSymbol("mean", s, 1).T,
        rows.square: sp.MatrixSymbol("square", s, s),
        MatrixAverage(CHANNEL, rows.D * rows.dX.T): sp.MatrixSymbol("with_fields", s, s),
        MatrixAverage(CHANNEL, rows.D * p.dY.T): sp.MatrixSymbol("with_teacher", s, t),
    }  # fmt: skip
    overlaps = moments.overlaps(problem)

    def matrix(array, *shape):
        return sp.Matrix(np.reshape(array, shape).tolist())

    def of_context(c):
        own = {
            "gamma": float(gamma[c]), "q": matrix(overlaps.q[c], s, s), "theta": matrix(overlaps.theta[c], s, t),
            "mean": matrix(averages.mean[c], s, 1), "square": matrix(averages.square[c], s, s),
            "rho_star": matrix(law.rho_star[c], t, t), "T_atom": matrix(moments.T[0, c], s, 1),
            "with_fields": matrix(averages.with_fields[c], s, s),
            "with_teacher": matrix(averages.with_teacher[c], s, t),
        }  # fmt: skip
        at = ExactValues(own)
        slopes = {name: at(step.after[name].xreplace(named)) for name in ("H_slope", "K_slope")}
        return {**own, **slopes, "context": c}

    contexts_of = [of_context(c) for c in range(contexts)]
    # Rows with these second moments: as many as (w, tau, pi) has components, weighted by their squares.
    joint = np.block([[moments.S[0], moments.T[0].T, moments.P[0]],
                      [moments.T[0], gram[:contexts, :contexts], gram[:contexts, contexts:]],
                      [moments.P[0].T, gram[contexts:, :contexts], gram[contexts:, contexts:]]])  # fmt: skip
    values, vectors = np.linalg.eigh(joint)
    columns = (vectors * np.sqrt(np.maximum(values, 0))).T
    table = [{"w": matrix(u[:s], s, 1), "taus": u[s : s + contexts], "pi": matrix(u[s + contexts :], t, 1)}
             for u in columns]  # fmt: skip
    other = contexts - 1

    def value(name):
        common = {
            "rate": rate, "batch": batch, "batch_share": share, "s": sp.Integer(s), "t": sp.Integer(t),
            "Lambda": sp.diag(*map(float, problem.strengths)), "S_atom": matrix(moments.S[0], s, s),
            "P_atom": matrix(moments.P[0], s, t), f"T_atom{equations.OTHER}": matrix(moments.T[0, other], s, 1),
            "tau": lambda at, _: float(at.values["taus"][at.values["context"]]),
            f"tau{equations.OTHER}": lambda at, _: float(at.values["taus"][other]),
        }  # fmt: skip
        sums = {CONTEXTS: tuple((1, own) for own in contexts_of)}
        A = ExactValues(common, sums)(step.after["A_drift"].xreplace(named))
        rows_with_b = tuple(
            (1, {**row, "b_drift": ExactValues({**common, **row}, sums)(step.after["b_drift"].xreplace(named))})
            for row in table
        )
        at = ExactValues({**common, "A_drift": A}, {**sums, equations.ATOM: rows_with_b})
        return np.array(at(step.after[name].xreplace(named)).tolist(), float)

    return value


@pytest.mark.parametrize("name", ["dot_product_attention", "committee_machine"])
def test_the_equations_are_those_of_the_derivation(name):
    problem = sf.problem(name)
    moments = draw_moments_of_gaussian_weights(problem, 20, 1)
    averages = random_averages(problem)
    rate, share, batch = 0.7, 0.4, 3.0
    flow = EquationsOfMotion(problem, Fixed(averages), batch)
    value = evaluated(problem, moments, averages, rate, share, batch)
    slope, moved = flow.moment_derivatives(moments, rate), flow.moments_after_step(moments, rate, share)
    for state, names in (
        (slope, ("dS", "dT", "dP")),
        (moved, ("S after a batch", "T after a batch", "P after a batch")),
    ):
        own = state.S[0], state.T[0, -1][:, None], state.P[0]
        for block, expression in zip(own, names, strict=True):
            np.testing.assert_allclose(block, value(expression), rtol=1e-9, atol=1e-10)


def test_overlaps_are_averages_over_the_atoms():
    problem = regression()
    moments = draw_moments_of_gaussian_weights(problem, 40, 2)
    step = derivation.descent_step(s=1, t=1)
    states = tuple(
        (
            float(weight),
            {"gamma": float(gamma[0]), "S_atom": sp.Matrix(S), "T_atom": sp.Matrix(T.T), "P_atom": sp.Matrix(P)},
        )
        for weight, gamma, S, T, P in zip(
            problem.law.weights, problem.law.gamma, moments.S, moments.T, moments.P, strict=True
        )
    )
    overlaps = moments.overlaps(problem)
    for name in ("q", "m", "theta"):
        expected = ExactValues({}, {COORDINATE: states})(step.after[name])
        assert float(getattr(overlaps, name).ravel()[0]) == pytest.approx(float(expected[0]), abs=1e-14)


@pytest.mark.parametrize(
    "name",
    [
        "phase_retrieval",
        pytest.param("dot_product_attention", marks=pytest.mark.slow),
        pytest.param("mixture_classification", marks=pytest.mark.slow),
    ],
)
def test_averages_are_those_of_the_saddle_point_for_small_V(name):
    """g = -D at X = omega where the proximal map has no room; the rest is of first order in V."""
    problem = sf.problem(name)
    moments = draw_moments_of_gaussian_weights(problem, 12, 4)
    overlaps = moments.overlaps(problem)
    rule = GaussHermite(10)
    size = 1e-5
    at_small_V = replace(overlaps, V=size * np.broadcast_to(np.eye(problem.student_rank), overlaps.q.shape))
    static = rule.averages(problem, at_small_V).means
    own = gradient_average_rules(problem)[-1 if name == "mixture_classification" else 2](overlaps)
    blocks = {"g": -own.mean, "g*g.T": own.square, "g*domega.T": -own.with_fields, "g*dY.T": -own.with_teacher}
    scale = np.abs(static).max()
    for text, shape, offset in problem.solver.channel.MOMENTS:
        expected = static[:, offset : offset + int(np.prod(shape))]
        assert np.abs(blocks[text].reshape(expected.shape) - expected).max() < 3e-2 * scale
        if name == "phase_retrieval":  # polynomials: both rules are exact
            assert np.abs(blocks[text].reshape(expected.shape) - expected).max() < 1e3 * size * scale


# Where it ends


def test_flow_ends_at_the_minimum_of_the_population_risk():
    """The saddle point at large alpha, with a ridge alpha times as strong, up to corrections of order 1 / alpha."""
    point = sf.stationary(ridge(**{"lambda": 0.2}), "flow", "random")
    off = []
    for alpha in (1e3, 4e3):
        static = sf.solve(ridge(alpha=alpha, **{"lambda": 0.2 * alpha}), "semantic", accuracy=1e-9)
        off.append([float(getattr(point.overlaps, n)[0].ravel()[0] - getattr(static.overlaps, n)[0].ravel()[0])
                    for n in ("q", "theta")])  # fmt: skip
    (q, theta), (q_later, theta_later) = off
    assert abs(q) < 1e-3 and abs(q_later) < abs(q) and abs(theta_later) < 1e-4
    assert theta / theta_later == pytest.approx(4, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("branch", ["semantic", "positional"])
def test_branches_end_at_fixed_points_of_gradient_flow(branch):
    """Of attention: the static solution at alpha with a ridge alpha times as strong, as alpha goes to infinity."""
    point = sf.stationary(attention(), "flow", branch)
    assert point.branch == branch
    off = []
    for alpha in (500.0, 2000.0):
        static = sf.solve(attention(alpha=alpha, **{"lambda": 0.002 * alpha}), branch, accuracy=1e-6)
        assert static.branch == branch
        gaps = [getattr(static.overlaps, name) - getattr(point.overlaps, name) for name in ("q", "m", "theta")]
        off.append(max(float(np.abs(gap).max()) for gap in gaps))
    assert off[0] / off[1] == pytest.approx(4, rel=0.05) and off[1] < 0.01


@pytest.mark.slow
def test_flow_only_goes_down():
    found = sf.dynamics(attention(), "flow", 60, START, accuracy=1e-4)
    ridge_part = 0.5 * 0.002 * found.path[:, 0]
    assert np.all(np.diff(found.loss + ridge_part) < 1e-9)


@pytest.mark.slow
def test_semantic_is_stable_and_positional_is_left_at_the_rate_of_the_base_case():
    semantic = sf.stationary(attention(), 4.0, "semantic")
    assert semantic.branch == "semantic" and semantic.stable
    reached = sf.dynamics(attention(), 4.0, 200, START).reached
    assert reached.stable and reached.branch == "semantic"
    np.testing.assert_allclose(reached.overlaps.theta, semantic.overlaps.theta, rtol=1e-4)


@pytest.mark.slow
def test_a_plateau_is_next_to_an_unstable_point():
    """From overlaps far below those at the end, the uninformed state is left at the rate of its linear equations."""
    problem = attention()
    found = sf.dynamics(problem, 4.0, 300, {"q": 0.05, "theta": 1e-5})
    (plateau,) = found.plateaus
    assert plateau.point.branch == "uninformed" and plateau.point.unstable >= 1
    growth = next(g.rate for g in sf.escape(problem, 4.0).growths if "theta" in g.words)
    small = (found.times > 60) & (np.abs(found.path[:, 3]) < 0.01)
    slope = np.polyfit(found.times[small], np.log(found.path[small, 3]), 1)[0]
    assert slope == pytest.approx(growth, rel=0.02)


# Leaving no overlap


def test_a_target_with_a_linear_part_has_nothing_to_escape_from():
    with pytest.raises(sf.NotConvergedError, match="information exponent 1"):
        sf.escape(ridge(), 0.1)


@pytest.mark.slow
def test_escape_takes_half_the_logarithm_of_d_over_the_rate():
    problem = attention()
    small, large = (sf.escape(problem, 4.0, d=d, seeds=12, time=400) for d in (10**4, 10**8))
    assert small.information_exponent == 2 and np.isfinite(large.times).all()
    expected = np.log(1e4) / 2
    shortest, longest = expected / max(g.rate for g in small.growths), expected / 0.05
    assert 0.9 * shortest < np.median(large.times) - np.median(small.times) < 1.3 * longest


def test_draws_have_the_law_of_a_random_start():
    problem = regression()
    d = 400
    every = np.array([draw_moments_of_gaussian_weights(problem, d, seed).pack() for seed in range(600)])
    moments = Moments.unpack(every.mean(axis=0), problem)
    np.testing.assert_allclose(moments.S.ravel(), 1, atol=0.02)
    shares = problem.law.weights * d
    np.testing.assert_allclose(every[:, -3:].var(axis=0) * shares, 1, rtol=0.25)  # P, of count rows
    np.testing.assert_allclose(every[:, :3].var(axis=0) * shares, 2, rtol=0.25)


# Schedules and batches


@pytest.mark.slow
def test_a_rate_that_falls_is_followed():
    """dP/dt = -eta(t) ((gamma + lambda) P - gamma): of regression only the integral of the rate counts for P."""
    problem = ridge(**{"lambda": 0.1})
    for text, total in (("0.5,power=0.5,scale=2", 0.5 * 4 * (np.sqrt(1 + 6 / 2) - 1)), ("0.5,warmup=4", 0.5 * (2 + 2))):
        found = sf.dynamics(problem, text, [0.0, 6.0], "random", accuracy=1e-6)
        limit = 1 / 1.1
        assert found.path[-1, -1] == pytest.approx(limit * (1 - np.exp(-1.1 * total)), abs=1e-6)


@pytest.mark.parametrize("text", ["4", "4,power=0.5,scale=10", "4,warmup=5", "flow"])
def test_schedules_are_said_as_they_are_read(text):
    assert parse_learning_rate(text).command_line_text == text and parse_learning_rate(
        parse_learning_rate(text).command_line_text
    ) == parse_learning_rate(text)


@pytest.mark.parametrize("text", ["1", "8", "0.5d"])
def test_batches_are_said_as_they_are_read(text):
    assert parse_batch_size(text).command_line_text == text


# Simulations


def z_scores(problem, rate, times, start, d, seeds, batch="1"):
    """Of q, m and theta of one-pass descent at d against theory, in standard errors."""
    theory = sf.dynamics(problem, rate, times, start, batch=batch, accuracy=1e-5)
    schedule, size = parse_learning_rate(rate), parse_batch_size(batch)
    begin = moments_of_start(problem, start)[1]
    share = size.share or size.sentences / 1.0
    instances = [Instance(problem.with_(alpha=times[-1] * share + 1), d, seed) for seed in range(seeds)]
    runs = np.array(
        [
            run_one_pass_sgd(i, draw_weights_with_moments(i, begin), schedule, size, np.array(times)).path
            for i in instances
        ]
    )
    expected = np.array([o.pack() for o in theory.overlaps])
    known = np.isfinite(runs).all(axis=(0, 1)) & (runs.std(axis=0)[-1] > 1e-12)
    error = runs.std(axis=0, ddof=1)[1:, known] / np.sqrt(seeds)
    return (runs.mean(axis=0) - expected)[1:, known] / error


def test_regression_at_finite_d_is_the_theory():
    z = z_scores(ridge(), 0.5, [0, 1, 3], "random", 200, 16)
    assert np.sqrt(np.mean(z**2)) < 2 and np.abs(z).max() < 4


def test_a_batch_of_order_d_at_finite_d_is_the_map():
    z = z_scores(ridge(), 0.4, [0, 1, 4], {"q": 0.5, "theta": 0.3}, 200, 24, "0.5d")
    assert np.sqrt(np.mean(z**2)) < 2 and np.abs(z).max() < 4


@pytest.mark.slow
def test_attention_at_finite_d_is_the_theory():
    z = z_scores(attention(alpha=1.0), 4.0, [0, 2, 5], START, 200, 16)
    assert np.sqrt(np.mean(z**2)) < 2 and np.abs(z).max() < 4


@pytest.mark.parametrize(
    ("name", "rate"),
    [("hinge", 0.7), *(pytest.param(*each, marks=pytest.mark.slow) for each in (
        ("mixture_classification", 0.5), ("quantile_regression", 0.4), ("logistic_regression", 1.0)))],
)  # fmt: skip
def test_labels_clusters_and_slopes_that_jump_are_averaged_over(name, rate):
    """Averages hold no derivative of the slope; rules are split where it jumps."""
    z = z_scores(sf.problem(name), rate, [0, 1, 3], "random", 200, 16)
    assert np.sqrt(np.mean(z**2)) < 2 and np.abs(z).max() < 4


EXAMPLES = {
    # A temperature that is trained, and a loss that holds the overlaps of its tokens.
    "trained_temperature": {"q": 0.5, "theta": 0.2}, "autoencoder": "random",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_numbers_and_overlaps_in_the_loss_move_along(name):
    path = Path(__file__).parents[2] / "examples" / f"{name}.py"
    z = z_scores(sf.problem(path), 0.5, [0, 1, 2], EXAMPLES[name], 200, 16)
    assert np.sqrt(np.mean(z**2)) < 2 and np.abs(z).max() < 4.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "values", "rate", "start", "seeds"),
    [
        ("dot_product_attention", {"student_rank": 2, "lambda": 0.002}, 3.0, "mixed", 16),
        ("untied_attention", {}, 2.0, "semantic", 16),
        ("attention_on_mixture", {}, 1.0, "mixed", 64),
        ("phase_retrieval", {}, 0.05, {"q": 0.5, "theta": 0.3}, 16),
        ("committee_machine", {}, 1.0, {"q": [[[0.5, 0], [0, 0.4]]], "theta": [[[0.2, 0], [0, 0.1]]]}, 16),
    ],
)
def test_finite_d_is_the_theory(name, values, rate, start, seeds):
    z = z_scores(sf.problem(name, alpha=1.0, **values), rate, [0, 1, 2, 3, 4], start, 500, seeds)
    assert np.sqrt(np.mean(z**2)) < 1.8 and np.abs(z).max() < 4


@cache
def passes():
    return sf.simulate(ridge(alpha=2.0), d=60, seeds=3, start="random", method="sgd", rate=0.3, threads=1)


def test_simulate_makes_one_pass():
    found = passes()
    assert [run.iterations for run in found.runs] == [120, 120, 120] and found.status == "converged"
    assert found.runs[0].path.shape[0] == 101 and np.isnan(found.runs[0].gradient)
    again = sf.simulate(ridge(alpha=2.0), d=60, seeds=2, start="random", method="sgd", rate="0.3", threads=1)
    np.testing.assert_array_equal(again.runs[1].path, found.runs[1].path)


def test_passes_are_kept_in_time_and_drawn_next_to_the_dynamics(tmp_path):
    found = passes()
    found.save(tmp_path / "passes.nc")
    for one, other in zip(load_simulation_runs(tmp_path / "passes.nc", found.plan), found.runs, strict=True):
        np.testing.assert_array_equal(one.path, other.path)
    theory = sf.dynamics(ridge(alpha=2.0), 0.3, found.plan.recording_times, accuracy=1e-3)
    (axes,) = plot_one_pass_runs(add_dynamics_at_infinite_d(found, theory)).axes
    drawn = [line for line in axes.lines if len(line.get_xdata()) == 101 and line.get_linewidth() > 1]
    expected = [[getattr(o, name).ravel()[0] for o in theory.overlaps] for name in ("theta", "q")]
    assert [list(line.get_ydata()) for line in drawn] == expected
    (alone,) = plot_one_pass_runs(load_netcdf_dataset(tmp_path / "passes.nc")).axes
    assert len([line for line in alone.lines if line.get_linewidth() == 0.5]) == 2 * 3


# What is shown


def test_a_result_is_a_table_a_dataset_and_a_picture(tmp_path):
    found = sf.dynamics(ridge(), 0.5, np.linspace(0, 10, 21), "random", events={"theta_1": 0.5})
    text = found.table()
    assert "theta_1 passes 0.5 at t = 1.45" in text and "stable stationary point" in text
    frame = found.to_pandas()
    assert list(frame.columns[:2]) == ["time", "q_1"] and len(frame) == 21
    data = found.to_xarray()
    assert data["theta"].dims == ("time", "token", "cluster", "column", "teacher")
    axes = found.plot(log=False).axes
    assert len(axes) > 1 and all(each.get_yscale() == "linear" and each.lines for each in axes)
    found.save(tmp_path / "descent.nc")
    assert (tmp_path / "descent.nc").stat().st_size > 1000


def test_how_jumps_are_averaged_and_what_does_not_move_is_said():
    jumps = sf.dynamics(sf.problem("hinge"), 0.7, [0, 0.2], accuracy=1e-2).table()
    assert "averages are taken panel by panel between the planes" in jumps and "stay so" not in jumps
    still = sf.dynamics(attention(), 4.0, [0, 0.2], accuracy=1e-2).table()
    assert "overlaps that vanish at the start stay so: --d D draws" in still and "not smooth" not in still


def test_an_event_is_timed():
    """theta of regression is (1 - exp(-eta (1 + lambda) t)) / (1 + lambda)."""
    found = sf.dynamics(ridge(**{"lambda": 0.1}), 0.5, [0, 2], "random", events={"theta_1": 0.5}, accuracy=1e-7)
    (event,) = found.events
    exact = -np.log(1 - 0.55) / 0.55
    assert abs(event.time - exact) < 1e-6 and abs(event.time - exact) <= event.error + 1e-12


def test_descent_goes_on_from_where_it_ended():
    first = sf.dynamics(ridge(), 0.5, [0, 2.0], "random", accuracy=1e-7)
    second = sf.dynamics(ridge(), 0.5, [0, 3.0], first, accuracy=1e-7)
    whole = sf.dynamics(ridge(), 0.5, [0, 5.0], "random", accuracy=1e-7)
    np.testing.assert_allclose(second.path[-1], whole.path[-1], rtol=1e-6)


# What is refused


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((-1.0, 5), "rate = -1.0 is out of range; allowed is"),
        (("fast", 5), "a positive number"),
        ((0.1, [3, 2]), "does not increase"),
        ((0.1, -2), "time = -2.0 is out of range"),
        ((0.1, 5, "nowhere"), "unknown start 'nowhere'"),
        ((0.1, 5, {"q": 0.1, "theta": 0.9}), "q is smaller than m and theta require"),
        ((0.1, 5, {"m_1": 0.9}), "no weights have these m and theta"),
        ((0.1, 5, {"Q": 0.9}), "unknown overlap 'Q' of the start.*known are q, m, theta"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence):
    with pytest.raises(sf.InputError, match=sentence):
        sf.dynamics(ridge(), *arguments)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch": 0}, "a whole number of samples, at least 1"),
        ({"batch": "0d"}, "the fraction of d must be positive"),
        ({"method": "Euler"}, "unknown method 'Euler'"),
        ({"events": {"theta_9": 0.1}}, "unknown overlap 'theta_9' of events"),
        ({"accuracy": 0}, "accuracy = 0 is out of range"),
    ],
)
def test_a_bad_option_is_one_sentence(options, sentence):
    with pytest.raises(sf.InputError, match=sentence):
        sf.dynamics(ridge(), 0.1, 5, **options)


@pytest.mark.parametrize("name", ["lasso_regression", "perceptron"])
def test_models_without_closed_equations_of_motion_are_refused(name):
    with pytest.raises(sf.InputError, match=r"closed equations for a ridge|is discontinuous"):
        sf.dynamics(sf.problem(name), 0.1, 5)


ALIKE = {"q": [[[0.4, 0.35], [0.35, 0.4]]], "theta": [[[0.42, 0.41], [0.41, 0.42]]]}


def test_newtons_method_stays_with_moments_that_rows_can_have():
    """Where there are no means m is zero; equations followed to m = -9, where erf is flat, are solved by anything."""
    problem = sf.problem("committee_machine", Delta=0.0, **{"lambda": 0.0})
    flow = EquationsOfMotion(problem, gradient_average_rules(problem)[0], np.inf)
    found = Moments.unpack(
        find_stationary_moments_by_newton(flow, moments_of_start(problem, ALIKE)[1].pack(), 1.0), problem
    )
    assert np.all(found.T == 0)
    np.testing.assert_allclose(found.S, 1 / 3, atol=2e-4)
    np.testing.assert_allclose(found.P, 1 / np.sqrt(6), atol=2e-4)


def test_rows_that_run_off_reach_no_stationary_point():
    problem = sf.problem("committee_machine", Delta=0.0, **{"lambda": 0.0})
    flow = EquationsOfMotion(problem, gradient_average_rules(problem)[0], np.inf)
    start = moments_of_start(problem, ALIKE | {"q": [[[0.5, 0.34], [0.34, 0.5]]]})[1].pack()
    assert find_stationary_moments(flow, start, 1.0) is None


@pytest.mark.slow
def test_the_plateau_of_two_committees_is_that_of_saad_and_solla():
    """Phys. Rev. E 52 (1995) 4225, K = M = 2, small rate: on the plateau all units are alike, Q = 1 / (2K - 1),
    R = 1 / sqrt(K (2K - 1)), and the error is K/pi (pi/6 - K asin(1 / (2K))), over K by how outputs are scaled here.
    Units specialise exponentially: of a tenth of the asymmetry a tenth is left as long as it is small, so that the
    plateau is longer by log(10) over the rate."""
    problem = sf.problem("committee_machine", Delta=0.0, **{"lambda": 0.0})
    apart, lengths = [], []
    for asymmetry in (1e-3, 1e-4):
        theta = [[[0.2 + asymmetry, 0.2], [0.2, 0.2 + asymmetry]]]
        found = sf.dynamics(problem, "flow", np.linspace(0, 500, 251), {"q": 0.5, "theta": theta}, accuracy=1e-3)
        assert found.success and len(found.plateaus) == 1
        apart.append(np.array([o.theta[0, 0, 0] - o.theta[0, 0, 1] for o in found.overlaps]))
        plateau = 1 / np.pi * (np.pi / 6 - 2 * np.arcsin(0.25))
        lengths.append(np.interp(-plateau / 2, -found.loss[20:], found.times[20:]))
        assert found.loss[-1] < 1e-3 * plateau
    middle = found.times.searchsorted(170.0)
    assert found.loss[middle] == pytest.approx(plateau, rel=0.01)
    # What two units differ by where they know nothing of it, Q - C, falls slowly; their mean is there.
    assert found.overlaps[middle].q[0].mean() == pytest.approx(1 / 3, abs=0.012)
    assert found.overlaps[middle].theta[0].mean() == pytest.approx(1 / np.sqrt(6), abs=0.012)
    small = (apart[0] < 0.01) & (found.times < 200)
    np.testing.assert_allclose(apart[0][small], 10 * apart[1][small], rtol=0.02)
    growing = (apart[1] > 1e-3) & (apart[1] < 3e-2) & (found.times < lengths[1])
    rate = np.polyfit(found.times[growing], np.log(apart[1][growing]), 1)[0]
    assert lengths[1] - lengths[0] == pytest.approx(np.log(10) / rate, rel=0.1)
    # The unstable point itself, at the edge of the domain: units that are alike know nothing next to the teacher.
    point = found.plateaus[0].point
    np.testing.assert_allclose(point.overlaps.q[0], 1 / 3, atol=2e-6)
    np.testing.assert_allclose(point.overlaps.theta[0], 1 / np.sqrt(6), atol=2e-6)
    # As long as Q - C has not fallen, growth is slower.
    assert point.unstable == 1 and rate < point.eigenvalues[0].real < 1.2 * rate
    alone = sf.stationary(problem, "flow", ALIKE)
    assert alone.unstable == 1 and alone.eigenvalues[0].real == pytest.approx(point.eigenvalues[0].real, rel=1e-3)
