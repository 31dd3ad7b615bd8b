"""Compiled loops shared out among threads of Python, which costs no compilation; the bytes do not depend on how."""

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

_ALONE = 64  # one part in so many is done first, alone: it compiles what is not, and tells what the rest will take
_BLOCKS = 8  # a thread, so that none waits long for another
_WORTH = 2e-4  # seconds: waking a thread takes a tenth of it

_given = threading.local()


def available() -> int:
    """Processors that this process may use, or fewer where NUMBA_NUM_THREADS says so."""
    import numba  # slow to load

    return int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]


def used() -> int:
    """Threads among which loops that this thread calls are shared out."""
    return getattr(_given, "count", None) or available()


@contextmanager
def limited(count: int) -> Iterator[None]:
    """At most so many threads in loops that this thread calls meanwhile."""
    before = getattr(_given, "count", None)
    limit(count)
    try:
        yield
    finally:
        _given.count = before


def limit(count: int) -> None:
    """At most so many threads in loops that this thread calls from now on."""
    _given.count = min(count, available())


def share(loop: Callable[..., None], parts: int, *arguments: Any) -> None:
    """Call loop(first, last, *arguments) for ranges that make up the parts, in threads where it pays.

    The loop holds no lock of Python (`nogil`) and writes what belongs to a part in a place of its own.
    """
    threads = min(used(), parts)
    if threads <= 1:
        loop(0, parts, *arguments)
        return
    done = -(-parts // _ALONE)
    begun = perf_counter()
    loop(0, done, *arguments)
    took = perf_counter() - begun
    if took * (parts - done) < _WORTH * done:
        loop(done, parts, *arguments)
        return
    blocks = min(parts - done, _BLOCKS * threads)
    bounds = [done + (parts - done) * block // blocks for block in range(blocks + 1)]
    turns = counted()

    def work() -> None:
        while (block := next(turns)) < blocks:
            loop(bounds[block], bounds[block + 1], *arguments)

    others = [_pool(threads - 1).submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        for _ in range(blocks):
            next(turns)  # interrupted: nobody begins another block
        wait(others)
    for other in others:
        other.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "saddleforge")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads stay behind
