"""derive, generate, curve and plot from the outside."""

import json
from types import SimpleNamespace

import pytest

from saddleforge.report.branches import chosen_columns


def test_derive_prints_the_equations_or_writes_them_whole(call, tmp_path):
    text = call("derive", "ridge_regression")
    assert text.status == 0
    for title in ("Free entropy", "Saddle point", "Stability"):
        assert title.lower() in text.stdout.lower()
    file = tmp_path / "appendix.tex"
    assert call("derive", "ridge_regression", "--format", "latex", "-o", file).status == 0
    assert file.read_text().rstrip().endswith(r"\end{document}")
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.slow
def test_derive_shows_the_steps_in_symbols_of_ones_own(call):
    told = call("derive", "ridge_regression", "--steps", "--rename", "theta=T")
    assert told.status == 0
    assert "Step 9" in told.stdout and "Checked:" in told.stdout and "FAILED" not in told.stdout
    assert "T_c = E_ν[γ_c R B πᵀ]" in told.stdout and "θ" not in told.stdout


@pytest.mark.slow
def test_derive_breaks_replica_symmetry_once(call):
    told = call("derive", "ridge_regression", "--steps", "--rsb", "1", "--rename", "q=P")
    assert told.status == 0
    assert "Step 12" in told.stdout and "FAILED" not in told.stdout
    assert "ΔP_c = 1/𝔶 E_ν[γ_c R~] - 1/𝔶 E_ν[γ_c R]" in told.stdout


@pytest.mark.slow
def test_derive_breaks_replica_symmetry_twice(call):
    told = call("derive", "ridge_regression", "--steps", "--rsb", "2")
    assert told.status == 0
    assert "Step 8" in told.stdout and "FAILED" not in told.stdout
    assert "Δ₂q_c = 1/𝔶₂ E_ν[γ_c R₂] - 1/𝔶₂ E_ν[γ_c R]" in told.stdout


def test_breaking_it_otherwise_is_refused(call):
    for given, sentence in (
        (("--steps", "--rsb", "3"), "--rsb 3 is out of range; allowed are whole numbers from 0 to 2"),
        (("--rsb", "1"), "give --steps, too"),
        (("--steps", "--rsb", "one"), "valid integer"),
    ):
        refused = call("derive", "ridge_regression", *given)
        assert refused.status == 2
        assert sentence in refused.sentence


def test_a_name_that_cannot_be_given_is_refused(call):
    for pair, sentence in (("theta=m", "rename m, too"), ("thta=T", "unknown symbol 'thta'"), ("theta", "NAME=SYMBOL")):
        refused = call("derive", "ridge_regression", "--rename", pair)
        assert refused.status == 2
        assert sentence in refused.sentence


@pytest.mark.slow
def test_solve_curve_and_follow_print_symbols_of_ones_own(call):
    chosen = "--set", "alpha=1.0", "--accuracy", "1e-3", "--rename", "theta=T", "--rename", "lambda=k_0"
    told = call("solve", "ridge_regression", *chosen)
    assert told.status == 0
    assert "   T 0." in told.stdout and "theta" not in told.stdout and "k_0 = 0.1" in told.stdout
    assert set(json.loads(call("solve", "ridge_regression", *chosen, "--json").stdout)["overlaps"]) >= {"theta"}
    for command, ends in (("follow", "alpha=1:1.2"), ("curve", "alpha=1:1.2:2")):
        told = call(command, "ridge_regression", "--over", ends, "--rename", "theta=T", "--rename", "alpha=a")
        assert told.status == 0
        assert "   T  " in told.stdout and "theta" not in told.stdout and "alpha" not in told.stdout
    for command in (
        ("solve", "ridge_regression", "--set", "alpha=1"),
        ("curve", "ridge_regression", "--over", "alpha=1:2:2"),
    ):
        refused = call(*command, "--rename", "theta=V")
        assert refused.status == 2 and refused.sentence.endswith("V would stand for theta and for V; rename V, too")


def test_derive_takes_structural_sizes(call):
    data = json.loads(call("derive", "dot_product_attention", "--set", "tokens=3", "--json").stdout)
    assert data["structure"] == {"tokens": 3, "student_rank": 1, "teacher_rank": 1, "clusters": 1}
    assert "L = 3" in data["text"]


def test_a_stale_solver_is_named_with_the_command_that_renews_it(call, tmp_path):
    assert call("generate", "ridge_regression", "--out", tmp_path).status == 0
    prior = tmp_path / "ridge_regression" / "l1_s1_t1_k1" / "prior.py"
    fresh = prior.read_text()
    prior.write_text(fresh + "# edited\n")
    orphan = prior.with_name("old.py")
    orphan.write_text("")
    stale = call("generate", "ridge_regression", "--out", tmp_path, "--check")
    assert stale.status == 2
    assert "prior.py is stale" in stale.stdout and "old.py is an orphan" in stale.stdout
    command = stale.sentence.split("`")[1].split()
    assert command[0] == "saddleforge"
    assert call(*command[1:]).status == 0
    assert prior.read_text() == fresh and not orphan.exists()
    assert call("generate", "ridge_regression", "--out", tmp_path, "--check").status == 0


def test_generate_does_not_delete_the_files_of_somebody_else(call, tmp_path):
    (tmp_path / "thesis.tex").write_text("years")
    done = call("generate", "ridge_regression", "--out", tmp_path)
    assert done.status == 2
    assert (tmp_path / "thesis.tex").read_text() == "years"


def test_a_curve_is_followed_written_and_drawn(call, tmp_path):
    file = tmp_path / "curve.nc"
    done = call("curve", "ridge_regression", "--over", "alpha=1:2:3", "-o", file)
    assert done.status == 0
    assert "semantic branch found on [1, 2]" in done.stdout and f"wrote {file}" in done.stdout

    from saddleforge.report.tables import load_dataset

    with load_dataset(file) as dataset:
        assert dataset["alpha"].values == pytest.approx([1, 1.5, 2])
    assert call("plot", file).status == 0
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_curve_in_a_parameter_named_lambda(call):
    data = json.loads(
        call("curve", "ridge_regression", "--set", "alpha=1", "--over", "lambda=0.1:0.3:2", "--json").stdout
    )
    assert data["status"] == "done"
    assert [point["parameters"]["lambda"] for point in data["points"]] == [[0.1], [0.3]]
    assert "lambda" not in data["parameters"]


def test_a_file_that_is_no_curve_is_refused(call, tmp_path):
    file = tmp_path / "curve.nc"
    file.write_text("no netCDF")
    done = call("plot", file)
    assert done.status == 2
    assert str(file) in done.sentence


def test_a_branch_that_is_not_there_is_not_converged(call):
    done = call("curve", "ridge_regression", "--start", "uninformed", "--over", "alpha=1:2:2")
    assert done.status == 3
    assert "uninformed branch was found neither" in done.sentence


@pytest.mark.parametrize(("complete", "status"), [(True, 0), (False, 3), (None, 130)])
def test_reproduce_ends_as_its_results_do(call, monkeypatch, tmp_path, complete, status):
    def run(out, figures):
        if complete is None:
            raise KeyboardInterrupt
        results = {"figures": figures, "complete": complete}
        return SimpleNamespace(complete=complete, report=out / "report.html", to_json=lambda: results)

    monkeypatch.setattr("saddleforge.reproduce.jobs.reproduce", run)
    done = call("reproduce", "--out", tmp_path, "--figure", "overlaps", "--json")
    assert done.status == status
    data = json.loads(done.stdout)
    if complete is None:
        assert data["status"] == "interrupted"
        assert f"kept in {tmp_path}" in done.sentence
    else:
        assert data == {"schema": 1, "figures": ["overlaps"], "complete": complete}


def test_an_unknown_figure_is_refused_at_once(call, tmp_path):
    done = call("reproduce", "--out", tmp_path, "--figure", "nonsense")
    assert done.status == 2
    assert "nonsense" in done.sentence and "known are" in done.sentence


def test_a_curve_descends_and_shows_the_columns_that_are_asked_for(call):
    done = call("curve", "ridge_regression", "--over", "alpha=3:1:3", "--columns", "theta,test_error,branch")
    head, *rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert head == ["alpha", "theta_1", "test_error", "branch"] and done.status == 0
    assert [float(row[0]) for row in rows] == [3, 2, 1] and all(row[3] == "semantic" for row in rows)
    up = json.loads(call("curve", "ridge_regression", "--over", "alpha=1:3:3", "--json").stdout)
    down = json.loads(call("curve", "ridge_regression", "--over", "alpha=3:1:3", "--json").stdout)
    assert [p["parameters"]["alpha"] for p in down["points"]] == [3, 2, 1]
    assert [p["parameters"]["alpha"] for p in up["points"]] == [1, 2, 3]


def test_an_entry_of_an_overlap_is_a_column_of_every_token(call):
    known = [f"theta_{token}_{entry}{end}" for token in (1, 2) for entry in (11, 21) for end in ("", "_error")]
    assert chosen_columns([*known, "test_error", "test_error_error"], ["theta_21", "test_error"]) == [
        "theta_1_21",
        "theta_2_21",
        "test_error",
    ]
    assert len(chosen_columns(known, ["theta"])) == 4
    done = call("curve", "ridge_regression", "--over", "alpha=1:3:3", "--columns", "theta_21")
    assert done.status == 2 and "theta_1" in done.sentence  # before anything is solved
    assert call("follow", "ridge_regression", "--over", "alpha=2:1.9", "--columns", "arclength").status == 0


def test_a_branch_is_named_by_its_start_everywhere(call):
    for option in ("--start", "--on"):
        chosen = ("ridge_regression", option, "semantic", "--over", "alpha=1:3", "--accuracy", "1e-2")
        assert call("threshold", *chosen, "--where", "test_error = 0.5").status == 0


def test_one_of_several_models_of_a_file_is_picked_by_name(call, tmp_path):
    model = (
        "@sf.model(tokens=1, student=1, teacher=1)\ndef {}(X, Y):\n    return sf.half_square({} * Y[0, 0] - X[0, 0])\n"
    )
    file = tmp_path / "two.py"
    file.write_text("import saddleforge as sf\n" + model.format("one", 1) + model.format("double", 2))
    several = call("solve", file, "--set", "alpha=2")
    assert several.status == 2 and f"(one, double): name one, as {file}:one" in several.sentence
    assert "; known are one, double" in call("solve", f"{file}:three", "--set", "alpha=2").sentence
    for name, factor in (("one", ""), ("double", "2 ")):
        text = call("derive", f"{file}:{name}").stdout
        assert text.startswith(f"{name}\n") and f"= ({factor}y - x)²/2" in text


def test_what_a_parameter_means_is_said_where_it_is_refused(call):
    assert (
        "Delta in [0, inf) (Δ, variance of the label noise)"
        in call("solve", "ridge_regression", "--set", "a=1").sentence
    )


def test_several_parameters_are_tuned_together(call, tmp_path):
    chosen = ("--set", "alpha=2", "--over", "lambda=0.01:10", "--over", "Delta=0.1:1", "--accuracy", "1e-2")
    done = call("tune", "ridge_regression", *chosen, "-o", tmp_path / "best.json")
    assert (
        done.status == 3 and "Delta = 0.1 (the lower end of the interval)" in done.stdout and "wider" in done.sentence
    )
    assert json.loads((tmp_path / "best.json").read_text())["parameter"] == ["lambda", "Delta"]
    refused = call("tune", "ridge_regression", *chosen, "--along", "alpha=1:2:3")
    assert refused.status == 2 and "one --over" in refused.sentence
    alone = ("--set", "alpha=2", "--over", "lambda=0.01:10", "--accuracy", "1e-2")
    assert call("tune", "ridge_regression", *alone, "--integrator", "gauss-hermite", "--points", "20").status == 0


GROUPED = '''
import saddleforge as sf


def of(group):
    return lambda h, Y, k: sf.by_label(k[0], *[(Y[0] - h[0]) ** 2 if g == group else 0 for g in (0, 1)])


@sf.model(clusters=2, law=sf.clustered_tokens, regulariser=sf.Ridge(0.1), noise={"u": sf.GaussianNoise(0.5)},
          metric={"first": of(0), "second": of(1)})
def grouped(X, Y, k, u):
    """Least squares in two groups of inputs."""
    return sf.half_square(Y[0] + u - X[0])
'''


@pytest.mark.slow
def test_a_metric_is_chosen_by_name(call, tmp_path, monkeypatch):
    """The error of group g is p_g (rho_g - 2 theta_g + q_g + m_g^2); files and tables say whose it is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grouped.py").write_text(GROUPED)
    rest = ["--set", "alpha=2", "--set", "labels=[0.7,0.3]", "--quiet"]
    drawn = ["simulate", "grouped.py", *rest, "--d", "60", "--seeds", "1", "-o", "runs.nc"]
    for g, (name, share) in enumerate({"first": 0.7, "second": 0.3}.items()):
        told = json.loads(call(*drawn, "--force", "--metric", name, "--json").stdout)
        q, theta, m = (told["overlaps"][block][0][g] for block in ("q", "theta", "m"))
        error = share * (0.25 - 2 * theta[0][0] + q[0][0] + m[0] ** 2)
        assert told["metric"] == name and told["test_error"] == pytest.approx(error, rel=1e-6)
    other = call(*drawn)  # the first metric is that of no --metric; the file holds the second
    assert other.status == 2 and "its metric is second" in other.stderr
    assert "(first)" in call(*drawn, "--force", "--metric", "first").stdout
    found = call("tune", "grouped.py", *rest, "--over", "Delta=1:2", "--metric", "third")
    assert found.status == 2 and "known are first, second" in found.sentence
    found = call("tune", "grouped.py", *rest, "--over", "lambda=0.01:1", "--metric", "second", "--accuracy", "1e-2")
    assert found.status == 0 and "test error (second) is least" in found.stdout


@pytest.mark.parametrize(
    ("given", "over"),
    [
        (["A=[[.5,.5],[.5,.5]]:[[.6,.4],[.4,.6]]"], "path_A=0.5:1:2"),
        pytest.param([], "A[1,2]=0.35:0.4:2", marks=pytest.mark.slow),
    ],
)
def test_a_curve_goes_along_arrays(call, tmp_path, given, over):
    """Both end at the default array, of which theta is known; what is written can be drawn."""
    file = tmp_path / "line.nc"
    sets = [word for item in ["alpha=2", *given] for word in ("--set", item)]
    done = call("curve", "dot_product_attention", *sets, "--over", over, "--quiet", "-o", file)
    assert done.status == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith(over.partition("=")[0]) and "0.1581" in done.stdout
    assert call("plot", file).status == 0 and file.with_suffix(".png").stat().st_size > 10_000


def test_an_array_in_place_of_a_number_is_told_the_way(call):
    done = call("curve", "dot_product_attention", "--set", "alpha=2", "--over", "A=[[1,0],[0,1]]:[[0,1],[1,0]]:3")
    assert done.status == 2 and "--set 'A=[..]:[..]' --over path_A=0:1:11" in done.sentence
