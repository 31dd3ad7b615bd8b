"""Values of a parameter at which a curve is asked for, from what its caller gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..base.errors import InputError
from ..problems.between import Between
from ..problems.problem import Problem


def checked_grid(
    problem: Problem, over: str, values: Iterable[float] | None, ranges: Mapping[str, Sequence[float]]
) -> tuple[Problem, str, list[float]]:
    """Return problem, parameter and ascending values from the arguments of `curve`; between two arrays a line.

    Raises:
        InputError: no grid, an unknown parameter, or a value out of range.
    """
    if ranges:
        if len(ranges) > 1 or values is not None:
            raise InputError("give one range, as alpha=(0.1, 2, 40), or a list of values, as alpha=[0.5, 1, 4]")
        ((over, span),) = ranges.items()
        if isinstance(span, list | tuple) and len(span) > 1 and np.ndim(span[0]) and np.ndim(span[1]):
            problem = problem.with_(**{over: Between(span[0], span[1])})
            over, span = f"path_{over.rstrip('_')}", (0.0, 1.0, *span[2:])
        values = grid_of(over, span)
    if values is None:
        raise InputError("give a range, as alpha=(0.1, 2, 40), or a list of values, as alpha=[0.5, 1, 4]")
    grid = sorted({float(v) for v in values})
    if not grid:
        raise InputError("the grid is empty")
    problem.check_varied(over)
    for value in grid:
        problem.with_(**{over: value})
    return problem, over, grid


def grid_of(name: str, span: Any) -> np.ndarray:
    """Return the values of `name=(low, high)` or `name=(low, high, count)`, or those of a list or an array.

    Raises:
        InputError: it is neither.
    """
    try:
        numbers = np.asarray(span, float)
    except (TypeError, ValueError):
        numbers = np.empty((0, 0))
    if numbers.ndim == 1 and not isinstance(span, tuple):
        return numbers
    if numbers.shape == (2,):
        return np.linspace(numbers[0], numbers[1], 25)
    if numbers.shape == (3,) and numbers[2].is_integer() and numbers[2] >= 1:
        return np.linspace(numbers[0], numbers[1], int(numbers[2]))
    raise InputError(f"{name} = {span!r}: a range (low, high, count) or a list of values [0.5, 1, 4] is expected")
