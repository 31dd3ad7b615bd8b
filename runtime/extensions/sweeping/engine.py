"""The engine that computes the lines of a sweep, in this process or on Dask workers. Only this process writes records.

Workers send every record as an event as soon as it is finished. The result of a line contains all its records again, so
that none is lost if a connection breaks.
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
from ...base.devices import DEVICE_VARIABLE, DeviceOptions
from ...base.environment import THREAD_VARIABLES
from ...base.errors import InputError, TimeLimitError, require_whole_number
from ...base.files import require_readable_file
from ...base.interrupts import preserve_interrupt_handler
from ...base.options import AlgorithmOptions
from ...base.progress import set_quiet_mode
from ...base.threads import thread_limit
from .line import FAILED, Record, is_point_computed, run_sweep_line
from .plan import SweepLine

StoreRecord = Callable[[SweepLine, Record], None]
"""Function that stores the record of a point of a line."""
FindRecords = Callable[[SweepLine], dict[int, Record]]
"""Function that returns the existing records of a line."""

_SAFE_PATH = "PYTHONSAFEPATH"
_TIMEOUTS = ("distributed.comm.timeouts.connect", "distributed.comm.timeouts.tcp")


@dataclass(frozen=True)
class SweepEngineOptions(AlgorithmOptions):
    """Options of the distribution of sweep lines to worker processes.

    Attributes:
        local_timeout: seconds within which local worker processes have to start and answer, on a busy machine.
        poll_interval: seconds between checks of the time limit; smaller ends earlier, but costs more time.
        refill_interval: seconds between checks for new workers.
        attempts: how often a line is tried if its process dies without a new point.
        lines_per_thread: lines that are sent to a remote cluster in advance, per thread; more hide its latency.
        warmup_points: points that are computed before workers start, so that all functions are compiled.
    """

    local_timeout: float = 600.0
    poll_interval: float = 0.2
    refill_interval: float = 1.0
    attempts: int = 2
    lines_per_thread: int = 2
    warmup_points: int = 2


@dataclass(frozen=True)
class SweepEngine:
    """An engine that runs the lines of a sweep, in this process or on Dask workers.

    Attributes:
        processes: number of worker processes on this machine, by default one per core; with 1 there are no workers.
        scheduler: address of a running Dask scheduler.
        cluster: YAML file of a cluster for dask-jobqueue.
        threads: number of threads per worker.
        memory: bytes that a worker on this machine may use; None divides the memory of the machine.
        client: the Dask client, while workers are kept for several calls.
        timeout: seconds within which the running scheduler has to answer.
    """

    processes: int | None = None
    scheduler: str | None = None
    cluster: Path | None = None
    threads: int = 1
    memory: int | None = None
    client: Any = None
    timeout: float = 60.0

    def check_engine_settings(self) -> None:
        """Check the settings of the engine before anything is computed.

        Raises:
            InputError: a value is out of range, both a scheduler and a cluster are given, or Dask is not installed.
        """
        if self.processes is not None:
            require_whole_number("processes", self.processes, 1)
        require_whole_number("threads", self.threads, 1)
        if "" in (self.scheduler, self.cluster):
            raise InputError(
                "the address of the scheduler or the file of the cluster is empty; give it, or leave the option out"
            )
        if self.scheduler and self.cluster:
            raise InputError("both a scheduler and a cluster file are given; give one of them")
        if (self.scheduler or self.cluster or (self.processes or 1) > 1) and not has_dask():
            raise InputError(
                "several processes need Dask, which is not installed: pip install 'saddleforge[sweep]', "
                "or set processes to 1"
            )

    @property
    def runs_in_this_process(self) -> bool:
        """Whether the lines are computed in this process, without workers."""
        if self.scheduler or self.cluster:
            return False
        return (self.processes or (os.cpu_count() or 1)) == 1 or not has_dask()

    def run_lines(self, lines: Sequence[SweepLine], accuracy: float, known: FindRecords, handle: StoreRecord) -> None:
        """Compute those points of sweep lines that are not computed yet.

        Args:
            lines: lines of the sweep.
            accuracy: required accuracy of the overlaps.
            known: function that returns the existing records of a line.
            handle: function that stores a record.

        Raises:
            InputError: no scheduler answers, a cluster cannot be started, or a record cannot be written.
            TimeLimitError: the time limit ended the run; KeyboardInterrupt: Ctrl-C did. Stored records are complete.
        """
        if lines:
            self._run_work_here_or_on_workers(
                _SweepLineWork(lines, accuracy, known, handle, self.threads), self.runs_in_this_process
            )

    @contextmanager
    def keep_workers(self) -> Iterator[SweepEngine]:
        """Yield an engine whose workers are kept for several calls.

        Raises:
            InputError: no scheduler answers, or a cluster cannot be started.
        """
        if self.runs_in_this_process:
            yield self
            return
        with self._connect_dask_client(sys.maxsize) as client:
            yield replace(self, client=client)

    def call_on_each_item(
        self, function: Callable[..., Any], items: Sequence[tuple[Any, ...]], handle: Callable[[int, Any], None]
    ) -> None:
        """Call a function on every item, in this process or on workers, and handle each result when it is finished.

        Args:
            function: function to call, as function(*item).
            items: arguments of every call.
            handle: function that handles a result, called with the index of its item and the result.

        Raises:
            InputError: no scheduler answers, a cluster cannot be started, or the process of an item dies twice.
            TimeLimitError: the time limit ended the calls; KeyboardInterrupt: Ctrl-C did. Handled results are complete.
        """
        self._run_work_here_or_on_workers(
            _FunctionCallWork(function, items, handle, self.threads), self.runs_in_this_process or len(items) < 2
        )

    def _run_work_here_or_on_workers(self, work: _FunctionCallWork, here: bool) -> None:
        """Compute all pieces of work (sweep lines or function calls), in this process or on workers."""
        if here:
            with thread_limit(self.threads):
                work.do_work_in_this_process()
            return
        with self._connect_dask_client(len(work.numbers)) as client:
            if self.client is None:
                with thread_limit(self.threads):
                    work.compile_worker_functions()
            ahead = SweepEngineOptions.current().lines_per_thread if self.scheduler or self.cluster else 1
            _WorkDistributor(client, work, ahead).distribute_all_work()

    def _start_local_cluster(self, lines: int) -> Any:
        """Start and return a Dask cluster on this machine, with a second attempt if a worker dies at its start.

        Raises:
            InputError: the worker processes do not start.
        """
        attempts = SweepEngineOptions.current().attempts
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
                    env=dict.fromkeys(THREAD_VARIABLES, str(self.threads))
                    | {DEVICE_VARIABLE: DeviceOptions.current().name},
                )
            except RuntimeError as error:
                if attempt + 1 == attempts:
                    raise InputError(f"worker processes do not start ({error}); try fewer, or --processes 1") from error
        raise AssertionError("the last attempt to start a Dask cluster neither returned nor raised an error")

    @contextmanager
    def _connect_dask_client(self, lines: int) -> Iterator[Any]:
        """Yield a Dask client, and stop its workers afterwards unless they are kept for several calls."""
        if self.client is not None:
            yield self.client
            return
        import dask
        from distributed import Client
        from distributed.comm import get_address_host

        patience = SweepEngineOptions.current().local_timeout
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
                    target = stack.enter_context(_close_dask_object_afterwards(self._start_local_cluster(lines)))
            timeout = self.timeout if self.scheduler else patience
            try:
                if self.scheduler:
                    get_address_host(self.scheduler)  # a client for an invalid address would take minutes to end
                client = stack.enter_context(
                    _close_dask_object_afterwards(Client(target, timeout=timeout, set_as_default=False))
                )
            except (OSError, TimeoutError, ValueError) as error:
                raise InputError(
                    f"no Dask scheduler answers at {self.scheduler or target}: {error or type(error).__name__}; "
                    "check the address, and that the scheduler is running"
                ) from error
            if self.scheduler:
                _check_worker_versions(client, self.scheduler)
            yield client


class _FunctionCallWork:
    """Work that consists of independent calls of one function; an error in one of them ends all."""

    topic: str | None = None
    """The Dask topic under which workers send events."""

    def __init__(
        self,
        function: Callable[..., Any],
        items: Sequence[tuple[Any, ...]],
        handle: Callable[[int, Any], None],
        threads: int,
    ) -> None:
        self._function, self._items, self._handle, self._threads = function, items, handle, threads
        self.numbers: Sequence[int] = range(len(items))

    def do_work_in_this_process(self) -> None:
        """Compute all pieces of work (sweep lines or function calls) in this process, without workers."""
        for number, item in enumerate(self._items):
            self._handle(number, self._function(*item))

    def compile_worker_functions(self) -> None:
        """Compile the functions that workers will call, in this process, so that workers find the compiled code."""

    def function_and_arguments_for_worker(self, number: int) -> tuple[Any, ...]:
        """Return the function that a worker has to call for one piece of work, followed by its arguments."""
        return _call_function_on_worker, self._function, self._items[number], self._threads

    def handle_worker_event(self, number: int, what: Any) -> None:
        """Handle an event that a worker sends while it works.

        Args:
            number: index of the piece of work.
            what: content of the event.
        """

    def count_finished_parts(self, number: int) -> int:
        """Return the number of finished parts of a piece of work that is not complete yet."""
        return 0

    def handle_work_result(self, number: int, made: Any) -> None:
        """Handle the result of a finished piece of work.

        Args:
            number: index of the piece of work.
            made: result of the piece of work.
        """
        self._handle(number, made)

    def is_fatal_error(self, error: BaseException | None) -> bool:
        """Return whether an error of one piece of work ends all work, without another attempt."""
        return error is not None and type(error).__name__ != "KilledWorker"

    def handle_failed_work(self, number: int, error: BaseException | None) -> None:
        """Handle a piece of work of which every attempt has failed.

        Args:
            number: index of the piece of work.
            error: error of the last attempt.
        """
        raise InputError(f"{_failure_reason(error)}; finished points are kept: run again with fewer processes")


class _SweepLineWork(_FunctionCallWork):
    """Work that consists of lines of a sweep; workers send the record of every point as soon as it is finished."""

    def __init__(
        self, lines: Sequence[SweepLine], accuracy: float, known: FindRecords, handle: StoreRecord, threads: int
    ) -> None:
        self._accuracy, self._known, self._store_record, self._threads = accuracy, known, handle, threads
        self._lines = {line.number: line for line in lines}
        self._stored: dict[int, dict[int, Record]] = {}  # records of running lines
        self.numbers, self.topic = list(self._lines), f"saddleforge-{uuid4().hex}"

    def do_work_in_this_process(self) -> None:
        for line in self._lines.values():
            self._run_line_in_this_process(line)

    def compile_worker_functions(self) -> None:
        """Compute the first points of one line for every solver, so that the solver is compiled."""
        compiled = set()
        for line in self._lines.values():
            if line.ask != "simulate" and line.problem.solver.folder not in compiled:
                compiled.add(line.problem.solver.folder)
                self._run_line_in_this_process(line, SweepEngineOptions.current().warmup_points)

    def _run_line_in_this_process(self, line: SweepLine, most: int | None = None) -> None:
        for record in islice(run_sweep_line(line, self._accuracy, self._known(line)), most):
            self._store_record(line, record)

    def function_and_arguments_for_worker(self, number: int) -> tuple[Any, ...]:
        line = self._lines[number]
        known = self._stored.setdefault(number, self._known(line))
        return _run_line_on_worker, line, self._accuracy, known, self.topic, self._threads

    def handle_worker_event(self, number: int, what: Record) -> None:
        """Store the record of a point that a worker has sent, unless it is stored already.

        Args:
            number: index of the line.
            what: record of a point.
        """
        there = self._stored.get(number)
        if there is None or is_point_computed(there.get(what["n"]), self._accuracy):
            return
        what = json.loads(json.dumps(what))  # an event has tuples instead of lists, which index arrays differently
        there[what["n"]] = what
        self._store_record(self._lines[number], what)

    def count_finished_parts(self, number: int) -> int:
        return len(self._stored[number])

    def handle_work_result(self, number: int, made: Sequence[Record]) -> None:
        """Store the records of a finished line.

        Args:
            number: index of the line.
            made: records of the line.
        """
        for record in made:
            self.handle_worker_event(number, record)
        del self._stored[number]

    def is_fatal_error(self, error: BaseException | None) -> bool:
        return isinstance(error, InputError | TimeLimitError)

    def handle_failed_work(self, number: int, error: BaseException | None) -> None:
        """Store a failure record for every unfinished point of a line of which every attempt has failed.

        Args:
            number: index of the line.
            error: error of the last attempt.
        """
        line, there = self._lines[number], self._stored.pop(number)
        for n in range(len(line.points)):
            if not is_point_computed(there.get(n), self._accuracy):
                made = {"n": n, "accuracy": self._accuracy, "version": __version__}
                self._store_record(line, {**made, "status": FAILED, "reason": _failure_reason(error)})


class _WorkDistributor:
    """A distributor of pieces of work to Dask workers; a piece whose worker dies is submitted again."""

    def __init__(self, client: Any, work: _FunctionCallWork, ahead: int) -> None:
        self._client, self._work, self._ahead = client, work, ahead
        self._waiting = iter(work.numbers)
        self._events: SimpleQueue[tuple[str, int, Any]] = SimpleQueue()
        self._deaths_without_progress: dict[int, tuple[int, int]] = {}  # their number, and the progress then
        self._futures: dict[int, Any] = {}

    def distribute_all_work(self) -> None:
        """Submit all pieces of work to workers, and handle their events and results until the last one is done."""
        if self._work.topic:
            self._client.subscribe_topic(self._work.topic, lambda event: self._events.put(("sent", *event[1])))
        try:
            self._submit_waiting_work()
            filled, options = monotonic(), SweepEngineOptions.current()
            while self._futures:
                budget.check_time_limit()
                if monotonic() - filled > options.refill_interval:
                    self._submit_waiting_work()
                    filled = monotonic()
                with suppress(Empty):
                    kind, number, what = self._events.get(
                        timeout=min(options.poll_interval, max(budget.remaining_seconds(), 0.01))
                    )
                    if kind == "sent":
                        self._work.handle_worker_event(number, what)
                    elif self._futures.get(number) is what:
                        self._handle_ended_task(number, what)
                        self._submit_waiting_work()
        finally:
            with suppress(Exception):
                self._client.cancel(list(self._futures.values()), force=True)

    def _submit_waiting_work(self) -> None:
        """Submit as many waiting pieces of work as workers have free threads; more to a remote cluster."""
        threads = max(1, sum(self._client.nthreads().values()))
        for number in islice(self._waiting, max(self._ahead * threads - len(self._futures), 0)):
            self._submit_work(number)

    def _submit_work(self, number: int) -> None:
        future = self._client.submit(
            *self._work.function_and_arguments_for_worker(number), key=f"saddleforge-{uuid4().hex}", pure=False
        )
        self._futures[number] = future
        future.add_done_callback(lambda done: self._events.put(("ended", number, done)))

    def _handle_ended_task(self, number: int, future: Any) -> None:
        """Handle the result of an ended Dask task; after an error or the death of its worker submit the work again."""
        del self._futures[number]
        made, error = _result_or_error_of_task(future)
        if error is None and future.status == "finished":
            self._work.handle_work_result(number, made)
            self._deaths_without_progress.pop(number, None)
            return
        if error is not None and self._work.is_fatal_error(error):
            raise error
        there = self._work.count_finished_parts(number)
        before, at = self._deaths_without_progress.get(number, (0, there))
        count = before + 1 if there == at else 1
        self._deaths_without_progress[number] = (count, there)
        if count < SweepEngineOptions.current().attempts:
            self._submit_work(number)
        else:
            self._work.handle_failed_work(number, error)


def _call_function_on_worker(
    function: Callable[..., Any], item: tuple[Any, ...], threads: int
) -> Any:  # pragma: no cover, in a process of its own
    """Call a function on one item, in a worker process."""
    set_quiet_mode(True)
    with thread_limit(threads):
        return function(*item)


def _result_or_error_of_task(future: Any) -> tuple[Any, BaseException | None]:
    """Return the result of an ended Dask task, or its error (None for a cancelled task).

    A worker may die before it has transferred its result.
    """
    try:
        if future.status == "finished":
            return future.result(), None
        return None, future.exception() if future.status == "error" else None
    except Exception as error:
        return None, error


def _failure_reason(error: BaseException | None) -> str:
    """Return the reason why a piece of work failed as text, without network addresses, which vary from run to run."""
    if error is None:
        return "the task was cancelled by the scheduler"
    if type(error).__name__ == "KilledWorker":
        return "the worker process died twice (out of memory?)"
    return f"{type(error).__name__}: {error}"


def _run_line_on_worker(
    line: SweepLine, accuracy: float, known: Mapping[int, Record], topic: str, threads: int
) -> list[Record]:  # pragma: no cover, in a process of its own
    """Compute a line of a sweep in a worker process, and send the record of each point when it is finished."""
    from distributed import get_worker

    set_quiet_mode(True)
    worker, made = get_worker(), []
    with thread_limit(threads):
        for record in run_sweep_line(line, accuracy, known):
            worker.log_event(topic, (line.number, record))
            made.append(record)
    return made


def has_dask() -> bool:
    """Return whether the package Dask distributed is installed."""
    from importlib.util import find_spec

    return find_spec("distributed") is not None


@contextmanager
def _isolate_spawned_processes() -> Iterator[None]:
    """Keep processes that start within a `with` block from importing the user's script or the working directory.

    A script then needs no `__main__` guard, and no file of the user shadows a module of Python.
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
    """Silence, within a `with` block, Dask's log messages about dead workers, which the sweep reports itself."""
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
def _close_dask_object_afterwards(what: Any) -> Iterator[Any]:
    """Yield a Dask client or cluster, and close it at the end, even if one of its processes does not end in time."""
    try:
        yield what
    finally:
        with suppress(OSError, TimeoutError, AssertionError):
            what.close()


def _check_worker_versions(client: Any, scheduler: str) -> None:
    """Raise InputError if the workers of a running scheduler do not have this version of the package.

    Without the package tasks on a worker would never end.
    """

    def _read_package_version() -> str:  # sent as code, since the package may be missing
        from importlib import import_module

        try:
            return str(import_module("saddleforge._version").__version__)
        except ImportError:
            return "not installed"

    there = set(client.run(_read_package_version).values()) - {__version__}
    if there:
        raise InputError(
            f"the workers of the scheduler at {scheduler} have saddleforge {', '.join(sorted(there))}, and this "
            f"process has version {__version__}: install the same version for the workers"
        )


@contextmanager
def _start_cluster_from_file(path: Path) -> Iterator[Any]:
    """Start a cluster by dask-jobqueue with the settings of a YAML file, and yield it.

    The file contains `kind`, such as SLURM, the number `jobs`, and arguments of the class, such as `SLURMCluster`.

    Raises:
        InputError: the file cannot be read or lacks a setting, or the cluster cannot be started.
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
        settings = yaml.safe_load(require_readable_file(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not YAML'}") from error
    if not isinstance(settings, dict) or settings.get("kind") not in kinds or not isinstance(settings.get("jobs"), int):
        raise InputError(
            f"cluster file {path}: give `kind`, one of {', '.join(sorted(kinds))}, and `jobs`, a whole number"
        )
    kind, jobs = settings.pop("kind"), settings.pop("jobs")
    configured = dask.config.get(f"jobqueue.{kind.lower()}.scheduler-options", {})
    chosen = settings.get("scheduler_options", {})
    settings["scheduler_options"] = {"dashboard_address": ":0", **configured, **chosen}
    try:
        cluster = getattr(dask_jobqueue, f"{kind}Cluster")(**settings)
    except (TypeError, ValueError, OSError) as error:
        raise InputError(f"{path}: a cluster of kind {kind} cannot be started: {error}") from error

    async def _submit_jobs() -> None:
        cluster.scale(jobs=jobs)
        await cluster._correct_state()  # the only report on whether they were accepted

    with _close_dask_object_afterwards(cluster):
        try:
            cluster.sync(_submit_jobs)
        except (RuntimeError, OSError) as error:
            message = str(error).partition("stderr:")[2].strip() or str(error)
            raise InputError(f"{path}: {kind} does not accept the jobs: {message.splitlines()[0]}") from error
        yield cluster
