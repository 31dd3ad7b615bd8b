"""Only what the user names is executed: no expression, no file next to it, no name within a table."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import xarray

import saddleforge

PROGRAM = Path(sys.executable).with_name("saddleforge")
TRAP = "open('executed', 'a').write(__name__)\nraise SystemExit(7)\n"
CALLS = (
    "__import__('os').system('touch executed')",
    "open('executed','w')",
    "(lambda: open('executed','w'))()",
    "[open('executed','w') for _ in [0]]",
    "().__class__.__base__.__subclasses__()",
    "test_error.__class__",
    "f'{open(chr(101))}'",
    "eval('1')",
    "q[0]",
    "1 if q else 2",
    "(x := 1)",
    "9**9**9**9",
    "!!python/object/apply:os.system ['touch executed']",
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("text", [CALLS[0], *[pytest.param(text, marks=pytest.mark.slow) for text in CALLS[1:]]])
def test_expressions_are_parsed_and_never_evaluated(here, call, text):
    for arguments in (
        ["threshold", "ridge_regression", "--where", f"test_error = {text}"],
        ["threshold", "ridge_regression", "--where", text],
        ["curve", "ridge_regression", "--over", f"alpha={text}:2:2"],
        ["curve", "ridge_regression", "--over", f"{text}=1:2:2"],
        ["sweep", "ridge_regression", "--over", f"alpha={text}", "--processes", "1"],
        ["solve", "ridge_regression", "--set", f"alpha={text}"],
        ["solve", text],
        ["derive", "ridge_regression", "--rename", text],
        ["dynamics", "ridge_regression", "--rate", text, "--time", "0:1"],
        ["dynamics", "ridge_regression", "--rate", "1", "--time", "0:1", "--start", f"theta={text}"],
        ["tune", "ridge_regression", "--over", "lambda=0.1:1", "--minimise", text],
    ):
        done = call(*arguments)
        assert done.status == 2 and done.sentence.startswith("saddleforge: "), arguments


def test_tables_of_points_and_clusters_are_data(here, call):
    (here / "points.csv").write_text(f'alpha,lambda\n"{CALLS[0]}",1\n')
    assert call("sweep", "ridge_regression", "--points", "points.csv").status == 2
    (here / "cluster.yaml").write_text(f"kind: {CALLS[-1]}\n")
    done = call("sweep", "ridge_regression", "--over", "alpha=1,2", "--over", "lambda=1,2", "--cluster", "cluster.yaml")
    assert done.status == 2


def test_a_model_that_a_table_names_is_not_executed(here, call):
    (here / "evil.py").write_text(TRAP)
    attributes = {"model": "./evil.py", "parameter": "alpha", "source": "evil.py", "parameters": "{}", "digest": "0"}
    for mark in ("", "special", "plan", "sweep", "phases", "dynamics"):
        table = xarray.Dataset({"q": ("alpha", [1.0])}, coords={"alpha": [1.0]}, attrs=attributes)
        table.attrs |= {mark: "[]"} if mark else {}
        table.to_netcdf("table.nc", engine="h5netcdf")
        assert call("plot", "table.nc", "-o", f"{mark}.png").status == 2
        for command in (
            ["simulate", "ridge_regression", "--set", "alpha=2", "--d", "20", "--seeds", "1", "-o", "table.nc"],
            ["sweep", "ridge_regression", "--over", "alpha=1,2", "--processes", "1", "-o", "table.nc"],
        ):
            assert call(*command).status == 2


def test_files_of_the_working_directory_stand_for_no_module(here):
    for name in ("numpy", "json", "pickle", "select", "heapq", "saddleforge", "multiprocessing", "ridge_regression"):
        (here / f"{name}.py").write_text(TRAP)
    environment = {**os.environ, "NUMBA_NUM_THREADS": "2"}
    arguments = ["simulate", "ridge_regression", "--set", "alpha=2", "--d", "20", "--seeds", "2", "--threads", "2"]
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_sweep_workers_import_no_modules_from_the_working_directory(here):
    for name in ("multiprocessing", "json", "distributed", "pickle"):
        (here / f"{name}.py").write_text(TRAP)
    arguments = ["sweep", "ridge_regression", "--over", "alpha=1,2", "--over", "lambda=1,2", "--processes", "2"]
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_catalogue_name_is_never_a_file(here, call):
    (here / "ridge_regression").write_text(TRAP)
    (here / "mine").write_text(TRAP)
    assert call("solve", "ridge_regression", "--set", "alpha=2").status == 0
    assert call("solve", "mine").status == 2


def test_nothing_is_unpickled_but_pipes_of_own_processes_and_the_private_cache():
    folders = [Path(path) for path in saddleforge.__path__]
    unpickling = re.compile(r"pickle\.loads?\(|allow_pickle|shelve|yaml\.(?:unsafe_)?load\(|\bmarshal\b|joblib")
    found = {
        file.relative_to(folder).as_posix()
        for folder in folders
        for file in folder.rglob("*.py")
        if unpickling.search(file.read_text(encoding="utf-8"))
    }
    assert found == {"problems/compiled.py", "extensions/simulation/workers.py", "base/environment.py"}
