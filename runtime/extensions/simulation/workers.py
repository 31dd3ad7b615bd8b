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
from ...base.environment import THREAD_VARIABLES, end_helper_process, start_helper_process
from ...base.errors import InputError
from ...base.interrupts import defer_interrupts, end_process_with_parent
from .plan import SimulationPlan
from .run import SeedRun, train_one_seed


@dataclass(frozen=True)
class SeedFailure:
    """The reason why a seed of a simulation has no result."""

    seed: int
    text: str
    input_error: bool = False


class _SeedWorker:
    """A worker process that runs one seed of a simulation at a time.

    It is started when first used, and again after it died, but not after `stop_permanently`.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ended, self._lock = False, Lock()

    def run_seed(self, plan: SimulationPlan, seed: int) -> SeedRun | SeedFailure:
        """Run one seed of a simulation in the worker process.

        Args:
            plan: plan of the simulation.
            seed: seed of the random numbers.
        """
        with self._lock:
            if self._is_ended:
                return SeedFailure(seed, "the run was not started")
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
            self.stop_process()
            cause = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            return SeedFailure(seed, f"the process {cause} (out of memory?)")

    def stop_permanently(self) -> None:
        """Stop the worker process permanently, even if another thread is about to start it."""
        with self._lock:
            self._is_ended = True
            self.stop_process()

    def stop_process(self) -> None:
        process, self._process = self._process, None  # two threads may come here at once
        if process is not None:
            end_helper_process(process)


def helper_process_main() -> None:
    """Run the loop of a worker process: read (plan, seed) from stdin, write a SeedRun or a SeedFailure to stdout."""
    end_process_with_parent()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while True:
        try:
            plan, seed = pickle.load(source)
        except EOFError:
            return
        try:
            pickle.dump(_run_seed_catching_errors(plan, seed), sink)
            sink.flush()
        except BrokenPipeError:  # the parent has ended
            os._exit(0)


def _run_seed_catching_errors(plan: SimulationPlan, seed: int) -> SeedRun | SeedFailure:
    try:
        return train_one_seed(plan, seed)
    except InputError as error:
        return SeedFailure(seed, str(error), input_error=True)
    except Exception as error:
        return SeedFailure(seed, f"{type(error).__name__}: {error}")


def iterate_seed_results(
    jobs: Iterable[tuple[SimulationPlan, int]], workers: int
) -> Generator[tuple[int, SeedRun | SeedFailure], None, None]:
    """Run seeds of simulations in worker processes, and yield index and result of each as soon as it has finished.

    Args:
        jobs: plan and seed of every run.
        workers: number of processes.
    """
    idle: SimpleQueue[_SeedWorker] = SimpleQueue()
    every = [_SeedWorker() for _ in range(workers)]
    for worker in every:
        idle.put(worker)

    def _run_seed_on_idle_worker(plan: SimulationPlan, seed: int) -> SeedRun | SeedFailure:
        worker = idle.get()
        try:
            return worker.run_seed(plan, seed)
        finally:
            idle.put(worker)

    pool = ThreadPoolExecutor(workers)
    try:
        waiting: dict[Future[SeedRun | SeedFailure], int] = {
            pool.submit(_run_seed_on_idle_worker, plan, seed): number for number, (plan, seed) in enumerate(jobs)
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
                worker.stop_permanently()
