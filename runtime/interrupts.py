"""Ctrl-C, and SIGTERM as batch systems send it, while finished work is put away: they wait, so that what is said to be
kept is what a file holds."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_WATCH = 0.5  # seconds between looks at who the parent is


def heed() -> None:
    """Both raise KeyboardInterrupt: a shell starts its background jobs with Ctrl-C ignored, and a batch system that
    ends a job gives it some seconds to put away what it has."""
    for number in _SIGNALS:
        signal.signal(number, signal.default_int_handler)


@contextmanager
def held_back() -> Iterator[None]:
    """Hold Ctrl-C back until the block is done: what it does is done in whole or, interrupted before, not at all.

    Outside the main thread, which alone is interrupted, nothing has to be done.
    """
    if not _interruptible():
        yield
        return
    pressed: list[int] = []
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        if handlers[number] is not None:
            signal.signal(number, lambda sent, _: pressed.append(sent))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None:
                signal.signal(number, handler)
    if pressed:
        signal.raise_signal(pressed[0])


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
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def end_with_parent() -> None:
    """This process ends where the one that started it has: nobody reads what it would still find out."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _interruptible() -> bool:
    """Whether Ctrl-C raises here; a handler that was not set from Python could not be put back."""
    return threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is not None
