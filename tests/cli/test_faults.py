"""What goes wrong around the program: signals, streams, libraries' environment. A sentence, a status, nothing lost."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import SCRIPT

PROGRAM = str(SCRIPT)
SOLVE = ["solve", "ridge_regression", "--set", "alpha=2"]


def saddleforge(arguments, redirected="", **environment):
    """Status, standard output and standard error of a command line with redirections of a shell."""
    line = " ".join([PROGRAM, *arguments, redirected])
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env={**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_a_full_standard_output_is_said_and_loses_no_file(tmp_path):
    file = tmp_path / "curve.nc"
    arguments = ["curve", "ridge_regression", "--over", "alpha=1:2:2", "-o", str(file), "--quiet"]
    status, _, stderr = saddleforge(arguments, ">/dev/full")
    assert (status, stderr) == (2, "saddleforge: cannot write to standard output: No space left on device\n")
    assert file.exists()


def test_closed_streams_lose_nothing_but_what_they_were_to_print(tmp_path):
    file = tmp_path / "curve.nc"
    arguments = ["curve", "ridge_regression", "--over", "alpha=1:2:2", "-o", str(file)]
    assert saddleforge(arguments, ">&- 2>&-") == (0, "", "")
    assert file.exists()
    status, stdout, _ = saddleforge(SOLVE, "2>&-")
    assert status == 0 and "converged" in stdout


def test_characters_that_a_stream_does_not_have_are_escapes():
    status, stdout, stderr = saddleforge(
        ["derive", "ridge_regression", "--quiet"], PYTHONIOENCODING="ascii", PYTHONUTF8="0"
    )
    assert (status, stderr) == (0, "") and "\\u03b1 d samples" in stdout


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("NUMBA_NUM_THREADS", "0", "NUMBA_NUM_THREADS = '0' is out of range; allowed are whole numbers from 1 to 4096"),
        (
            "NUMBA_NUM_THREADS",
            "100000",
            "NUMBA_NUM_THREADS = '100000' is out of range; allowed are whole numbers from 1 to 4096",
        ),
        (
            "NUMBA_NUM_THREADS",
            "two",
            "NUMBA_NUM_THREADS = 'two' is out of range; allowed are whole numbers from 1 to 4096",
        ),
    ],
)
def test_unusable_numba_settings_are_wrong_input(variable, value, sentence):
    assert saddleforge(SOLVE, **{variable: value}) == (2, "", f"saddleforge: {sentence}\n")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of address space differ")
def test_too_little_address_space_is_said_before_libraries_load():
    line = f"ulimit -v 500000; {PROGRAM} {' '.join(SOLVE)} --json"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.returncode == 2 and json.loads(done.stdout)["status"] == "wrong_input"
    assert (
        done.stderr
        == "saddleforge: address space is limited to 0.51 GB (ulimit -v); 1 GB or more are needed; raise the limit\n"
    )


@pytest.mark.slow
def test_json_is_one_object_whatever_a_model_file_writes_to_the_descriptor(tmp_path):
    model = tmp_path / "loud.py"
    model.write_text(
        "import os\nimport saddleforge as sf\nos.write(1, b'loud')\n\n"
        "@sf.model(starts={'semantic': sf.Start(teacher='1/2')})\n"
        "def loud(X, Y):\n    return (X[0, 0] - Y[0, 0]) ** 2 / 2\n"
    )
    status, stdout, stderr = saddleforge(["solve", str(model), "--set", "alpha=2", "--json"])
    assert status == 0 and json.loads(stdout)["status"] == "converged" and "loud" in stderr


def _begun(arguments, sign):
    """A command in a process of its own, as soon as its standard error holds a sign."""
    command = [PROGRAM, *arguments]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    for line in running.stderr:
        if sign in line:
            break
    return running


def test_a_batch_system_that_ends_a_curve_keeps_its_points(tmp_path):
    file = tmp_path / "curve.nc"
    arguments = ["curve", "ridge_regression", "--over", "alpha=1:3:400", "-o", str(file), "--json"]
    running = _begun(arguments, "[3/400]")
    running.send_signal(signal.SIGTERM)
    stdout, stderr = running.communicate(timeout=300)
    assert running.returncode == 130 and json.loads(stdout)["status"] == "interrupted"
    assert file.exists() and "Traceback" not in stderr


def test_an_interrupted_curve_leaves_a_complete_one_that_was_there(call, tmp_path):
    file, partial_file = tmp_path / "curve.nc", tmp_path / "curve.interrupted.nc"
    assert call("curve", "ridge_regression", "--over", "alpha=1:3:2", "-o", file, "--quiet").status == 0
    complete = file.read_bytes()
    running = _begun(["curve", "ridge_regression", "--over", "alpha=1:3:400", "-o", str(file), "--force"], "[3/400]")
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=300)
    assert running.returncode == 130 and str(partial_file) in stderr
    assert file.read_bytes() == complete and partial_file.exists()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes")
def test_workers_of_a_simulation_end_with_it(tmp_path):
    def workers():
        found = []
        for each in Path("/proc").glob("[0-9]*"):
            try:
                line, names = (each / "cmdline").read_bytes(), (each / "environ").read_bytes()
            except OSError:
                continue
            if b"saddleforge.extensions.simulation.workers" in line and mark.encode() in names:
                found.append(each.name)
        return found

    mark = f"SADDLEFORGE_MARK={tmp_path}"
    os.environ.update([mark.split("=")])
    try:
        running = _begun(
            ["simulate", "ridge_regression", "--set", "alpha=2", "--d", "300", "--seeds", "5000", "--threads", "2"],
            "[2/5000]",
        )
    finally:
        del os.environ["SADDLEFORGE_MARK"]
    try:
        assert running.poll() is None and workers()
    finally:
        running.kill()
        running.communicate(timeout=300)
    end = time.monotonic() + 100
    while workers() and time.monotonic() < end:
        time.sleep(0.2)
    assert not workers()


def test_a_table_of_another_program_is_no_curve(tmp_path, call):
    import xarray

    file = tmp_path / "foreign.nc"
    attributes = {"model": "theirs", "parameter": "alpha", "special": "1"}
    xarray.Dataset({"x": ("t", [1.0, 2.0])}, attrs=attributes).to_netcdf(file, engine="h5netcdf")
    done = call("plot", str(file))
    assert done.status == 2 and done.sentence.startswith(f"saddleforge: {file} cannot be drawn: it lacks ")


@pytest.mark.parametrize("early", ["saddleforge.cli.app", "saddleforge.problems.problem"])
def test_an_interruption_while_modules_load_is_one_object_too(early):
    """Typer makes an exit status of its own of it, and says nothing."""
    code = f"""
import os, signal, sys
from importlib.abc import MetaPathFinder
class Early(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "{early}":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Early())
from saddleforge.cli import main
main(["solve", "ridge_regression", "--set", "alpha=2", "--json"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 130 and json.loads(done.stdout)["status"] == "interrupted", done.stderr
    assert done.stderr == "saddleforge: interrupted before there was a result\n"


def test_an_interruption_is_not_lost_in_a_callback_that_ignores_errors():
    """As those of LLVM are, from which compilation went on without its object and failed as a bug."""
    code = """
import ctypes, os, signal, time, weakref
from saddleforge.base.interrupts import install_interrupt_handlers, was_interrupted
install_interrupt_handlers()
def _raw_object_cache_notify():
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000): pass
class Closed:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000): pass
def on_disposal(reference):
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000): pass
def forget():
    kept = type("Kept", (), {})()
    reference = weakref.ref(kept, on_disposal)
    del kept
for deaf in (ctypes.CFUNCTYPE(None)(_raw_object_cache_notify), Closed, forget):
    try:
        deaf()
        time.sleep(20)
        print("lost")
    except KeyboardInterrupt:
        print("heard", was_interrupted())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("heard True\nheard True\nheard True\n", "")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of memory differ")
def test_a_computation_beyond_the_memory_limit_ends_with_a_message(tmp_path, call, run):
    import resource

    done = run(*SOLVE, "--integrator", "sobol", "--points", "22", "--memory", "0.6", "--json")
    assert done.status == 2 and json.loads(done.stdout)["status"] == "wrong_input"
    assert (
        done.sentence
        == "saddleforge: there is not enough memory; allow larger error bars (--accuracy), or fewer points at a time"
    )
    # What a model file itself asks for is said with its place, and the limit ends with the command.
    before = resource.getrlimit(resource.RLIMIT_DATA)
    (tmp_path / "greedy.py").write_text(
        "import numpy as np\nimport saddleforge as sf\n\n@sf.model(starts={'semantic': sf.Start(teacher='1/2')})\n"
        "def greedy(X, Y):\n    np.ones(250_000_000)\n    return sf.half_square(Y[0, 0] - X[0, 0])\n"
    )
    done = call("derive", tmp_path / "greedy.py", "--memory", "1.5")
    assert done.status == 2 and "model greedy: loss failed" in done.sentence and "Unable to allocate" in done.sentence
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    for limit in (["--memory", "1.5"], ["--memory", "1e300", "--time-limit", "1e300"]):
        enough = call(*SOLVE, *limit)
        assert enough.status == 0 and "converged" in enough.stdout


@pytest.mark.parametrize("gigabytes", ["0.1", "-1", "nan", "inf"])
def test_a_limit_of_memory_that_nothing_works_within_is_refused(call, gigabytes):
    done = call(*SOLVE, "--memory", gigabytes)
    assert done.status == 2 and "is out of range; allowed is [0.5, inf) gigabytes" in done.sentence


@pytest.mark.skipif(os.name != "posix", reason="opens a terminal of its own")
@pytest.mark.parametrize("terminal", ["dumb", "xterm"])
def test_a_terminal_that_cannot_write_over_a_line_gets_a_line_a_step(tmp_path, terminal):
    import pty

    mine, its = pty.openpty()
    arguments = ["curve", "ridge_regression", "--over", "alpha=1:2:2", "-o", str(tmp_path / "curve.nc")]
    environment = {**os.environ, "TERM": terminal}
    with subprocess.Popen([PROGRAM, *arguments], stdout=its, stderr=its, env=environment) as running:
        os.close(its)
        said = b""
        while True:
            try:
                said += (some := os.read(mine, 4096))
            except OSError:  # the end, on Linux
                break
            if not some:
                break
    os.close(mine)
    assert running.returncode == 0 and b"wrote" in said
    assert (b"[1/2]" in said) == (b"\x1b" not in said) == (terminal == "dumb")


def test_paths_with_blanks_and_umlauts_work_in_an_ascii_locale(tmp_path):
    folder = tmp_path / "ein Pfad mit ü"
    folder.mkdir()
    (folder / "mödel x.py").write_text("from saddleforge.derive.models.ridge_regression import ridge_regression\n")
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "TERM": "dumb"}
    command = [PROGRAM, "derive", "mödel x.py", "-o", "aus gäbe.txt"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert "ridge_regression" in (folder / "aus gäbe.txt").read_text(encoding="utf-8")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a device without an end")
@pytest.mark.parametrize(
    "arguments",
    [
        ["stability", "/dev/zero", "--set", "alpha=2"],
        [*SOLVE, "--from", "/dev/zero"],
        ["sweep", "ridge_regression", "--points", "/dev/zero"],
    ],
)
def test_a_device_is_not_read_to_an_end_that_it_does_not_have(call, arguments):
    """Found by drawing command lines: all memory was used up, whatever the time limit."""
    done = call(*arguments, "--time-limit", "10")
    assert done.status == 2 and "/dev/zero: it is a device; a file is expected" in done.sentence


def test_an_alarm_is_not_lost_in_a_callback_of_the_garbage_collector():
    """Found by drawing command lines: a traceback next to the sentence."""
    code = """
import gc, signal, time
from saddleforge.base.interrupts import interrupt_after_seconds
def callback(phase, info):
    if phase == "start":
        signal.raise_signal(signal.SIGALRM)
        for _ in range(1000): pass
class Rung(Exception): pass
def ring(): raise Rung
try:
    with interrupt_after_seconds(0.5, ring):
        gc.callbacks.append(callback)
        gc.collect()
        gc.callbacks.remove(callback)
        print("went on")
        time.sleep(20)
except Rung:
    print("rung")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("went on\nrung\n", "")


@pytest.mark.parametrize("own", [True, False])
def test_only_threads_of_others_leave_ctrl_c_to_the_system_at_the_end(own):
    """Threads of loops end with the process: Ctrl-C meanwhile keeps its exit status."""
    code = f"""
import signal, threading
from saddleforge.base.interrupts import LOOP_THREAD_NAME, install_interrupt_handlers, restore_default_signals
install_interrupt_handlers()
ended = threading.Event()
thread = threading.Thread(target=ended.wait, name=LOOP_THREAD_NAME + "_0" if {own} else "mine")
thread.start()
restore_default_signals()
print(signal.getsignal(signal.SIGINT) is signal.SIG_DFL)
ended.set()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == (f"{not own}\n", "")


def test_types_of_numba_are_registered_whole_whenever_the_time_ends():
    """Found by drawing command lines: an alarm meanwhile left arrays without their attribute `shape`."""
    code = """
import signal
from numba.core.registry import cpu_target
from saddleforge.base.interrupts import interrupt_after_seconds
class Rung(Exception): pass
def ring(): raise Rung
load = cpu_target.typing_context._load_builtins
def interrupted():
    signal.raise_signal(signal.SIGALRM)
    load()
cpu_target.typing_context._load_builtins = interrupted
try:
    with interrupt_after_seconds(0.5, ring):
        cpu_target.typing_context.refresh()
        print("registered")
        signal.raise_signal(signal.SIGALRM)
except Rung:
    print("rung")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("registered\nrung\n", "")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_no_file_that_is_read_twice_and_is_waited_for_within_the_time_limit(call, tmp_path):
    pipe = tmp_path / "pipe.py"
    os.mkfifo(pipe)
    for command in (["solve", pipe], ["derive", f"{pipe}:mine"], ["plot", pipe], [*SOLVE, "--from", tmp_path / "a.nc"]):
        (tmp_path / "a.nc").unlink(missing_ok=True)
        (tmp_path / "a.nc").symlink_to(pipe)
        done = call(*command)
        assert done.status == 2 and "it is a pipe, and is read more than once; a file is expected" in done.sentence
    for command in ([*SOLVE, "--from", pipe], ["sweep", "ridge_regression", "--points", pipe]):
        done = call(*command, "--time-limit", "0.5")
        assert done.status == 3 and "the time limit of 0.5 s ended the computation" in done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of files differ")
def test_a_file_that_cannot_grow_is_a_sentence_and_the_result_is_printed(tmp_path):
    """HDF5 ended the process by a segmentation fault, and the result with it."""
    line = f"ulimit -f 1; cd {tmp_path}; exec {PROGRAM} curve ridge_regression --over alpha=1:2:2 -o curve.nc --json"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert done.returncode == 2 and (found["status"], found["file"]) == ("wrong_input", None)
    assert len(found["points"]) == 2 and list(tmp_path.iterdir()) == []
    assert done.stderr.endswith(f"saddleforge: cannot write {tmp_path}/curve.nc: File too large\n")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of files differ")
def test_a_disk_without_any_room_is_no_bug(tmp_path):
    """Found by trying: `generate` called it one, and failed again where the traceback was to be kept."""
    line = f"ulimit -f 0; cd {tmp_path}; exec {PROGRAM} generate ridge_regression --out made"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.endswith("saddleforge: a limit of the system was reached: File too large\n")


def test_a_bug_that_no_file_can_be_kept_of_is_reported_with_its_traceback(call, begins, monkeypatch):
    def broken(*_arguments_of_compiled_metric, **_named):
        monkeypatch.setenv("SADDLEFORGE_CACHE", "/dev/null")
        monkeypatch.setattr("tempfile.tempdir", None)
        monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: ["/dev/null"])
        return 1 / 0

    begins(broken)
    done = call(*SOLVE)
    assert done.status == 1 and "ZeroDivisionError: division by zero" in done.stderr
    assert done.sentence == "saddleforge: this is a bug in saddleforge; please report it with the traceback above"


def test_a_time_limit_that_no_timer_knows_is_none(call):
    """Found by trying: an OverflowError."""
    assert call("derive", "ridge_regression", "--time-limit", "1e300").status == 0


def test_windows_that_nobody_asks_for_refuse_no_picture(tmp_path, run, call):
    """Found by trying: matplotlib would not load."""
    assert call("curve", "ridge_regression", "--over", "alpha=1:2:2", "-o", tmp_path / "curve.nc").status == 0
    done = run("plot", tmp_path / "curve.nc", "-o", tmp_path / "curve.png", MPLBACKEND="junk")
    assert done.status == 0 and (tmp_path / "curve.png").exists(), done.stderr
