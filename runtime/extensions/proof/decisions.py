"""Comparisons such as X > kink in generated code, for balls and intervals in place of numbers.

Between two kinks a loss is one analytic function. Its comparisons are evaluated and recorded at one point there, and
the recorded outcomes are repeated elsewhere: for balls that touch a kink, complex balls and unbounded intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...base.errors import NotProvedError

# Comparisons in nested blocks, innermost last: outcomes in order, and those to repeat if they are known.
_active: list[tuple[list[bool], Iterator[bool] | None]] = []


@contextmanager
def record_comparison_outcomes() -> Iterator[list[bool]]:
    """Record, within a `with` block, the outcomes of all comparisons of dual numbers, in order."""
    outcomes: list[bool] = []
    _active.append((outcomes, None))
    try:
        yield outcomes
    finally:
        _active.pop()


@contextmanager
def repeat_comparison_outcomes(outcomes: list[bool]) -> Iterator[None]:
    """Use, within a `with` block, recorded outcomes for the comparisons of dual numbers, in order."""
    _active.append((outcomes, iter(outcomes)))
    try:
        yield
    finally:
        _active.pop()


def decide_comparison(evaluate: Callable[[], bool | None]) -> bool:
    """Return the outcome of a comparison of dual numbers: the recorded one if there is one, else an evaluated one.

    Raises:
        NotProvedError: the outcome cannot be decided, since the comparison holds for a part of the ball only.
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
