"""Lines of text about numbers of results."""

from __future__ import annotations

from typing import Any

from ..base.numbers import with_error


def text_of(result: Any, name: str) -> str:
    """Return a number of a result with its error bar: NAME and NAME_error."""
    return with_error(getattr(result, name), getattr(result, f"{name}_error"))


def value_line(label: str, text: str) -> str:
    """Return a line about one of the numbers that a result lists below each other."""
    return f"  {label:<13} {text}"
