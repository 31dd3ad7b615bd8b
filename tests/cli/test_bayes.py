"""`saddleforge bayes`: the best learner compared with risk minimisation, thresholds, and what it refuses."""

import json

import pytest

KEYS = {
    "model", "version", "digest", "parameters", "start", "status", "residual", "iterations", "overlaps", "conjugates",
    "cosine", "free_entropy", "test_error", "errors", "error_kind",
}  # fmt: skip


def test_a_solution_is_one_object(call):
    done = call("bayes", "phase_retrieval", "--set", "alpha=1", "--alone", "--json")
    assert done.status == 0
    data = json.loads(done.stdout)
    assert set(data) >= KEYS and data["status"] == "converged"
    assert 0 < data["overlaps"]["q"][0][0][0][0] < 1


@pytest.mark.slow
def test_a_solution_is_compared_with_that_of_risk_minimisation(call):
    done = call("bayes", "ridge_regression", "--set", "alpha=2", "--set", "lambda=0.25", "--json")
    assert done.status == 0
    data = json.loads(done.stdout)
    assert set(data) >= KEYS
    minimised = data["risk_minimisation"]
    assert data["overlaps"]["q"][0][0][0][0] == pytest.approx(minimised["overlaps"]["theta"][0][0][0][0], rel=1e-5)


@pytest.mark.slow
def test_people_read_both_in_one_table(call):
    done = call("bayes", "ridge_regression", "--set", "alpha=2", "--set", "lambda=0.25", "--accuracy", "1e-9")
    assert done.status == 0
    assert "Bayes-optimal" in done.stdout and "risk minimisation" in done.stdout
    (row,) = [line.split() for line in done.stdout.splitlines() if line.strip().startswith("cosine")]
    assert row[-1] == row[-2] == "0.908080101"


def test_a_threshold_is_printed_with_its_error(call):
    done = call("bayes", "phase_retrieval", "--threshold", "information-theoretic", "--json")
    assert done.status == 0
    data = json.loads(done.stdout)
    assert (data["kind"], data["value"], data["status"]) == ("information_theoretic", 1.0, "converged")
    assert "alpha" not in data["parameters"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["hard_attention", "--set", "alpha=1"], "has no output channel"),
        (["phase_retrieval", "--threshold", "spinodal"], "known are weak-recovery, algorithmic, information-theoretic"),
        (["phase_retrieval", "--from", "teacher"], "known are uninformed, informed"),
        (
            ["phase_retrieval", "--threshold", "weak-recovery", "--set", "alpha=1"],
            "varied by --threshold; leave one out",
        ),
        (["ridge_regression", "--set", "alpha=1", "--set", "Delta=0", "--alone"], "valid only where Delta is positive"),
        (["phase_retrieval", "--accuracy", "0"], "--accuracy 0.0 is out of range"),
        (["phase_retrieval", "--d", "100", "--threshold", "weak-recovery"], "--d runs message passing"),
        (["phase_retrieval", "--seeds", "2"], "--seeds needs --d"),
        (["phase_retrieval", "--along", "sigma=1:2:2"], "--along needs --threshold"),
        (["phase_retrieval", "--threshold", "weak-recovery", "-o", "line.nc"], "-o needs --along"),
        (["phase_retrieval", "--threshold", "weak-recovery", "--along", "sigma=1:2"], "NAME=LO:HI:N"),
    ],
)
def test_wrong_input_is_named(call, arguments, sentence):
    done = call("bayes", *arguments)
    assert done.status == 2
    assert sentence in done.sentence


def test_a_threshold_that_is_not_there_is_not_converged(call):
    done = call("bayes", "logistic_regression", "--threshold", "information-theoretic")
    assert done.status == 3
    assert "never reached" in done.sentence


def test_lines_of_thresholds_are_drawn_together(call, tmp_path):
    lines = {}
    for model in ("phase_retrieval", "dot_product_attention"):
        lines[model] = tmp_path / f"{model}.nc"
        along = ["--threshold", "weak-recovery", "--along", "sigma=0.5:2:2", "--accuracy", "1e-4"]
        done = call("bayes", model, *along, "-o", str(lines[model]), "--json")
        assert done.status == 0
        data = json.loads(done.stdout)
        assert data["status"] == "converged" and [p["over"] for p in data["line"]["points"]] == [0.5, 2.0]
    one, other = lines.values()
    done = call("plot", str(one), "--overlay", str(other), "-o", str(tmp_path / "both.png"))
    assert done.status == 0 and (tmp_path / "both.png").stat().st_size > 10_000
    missing = call("plot", str(one), "--overlay", str(tmp_path / "none.nc"), "-o", str(tmp_path / "third.png"))
    assert missing.status == 2 and "cannot read" in missing.sentence
