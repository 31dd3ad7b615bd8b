"""The engine that runs the lines of a sweep: this process, or workers of Dask. Only this process writes records.

Workers send every record as an event; the future of a line then contains all of them again, so that none is lost if a
connection breaks.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from types import ModuleType
from typing import Any
from uuid import uuid4

from ..._version import __version__
from ...base import budget
from ...base.environment import THREAD_VARIABLES
from ...base.errors import InputError, TimeLimitError, require_whole
from ...base.files import require_finite_file
from ...base.interrupts import preserve_interrupt_handler
from ...base.options import AlgorithmOptions
from ...base.progress import set_quiet
from ...base.threads import thread_limit
from .line import FAILED, Record, is_computed, run_line
from .plan import Line

StoreRecord = Callable[[Line, Record], None]
"""Function that stores a record."""
FindRecords = Callable[[Line], dict[int, Record]]
"""Function that returns the existing records of a line."""

_SAFE_PATH = "PYTHONSAFEPATH"
_TIMEOUTS = ("distributed.comm.timeouts.connect", "distributed.comm.timeouts.tcp")


@dataclass(frozen=True)
class EngineOptions(AlgorithmOptions):
    """Options of the distribution of lines to workers.

    Attributes:
        local_timeout: seconds in which own worker processes have to start and answer, on a busy machine.
        poll_interval: seconds between checks of the time limit; smaller ends earlier, at more overhead.
        refill_interval: seconds between checks for new workers.
        attempts: how often a line is tried whose process dies without a new point.
        lines_per_thread: lines that a remote cluster receives at once, per thread; more hide its latency.
        warmup_points: points computed before workers start, after which everything is compiled.
    """

    local_timeout: float = 600.0
    poll_interval: float = 0.2
    refill_interval: float = 1.0
    attempts: int = 2
    lines_per_thread: int = 2
    warmup_points: int = 2


@dataclass(frozen=True)
class Engine:
    """An engine that runs lines, here or on workers.

    Attributes:
        processes: number of workers of a local cluster, by default one a core; 1 is this process.
        scheduler: address of a running scheduler; cluster: a YAML file for dask-jobqueue.
        timeout: seconds in which that scheduler has to answer.
        threads: threads of a worker.
        memory: bytes a worker of a local cluster may use; None divides the memory of the machine.
        client: the Dask client, while workers are kept.
    """

    processes: int | None = None
    scheduler: str | None = None
    cluster: Path | None = None
    threads: int = 1
    memory: int | None = None
    client: Any = None
    timeout: float = 60.0

    def check(self) -> None:
        """Check the settings before anything is computed.

        Raises:
            InputError: a value out of range, two clusters at once, or Dask is needed and not installed.
        """
        if self.processes is not None:
            require_whole("processes", self.processes, 1)
        require_whole("threads", self.threads, 1)
        if "" in (self.scheduler, self.cluster):
            raise InputError("the address of a scheduler, or the file of a cluster, is empty")
        if self.scheduler and self.cluster:
            raise InputError("the address of a scheduler, or the file of a cluster: give one of them")
        if (self.scheduler or self.cluster or (self.processes or 1) > 1) and not has_dask():
            raise InputError("several processes need Dask: pip install 'saddleforge[sweep]', or run with 1 process")

    @property
    def runs_here(self) -> bool:
        """Return whether this process runs the lines itself."""
        if self.scheduler or self.cluster:
            return False
        return (self.processes or (os.cpu_count() or 1)) == 1 or not has_dask()

    def run(self, lines: Sequence[Line], accuracy: float, known: FindRecords, handle: StoreRecord) -> None:
        """Run the points of lines that are not computed yet.

        Args:
            lines: the lines.
            accuracy: accuracy of the overlaps.
            known: function that returns the existing records of a line.
            handle: function that stores a record.

        Raises:
            InputError: no scheduler answers, a cluster cannot be started, or a record cannot be written.
            TimeLimitError: the time limit ended it; KeyboardInterrupt: Ctrl-C. Stored records are complete.
        """
        if lines:
            self._run_work(_LineWork(lines, accuracy, known, handle, self.threads), self.runs_here)

    @contextmanager
    def keep_workers(self) -> Iterator[Engine]:
        """Yield an engine whose workers are kept for several calls.

        Raises:
            InputError: as for `run`.
        """
        if self.runs_here:
            yield self
            return
        with self._connect(sys.maxsize) as client:
            yield replace(self, client=client)

    def call_on_each(
        self, function: Callable[..., Any], items: Sequence[tuple[Any, ...]], handle: Callable[[int, Any], None]
    ) -> None:
        """Call a function on every item, and handle results in the order in which they are finished.

        Args:
            function: the function, called as function(*item).
            items: its arguments.
            handle: function of the index of an item and its result.

        Raises:
            InputError: as for `run`, or the process at an item dies twice. Handled results are complete.
            TimeLimitError, KeyboardInterrupt: as for `run`; other errors are those of the function.
        """
        self._run_work(_FunctionCalls(function, items, handle, self.threads), self.runs_here or len(items) < 2)

    def _run_work(self, work: _FunctionCalls, here: bool) -> None:
        """Do work in this process, or on workers."""
        if here:
            with thread_limit(self.threads):
                work.run_here()
            return
        with self._connect(len(work.numbers)) as client:
            if self.client is None:
                with thread_limit(self.threads):
                    work.compile_first()
            ahead = EngineOptions.current().lines_per_thread if self.scheduler or self.cluster else 1
            _WorkDistributor(client, work, ahead).run()

    def _start_local_cluster(self, lines: int) -> Any:
        """Start a cluster on this machine, tried again if a worker dies at its start.

        Raises:
            InputError: its workers do not start.
        """
        attempts = EngineOptions.current().attempts
        from distributed import LocalCluster

        for attempt in range(attempts):
            try:
                return LocalCluster(
                    n_workers=min(self.processes or os.cpu_count() or 1, lines),
                    threads_per_worker=1,
                    memory_limit=self.memory or "auto",
                    dashboard_address=None,
                    scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # any free port, of its own
                    silence_logs=logging.CRITICAL,
                    env=dict.fromkeys(THREAD_VARIABLES, str(self.threads)),
                )
            except RuntimeError as error:
                if attempt + 1 == attempts:
                    raise InputError(f"workers do not start ({error}); try fewer, or --processes 1") from error
        raise AssertionError("an attempt returns")

    @contextmanager
    def _connect(self, lines: int) -> Iterator[Any]:
        """Yield a Dask client, with a cluster that ends with it; or the client that is kept."""
        if self.client is not None:
            yield self.client
            return
        import dask
        from distributed import Client
        from distributed.comm import get_address_host

        patience = EngineOptions.current().local_timeout
        quiet = {
            "distributed.scheduler.allowed-failures": 0,  # attempts are counted here
            "distributed.admin.low-level-log-length": 100,  # events, which are records
            "distributed.worker.daemon": False,
        }
        with ExitStack() as stack:
            stack.enter_context(dask.config.set(quiet))
            stack.enter_context(_silence_dask())
            if self.scheduler:
                target: Any = self.scheduler
            else:
                stack.enter_context(dask.config.set(dict.fromkeys(_TIMEOUTS, f"{patience:g}s")))
                if self.cluster:
                    target = stack.enter_context(_start_cluster_from_file(self.cluster))
                else:
                    stack.enter_context(_isolate_spawned_processes())
                    target = stack.enter_context(_closing(self._start_local_cluster(lines)))
            timeout = self.timeout if self.scheduler else patience
            try:
                if self.scheduler:
                    get_address_host(self.scheduler)  # a client for an invalid address would take minutes to end
                client = stack.enter_context(_closing(Client(target, timeout=timeout, set_as_default=False)))
            except (OSError, TimeoutError, ValueError) as error:
                raise InputError(
                    f"no scheduler of Dask answers at {self.scheduler or target}: {error or type(error).__name__}"
                ) from error
            if self.scheduler:
                _check_versions(client, self.scheduler)
            yield client


class _FunctionCalls:
    """Work that consists of calls of one function, by index; its errors end all calls."""

    topic: str | None = None
    """The topic under which workers send events."""

    def __init__(
        self,
        function: Callable[..., Any],
        items: Sequence[tuple[Any, ...]],
        handle: Callable[[int, Any], None],
        threads: int,
    ) -> None:
        self._function, self._items, self._handle, self._threads = function, items, handle, threads
        self.numbers: Sequence[int] = range(len(items))

    def run_here(self) -> None:
        """Do all work in this process."""
        for number, item in enumerate(self._items):
            self._handle(number, self._function(*item))

    def compile_first(self) -> None:
        """Compile in this process the functions that every worker will call."""

    def worker_call(self, number: int) -> tuple[Any, ...]:
        """Return the function that a worker calls, and its arguments."""
        return _call_on_worker, self._function, self._items[number], self._threads

    def receive(self, number: int, what: Any) -> None:
        """Handle an event that a worker sends.

        Args:
            number: index of the piece of work.
            what: content of the event.
        """

    def count_finished(self, number: int) -> int:
        """Return the number of finished parts of a piece that is running."""
        return 0

    def handle_result(self, number: int, made: Any) -> None:
        """Handle the result of a finished piece.

        Args:
            number: index of the piece.
            made: its result.
        """
        self._handle(number, made)

    def is_fatal(self, error: BaseException | None) -> bool:
        """Return whether an error ends all work, instead of another attempt."""
        return error is not None and type(error).__name__ != "KilledWorker"

    def handle_failure(self, number: int, error: BaseException | None) -> None:
        """Handle a piece whose attempts have all failed.

        Args:
            number: index of the piece.
            error: the last error.
        """
        raise InputError(f"{_failure_reason(error)}; try fewer processes, what is finished is kept")


class _LineWork(_FunctionCalls):
    """Work that consists of lines: every record is sent at once; unfinished points of a failed line get a status."""

    def __init__(
        self, lines: Sequence[Line], accuracy: float, known: FindRecords, handle: StoreRecord, threads: int
    ) -> None:
        self._accuracy, self._known, self._store_record, self._threads = accuracy, known, handle, threads
        self._lines = {line.number: line for line in lines}
        self._stored: dict[int, dict[int, Record]] = {}  # records of running lines
        self.numbers, self.topic = list(self._lines), f"saddleforge-{uuid4().hex}"

    def run_here(self) -> None:
        for line in self._lines.values():
            self._run_line_here(line)

    def compile_first(self) -> None:
        """Run the first points of a line of every solver."""
        compiled = set()
        for line in self._lines.values():
            if line.ask != "simulate" and line.problem.solver.folder not in compiled:
                compiled.add(line.problem.solver.folder)
                self._run_line_here(line, EngineOptions.current().warmup_points)

    def _run_line_here(self, line: Line, most: int | None = None) -> None:
        for record in islice(run_line(line, self._accuracy, self._known(line)), most):
            self._store_record(line, record)

    def worker_call(self, number: int) -> tuple[Any, ...]:
        line = self._lines[number]
        known = self._stored.setdefault(number, self._known(line))
        return _run_line_on_worker, line, self._accuracy, known, self.topic, self._threads

    def receive(self, number: int, what: Record) -> None:
        """Store a record, once.

        Args:
            number: index of the line.
            what: the record.
        """
        there = self._stored.get(number)
        if there is None or is_computed(there.get(what["n"]), self._accuracy):
            return
        what = json.loads(json.dumps(what))  # an event has tuples instead of lists, which index arrays differently
        there[what["n"]] = what
        self._store_record(self._lines[number], what)

    def count_finished(self, number: int) -> int:
        return len(self._stored[number])

    def handle_result(self, number: int, made: Sequence[Record]) -> None:
        """Store the records of a finished line.

        Args:
            number: index of the line.
            made: its records.
        """
        for record in made:
            self.receive(number, record)
        del self._stored[number]

    def is_fatal(self, error: BaseException | None) -> bool:
        return isinstance(error, InputError | TimeLimitError)

    def handle_failure(self, number: int, error: BaseException | None) -> None:
        """Store a failure for every unfinished point of a line.

        Args:
            number: index of the line.
            error: the last error.
        """
        line, there = self._lines[number], self._stored.pop(number)
        for n in range(len(line.points)):
            if not is_computed(there.get(n), self._accuracy):
                made = {"n": n, "accuracy": self._accuracy, "version": __version__}
                self._store_record(line, {**made, "status": FAILED, "reason": _failure_reason(error)})


class _WorkDistributor:
    """A distributor of work to workers, a few pieces at a time, tried again if a worker dies."""

    def __init__(self, client: Any, work: _FunctionCalls, ahead: int) -> None:
        self._client, self._work, self._ahead = client, work, ahead
        self._waiting = iter(work.numbers)
        self._events: SimpleQueue[tuple[str, int, Any]] = SimpleQueue()
        self._deaths_without_progress: dict[int, tuple[int, int]] = {}  # their number, and the progress then
        self._futures: dict[int, Any] = {}

    def run(self) -> None:
        """Run until all work is done."""
        if self._work.topic:
            self._client.subscribe_topic(self._work.topic, lambda event: self._events.put(("sent", *event[1])))
        try:
            self._submit_waiting()
            filled, options = monotonic(), EngineOptions.current()
            while self._futures:
                budget.check_time_limit()
                if monotonic() - filled > options.refill_interval:
                    self._submit_waiting()
                    filled = monotonic()
                with suppress(Empty):
                    kind, number, what = self._events.get(
                        timeout=min(options.poll_interval, max(budget.remaining_seconds(), 0.01))
                    )
                    if kind == "sent":
                        self._work.receive(number, what)
                    elif self._futures.get(number) is what:
                        self._handle_end(number, what)
                        self._submit_waiting()
        finally:
            with suppress(Exception):
                self._client.cancel(list(self._futures.values()), force=True)

    def _submit_waiting(self) -> None:
        """Submit a piece for every thread, since waiting pieces die with their worker; more to a remote cluster."""
        threads = max(1, sum(self._client.nthreads().values()))
        for number in islice(self._waiting, max(self._ahead * threads - len(self._futures), 0)):
            self._submit(number)

    def _submit(self, number: int) -> None:
        future = self._client.submit(*self._work.worker_call(number), key=f"saddleforge-{uuid4().hex}", pure=False)
        self._futures[number] = future
        future.add_done_callback(lambda done: self._events.put(("ended", number, done)))

    def _handle_end(self, number: int, future: Any) -> None:
        """Handle the end of a piece, or of its worker."""
        del self._futures[number]
        made, error = _task_result(future)
        if error is None and future.status == "finished":
            self._work.handle_result(number, made)
            self._deaths_without_progress.pop(number, None)
            return
        if error is not None and self._work.is_fatal(error):
            raise error
        there = self._work.count_finished(number)
        before, at = self._deaths_without_progress.get(number, (0, there))
        count = before + 1 if there == at else 1
        self._deaths_without_progress[number] = (count, there)
        if count < EngineOptions.current().attempts:
            self._submit(number)
        else:
            self._work.handle_failure(number, error)


def _call_on_worker(
    function: Callable[..., Any], item: tuple[Any, ...], threads: int
) -> Any:  # pragma: no cover, in a process of its own
    """Call the function on an item, in a worker."""
    set_quiet(True)
    with thread_limit(threads):
        return function(*item)


def _task_result(future: Any) -> tuple[Any, BaseException | None]:
    """Return the result of an ended task, or its error (None if it was cancelled).

    A worker may die before it has transferred its result.
    """
    try:
        if future.status == "finished":
            return future.result(), None
        return None, future.exception() if future.status == "error" else None
    except Exception as error:
        return None, error


def _failure_reason(error: BaseException | None) -> str:
    """Return the reason of a failure without addresses, which differ from run to run."""
    if error is None:
        return "its task was cancelled"
    if type(error).__name__ == "KilledWorker":
        return "the process that ran it died twice (out of memory?)"
    return f"{type(error).__name__}: {error}"


def _run_line_on_worker(
    line: Line, accuracy: float, known: Mapping[int, Record], topic: str, threads: int
) -> list[Record]:  # pragma: no cover, in a process of its own
    """Run a line in a worker, and send its records."""
    from distributed import get_worker

    set_quiet(True)
    worker, made = get_worker(), []
    with thread_limit(threads):
        for record in run_line(line, accuracy, known):
            worker.log_event(topic, (line.number, record))
            made.append(record)
    return made


def has_dask() -> bool:
    """Return whether Dask distributed is installed."""
    from importlib.util import find_spec

    return find_spec("distributed") is not None


@contextmanager
def _isolate_spawned_processes() -> Iterator[None]:
    """Let spawned processes neither execute the user's script, nor import modules of the working directory.

    A script then needs no guard, and Python's own modules are not shadowed.
    """
    main, before = sys.modules["__main__"], os.environ.get(_SAFE_PATH)
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


@contextmanager
def _silence_dask() -> Iterator[None]:
    """Silence Dask about dead workers and their connections, which the sweep reports itself."""
    loggers = [logging.getLogger(name) for name in ("distributed", "tornado.application")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


@contextmanager
def _closing(what: Any) -> Iterator[Any]:
    """Yield a client or a cluster and close it, even if a process does not end in time."""
    try:
        yield what
    finally:
        with suppress(OSError, TimeoutError, AssertionError):
            what.close()


def _check_versions(client: Any, scheduler: str) -> None:
    """Raise InputError if a worker of a running scheduler lacks this version of the package.

    Without the package its tasks would never end.
    """

    def _read_version() -> str:  # sent as code, since the package may be missing
        from importlib import import_module

        try:
            return str(import_module("saddleforge._version").__version__)
        except ImportError:
            return "no saddleforge"

    there = set(client.run(_read_version).values()) - {__version__}
    if there:
        raise InputError(
            f"workers of the scheduler at {scheduler} have {', '.join(sorted(there))} where this is {__version__}: "
            "install the same version for them"
        )


@contextmanager
def _start_cluster_from_file(path: Path) -> Iterator[Any]:
    """Yield a cluster of dask-jobqueue from a file with `kind: SLURM`, `jobs: 10` and the arguments of `SLURMCluster`.

    Raises:
        InputError: the file cannot be read or is of another form, or the cluster cannot be started.
    """
    try:
        with preserve_interrupt_handler():  # dask-jobqueue has Ctrl-C end the program
            import dask_jobqueue
        import dask
        import yaml
    except ImportError:
        raise InputError(f"--cluster {path} needs dask-jobqueue: pip install 'saddleforge[sweep]'") from None
    kinds = {name.removesuffix("Cluster") for name in vars(dask_jobqueue) if name.endswith("Cluster")} - {"JobQueue"}
    try:
        settings = yaml.safe_load(require_finite_file(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is no YAML'}") from error
    if not isinstance(settings, dict) or settings.get("kind") not in kinds or not isinstance(settings.get("jobs"), int):
        raise InputError(
            f"{path}: `kind`, one of {', '.join(sorted(kinds))}, and `jobs`, a whole number, are expected in it"
        )
    kind, jobs = settings.pop("kind"), settings.pop("jobs")
    configured = dask.config.get(f"jobqueue.{kind.lower()}.scheduler-options", {})
    chosen = settings.get("scheduler_options", {})
    settings["scheduler_options"] = {"dashboard_address": ":0", **configured, **chosen}
    try:
        cluster = getattr(dask_jobqueue, f"{kind}Cluster")(**settings)
    except (TypeError, ValueError, OSError) as error:
        raise InputError(f"{path}: {kind} cannot be started: {error}") from error

    async def _submit_jobs() -> None:
        cluster.scale(jobs=jobs)
        await cluster._correct_state()  # the only report on whether they were accepted

    with _closing(cluster):
        try:
            cluster.sync(_submit_jobs)
        except (RuntimeError, OSError) as error:
            message = str(error).partition("stderr:")[2].strip() or str(error)
            raise InputError(f"{path}: {kind} does not take the jobs: {message.splitlines()[0]}") from error
        yield cluster
