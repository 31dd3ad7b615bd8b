"""Matrix expressions as numbers, by an evaluator that shares no code with the derivation."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import sympy as sp


def _value(expression: Any, values: Mapping[Any, Any]) -> Any:
    if expression in values:
        return values[expression]
    if isinstance(expression, sp.MatAdd | sp.Add):
        return sum(_value(a, values) for a in expression.args)
    if isinstance(expression, sp.MatMul):
        result = _value(expression.args[0], values)
        for factor in expression.args[1:]:
            following = _value(factor, values)
            result = result @ following if np.ndim(result) == np.ndim(following) == 2 else result * following
        return result
    if isinstance(expression, sp.Mul):
        return np.prod([_value(a, values) for a in expression.args])
    if isinstance(expression, sp.Inverse):
        return np.linalg.inv(_value(expression.arg, values))
    if isinstance(expression, sp.Transpose):
        return _value(expression.arg, values).T
    if isinstance(expression, sp.Trace):
        return np.trace(_value(expression.arg, values))
    if isinstance(expression, sp.ZeroMatrix | sp.Identity):
        rows, columns = (int(n) for n in expression.shape)
        return np.zeros((rows, columns)) if isinstance(expression, sp.ZeroMatrix) else np.eye(rows)
    if expression.is_Pow:
        return _value(expression.base, values) ** float(expression.exp)
    if expression.is_number:
        return float(expression)
    raise TypeError(f"no value for {expression!r}")


@pytest.fixture
def numeric() -> Callable[[Any, Mapping[Any, Any]], Any]:
    """numeric(expression, values): a matrix expression with its symbols (and averages) replaced by numbers."""
    return _value
