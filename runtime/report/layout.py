"""Lines of text about numbers of results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..base.numbers import format_value_with_error
from ..base.options import AlgorithmOptions


@dataclass(frozen=True)
class ReportOptions(AlgorithmOptions):
    """Options that control how long the text of a result is.

    Attributes:
        max_lines: largest number of lines of a sweep that are printed.
        time_rows: number of times at which a trajectory is printed.
    """

    max_lines: int = 40
    time_rows: int = 11


def format_attribute_with_error(result: Any, name: str) -> str:
    """Return the attribute NAME of a result as text, with its error bar NAME_error.

    Args:
        result: object that has both attributes.
        name: name of the attribute.
    """
    return format_value_with_error(getattr(result, name), getattr(result, f"{name}_error"))


def labelled_value_line(label: str, text: str) -> str:
    """Return an indented line of text with a label, padded to a fixed width, and a value.

    Args:
        label: name of the value.
        text: value with error bar.
    """
    return f"  {label:<13} {text}"
