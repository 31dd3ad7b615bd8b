"""Compiled loops distributed among Python threads, without extra compilation; results do not depend on how."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from itertools import count as counted
from time import perf_counter
from typing import Any

_FIRST_PART_DIVISOR = 64  # the first 1/64 of the parts runs alone: it compiles, and measures the time
_BLOCKS_PER_THREAD = 8  # small blocks, so that no thread waits long for another
_MIN_THREADED_SECONDS = 2e-4  # seconds: waking a thread takes a tenth of it

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
    """
    threads = min(loop_thread_count(), parts)
    if threads <= 1:
        loop(0, parts, *arguments)
        return
    done = -(-parts // _FIRST_PART_DIVISOR)
    started = perf_counter()
    loop(0, done, *arguments)
    took = perf_counter() - started
    if took * (parts - done) < _MIN_THREADED_SECONDS * done:
        loop(done, parts, *arguments)
        return
    blocks = min(parts - done, _BLOCKS_PER_THREAD * threads)
    bounds = [done + (parts - done) * block // blocks for block in range(blocks + 1)]
    turns = counted()

    def run_blocks_of_loop() -> None:
        while (block := next(turns)) < blocks:
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
    return ThreadPoolExecutor(threads, "saddleforge")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_thread_pool.cache_clear)  # a forked process has no threads
