"""Loops shared out among threads: every part once, the same bits, nothing started after an interruption."""

import os
import threading
import time

import numpy as np
import pytest

from saddleforge.base import budget, threads
from saddleforge.base.errors import TimeLimitError


@pytest.fixture
def two(monkeypatch):
    monkeypatch.setattr(threads, "available_thread_count", lambda: 2)
    with threads.thread_limit(2):
        yield


@pytest.mark.parametrize("parts", [0, 1, 2, 63, 64, 65, 1000])
@pytest.mark.parametrize("slow", [0.0, 1e-3])
def test_every_part_is_done_once(two, parts, slow):
    done = np.zeros(parts, int)

    def loop(first, last, step):
        time.sleep(slow)
        done[first:last] += step

    threads.run_loop_in_threads(loop, parts, 1)
    assert (done == 1).all()


def test_parts_that_take_long_are_done_by_several_threads_and_short_ones_by_one(two):
    seen = set()

    def loop(first, last, seconds):
        seen.add(threading.get_ident())
        if seconds:
            time.sleep(seconds)

    threads.run_loop_in_threads(loop, 64, 0.0)
    assert seen == {threading.get_ident()}
    threads.run_loop_in_threads(loop, 64, 0.01)
    assert len(seen) == 2


def test_one_thread_is_called_once_with_all_parts():
    calls = []
    with threads.thread_limit(1):
        threads.run_loop_in_threads(lambda first, last: calls.append((first, last)), 64)
    assert calls == [(0, 64)]


def test_a_limit_belongs_to_the_thread_that_sets_it_and_is_put_back(two):
    with threads.thread_limit(1):
        assert threads.loop_thread_count() == 1
        found = []
        other = threading.Thread(target=lambda: found.append(threads.loop_thread_count()))
        other.start()
        other.join()
        assert found == [2]
    assert threads.loop_thread_count() == 2


@pytest.mark.parametrize("where", ["here", "there"])
def test_an_error_ends_the_others_after_the_block_they_are_at(two, where):
    main, blocks = threading.get_ident(), []

    def loop(first, last):
        blocks.append(first)
        time.sleep(0.002)
        if first > 0 and (threading.get_ident() == main) == (where == "here"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        threads.run_loop_in_threads(loop, 640)
    before = len(blocks)
    time.sleep(0.02)
    assert len(blocks) == before  # nobody is at work any more
    assert where == "there" or before < 16


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_of_this_process_has_threads_of_its_own(two):
    def loop(first, last):
        time.sleep(1e-3)

    threads.run_loop_in_threads(loop, 64)
    child = os.fork()
    if child == 0:
        try:
            threads.run_loop_in_threads(loop, 64)
        finally:
            os._exit(0)
    ends = time.monotonic() + 100
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        assert time.monotonic() < ends, "the child waits for threads that it has not"
        time.sleep(0.01)


@pytest.mark.parametrize("count", [1, 2])
def test_a_long_loop_ends_within_a_block_of_its_time_limit(monkeypatch, count):
    """The limit and its overtime pass within a loop: the rest of it is not started. Without a limit all is done."""
    monkeypatch.setattr(threads, "available_thread_count", lambda: count)
    monkeypatch.setattr(threads, "_SECONDS_PER_BLOCK", 0.01)
    clock, done = [0.0], np.zeros(64 * 10, bool)
    monkeypatch.setattr(budget.time, "monotonic", lambda: clock[0])

    def loop(first, last):
        time.sleep(0.001 * (last - first))
        done[first:last] = True
        if done.sum() >= 100:
            clock[0] = 100.0

    with threads.thread_limit(count):
        with budget.time_limit(10.0), pytest.raises(TimeLimitError, match="10 s"):
            threads.run_loop_in_threads(loop, len(done))
        assert 100 <= done.sum() < 200
        with budget.time_limit(10.0):
            threads.run_loop_in_threads(loop, 0)
            clock[0] += 16.0
            with pytest.raises(TimeLimitError):
                threads.run_loop_in_threads(loop, 1)
        threads.run_loop_in_threads(loop, len(done))
    assert done.all()
