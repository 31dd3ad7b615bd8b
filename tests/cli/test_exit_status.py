"""The exit statuses of the contract (docs/design.md section 4), each with what it promises to print."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from saddleforge import __version__
from saddleforge.base.errors import NotProvedError, TimeLimitError
from saddleforge.extensions.simulation.methods import METHODS
from saddleforge.integration import FAMILIES
from saddleforge.reproduce.jobs import JOBS
from saddleforge.saddle_point import observables
from saddleforge.solving import solution

SCRIPT = Path(sys.executable).with_name("saddleforge")


def test_version_and_help_are_0(run):
    version, helped = run("--version"), run("--help")
    assert (version.status, version.stdout) == (0, f"saddleforge {__version__}\n")
    assert helped.status == 0 and "threshold" in helped.stdout
    assert "threshold" in run().stdout


def test_help_tells_how_values_are_written(call):
    assert "NAME=VALUE" in call("solve", "--help").stdout
    assert "NAME=LO:HI:N" in call("curve", "--help").stdout


def test_help_names_every_rule_and_method_and_every_figure_that_is_drawn_on_request(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # metavars in one line

    def helped(command):
        return re.sub(r"[\s│]", "", call(command, "--help").stdout)

    assert all(name in helped("solve") for name in FAMILIES)
    assert "|".join(["auto", *METHODS]) in helped("simulate")
    assert "auto:lbfgs,wherethelosshaskinksnewton" in helped("simulate")
    assert all(f"`{name}`(" in helped("reproduce") for run, _ in JOBS[1:] for name in run.draws)


def test_a_solved_problem_is_0(run):
    done = run("solve", "ridge_regression", "--set", "alpha=2", "--set", "lambda=0.1", "--quiet")
    assert (done.status, done.stderr) == (0, "")
    assert "reached informed; converged" in done.stdout
    assert "RS stable" in done.stdout


def test_a_bug_is_1_with_its_traceback_in_a_log_file(call, begins, monkeypatch, tmp_path):
    def broken(*_arguments_of_compiled_metric, **_named):
        raise RuntimeError("planted")

    monkeypatch.setenv("SADDLEFORGE_CACHE", str(tmp_path))
    begins(broken)
    done = call("solve", "ridge_regression")
    (log,) = (tmp_path / "logs").iterdir()
    assert done.status == 1
    assert str(log) in done.sentence and "planted" in done.sentence and "report" in done.sentence
    assert "Traceback" not in done.stderr
    assert "Traceback" in log.read_text() and __version__ in log.read_text()


def test_a_proof_is_0_and_none_is_3_with_the_reason(call, monkeypatch):
    ask = ["ridge_regression", "--accuracy", "1e-20", "--proof", "--quiet"]
    done = call("solve", *ask, "--set", "alpha=1")
    assert done.status == 0
    assert "errors are proved: the generated equations have exactly one solution" in done.stdout
    done = call(
        "threshold", *ask, "--on", "semantic", "--where", "test_error = 0.44", "--over", "alpha=1.5:3", "--json"
    )
    found = json.loads(done.stdout)
    assert (done.status, found["error_kind"], found["status"]) == (0, "proved", "converged")
    assert float(found["error"]) < 1e-20 < found["evidence"]["proof"]["box"]

    def fails(*_arguments_of_compiled_metric):
        raise NotProvedError("no box was small enough")

    monkeypatch.setattr("saddleforge.extensions.proof.results.prove_solution_exists", fails)
    monkeypatch.setattr("saddleforge.extensions.digits._solve_by_two_quadrature_rules", fails)
    done = call("solve", *ask, "--set", "alpha=1", "--json")
    found = json.loads(done.stdout)
    assert (done.status, found["status"], found["error_kind"]) == (3, "not_proved", "estimated")
    assert found["overlaps"]["q"] and found["not_proved"] == "no box was small enough"
    assert "not proved: no box was small enough; what is shown is the estimate" in done.sentence


@pytest.mark.slow
def test_a_start_that_leads_to_another_branch_is_3_with_its_numbers(call):
    base = ["dot_product_attention", "--set", "alpha=0.5", "--accuracy", "1e-2", "--quiet"]
    done = call("solve", *base)
    assert done.status == 3
    assert (
        "start semantic, reached uninformed; converged to another branch" in done.stdout
        and "training loss" in done.stdout
    )
    assert "converged to another branch from start semantic" in done.sentence and "larger alpha" in done.sentence
    found = json.loads(call("stability", *base, "--json").stdout)
    assert (found["status"], found["branch"]) == ("left_basin", "uninformed")
    done = call("solve", *base, "--all-branches")
    assert done.status == 0, done.stderr
    ends = [line for line in done.stdout.splitlines() if line.endswith(", from start uninformed")]
    assert len(ends) == 1 and "converged" in ends[0]


def test_every_start_that_reaches_the_trivial_solution_is_3_and_said(call):
    done = call("solve", "dot_product_attention", "--set", "alpha=0.5", "--set", "lambda=30", "--set",
                "encodings=[[0,0],[0,0]]", "--all-branches", "--quiet")  # fmt: skip
    assert done.status == 3
    assert "trivial solution W = 0" in done.sentence


def test_a_time_limit_is_3_with_the_last_iterate(call):
    done = call("solve", "ridge_regression", "--set", "alpha=2", "--time-limit", "1e-6", "--quiet", "--json")
    found = json.loads(done.stdout)
    assert (done.status, found["status"], found["stability"]) == (3, "time_limit", None)
    assert found["overlaps"]["q"] and found["training_loss"] is None
    assert "time limit" in done.sentence and "allow more time" in done.sentence
    for command, *rest in (
        ("curve", "--over", "alpha=1:2:3"),
        ("follow", "--over", "alpha=1:2"),
        ("threshold", "--on", "semantic", "--where", "test_error = 0.44", "--over", "alpha=1.5:3"),
        ("tune", "--over", "lambda=1e-2:1", "--set", "alpha=2"),
        ("bayes", "--set", "alpha=2"),
        ("stability", "--set", "alpha=2"),
    ):
        done = call(command, "ridge_regression", *rest, "--time-limit", "1e-6", "--quiet", "--json")
        assert (done.status, json.loads(done.stdout)["status"]) == (3, "time_limit"), command
        assert "time limit" in done.sentence, command


def test_what_a_time_limit_leaves_out_of_the_output_does_not_cost_the_rest(call, monkeypatch):
    def too_late(*at):
        raise TimeLimitError("the time limit ended it")

    monkeypatch.setattr(observables, "baseline_error", too_late)
    done = call("solve", "ridge_regression", "--set", "alpha=2", "--quiet", "--json")
    found = json.loads(done.stdout)
    assert (done.status, found["status"], found["baseline_error"]) == (0, "converged", None)
    monkeypatch.setattr(solution, "analyse_landscape", too_late)
    done = call("stability", "ridge_regression", "--set", "alpha=2", "--quiet", "--json")
    found = json.loads(done.stdout)
    assert done.status == 3 and found["stability"]["replica_symmetry"] == "stable" and found["landscape"] is None
    assert "time limit" in done.sentence and "minima" in done.sentence
    assert "replicon" in call("stability", "ridge_regression", "--set", "alpha=2", "--quiet").stdout


WRONG = {
    "no time": (["solve", "ridge_regression", "--time-limit", "0"], ["time limit", "(0, inf] seconds"]),
    "no arguments": (["solve"], ["MODEL"]),
    "unknown command": (["slove"], ["slove"]),
    "unknown option": (["solve", "ridge_regression", "--ste", "alpha=1"], ["--ste", "--set"]),
    "unknown model": (["solve", "rigde"], ["rigde", "ridge_regression", "dot_product_attention"]),
    "unknown parameter": (
        ["solve", "ridge_regression", "--set", "apha=1"],
        ["apha", "alpha in (0, inf)", "Delta in [0, inf)", "lambda"],
    ),
    "out of range": (["solve", "ridge_regression", "--set", "Delta=-1"], ["Delta", "-1", "[0, inf)"]),
    "alpha out of range": (["solve", "ridge_regression", "--set", "alpha=0"], ["alpha", "(0, inf)"]),
    "proof of a crossing": (
        ["threshold", "dot_product_attention", "--between", "semantic,positional", "--proof"],
        ["--proof", "--kind where"],
    ),
    "proof out of reach": (["solve", "lasso_regression", "--proof"], ["ridge penalties", "lasso_regression"]),
    "no number": (["solve", "ridge_regression", "--set", "alpha=two"], ["alpha=two", "number"]),
    "no value": (["solve", "ridge_regression", "--set", "alpha"], ["NAME=VALUE"]),
    "given twice": (["solve", "ridge_regression", "--set", "alpha=1", "--set", "alpha=2"], ["alpha", "twice"]),
    "wrong shape": (["solve", "dot_product_attention", "--set", "A=[.6,.4]"], ["A", "(2,)", "(2, 2)"]),
    "fixed size": (["solve", "ridge_regression", "--set", "tokens=2"], ["tokens", "ridge_regression"]),
    "no such encodings": (
        ["solve", "dot_product_attention", "--set", "encodings=[[1,2],[2,1]]"],
        ["positive semidefinite", "-1"],
    ),
    "unknown start": (["solve", "ridge_regression", "--start", "positional"], ["positional", "informed, uninformed"]),
    "unknown integrator": (
        ["solve", "ridge_regression", "--set", "alpha=2", "--integrator", "monte-carlo"],
        ["monte-carlo", "sobol", "prox-space"],
    ),
    "too few points": (
        ["solve", "ridge_regression", "--integrator", "sobol", "--points", "1"],
        ["--points 1", "4 to"],
    ),
    "no alpha": (["solve", "ridge_regression"], ["alpha", "not given", "--set alpha=2"]),
    "no alpha to simulate at": (["simulate", "ridge_regression"], ["alpha", "not given"]),
    "no alpha along lambda": (["curve", "ridge_regression", "--over", "lambda=1:2:2"], ["alpha", "not given"]),
    "no alpha to tune at": (["tune", "ridge_regression", "--over", "lambda=0.1:1"], ["alpha", "not given"]),
    "no alpha of a learner": (["bayes", "ridge_regression"], ["alpha", "not given"]),
    "no alpha of a threshold": (
        ["threshold", "ridge_regression", "--on", "semantic", "--where", "test_error = 0.5", "--over", "lambda=0.1:1"],
        ["alpha", "not given"],
    ),
    "accuracy": (["solve", "ridge_regression", "--accuracy", "0"], ["accuracy", "(0, 1)"]),
    "too many digits": (
        ["solve", "dot_product_attention", "--accuracy", "1e-30"],
        ["one token, one student and one teacher column", "L, s, t = (2, 1, 1)"],
    ),
    "digits of a rule": (
        ["solve", "logistic_regression", "--accuracy", "1e-30", "--integrator", "sobol"],
        ["--integrator", "1e-12 or above"],
    ),
    "threads": (["solve", "ridge_regression", "--threads", "4096"], ["--threads 4096", "1 to"]),
    "a misspelt model": (["solve", "rigde_regression"], ["did you mean ridge_regression?"]),
    "a misspelt parameter": (["solve", "ridge_regression", "--set", "Lamda=1"], ["did you mean lambda?"]),
    "a misspelt quantity": (
        ["threshold", "ridge_regression", "--start", "semantic", "--where", "testerror = 0.4"],
        ["unknown quantity 'testerror' (did you mean test_error?)", "theta_1"],
    ),
    "a parameter as an option": (["solve", "ridge_regression", "--alpha", "2"], ["--set alpha=VALUE"]),
    "a parameter without --set": (["solve", "ridge_regression", "alpha=2"], ["(alpha=2)", "--set alpha=2"]),
    "two values in one": (["solve", "ridge_regression", "--set", "alpha=2,lambda=1"], ["repeat --set"]),
    "a range for a value": (["solve", "ridge_regression", "--set", "alpha=1:2"], ["a range is given to --over"]),
    "missing model file": (["solve", "nowhere/model.py"], ["nowhere/model.py", "No such file"]),
    "no such kind": (
        ["threshold", "dot_product_attention", "--kind", "onset"],
        ["unknown value 'onset' of --kind", "crossing, where, at, spinodal, instability"],
    ),
    "no branch for a spinodal": (
        ["threshold", "dot_product_attention", "--kind", "spinodal"],
        ["--kind spinodal needs --start BRANCH"],
    ),
    "a single threshold into a file": (
        ["threshold", "dot_product_attention", "--kind", "spinodal", "--on", "semantic", "-o", "line.nc"],
        ["-o needs --along"],
    ),
    "no way along": (
        ["threshold", "dot_product_attention", "--kind", "spinodal", "--on", "semantic", "--along", "omega=0.3"],
        ["--along omega=0.3", "NAME=FROM:TO"],
    ),
    "nowhere to follow": (
        ["follow", "ridge_regression", "--over", "alpha=1:1"],
        ["--over alpha=1:1", "two different numbers"],
    ),
    "a followed branch as text": (
        ["follow", "ridge_regression", "--over", "alpha=1:2", "-o", "branch.csv"],
        ["branch.csv", ".nc"],
    ),
    "deflation of one start": (
        ["solve", "ridge_regression", "--deflate", "3"],
        ["--deflate needs --all-branches"],
    ),
    "no branch for the instability line": (
        ["threshold", "tukey_regression", "--kind", "at"],
        ["--kind at needs --start BRANCH"],
    ),
    "condition of another kind": (
        ["threshold", "tukey_regression", "--kind", "at", "--on", "semantic", "--where", "q = 1"],
        ["--where is for --kind where"],
    ),
    "one branch": (
        ["threshold", "dot_product_attention", "--kind", "crossing", "--between", "semantic"],
        ["--between A,B"],
    ),
    "another threshold with a step of breaking": (
        ["threshold", "dot_product_attention", "--kind", "spinodal", "--on", "semantic", "--rsb", "1"],
        ["--rsb needs --kind crossing"],
    ),
    "a critical line with a step of breaking": (
        ["threshold", "dot_product_attention", "--between", "semantic,positional", "--along", "omega=0.3:0.2",
         "--rsb", "1"],
        ["--rsb needs --kind crossing", "--along"],
    ),
    "a crossing with three steps of breaking": (
        ["threshold", "dot_product_attention", "--between", "semantic,positional", "--rsb", "3"],
        ["--rsb 3 is out of range", "from 0 to 2"],
    ),
    "a crossing with a step of breaking of four fields": (
        ["threshold", "value_attention", "--between", "semantic,positional", "--rsb", "1"],
        ["losses of one or two student fields", "depends on 4"],
    ),
    "unknown branch": (
        ["threshold", "dot_product_attention", "--between", "semantic,frozen"],
        ["frozen", "positional"],
    ),
    "unknown observable": (
        ["threshold", "ridge_regression", "--on", "semantic", "--where", "heat = 1"],
        ["heat", "test_error"],
    ),
    "unknown sensitivity": (
        ["solve", "ridge_regression", "--sensitivities", "alpha,omega"],
        ["omega", "known are alpha, sigma, Delta, lambda"],
    ),
    "breaking at a finite temperature": (
        ["solve", "ridge_regression", "--set", "alpha=2", "--inverse-temperature", "2", "--rsb", "1"],
        ["replica symmetry breaking", "zero temperature only"],
    ),
    "more steps of breaking": (["solve", "hinge", "--set", "alpha=2", "--rsb", "3"], ["--rsb 3", "from 0 to 2"]),
    "Parisi parameter alone": (["solve", "hinge", "--set", "alpha=2", "--parisi", "2"], ["give it with rsb=1"]),
    "breaking of all branches": (
        ["solve", "hinge", "--set", "alpha=2", "--rsb", "1", "--all-branches"],
        ["--rsb 1 needs a single start"],
    ),
    "breaking beyond doubles": (
        ["solve", "hinge", "--set", "alpha=2", "--rsb", "1", "--accuracy", "1e-20"],
        ["--rsb 1 needs an --accuracy of"],
    ),
    "verified branches": (
        ["solve", "ridge_regression", "--all-branches", "--verify"],
        ["--verify need a single start"],
    ),
    "nothing to minimise": (
        ["tune", "ridge_regression", "--set", "alpha=2", "--over", "lambda", "--minimise", "heat"],
        ["heat", "test_error"],
    ),
    "tuned and set": (
        ["tune", "ridge_regression", "--over", "lambda", "--set", "lambda=1"],
        ["lambda is fixed by --set"],
    ),
    "tuned along what is set": (
        ["tune", "ridge_regression", "--over", "lambda", "--along", "alpha=1:2:2", "--set", "alpha=1"],
        ["alpha is fixed by --set and varied by --along"],
    ),
    "no interval along": (
        ["tune", "ridge_regression", "--over", "lambda", "--along", "alpha=1:2"],
        ["--along alpha=1:2: NAME=LO:HI:N"],
    ),
    "one optimum in a file": (["tune", "ridge_regression", "--over", "lambda", "-o", "best.nc"], ["--along"]),
    "interval": (["curve", "ridge_regression", "--over", "alpha=2:2:5"], ["alpha=2:2:5", "LO"]),
    "no count": (["curve", "ridge_regression", "--over", "alpha=1:2"], ["NAME=LO:HI:N"]),
    "ratios through zero": (
        ["curve", "ridge_regression", "--over", "lambda=0:1:3:log"],
        ["LO and HI must be above 0 where the steps are ratios"],
    ),
    "values up and down": (["curve", "ridge_regression", "--over", "alpha=1,3,2"], ["values must go up or down"]),
    "set and varied": (
        ["curve", "ridge_regression", "--over", "alpha=1:2:3", "--set", "alpha=1"],
        ["alpha", "--over"],
    ),
    "varied out of range": (
        ["curve", "ridge_regression", "--set", "alpha=2", "--over", "Delta=-1:1:3"],
        ["Delta", "[0, inf)"],
    ),
    "not followed": (["curve", "ridge_regression", "--over", "beta=1:2:3"], ["beta", "alpha"]),
    "no netCDF name": (
        ["curve", "ridge_regression", "--over", "alpha=1:2:3", "-o", "curve.csv"],
        ["curve.csv", ".nc"],
    ),
    "simulated from nowhere": (
        ["simulate", "ridge_regression", "--start", "sideways"],
        ["sideways", "informed, uninformed"],
    ),
    "simulated by prayer": (["simulate", "ridge_regression", "--method", "prayer"], ["prayer", "auto, lbfgs, gd"]),
    "corners": (["simulate", "lasso_regression", "--method", "adam"], ["kinks", "fista, newton, gamp"]),
    "errors counted under given norms": (
        ["simulate", "perceptron", "--set", "alpha=2"],
        ["given norms", "gradient", "loss of perceptron", "discontinuous"],
    ),
    "simulated as text": (["simulate", "ridge_regression", "-o", "runs.csv"], ["runs.csv", ".nc"]),
    "theory of a random start": (
        ["simulate", "ridge_regression", "--start", "random", "--theory"],
        ["--theory needs a named start"],
    ),
    "no curve": (["plot", "nowhere.nc"], ["nowhere.nc", "No such file"]),
    "derive a value": (["derive", "ridge_regression", "--set", "alpha=1"], ["alpha", "tokens"]),
    "derive a format": (["derive", "ridge_regression", "--format", "pdf"], ["pdf", "latex"]),
    "check the cache": (["generate", "model.py", "--check"], ["--check", "--out"]),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "fragments"), WRONG.values(), ids=WRONG)
def test_wrong_input_is_2_with_one_sentence(call, arguments, fragments):
    done = call(*arguments)
    assert (done.status, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    for fragment in fragments:
        assert fragment in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["solve", "ridge_regression", "-o"],
        ["curve", "ridge_regression", "--over", "alpha=1:2:3", "-o"],
        ["simulate", "ridge_regression", "-o"],
        ["derive", "ridge_regression", "-o"],
        ["generate", "ridge_regression", "--out"],
        ["reproduce", "--out"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_an_unwritable_output_is_refused_before_the_work_starts(call, begins, tmp_path, arguments):
    begins(lambda *_, **__: pytest.fail("the computation has started"))
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / ("result.nc" if arguments[0] in ("curve", "simulate") else "result")
    done = call(*arguments, target)
    assert done.status == 2
    assert (
        done.stderr
        == f"saddleforge: cannot write {target}: {tmp_path / 'file'} is a file, not a folder; give another path\n"
    )


def test_a_cache_folder_that_is_a_file_is_2_and_names_the_variable(call, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SADDLEFORGE_CACHE", str(tmp_path / "file"))
    done = call("solve", "ridge_regression")
    assert done.status == 2
    assert "SADDLEFORGE_CACHE" in done.sentence


def test_an_accuracy_that_is_not_reached_is_3_with_the_last_iterate(call):
    arguments = ["solve", "logistic_regression", "--set", "alpha=1", "--integrator", "gauss-hermite", "--points", "8"]
    arguments += ["--accuracy", "1e-9"]
    done = call(*arguments)
    assert done.status == 3
    assert "accuracy not reached, residual" in done.stdout and "theta" in done.stdout
    assert "more points" in done.sentence
    data = json.loads(call(*arguments, "--json").stdout)
    assert data["status"] == "accuracy_not_reached"
    assert data["overlaps"]["theta"][0][0][0][0] == pytest.approx(1.056, abs=2e-3)
    # Overlaps short of the accuracy still have a verdict: a convex loss is stable.
    assert data["stability"]["replicon"] < 1
    assert data["stability"]["verdict"].startswith("RS stable")


def test_a_threshold_that_is_not_there_is_3_and_says_what_was_seen(call):
    done = call(
        "threshold",
        "ridge_regression",
        "--on",
        "semantic",
        "--where",
        "test_error = 9",
        "--over",
        "alpha=1:2",
        "--json",
    )
    data = json.loads(done.stdout)
    assert done.status == 3
    assert (data["value"], data["error"], data["status"]) == (None, None, "not_found")
    assert "another interval" in done.sentence


def interrupted(arguments: list[str], sign: str) -> tuple[int, str, str]:
    """Status, stdout and stderr of a process that is sent SIGINT once the pattern has appeared on its stderr."""
    process = subprocess.Popen([SCRIPT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watchdog = threading.Timer(120, process.kill)
    watchdog.start()
    try:
        assert process.stderr is not None
        seen = []
        for line in process.stderr:
            seen.append(line)
            if re.search(sign, line):
                process.send_signal(signal.SIGINT)
                break
        stdout, rest = process.communicate(timeout=300)
    finally:
        watchdog.cancel()
        process.kill()
    return process.returncode, stdout, "".join(seen) + rest


@pytest.mark.skipif(os.name == "nt", reason="SIGINT to one process is POSIX")
def test_an_interrupted_curve_is_130_and_keeps_its_points(tmp_path):
    file = tmp_path / "curve.nc"
    status, stdout, stderr = interrupted(
        ["curve", "ridge_regression", "--over", "alpha=0.5:2:300", "-o", str(file), "--json", "--threads", "1"],
        r"\[[5-9]/300\]",
    )
    assert status == 130
    assert "Traceback" not in stderr
    data = json.loads(stdout)
    assert data["status"] == "interrupted"
    kept = len(data["points"])
    assert 4 <= kept < 300
    assert f"the {kept} finished points of 300 are kept in {file}" in stderr

    from saddleforge.report.tables import load_netcdf_dataset

    with load_netcdf_dataset(file) as dataset:
        assert dataset.sizes["alpha"] == kept
    assert [path.name for path in tmp_path.iterdir()] == ["curve.nc"]


@pytest.mark.skipif(os.name == "nt", reason="SIGINT to one process is POSIX")
def test_an_interrupted_simulation_is_130_keeps_its_seeds_and_goes_on_from_them(tmp_path, call):
    file = tmp_path / "runs.nc"
    arguments = [
        "simulate",
        "ridge_regression",
        "--set",
        "alpha=1",
        "--d",
        "300",
        "-o",
        str(file),
        "--json",
        "--threads",
        "1",
    ]
    status, stdout, stderr = interrupted([*arguments, "--seeds", "2000"], r"\[[5-9]/2000\]")
    assert status == 130
    assert "Traceback" not in stderr
    data = json.loads(stdout)
    kept = len(data["seeds"])
    assert data["status"] == "interrupted" and 4 <= kept < 2000
    assert f"{kept} of 2000 seeds are kept in {file}" in stderr
    done = call(*arguments, "--seeds", str(kept + 1))
    assert done.status == 0
    again = json.loads(done.stdout)
    assert again["seeds"] == list(range(kept + 1))
    assert again["runs"][:kept] == data["runs"]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="SIGINT to one process is POSIX")
def test_the_file_of_an_interrupted_simulation_holds_the_reported_runs(tmp_path):
    """Tiny runs spend their time writing, where Ctrl-C meets them."""
    from saddleforge.report.tables import load_netcdf_dataset

    for attempt in range(8):
        file = tmp_path / f"{attempt}.nc"
        arguments = ["simulate", "ridge_regression", "--set", "alpha=1", "--d", "60", "--seeds", "2000"]
        arguments += ["--threads", "1", "-o", str(file)]
        status, _, stderr = interrupted(arguments, rf"\[{attempt}/2000\]")
        assert status == 130 and "Traceback" not in stderr
        held = load_netcdf_dataset(file).sizes["seed"] if file.exists() else 0
        if held:
            assert stderr.endswith(f"interrupted; {held} of 2000 seeds are kept in {file}\n")
        else:
            assert stderr.endswith("interrupted before the first of 2000 seeds was finished\n")


def test_seeds_that_do_not_converge_are_3_and_named(call):
    done = call(
        "simulate", "ridge_regression", "--set", "alpha=1", "--d", "60", "--seeds", "2", "--most", "1", "--threads", "1"
    )
    assert done.status == 3
    assert "max iterations: seeds 0, 1" in done.stdout
    assert "2 of 2 seeds did not converge" in done.sentence


@pytest.mark.skipif(os.name == "nt", reason="SIGINT to one process is POSIX")
def test_an_interrupted_threshold_is_130_with_a_sentence():
    status, stdout, stderr = interrupted(
        ["threshold", "dot_product_attention", "--between", "semantic,positional", "--accuracy", "1e-5"], "bracketing"
    )
    assert (status, stdout) == (130, "")
    assert stderr.endswith("saddleforge: interrupted before there was a result\n")
