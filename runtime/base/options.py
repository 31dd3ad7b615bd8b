"""Options of algorithms: the numbers that tune them, in one documented object a module.

Every object has defaults, which the public functions use. An expert passes others with `options=`, for one call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

from .errors import InputError

_in_force: ContextVar[tuple[AlgorithmOptions, ...]] = ContextVar("options", default=())
_defaults: dict[type, Any] = {}


class AlgorithmOptions:
    """The base class of options that tune an algorithm: subclasses are frozen dataclasses whose fields have defaults.

    Example:
        >>> from saddleforge.thresholds.root import RootOptions
        >>> ask = {"condition": "test_error = 0.4", "on": "semantic", "bracket": (1, 6), "accuracy": 1e-6}
        >>> sf.where(sf.problem("ridge_regression"), **ask, options=RootOptions(max_evaluations=1)).status
        'accuracy_not_reached'
    """

    @classmethod
    def current(cls) -> Self:
        """Return the options of this class that apply now: those set by `options_in_force`, or the defaults."""
        for each in _in_force.get():
            if type(each) is cls:
                return each
        if cls not in _defaults:
            _defaults[cls] = cls()
        default: Self = _defaults[cls]
        return default


@contextmanager
def options_in_force(*options: AlgorithmOptions) -> Iterator[None]:
    """Use these options of algorithms in place of the defaults during the block.

    Args:
        *options: objects of options, at most one of each class; options of other classes stay in force.

    Raises:
        InputError: an argument is not an object of options, or two arguments have the same class.

    Example:
        >>> from saddleforge.thresholds.root import RootOptions
        >>> with sf.options_in_force(RootOptions(max_evaluations=40)):
        ...     RootOptions.current().max_evaluations
        40
    """
    for each in options:
        if not isinstance(each, AlgorithmOptions):
            raise InputError(
                f"options={each!r} is not an options object; give one, as RootOptions(max_evaluations=40), "
                "or a list (docs/reference/solving.md, Options of algorithms)"
            )
    kinds = [type(each) for each in options]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise InputError(f"options: {kind.__name__} is given {kinds.count(kind)} times; give it once")
    kept = tuple(each for each in _in_force.get() if type(each) not in kinds)
    token = _in_force.set((*options, *kept))
    try:
        yield
    finally:
        _in_force.reset(token)
