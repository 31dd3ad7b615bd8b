"""Answers of results and public functions to attributes that they have not and to calls that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from ..derive.errors import bare_signature, suggestion

if TYPE_CHECKING:
    from inspect import Signature

_PACKAGE = "saddleforge"


class AttributeHints:
    """A result that names what it has where it is asked for an attribute that it has not.

    Example:
        >>> sf.solve(sf.problem("ridge_regression", alpha=2)).theta
        Traceback (most recent call last):
            ...
        AttributeError: Solution has no 'theta': it is overlaps.theta
    """

    def __getattr__(self, name: str) -> Any:
        kind = type(self)
        if name.startswith("_") or hasattr(kind, name):
            return object.__getattribute__(self, name)  # raises what the attribute's own code raised
        places = [f"{field}.{name}" for field, value in vars(self).items() if _is_ours(value) and name in dir(value)]
        if places:
            raise AttributeError(f"{kind.__name__} has no {name!r}: it is {' or '.join(places)}")
        if name in _OF_CURVES:
            raise AttributeError(
                f"{kind.__name__} has no {name!r}: a curve has, as sf.curve(problem, alpha=(0.5, 3, 26))"
            )
        known = [each for each in dir(self) if not each.startswith("_")]
        by_name = f"; columns and entries are read by name, result[{name!r}]" if hasattr(kind, "__getitem__") else ""
        near = suggestion(name, known)
        raise AttributeError(f"{kind.__name__} has no {name!r}{near}; it has {', '.join(known)}{by_name}")


_OF_CURVES = ("plot", "save", "to_latex", "to_pandas", "to_xarray")


def _is_ours(value: object) -> bool:
    return type(value).__module__.startswith(f"{_PACKAGE}.")


def _fits(signature: Signature, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    try:
        signature.bind(*args, **options)
    except TypeError:
        return False
    return True


def explain_calls(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a public function that says how it is called where its arguments do not fit."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except TypeError as error:
            own = bare_signature(function)
            if _fits(own, args, options):
                raise  # from inside the function
            said, parameters = str(error), own.parameters
        hint = ""
        if "bracket" in parameters and "parameter" in parameters:
            hint = (
                "; a parameter is named and its interval a bracket, as sf.tune(problem, 'lambda', bracket=(1e-3, 10))"
            )
        elif any(each.kind is each.VAR_KEYWORD for each in parameters.values()) and "problem" in parameters:
            hint = "; a parameter is a keyword, as alpha=(0.5, 3, 26)"
        elif unknown := set(options) - set(parameters):
            hint = suggestion(min(unknown), parameters)
            if not hint and "problem" in parameters:
                hint = "; numbers of a model belong to its problem, sf.problem(model, alpha=2)"
        raise TypeError(f"{said}; it is called as sf.{name}{own}{hint}")

    call.__module__ = _PACKAGE  # where it is found again, by pickle for one
    return call
