"""Errors a user meets; every message says what was wrong, where, and what is allowed."""

from __future__ import annotations

from typing import Any


class SaddleforgeError(Exception):
    """Base of this package's errors.

    Example:
        >>> try:
        ...     sf.problem("ridge_regression", alpha=-1)
        ... except sf.SaddleforgeError as error:
        ...     print(type(error).__name__)
        InputError
    """


class InputError(SaddleforgeError, ValueError):
    """Something the user gave is wrong: a name, a value, a file. Exit status 2 on the command line.

    Example:
        >>> sf.problem("ridge_regression", Delta=-1)
        Traceback (most recent call last):
            ...
        saddleforge.errors.InputError: Delta = -1 is out of range; allowed is [0, inf) (Δ, variance of the label noise)
    """


class NotConvergedError(SaddleforgeError, RuntimeError):
    """A computation ran but did not reach what was asked. Exit status 3 on the command line.

    Example:
        >>> try:
        ...     sf.where(sf.problem("ridge_regression"), "test_error = 2", on="semantic", bracket=(1, 6))
        ... except sf.NotConvergedError as error:
        ...     print(str(error).split(";")[0])
        where test_error = 2: no sign change for alpha in [1, 6]
    """


class NotProvedError(NotConvergedError):
    """A proof that was asked for could not be given; the message says which step of it balls do not settle.

    What was to be proved may still hold.

    Attributes:
        estimate: the solution in double precision, where there is one and nothing better.

    Example:
        >>> try:
        ...     found = sf.solve_precisely(sf.problem("logistic_regression", alpha=2), accuracy=1e-15, proof=True)
        ... except sf.NotProvedError as error:
        ...     found = error.estimate
        >>> found.success
        True
    """

    estimate: object = None


class TimeLimitError(SaddleforgeError, TimeoutError):
    """A time limit ended a computation that had nothing finished to hand over. Exit status 3 on the command line.

    Attributes:
        point: what there is: the last iterate of the saddle point, or a solution in double precision; or None.

    Example:
        >>> with sf.time_limit(1e-9):
        ...     sf.where(sf.problem("ridge_regression"), "test_error = 0.4", on="semantic", bracket=(1, 6))
        Traceback (most recent call last):
            ...
        saddleforge.errors.TimeLimitError: the time limit ended the search for a branch
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
