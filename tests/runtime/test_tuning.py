"""Best values of a parameter: exact ones of ridge regression, ends and jumps that are named as such, curves."""

import re

import numpy as np
import pytest
import sympy as sp

import saddleforge as sf
from saddleforge import InputError, NotConvergedError
from saddleforge.report.tables import load_netcdf_dataset
from saddleforge.responses.minimum import ObservableMinimumSearch, ScannedPoint
from saddleforge.responses.tuning import _find_best_candidate


@pytest.mark.parametrize(
    ("alpha", "noise", "bracket"),
    [(2.0, 0.5, (0.1, 2.0)), pytest.param(0.5, 0.25, None, marks=pytest.mark.slow)],
)
def test_the_best_ridge_is_the_variance_of_the_noise(alpha, noise, bracket):
    """With w* ~ N(0, I) the posterior mean minimises 1/(2 Delta) sum (y - X)^2 + 1/2 |w|^2: lambda* = Delta exactly."""
    problem = sf.problem("ridge_regression", alpha=alpha, Delta=noise)
    found = sf.tune(problem, "lambda", bracket=bracket, accuracy=1e-6)
    assert found.kind == "minimum" and found.status == "converged"
    assert abs(found.value - noise) <= found.error <= 1e-6 * noise
    assert found.solution.problem.value_of_parameter("lambda") == found.value
    # Bayes-optimal: the student's overlap with the teacher is its own norm.
    assert found.solution.overlaps.theta.item() == pytest.approx(found.solution.overlaps.q.item(), rel=1e-6)


@pytest.mark.slow
def test_the_best_value_beats_its_neighbours():
    problem = sf.problem("logistic_regression", alpha=2.0)
    found = sf.tune(problem, "lambda", bracket=(1e-5, 1), accuracy=1e-4)
    assert found.success and found.kind == "minimum"
    for factor in (0.9, 1.1):
        neighbour = sf.solve(problem.with_(**{"lambda": factor * found.value}), found.solution, accuracy=1e-8)
        assert neighbour.test_error > found.observed + neighbour.test_error_error


def test_a_minus_sign_before_the_quantity_maximises_it():
    """Noise makes the weights longer."""
    found = sf.tune(sf.problem("ridge_regression", alpha=2.0), "Delta", minimise="-q", bracket=(0.0, 1.0))
    assert (found.kind, found.status, found.value) == ("upper_end", "edge", 1.0)


@pytest.mark.slow
def test_a_training_loss_is_least_without_regularisation_and_says_that_this_is_the_end_of_the_search():
    found = sf.tune(sf.problem("ridge_regression", alpha=2.0), "lambda", minimise="training_loss", bracket=(1e-2, 1.0))
    assert (found.kind, found.status) == ("lower_end", "edge")
    assert found.value == pytest.approx(1e-2)
    assert np.isnan(found.error) and found.to_json()["kind"] == "lower_end"
    assert "try a wider one" in found.advice


@pytest.mark.slow
def test_the_end_of_what_is_allowed_is_an_optimum():
    found = sf.tune(sf.problem("ridge_regression", alpha=2.0), "Delta", bracket=(0.0, 1.0))
    assert (found.kind, found.status, found.value) == ("lower_end", "converged", 0.0)


@pytest.mark.slow
def test_double_descent_has_a_minimum_before_the_peak():
    """Nearly without a ridge the test error falls, peaks where n = d, and falls again: two minima to weigh."""
    problem = sf.problem("ridge_regression", alpha=0.3, Delta=0.25, **{"lambda": 1e-3})
    short = sf.tune(problem, "alpha", bracket=(0.1, 1.2))
    assert short.kind == "minimum" and 0.2 < short.value < 0.8
    assert [other.kind for other in short.others] == ["upper_end"]
    wide = sf.tune(problem, "alpha", bracket=(0.1, 4.0))
    assert (wide.kind, wide.status) == ("upper_end", "edge")
    assert [other.kind for other in wide.others] == ["minimum"]
    assert wide.others[0].value == pytest.approx(short.value, rel=1e-2)


@pytest.mark.slow
def test_a_quantity_independent_of_the_parameter_has_no_minimum():
    """The mean of the ridge estimator does not know how strong the noise is."""
    with pytest.raises(NotConvergedError, match="theta does not change with Delta on the semantic branch"):
        sf.tune(sf.problem("ridge_regression", alpha=2.0), "Delta", minimise="theta", bracket=(0.1, 0.4))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"parameter": "omega"}, "'omega' is not a scalar parameter"),
        (
            {"minimise": "beauty"},
            "cannot minimise 'beauty': unknown quantity 'beauty'; known are free_entropy",
        ),
        ({"minimise": "baseline_error"}, "ridge_regression has no baseline error"),
        ({"on": "lazy"}, "unknown branch 'lazy' of .*; known are informed, uninformed"),
        ({"bracket": (1.0, 0.1)}, "two finite ends in ascending order"),
        ({"parameter": "Delta", "bracket": (-1.0, 0.1)}, "Delta = -1.0 is out of range"),
        ({"accuracy": 0.0}, "accuracy = 0.0 is out of range"),
    ],
)
def test_invalid_arguments_of_tune_are_refused(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        sf.tune(sf.problem("ridge_regression", alpha=1), **{"parameter": "lambda", **arguments})


# The scan, on branches made up


class MadeUp(ObservableMinimumSearch):
    """A search over a function of the place, None where there is no branch."""

    def with_function(self, function, slope):
        self.function, self.derivative = function, slope
        return self

    def solve_point_on_branch(self, place, accuracy=None):
        value = self.function(place)
        if value is None:
            return None
        if place not in self.known:
            self.known[place] = ScannedPoint(
                place, place, self.solution, value, 1e-12, self.derivative(place), 1e-12, np.zeros(4)
            )
        return self.known[place]


@pytest.fixture(scope="module")
def made_up():
    problem = sf.problem("ridge_regression", alpha=2.0)
    solution = sf.solve(problem)

    def search(function, slope):
        own = MadeUp.search_from_arguments(problem, "sigma", "test_error", None, (1.0, 2.0), 1e-4, 0).with_function(
            function, slope
        )
        own.solution, own.logarithmic = solution, False
        own.low, own.high = 0.0, 1.0
        return own, problem

    return search


def best(search, problem):
    return _find_best_candidate(search, 1e-6, lambda: None)


def test_the_lowest_of_several_minima_is_found(made_up):
    found = best(*made_up(lambda p: np.cos(20 * p) + p, lambda p: 1 - 20 * np.sin(20 * p)))
    assert found.kind == "minimum"
    assert found.value == pytest.approx((np.pi - np.arcsin(1 / 20)) / 20, abs=1e-6)
    minima = [other.value for other in found.others if other.kind == "minimum"]
    assert minima == pytest.approx(
        [(3 * np.pi - np.arcsin(1 / 20)) / 20, (5 * np.pi - np.arcsin(1 / 20)) / 20], abs=1e-3
    )


def test_a_narrow_minimum_shows_in_the_slopes(made_up):
    """Narrower than the first scan, but the values around it do not fit the slopes."""
    width = 0.03
    found = best(
        *made_up(
            lambda p: p - 0.5 * np.exp(-(((p - 0.47) / width) ** 2)),
            lambda p: 1 + (p - 0.47) / width**2 * np.exp(-(((p - 0.47) / width) ** 2)),
        )
    )
    assert found.kind == "minimum"
    assert found.value == pytest.approx(0.47, abs=width)


def test_a_jump_of_the_branch_is_distinguished_from_a_minimum(made_up):
    """Falling up to 0.3, then higher and falling on: the least value is where the branch jumps."""
    found = best(*made_up(lambda p: -p if p < 0.3 else 2 - p, lambda p: -1.0))
    assert (found.kind, found.status) == ("jump", "branch_end")
    assert found.value == pytest.approx(0.3, abs=2e-3) and found.value < 0.3
    assert [other.kind for other in found.others] == ["upper_end"]


def test_a_branch_that_ends_is_followed_to_its_end(made_up):
    found = best(*made_up(lambda p: -p if p < 0.612 else None, lambda p: -1.0))
    assert (found.kind, found.status) == ("branch_end", "branch_end")
    assert found.value == pytest.approx(0.612, abs=2e-3)
    assert "ends or jumps" in found.advice


def test_a_branch_that_is_not_there_is_no_optimum(made_up):
    with pytest.raises(NotConvergedError, match="informed branch was not found at any of"):
        best(*made_up(lambda p: None, lambda p: 0.0))


# Two learners of different sizes


STRENGTH = sf.Parameter(0.01, 0, open_low=True)


@sf.penalty
def two_ridges(w, *, lambda1=STRENGTH, lambda2=STRENGTH):
    return lambda1 * w[0] ** 2 / 2 + lambda2 * w[1] ** 2 / 2


@sf.model(
    student=2,
    regulariser=two_ridges,
    metric=lambda h, Y: (1 - sp.sign(h[0] + h[1]) * sp.sign(Y[0])) / 2,
    starts={"informed": sf.Start(teacher=((0.6,), (0.6,)))},
)
def side_by_side(X, Y):
    """Logistic loss of one column and square loss of the other on the labels sign(Y)."""
    return sf.softplus(-sp.sign(Y[0]) * X[0]) + sf.half_square(sp.sign(Y[0]) - X[1])


@pytest.mark.slow
def test_a_branch_of_columns_of_different_sizes_is_followed_to_the_end_of_the_interval():
    problem = sf.problem(side_by_side, alpha=3.0)
    found = sf.tune(problem, "lambda2", bracket=(0.01, 10))
    assert (found.kind, found.status, found.value) == ("upper_end", "edge", pytest.approx(10.0))
    assert abs(found.observed - 0.129996) <= found.observed_error + 3e-6 and not found.others
    both = sf.tune(problem, ["lambda1", "lambda2"], bracket={"lambda1": (0.01, 10), "lambda2": (0.01, 10)}, scan=4)
    assert both.kinds == ("lower_end", "upper_end") and both.status == "edge"
    assert abs(both.observed - 0.129996) <= both.observed_error + 3e-6


@sf.model(
    student=2,
    regulariser=two_ridges,
    metric=lambda h, Y: (1 - sp.sign(h[0] + h[1]) * sp.sign(Y[0])) / 2,
    starts={"informed": sf.Start(teacher=((0.6,), (0.6,)))},
)
def hinge_next_to_squares(X, Y):
    """Squared hinge loss of one column and square loss of the other on the labels sign(Y)."""
    return sp.Max(0, 1 - sp.sign(Y[0]) * X[0]) ** 2 / 2 + sf.half_square(sp.sign(Y[0]) - X[1])


@pytest.mark.slow
def test_more_samples_help_as_far_as_they_are_searched():
    found = sf.tune(sf.problem(hinge_next_to_squares, lambda2=0.5), "alpha", bracket=(0.5, 20))
    assert (found.kind, found.status, found.value) == ("upper_end", "edge", pytest.approx(20.0))


# What is said on the way


def test_progress_shows_every_value_with_its_uncertainty(capfd):
    sf.tune(sf.problem("ridge_regression", alpha=2.0), "Delta", minimise="-q", bracket=(0.0, 1.0))
    shown = re.findall(r"tuning Delta: (.*) at Delta = \S+", capfd.readouterr().err)
    assert len(shown) >= 7 and all(re.fullmatch(r"q \d+\.\d+\(\d+\)", text) for text in shown)


def test_the_verdict_stands_with_the_best_value():
    best = sf.tune(sf.problem("ridge_regression", alpha=2.0), "Delta", minimise="-q", bracket=(0.0, 1.0))
    assert best.table().splitlines()[-1].strip() == best.solution.stability.verdict


# Curves


@pytest.mark.slow
def test_the_best_ridge_does_not_depend_on_the_number_of_samples(tmp_path):
    problem = sf.problem("ridge_regression", Delta=0.4)
    found = sf.tuned_curve(problem, "lambda", alpha=(0.5, 2.5, 4), bracket=(1e-2, 10), accuracy=1e-5)
    assert found.success and not found.notes
    found.save(tmp_path / "tuned.nc")
    table = load_netcdf_dataset(tmp_path / "tuned.nc")
    assert table["alpha"].values == pytest.approx([0.5, 7 / 6, 11 / 6, 2.5])
    off = np.abs(table["best_lambda"].values - 0.4)
    assert np.all(off <= table["best_lambda_error"].values)
    assert np.all(table["best_lambda_error"].values < 4e-6)
    assert np.all(np.diff(table["test_error"].values) < 0)
    assert list(table["optimum"].values) == ["minimum"] * 4
    assert table.attrs["tuned"] == "lambda" and "lambda" not in table.attrs["parameters"]


@pytest.mark.slow
def test_the_best_ridge_is_a_straight_line_in_the_noise():
    found = sf.tuned_curve(sf.problem("ridge_regression", alpha=1.5), "lambda", over="Delta", values=[0.2, 0.4, 0.8])
    assert [o.value for o in found.optima] == pytest.approx([0.2, 0.4, 0.8], rel=1e-3)


def test_a_tuned_curve_needs_a_grid_in_another_parameter():
    problem = sf.problem("ridge_regression")
    with pytest.raises(InputError, match="give a range"):
        sf.tuned_curve(problem, "lambda")
    with pytest.raises(InputError, match="lambda cannot be tuned along itself"):
        sf.tuned_curve(problem, "lambda", over="lambda_", values=[0.1])


@pytest.mark.slow
def test_attention_learns_the_meaning_best_at_a_regularisation_of_its_own():
    """The base case on the semantic branch: lambda* lies inside, and values next to it are worse."""
    problem = sf.problem("dot_product_attention", alpha=2.0)
    found = sf.tune(problem, "lambda", on="semantic", bracket=(1e-3, 0.1), accuracy=1e-4)
    assert found.solution.branch == "semantic"
    if found.kind == "minimum":
        assert found.success
        for factor in (0.8, 1.25):
            neighbour = sf.solve(problem.with_(**{"lambda": factor * found.value}), found.solution, accuracy=1e-6)
            assert neighbour.test_error > found.observed
