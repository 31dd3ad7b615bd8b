"""Where solving begins: starts that lie outside the domain, measured overlaps, simulations, files of either."""

import json
from pathlib import Path

import numpy as np
import pytest

import saddleforge as sf
from saddleforge.base.errors import InputError
from saddleforge.integration import GaussHermite, Sobol
from saddleforge.report.starting import load_initial_overlaps
from saddleforge.saddle_point.starts import overlaps_of_start, solve_response_at_fixed_overlaps
from saddleforge.saddle_point.state_map import SaddlePointMap


def regression(**values):
    return sf.problem("ridge_regression", **{"alpha": 2.0, "lambda_": 0.1} | values)


@pytest.mark.parametrize("response", [1e4, 1e2, 1e-4])
def test_a_start_whose_response_holds_no_weights_is_retried_over_it(response):
    """With lambda < 0 the domain asks for V^ > -lambda, V^ = alpha / (1 + V) of the square loss: V small enough."""
    problem = regression(lambda_=-0.1)
    found = sf.solve(problem, sf.Overlaps.measured(q=0.5, theta=0.3, V=response))
    assert found.success
    assert np.allclose(found.overlaps.pack(), sf.solve(problem).overlaps.pack(), rtol=1e-4)


def test_where_no_response_helps_the_matrix_is_named_with_its_number():
    """alpha = 1/2 < 1 cannot hold weights against lambda = -0.1: V^ <= alpha / (1 + V) with V -> infinity."""
    found = sf.solve(regression(alpha=0.5, lambda_=-0.1))
    assert found.status == "left_domain"
    assert "Lambda + G" in found.outside and "not positive" in found.outside
    assert "times the V of the start" in found.advice
    assert "may not exist" not in found.advice and found.advice in str(found)


def two_units(**values):
    return sf.problem("committee_machine", alpha=2.0, **values)


def test_the_direction_in_which_a_matrix_is_not_positive_is_named():
    """Columns with overlap 1.01 and squares 1 have q = -0.01 along their difference."""
    state = sf.Overlaps.measured(q=[[1, 1.01], [1.01, 1]], theta=np.zeros((2, 2)), V=np.eye(2))
    words = SaddlePointMap(two_units(), Sobol(6, 1)).explain_undefined_map(state.pack(), state.sizes)
    assert "q has the eigenvalue -0.01 along (0.71, -0.71)" in words and "token" not in words
    state = sf.Overlaps.measured(q=np.eye(2), theta=np.zeros((2, 2)), V=np.diag([1.0, -0.5]))
    words = SaddlePointMap(two_units(), Sobol(6, 1)).explain_undefined_map(state.pack(), state.sizes)
    assert "V has the eigenvalue -0.5 along (0.00, 1.00)" in words
    state = sf.Overlaps.measured(q=np.eye(2), theta=np.zeros((2, 2)), V=np.eye(2))
    words = SaddlePointMap(two_units(), GaussHermite(6)).explain_undefined_map(state.pack(), state.sizes)
    assert "Lambda + G" in words and "(0.71, -0.71)" in words  # exchanging units is soft, and here lowers the risk


@pytest.mark.slow
def test_columns_that_are_all_the_same_mixture_recover():
    """A start without noise whose columns agree has a singular q; what it leads to is the unspecialised branch."""
    same = sf.Overlaps.measured(q=np.full((2, 2), 0.18), theta=np.full((2, 2), 0.3), V=np.eye(2))
    chosen = {"integrator": "sobol", "points": 10, "accuracy": 0.1}
    found, there = sf.solve(two_units(), same, **chosen), sf.solve(two_units(), "unspecialised", **chosen)
    assert found.success and there.success
    assert np.allclose(found.overlaps.theta, there.overlaps.theta, atol=0.02)


def test_measured_overlaps_take_numbers_matrices_and_contexts():
    one = sf.Overlaps.measured(q=1.0, theta=0.5)
    assert one.sizes == (1, 1, 1, 0) and np.isnan(one.V).all() and one.m == 0
    assert sf.Overlaps.measured(np.ones((2, 1, 1)), np.zeros((2, 1, 3)), np.zeros((2, 1))).sizes == (2, 1, 3, 0)
    for q, theta in ((np.eye(2), 0.5), (np.ones((1, 2, 3)), np.ones((1, 2, 1))), ("one", 0.5)):
        with pytest.raises(InputError, match="do not fit together"):
            sf.Overlaps.measured(q, theta)
    with pytest.raises(InputError, match=r"the problem of sizes \(2, 1, 1, 0\)"):
        sf.solve(sf.problem("dot_product_attention", alpha=1.0), one)
    with pytest.raises(InputError, match="theta contains numbers that are not finite"):
        sf.solve(regression(), sf.Overlaps.measured(q=1.0, theta=np.nan))


def test_the_response_of_measured_weights_solves_its_own_equation():
    """Of ridge regression V = 1 / (lambda + alpha / (1 + V)), whatever q and theta are."""
    problem = regression()
    found = solve_response_at_fixed_overlaps(problem, sf.Overlaps.measured(q=0.7, theta=0.2), Sobol(8, 4)).V.item()
    assert found == pytest.approx(1 / (0.1 + 2 / (1 + found)), rel=5e-3)


def test_a_simulation_is_a_start_and_so_is_its_file(tmp_path: Path):
    problem = regression()
    simulation = sf.simulate(problem, d=60, seeds=3, threads=1)
    theory = sf.solve(problem)
    found = sf.solve(problem, simulation)
    assert found.success and np.allclose(found.overlaps.pack(), theory.overlaps.pack(), rtol=1e-4)
    simulation.save(tmp_path / "runs.nc")
    saved = load_initial_overlaps(tmp_path / "runs.nc", problem)
    assert np.allclose(saved.theta, simulation.overlaps[0].theta) and np.isnan(saved.V).all()
    with pytest.raises(InputError, match=r"runs\.nc: q has shape .* in the table"):
        load_initial_overlaps(tmp_path / "runs.nc", sf.problem("dot_product_attention", alpha=1.0))


def test_the_nearest_point_of_a_curve_is_a_start(tmp_path: Path):
    curve = sf.curve(regression(), alpha=(1, 3, 3))
    curve.save(tmp_path / "curve.nc")
    saved = load_initial_overlaps(tmp_path / "curve.nc", regression(alpha=2.2))
    assert np.array_equal(saved.pack(), curve.solutions[1].overlaps.pack())


def test_files_that_hold_no_start_say_so(tmp_path: Path):
    for text, words in (
        ("{", "not a JSON file"),
        ("[" * 100_000, "not a JSON file"),
        ('{"schema": 1e400}', "has schema inf"),
        (json.dumps({"overlaps": 3}), "contains no `overlaps`"),
    ):
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(InputError, match=words):
            load_initial_overlaps(tmp_path / "a.json", regression())


def test_a_start_that_lies_inside_is_taken_as_it_is():
    problem = regression()
    initial = overlaps_of_start(problem, "semantic")
    assert SaddlePointMap(problem, Sobol(6, 1)).explain_undefined_map(initial.pack(), initial.sizes) == ""


def test_weights_that_nothing_holds_are_named():
    from saddleforge.solving.checks import describe_divergence

    problem = sf.problem("logistic_regression", alpha=1, lambda_=0)  # of fewer samples than weights
    far, near = (sf.Overlaps.measured(q=size, theta=0.1, V=1.0) for size in (5e16, 5e3))
    assert (
        "the weights diverge (q 5e+16)" in describe_divergence(problem, far)
        and describe_divergence(problem, near) == ""
    )
    kept = sf.problem("perceptron", alpha=1)  # of given norm
    assert describe_divergence(kept, far) == ""


def test_weights_that_nothing_holds_are_named_where_solving_ends():
    """Without a ridge samples of fewer than two a weight are separable (Candes, Sur, arXiv 1804.09753)."""
    found = sf.solve(sf.problem("hinge", alpha=1, lambda_=0), accuracy=1e-2)
    assert not found.success and "neither data nor penalty bounds them" in found.advice


def test_a_trained_number_that_nothing_holds_is_named():
    """Of softplus(-beta y X) the risk falls as beta grows and W shrinks, whose ridge alone is paid for."""
    import sympy as sp

    from saddleforge.solving.checks import describe_divergence

    @sf.model(regulariser=sf.Ridge(0.5))
    def unheld(X, Y, *, beta=sf.trained(1)):
        """Logistic loss with a steepness."""
        return sf.softplus(-beta * sp.sign(Y[0]) * X[0])

    problem = sf.problem(unheld, alpha=0.5)
    far, near = (sf.Overlaps.measured(q=0.1, theta=0.1, V=1.0, phi=[value]) for value in (70.0, 2.0))
    assert "beta diverges (70)" in describe_divergence(problem, far) and "it has no ridge" in describe_divergence(
        problem, far
    )
    assert describe_divergence(problem, near) == ""
    shown = sf.solve(problem, "semantic", accuracy=1e-2, time_limit=1e-3)
    assert "(trained, no ridge)" in shown.table()
