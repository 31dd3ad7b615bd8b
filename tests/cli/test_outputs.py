"""Where outputs go: to the path that was given, wherever a model goes; over nothing that is somebody else's."""

import json
import os
import signal
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import xarray

from saddleforge.base import presenting
from saddleforge.base.cache import cache_folder
from saddleforge.base.errors import InputError
from saddleforge.branches.curve_results import Curve
from saddleforge.problems.model_file import load_symbolic_model
from saddleforge.report import tables

# What a careless model file does on its way, and a careless loss each time it is called.
WANDERING = dedent(
    """
    import os, sys, tempfile
    import saddleforge as sf

    elsewhere = tempfile.mkdtemp()
    os.chdir(elsewhere)
    sys.path.insert(0, elsewhere)
    sys.argv.append("--more")
    os.environ["SADDLEFORGE_CACHE"] = elsewhere

    @sf.model()
    def wandering(X, Y):
        '''Square loss.'''
        os.chdir(elsewhere)
        return sf.half_square(Y[0, 0] - X[0, 0])
    """
)


@pytest.fixture
def wandering(tmp_path, monkeypatch):
    """The name of such a file in the working directory."""
    (tmp_path / "wandering.py").write_text(WANDERING)
    monkeypatch.chdir(tmp_path)
    return "wandering.py"


def test_reading_a_model_file_leaves_the_process_as_it_was(wandering, tmp_path):
    path, arguments, environment, cache = list(sys.path), list(sys.argv), dict(os.environ), cache_folder()
    load_symbolic_model(wandering)
    assert Path.cwd() == tmp_path
    assert (sys.path, sys.argv, dict(os.environ), cache_folder()) == (path, arguments, environment, cache)


def test_a_model_that_fails_leaves_the_working_directory_too(call, wandering, tmp_path):
    Path(wandering).write_text(WANDERING + "\n1 / 0\n")
    assert call("derive", wandering, "-o", "text.txt").status == 2
    assert Path.cwd() == tmp_path and not Path("text.txt").exists()


def test_an_output_is_written_where_the_command_began(call, wandering, tmp_path):
    done = call("derive", wandering, "-o", "text.txt")
    assert done.status == 0 and done.stdout.endswith("wrote text.txt\n")
    assert (tmp_path / "text.txt").read_text().startswith("wandering")


@pytest.mark.slow
def test_every_output_of_a_wandering_model_is_found_where_it_was_asked_for(call, wandering, tmp_path, monkeypatch):
    monkeypatch.setenv("SADDLEFORGE_CACHE", "cache")
    assert call("generate", wandering, "--out", "solvers").status == 0
    monkeypatch.chdir(tmp_path)
    assert call("solve", wandering, "--set", "alpha=1", "-o", "one.json").status == 0
    monkeypatch.chdir(tmp_path)
    (tmp_path / wandering).write_text(WANDERING + "\n# so that it is executed again\n")
    assert call("solve", wandering, "--set", "alpha=1", "--from", "one.json", "-o", "two.json").status == 0
    assert call("curve", wandering, "--over", "alpha=1:1.2:2", "-o", "curve.nc").status == 0
    assert call("follow", wandering, "--over", "alpha=1:1.1", "-o", "branch.nc").status == 0
    assert call("simulate", wandering, "--set", "alpha=1", "--d", "30", "--seeds", "1", "-o", "runs.nc").status == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        "wandering.py", "cache", "solvers", "one.json", "two.json", "curve.nc", "branch.nc", "runs.nc",
    }  # fmt: skip
    assert (tmp_path / "solvers" / "wandering" / "l1_s1_t1_k1" / "model.py").is_file()


WRITING = {
    "derive": ["derive", "ridge_regression", "-o", "result.txt"],
    "solve": ["solve", "ridge_regression", "-o", "result.json"],
    "curve": ["curve", "ridge_regression", "--over", "alpha=1:2:3", "-o", "result.nc"],
    "follow": ["follow", "ridge_regression", "--over", "alpha=1:2", "-o", "result.nc"],
    "threshold": ["threshold", "ridge_regression", "--on", "semantic", "--where", "q = 0.3", "--along",
                  "lambda=0.1:0.2", "-o", "result.nc"],
    "tune": ["tune", "ridge_regression", "--over", "lambda", "--along", "alpha=1:2:2", "-o", "result.nc"],
}  # fmt: skip


@pytest.mark.parametrize("arguments", WRITING.values(), ids=WRITING)
def test_a_file_that_is_there_is_not_written_over_and_nothing_is_computed(
    call, begins, monkeypatch, tmp_path, arguments
):
    def started(*_arguments_of_compiled_metric, **_named):
        raise AssertionError("the computation has started")

    begins(started)
    monkeypatch.chdir(tmp_path)
    file = Path(arguments[-1])
    file.write_text("years of work")
    done = call(*arguments)
    assert done.status == 2
    assert done.stderr == (
        f"saddleforge: cannot write {file}: the file exists; give another name, or --force to write over it\n"
    )
    assert file.read_text() == "years of work"
    assert call(*arguments, "--force").status == 1  # it goes on to the computation


def test_with_force_a_file_is_written_over(call, tmp_path):
    file = tmp_path / "one.json"
    file.write_text("years of work")
    assert call("solve", "ridge_regression", "--set", "alpha=2", "-o", file, "--force").status == 0
    assert json.loads(file.read_text())["model"] == "ridge_regression"


def test_a_pipe_is_never_replaced_by_an_output_file(call, tmp_path):
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    for force in ([], ["--force"]):
        done = call("solve", "ridge_regression", "-o", pipe, *force)
        assert done.status == 2 and "not a regular file" in done.sentence


def test_a_simulation_spares_a_file_that_is_not_its_own(call, tmp_path):
    file = tmp_path / "runs.nc"
    arguments = [
        "simulate",
        "ridge_regression",
        "--set",
        "alpha=2",
        "--threads",
        "1",
        "--seeds",
        "1",
        "-o",
        file,
        "--d",
    ]
    file.write_text("a thesis")
    done = call(*arguments, "40")
    assert done.status == 2 and file.read_text() == "a thesis" and "--force" in done.sentence
    assert call(*arguments, "40", "--force").status == 0
    whole = file.read_bytes()
    done = call(*arguments, "50")
    assert done.status == 2 and file.read_bytes() == whole
    assert f"cannot write {file}: " in done.sentence and "contains another simulation" in done.sentence
    assert done.sentence.endswith("give another name, or --force to write over it")
    assert call(*arguments, "40").status == 0  # its own: the seed is there already


def test_a_picture_is_drawn_again_from_the_same_table_and_spares_any_other_file(call, tmp_path):
    line = xarray.Dataset({name: ("point", np.arange(3.0)) for name in ("over", "value", "error")})
    words = {"kind": "crossing", "branches": "one and another", "special": "[]", "parameters": "{}"}
    line.attrs = {"model": "ridge_regression", "parameter": "alpha", "over": "lambda", **words}
    table, other = tmp_path / "line (1).nc", tmp_path / "line.nc"
    for file in (table, other):
        tables.save_dataset_as_netcdf(line, file)
    for kind, begins in (("png", b"\x89PNG\r"), ("pdf", b"%PDF-"), ("svg", b"<?xml")):
        picture = tmp_path / f"figure.{kind}"
        assert call("plot", table, "-o", picture).status == 0
        drawn = picture.read_bytes()
        assert drawn.startswith(begins)
        assert call("plot", table, "-o", picture).status == 0
        assert picture.read_bytes() == drawn
        done = call("plot", other, "-o", picture)
        assert done.status == 2 and picture.read_bytes() == drawn
        assert f"cannot write {picture}: the file exists, and was not drawn from {other}" in done.sentence
        picture.write_text("a painting")
        assert call("plot", table, "-o", picture).status == 2 and picture.read_text() == "a painting"
    assert call("plot", table, "-o", picture, "--force").status == 0 and picture.read_bytes() == drawn


def test_solvers_do_not_replace_what_was_not_generated(call, tmp_path):
    folder = tmp_path / "ridge_regression" / "l1_s1_t1_k1"
    folder.mkdir(parents=True)
    (tmp_path / "catalogue.py").write_text("my own")
    done = call("generate", "ridge_regression", "--out", tmp_path)
    assert done.status == 2 and (tmp_path / "catalogue.py").read_text() == "my own"


def test_a_folder_of_somebody_else_is_no_folder_of_results(call, monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr("saddleforge.reproduce.jobs.reproduce", lambda *a: started.append(a))
    (tmp_path / "report.md").write_text("my report")
    done = call("reproduce", "--out", tmp_path)
    assert done.status == 2 and not started
    assert str(tmp_path / "report.md") in done.sentence and "--force" in done.sentence
    (tmp_path / "steps").mkdir()  # of an earlier run
    call("reproduce", "--out", tmp_path)
    assert started == [(tmp_path, None)]


# Ctrl-C: what is said is what a file holds


def test_ctrl_c_while_the_file_is_written_waits_for_it(call, monkeypatch, tmp_path):
    def pressed(dataset, path):
        signal.raise_signal(signal.SIGINT)
        kept(dataset, path)

    kept = tables.save_dataset_as_netcdf
    monkeypatch.setattr(presenting, "save", pressed)
    file = tmp_path / "curve.nc"
    done = call("curve", "ridge_regression", "--over", "alpha=1:2:3", "-o", file)
    assert done.status == 0 and f"wrote {file}" in done.stdout
    assert tables.load_netcdf_dataset(file).sizes["alpha"] == 3


def test_a_curve_interrupted_before_its_first_point_claims_nothing(call, monkeypatch, tmp_path):
    def pressed(*_arguments_of_compiled_metric, **_named):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("saddleforge.extensions.breaking.curve.curve", pressed)
    file = tmp_path / "curve.nc"
    done = call("curve", "ridge_regression", "--over", "alpha=1:2:3", "-o", file)
    assert (done.status, done.stdout) == (130, "")
    assert done.sentence == "saddleforge: interrupted before the first of 3 points was finished"
    assert not file.exists()


def test_ctrl_c_that_compiled_code_made_a_system_error_of_keeps_what_is_finished(call, monkeypatch, tmp_path):
    from saddleforge.extensions.breaking.curve import curve

    def pressed(*arguments, on_point, values, **named):
        found = curve(*arguments, values=values[-1:], on_point=on_point, **named)
        assert isinstance(found, Curve)
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as cause:
            raise SystemError("returned a result with an exception set") from cause

    monkeypatch.setattr("saddleforge.extensions.breaking.curve.curve", pressed)
    file = tmp_path / "curve.nc"
    done = call("curve", "ridge_regression", "--over", "alpha=1:2:3", "-o", file)
    assert done.status == 130
    assert done.sentence == f"saddleforge: interrupted; the one finished point of 3 is kept in {file}"
    assert np.array_equal(tables.load_netcdf_dataset(file)["alpha"].values, [2.0])


def test_a_full_disk_costs_the_file_and_not_the_result(call, monkeypatch, tmp_path):
    def full(_dataset, path):
        raise InputError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr(presenting, "save", full)
    done = call("follow", "ridge_regression", "--over", "alpha=2:2.1", "-o", tmp_path / "branch.nc")
    assert done.status == 2 and "No space left" in done.sentence
    assert "alpha = 2.1 reached" in done.stdout or "found on [2, 2.1]" in done.stdout
    data = json.loads(
        call("follow", "ridge_regression", "--over", "alpha=2:2.1", "-o", tmp_path / "branch.nc", "--json").stdout
    )
    assert (data["status"], data["file"]) == ("wrong_input", None)
    assert data["points"]
