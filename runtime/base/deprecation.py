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
    """The new name that replaces a deprecated one, and the releases of the change.

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
    """Return a command line in which deprecated options are replaced by the new ones, and a warning for each."""
    command, warnings_, new = next((each for each in arguments if not each.startswith("-")), ""), [], []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        replacement = OPTIONS.get(f"{command} {name}") or OPTIONS.get(name) if name.startswith("--") else None
        if replacement is not None:
            warnings_.append(deprecation_message(name, replacement))
            argument = f"{replacement.instead}{equals}{value}"
        new.append(argument)
    return new, warnings_


def deprecation_message(deprecated_name: str, replacement: DeprecatedName) -> str:
    """Return the warning that a name is deprecated, with its new name.

    Args:
        deprecated_name: the deprecated name as the user wrote it.
        replacement: the new name, and the releases of the change.
    """
    new_name, since, until = replacement
    return f"{deprecated_name} was renamed {new_name} in saddleforge {since}, and is an error from {until} on"


def warn_deprecated(deprecated_name: str, replacement: DeprecatedName, above: int) -> None:
    """Issue a DeprecationWarning at the line of user code that used a deprecated name.

    Args:
        deprecated_name: the deprecated name as the user wrote it.
        replacement: the new name, and the releases of the change.
        above: number of calls between the user's code and the caller of this function.
    """
    warnings.warn(deprecation_message(deprecated_name, replacement), DeprecationWarning, stacklevel=above + 2)


def deprecated_attribute(name: str, replacement: DeprecatedName) -> property:
    """Return a property that provides an attribute under its deprecated name.

    Args:
        name: deprecated name of the attribute.
        replacement: the new name, which may be a dotted path as `law.rho`, and the releases of the change.
    """

    def get_renamed_attribute(self: object) -> Any:
        warn_deprecated(f"{type(self).__name__}.{name}", replacement, 1)
        return attrgetter(replacement.instead)(self)

    return property(get_renamed_attribute)


def accept_renamed_arguments(**old: DeprecatedName) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator by which a function accepts deprecated names of its arguments, with a warning.

    Args:
        **old: deprecated name of an argument = its new name.

    Raises:
        TypeError: a call passes an argument by both names; or the decorated function has no argument of the new name.
    """

    def accept_old_argument_names(function: Callable[P, R]) -> Callable[P, R]:
        known = inspect.signature(function).parameters
        for replacement in old.values():
            if replacement.instead not in known:
                raise TypeError(
                    f"{function.__name__} has no argument {replacement.instead}, the new name of a deprecated one"
                )

        @functools.wraps(function)
        def call_with_new_argument_names(*arguments: P.args, **named: P.kwargs) -> R:
            passed: dict[str, Any] = dict(named)
            for name in old.keys() & passed.keys():
                replacement = old[name]
                if replacement.instead in passed:
                    raise TypeError(f"{function.__name__}: {name} was renamed {replacement.instead}; omit {name}")
                warn_deprecated(f"{function.__name__}({name}=...)", replacement, 1)
                passed[replacement.instead] = passed.pop(name)
            return function(*arguments, **passed)

        return call_with_new_argument_names

    return accept_old_argument_names
