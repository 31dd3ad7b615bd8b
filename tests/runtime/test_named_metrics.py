"""Several test errors in one solve, each with an error bar; what they may ask for."""

import json
import pickle

import numpy as np
import pytest
import sympy as sp

import saddleforge as sf
from saddleforge.base.errors import InputError
from saddleforge.derive.errors import ModelError
from saddleforge.problems.quantities import resolve_quantity_name
from saddleforge.report.branches import select_columns_by_user_names
from saddleforge.responses.minimum import describe_observable_in_words, resolve_objective_name
from saddleforge.thresholds.conditions import parse_condition


def of(group):
    """The squared error of one of two groups, zero on the other."""
    return lambda h, Y, k: sf.by_label(k[0], *[(Y[0, 0] - h[0, 0]) ** 2 if g == group else 0 for g in (0, 1)])


METRICS = {
    "all": lambda h, Y: (Y[0, 0] - h[0, 0]) ** 2,
    "first": of(0),
    "second": of(1),
    "norm": lambda h, Y, Q, *, unit=2: unit * Q[0][0, 0] + 0 * h[0, 0],
}


@sf.model(clusters=2, law=sf.clustered_tokens, regulariser=sf.Ridge(0.1), metric=METRICS)
def grouped(X, Y, k):
    """Least squares without noise in two groups of inputs."""
    return sf.half_square(Y[0, 0] - X[0, 0])


@pytest.fixture(scope="module")
def solution():
    labels = [0.7, 0.3]
    return sf.solve(sf.problem(grouped, alpha=2.0, labels=labels, sigma=[1, 0.5]), accuracy=1e-8)


@pytest.mark.slow
def test_errors_of_groups_add_up_to_that_of_all(solution):
    errors = solution.test_errors
    assert list(errors) == list(METRICS) and errors["all"] == solution.test_error
    assert errors["first"] + errors["second"] == pytest.approx(errors["all"], rel=1e-12)


def test_each_is_what_the_overlaps_say_and_its_error_bar_holds_that(solution):
    """Of group g: p_g (rho_g - 2 theta_g + q_g); of the metric in Q: twice E q."""
    q, theta = solution.overlaps.q.ravel(), solution.overlaps.theta.ravel()
    exact = np.array([0.7, 0.3]) * (np.array([1, 0.25]) - 2 * theta + q)
    widths = solution.error_bars.test_errors
    for name, value in zip(("first", "second"), exact, strict=True):
        assert abs(solution.test_errors[name] - value) <= widths[name] < 1e-8
    assert solution.test_errors["norm"] == pytest.approx(2 * (0.7 * q[0] + 0.3 * q[1]), rel=1e-12)
    assert widths["all"] == solution.error_bars.test_error == solution.test_error_error


def test_they_are_shown_and_written(solution):
    assert "second      0.00" in solution.table()
    as_json = json.loads(json.dumps(solution.to_json(), default=lambda array: array.tolist()))
    assert as_json["test_errors"]["second"] == solution.test_errors["second"]
    assert as_json["errors"]["test_errors"]["second"] == solution.error_bars.test_errors["second"]
    frame = sf.curve(solution.problem, alpha=(1, 2, 2)).to_pandas(stability=False)
    assert frame["test_error_second"].iloc[-1] == pytest.approx(solution.test_errors["second"], rel=1e-3)
    assert frame["test_error_second_error"].iloc[-1] > 0


def test_a_problem_by_another_metric_is_the_same_problem(solution):
    other = solution.problem.with_metric("second")
    found = sf.solve(other, solution, accuracy=1e-8)
    assert found.test_error == pytest.approx(solution.test_errors["second"], rel=1e-9)
    assert np.allclose(found.overlaps.pack(), solution.overlaps.pack(), rtol=1e-9)
    assert other.with_metric("all").solver.metric_functions is solution.problem.solver.metric_functions
    assert pickle.loads(pickle.dumps(other.solver)).metric_functions is other.solver.metric_functions
    with pytest.raises(InputError, match=r"unknown metric 'third' of .*; known are all, first, second, norm"):
        other.with_metric("third")


def test_a_threshold_condition_can_use_a_named_metric(solution):
    value = solution.test_errors["second"]
    found = sf.where(solution.problem, f"test_error_second = {value!r}", "alpha", on="semantic", bracket=(1, 3))
    assert found.value == pytest.approx(2.0, abs=2e-3)


def test_quantities_have_one_name_wherever_they_are_asked_for():
    metrics = {"error": lambda h, Y: (Y[0, 0] - h[0, 0]) ** 2, "gain": lambda h, Y: h[0, 0] * Y[0, 0]}

    @sf.model(student=2, teacher=2, metric=metrics)
    def two(X, Y, bias=sf.trained(0, ridge=0.1)):
        return sf.half_square(Y[0, 0] + Y[0, 1] - X[0, 0] - X[0, 1] - bias)

    problem = sf.problem(two, alpha=2)
    columns = ["q_1_12", "trained_bias", "test_error", "test_error_gain"]
    for name, found in (("q_12", columns[0]), ("bias", columns[1]), ("gain", columns[3]), ("test_error", columns[2])):
        assert resolve_quantity_name(problem, name, "here") == found
        assert parse_condition(f"{name} = lambda", problem).names == tuple(sorted((found, "lambda_")))
        assert resolve_objective_name(problem, f"-{name}")[1] == ("-test_error" if name == "gain" else f"-{found}")
        assert select_columns_by_user_names(columns, [name], "error") == [found]
    assert select_columns_by_user_names(columns, ["error"], "error") == ["test_error"]
    assert describe_observable_in_words(resolve_objective_name(problem, "gain")[0], "-test_error") == "gain"
    with pytest.raises(InputError, match=r"quantity 'beauty'; known are .*test_error_gain.* lambda, .*trained_bias"):
        parse_condition("beauty = 1", problem)
    with pytest.raises(InputError, match=r"'theta_1' stands for theta_1_11, .*name one of them"):
        parse_condition("theta_1 = 1", problem)


def test_invalid_named_metrics_are_refused_when_the_model_is_made():
    def made(**fields):
        return sf.model(**fields)(lambda X, Y: sf.half_square(Y[0, 0] - X[0, 0]))

    for name, metric, words in (
        ("a", {"a b": METRICS["all"]}, "name 'a b' of a metric is not allowed"),
        ("b", {}, "metric is empty"),
        ("c", {"one": lambda h, Z: h[0, 0]}, "metric one asks for 'Z'"),
    ):
        with pytest.raises(ModelError, match=words):
            made(name=name, metric=metric)
    with pytest.raises(ModelError, match="metric_kinks names 'two'"):
        made(name="d", metric={"one": METRICS["all"]}, metric_kinks={"two": lambda h, Y: h[0, 0]})


def test_one_without_a_name_stays_as_it_was():
    solution = sf.solve(sf.problem("ridge_regression", alpha=2.0))
    assert solution.test_errors == {} and solution.to_json()["test_errors"] is None


@pytest.mark.slow
def test_with_broken_replica_symmetry_each_is_that_of_one_state():
    """Without a signal: the distance is 1 + q, the norm q, of signs half are wrong, with the q of one minimiser."""

    @sf.model(
        regulariser=sf.Ridge(0.01),
        metric={
            "apart": lambda h, Y: (Y[0, 0] - h[0, 0]) ** 2,
            "norm": lambda h: h[0, 0] ** 2,
            "wrong": lambda h, Y: (1 - sp.sign(h[0, 0] * Y[0, 0])) / 2,
        },
        starts={"uninformed": sf.Start(noise="3/5", susceptibility=2)},
    )
    def moduli(X, Y):
        return (sp.Abs(Y[0, 0]) - sp.Abs(X[0, 0])) ** 2

    found = sf.solve(sf.problem(moduli, alpha=3), "uninformed", rsb=1, accuracy=1e-4)
    q, width = found.overlaps.q.item(), found.error_bars.q.item()
    assert found.success and found.steps == 1 and abs(q - found.symmetric.overlaps.q.item()) > 1e-2
    widths = found.error_bars.test_errors
    for name, exact in (("apart", 1 + q), ("norm", q), ("wrong", 0.5)):
        assert abs(found.test_errors[name] - exact) < 1e-9 + widths[name]
    assert widths["norm"] == pytest.approx(width, rel=0.1) and widths["wrong"] < 1e-9
    as_json = found.to_json()
    assert as_json["test_errors"] == found.test_errors and as_json["errors"]["test_errors"] == widths
    assert "    norm        1.328" in found.table() and ", replica symmetric 1.372" in found.table()

    line = sf.curve(found.problem, start="uninformed", rsb=1, alpha=(3, 3.2, 2), accuracy=1e-4)
    norms = line.to_pandas(stability=False)["test_error_norm"]
    assert norms.iloc[0] == pytest.approx(q, rel=1e-6)
    assert norms.iloc[1] == pytest.approx(line.solutions[1].overlaps.q.item(), rel=1e-6)
