"""Where a start leads: to its own branch, to another one, or to W = 0, and that it is said."""

import re
from dataclasses import replace

import numpy as np
import pytest
import sympy as sp

import saddleforge as sf
from saddleforge.base.errors import NotConvergedError
from saddleforge.branches.branch import Branch
from saddleforge.problems.overlaps import Overlaps
from saddleforge.saddle_point.iteration import Status
from saddleforge.saddle_point.starts import overlaps_of_start
from saddleforge.solving.approach import APPROACH_RULE
from saddleforge.solving.checks import describe_unbounded_growth
from saddleforge.solving.retrying import RetryOptions, _easier_problems
from saddleforge.solving.saddle_escape import descend_from_saddle, unstable_direction
from saddleforge.solving.solution import has_lost_overlap_of_start
from saddleforge.solving.solve import solve_without_branch_check
from saddleforge.solving.trivial import find_trivial_solution


def attention(alpha: float, **parameters: float) -> sf.Problem:
    return sf.problem("dot_product_attention", alpha=alpha, **parameters)


@pytest.fixture(scope="module")
def lost() -> sf.Solution:
    """The semantic branch of the base case ends at alpha = 0.72; below, its start leads to the uninformed branch."""
    return sf.solve(attention(0.5), "semantic", accuracy=1e-2)


def test_a_start_that_loses_its_overlap_has_left_its_basin(lost):
    assert (lost.branch, lost.status, lost.success) == ("uninformed", Status.LEFT_BASIN, False)
    assert np.abs(lost.overlaps.theta).max() < 1e-6
    for hint in ("larger alpha", "--from", "follow", "curve"):
        assert hint in lost.status.advice


def test_the_advice_holds_where_the_branch_of_the_start_is_lost(lost):
    """Followed back from more samples; near alpha = 0.72 it merges with the uninformed one."""
    found = re.search(r"followed from alpha = 2, .* is lost between alpha = (\S+) and alpha = (\S+);", lost.advice)
    high, low = (float(number) for number in found.groups())
    assert low < 0.72 < high + 0.005 and high - low < 0.1


def test_a_solution_that_grows_away_under_iteration_is_a_saddle(lost):
    """The uninformed branch of attention toward the positional one; a convex problem has none."""
    direction = Overlaps.unpack(unstable_direction(lost), lost.overlaps.sizes)
    assert np.abs(direction.m).max() > 0.5 * np.sqrt(lost.overlaps.q.max()) and np.abs(direction.theta).max() < 1e-6
    ridge = sf.solve(sf.problem("ridge_regression", alpha=2.0))
    assert unstable_direction(ridge) is None and descend_from_saddle(solve_without_branch_check, ridge) == []


def test_a_problem_is_made_easier_by_samples_then_less_noise_then_a_stronger_ridge():
    problem = sf.problem("ridge_regression", alpha=2.0, Delta=0.5, lambda_=0.1)
    ways = list(_easier_problems(problem, RetryOptions()))
    assert [(way.name, way.describe_easier_parameter_value(4.0)) for way in ways] == [
        ("alpha", "alpha = 8"),
        ("Delta", "Delta = 0.125"),
        ("lambda_", "lambda = 0.4"),
    ]
    assert (
        all(way.problem_made_easier(1.0) is problem for way in ways)
        and ways[1].problem_made_easier(4.0).parameters["Delta"] == 0.125
    )
    norms = [way.name for way in _easier_problems(sf.problem("perceptron", alpha=1.0), RetryOptions())]
    assert norms == ["alpha"]


def test_its_numbers_are_those_of_a_solution(lost):
    """Which the uninformed start reaches, too, and which has converged there."""
    own = sf.solve(attention(0.5), "uninformed", accuracy=1e-2)
    assert own.status is Status.CONVERGED
    assert own.training_loss == pytest.approx(
        lost.training_loss, abs=own.training_loss_error + lost.training_loss_error
    )
    assert lost.residual < 1e-8 and np.isfinite(lost.errors).all()


@pytest.mark.slow
def test_overlaps_and_solutions_to_start_from_are_held_to_what_they_hold(lost):
    overlaps = overlaps_of_start(lost.problem, "semantic")
    assert sf.solve(lost.problem, overlaps, accuracy=1e-2).status is Status.LEFT_BASIN
    again = sf.solve(lost.problem, lost, accuracy=1e-2)
    assert again.status is Status.CONVERGED  # it holds nothing, and lost nothing


def test_a_start_promises_only_what_it_holds_in_the_problem(lost):
    """Encodings of length zero: a start along them holds no m, and the branch without it is its own."""
    problem = attention(0.5, encodings=((0.0, 0.0), (0.0, 0.0)))
    found = solve_without_branch_check(problem, "uninformed", accuracy=1e-2)
    assert not has_lost_overlap_of_start(problem, "positional", found)
    assert has_lost_overlap_of_start(problem, "mixed", found)
    assert has_lost_overlap_of_start(problem, "semantic", found)


def test_a_mixed_state_that_loses_one_of_two_overlaps_has_lost_it():
    problem = attention(2.0)
    semantic = solve_without_branch_check(problem, "semantic", accuracy=1e-2)
    assert semantic.branch == "semantic"
    assert has_lost_overlap_of_start(problem, "mixed", semantic)
    assert not has_lost_overlap_of_start(problem, "uninformed", semantic)


@pytest.mark.slow
def test_all_branches_are_solutions_whatever_start_they_come_from():
    found = sf.solutions(attention(0.5), accuracy=1e-2)
    assert {s.status for s in found} == {Status.CONVERGED}
    assert {s.branch: s.start for s in found}["uninformed"] == "uninformed"
    assert len({s.branch for s in found}) == len(found)


@pytest.mark.slow
def test_a_branch_that_loses_its_overlap_is_not_there(lost):
    assert Branch(lost.problem, "alpha", "semantic", accuracy=1e-2).solution_at_parameter(0.5) is None
    with pytest.raises(NotConvergedError, match=r"it leads to the uninformed branch.*converged to another branch"):
        sf.follow(lost.problem, start="semantic", between=(0.5, 0.4), accuracy=1e-2)


@pytest.mark.slow
def test_a_start_with_a_name_of_its_own_keeps_what_it_holds(lost, monkeypatch):
    """Not the first branch that it happens to reach."""
    starts = lost.problem.solver.model.STARTS
    monkeypatch.setitem(starts, "taught", starts["semantic"])
    assert Branch(lost.problem, "alpha", "taught", accuracy=1e-2).solution_at_parameter(0.5) is None
    assert Branch(lost.problem, "alpha", "taught", accuracy=1e-2).solution_at_parameter(2.0).branch == "semantic"


# W = 0


def test_a_strong_ridge_leaves_attention_without_weights():
    """S(X) is even: at W = 0 the field has no mean, and q shrinks where lambda outweighs the data."""
    solution = sf.solve(attention(2.0, **{"lambda": 10.0}), "semantic", accuracy=1e-2)
    assert solution.status is Status.TRIVIAL
    assert not solution.success and "W = 0" in solution.status.advice
    for block in (solution.overlaps.q, solution.overlaps.m, solution.overlaps.theta):
        assert np.all(block == 0)
    assert "trivial solution W = 0" in repr(solution)


def test_a_strong_corner_of_the_penalty_leaves_no_weights_and_no_response():
    """Soft thresholding at lambda = 100 of what has the standard deviation 1.6: q and V are 0 to all digits."""
    solution = sf.solve(sf.problem("lasso_regression", alpha=2, **{"lambda": 100}))
    assert solution.status is Status.TRIVIAL and not solution.outside
    assert not solution.overlaps.pack().any()


def test_advice_names_the_diverging_quantity_if_solving_fails():
    """c X with weights of half the size and twice the number is the same, and the ridge on the weights wants it."""

    @sf.model(regulariser=sf.Ridge(0.1))
    def scaled(X, Y, c=sf.trained(1)):
        return sf.half_square(Y[0, 0] - c * X[0, 0])

    problem = sf.problem(scaled, alpha=2)
    overlaps = Overlaps(*(np.full((1, 1, 1), 0.1) for _ in "qV"), np.zeros((1, 1)), np.ones((1, 1, 1)), np.array([9.1]))
    assert re.search(
        r"c went from 1 to 9\.1 and has no ridge: .*sf\.trained\(1, ridge\)",
        describe_unbounded_growth(problem, overlaps),
    )
    assert not describe_unbounded_growth(problem, replace(overlaps, phi=np.array([2.0])))
    loose = replace(overlaps, phi=np.array([2.0]), V=np.full((1, 1, 1), 1e7))
    assert describe_unbounded_growth(problem, loose).startswith(
        "V grew to 1e+07: weights move without a change of the loss"
    )


@pytest.mark.slow
def test_weights_that_few_samples_pull_at_vanish():
    """An insensitive zone of 11 standard deviations: q would be 4e-33, of which no digit can be had."""
    model = sf.model(name="far_zone", noise={"u": sf.GaussianNoise(0.005)})(
        lambda X, Y, u: sp.Max(0, sp.Abs(Y[0] + u - X[0]) - 11)
    )
    solution = sf.solve(sf.problem(model, **{"alpha": 0.05, "lambda": 7.0}), "uninformed")
    assert solution.status is Status.TRIVIAL and "trivial solution W = 0" in repr(solution)
    assert solution.overlaps.V.item() == pytest.approx(1 / 7)


def test_susceptibility_at_rest_solves_its_own_equation():
    """V = rho / (lambda + sum_l gamma V^_l): the response of weights at zero, here nearly rho / lambda."""
    problem = attention(2.0, **{"lambda": 10.0})
    state = overlaps_of_start(problem, "semantic")
    found = find_trivial_solution(
        problem, Overlaps(1e-4 * state.q, state.V, 1e-2 * state.m, 1e-2 * state.theta), APPROACH_RULE, APPROACH_RULE
    )
    assert found is not None
    rest, errors = found
    np.testing.assert_allclose(rest.V, 0.25 / 10, rtol=0.02)
    assert np.all(errors < 1e-5)


@pytest.mark.parametrize("model", ["ridge_regression", "logistic_regression"])
def test_weights_that_see_a_slope_at_zero_do_not_rest_there(model):
    """Labels pull on W = 0 however strong the ridge: q is small, not zero."""
    problem = sf.problem(model, alpha=0.5, **{"lambda": 50.0})
    assert find_trivial_solution(problem, overlaps_of_start(problem, "semantic"), APPROACH_RULE, APPROACH_RULE) is None
    solution = sf.solve(problem, accuracy=1e-3)
    assert solution.status is Status.CONVERGED and 0 < solution.overlaps.q.max() < 1e-2
