"""Errors a user meets; every message says what was wrong, where, and what is allowed."""

from __future__ import annotations

from typing import Any


class SaddleforgeError(Exception):
    """Base of this package's errors."""


class InputError(SaddleforgeError, ValueError):
    """Something the user gave is wrong: a name, a value, a file. Exit status 2 on the command line."""


class NotConvergedError(SaddleforgeError, RuntimeError):
    """A computation ran but did not reach what was asked. Exit status 3 on the command line."""


class NotProvedError(NotConvergedError):
    """A proof that was asked for could not be given; the message says which step of it balls do not settle.

    What was to be proved may still hold.

    Attributes:
        estimate: the solution in double precision, where there is one and nothing better.
    """

    estimate: object = None


class TimeLimitError(SaddleforgeError, TimeoutError):
    """A time limit ended a computation that had nothing finished to hand over. Exit status 3 on the command line.

    Attributes:
        point: what there is: the last iterate of the saddle point, or a solution in double precision; or None.
    """

    point: Any = None


class DomainError(ArithmeticError):
    """Overlaps outside their domain: V > 0, q - theta rho*^{-1} theta^T > 0 (docs/theory.md (4.9))."""


OUTSIDE = (DomainError, InputError)  # what a system raises where its unknowns mean nothing


def told(error: BaseException) -> str:
    """The name of an error of somebody else's, and what it says, where it can."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
