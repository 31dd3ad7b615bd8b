"""sweep and collect from the outside."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(sys.executable).with_name("saddleforge")
ONE = ["logistic_regression", "--ask", "solve", "--processes", "1"]
GRID = ["--over", "alpha=3:1:4", "--over", "lambda=0.1,0.3"]


def test_sweep_writes_a_file_and_goes_on_from_records_also_of_shards_that_are_collected(call, tmp_path):
    target = tmp_path / "plane.nc"
    first = call("sweep", *ONE, *GRID, "-o", target, "--json")
    assert first.status == 0
    data = json.loads(first.stdout)
    assert data["statuses"] == {"converged": 8} and data["points"] == 8 and data["status"] == "done"
    assert data["varied"] == {"alpha": [3, 7 / 3, 5 / 3, 1], "lambda": [0.1, 0.3]} and data["file"] == str(target)
    assert [line["fixed"] for line in data["lines"]] == [{"lambda": 0.1}, {"lambda": 0.3}]
    whole = target.read_bytes()
    target.unlink()
    assert call("sweep", *ONE, *GRID, "-o", target).status == 0
    assert target.read_bytes() == whole
    assert call("plot", target).status == 0 and target.with_suffix(".png").exists()

    share = call("sweep", *ONE, *GRID, "-o", tmp_path / "shared.nc", "--shard", "1/2")
    assert share.status == 0 and "shard 1 of 2 is kept" in share.stdout
    early = call("collect", tmp_path / "shared.records", "-o", tmp_path / "early.nc")
    assert early.status == 3 and "4 unfinished" in early.sentence and (tmp_path / "early.nc").exists()
    share = call("sweep", *ONE, *GRID, "-o", tmp_path / "shared.nc", "--shard", "2/2")
    assert share.status == 0 and "shard 2 of 2 is kept" in share.stdout
    assert not (tmp_path / "shared.nc").exists()
    done = call("collect", tmp_path / "shared.records", "-o", tmp_path / "joined.nc", "--json")
    assert done.status == 0 and json.loads(done.stdout)["file"] == str(tmp_path / "joined.nc")
    assert (tmp_path / "joined.nc").read_bytes() == whole


def test_a_table_of_rows_is_swept(call, tmp_path):
    table = tmp_path / "rows.csv"
    table.write_text('alpha, lambda, spectrum\n2, 0.1, "[[1, 1]]"\n1.5, 0.2, "[[0.5, 0.5], [0.5, 1.5]]"\n')
    done = call("sweep", *ONE, "--points", table, "--json")
    assert done.status == 0 and json.loads(done.stdout)["statuses"] == {"converged": 2}


BAD = {
    "nothing": ([], "--over NAME=LO:HI:N, once or more, or --points"),
    "an unknown parameter": (["--over", "alfa=1:2:3"], "unknown parameter 'alfa'"),
    "no form": (["--over", "alpha=1:2"], "or a list is expected"),
    "an empty range": (["--over", "alpha=1:2:0"], "the number of points must be 1 to 100000"),
    "a range without a way": (["--over", "alpha=1:1:3"], "LO and HI must differ"),
    "a name twice": (["--over", "alpha=1:2:3", "--over", "alpha=1:2:3"], "alpha is given twice"),
    "too many": (["--over", "alpha=1:2:100000", "--over", "lambda=1:2:10000"], "1e+09 points in all, is too large"),
    "a share that is none": (["--over", "alpha=1:2:3", "--shard", "two", "-o", "s.nc"], "I/N is expected"),
    "a share without a file": (["--over", "alpha=1:2:3", "--shard", "1/2"], "--shard needs -o"),
    "another suffix": (["--over", "alpha=1:2:3", "-o", "s.csv"], "ends in .nc"),
    "no table": (["--points", "nowhere.csv"], "cannot read nowhere.csv"),
    "a start that is none": (["--over", "alpha=1:2:3", "--start", "up,down"], "unknown start 'up'"),
}


@pytest.mark.parametrize("arguments, sentence", BAD.values(), ids=BAD)
def test_a_sweep_that_cannot_be_is_refused_in_a_sentence(call, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    refused = call("sweep", *ONE, *arguments)
    assert refused.status == 2 and sentence in refused.sentence and refused.stdout == ""
    assert not list(tmp_path.iterdir())


def test_a_bad_cell_is_named(call, tmp_path):
    table = tmp_path / "rows.csv"
    table.write_text("alpha,lambda\n1,much\n")
    refused = call("sweep", *ONE, "--points", table)
    assert refused.status == 2 and "row 2: lambda = 'much'" in refused.sentence
    table.write_text("alpha\n")
    assert "contains no points" in call("sweep", *ONE, "--points", table).sentence


def test_a_scheduler_that_is_not_there_is_said(call, tmp_path):
    """Nor can be: its address has no port."""
    pytest.importorskip("distributed")
    refused = call("sweep", *ONE[:3], *GRID, "--scheduler", "tcp://127.0.0.1")
    assert refused.status == 2 and "no Dask scheduler answers at tcp://127.0.0.1" in refused.sentence


def test_a_file_of_something_else_is_spared(call, tmp_path):
    target = tmp_path / "plane.nc"
    target.write_text("mine")
    refused = call("sweep", *ONE, *GRID, "-o", target)
    assert refused.status == 2 and "the file exists" in refused.sentence and target.read_text() == "mine"
    target.unlink()
    assert call("sweep", *ONE, "--over", "alpha=2:1:2", "-o", target).status == 0
    before = target.read_bytes()
    refused = call("sweep", *ONE, *GRID, "-o", target)
    assert refused.status == 2 and "contains the records of another sweep, with varied" in refused.sentence
    assert target.read_bytes() == before
    assert call("sweep", *ONE, "--over", "alpha=1:2:2", "-o", target, "--force").status == 0


def test_ctrl_c_keeps_the_finished_points_and_the_same_command_goes_on(call, tmp_path):
    target, many = tmp_path / "plane.nc", ["--over", "alpha=3:1:2000"]
    running = subprocess.Popen([SCRIPT, "sweep", *ONE, *many, "-o", target], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if any(path.read_bytes().count(b"\n") > 3 for path in tmp_path.glob("plane.records/*.jsonl")):
            break
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=300)
    assert running.returncode == 130
    assert "of 2000 are kept next to" in errors and "the same command continues" in errors
    kept = sum(path.read_bytes().count(b"\n") - 1 for path in tmp_path.glob("plane.records/*.jsonl"))
    assert f"the {kept} finished points" in errors
