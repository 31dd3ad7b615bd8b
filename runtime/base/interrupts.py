"""Ctrl-C, and SIGTERM as batch systems send it, while finished work is put away: they wait, so that what is said to be
kept is what a file holds."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from .errors import TimeLimitError

INTERRUPTED, OUT_OF_TIME = "interrupted", "the time limit ended it"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Of Python, llvmlite and, called by weak references, Numba.
_DEAF = ("__del__", "_raw_object_cache_notify", "_raw_object_cache_getbuffer", "on_disposal")
_SOON, _AGAIN = 0.02, 0.5  # seconds
_pressed = False
_LONGEST = 1e9  # seconds that timers of all systems know
_WATCH = 0.5  # seconds between looks at who the parent is


def heed() -> None:
    """Both raise KeyboardInterrupt: a shell starts its background jobs with Ctrl-C ignored, and a batch system that
    ends a job gives it some seconds to put away what it has. Nothing has been interrupted yet: a process may run many
    commands."""
    global _pressed
    _pressed = False
    for number in _SIGNALS:
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """KeyboardInterrupt, but not where it would be lost."""
    global _pressed
    if _is_deaf(frame):
        again = threading.Timer(_SOON, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()
        return
    _pressed = True
    signal.default_int_handler(number, frame)


def _is_deaf(frame: FrameType | None) -> bool:
    """Whether what is raised here is lost: callbacks of C, of the garbage collector and of weak references,
    and finalisers, ignore it."""
    collecting = {getattr(each, "__code__", None) for each in gc.callbacks}
    while frame is not None:
        if frame.f_code.co_name in _DEAF or frame.f_code in collecting:
            return True
        frame = frame.f_back
    return False


@contextmanager
def _handling(numbers: Iterable[int], handler: Any) -> Iterator[None]:
    """Let a handler take signals during this block, but those whose own was not set from Python and stays."""
    before = {number: own for number in numbers if (own := signal.getsignal(number)) is not None}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, own in before.items():
            signal.signal(number, own)


@contextmanager
def alarm(seconds: float, ring: Callable[[], None]) -> Iterator[None]:
    """Call `ring`, which raises, after so many seconds of this block, and again where the error was swallowed.

    Where a callback of a library swallows it, nothing is reported: the next one counts. In the main thread of a system
    with timers; elsewhere nothing happens.
    """
    if not _interruptible() or not hasattr(signal, "setitimer") or signal.getsignal(signal.SIGALRM) is None:
        yield
        return
    report, raised = sys.unraisablehook, set[BaseException]()

    def handle(_: int, frame: FrameType | None) -> None:
        try:
            if not _is_deaf(frame):
                ring()
        except BaseException as error:
            raised.add(error)
            raise

    with _handling((signal.SIGALRM,), handle):
        sys.unraisablehook = lambda lost: None if lost.exc_value in raised else report(lost)
        signal.setitimer(signal.ITIMER_REAL, min(max(seconds, 1e-3), _LONGEST), _AGAIN)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.unraisablehook = report


def pressed() -> bool:
    """Whether this process was interrupted: compiled code and libraries may have made another error of it."""
    return _pressed


@contextmanager
def held_back() -> Iterator[None]:
    """Hold Ctrl-C back until the block is done: what it does is done in whole or, interrupted before, not at all.

    Outside the main thread, which alone is interrupted, nothing has to be done.
    """
    if not _interruptible():
        yield
        return
    pressed: list[int] = []
    with _handling(_SIGNALS, lambda sent, _: pressed.append(sent)):
        yield
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


@dataclass
class EarlyEnd:
    """Why a block ended early: INTERRUPTED, OUT_OF_TIME, or empty where it did not."""

    reason: str = ""

    @property
    def interrupted(self) -> bool:
        """Return whether Ctrl-C ended it."""
        return self.reason == INTERRUPTED

    @property
    def out_of_time(self) -> bool:
        """Return whether a time limit ended it."""
        return self.reason == OUT_OF_TIME


@contextmanager
def keeping_results(has_results: Callable[[], object] = lambda: True) -> Iterator[EarlyEnd]:
    """Leave the block where Ctrl-C or a time limit ends it, and record which, if there are results to keep by then."""
    early = EarlyEnd()
    try:
        with recognised():
            yield early
    except (TimeLimitError, KeyboardInterrupt) as error:
        if not has_results():
            raise
        early.reason = OUT_OF_TIME if isinstance(error, TimeLimitError) else INTERRUPTED


@contextmanager
def kept_handler() -> Iterator[None]:
    """What happens on Ctrl-C is what it was, whatever a library that is imported here changes."""
    if not _interruptible():
        yield
        return
    with _handling((signal.SIGINT,), signal.getsignal(signal.SIGINT)):
        yield


def ignore() -> None:
    """For a process about to end, which only writes down and tells what it has: Ctrl-C no longer comes between."""
    if _interruptible():
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def yield_to_threads() -> None:
    """For a process that is done where threads that a model file has begun go on: signals end it, as any other."""
    if _interruptible() and any(
        each is not threading.main_thread() for each in threading.enumerate() if not each.daemon
    ):
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)


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
