"""Deprecated names: their replacements, for as long as the old ones still work.

The rule: a public name (of the Python API, an argument, a command or an option) that is renamed works as before for two
minor releases and a year, whichever is longer, with a DeprecationWarning that names the replacement and the release
from which it is an error. A removal is listed in the changelog. Files have no such end: those of
earlier releases stay readable (`report.contract.SCHEMA`).
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class DeprecatedName(NamedTuple):
    """The replacement of a deprecated name.

    Attributes:
        instead: the new name.
        since: the release that renamed it.
        until: the first release in which the old name is an error.
    """

    instead: str
    since: str
    until: str


NAMES: dict[str, DeprecatedName] = {
    "beside": DeprecatedName("compare_measurements", "0.1.0", "0.3.0"),
    "Beside": DeprecatedName("MeasurementComparison", "0.1.0", "0.3.0"),
}
"""Deprecated names of `import saddleforge` and their replacements."""


OPTIONS: dict[str, DeprecatedName] = {"plot --beside": DeprecatedName("--overlay", "0.1.0", "0.3.0")}
"""Deprecated options of the command line, `COMMAND --old` or `--old` for every command, and their replacements."""


def replace_deprecated_options(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return a command line with today's names of its options, and a warning for each option that was renamed."""
    command, warnings_, new = next((each for each in arguments if not each.startswith("-")), ""), [], []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        gone = OPTIONS.get(f"{command} {name}") or OPTIONS.get(name) if name.startswith("--") else None
        if gone is not None:
            warnings_.append(deprecation_message(name, gone))
            argument = f"{gone.instead}{equals}{value}"
        new.append(argument)
    return new, warnings_


def deprecation_message(what: str, gone: DeprecatedName) -> str:
    """Return the warning that a name is deprecated, with its new name.

    Args:
        what: the name as the user wrote it.
        gone: its replacement.
    """
    return f"{what} was renamed {gone.instead} in saddleforge {gone.since}, and is an error from {gone.until} on"


def warn_deprecated(what: str, gone: DeprecatedName, above: int) -> None:
    """Issue a DeprecationWarning at the line of user code that used a deprecated name.

    Args:
        what: the name as the user wrote it.
        gone: its replacement.
        above: how many calls above this one that line is.
    """
    warnings.warn(deprecation_message(what, gone), DeprecationWarning, stacklevel=above + 2)


def deprecated_attribute(name: str, gone: DeprecatedName) -> property:
    """Return a property that provides an attribute under its deprecated name.

    Args:
        name: the old name.
        gone: its replacement; `instead` may be a dotted path, as `law.rho`.
    """

    def get_renamed_attribute(self: object) -> Any:
        warn_deprecated(f"{type(self).__name__}.{name}", gone, 1)
        return attrgetter(gone.instead)(self)

    return property(get_renamed_attribute)


def accept_renamed_arguments(**old: DeprecatedName) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function whose arguments were renamed: old names are passed on under their new ones.

    Args:
        **old: the replacement of each old name.

    Raises:
        TypeError: both names are given; or, at definition, the new name is no argument.
    """

    def accept_old_argument_names(function: Callable[P, R]) -> Callable[P, R]:
        known = inspect.signature(function).parameters
        for gone in old.values():
            if gone.instead not in known:
                raise TypeError(f"{function.__name__} has no argument {gone.instead}")

        @functools.wraps(function)
        def call_with_new_argument_names(*arguments: P.args, **named: P.kwargs) -> R:
            passed: dict[str, Any] = dict(named)
            for name in old.keys() & passed.keys():
                gone = old[name]
                if gone.instead in passed:
                    raise TypeError(f"{function.__name__}: {name} was renamed {gone.instead}; give only the latter")
                warn_deprecated(f"{function.__name__}({name}=...)", gone, 1)
                passed[gone.instead] = passed.pop(name)
            return function(*arguments, **passed)

        return call_with_new_argument_names

    return accept_old_argument_names
