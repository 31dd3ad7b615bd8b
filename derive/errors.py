"""The error of models that are not well posed, and suggestions for its messages."""

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any


class ModelError(ValueError):
    """An exception for a model that is not well posed; the message names the part of the model at fault.

    Example:
        >>> @sf.model(tokens=0)
        ... def wrong(X, Y):
        ...     return sf.half_square(Y - X)
        Traceback (most recent call last):
            ...
        saddleforge.derive.errors.ModelError: tokens = 0 is out of range; allowed are whole numbers from 1
    """


def did_you_mean_hint(name: str, known: Iterable[str]) -> str:
    """Return the hint " (did you mean NAME?)" with the known name closest to an unknown one; empty if none is close.

    >>> did_you_mean_hint("Lamda", ["alpha", "lambda"])
    ' (did you mean lambda?)'

    Args:
        name: the unknown name.
        known: names that are known.
    """
    by_lower = {each.lower().rstrip("_"): each.rstrip("_") for each in known}
    wanted = name.lower()
    opposite = {f"un{wanted}", f"in{wanted}", wanted.removeprefix("un")} - {wanted}
    close = difflib.get_close_matches(wanted, set(by_lower) - opposite, 1, 0.65)
    inside = [each for each in by_lower if wanted in each.split("_")]
    found = close or (inside if len(inside) == 1 else [])
    return f" (did you mean {by_lower[found[0]]}?)" if found else ""


def signature_without_annotations(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function or class, without type annotations.

    >>> str(signature_without_annotations(lambda x, *, y=1: 0))
    '(x, *, y=1)'
    """
    own = inspect.signature(function)
    bare = [each.replace(annotation=each.empty) for each in own.parameters.values()]
    return own.replace(parameters=bare, return_annotation=own.empty)
