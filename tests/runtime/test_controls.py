"""Control variates: they vanish on average, and take off what they explain."""

from dataclasses import replace

import numpy as np
import pytest

from saddleforge.base.errors import InputError
from saddleforge.extensions.simulation.controls import ControlVariates, compute_control_variates
from saddleforge.extensions.simulation.estimate import MeanEstimate
from saddleforge.extensions.simulation.finite_transition import paired_loss_difference
from saddleforge.extensions.simulation.instance import Instance
from saddleforge.extensions.simulation.simulation import simulate
from saddleforge.problems.problem import problem
from saddleforge.report.simulation_tables import load_simulation_runs


@pytest.mark.parametrize(
    "name, start, parameters",
    [
        ("dot_product_attention", "mixed", {"alpha": 1.5}),
        ("logistic_regression", "semantic", {"alpha": 2.0, "spectrum": [[0.3, 4.0], [0.7, 0.5]]}),
        pytest.param("attention_on_mixture", "mixed", {"labels": [0.4, 0.1, 0.1, 0.4]}, marks=pytest.mark.slow),
        pytest.param("value_attention", "semantic", {"alpha": 1.5}, marks=pytest.mark.slow),
        pytest.param("hinge", "semantic", {"alpha": 2.0}, marks=pytest.mark.slow),
    ],
)
def test_their_expectations_are_those_of_the_data(name, start, parameters):
    at = problem(name, **{"alpha": 1.5, **parameters})
    known = [compute_control_variates(Instance(at, 60, seed), start) for seed in range(200)]
    every = np.array([one.deviations for one in known])
    spread = every.std(axis=0, ddof=1)
    varies = spread > 10 * known[0].errors
    assert varies.sum() >= 4
    assert np.abs(every.mean(axis=0)[varies] / spread[varies]).max() * np.sqrt(200) < 4
    assert np.abs(every.mean(axis=0))[~varies] == pytest.approx(0.0, abs=1e-9)


def test_a_teacher_that_fluctuates_has_expectations_of_its_own():
    at = problem("ridge_regression", alpha=1.5)
    every = np.array(
        [compute_control_variates(Instance(at, 60, seed, exact=False), "semantic").deviations for seed in range(200)]
    )
    assert np.abs(every.mean(axis=0) / every.std(axis=0)).max() * np.sqrt(200) < 4


def test_control_variates_remove_the_variance_that_they_explain():
    generator = np.random.default_rng(4)
    known = [ControlVariates(np.append(row, 0.0), np.zeros(4)) for row in generator.standard_normal((2000, 3))]
    noise = generator.standard_normal((2000, 2))
    values = [5.0, 7.0] + 0.1 * noise + np.array([k.deviations[:3] @ [[1, 0], [2, 1], [0, 1]] for k in known])
    found = MeanEstimate.from_values(values, known)
    assert found.mean == pytest.approx([5.0, 7.0], abs=4 * 0.1 / np.sqrt(2000))
    assert found.standard_error == pytest.approx(0.1 / np.sqrt(2000), rel=0.1)
    doubtful = [replace(k, errors=np.array([0.01, 0.0, 0.0, 0.0])) for k in known]
    assert MeanEstimate.from_values(values, doubtful).standard_error[0] == pytest.approx(0.01, rel=0.1)
    few = MeanEstimate.from_values(values[:6], known[:6])
    assert few.mean == pytest.approx(values[:6].mean(axis=0)), "as many controls as seeds explain everything"


def test_errors_with_them_hold_the_truth_as_often_as_they_say():
    generator = np.random.default_rng(9)
    off = []
    for _ in range(400):
        rows = generator.standard_normal((12, 3))
        known = [ControlVariates(row, np.zeros(3)) for row in rows]
        found = MeanEstimate.from_values(rows @ [1.0, 1.0, 0.0] + 0.5 * generator.standard_normal(12), known)
        off.append(found.mean / found.standard_error)
    assert np.std(off) == pytest.approx(np.sqrt(8 / 6), rel=0.15), "Student's law of 12 - 1 - 3 degrees of freedom"


@pytest.mark.slow
def test_standard_errors_of_attention_fall_and_means_agree(tmp_path):
    at = problem("dot_product_attention", alpha=2.0)
    known = {"d": 150, "seeds": 24, "threads": 1}
    plain, better = simulate(at, **known), simulate(at, controls=True, **known)
    for name in ("training_loss", "test_error"):
        one, other = plain.estimate(name), better.estimate(name)
        assert other.standard_error < 0.6 * one.standard_error
        assert abs(other.mean - one.mean) < 4 * one.standard_error
    one, other = (simulation.overlaps[1].q[0, 0, 0] for simulation in (plain, better))
    assert other < 0.5 * one
    better.save(tmp_path / "runs.nc")
    again = replace(better, runs=tuple(load_simulation_runs(tmp_path / "runs.nc", better.plan)))
    assert again.estimate("training_loss") == better.estimate("training_loss")
    assert "control variates" in better.table() and better.to_json()["controls"] is True


@pytest.mark.slow
def test_differences_of_two_branches_are_taken_with_the_controls_of_both():
    at = problem("dot_product_attention", alpha=1.3)
    starts = "semantic", "positional"
    sides = [simulate(at, d=80, seeds=28, start=start, controls=True, threads=1) for start in starts]
    bare = [replace(side, runs=tuple(replace(run, controls=None) for run in side.runs)) for side in sides]
    with_them, without = (paired_loss_difference(*pair, starts) for pair in (sides, bare))
    assert with_them.seeds == without.seeds and np.array_equal(with_them.values, without.values)
    assert with_them.standard_error < 0.8 * without.standard_error
    assert with_them.mean == pytest.approx(with_them.estimate.values.mean())
    assert without.estimate.values is without.values


def test_they_are_of_a_named_start():
    with pytest.raises(InputError, match="control variates need a named start, not a random one: give one of "):
        simulate(problem("ridge_regression", alpha=2.0), d=50, seeds=1, start="random", controls=True)
