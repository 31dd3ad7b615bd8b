"""Worker processes that each run one seed at a time with a single thread of linear algebra.

A result then depends on its seed alone, not on the number of processes or their order. They are fresh interpreters
that communicate through pipes, so that a script needs no guard and a process that dies costs one seed.
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
from ...base.environment import THREAD_VARIABLES, end_process, start_helper_process
from ...base.errors import InputError
from ...base.interrupts import defer_interrupts, end_with_parent
from .plan import Plan
from .run import Run, run


@dataclass(frozen=True)
class Failure:
    """A failure: the reason why a seed has no result."""

    seed: int
    text: str
    input_error: bool = False


class _Worker:
    """A worker process, started when first used, and again after it died, but not after `end`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ended, self._lock = False, Lock()

    def run_seed(self, plan: Plan, seed: int) -> Run | Failure:
        """Run a seed in the process.

        Args:
            plan: the plan.
            seed: the seed.
        """
        with self._lock:
            if self._is_ended:
                return Failure(seed, "it was not started")
            if self._process is None:
                self._process = start_helper_process(
                    __name__, dict.fromkeys(THREAD_VARIABLES, "1"), stdout=subprocess.PIPE
                )
            process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            pickle.dump((plan, seed), process.stdin)
            process.stdin.flush()
            return pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            status = process.wait()
            self.stop()
            cause = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            return Failure(seed, f"the process {cause} (out of memory?)")

    def end(self) -> None:
        """Stop permanently, even if another thread is about to start the process."""
        with self._lock:
            self._is_ended = True
            self.stop()

    def stop(self) -> None:
        process, self._process = self._process, None  # two threads may come here at once
        if process is not None:
            end_process(process)


def serve() -> None:
    """Run the loop of a worker process: read (plan, seed) from stdin, write a Run or a Failure to stdout."""
    end_with_parent()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while True:
        try:
            plan, seed = pickle.load(source)
        except EOFError:
            return
        try:
            pickle.dump(_run_or_failure(plan, seed), sink)
            sink.flush()
        except BrokenPipeError:  # the parent has ended
            os._exit(0)


def _run_or_failure(plan: Plan, seed: int) -> Run | Failure:
    try:
        return run(plan, seed)
    except InputError as error:
        return Failure(seed, str(error), input_error=True)
    except Exception as error:
        return Failure(seed, f"{type(error).__name__}: {error}")


def results(jobs: Iterable[tuple[Plan, int]], workers: int) -> Generator[tuple[int, Run | Failure], None, None]:
    """Yield (index of the job, its result) in the order in which jobs finish; processes end with the iteration.

    Args:
        jobs: plan and seed of every job.
        workers: number of processes.
    """
    idle: SimpleQueue[_Worker] = SimpleQueue()
    every = [_Worker() for _ in range(workers)]
    for worker in every:
        idle.put(worker)

    def _run_on_idle_worker(plan: Plan, seed: int) -> Run | Failure:
        worker = idle.get()
        try:
            return worker.run_seed(plan, seed)
        finally:
            idle.put(worker)

    pool = ThreadPoolExecutor(workers)
    try:
        waiting: dict[Future[Run | Failure], int] = {
            pool.submit(_run_on_idle_worker, plan, seed): number for number, (plan, seed) in enumerate(jobs)
        }
        while waiting:
            left = budget.remaining_seconds()
            finished, _ = wait(waiting, None if np.isinf(left) else max(left, 0.0), return_when=FIRST_COMPLETED)
            if not finished:
                budget.check_time_limit()
            for future in sorted(finished, key=lambda f: waiting[f]):
                yield waiting.pop(future), future.result()
    finally:
        with defer_interrupts():
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in every:
                worker.end()
