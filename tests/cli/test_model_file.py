"""A user's own model, given by the path of its file."""

import json
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

import saddleforge.loops
from saddleforge.base.cache import numba_cache_folder
from saddleforge.problems.solver import load_solver

from .conftest import SCRIPT

MODEL = dedent(
    """
    import saddleforge as sf

    print("a model file may print")

    @sf.model(noise={"u": sf.GaussianNoise(variance="Delta")}, metric=lambda h, Y, u: (Y[0, 0] + u - h[0, 0]) ** 2)
    def own_ridge(X, Y, u, *, Delta=sf.Parameter(0.25, 0)):
        '''Square loss on a noisy label.'''
        return sf.half_square(Y[0, 0] + u - X[0, 0])
    """
)


def with_loops(cache: Path) -> Path:
    """Return the folder, made with what this machine has compiled of the library of loops."""
    for loops in Path(saddleforge.loops.__path__[0]).glob("*.py"):
        for compiled in numba_cache_folder().glob(f"{loops.stem}-*"):
            shutil.copytree(compiled, cache / "numba" / compiled.name)
    cache.mkdir(exist_ok=True)
    return cache


def test_it_is_derived_generated_compiled_and_solved(run, call, tmp_path):
    file = tmp_path / "own_ridge.py"
    file.write_text(MODEL)
    cache = with_loops(tmp_path / "cache")
    done = run(
        "solve",
        file,
        "--set",
        "alpha=2",
        "--set",
        "lambda=0.1",
        "--json",
        "--threads",
        "1",
        SADDLEFORGE_CACHE=str(cache),
    )
    assert done.status == 0, done.stderr
    own = json.loads(done.stdout)  # what the file prints has gone to stderr
    assert "a model file may print" in done.stderr
    assert "deriving and generating" in done.stderr and "compiling" in done.stderr
    assert own["model"] == "own_ridge"
    catalogue = json.loads(call("solve", "ridge_regression", "--set", "alpha=2", "--json").stdout)
    for name in ("training_loss", "test_error"):
        assert own[name] == pytest.approx(catalogue[name], rel=1e-6)
    # The cache holds everything that was written; the second run derives nothing.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "own_ridge.py"]
    again = run(
        "solve",
        file,
        "--set",
        "alpha=2",
        "--set",
        "lambda=0.1",
        "--json",
        "--threads",
        "1",
        SADDLEFORGE_CACHE=str(cache),
    )
    assert again.stdout == done.stdout
    assert "deriving" not in again.stderr and "compiling" not in again.stderr


def test_a_model_has_one_name_in_all_messages(call, tmp_path, monkeypatch):
    """That of `name=`, not that of its file or its function."""
    monkeypatch.setenv("SADDLEFORGE_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "some_file.py"
    file.write_text(MODEL.replace("@sf.model(", "@sf.model(name='ridge of mine', ").replace("a model file may", "I"))
    for arguments in (["--set", "alpha=1", "--start", "lazy"], ["--set", "beta=1"], ["--set", "tokens=2"], []):
        done = call("solve", file, *arguments)
        assert done.status == 2
        assert "ridge of mine" in done.sentence
        assert "some_file" not in done.stderr and "own_ridge" not in done.stderr
    made = call("generate", file, "--json")
    assert json.loads(made.stdout)["model"] == "ridge of mine"
    assert "ridge of mine" in call("derive", file).stdout


@pytest.mark.parametrize(
    ("source", "fragments"),
    [
        ("1 / 0", ["ZeroDivisionError"]),
        ("def (", ["SyntaxError"]),
        ("import not_a_module_at_all", ["ModuleNotFoundError"]),
        ("raise SystemExit(7)", ["ended the program"]),
        ("import os\nos._exit(0)", ["ended the program (exit 0)"]),
        ("import os\nos.abort()", ["ended the program"]),
        ("raise BaseException('mine')", ["fails in line 1", ": BaseException: mine"]),
        (
            "class Mute(Exception):\n    def __str__(self): raise RuntimeError\nraise Mute",
            ["fails in line 3", ": Mute"],
        ),
        (
            "import saddleforge as sf\n@sf.model()\ndef rude(X, Y):\n    raise GeneratorExit\n",
            ["GeneratorExit"],
        ),
        ("x = 1", ["defines 0 models", "below @sf.model(...)"]),
        (
            "import saddleforge as sf\n@sf.model()\ndef flat(X, Y):\n    return Y[0, 0]\n",
            ["flat", "does not depend on X"],
        ),
        ("import saddleforge as sf\nsf.modle", ["AttributeError", "modle"]),
    ],
)
def test_one_that_fails_is_wrong_input_not_a_bug(call, tmp_path, source, fragments):
    file = tmp_path / "broken.py"
    file.write_text(source)
    for command in (["solve", file], ["derive", file], ["generate", file, "--out", tmp_path / "out"]):
        done = call(*command)
        assert done.status == 2
        assert "Traceback" not in done.stderr
        for fragment in fragments:
            assert fragment in done.sentence


@pytest.mark.parametrize("command", ["solve", "derive", "stability"])
def test_a_folder_is_no_model_file(call, tmp_path, command):
    (tmp_path / "model.py").mkdir()
    done = call(command, tmp_path / "model.py")
    assert done.status == 2
    assert str(tmp_path / "model.py") in done.sentence and "directory" in done.sentence


def test_its_generated_solver_can_be_kept_and_checked(call, tmp_path):
    file = tmp_path / "own_ridge.py"
    file.write_text(MODEL)
    out = tmp_path / "solvers"
    assert call("generate", file, "--out", out, "--check").status == 2
    assert call("generate", file, "--out", out).status == 0
    assert call("generate", file, "--out", out, "--check").status == 0
    assert (out / "own_ridge" / "l1_s1_t1_k1" / "channel.py").is_file()


def test_other_words_and_starts_derive_and_compile_nothing(tmp_path, monkeypatch):
    """They stand in a file of their own; the rest is the same files, so that Numba knows them."""
    monkeypatch.setenv("SADDLEFORGE_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "own_ridge.py"
    file.write_text(MODEL)
    first = load_solver(file)
    monkeypatch.setattr("saddleforge.derive.emit.writer.generate", lambda *_: pytest.fail("it is derived again"))
    file.write_text(
        MODEL.replace("noisy", "very noisy").replace("@sf.model(", "@sf.model(starts={'own': sf.Start(teacher=0.1)}, ")
    )
    second = load_solver(file)
    assert first.folder == second.folder
    assert "own" in second.model.STARTS and "own" not in first.model.STARTS
    assert tuple(f"Square loss on a {n} label." for n in ("noisy", "very noisy")) == (
        first.model.SUMMARY,
        second.model.SUMMARY,
    )
    assert pickle.loads(pickle.dumps(second)).model.SUMMARY == second.model.SUMMARY
    assert load_solver(file) == second


@pytest.mark.parametrize("line", ["while True: pass", pytest.param("x = 7**7**7**7", marks=pytest.mark.slow)])
def test_json_is_one_object_of_one_that_writes_to_the_descriptor_and_goes_on_for_ever(tmp_path, line):
    file = tmp_path / "endless.py"
    file.write_text(f"import os\nos.write(1, b'loud')\nos.system('echo louder')\n{line}\n")
    # What takes long to be loaded is not to use up the limit before the file is executed.
    code = "import sys, saddleforge.derive.report.notebook; from saddleforge.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "derive", file, "--json", "--time-limit", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 3 and json.loads(done.stdout)["status"] == "time_limit"
    assert "loud" in done.stderr and "louder" in done.stderr


def test_a_loss_without_end_is_ended_by_the_time_limit(call, tmp_path):
    """Found by trying: a loss that failed, since the limit's error is one that a loss may have."""
    file = tmp_path / "endless.py"
    file.write_text("import saddleforge as sf\n\n@sf.model()\ndef endless(X, Y):\n    while True: pass\n")
    done = call("derive", file, "--time-limit", "0.5")
    assert done.status == 3 and done.sentence == "saddleforge: the time limit of 0.5 s ended the computation"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts on signals")
def test_a_thread_of_a_model_file_that_goes_on_keeps_nobody_from_ending_the_program(tmp_path):
    """Found by trying: a command that is done took no signals, and waited for the thread."""
    file = tmp_path / "threaded.py"
    file.write_text("import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\n")
    command = [SCRIPT, "derive", file, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stderr is not None
        assert "defines 0 models" in running.stderr.readline()
        end = time.monotonic() + 100
        while running.poll() is None and time.monotonic() < end:
            running.terminate()
            time.sleep(0.2)
        running.kill()
        assert json.loads(running.stdout.read())["status"] == "wrong_input"
    assert running.returncode == -signal.SIGTERM
