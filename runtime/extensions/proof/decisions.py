"""Comparisons in code that runs on sets of numbers: decided once at a point of a piece, and repeated on all of it.

Between two kinks a printed loss is one analytic function, given by the branches that it takes at any point there. They
are recorded at a point and repeated elsewhere: on balls that touch a kink, on complex balls and on rays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...base.errors import NotProvedError

# Comparisons in nested blocks, innermost last: outcomes in order, and those to repeat if they are known.
_active: list[tuple[list[bool], Iterator[bool] | None]] = []


@contextmanager
def recorded_decisions() -> Iterator[list[bool]]:
    """Record the outcomes of the comparisons in this block, in order."""
    outcomes: list[bool] = []
    _active.append((outcomes, None))
    try:
        yield outcomes
    finally:
        _active.pop()


@contextmanager
def repeated_decisions(outcomes: list[bool]) -> Iterator[None]:
    """Repeat recorded outcomes of comparisons in this block."""
    _active.append((outcomes, iter(outcomes)))
    try:
        yield
    finally:
        _active.pop()


def decide_comparison(evaluate: Callable[[], bool | None]) -> bool:
    """Return the outcome of a comparison, repeated if it was recorded, else from `evaluate`, which may return None.

    Raises:
        NotProvedError: the outcome is not known.
    """
    outcomes, repeated = _active[-1] if _active else ([], None)
    if repeated is not None:
        return next(repeated)
    found = evaluate()
    if found is None:
        raise NotProvedError("ball arithmetic cannot decide a comparison")
    outcomes.append(found)
    return found
