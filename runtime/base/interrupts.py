"""Ctrl-C and SIGTERM (sent by batch systems): while results are saved they wait, so that saved files are complete."""

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

LOOP_THREAD_NAME = "saddleforge-loops"  # with a number: threads of loops over nodes
INTERRUPTED, OUT_OF_TIME = "interrupted", "the time limit ended it"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Functions of Python, llvmlite and (called by weak references) Numba in which exceptions are ignored; and `refresh`, by
# which Numba registers its types: what an exception keeps it from registering is missing as long as the process runs.
_DEFERRING_FUNCTIONS = ("__del__", "_raw_object_cache_notify", "_raw_object_cache_getbuffer", "on_disposal", "refresh")
_RETRY_DELAY, _REPEAT_INTERVAL = 0.02, 0.5  # seconds
_interrupted = False
_MAX_TIMER = 1e9  # seconds; the longest timer that all systems support
_PARENT_POLL_INTERVAL = 0.5  # seconds between checks of the parent process


def install_interrupt_handlers() -> None:
    """Let Ctrl-C and SIGTERM raise KeyboardInterrupt from now on, and reset `was_interrupted`.

    A shell starts background jobs with Ctrl-C ignored, and a batch system that ends a job gives it some seconds to save
    its results.
    """
    global _interrupted
    _interrupted = False
    for number in _SIGNALS:
        signal.signal(number, _handle_interrupt)


def _handle_interrupt(number: int, frame: FrameType | None) -> None:
    """Handle SIGINT or SIGTERM: raise KeyboardInterrupt, or send the signal again if an exception must wait."""
    global _interrupted
    if _must_exception_wait(frame):
        again = threading.Timer(_RETRY_DELAY, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()
        return
    _interrupted = True
    signal.default_int_handler(number, frame)


def _must_exception_wait(frame: FrameType | None) -> bool:
    """Return whether an exception raised in this frame would be ignored, or leave Numba without some of its types."""
    collecting = {getattr(each, "__code__", None) for each in gc.callbacks}
    while frame is not None:
        if frame.f_code.co_name in _DEFERRING_FUNCTIONS or frame.f_code in collecting:
            return True
        frame = frame.f_back
    return False


@contextmanager
def _temporary_signal_handler(numbers: Iterable[int], handler: Any) -> Iterator[None]:
    """Install a handler for some signals during the block; signals without a Python handler are left out."""
    before = {number: own for number in numbers if (own := signal.getsignal(number)) is not None}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, own in before.items():
            signal.signal(number, own)


@contextmanager
def interrupt_after_seconds(seconds: float, ring: Callable[[], None]) -> Iterator[None]:
    """Interrupt the block after some seconds by a function that raises; repeat the call if a library ignored it.

    Works in the main thread of a system with timer signals; elsewhere the block is not interrupted.

    Args:
        seconds: time until the first call.
        ring: function without arguments that raises an exception.
    """
    if not _can_thread_be_interrupted() or not hasattr(signal, "setitimer") or signal.getsignal(signal.SIGALRM) is None:
        yield
        return
    report, raised = sys.unraisablehook, set[BaseException]()

    def _handle_alarm(_: int, frame: FrameType | None) -> None:
        try:
            if not _must_exception_wait(frame):
                ring()
        except BaseException as error:
            raised.add(error)
            raise

    with _temporary_signal_handler((signal.SIGALRM,), _handle_alarm):
        sys.unraisablehook = lambda lost: None if lost.exc_value in raised else report(lost)
        signal.setitimer(signal.ITIMER_REAL, min(max(seconds, 1e-3), _MAX_TIMER), _REPEAT_INTERVAL)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.unraisablehook = report


def was_interrupted() -> bool:
    """Return whether Ctrl-C or SIGTERM has interrupted this process, even if the exception was replaced by another."""
    return _interrupted


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM to the end of the block, so that the block completes or does not start.

    Only the main thread is interrupted: in other threads nothing happens.
    """
    if not _can_thread_be_interrupted():
        yield
        return
    pressed: list[int] = []
    with _temporary_signal_handler(_SIGNALS, lambda sent, _: pressed.append(sent)):
        yield
    if pressed:
        signal.raise_signal(pressed[0])


@contextmanager
def restore_keyboard_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt again where compiled code has turned it into a SystemError in the block."""
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
class EarlyTermination:
    """A record of why a block of code ended early: `reason` is INTERRUPTED, OUT_OF_TIME, or empty if it did not."""

    reason: str = ""

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C (or SIGTERM) ended the block early."""
        return self.reason == INTERRUPTED

    @property
    def out_of_time(self) -> bool:
        """Whether a time limit ended the block early."""
        return self.reason == OUT_OF_TIME


@contextmanager
def keep_partial_results(has_results: Callable[[], object] = lambda: True) -> Iterator[EarlyTermination]:
    """Suppress Ctrl-C and TimeLimitError in the block if there are partial results; yield the record of what happened.

    If `has_results()` is false, the exception is raised.
    """
    early = EarlyTermination()
    try:
        with restore_keyboard_interrupt():
            yield early
    except (TimeLimitError, KeyboardInterrupt) as error:
        if not has_results():
            raise
        early.reason = OUT_OF_TIME if isinstance(error, TimeLimitError) else INTERRUPTED


@contextmanager
def preserve_interrupt_handler() -> Iterator[None]:
    """Restore the handler of Ctrl-C after the block, in which an imported library may change it."""
    if not _can_thread_be_interrupted():
        yield
        return
    with _temporary_signal_handler((signal.SIGINT,), signal.getsignal(signal.SIGINT)):
        yield


def ignore_interrupts() -> None:
    """Ignore Ctrl-C and SIGTERM from now on: the process only writes its results and ends."""
    if _can_thread_be_interrupted():
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def restore_default_signals() -> None:
    """Let Ctrl-C and SIGTERM end the process at once, by default handlers, if threads of a model file still run.

    Threads of loops over nodes do not count: they end with the process.
    """
    others = (each for each in threading.enumerate() if not each.daemon and not each.name.startswith(LOOP_THREAD_NAME))
    if _can_thread_be_interrupted() and any(each is not threading.main_thread() for each in others):
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)


def end_process_with_parent() -> None:
    """Start a thread that ends this process as soon as its parent process has ended."""
    parent = os.getppid()

    def exit_when_parent_ends() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_INTERVAL)
        os._exit(0)

    threading.Thread(target=exit_when_parent_ends, daemon=True).start()


def _can_thread_be_interrupted() -> bool:
    """Return whether Ctrl-C interrupts this thread (the main one), by a handler that Python can restore."""
    return threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is not None
