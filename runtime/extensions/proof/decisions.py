"""Comparisons in generated code on sets of numbers: decided at one point of an interval, and repeated on all of it.

Between two kinks a loss is one analytic function, given by the branches that it takes at any point there. They
are recorded at a point and repeated elsewhere: on balls that touch a kink, on complex balls and on rays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...base.errors import NotProvedError

# Comparisons in nested blocks, innermost last: outcomes in order, and those to repeat if they are known.
_active: list[tuple[list[bool], Iterator[bool] | None]] = []


@contextmanager
def record_comparisons() -> Iterator[list[bool]]:
    """Record the outcomes of the comparisons in this block, in order."""
    outcomes: list[bool] = []
    _active.append((outcomes, None))
    try:
        yield outcomes
    finally:
        _active.pop()


@contextmanager
def repeat_comparisons(outcomes: list[bool]) -> Iterator[None]:
    """Repeat the recorded outcomes of comparisons, in order, in this block."""
    _active.append((outcomes, iter(outcomes)))
    try:
        yield
    finally:
        _active.pop()


def decide_comparison(evaluate: Callable[[], bool | None]) -> bool:
    """Return the outcome of a comparison: the recorded one if there is one, else that of `evaluate`.

    Raises:
        NotProvedError: `evaluate` returns None, since the outcome is not known.
    """
    outcomes, repeated = _active[-1] if _active else ([], None)
    if repeated is not None:
        return next(repeated)
    found = evaluate()
    if found is None:
        raise NotProvedError(
            "ball arithmetic cannot decide a comparison in the loss, such as X > kink: the ball of X contains the kink"
        )
    outcomes.append(found)
    return found
