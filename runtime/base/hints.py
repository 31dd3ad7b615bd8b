"""Helpful errors for missing attributes of results and for wrong calls of public functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any

from ..derive.errors import did_you_mean_hint, signature_without_annotations
from .devices import DeviceOptions
from .options import AlgorithmOptions, options_in_force

if TYPE_CHECKING:
    from inspect import Signature

_PACKAGE = "saddleforge"


class AttributeErrorHints:
    """A base class whose AttributeError suggests the attribute that was probably meant.

    Example:
        >>> sf.solve(sf.problem("ridge_regression", alpha=2)).theta
        Traceback (most recent call last):
            ...
        AttributeError: Solution has no attribute 'theta': use overlaps.theta or conjugates.theta
    """

    def __getattr__(self, name: str) -> Any:
        kind = type(self)
        if name.startswith("_") or hasattr(kind, name):
            return object.__getattribute__(self, name)  # raises what the attribute's own code raised
        places = [
            f"{field}.{name}" for field, value in vars(self).items() if _is_package_object(value) and name in dir(value)
        ]
        if places:
            raise AttributeError(f"{kind.__name__} has no attribute {name!r}: use {' or '.join(places)}")
        if name in _CURVE_METHODS:
            raise AttributeError(
                f"{kind.__name__} has no method {name!r}: a curve has it, as sf.curve(problem, alpha=(0.5, 3, 26))"
            )
        attributes = [each for each in dir(self) if not each.startswith("_")]
        item_hint = f"; columns and entries are read by name, result[{name!r}]" if hasattr(kind, "__getitem__") else ""
        similar = did_you_mean_hint(name, attributes)
        raise AttributeError(
            f"{kind.__name__} has no attribute {name!r}{similar}; it has {', '.join(attributes)}{item_hint}"
        )


_CURVE_METHODS = ("plot", "save", "to_latex", "to_pandas", "to_xarray")


def _is_package_object(value: object) -> bool:
    return type(value).__module__.startswith(f"{_PACKAGE}.")


def _can_bind_arguments(signature: Signature, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    try:
        signature.bind(*args, **options)
    except TypeError:
        return False
    return True


def explain_wrong_calls(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a public function: a TypeError of a wrong call shows the signature; `options=` and `device=` are accepted.

    The argument `options=` takes one or several objects of options (`base/options.py`), which apply to the call, and
    `device=` is where averages over many nodes run (`base/devices.py`).

    Args:
        name: public name of the function.
        function: function to wrap.
    """

    @wraps(function)
    def call_with_explained_errors(
        *args: Any,
        options: AlgorithmOptions | Iterable[AlgorithmOptions] = (),
        device: str | None = None,
        **named: Any,
    ) -> Any:
        try:
            where = () if device is None else (DeviceOptions(device),)
            with options_in_force(*(options if isinstance(options, Iterable) else (options,)), *where):
                return function(*args, **named)
        except TypeError as error:
            signature = signature_without_annotations(function)
            if _can_bind_arguments(signature, args, named):
                raise  # from inside the function
            python_message, parameters = str(error), signature.parameters
        hint = ""
        if "bracket" in parameters and "parameter" in parameters:
            hint = (
                "; a parameter is named and its interval a bracket, as sf.tune(problem, 'lambda', bracket=(1e-3, 10))"
            )
        elif any(each.kind is each.VAR_KEYWORD for each in parameters.values()) and "problem" in parameters:
            hint = "; a parameter is a keyword, as alpha=(0.5, 3, 26)"
        elif unknown := set(named) - set(parameters):
            hint = did_you_mean_hint(min(unknown), parameters)
            if not hint and "problem" in parameters:
                hint = "; numbers of a model belong to its problem, sf.problem(model, alpha=2)"
        raise TypeError(f"{python_message}; it is called as sf.{name}{signature}{hint}")

    call_with_explained_errors.__module__ = _PACKAGE  # the public path, by which pickle finds it
    return call_with_explained_errors
