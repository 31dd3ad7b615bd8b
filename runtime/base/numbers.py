"""Formatting of numbers: a value with its error bar, and rows of cells in columns."""

from __future__ import annotations

import math

_MIN_DECIMAL, _MAX_DECIMAL = 1e-12, 1e15  # values outside are shown with a power of ten


def format_value_with_error(value: float, error: float) -> str:
    """Return a value as text with its error bar in units of the last digit, as 0.15816(2).

    Args:
        value: number to format; if it is None or not finite, the text is "-".
        error: error bar, half the width of the interval; if it is None or not finite, "(?)" is shown.

    >>> format_value_with_error(0.1581586, 0.0000123)
    '0.15816(2)'
    >>> format_value_with_error(12.6684, 0.0)
    '12.6684'
    >>> format_value_with_error(4.5467e-37, 2e-40)
    '4.547(2)e-37'
    """
    if value is None or not math.isfinite(value):
        return "-"
    if error is None or not math.isfinite(error):
        return f"{value:.6g}(?)"
    if abs(value) > max(error, 0.0) and not _MIN_DECIMAL <= abs(value) < _MAX_DECIMAL:
        exponent = math.floor(math.log10(abs(value)))
        return f"{format_value_with_error(value / 10.0**exponent, error / 10.0**exponent)}e{exponent}"
    if error <= 0 or error < 1e-15 * abs(value):
        return f"{value:.15g}"
    exponent = math.floor(math.log10(error))
    digits = math.ceil(error / 10**exponent - 1e-9)
    if digits == 1:
        exponent -= 1
        digits = math.ceil(error / 10**exponent - 1e-9)
    if digits >= 100:
        exponent += 1
        digits = math.ceil(error / 10**exponent - 1e-9)
    shown = f"{value:.{max(-exponent, 0)}f}"
    if not float(shown):
        shown = shown.removeprefix("-")
    return f"{shown}({digits * 10 ** max(exponent, 0)})"


def format_value_or_zero(value: float, width: float) -> str:
    """Return a value with its error bar as text, or "0" if it is below 1e-12 (zero by symmetry).

    Args:
        value: number to format.
        width: error bar, half the width of the interval.
    """
    return "0" if abs(value) < 1e-12 else format_value_with_error(value, width)


def align_text_columns(rows: list[list[str]]) -> list[str]:
    """Return the rows of a table as lines of text, with columns padded to equal width."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
