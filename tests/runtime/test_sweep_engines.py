"""Sweeps run by Dask: the same bytes as in one process, whatever dies on the way."""

import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import saddleforge as sf
from saddleforge.base.errors import InputError
from saddleforge.extensions.sweeping import engine as engines
from saddleforge.extensions.sweeping.engine import SweepEngine
from saddleforge.extensions.sweeping.line import run_sweep_line
from saddleforge.extensions.sweeping.plan import SimulationSettings, make_sweep_plan
from saddleforge.extensions.sweeping.records import SweepRecords
from saddleforge.extensions.sweeping.sweep import collect, run_sweep_plan

distributed = pytest.importorskip("distributed")
# Dask leaves sockets and loops to the end of the process.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

GRID = {"alpha": (3, 1, 4), "lambda": [0.1, 0.2, 0.3]}


def plan_for(**options):
    usual = {"rows": None, "starts": None, "ask": "solve", "accuracy": 1e-3, "both_ways": False, "seed": 0}
    chosen = {"grid": GRID, "simulated": SimulationSettings(), "given": {}, **usual, **options}
    return make_sweep_plan("logistic_regression", **chosen)


def bytes_of(sweep, path):
    sweep.save(path)
    return Path(path).read_bytes()


@pytest.fixture
def another_dashboard():
    """Another Dask on this machine has the port that a scheduler asks for by default."""
    with socket.socket() as taken:
        with suppress(OSError):  # it has
            taken.bind(("", 8787))
            taken.listen()
        yield


SCRIPT = """
import sys
import saddleforge as sf

chosen = dict(grid={"alpha": (3, 1, 4), "lambda": [0.1, 0.2, 0.3]}, ask="solve")
one = sf.sweep("logistic_regression", output="1.nc", processes=1, **chosen)
assert not {"dask", "distributed", "sympy"} & set(sys.modules)
two = sf.sweep("logistic_regression", output="2.nc", processes=2, **chosen)
assert one.statuses == two.statuses == {"converged": 12}
one.save("1.nc")
two.save("2.nc")
print("once")
"""


def test_two_processes_give_the_bytes_of_one_and_a_script_of_theirs_needs_no_guard(tmp_path, another_dashboard):
    """Dask is loaded for several processes alone."""
    import subprocess

    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout == "once\n", done.stderr
    assert (tmp_path / "1.nc").read_bytes() == (tmp_path / "2.nc").read_bytes()
    for path in (tmp_path / "1.records").iterdir():
        assert (tmp_path / "2.records" / path.name).read_bytes() == path.read_bytes()


def test_a_result_that_died_with_its_worker_is_one_more_death(tmp_path):
    class Forgetful(Dying):
        def submit(self, *work, key, pure):
            done = super().submit(*work, key=key, pure=pure)
            if self.asked == 1:
                killed = distributed.scheduler.KilledWorker(key, None, 1)
                done.result = lambda: (_ for _ in ()).throw(killed)
            return done

    client = Forgetful(0)
    assert run_by(client, tmp_path).statuses == {"converged": 4} and client.asked == 2


def test_ctrl_c_is_what_it_was_where_a_cluster_is_read_from_a_file(monkeypatch, tmp_path):
    pytest.importorskip("dask_jobqueue")
    path = tmp_path / "cluster.yaml"
    path.write_text("kind: SLURM")
    for name in [name for name in sys.modules if name.startswith("dask_jobqueue")]:
        monkeypatch.delitem(sys.modules, name)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(InputError, match="a whole number"):
        run_sweep_plan(plan_for(), SweepEngine(cluster=path), tmp_path / "records")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_items_are_run_side_by_side_and_one_whose_worker_dies_is_run_again(tmp_path):
    mark = str(tmp_path / "died")

    def half(value):
        if value == 3 and not os.path.exists(mark):
            os.close(os.open(mark, os.O_CREAT))
            os._exit(1)
        return value / 2

    found = {}
    SweepEngine(2).call_on_each_item(half, [(n,) for n in range(5)], found.__setitem__)
    assert found == {n: n / 2 for n in range(5)} and os.path.exists(mark)


def test_an_exception_of_an_item_is_raised_by_the_engine():
    with pytest.raises(ZeroDivisionError):
        SweepEngine(1).call_on_each_item(lambda value: 1 / value, [(1,), (0,)], lambda *_: None)


class Dying:
    """A client of Dask whose workers die before they finish a line, the first times that they are asked."""

    def __init__(self, deaths):
        self.deaths, self.asked, self.topic = deaths, 0, None

    def nthreads(self):
        return {"worker": 1}

    def subscribe_topic(self, topic, handler):
        self.handler = handler

    def cancel(self, futures, force):
        assert not futures

    def submit(self, work, line, accuracy, known, topic, threads, key, pure):
        self.asked += 1
        died = self.asked <= self.deaths
        assert list(known.values()) == json.loads(json.dumps(list(known.values())))  # lists, as they are read
        made = list(run_sweep_line(line, accuracy, known))
        if died:
            self.handler((0.0, (line.number, received(made[0]))))  # one point was sent before
            return Ended("error", distributed.scheduler.KilledWorker(key, None, 1))
        return Ended("finished", made)


def received(record):
    """As an event brings it."""
    return distributed.protocol.loads(distributed.protocol.dumps(record))


class Ended:
    def __init__(self, status, what):
        self.status, self._what = status, what

    def result(self):
        return self._what

    def exception(self):
        return self._what

    def add_done_callback(self, tell):
        tell(self)


def run_by(client, tmp_path):
    plan = plan_for(grid={"alpha": (3, 1, 4)}, given={"lambda": 0.1})
    return run_sweep_plan(plan, SweepEngine(2, client=client), tmp_path / "records")


def test_a_worker_that_dies_costs_a_retry_and_no_finished_point(tmp_path):
    client = Dying(1)
    assert run_by(client, tmp_path).statuses == {"converged": 4}
    assert client.asked == 2


def test_a_line_whose_workers_die_again_and_again_has_a_status_and_keeps_its_points(tmp_path):
    class Stuck(Dying):
        def submit(self, work, line, accuracy, known, topic, threads, key, pure):
            self.asked += 1
            if self.asked == 1:
                made = next(run_sweep_line(line, accuracy, known))
                self.handler((0.0, (line.number, made)))
            return Ended("error", distributed.scheduler.KilledWorker(key, None, 1))

    found = run_by(Stuck(9), tmp_path)
    assert found.statuses == {"failed": 3, "converged": 1}
    reasons = {str(reason) for reason in found.to_xarray()["reason"].values.ravel()}
    assert reasons == {"", "the worker process died twice (out of memory?)"}


def test_a_scheduler_that_does_not_answer_is_said(tmp_path):
    with pytest.raises(InputError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        run_sweep_plan(plan_for(), SweepEngine(scheduler="tcp://127.0.0.1:9", timeout=0.5), tmp_path / "records")
    assert not (tmp_path / "records").exists()


@pytest.mark.parametrize("address", ["nonsense", "tcp://127.0.0.1", "127.0.0.1:9x", "foo://127.0.0.1:9"])
def test_of_what_is_no_address_no_client_is_made(monkeypatch, tmp_path, address):
    """One without a port took two minutes to end, with a traceback."""
    monkeypatch.setattr(distributed, "Client", lambda *_, **__: pytest.fail("a client was made"))
    with pytest.raises(InputError, match=f"no Dask scheduler answers at {address}: "):
        run_sweep_plan(plan_for(), SweepEngine(scheduler=address), tmp_path / "records")
    assert not (tmp_path / "records").exists()


def test_an_empty_address_is_not_the_machine_at_hand():
    with pytest.raises(InputError, match="is empty"):
        SweepEngine(scheduler="").check_engine_settings()


def test_a_sweep_without_a_scheduler_leaves_stored_records_unchanged(tmp_path):
    here, kept = plan_for(), tmp_path / "records"
    run_sweep_plan(here, SweepEngine(processes=1), kept, shard=(2, 2))
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    with pytest.raises(InputError, match="no Dask scheduler answers"):
        run_sweep_plan(here, SweepEngine(scheduler="tcp://127.0.0.1:9", timeout=0.5), kept)
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    other = SweepRecords(tmp_path / "new", here)
    run_sweep_plan(here, SweepEngine(processes=1), tmp_path / "new", shard=(2, 2))
    other.close_and_remove_if_empty()  # another command has put points away meanwhile
    assert collect(tmp_path / "new").statuses == collect(kept).statuses


@pytest.mark.parametrize(
    "text, sentence",
    [
        (None, "cannot read .*No such file"),
        ("kind: [", "it is not YAML"),
        ("kind: Heap\njobs: 1", "`kind`, one of .*SLURM.* and `jobs`"),
        ("kind: SLURM", "`kind`, one of .*SLURM.* and `jobs`"),
        ("kind: SLURM\njobs: 1\nmemory: 1GB", "a cluster of kind SLURM cannot be started: .*cores"),
    ],
)
def test_a_cluster_file_that_says_nothing_is_said(text, sentence, tmp_path):
    pytest.importorskip("dask_jobqueue")
    path = tmp_path / "cluster.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=sentence):
        run_sweep_plan(plan_for(), SweepEngine(cluster=path), tmp_path / "records")


def test_without_dask_one_process_does_it_and_several_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(engines, "has_dask", lambda: False)
    assert run_sweep_plan(plan_for(grid={"alpha": [2.0]}), SweepEngine(), tmp_path / "one").statuses == {"converged": 1}
    with pytest.raises(InputError, match=r"pip install 'saddleforge\[sweep\]'"):
        run_sweep_plan(plan_for(), SweepEngine(2), tmp_path / "two")


def workers_of(pid):
    """The processes of workers below a command, newest last."""
    psutil = pytest.importorskip("psutil")
    try:
        below = psutil.Process(pid).children(recursive=True)
        return [child.pid for child in below if "spawn_main" in " ".join(child.cmdline())]
    except psutil.NoSuchProcess:
        return []


def command(path, *more):
    import subprocess

    grid = ["--over", "alpha=3:0.8:12", "--over", "omega=0.1:0.4:3", "--start", "semantic,positional", "--ask", "solve"]
    script = Path(sys.executable).with_name("saddleforge")
    engine = more or ("--processes", "2")
    arguments = [script, "sweep", "dot_product_attention", *grid, *engine, "-o", path, "--quiet"]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_sweep_that_is_killed_at_random_moments_ends_with_the_bytes_of_one_that_is_not(tmp_path):
    """SIGKILL to a worker (which costs nothing) and to the whole command (which is given again), ten times."""
    import random

    whole = command(tmp_path / "whole.nc")
    assert whole.wait(900) in (0, 3)
    chance, kills, kept = random.Random(7), 0, 0
    while True:
        running = command(tmp_path / "killed.nc")
        while running.poll() is None and kills < 10:
            time.sleep(chance.uniform(2, 9))
            if running.poll() is not None:
                break
            kills += 1
            workers = workers_of(running.pid)
            if workers and kills % 2:
                os.kill(chance.choice(workers), signal.SIGKILL)
                continue
            running.kill()
        status = running.wait(900)
        finished = sum(path.read_bytes().count(b"\n") for path in tmp_path.glob("killed.records/*.jsonl"))
        assert finished >= kept  # nothing is lost
        kept = finished
        if status in (0, 3):
            break
        assert status == -signal.SIGKILL
    assert kills >= 3
    assert (tmp_path / "killed.nc").read_bytes() == (tmp_path / "whole.nc").read_bytes()


@pytest.mark.slow
def test_two_workers_on_an_empty_cache_agree(tmp_path, monkeypatch):
    """Both compile the same solver, and write it to the same folder."""
    monkeypatch.setenv("SADDLEFORGE_CACHE", str(tmp_path / "cache"))
    plan = plan_for(grid={"alpha": [2.0, 1.0], "lambda": [0.1, 0.2]})
    for name in ("records", "again"):
        with SweepEngine(2).keep_workers() as engine:
            assert run_sweep_plan(plan, engine, tmp_path / name).statuses == {"converged": 4}


def test_a_scheduler_that_runs_is_joined(tmp_path):
    with distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        dashboard_address=None,
        scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # there may be others on this machine
        silence_logs=50,
    ) as cluster:
        plan = plan_for(grid={"alpha": [2.0, 1.5], "lambda": [0.1, 0.2]})
        there = run_sweep_plan(plan, SweepEngine(scheduler=cluster.scheduler_address), tmp_path / "there")
        here = run_sweep_plan(plan, SweepEngine(1), tmp_path / "here")
    assert bytes_of(there, tmp_path / "there.nc") == bytes_of(here, tmp_path / "here.nc")


def test_workers_without_this_version_are_refused_before_they_are_given_anything():
    class Elsewhere:
        def run(self, version):
            return {"tcp://a:1": version(), "tcp://b:1": "0.0.1", "tcp://c:1": "not installed"}

    with pytest.raises(
        InputError, match=rf"have saddleforge 0\.0\.1, not installed, and this process has version {sf.__version__}"
    ):
        engines._check_worker_versions(Elsewhere(), "tcp://a:0")


@pytest.fixture
def a_scheduler(tmp_path):
    """The address of one that runs with two workers in processes of their own, and the workers."""
    import json
    import subprocess

    said = tmp_path / "scheduler.json"
    common = ["--scheduler-file", said, "--no-dashboard"]
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", *common]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny", *common]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    processes = [subprocess.Popen(dask, **quiet)]
    try:
        deadline = time.monotonic() + 300
        while not said.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        processes += [subprocess.Popen(worker, **quiet) for _ in range(2)]
        yield json.loads(said.read_text())["address"], processes[1:]
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_scheduler_with_workers_of_its_own_is_joined_and_may_lose_one(tmp_path, a_scheduler):
    address, workers = a_scheduler
    alone = command(tmp_path / "alone.nc", "--processes", "1")
    assert alone.wait(900) in (0, 3)
    joined = command(tmp_path / "joined.nc", "--scheduler", address)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if sum(path.read_bytes().count(b"\n") for path in tmp_path.glob("joined.records/*.jsonl")) > 20:
            break
        time.sleep(0.1)
    workers[0].kill()
    assert joined.wait(900) in (0, 3), joined.stderr.read()
    assert workers[1].poll() is None  # it is the scheduler's, and stays
    assert (tmp_path / "joined.nc").read_bytes() == (tmp_path / "alone.nc").read_bytes()
