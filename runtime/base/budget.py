"""A limit on the time that computations take, and what they hand over when it is used up.

Under `time_limit` long computations look at the clock before each of their steps; a step that is expected to take
longer than what is left is not begun. `TimeLimitError` ends them, up to whoever has something to show for the time:
`offer` keeps what is best so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from .errors import TimeLimitError, require_in
from .interrupts import alarm

Value = TypeVar("Value")


class _Limit(NamedTuple):
    """A limit: when it ends, its length in seconds, and when a step that has begun must end (monotonic clock)."""

    end: float
    seconds: float
    last: float


_deadline: ContextVar[_Limit | None] = ContextVar("deadline", default=None)
_OVERTIME, _LEAST_OVERTIME = 0.1, 5.0  # for a step that has begun: share of the seconds of a limit, and seconds
_best: ContextVar[list[Callable[[], Any] | None]] = ContextVar("best")


@contextmanager
def _being(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """Let a variable have a value in this context."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Let what is computed in this context end within so many seconds, with the best so far; None: never.

    A step that has begun may take a tenth of the time more, or 5 seconds; then it is given up. Within another limit the
    earlier end counts.

    Raises:
        InputError: seconds that are not positive.
        TimeLimitError: the time is used up, and there is nothing to show for it.

    Example:
        >>> with sf.time_limit(60):
        ...     solution = sf.solve(sf.problem("ridge_regression", alpha=2))
    """
    if seconds is None:
        yield
        return
    require_in("time limit", seconds, "(0, inf] seconds")
    end, outer = time.monotonic() + seconds, _deadline.get()
    last = end + max(_LEAST_OVERTIME, _OVERTIME * seconds)
    with _being(_deadline, _Limit(end, seconds, last) if outer is None or end < outer.end else outer):
        yield


def is_limited() -> bool:
    """Whether there is a limit; the clock is not looked at."""
    return _deadline.get() is not None


def remaining() -> float:
    """Seconds that are left; infinity without a limit."""
    limit = _deadline.get()
    return float("inf") if limit is None else limit.end - time.monotonic()


def check(expected: float = 0.0) -> None:
    """Before a step: that it may begin.

    Args:
        expected: seconds that it will take, as far as known.

    Raises:
        TimeLimitError: the time is used up, or will be before the step ends.
    """
    limit = _deadline.get()
    if limit is not None and limit.end - time.monotonic() <= expected:
        raise _over(limit)


def _over(limit: _Limit) -> TimeLimitError:
    return TimeLimitError(f"the time limit of {limit.seconds:g} s ended the computation")


@contextmanager
def sharp() -> Iterator[None]:
    """Interrupt at the limit a computation that never checks the clock (symbols, a model file, a compilation), wherever
    it is.

    In the main thread of a system with timers; elsewhere nothing happens.

    Raises:
        TimeLimitError: the time is used up.
    """
    limit = _deadline.get()
    if limit is None:
        yield
        return
    check()

    rung = False

    def end() -> None:
        nonlocal rung
        rung = True
        raise _over(limit)

    try:
        with alarm(remaining(), end):
            yield
    except TimeLimitError:
        raise
    except Exception as error:
        if rung:  # what was ended has made an error of its own of it
            raise _over(limit) from error
        raise


@contextmanager
def overtime() -> Iterator[None]:
    """Let a step that has begun finish within the time that a limit allows beyond its end."""
    limit = _deadline.get()
    with _being(_deadline, None if limit is None else limit._replace(end=limit.last)):
        yield


@contextmanager
def without_limit() -> Iterator[None]:
    """Let this take as long as it takes, whatever the clock says."""
    with _being(_deadline, None):
        yield


@contextmanager
def offers() -> Iterator[list[Callable[[], Any] | None]]:
    """A list of one entry: how to finish what was last offered in this context, or None."""
    kept: list[Callable[[], Any] | None] = [None]
    with _being(_best, kept):
        yield kept


def offer(finish: Callable[[], Any]) -> None:
    """Say how to finish what has been found so far, should the time end."""
    kept = _best.get(None)
    if kept is not None:
        kept[0] = finish
