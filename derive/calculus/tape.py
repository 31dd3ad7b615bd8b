"""Values and gradients of expressions in doubles, node by node: no code is generated, pieces may be prescribed."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import sympy as sp
from sympy.core.relational import Relational
from sympy.functions.elementary.piecewise import ExprCondPair
from sympy.logic.boolalg import And, Boolean, BooleanAtom, Not, Or

from .functions import Sigmoid, SoftmaxEntry, Softplus
from .piecewise import PIECEWISE

Choice = Callable[[int], int]  # number of pieces -> index of the one to take
_FAILED = (ArithmeticError, ValueError, TypeError)
_COMPARED = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


class EvaluationTape:
    """A list of operations (nodes, arguments before functions) that evaluates expressions and their gradients.

    Args:
        symbols: coordinates of a point.
        outputs: scalar expressions in these symbols.

    Raises:
        NotImplementedError: an expression contains an unknown symbol, or an object that is neither a number, a function
            nor a relation.
    """

    def __init__(self, symbols: Sequence[sp.Symbol], outputs: Sequence[sp.Basic]) -> None:
        self.width = len(symbols)
        self._nodes: list[tuple[sp.Basic, tuple[int, ...], Callable[..., Any] | None]] = [
            (s, (), None) for s in symbols
        ]
        self._index: dict[sp.Basic, int] = {s: n for n, s in enumerate(symbols)}
        self.outputs = [self._append_expression_node(e) for e in outputs]

    def _append_expression_node(self, e: sp.Basic) -> int:
        """Return the index of the node of an expression; nodes for it and its arguments are appended if it is new."""
        if e not in self._index:
            if isinstance(e, sp.Symbol):
                raise NotImplementedError(f"the symbol {e} has no value; add it to the `symbols` of the EvaluationTape")
            number = isinstance(e, sp.Expr) and e.is_number and not isinstance(e, ExprCondPair)
            if not number and not isinstance(e, _KNOWN):
                raise NotImplementedError(f"{e} cannot be evaluated: it is neither a number, a function nor a relation")
            arguments = (
                () if number or isinstance(e, BooleanAtom) else tuple(self._append_expression_node(a) for a in e.args)
            )
            value = float(e) if number else bool(e) if isinstance(e, BooleanAtom) else None
            self._index[e] = len(self._nodes)
            self._nodes.append(
                (e, arguments, _node_evaluation_function(e) if value is None else lambda value=value: value)
            )
        return self._index[e]

    def evaluate_nodes(self, point: Sequence[float], choose: Choice | None = None) -> list[Any]:
        """Return the values of all nodes at a point; nan where a value does not exist.

        For a piecewise function the entry is a pair (value, index of its piece).

        Args:
            point: value of each symbol.
            choose: function from the number of pieces to the index of the piece that is evaluated; None for the piece
                in which the point lies.
        """
        values: list[Any] = list(point)
        for e, arguments, rule in self._nodes[self.width :]:
            inside = [_drop_piece_index(values[n]) for n in arguments]
            try:
                if isinstance(e, PIECEWISE):
                    values.append(_evaluate_piecewise_function(e, inside, choose))
                else:
                    values.append(rule(*inside))  # type: ignore[misc]
            except _FAILED:
                values.append(math.nan)
        return values

    def output_values_at_point(self, point: Sequence[float]) -> list[float] | None:
        """Return the values of the output expressions at a point; None if one of them is not finite."""
        values = self.evaluate_nodes(point)
        found = self.output_values_from_nodes(values)
        return found if all(map(_is_finite_number, found)) else None

    def output_values_from_nodes(self, run: Sequence[Any]) -> list[Any]:
        """Return the values of the output expressions from the values of all nodes."""
        return [_drop_piece_index(run[n]) for n in self.outputs]

    def output_gradient(self, values: Sequence[Any], output: int) -> list[float] | None:
        """Return the gradient of one output in all symbols, by reverse differentiation; None if it is not finite.

        Args:
            values: values of all nodes, as `evaluate_nodes` returns them.
            output: index of the output.
        """
        adjoint = [0.0] * len(values)
        adjoint[self.outputs[output]] = 1.0
        for n in range(self.outputs[output], self.width - 1, -1):
            e, arguments, _ = self._nodes[n]
            if adjoint[n] and arguments:
                inside = [_drop_piece_index(values[m]) for m in arguments]
                try:
                    slopes = (
                        _piecewise_partial_derivatives(e, values[n])
                        if isinstance(e, PIECEWISE)
                        else _node_partial_derivatives(e, inside, values[n])
                    )
                except _FAILED:
                    return None
                for m, slope in zip(arguments, slopes, strict=True):
                    if slope:
                        adjoint[m] += adjoint[n] * slope
        found = adjoint[: self.width]
        return found if all(map(_is_finite_number, found)) else None


_KNOWN = (sp.Add, sp.Mul, sp.Pow, sp.Function, Relational, And, Or, Not, BooleanAtom, ExprCondPair, *PIECEWISE)


def _drop_piece_index(value: Any) -> Any:
    """Return the value of a node without the index of the piece that a piecewise function adds."""
    return value[0] if isinstance(value, tuple) else value


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, float | int) and math.isfinite(value)


def _evaluate_piecewise_function(e: sp.Basic, inside: Sequence[Any], choose: Choice | None) -> tuple[float, int]:
    """Return the value of a piecewise function, and the index of the piece that was evaluated.

    Args:
        e: the function.
        inside: values of its arguments.
        choose: function from the number of pieces to the index of the piece; None for the piece of the arguments.
    """
    if isinstance(e, sp.Piecewise):
        values = [pair[0] for pair in inside]
        chosen = choose(len(values)) if choose else next((n for n, pair in enumerate(inside) if pair[1]), -1)
        return (values[chosen], chosen) if chosen >= 0 else (math.nan, 0)
    if isinstance(e, sp.Max | sp.Min):
        best = (max if isinstance(e, sp.Max) else min)(range(len(inside)), key=inside.__getitem__)
        chosen = choose(len(inside)) if choose else best
        return inside[chosen], chosen
    chosen = choose(2) if choose else int(inside[0] < 0)
    if isinstance(e, sp.Abs):
        return (-inside[0] if chosen else inside[0]), chosen
    if not choose and inside[0] == 0:
        return 0.5 if isinstance(e, sp.Heaviside) else 0.0, chosen
    return (1.0, chosen) if not chosen else (0.0 if isinstance(e, sp.Heaviside) else -1.0, chosen)


def _piecewise_partial_derivatives(e: sp.Basic, value: tuple[float, int]) -> list[float]:
    """Return the partial derivatives of a piecewise function with respect to its arguments, in its current piece."""
    chosen = value[1]
    if isinstance(e, sp.Abs):
        return [-1.0 if chosen else 1.0]
    if isinstance(e, sp.sign | sp.Heaviside):
        return [0.0] * len(e.args)
    return [float(n == chosen) for n in range(len(e.args))]


def _node_evaluation_function(e: sp.Basic) -> Callable[..., Any]:
    """Return a Python function that evaluates an operation (such as a sum or a softmax) from its arguments."""
    if isinstance(e, sp.Add):
        return lambda *inside: math.fsum(inside)
    if isinstance(e, sp.Mul):
        return lambda *inside: math.prod(inside)
    if isinstance(e, sp.Pow):
        return lambda base, exponent: base ** (int(exponent) if exponent == int(exponent) else exponent)
    if isinstance(e, Relational):
        return _COMPARED[e.rel_op]
    if isinstance(e, ExprCondPair):
        return lambda *inside: _ValueAndCondition(inside)
    if isinstance(e, Boolean):
        return {And: lambda *inside: all(inside), Or: lambda *inside: any(inside), Not: operator.not_}[e.func]
    if isinstance(e, SoftmaxEntry):
        return lambda index, *logits: _softmax(logits)[int(index)]
    if isinstance(e, Sigmoid):
        return _sigmoid
    if isinstance(e, Softplus):
        return lambda z: max(z, 0.0) + math.log1p(math.exp(-abs(z)))
    if isinstance(e, PIECEWISE):
        return lambda *_: math.nan
    return _compile_function_and_derivatives(e.func, len(e.args))[0]


class _ValueAndCondition(list):
    """A pair (value, condition) of a piecewise function; as a list, to differ from a tuple (value, index of piece)."""


def _sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z > 0 else math.exp(z) / (1 + math.exp(z))


def _softmax(logits: Sequence[float]) -> list[float]:
    top = max(logits)
    weights = [math.exp(z - top) for z in logits]
    return [w / sum(weights) for w in weights]


def _node_partial_derivatives(e: sp.Basic, inside: Sequence[Any], value: Any) -> Sequence[float]:
    """Return the partial derivatives of an operation with respect to its arguments.

    Args:
        e: the operation, a SymPy expression.
        inside: values of its arguments.
        value: its own value.
    """
    if isinstance(e, sp.Add):
        return [1.0] * len(inside)
    if isinstance(e, sp.Mul):
        return [math.prod(inside[:n]) * math.prod(inside[n + 1 :]) for n in range(len(inside))]
    if isinstance(e, sp.Pow):
        base, exponent = inside
        lower = base ** (int(exponent) - 1 if exponent == int(exponent) else exponent - 1)
        return [exponent * lower, 0.0 if e.exp.is_number else value * math.log(base)]
    if isinstance(e, ExprCondPair):
        return [1.0, 0.0]
    if isinstance(e, SoftmaxEntry):
        entries = _softmax(inside[1:])
        j = int(inside[0])
        return [0.0, *[entries[j] * (int(j == i) - entry) for i, entry in enumerate(entries)]]
    if isinstance(e, Sigmoid):
        return [value * (1 - value)]
    if isinstance(e, Softplus):
        return [_sigmoid(inside[0])]
    return [slope(*inside) for slope in _compile_function_and_derivatives(e.func, len(inside))[1]]


@cache
def _compile_function_and_derivatives(
    function: type[sp.Function], count: int
) -> tuple[Callable[..., float], tuple[Callable[..., float], ...]]:
    """Return Python functions of floats for a SymPy function and for its partial derivatives."""
    arguments = [sp.Dummy(real=True) for _ in range(count)]
    value = function(*arguments)
    return _compile_expression(arguments, value), tuple(
        _compile_expression(arguments, sp.diff(value, a)) for a in arguments
    )


def _compile_expression(arguments: Sequence[sp.Dummy], expression: sp.Expr) -> Callable[..., float]:
    """Return a Python function of floats for an expression; it returns nan if no library can evaluate it."""
    functions = []
    for library in ("math", "mpmath"):
        with suppress(NotImplementedError, ValueError):
            functions.append(sp.lambdify(arguments, expression, library))

    def evaluate_with_available_library(*inside: float) -> float:
        for function in functions:
            with suppress(NameError):
                return float(function(*inside))
        return math.nan

    return evaluate_with_available_library
