"""Errors that users see; every message says what was wrong, where, and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from ..derive.errors import did_you_mean_hint

if TYPE_CHECKING:
    import numpy as np


class SaddleforgeError(Exception):
    """The base class of the errors that this package raises on purpose.

    Example:
        >>> try:
        ...     sf.problem("ridge_regression", alpha=-1)
        ... except sf.SaddleforgeError as error:
        ...     print(type(error).__name__)
        InputError
    """


class InputError(SaddleforgeError, ValueError):
    """An error in the user's input: a wrong name, value or file. Exit status 2 on the command line.

    Example:
        >>> sf.problem("ridge_regression", Delta=-1)
        Traceback (most recent call last):
            ...
        saddleforge.InputError: Delta = -1 is out of range; allowed is [0, inf) (Δ, variance of the label noise)
    """


class NotConvergedError(SaddleforgeError, RuntimeError):
    """An error of a computation that did not converge, or found no solution. Exit status 3 on the command line.

    Example:
        >>> try:
        ...     sf.where(sf.problem("ridge_regression"), "test_error = 2", on="informed", bracket=(1, 6))
        ... except sf.NotConvergedError as error:
        ...     print(str(error).split(";")[0])
        where test_error = 2: no sign change for alpha in [1, 6]
    """


class NotProvedError(NotConvergedError):
    """An error of a requested proof that failed; the message says at which step ball arithmetic was inconclusive.

    The statement to be proved may still be true.

    Attributes:
        estimate: the solution in double precision, if there is one and nothing better.

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
    """An error of a computation that a time limit ended before it had a result. Exit status 3 on the command line.

    Attributes:
        point: the best partial result: the last iterate of the saddle point, a solution in double precision, or None.

    Example:
        >>> with sf.time_limit(1e-9):
        ...     sf.where(sf.problem("ridge_regression"), "test_error = 0.4", on="informed", bracket=(1, 6))
        Traceback (most recent call last):
            ...
        saddleforge.TimeLimitError: the time limit ended the search for a branch
    """

    point: Any = None


class DomainError(ArithmeticError):
    """An error of equations evaluated at overlaps outside their domain of definition.

    The domain is V > 0 and q - theta rho*^{-1} theta^T > 0 with the teacher's covariance rho* (docs/theory.md (4.9)).
    """


for _public in (SaddleforgeError, InputError, NotConvergedError, NotProvedError, TimeLimitError):
    _public.__module__ = "saddleforge"  # the public path, printed by tracebacks


DOMAIN_ERRORS = (DomainError, InputError)  # raised by equations outside their domain of definition


def describe_exception(error: BaseException) -> str:
    """Return "Class: message" of an exception, or only the class if its `__str__` fails."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def describe_unknown_name(what: str, name: object, known: Iterable[str], of: str = "") -> str:
    """Return the error message that a name is unknown; it suggests the most similar allowed name.

    Args:
        what: what the name stands for, as "start" or "column".
        name: unknown name, as the user wrote it.
        known: all allowed names.
        of: model, function or option to which the name belongs, for the message; may be empty.
    """
    known = [each.rstrip("_") for each in known]
    owner = f" of {of}" if of else ""
    return (
        f"unknown {what} {name!r}{owner}{did_you_mean_hint(str(name), known)}; known are {', '.join(known) or 'none'}"
    )


def require_known_name(what: str, name: object, known: Collection[str], of: str = "") -> None:
    """Raise InputError unless a name is one of the allowed names.

    Args:
        what: what the name stands for, as "start" or "column".
        name: the name to check.
        known: all allowed names.
        of: model, function or option to which the name belongs, for the message; may be empty.
    """
    if name not in list(known):
        raise InputError(describe_unknown_name(what, name, known, of))


def require_whole_number(name: str, value: Any, lowest: int, highest: int | None = None) -> None:
    """Raise InputError unless a value is a whole number in a range.

    Args:
        name: name of the checked argument, for the error message.
        value: the value to check.
        lowest: smallest allowed value.
        highest: largest allowed value; None: no upper bound.
    """
    try:
        allowed = value == int(value) and lowest <= value <= (value if highest is None else highest)
    except (TypeError, ValueError, OverflowError):
        allowed = False
    if not allowed:
        to = "" if highest is None else f" to {highest}"
        range_text = f"allowed is {lowest}" if lowest == highest else f"allowed are whole numbers from {lowest}{to}"
        raise InputError(f"{_format_argument_value(name, value)} is out of range; {range_text}")


def require_in_interval(name: str, value: Any, interval: str) -> None:
    """Raise InputError unless a value is a number in an interval.

    Args:
        name: name of the checked argument, for the error message.
        value: the value to check.
        interval: allowed values as text, "[0, 1)" or "(0, inf) seconds".
    """
    opening, *ends, closing = re.match(r"([\[(])(\S+), (\S+?)([\])])", interval).groups()  # type: ignore[union-attr]
    low, high = map(float, ends)
    try:
        allowed = low <= value <= high
        allowed &= not (opening == "(" and value == low) and not (closing == ")" and value == high)
    except (TypeError, ValueError):
        allowed = False
    if not allowed:
        reason = "is a text, where a number is expected" if isinstance(value, str) else "is out of range"
        example = "; an accuracy is an error bar: 1e-8 for eight digits" if name.strip("-") == "accuracy" else ""
        raise InputError(f"{_format_argument_value(name, value)} {reason}; allowed is {interval}{example}")


def convert_to_number_array(value: Any, expected: str) -> np.ndarray:
    """Convert a value to a float array, or raise InputError.

    Args:
        value: a number, sequence or array.
        expected: text of the error message, in which {!r} is replaced by the value.
    """
    import numpy as np  # slow to load

    try:
        return np.asarray(value, float)
    except (TypeError, ValueError, OverflowError):
        raise InputError(expected.format(value)) from None


def _format_argument_value(name: str, value: object) -> str:
    """Return an argument and its value for an error message: "name = value", or "--name value" on the command line."""
    return f"{name} {value}" if name.startswith("--") else f"{name} = {value!r}"
