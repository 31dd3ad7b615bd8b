"""Comparisons in code that runs on sets of numbers: settled once at a point of a piece, and repeated all over it.

Between two kinks a printed loss is one analytic function, given by the branches that it takes at any point there. They
are recorded at a point and repeated elsewhere: on balls that touch a kink, on complex balls and on rays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..errors import NotProvedError


class Decisions:
    """Outcomes of the comparisons that a function makes, in order."""

    def __init__(self) -> None:
        self.outcomes: list[bool] = []
        self.position = 0


_active: list[tuple[Decisions, bool]] = []


@contextmanager
def recorded_decisions() -> Iterator[Decisions]:
    """Keep what is decided inside."""
    decisions = Decisions()
    _active.append((decisions, True))
    try:
        yield decisions
    finally:
        _active.pop()


@contextmanager
def repeated_decisions(decisions: Decisions) -> Iterator[None]:
    """Decide in the same way again."""
    decisions.position = 0
    _active.append((decisions, False))
    try:
        yield
    finally:
        _active.pop()


def decide(settled: Callable[[], bool | None]) -> bool:
    """The outcome of a comparison, by what is repeated or else by `settled`, which knows it, or does not (None).

    Raises:
        NotProvedError: it is not known.
    """
    if _active and not _active[-1][1]:
        decisions = _active[-1][0]
        outcome = decisions.outcomes[decisions.position]
        decisions.position += 1
        return outcome
    found = settled()
    if found is None:
        raise NotProvedError("ball arithmetic cannot decide a comparison")
    if _active:
        _active[-1][0].outcomes.append(found)
    return found
