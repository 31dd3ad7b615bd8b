"""Comparisons in code that runs on sets of numbers: settled once at a point of a piece, and repeated all over it.

Between two kinks a printed loss is one analytic function, given by the branches that it takes at any point there. They
are recorded at a point and repeated elsewhere: on balls that touch a kink, on complex balls and on rays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...base.errors import NotProvedError

# What is decided inside, innermost last: outcomes in order, and those to repeat where they are known.
_active: list[tuple[list[bool], Iterator[bool] | None]] = []


@contextmanager
def recorded_decisions() -> Iterator[list[bool]]:
    """Keep the outcomes of the comparisons inside, in order."""
    outcomes: list[bool] = []
    _active.append((outcomes, None))
    try:
        yield outcomes
    finally:
        _active.pop()


@contextmanager
def repeated_decisions(outcomes: list[bool]) -> Iterator[None]:
    """Decide in the same way again."""
    _active.append((outcomes, iter(outcomes)))
    try:
        yield
    finally:
        _active.pop()


def decide(settled: Callable[[], bool | None]) -> bool:
    """The outcome of a comparison, by what is repeated or else by `settled`, which knows it, or does not (None).

    Raises:
        NotProvedError: it is not known.
    """
    outcomes, repeated = _active[-1] if _active else ([], None)
    if repeated is not None:
        return next(repeated)
    found = settled()
    if found is None:
        raise NotProvedError("ball arithmetic cannot decide a comparison")
    outcomes.append(found)
    return found
