"""Who runs the lines of a sweep: this process, or workers of Dask distributed. This process alone writes records.

Workers send every record as it is made, as an event; a line's future then holds all of them once more, so that none is
lost to a connection that breaks.
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
from ...base.files import finite
from ...base.interrupts import kept_handler
from ...base.progress import set_quiet
from ...base.threads import limited
from .line import FAILED, Record, is_done, run_line
from .plan import Line

Take = Callable[[Line, Record], None]
"""What is done with a record."""
Known = Callable[[Line], dict[int, Record]]
"""The records of a line that are there."""

_PATIENCE = 600.0  # seconds in which processes of one's own do, however busy the machine is
_LOOK = 0.2  # seconds between looks at the clock
_REFILL = 1.0  # seconds between looks for workers that have come
_SAFE_PATH = "PYTHONSAFEPATH"
_ATTEMPTS = 2  # of a line, none of which finished a point
_AHEAD = 2  # lines a thread that a cluster of others' is given at once
_WARMING = 2  # points after which everything is compiled
_TIMEOUTS = ("distributed.comm.timeouts.connect", "distributed.comm.timeouts.tcp")


@dataclass(frozen=True)
class Engine:
    """Where lines are run.

    Attributes:
        processes: workers of a local cluster, by default one a core; 1 is this process.
        scheduler: address of a scheduler that runs already; cluster: a YAML file for dask-jobqueue.
        timeout: seconds in which that scheduler has to answer.
        threads: a worker.
        memory: bytes a worker of a local cluster may use; None divides those of the machine.
        client: of Dask, while the engine is held.
    """

    processes: int | None = None
    scheduler: str | None = None
    cluster: Path | None = None
    threads: int = 1
    memory: int | None = None
    client: Any = None
    timeout: float = 60.0

    def check(self) -> None:
        """Before anything is computed.

        Raises:
            InputError: out of range, two engines at once, or Dask is asked for and not installed.
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
    def alone(self) -> bool:
        """Whether this process runs the lines itself."""
        if self.scheduler or self.cluster:
            return False
        return (self.processes or (os.cpu_count() or 1)) == 1 or not has_dask()

    def run(self, lines: Sequence[Line], accuracy: float, known: Known, take: Take) -> None:
        """Run what is not done of lines.

        Raises:
            InputError: no scheduler answers, a cluster cannot be started, or a record cannot be written.
            TimeLimitError: the time limit came; KeyboardInterrupt: Ctrl-C. What was taken is finished.
        """
        if lines:
            self._do(_Lines(lines, accuracy, known, take, self.threads), self.alone)

    @contextmanager
    def held(self) -> Iterator[Engine]:
        """An engine whose workers stay for several calls, which compile what they need as they come to it.

        Raises:
            InputError: as of `run`.
        """
        if self.alone:
            yield self
            return
        with self._client(sys.maxsize) as client:
            yield replace(self, client=client)

    def each(
        self, function: Callable[..., Any], items: Sequence[tuple[Any, ...]], take: Callable[[int, Any], None]
    ) -> None:
        """Take (number, function(*item)) of every item, in the order in which they end.

        Raises:
            InputError: as of `run`, or the process at an item dies twice. What was taken is finished.
            TimeLimitError, KeyboardInterrupt: as of `run`; whatever the function raises.
        """
        self._do(_Items(function, items, take, self.threads), self.alone or len(items) < 2)

    def _do(self, work: _Items, here: bool) -> None:
        """Do work in this process, or have workers do it."""
        if here:
            with limited(self.threads):
                work.here()
            return
        with self._client(len(work.numbers)) as client:
            if self.client is None:
                with limited(self.threads):
                    work.warm()
            _Distributed(client, work, _AHEAD if self.scheduler or self.cluster else 1).run()

    def _local(self, lines: int) -> Any:
        """A cluster on this machine, tried once more where a worker dies as it starts.

        Raises:
            InputError: its workers do not start.
        """
        from distributed import LocalCluster

        for attempt in range(_ATTEMPTS):
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
                if attempt + 1 == _ATTEMPTS:
                    raise InputError(f"workers do not start ({error}); try fewer, or --processes 1") from error
        raise AssertionError("an attempt returns")

    @contextmanager
    def _client(self, lines: int) -> Iterator[Any]:
        """Of Dask, and of a cluster that ends with it; the one that is held."""
        if self.client is not None:
            yield self.client
            return
        import dask
        from distributed import Client
        from distributed.comm import get_address_host

        quiet = {
            "distributed.scheduler.allowed-failures": 0,  # who is tried again is decided here
            "distributed.admin.low-level-log-length": 100,  # events, which are records
            "distributed.worker.daemon": False,
        }
        with ExitStack() as stack:
            stack.enter_context(dask.config.set(quiet))
            stack.enter_context(_silenced())
            if self.scheduler:
                target: Any = self.scheduler
            else:
                stack.enter_context(dask.config.set(dict.fromkeys(_TIMEOUTS, f"{_PATIENCE:g}s")))
                if self.cluster:
                    target = stack.enter_context(_from_file(self.cluster))
                else:
                    stack.enter_context(_apart())
                    target = stack.enter_context(_closed(self._local(lines)))
            timeout = self.timeout if self.scheduler else _PATIENCE
            try:
                if self.scheduler:
                    get_address_host(self.scheduler)  # of what is none a client is made that takes minutes to end
                client = stack.enter_context(_closed(Client(target, timeout=timeout, set_as_default=False)))
            except (OSError, TimeoutError, ValueError) as error:
                raise InputError(
                    f"no scheduler of Dask answers at {self.scheduler or target}: {error or type(error).__name__}"
                ) from error
            if self.scheduler:
                _refuse_other_versions(client, self.scheduler)
            yield client


class _Items:
    """Calls of one function by number, whose errors are those of all: what a worker does, what comes back of it."""

    topic: str | None = None
    """Under which workers send what they have so far."""

    def __init__(
        self,
        function: Callable[..., Any],
        items: Sequence[tuple[Any, ...]],
        take: Callable[[int, Any], None],
        threads: int,
    ) -> None:
        self._function, self._items, self._take, self._threads = function, items, take, threads
        self.numbers: Sequence[int] = range(len(items))

    def here(self) -> None:
        """Do all of it in this process."""
        for number, item in enumerate(self._items):
            self._take(number, self._function(*item))

    def warm(self) -> None:
        """Compile in this process what every worker will call."""

    def call(self, number: int) -> tuple[Any, ...]:
        """What a worker calls, and with what."""
        return _quietly, self._function, self._items[number], self._threads

    def hear(self, number: int, what: Any) -> None:
        """A worker sends something on the way."""

    def progress(self, number: int) -> int:
        """How much of a piece that has begun is there."""
        return 0

    def finished(self, number: int, made: Any) -> None:
        """A piece is done."""
        self._take(number, made)

    def ends(self, error: BaseException | None) -> bool:
        """Whether an error ends everything, and is no reason to try once more."""
        return error is not None and type(error).__name__ != "KilledWorker"

    def give_up(self, number: int, error: BaseException | None) -> None:
        """A piece was tried often enough."""
        raise InputError(f"{_why(error)}; try fewer processes, what is finished is kept")


class _Lines(_Items):
    """Lines: every record is sent as it is made, and what is not finished when one is given up has a status."""

    def __init__(self, lines: Sequence[Line], accuracy: float, known: Known, take: Take, threads: int) -> None:
        self._accuracy, self._known, self._take_record, self._threads = accuracy, known, take, threads
        self._lines = {line.number: line for line in lines}
        self._taken: dict[int, dict[int, Record]] = {}  # of lines that run
        self.numbers, self.topic = list(self._lines), f"saddleforge-{uuid4().hex}"

    def here(self) -> None:
        for line in self._lines.values():
            self._run(line)

    def warm(self) -> None:
        """Run the first points of a line of every solver."""
        seen = set()
        for line in self._lines.values():
            if line.ask != "simulate" and line.problem.solver.folder not in seen:
                seen.add(line.problem.solver.folder)
                self._run(line, _WARMING)

    def _run(self, line: Line, most: int | None = None) -> None:
        for record in islice(run_line(line, self._accuracy, self._known(line)), most):
            self._take_record(line, record)

    def call(self, number: int) -> tuple[Any, ...]:
        line = self._lines[number]
        known = self._taken.setdefault(number, self._known(line))
        return _run_line, line, self._accuracy, known, self.topic, self._threads

    def hear(self, number: int, what: Record) -> None:
        """Write a record, once."""
        there = self._taken.get(number)
        if there is None or is_done(there.get(what["n"]), self._accuracy):
            return
        what = json.loads(json.dumps(what))  # an event has tuples in place of lists, which index arrays otherwise
        there[what["n"]] = what
        self._take_record(self._lines[number], what)

    def progress(self, number: int) -> int:
        return len(self._taken[number])

    def finished(self, number: int, made: Sequence[Record]) -> None:
        for record in made:
            self.hear(number, record)
        del self._taken[number]

    def ends(self, error: BaseException | None) -> bool:
        return isinstance(error, InputError | TimeLimitError)

    def give_up(self, number: int, error: BaseException | None) -> None:
        line, there = self._lines[number], self._taken.pop(number)
        for n in range(len(line.points)):
            if not is_done(there.get(n), self._accuracy):
                made = {"n": n, "accuracy": self._accuracy, "version": __version__}
                self._take_record(line, {**made, "status": FAILED, "reason": _why(error)})


class _Distributed:
    """Work handed to workers a few pieces at a time, tried once more where they die."""

    def __init__(self, client: Any, work: _Items, ahead: int) -> None:
        self._client, self._work, self._ahead = client, work, ahead
        self._waiting = iter(work.numbers)
        self._news: SimpleQueue[tuple[str, int, Any]] = SimpleQueue()
        self._deaths: dict[int, tuple[int, int]] = {}  # how many without progress, and how far it was at the last
        self._futures: dict[int, Any] = {}

    def run(self) -> None:
        """Until nothing is left."""
        if self._work.topic:
            self._client.subscribe_topic(self._work.topic, lambda event: self._news.put(("sent", *event[1])))
        try:
            self._fill()
            filled = monotonic()
            while self._futures:
                budget.check()
                if monotonic() - filled > _REFILL:
                    self._fill()
                    filled = monotonic()
                with suppress(Empty):
                    kind, number, what = self._news.get(timeout=min(_LOOK, max(budget.remaining(), 0.01)))
                    if kind == "sent":
                        self._work.hear(number, what)
                    elif self._futures.get(number) is what:
                        self._ended(number, what)
                        self._fill()
        finally:
            with suppress(Exception):
                self._client.cancel(list(self._futures.values()), force=True)

    def _fill(self) -> None:
        """As many pieces as there are threads, since who waits at a worker dies with it; more where the way is long."""
        threads = max(1, sum(self._client.nthreads().values()))
        for number in islice(self._waiting, max(self._ahead * threads - len(self._futures), 0)):
            self._submit(number)

    def _submit(self, number: int) -> None:
        future = self._client.submit(*self._work.call(number), key=f"saddleforge-{uuid4().hex}", pure=False)
        self._futures[number] = future
        future.add_done_callback(lambda done: self._news.put(("ended", number, done)))

    def _ended(self, number: int, future: Any) -> None:
        """A piece has come to its end, or whoever ran it."""
        del self._futures[number]
        made, error = _result(future)
        if error is None and future.status == "finished":
            self._work.finished(number, made)
            self._deaths.pop(number, None)
            return
        if error is not None and self._work.ends(error):
            raise error
        there = self._work.progress(number)
        before, at = self._deaths.get(number, (0, there))
        count = before + 1 if there == at else 1
        self._deaths[number] = (count, there)
        if count < _ATTEMPTS:
            self._submit(number)
        else:
            self._work.give_up(number, error)


def _quietly(
    function: Callable[..., Any], item: tuple[Any, ...], threads: int
) -> Any:  # pragma: no cover, in a process of its own
    """What a worker does with an item."""
    set_quiet(True)
    with limited(threads):
        return function(*item)


def _result(future: Any) -> tuple[Any, BaseException | None]:
    """Of a task that has ended: what it made, or why there is nothing (None where it was cancelled).

    A worker may die before it has handed over what it finished.
    """
    try:
        if future.status == "finished":
            return future.result(), None
        return None, future.exception() if future.status == "error" else None
    except Exception as error:
        return None, error


def _why(error: BaseException | None) -> str:
    """In a sentence without addresses, which differ from run to run."""
    if error is None:
        return "its task was cancelled"
    if type(error).__name__ == "KilledWorker":
        return "the process that ran it died twice (out of memory?)"
    return f"{type(error).__name__}: {error}"


def _run_line(
    line: Line, accuracy: float, known: Mapping[int, Record], topic: str, threads: int
) -> list[Record]:  # pragma: no cover, in a process of its own
    """What a worker does with a line."""
    from distributed import get_worker

    set_quiet(True)
    worker, made = get_worker(), []
    with limited(threads):
        for record in run_line(line, accuracy, known):
            worker.log_event(topic, (line.number, record))
            made.append(record)
    return made


def has_dask() -> bool:
    """Whether Dask distributed is installed."""
    from importlib.util import find_spec

    return find_spec("distributed") is not None


@contextmanager
def _apart() -> Iterator[None]:
    """Processes that are spawned do not execute the user's script anew, which then needs no guard, nor import what lies
    in the working directory in place of Python's own."""
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
def _silenced() -> Iterator[None]:
    """Dask tells of workers that die, and of connections that end with them; so does the sweep, in its own words."""
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
def _closed(what: Any) -> Iterator[Any]:
    """A client or a cluster, closed in the end; that a process does not end in time costs no result."""
    try:
        yield what
    finally:
        with suppress(OSError, TimeoutError, AssertionError):
            what.close()


def _refuse_other_versions(client: Any, scheduler: str) -> None:
    """Make sure that workers of a scheduler that runs have this package: without it they never end what they are given.

    Raises:
        InputError: one has not, or another version.
    """

    def version() -> str:  # sent as it stands, since it may not be there to import
        from importlib import import_module

        try:
            return str(import_module("saddleforge._version").__version__)
        except ImportError:
            return "no saddleforge"

    there = set(client.run(version).values()) - {__version__}
    if there:
        raise InputError(
            f"workers of the scheduler at {scheduler} have {', '.join(sorted(there))} where this is {__version__}: "
            "install the same version for them"
        )


@contextmanager
def _from_file(path: Path) -> Iterator[Any]:
    """A cluster of dask-jobqueue: `kind: SLURM`, `jobs: 10` and the arguments of `SLURMCluster` beside them.

    Raises:
        InputError: the file cannot be read or says something else, or the cluster cannot be started.
    """
    try:
        with kept_handler():  # dask-jobqueue has Ctrl-C end the program
            import dask_jobqueue
        import dask
        import yaml
    except ImportError:
        raise InputError(f"--cluster {path} needs dask-jobqueue: pip install 'saddleforge[sweep]'") from None
    kinds = {name.removesuffix("Cluster") for name in vars(dask_jobqueue) if name.endswith("Cluster")} - {"JobQueue"}
    try:
        said = yaml.safe_load(finite(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is no YAML'}") from error
    if not isinstance(said, dict) or said.get("kind") not in kinds or not isinstance(said.get("jobs"), int):
        raise InputError(
            f"{path}: `kind`, one of {', '.join(sorted(kinds))}, and `jobs`, a whole number, are expected in it"
        )
    kind, jobs = said.pop("kind"), said.pop("jobs")
    configured = dask.config.get(f"jobqueue.{kind.lower()}.scheduler-options", {})
    said["scheduler_options"] = {"dashboard_address": ":0", **configured, **said.get("scheduler_options", {})}
    try:
        cluster = getattr(dask_jobqueue, f"{kind}Cluster")(**said)
    except (TypeError, ValueError, OSError) as error:
        raise InputError(f"{path}: {kind} cannot be started: {error}") from error

    async def submitted() -> None:
        cluster.scale(jobs=jobs)
        await cluster._correct_state()  # which alone says whether they were taken

    with _closed(cluster):
        try:
            cluster.sync(submitted)
        except (RuntimeError, OSError) as error:
            said_by = str(error).partition("stderr:")[2].strip() or str(error)
            raise InputError(f"{path}: {kind} does not take the jobs: {said_by.splitlines()[0]}") from error
        yield cluster
