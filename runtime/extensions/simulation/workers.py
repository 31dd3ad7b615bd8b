"""Processes that each do one seed at a time with a single thread of linear algebra.

A result then depends on its seed alone: not on how many run side by side, and not on which ran before. They are fresh
interpreters that talk through pipes, so that a script needs no guard and a process that dies costs one seed.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock

import numpy as np

from ...base import budget
from ...base.environment import THREAD_VARIABLES, end, helper
from ...base.errors import InputError
from ...base.interrupts import end_with_parent, held_back
from .plan import Plan
from .run import Run, run


@dataclass(frozen=True)
class Failure:
    """Why a seed has no result."""

    seed: int
    text: str
    input_error: bool = False


class _Worker:
    """One process; started when first used, and again after it died, but not after `end`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._over, self._lock = False, Lock()

    def do(self, plan: Plan, seed: int) -> Run | Failure:
        with self._lock:
            if self._over:
                return Failure(seed, "it was not begun")
            if self._process is None:
                self._process = helper(__name__, dict.fromkeys(THREAD_VARIABLES, "1"), stdout=subprocess.PIPE)
            process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            pickle.dump((plan, seed), process.stdin)
            process.stdin.flush()
            return pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            status = process.wait()
            self.stop()
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            return Failure(seed, f"the process {how} (out of memory?)")

    def end(self) -> None:
        """Stop for good, also where another thread is about to start the process."""
        with self._lock:
            self._over = True
            self.stop()

    def stop(self) -> None:
        process, self._process = self._process, None  # two threads may come here at once
        if process is not None:
            end(process)


def serve() -> None:
    """The loop of a worker: (plan, seed) on stdin, a Run or a Failure on stdout."""
    end_with_parent()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while True:
        try:
            plan, seed = pickle.load(source)
        except EOFError:
            return
        try:
            pickle.dump(_done(plan, seed), sink)
            sink.flush()
        except BrokenPipeError:  # who asked was ended meanwhile
            os._exit(0)


def _done(plan: Plan, seed: int) -> Run | Failure:
    try:
        return run(plan, seed)
    except InputError as error:
        return Failure(seed, str(error), input_error=True)
    except Exception as error:
        return Failure(seed, f"{type(error).__name__}: {error}")


def results(jobs: Iterable[tuple[Plan, int]], workers: int) -> Generator[tuple[int, Run | Failure], None, None]:
    """(number of the job, its result) as they are finished; processes end with the iteration, however it ends."""
    idle: SimpleQueue[_Worker] = SimpleQueue()
    every = [_Worker() for _ in range(workers)]
    for worker in every:
        idle.put(worker)

    def do(plan: Plan, seed: int) -> Run | Failure:
        worker = idle.get()
        try:
            return worker.do(plan, seed)
        finally:
            idle.put(worker)

    pool = ThreadPoolExecutor(workers)
    try:
        waiting: dict[Future[Run | Failure], int] = {
            pool.submit(do, plan, seed): number for number, (plan, seed) in enumerate(jobs)
        }
        while waiting:
            left = budget.remaining()
            finished, _ = wait(waiting, None if np.isinf(left) else max(left, 0.0), return_when=FIRST_COMPLETED)
            if not finished:
                budget.check()
            for future in sorted(finished, key=lambda f: waiting[f]):
                yield waiting.pop(future), future.result()
    finally:
        with held_back():
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in every:
                worker.end()
