"""Ctrl-C while finished work is put away: it waits, so that what is said to be kept is what a file holds."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_back() -> Iterator[None]:
    """Hold Ctrl-C back until the block is done: what it does is done in whole or, interrupted before, not at all.

    Outside the main thread, which alone is interrupted, nothing has to be done.
    """
    if not _interruptible():
        yield
        return
    pressed: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if pressed:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def recognised() -> Iterator[None]:
    """Ctrl-C as KeyboardInterrupt also where compiled code was about to return and made a SystemError of it."""
    try:
        yield
    except SystemError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, KeyboardInterrupt):
            cause = cause.__cause__
        if cause is None:
            raise
        raise KeyboardInterrupt from error


@contextmanager
def kept_handler() -> Iterator[None]:
    """What happens on Ctrl-C is what it was, whatever a library that is imported here changes."""
    if not _interruptible():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def ignore() -> None:
    """For a process about to end, which only writes down and tells what it has: Ctrl-C no longer comes between."""
    if _interruptible():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interruptible() -> bool:
    """Whether Ctrl-C raises here; a handler that was not set from Python could not be put back."""
    return threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is not None
