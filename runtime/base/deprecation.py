"""Names that have gone: what to write instead, for as long as the old ones still work.

The rule: a public name (of the Python API, an argument, a command or an option) that is renamed works as before for two
minor releases and a year, whichever is longer, with a DeprecationWarning that says what to write instead and from which
release on it is an error. A release that takes one away says so in the changelog. Files have no such end: what an
earlier release wrote is read (`report.contract.SCHEMA`).
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


class Gone(NamedTuple):
    """What stands for an old name.

    Attributes:
        instead: the new name; since: the release that renamed; until: the first in which the old one is an error.
    """

    instead: str
    since: str
    until: str


NAMES: dict[str, Gone] = {}
"""Of `import saddleforge`: an old name and what it is called now."""


OPTIONS: dict[str, Gone] = {}
"""Of the command line: `COMMAND --old`, or `--old` of every command, and `--new`."""


def current(arguments: list[str]) -> tuple[list[str], list[str]]:
    """A command line with the names that options have now, and what to say of those that had others."""
    command, said, new = next((each for each in arguments if not each.startswith("-")), ""), [], []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        gone = OPTIONS.get(f"{command} {name}") or OPTIONS.get(name) if name.startswith("--") else None
        if gone is not None:
            said.append(sentence(name, gone))
            argument = f"{gone.instead}{equals}{value}"
        new.append(argument)
    return new, said


def sentence(what: str, gone: Gone) -> str:
    """What a warning says."""
    return f"{what} is called {gone.instead} since saddleforge {gone.since}, and is an error from {gone.until} on"


def warn(what: str, gone: Gone, above: int) -> None:
    """Warn whoever wrote the name, so many calls above this one."""
    warnings.warn(sentence(what, gone), DeprecationWarning, stacklevel=above + 2)


def renamed_attribute(name: str, gone: Gone) -> property:
    """An attribute under its old name; `gone.instead` may lead to it through others, as `law.rho`."""

    def get(self: object) -> Any:
        warn(f"{type(self).__name__}.{name}", gone, 1)
        return attrgetter(gone.instead)(self)

    return property(get)


def renamed_arguments(**old: Gone) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function whose arguments were renamed: old names are passed on under their new ones.

    Raises:
        TypeError: both are given; or, when it is defined, the new name is no argument.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = inspect.signature(function).parameters
        for gone in old.values():
            if gone.instead not in known:
                raise TypeError(f"{function.__name__} has no argument {gone.instead}")

        @functools.wraps(function)
        def call(*arguments: P.args, **named: P.kwargs) -> R:
            passed: dict[str, Any] = dict(named)
            for name in old.keys() & passed.keys():
                gone = old[name]
                if gone.instead in passed:
                    raise TypeError(f"{function.__name__}: {name} and {gone.instead} are one argument; give the latter")
                warn(f"{function.__name__}({name}=...)", gone, 1)
                passed[gone.instead] = passed.pop(name)
            return function(*arguments, **passed)

        return call

    return decorate
