"""Numbers for people: a value with its half width, and rows of such in columns."""

from __future__ import annotations

import math

_SMALLEST, _LARGEST = 1e-12, 1e15  # values beyond are shown with a power of ten


def with_error(value: float, error: float) -> str:
    """Value with its half width in the last digit, as 0.15816(1).

    >>> with_error(0.1581586, 0.0000123)
    '0.158159(13)'
    >>> with_error(12.6684, 0.0)
    '12.6684'
    >>> with_error(4.5467e-37, 2e-40)
    '4.5467(2)e-37'
    """
    if value is None or not math.isfinite(value):
        return "-"
    if error is None or not math.isfinite(error):
        return f"{value:.6g}(?)"
    if abs(value) > max(error, 0.0) and not _SMALLEST <= abs(value) < _LARGEST:
        exponent = math.floor(math.log10(abs(value)))
        return f"{with_error(value / 10.0**exponent, error / 10.0**exponent)}e{exponent}"
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


def near_zero(value: float, width: float) -> str:
    """Zero by symmetry is shown as 0."""
    return "0" if abs(value) < 1e-12 else with_error(value, width)


def aligned(rows: list[list[str]]) -> list[str]:
    """Rows of cells as lines with aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
