"""A limit on the time that computations take, and what they hand over when it is used up.

Under `time_limit` long computations check the clock before each of their steps; a step that is expected to take
longer than what is left is not started. `TimeLimitError` ends them, up to the caller that has a partial result:
`offer_partial_result` registers the best result so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from .errors import TimeLimitError, require_in_interval
from .interrupts import interrupt_after_seconds

Value = TypeVar("Value")


class _TimeLimit(NamedTuple):
    """A limit on the time of a computation.

    Attributes:
        end: monotonic clock at which the limit ends, in seconds; within `allow_step_overtime` that of a running step.
        seconds: length of the limit.
        regular_end: monotonic clock at which the limit ends without overtime, in seconds.
    """

    end: float
    seconds: float
    regular_end: float


_deadline: ContextVar[_TimeLimit | None] = ContextVar("deadline", default=None)
_OVERTIME = 5.0  # seconds by which a running step may exceed the limit
_partial_result: ContextVar[list[Callable[[], Any] | None]] = ContextVar("best")


@contextmanager
def _set_context_variable(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """Set a `contextvars.ContextVar` to a value during the block, and restore its earlier value afterwards."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Limit the time of computations in the block, which then return their best result so far; None means no limit.

    A running step may exceed the limit by 5 seconds; then it is abandoned. Of nested limits the earlier end applies.

    Raises:
        InputError: `seconds` is not positive.
        TimeLimitError: the time is used up, and there is no partial result.

    Example:
        >>> with sf.time_limit(60):
        ...     solution = sf.solve(sf.problem("ridge_regression", alpha=2))
    """
    if seconds is None:
        yield
        return
    require_in_interval("time limit", seconds, "(0, inf] seconds")
    end, outer = time.monotonic() + seconds, _deadline.get()
    limit = _TimeLimit(end, seconds, end)
    with _set_context_variable(_deadline, limit if outer is None or end < outer.end else outer):
        yield


def has_time_limit() -> bool:
    """Return whether the running code is inside a `time_limit` block, also if its time is already used up."""
    return _deadline.get() is not None


def remaining_seconds() -> float:
    """Return the seconds left before the time limit; infinity without a limit."""
    limit = _deadline.get()
    return float("inf") if limit is None else limit.end - time.monotonic()


def is_in_overtime() -> bool:
    """Return whether the time limit is used up, so that a running step should end with what it has."""
    limit = _deadline.get()
    return limit is not None and limit.regular_end <= time.monotonic()


def check_time_limit(expected: float = 0.0) -> None:
    """Raise TimeLimitError unless there is time for the next step.

    Args:
        expected: estimated duration of the step in seconds; 0 if unknown.

    Raises:
        TimeLimitError: the time is used up, or will be before the step ends.
    """
    limit = _deadline.get()
    if limit is not None and limit.end - time.monotonic() <= expected:
        raise _time_limit_error(limit)


def check_running_step() -> None:
    """Raise TimeLimitError if a running step has used up its overtime, too; for blocks of long loops.

    Raises:
        TimeLimitError: the time limit and the overtime of a running step are used up.
    """
    limit = _deadline.get()
    if limit is not None and limit.regular_end + _OVERTIME <= time.monotonic():
        raise _time_limit_error(limit)


def _time_limit_error(limit: _TimeLimit) -> TimeLimitError:
    return TimeLimitError(f"the time limit of {limit.seconds:g} s ended the computation")


@contextmanager
def interrupt_at_time_limit() -> Iterator[None]:
    """Raise TimeLimitError in the block at the time limit, even if its code never checks the clock (SymPy, Numba).

    Works in the main thread of a system with timer signals; elsewhere the block is not interrupted.

    Raises:
        TimeLimitError: the time is used up.
    """
    limit = _deadline.get()
    if limit is None:
        yield
        return
    check_time_limit()

    expired = False

    def raise_time_limit_error() -> None:
        nonlocal expired
        expired = True
        raise _time_limit_error(limit)

    try:
        with interrupt_after_seconds(remaining_seconds(), raise_time_limit_error):
            yield
    except TimeLimitError:
        raise
    except Exception as error:
        if expired:  # the interrupted code has replaced the error by one of its own
            raise _time_limit_error(limit) from error
        raise


@contextmanager
def allow_step_overtime() -> Iterator[None]:
    """Extend the time limit during the block by 5 seconds, so that a running step can finish."""
    limit = _deadline.get()
    with _set_context_variable(_deadline, None if limit is None else limit._replace(end=limit.regular_end + _OVERTIME)):
        yield


@contextmanager
def without_time_limit() -> Iterator[None]:
    """Suspend the time limit during the block."""
    with _set_context_variable(_deadline, None):
        yield


@contextmanager
def collect_partial_result() -> Iterator[list[Callable[[], Any] | None]]:
    """Collect the partial result of the block: yield a list with the last function passed to `offer_partial_result`.

    The list has one entry, which is None until a partial result has been offered.
    """
    slot: list[Callable[[], Any] | None] = [None]
    with _set_context_variable(_partial_result, slot):
        yield slot


def offer_partial_result(finish: Callable[[], Any]) -> None:
    """Register a function that returns the best result so far; it is called if the time limit ends the computation."""
    slot = _partial_result.get(None)
    if slot is not None:
        slot[0] = finish
