"""`saddleforge dynamics`: one object, a file that `plot` draws, and what it refuses."""

import json
import math
import re

import pytest

KEYS = {
    "schema", "model", "version", "digest", "parameters", "start", "rate", "batch", "status", "times", "overlaps",
    "trained", "loss", "test_error", "errors", "error_kind", "events", "plateaus", "branch", "reached", "integrator",
    "method", "evaluations", "file",
}  # fmt: skip
REGRESSION = ("dynamics", "ridge_regression", "--rate", "0.5")


def test_a_trajectory_is_one_object_and_a_picture(call, tmp_path):
    file = tmp_path / "descent.nc"
    done = call(*REGRESSION, "--time", "0:8:21", "--watch", "theta_1=0.5", "-o", file, "--json")
    assert done.status == 0
    data = json.loads(done.stdout)
    assert set(data) == KEYS and data["status"] == "converged" and data["parameters"]["alpha"] is None
    assert len(data["times"]) == 21 == len(data["overlaps"]["q"]) == len(data["errors"]["overlaps"]["theta"])
    assert data["events"][0]["name"] == "theta_1" and data["branch"] == "informed"
    assert call("plot", file).status == 0 and (tmp_path / "descent.png").stat().st_size > 5000
    refused = call(*REGRESSION, "-o", file)
    assert refused.status == 2 and "the file exists" in refused.sentence


def test_people_read_overlaps_in_time(call):
    done = call(*REGRESSION, "--time", "0:30:7")
    assert done.status == 0 and "next to the stable stationary point" in done.stdout
    assert done.stdout.splitlines()[2].split()[:3] == ["time", "q_1", "theta_1"]


def test_draws_of_finite_d_leave_no_overlap(call):
    done = call(
        "dynamics", "phase_retrieval", "--rate", "0.01", "--time", "60", "--d", "1000", "--seeds", "3", "--json"
    )
    data = json.loads(done.stdout)
    assert done.status == 0 and data["information_exponent"] == 2 and len(data["times"]) == 3
    assert data["growths"][0]["along"] == "1.00 theta_1" and data["growths"][0]["rate"] > 0
    said = call("dynamics", "phase_retrieval", "--rate", "0.01", "--time", "60", "--d", "1000", "--seeds", "2").stdout
    expected = math.log(1000) / (2 * data["growths"][0]["rate"])
    assert f"(log(d) / (2 rate) is {expected:.5g})" in said and "at last: 2 informed" in said


def test_a_stationary_point_and_the_rate_that_loses_it_are_asked_for(call):
    point = json.loads(call("dynamics", "ridge_regression", "--rate", "0.1", "--ask", "stationary", "--json").stdout)
    assert point["stable"] and point["branch"] == "informed" and max(v for v, _ in point["eigenvalues"]) < 0
    # docs/dynamics.md: eta gamma^2 / (2 (gamma + lambda)) = 1 at gamma = 1, lambda = 0.1
    said = call("dynamics", "ridge_regression", "--rate", "1.5", "--ask", "rate-limit")
    assert said.status == 0 and re.search(r"stable up to rate 2\.(20000000|19999999)\d+\(\d+\)", said.stdout)


def test_growth_from_no_overlap_needs_no_dimension(call):
    done = call("dynamics", "phase_retrieval", "--rate", "0.01", "--ask", "escape", "--json")
    assert json.loads(done.stdout)["d"] is None and json.loads(done.stdout)["information_exponent"] == 2


def test_descent_that_diverges_is_not_converged(call):
    done = call("dynamics", "ridge_regression", "--rate", "8", "--time", "0:20", "--accuracy", "1e-3", "--json")
    assert done.status == 3 and "smaller --rate" in done.sentence
    assert json.loads(done.stdout)["status"] == "left_domain"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["ridge_regression", "--rate", "-1"], "--rate -1.0 is out of range; allowed is (0, inf)"),
        (["ridge_regression", "--rate", "1", "--time", "5:2"], "0 <= BEGIN < END is expected"),
        (["ridge_regression", "--rate", "1", "--time", "0:x"], "BEGIN:END or BEGIN:END:N is expected"),
        (["ridge_regression", "--rate", "1", "--start", "q=0.1,theta=5"], "no such weights exist"),
        (["ridge_regression", "--rate", "1", "--start", "q=a"], "neither a number nor a JSON array"),
        (["ridge_regression", "--rate", "1", "--watch", "theta_1"], "OVERLAP=VALUE is expected"),
        (
            ["ridge_regression", "--rate", "1", "--d", "100", "--start", "semantic"],
            "--ask escape begins at zero overlap",
        ),
        (["ridge_regression", "--rate", "1", "--ask", "all"], "known are trajectory, stationary, rate-limit, escape"),
        (["ridge_regression", "--rate", "1", "--ask", "stationary", "--d", "9"], "--d draws random starts"),
        (["ridge_regression", "--rate", "1", "--ask", "escape", "--watch", "q_1=1"], "follows no trajectory"),
        (["ridge_regression", "--rate", "flow", "--ask", "rate-limit"], "gradient flow has no learning rate"),
        (["ridge_regression", "--rate", "4,warmup=5", "--ask", "rate-limit"], "stationary points need a constant rate"),
        (["lasso_regression", "--rate", "1"], "closed equations for a ridge"),
    ],
)
def test_wrong_input_is_named(call, arguments, sentence):
    done = call("dynamics", *arguments)
    assert done.status == 2 and sentence in done.sentence


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--method", "sgd"], "sgd needs a learning rate"),
        (["--method", "sgd", "--rate", "flow"], "gradient flow does not go through samples"),
        (["--method", "sgd", "--rate", "0.1", "--polish", "minima"], "sgd does not end at a minimum"),
        (["--method", "gd", "--batch", "4"], "only the method sgd uses batches"),
        (["--method", "gd", "--rate", "fast"], "gd takes a number"),
    ],
)
def test_options_of_a_pass_are_checked(call, arguments, sentence):
    done = call("simulate", "ridge_regression", "--set", "alpha=2", "--d", "50", *arguments)
    assert done.status == 2 and sentence in done.sentence


def test_a_pass_is_compared_with_its_theory(call):
    done = call(
        "simulate", "ridge_regression", "--set", "alpha=2", "--d", "60", "--seeds", "2", "--threads", "1",
        "--method", "sgd", "--rate", "0.3", "--start", "random", "--theory", "--json",
    )  # fmt: skip
    data = json.loads(done.stdout)
    assert done.status == 0 and data["method"] == "sgd" and data["rate"] == "0.3" and "nan" not in done.stderr
    assert data["theory"]["times"][-1] == 2.0
