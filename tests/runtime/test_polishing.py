"""Samples in the wrong well of their own Moreau objective: who they are, and where moving them leads."""

from dataclasses import replace

import numpy as np
import pytest

from saddleforge.base.errors import InputError
from saddleforge.extensions.simulation import response
from saddleforge.extensions.simulation.instance import Instance
from saddleforge.extensions.simulation.method import DescentSettings
from saddleforge.extensions.simulation.methods.fista import proximal_gradient
from saddleforge.extensions.simulation.methods.lbfgs import lbfgs
from saddleforge.extensions.simulation.plan import SimulationPlan, initial_weights
from saddleforge.extensions.simulation.polishing import find_secondary_minima, move_samples_to_secondary_minima
from saddleforge.extensions.simulation.response import LinearResponse
from saddleforge.extensions.simulation.risk import Risk, Weights
from saddleforge.extensions.simulation.run import train_one_seed, validate_simulation_plan
from saddleforge.extensions.simulation.simulation import Simulation, simulate
from saddleforge.problems.problem import problem
from saddleforge.report.simulation_tables import load_simulation_runs

TIGHT = DescentSettings(1e-9)


def minimum_of(at, d, seed, start):
    """The risk, and the minimum that L-BFGS finds."""
    plan = validate_simulation_plan(SimulationPlan(at, d, start, "auto"))
    instance = Instance(at, d, seed)
    risk = Risk(instance)
    return risk, lbfgs(risk, initial_weights(plan, instance)[0], TIGHT)


def run_descent(at, instance):
    """The minimum that FISTA finds from noise."""
    start = Weights(np.random.default_rng(1).standard_normal((instance.d, at.student_rank)), np.zeros(0))
    return proximal_gradient(Risk(instance), start, TIGHT)


def test_the_cavity_field_is_what_a_least_squares_estimator_says_of_a_sample_it_has_not_seen():
    at = problem("ridge_regression", alpha=2.0, spectrum=[[0.3, 4.0], [0.7, 0.5]])
    risk, found = minimum_of(at, 60, 1, "semantic")
    seen = LinearResponse(risk, found)
    omega = seen.fields[:, 0] + seen.leave_one_out_variances()[:, 0, 0] * seen.slopes[:, 0]
    tokens = np.concatenate([block for _, block in risk.instance.iterate_blocks_of_samples()])[:, 0] / np.sqrt(60)
    labels = seen.fields[:, 0] - seen.slopes[:, 0]
    for left_out in (0, 7, 50):
        others = np.arange(len(tokens)) != left_out
        normal = tokens[others].T @ tokens[others] + at.strengths[0] * np.eye(60)
        estimate = np.linalg.solve(normal, tokens[others].T @ labels[others])
        assert omega[left_out] == pytest.approx(tokens[left_out] @ estimate, abs=1e-7)


def test_the_response_is_the_inverse_of_the_slope_of_the_gradient():
    risk, found = minimum_of(problem("dot_product_attention", alpha=2.0), 100, 0, "semantic")
    seen = LinearResponse(risk, found)
    push = np.random.default_rng(2).standard_normal(found.weights.W.shape)
    step = 1e-6 * seen.apply_inverse_hessian(push, seen.curvatures)
    ahead, behind = (risk(replace(found.weights, W=found.weights.W + sign * step)).gradient.W for sign in (1, -1))
    assert (ahead - behind) / 2e-6 == pytest.approx(push, abs=1e-5)


def test_without_matrices_the_response_is_the_same_and_the_variance_that_of_the_average_sample(monkeypatch):
    risk, found = minimum_of(problem("dot_product_attention", alpha=2.0), 300, 0, "semantic")
    seen = LinearResponse(risk, found)
    monkeypatch.setattr(response, "DIRECT", 0)
    free = LinearResponse(risk, found)
    assert free.leave_one_out_variances().mean(axis=0) == pytest.approx(
        seen.leave_one_out_variances().mean(axis=0), rel=0.05, abs=0.2
    )
    right = np.random.default_rng(2).standard_normal(found.weights.W.shape)
    one, other = (answer.apply_inverse_hessian(right, answer.curvatures) for answer in (seen, free))
    assert one == pytest.approx(other, abs=1e-4 * np.abs(one).max())


def test_weights_at_a_corner_of_the_penalty_have_no_linear_response():
    at = problem("lasso_regression", alpha=1.2)
    instance = Instance(at, 100, seed=0)
    found = run_descent(at, instance)
    seen = LinearResponse(Risk(instance), found)
    answer = seen.apply_inverse_hessian(np.ones((100, 1)), seen.curvatures)
    zero = found.weights.W == 0
    assert np.array_equal(answer[zero], np.zeros(zero.sum()))
    tokens = np.concatenate([block for _, block in instance.iterate_blocks_of_samples()])[:, 0][:, ~zero[:, 0]] / 10
    assert answer[~zero] == pytest.approx(np.linalg.solve(tokens.T @ tokens, np.ones(tokens.shape[1])), rel=1e-5)


@pytest.mark.parametrize("name", ["ridge_regression", "logistic_regression", "elastic_net_regression", "hinge"])
def test_where_the_loss_is_convex_no_sample_is_ever_moved(name):
    at = problem(name, alpha=1.5)
    plain = train_one_seed(validate_simulation_plan(SimulationPlan(at, 100, "semantic", "auto")), 0)
    same = train_one_seed(
        validate_simulation_plan(SimulationPlan(at, 100, "semantic", "auto", polish="minima", restarts=2)), 0
    )
    assert same.polish.wrong_before == same.polish.wrong_after == same.polish.gained == same.polish.descents == 0
    assert np.array_equal(same.overlaps.pack(), plain.overlaps.pack(), equal_nan=True)
    assert replace(same, overlaps=plain.overlaps, polish=None) == replace(plain, overlaps=plain.overlaps)


def test_the_risk_falls_by_what_the_objective_of_a_moved_sample_gains():
    risk, found = minimum_of(problem("dot_product_attention", alpha=1.0), 400, 5, "positional")
    seen = LinearResponse(risk, found)
    wells = find_secondary_minima(seen)
    assert wells.gains[0] > 0 > wells.gains[1]
    below = lbfgs(risk, move_samples_to_secondary_minima(seen, found.weights, wells, np.array([0])), TIGHT)
    gained = found.value.training_loss - below.value.training_loss
    assert gained == pytest.approx(wells.gains[0] / 400, rel=0.1)


def test_positional_attention_is_polished_toward_theory():
    """Theory (one step of breaking): m = 0.2486, q = 0.04333. L-BFGS ends above the one, and below the other."""
    at = problem("dot_product_attention", alpha=1.0)
    known = {"d": 250, "seeds": range(2, 12), "start": "positional", "threads": 1}
    plain, better = simulate(at, **known), simulate(at, polish="minima", **known)
    assert all(b.polish.gained >= 0 for b in better.runs)
    assert [b.training_loss + b.polish.gained for b in better.runs] == pytest.approx(
        [p.training_loss for p in plain.runs], rel=1e-9
    )
    moved_seeds = [b.polish.gained > 0 for b in better.runs]
    assert sum(moved_seeds) >= 5
    assert better.polish["wrong_before"].mean > 5 * better.polish["wrong_after"].mean
    m, q = (
        np.array([(abs(r.overlaps.m[0, 0]), r.overlaps.q[0, 0, 0]) for r in kept.runs])[moved_seeds].mean(axis=0)
        for kept in (better, plain)
    )
    assert m[0] < q[0] and m[1] > q[1]


@pytest.mark.slow
def test_signs_that_a_descent_gets_wrong_are_found_and_changed():
    """Amplitudes: below 1.8 samples a weight descents are caught, most of all by signs of single samples."""
    at = problem("amplitude_retrieval", alpha=1.8)
    found = [
        train_one_seed(
            validate_simulation_plan(SimulationPlan(at, 200, "random", "auto", polish="minima")), seed
        ).polish
        for seed in range(3)
    ]
    assert min(one.wrong_before for one in found) > 0.05 > 0.03 > max(one.wrong_after for one in found)
    assert min(one.gained for one in found) > 0.05
    # From a start that knows the teacher a descent is caught just above the minimum.
    from_teacher = train_one_seed(
        validate_simulation_plan(
            SimulationPlan(problem("amplitude_retrieval", alpha=3.0), 200, "semantic", "lbfgs", polish="minima")
        ),
        0,
    )
    assert from_teacher.polish.wrong_before > 0 == from_teacher.polish.wrong_after
    assert 0 < from_teacher.polish.gained < 1e-3 * from_teacher.training_loss


def test_restarts_find_lower_minima_of_the_same_kind_and_are_the_same_each_time():
    at = problem("dot_product_attention", alpha=1.0)
    plan = validate_simulation_plan(SimulationPlan(at, 100, "positional", "auto", polish="minima", restarts=3))
    once, again = train_one_seed(plan, 2), train_one_seed(plan, 2)
    none = train_one_seed(replace(plan, restarts=0), 2)
    assert once.polish == again.polish and once.training_loss == again.training_loss
    assert once.training_loss <= none.training_loss


def test_results_of_polishing_are_saved_with_the_runs(tmp_path):
    at = problem("dot_product_attention", alpha=1.0)
    done = simulate(at, d=100, seeds=2, start="positional", polish="minima", threads=1)
    done.save(tmp_path / "runs.nc")
    read = Simulation(done.plan, tuple(load_simulation_runs(tmp_path / "runs.nc", done.plan)))
    assert [one.polish for one in read.runs] == [one.polish for one in done.runs]
    assert "in secondary minima before" in done.table()
    assert done.to_json()["polished"]["gained"] == done.polish["gained"].mean
    with pytest.raises(InputError, match="its plan is"):
        load_simulation_runs(tmp_path / "runs.nc", replace(done.plan, polish=None))


@pytest.mark.parametrize(
    "name, options, words",
    [
        ("dot_product_attention", {"polish": "sand"}, "unknown value 'sand' of polish; known are minima"),
        ("dot_product_attention", {"polish": "minima", "method": "gamp"}, "gamp does not end at a minimum"),
        ("dot_product_attention", {"restarts": 2}, "has no effect without polishing"),
        ("dot_product_attention", {"polish": "minima", "restarts": -1}, "whole numbers from 0"),
    ],
)
def test_simulations_that_cannot_be_polished_are_refused_with_the_reason(name, options, words):
    with pytest.raises(InputError, match=words):
        simulate(problem(name, alpha=2.0), d=50, seeds=1, **options)
