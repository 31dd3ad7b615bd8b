"""Compiled loops distributed among Python threads, without extra compilation; results do not depend on how."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from itertools import count as counted
from math import ceil
from time import perf_counter
from typing import Any

from . import budget
from .interrupts import LOOP_THREAD_NAME

_FIRST_PART_DIVISOR = 64  # the first 1/64 of the parts runs alone: it compiles, and measures the time
_BLOCKS_PER_THREAD = 8  # small blocks, so that no thread waits long for another
_MIN_THREADED_SECONDS = 2e-4  # seconds: waking a thread takes a tenth of it
_SECONDS_PER_BLOCK = 0.25  # under a time limit, which is checked after every block of a longer loop

_thread_options = threading.local()


def available_thread_count() -> int:
    """Return the number of processors that this process may use, or NUMBA_NUM_THREADS if smaller."""
    import numba  # slow to load

    return int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]


def loop_thread_count() -> int:
    """Return the number of threads over which compiled loops are distributed when called from this thread."""
    return getattr(_thread_options, "count", None) or available_thread_count()


@contextmanager
def thread_limit(count: int) -> Iterator[None]:
    """Limit, during the block, the number of threads of compiled loops called from this thread."""
    before = getattr(_thread_options, "count", None)
    set_thread_limit(count)
    try:
        yield
    finally:
        _thread_options.count = before


def set_thread_limit(count: int) -> None:
    """Limit, from now on, the number of threads of compiled loops called from this thread."""
    _thread_options.count = min(count, available_thread_count())


def run_loop_in_threads(loop: Callable[..., None], parts: int, *arguments: Any) -> None:
    """Run a compiled loop over indices 0 to parts - 1, distributed among threads if that is faster.

    Args:
        loop: function loop(first, last, *arguments) compiled with `nogil` that handles the indices first to last - 1;
            each index writes its result to its own entries of the arrays.
        parts: number of indices.
        *arguments: further arguments of the function.

    Raises:
        TimeLimitError: the time limit and the overtime of a running step end before the loop, or within a long one.
    """
    budget.check_running_step()
    threads, is_limited = min(loop_thread_count(), parts), budget.has_time_limit()
    if threads <= 1 and not is_limited:
        loop(0, parts, *arguments)
        return
    done = -(-parts // _FIRST_PART_DIVISOR)
    started = perf_counter()
    loop(0, done, *arguments)
    left = (perf_counter() - started) * (parts - done) / max(done, 1)
    is_long = is_limited and left > _SECONDS_PER_BLOCK
    if left < _MIN_THREADED_SECONDS or (threads <= 1 and not is_long):
        loop(done, parts, *arguments)
        return
    blocks = _BLOCKS_PER_THREAD * threads
    blocks = min(parts - done, max(blocks, ceil(threads * left / _SECONDS_PER_BLOCK)) if is_long else blocks)
    bounds = [done + (parts - done) * block // blocks for block in range(blocks + 1)]
    turns = counted()

    def run_blocks_of_loop() -> None:
        while (block := next(turns)) < blocks:
            if is_long:
                budget.check_running_step()  # in this thread: the others see no limit
            loop(bounds[block], bounds[block + 1], *arguments)

    others = [_thread_pool(threads - 1).submit(run_blocks_of_loop) for _ in range(threads - 1)]
    try:
        run_blocks_of_loop()
    finally:
        for _ in range(blocks):
            next(turns)  # interrupted: no thread starts another block
        wait(others)
    for other in others:
        other.result()


@cache
def _thread_pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, LOOP_THREAD_NAME)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_thread_pool.cache_clear)  # a forked process has no threads
