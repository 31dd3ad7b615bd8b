"""With --json: one object on stdout, the contract's keys, and the same bytes whatever the number of threads."""

import json

import pytest

from saddleforge.base.numbers import format_value_with_error
from saddleforge.derive.catalogue import SHIPPED

SOLVE_KEYS = {
    "model", "version", "digest", "parameters", "start", "branch", "rank", "status", "residual", "iterations",
    "overlaps", "conjugates", "multipliers", "free_entropy", "training_loss", "test_error", "baseline_error",
    "errors", "error_kind", "integrator", "stability",
}  # fmt: skip
STABILITY_KEYS = {
    "longitudinal", "replicon", "bistable_fraction", "jump_weight", "self_overlap_loss", "replica_symmetry", "verdict",
}  # fmt: skip
THRESHOLD_KEYS = {
    "model", "version", "digest", "kind", "parameter", "value", "error", "error_kind", "status", "branches",
    "rs_verdict", "evidence",
}  # fmt: skip


def numbers_are_finite(text: str) -> bool:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in JSON")

    return isinstance(json.loads(text, parse_constant=refuse), dict)


def test_solve_prints_the_keys_of_the_contract_and_nothing_else(call):
    done = call("solve", "ridge_regression", "--set", "alpha=2", "--json")
    assert done.status == 0
    assert numbers_are_finite(done.stdout)
    data = json.loads(done.stdout)
    assert set(data) >= SOLVE_KEYS
    assert (
        set(data["overlaps"]) == set(data["errors"]["overlaps"]) == set(data["conjugates"]) == {"q", "V", "m", "theta"}
    )
    assert set(data["stability"]) >= STABILITY_KEYS
    assert set(data["stability"]["longitudinal"]) == {"spectral_radius", "eigenvalues", "error", "verdict"}
    assert set(data["integrator"]) == {"rule", "points", "seed"}
    assert data["parameters"] == {
        "alpha": 2.0, "tokens": 1, "student_rank": 1, "teacher_rank": 1, "clusters": 1,
        "sigma": 1.0, "Delta": 0.25, "lambda": [0.1],
    }  # fmt: skip
    # What is not built, not sought or does not exist is null, never absent.
    assert data["rank"] is None and data["baseline_error"] is None
    assert data["multipliers"] is None and data["errors"]["multipliers"] is None
    assert data["stability"]["jump_set"] is None
    assert data["stability"]["self_overlap_loss"] == 0.0


@pytest.fixture
def solved(call, tmp_path):
    """solved(*arguments): what `solve` prints and, from the file that it writes, what it prints with --json."""

    def both(*arguments):
        file = tmp_path / "solution.json"
        done = call("solve", *arguments, "-o", file)
        assert done.status == 0
        return done.stdout, json.loads(file.read_text())

    return both


@pytest.mark.slow
def test_given_norms_are_reported_with_the_ridge_that_keeps_them(solved):
    text, found = solved("perceptron", "--set", "alpha=2")
    assert found["overlaps"]["q"][0][0][0][0] == pytest.approx(1, abs=1e-6)
    assert found["training_loss_parts"]["penalty"] == 0
    (strength,), (width,) = found["multipliers"], found["errors"]["multipliers"]
    assert f"the norms are kept by a ridge of {format_value_with_error(strength, width)}" in text


@pytest.mark.slow
def test_a_step_of_breaking_is_compared_with_replica_symmetry(solved):
    text, found = solved("perceptron", "--set", "alpha=2", "--rsb", "1")
    breaking, symmetric = found["breaking"], found["symmetric"]
    assert found["rsb"] == 1 and found["found"] is None and set(symmetric) >= SOLVE_KEYS
    assert breaking["energy_moved"] == pytest.approx(found["training_loss"] - symmetric["training_loss"], abs=1e-15)
    q, between, distance = found["overlaps"]["q"], breaking["q_between"], breaking["distances"][0]
    assert q[0][0][0][0] == pytest.approx(between[0][0][0][0] + distance[0][0][0][0], abs=1e-14)
    assert (
        f"y = {format_value_with_error(breaking['rates'][0], breaking['errors']['rates'][0])} (Parisi parameter)"
        in text
    )
    assert breaking["stability"]["verdict"] in text and symmetric["stability"]["verdict"] in text


def test_a_second_step_of_breaking_is_compared_with_the_first(solved):
    text, found = solved("perceptron", "--set", "alpha=2", "--rsb", "2")
    breaking, once = found["breaking"], found["shallower"]
    assert (found["rsb"], once["rsb"], once["shallower"]) == (2, 1, None)
    moved = breaking["energy_moved_further"]
    assert moved == pytest.approx(found["training_loss"] - once["training_loss"], abs=1e-15)
    assert 0 < breaking["errors"]["energy_moved_further"] < 1e-3 * moved
    low, high = breaking["rates"]
    assert low < once["breaking"]["rates"][0] < high and len(breaking["distances"]) == 2
    assert (
        f"y = {', '.join(map(format_value_with_error, breaking['rates'], breaking['errors']['rates']))} (Parisi" in text
    )
    assert (
        f"the second moved it by {format_value_with_error(moved, breaking['errors']['energy_moved_further'])}" in text
    )


@pytest.mark.slow
def test_a_curve_has_a_step_of_breaking_at_every_point(call):
    arguments = "curve", "tukey_regression", "--set", "width=0.5", "--over", "alpha=1.5:2:2", "--rsb", "1"
    done = call(*arguments, "--json")
    assert done.status == 0
    found = json.loads(done.stdout)
    assert [point["parameters"]["alpha"] for point in found["points"]] == [1.5, 2.0] and not any(found["ends"].values())
    assert all(point["rsb"] == 1 and point["breaking"]["energy_moved"] > 0 for point in found["points"])


def test_convex_losses_are_replica_symmetric(call):
    found = json.loads(call("solve", "ridge_regression", "--set", "alpha=2", "--rsb", "1", "--json").stdout)
    assert found["rsb"] == 0 and found["breaking"] is None and found["found"].startswith("no breaking found")
    assert found["training_loss"] == found["symmetric"]["training_loss"]


def test_sensitivities_are_a_block_of_the_solution(call):
    done = call("solve", "ridge_regression", "--set", "alpha=2", "--sensitivities", "alpha,lambda", "--json")
    assert done.status == 0
    data = json.loads(done.stdout)
    assert list(data["sensitivities"]) == ["alpha", "lambda"]
    block = data["sensitivities"]["lambda"]
    assert set(block["overlaps"]) == set(block["errors"]["overlaps"]) == {"q", "V", "m", "theta"}
    assert block["at"] == 0.1 and block["baseline_error"] is None
    # d e_t/d lambda = 1/2 E|w|^2.
    assert block["training_loss"] == pytest.approx(data["overlaps"]["q"][0][0][0][0] / 2, rel=1e-9)


@pytest.mark.slow
def test_tune_prints_an_optimum_or_a_curve_of_them(call, tmp_path):
    arguments = ["tune", "ridge_regression", "--over", "lambda=0.1:1", "--json"]
    one = json.loads(call(*arguments, "--set", "alpha=2").stdout)
    assert set(one) >= {"model", "kind", "parameter", "value", "error", "error_kind", "status", "minimise", "evidence"}
    assert abs(one["value"] - 0.25) <= one["error"] < 1e-4
    assert set(one["solution"]) >= SOLVE_KEYS
    file = tmp_path / "tuned.nc"
    curve = call(*arguments, "--along", "alpha=1:2:2", "-o", file)
    assert curve.status == 0 and file.exists()
    data = json.loads(curve.stdout)
    assert [point["parameters"]["alpha"] for point in data["points"]] == [1.0, 2.0]
    assert all(abs(point["value"] - 0.25) <= point["error"] for point in data["points"])


@pytest.mark.slow
def test_a_best_value_at_the_edge_of_the_search_is_not_converged(call):
    done = call(
        "tune",
        "ridge_regression",
        "--set",
        "alpha=1",
        "--over",
        "lambda=0.1:1",
        "--minimise",
        "training_loss",
        "--json",
    )
    assert done.status == 3
    data = json.loads(done.stdout)
    assert (data["kind"], data["status"], data["error"]) == ("lower_end", "edge", None)
    assert "try a wider one" in done.sentence


def test_threshold_prints_the_keys_of_the_contract_whether_found_or_not(call):
    arguments = ["threshold", "ridge_regression", "--on", "semantic", "--over", "alpha=1:2", "--json", "--where"]
    found = call(*arguments, "test_error = 0.6")
    missing = call(*arguments, "test_error = 6")
    assert (found.status, missing.status) == (0, 3)
    data = json.loads(found.stdout)
    assert set(data) >= THRESHOLD_KEYS
    assert set(json.loads(missing.stdout)) == set(data)
    assert isinstance(data["value"], str) and isinstance(data["error"], str)
    assert 1 < float(data["value"]) < 2
    assert 0 < float(data["error"]) <= 1e-3
    assert set(data["evidence"]) >= {"error_integration", "error_residual", "error_root", "bracket"}


@pytest.mark.slow
def test_ten_digits_of_a_threshold_reach_the_command_line(call):
    arguments = ["threshold", "ridge_regression", "--on", "semantic", "--over", "alpha=1:2", "--accuracy", "1e-10"]
    data = json.loads(call(*arguments, "--where", "test_error = 0.6", "--json").stdout)
    assert (data["status"], data["error_kind"]) == ("converged", "verified")
    assert data["value"].startswith("1.2666484810")
    assert float(data["error"]) <= 1e-10
    shown = call(*arguments, "--where", "test_error = 0.6", "--no-verify").stdout
    assert "(estimated, converged)" in shown and "from the residual" in shown


@pytest.mark.slow
def test_thresholds_beyond_doubles_keep_the_contract_and_all_digits(call):
    arguments = ["threshold", "logistic_regression", "--on", "semantic", "--where", "V = 3.5", "--over", "alpha=1:6"]
    done = call(*arguments, "--accuracy", "1e-40", "--json")
    assert done.status == 0
    data = json.loads(done.stdout)
    assert data["value"].startswith("2.4095832798098643913641786666166116693149")
    assert (data["status"], data["error_kind"]) == ("converged", "verified")
    assert float(data["error"]) <= 1e-40
    assert data["evidence"]["digits"] > 40
    assert len(data["evidence"]["rules"]) == 2
    assert done.stdout == call(*arguments, "--accuracy", "1e-40", "--json").stdout


def test_a_followed_branch_and_a_critical_line_are_one_object_each(call, tmp_path):
    file = tmp_path / "branch.nc"
    done = call("follow", "ridge_regression", "--over", "alpha=2:2.1", "-o", file, "--json")
    assert done.status == 0 and numbers_are_finite(done.stdout)
    data = json.loads(done.stdout)
    assert data["ending"] == "alpha = 2.1 reached" and data["events"] == []
    assert len(data["points"]) == len(data["arclength"]) >= 2
    assert set(data["points"][0]) >= SOLVE_KEYS
    assert call("plot", file).status == 0 and file.with_suffix(".png").exists()
    where = ["threshold", "ridge_regression", "--on", "semantic", "--where", "q = 0.3", "--over", "alpha=0.2:3"]
    line = tmp_path / "line.nc"
    done = call(*where, "--along", "lambda=0.1:0.15", "-o", line, "--json")
    assert done.status == 0 and numbers_are_finite(done.stdout)
    data = json.loads(done.stdout)
    assert set(data) >= THRESHOLD_KEYS | {"line", "file"}
    assert data["line"]["over"] == "lambda" and data["line"]["ending"] == "0.15 reached"
    assert call("plot", line).status == 0 and line.with_suffix(".png").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["ridge_regression", "--set", "alpha=1"],
        pytest.param(["dot_product_attention", "--set", "alpha=2", "--start", "semantic"], marks=pytest.mark.slow),
    ],
    ids=lambda arguments: arguments[0],
)
def test_the_same_input_gives_the_same_bytes_with_one_and_two_threads(call, run, arguments):
    """In this process and in another."""
    import numba

    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("one core")
    one = call("solve", *arguments, "--json", "--threads", 1)
    two = run("solve", *arguments, "--json", "--threads", 2)
    assert one.status == two.status == 0
    assert one.stdout == two.stdout


def test_wrong_input_is_an_object_too(call):
    for arguments in (["solve", "ridge_regression", "--set", "apha=1"], ["solve", "ridge_regression", "--frobnicate"]):
        done = call(*arguments, "--json")
        assert done.status == 2
        data = json.loads(done.stdout)
        assert data["status"] == "wrong_input"
        assert f"saddleforge: {data['error']}\n" == done.stderr


def test_all_branches_are_ranked_by_training_loss(call):
    data = json.loads(call("solve", "logistic_regression", "--set", "alpha=1", "--all-branches", "--json").stdout)
    losses = [solution["training_loss"] for solution in data["solutions"]]
    assert losses == sorted(losses)
    assert [solution["rank"] for solution in data["solutions"]] == list(range(1, len(losses) + 1))


def test_a_solution_written_to_a_file_can_be_started_from(call, tmp_path):
    file = tmp_path / "new folder" / "solution.json"
    first = call("solve", "ridge_regression", "--set", "alpha=1.5", "--json", "-o", file)
    assert first.status == 0
    assert file.read_text() == first.stdout
    again = json.loads(call("solve", "ridge_regression", "--set", "alpha=1.5", "--from", file, "--json").stdout)
    assert again["start"] == "given"
    assert again["training_loss"] == pytest.approx(json.loads(first.stdout)["training_loss"], rel=1e-8)


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("{", "not a JSON file"),
        ("[1]", "overlaps"),
        ('{"overlaps": {"q": [[1]], "V": [[1]], "m": [[1]], "theta": [[1]]}}', "shape (1, 1)"),
        ('{"overlaps": {"q": [[[[null]]]], "V": [[[[1]]]], "m": [[[1]]], "theta": [[[[1]]]]}}', "not finite"),
    ],
)
def test_a_file_that_is_no_solution_is_refused(call, tmp_path, text, fragment):
    file = tmp_path / "solution.json"
    file.write_text(text)
    done = call("solve", "ridge_regression", "--from", file)
    assert done.status == 2
    assert str(file) in done.sentence and fragment in done.sentence


def test_models_lists_the_catalogue_for_people_and_programs(call):
    data = json.loads(call("models", "--json").stdout)
    names = [entry["name"] for entry in data["models"]]
    assert names == sorted(names)
    assert {"dot_product_attention", "logistic_regression", "ridge_regression"} <= set(names)
    assert len(names) == len(SHIPPED)
    (mixture,) = (model for model in data["models"] if model["name"] == "attention_on_mixture")
    assert mixture["sizes"]["tokens"] == {"default": 2, "low": 2, "high": None}
    text = call("models").stdout
    for entry in data["models"]:
        assert entry["name"] in text and entry["summary"] in text and entry["source"] in text


def test_stability_says_what_its_numbers_mean(call):
    data = json.loads(call("stability", "ridge_regression", "--set", "alpha=2", "--json").stdout)
    text = call("stability", "ridge_regression", "--set", "alpha=2").stdout
    assert data["stability"]["verdict"] in text
    assert f"{data['stability']['replicon']:.6f}" in text
    assert "below 1: stable" in text


SIMULATE_KEYS = {
    "model", "version", "digest", "parameters", "d", "n", "start", "method", "status", "seeds", "converged", "branches",
    "overlaps", "training_loss", "test_error", "gradient", "iterations", "standard_errors", "runs", "failures",
    "theory", "on_branch",
}  # fmt: skip


def test_simulate_prints_means_errors_and_every_run_the_same_on_any_number_of_threads(call):
    arguments = ["simulate", "ridge_regression", "--set", "alpha=2", "--d", "80", "--seeds", "3", "--json"]
    one, two = (call(*arguments, "--threads", threads) for threads in (1, 2))
    assert one.status == 0 and one.stdout == two.stdout
    assert numbers_are_finite(one.stdout)
    data = json.loads(one.stdout)
    assert set(data) >= SIMULATE_KEYS
    assert data["n"] == 160 and data["seeds"] == [0, 1, 2] and data["theory"] is data["on_branch"] is None
    losses = [run["training_loss"] for run in data["runs"]]
    assert data["training_loss"] == pytest.approx(sum(losses) / 3)
    assert data["overlaps"]["V"] == [[[[None]]]]  # only gamp has one


def test_a_verdict_on_stability_may_be_left_out(call):
    arguments = ("solve", "ridge_regression", "--set", "alpha=2", "--no-stability")
    found = json.loads(call(*arguments, "--json").stdout)
    assert found["status"] == "converged" and found["stability"] is None
    assert "no verdict on stability was asked for" in call(*arguments).stdout
    refused = call(*arguments, "--rsb", "1")
    assert refused.status == 2 and "--rsb 1 needs the verdict on stability" in refused.stderr
