"""Lines of text about numbers of results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..base.numbers import format_value_with_error
from ..base.options import AlgorithmOptions


@dataclass(frozen=True)
class ReportOptions(AlgorithmOptions):
    """Options of results as text.

    Attributes:
        max_lines: largest number of lines of a sweep.
        time_rows: number of times of a trajectory.
    """

    max_lines: int = 40
    time_rows: int = 11


def format_attribute_with_error(result: Any, name: str) -> str:
    """Return an attribute of a result with its error bar, NAME_error, as text.

    Args:
        result: the result.
        name: name of the attribute.
    """
    return format_value_with_error(getattr(result, name), getattr(result, f"{name}_error"))


def labelled_value_line(label: str, text: str) -> str:
    """Return a line with the label of a number, then the number as text.

    Args:
        label: label of the number.
        text: value with error bar.
    """
    return f"  {label:<13} {text}"
