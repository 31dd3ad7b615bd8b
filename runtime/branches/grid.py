"""The grid of a curve: values of a parameter, from the arguments of the caller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..base.errors import InputError
from ..problems.interpolation import Between
from ..problems.problem import Problem


def check_parameter_grid(
    problem: Problem, over: str, values: Iterable[float] | None, ranges: Mapping[str, Sequence[float]]
) -> tuple[Problem, str, list[float]]:
    """Check the arguments of `curve`; return problem, parameter name and ascending parameter values.

    A range between two arrays becomes a path from one to the other, with a parameter from 0 to 1.

    Args:
        problem: the problem.
        over: name of the parameter; None if `ranges` has it.
        values: values of the parameter.
        ranges: instead of `over` and `values`: one parameter name with its range or list of values.

    Raises:
        InputError: no values, an unknown parameter, or a value out of range.
    """
    if ranges:
        if len(ranges) > 1 or values is not None:
            raise InputError("give one range, as alpha=(0.1, 2, 40), or a list of values, as alpha=[0.5, 1, 4]")
        ((over, span),) = ranges.items()
        if isinstance(span, list | tuple) and len(span) > 1 and np.ndim(span[0]) and np.ndim(span[1]):
            problem = problem.with_(**{over: Between(span[0], span[1])})
            over, span = f"path_{over.rstrip('_')}", (0.0, 1.0, *span[2:])
        values = values_of_range_or_list(over, span)
    if values is None:
        raise InputError("give a range, as alpha=(0.1, 2, 40), or a list of values, as alpha=[0.5, 1, 4]")
    grid = sorted({float(v) for v in values})
    if not grid:
        raise InputError(f"the list of values is empty: give at least one value of {over}")
    problem.require_scalar_parameters(over)
    for value in grid:
        problem.with_(**{over: value})
    return problem, over, grid


def values_of_range_or_list(name: str, span: Any) -> np.ndarray:
    """Return parameter values from a range (low, high), (low, high, count), a list or an array.

    Args:
        name: name of the parameter, for the error message.
        span: the range, list or array.

    Raises:
        InputError: `span` is neither a range nor a list of values.
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
