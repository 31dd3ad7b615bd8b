"""The same kernels evaluated with mpmath at any precision: the oracle for the printed code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mpmath as mp

from .kernel import Kernel, Node


def _softmax(*logits: Any) -> list[Any]:
    top = max(logits)
    weights = [mp.exp(z - top) for z in logits]
    return [w / mp.fsum(weights) for w in weights]


_SAME_NAME = ("exp", "log", "tanh", "cosh", "sinh", "sin", "cos", "atan", "erf", "erfc", "sqrt")
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(mp, name) for name in _SAME_NAME},
    "pi": lambda: +mp.pi,
    "abs": abs,
    "max": max,
    "min": min,
    "pow": lambda a, b: a**b,
    "sign": lambda a: mp.mpf(1) if a >= 0 else mp.mpf(-1),
    "heaviside": lambda a: mp.mpf(1 if a > 0 else 0 if a < 0 else 0.5),
    "equal": lambda a, b: mp.mpf(1 if a == b else 0),
    "where": lambda c, a, b: a if c else b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "and": lambda *a: all(a),
    "or": lambda *a: any(a),
    "sigmoid": lambda z: 1 / (1 + mp.exp(-z)),
    "softplus": lambda z: mp.log1p(mp.exp(z)),
    "softmax": _softmax,
}


def value(node: Node, names: Mapping[str, Any]) -> Any:
    """A node's value at the current mpmath precision."""
    kind = node[0]
    if kind == "number":
        return mp.mpf(node[1]) / node[2]
    if kind == "name":
        return names[node[1]]
    if kind == "add":
        return mp.fsum(value(a, names) for a in node[1:])
    if kind == "mul":
        return mp.fprod(value(a, names) for a in node[1:])
    if kind == "power":
        return value(node[1], names) ** node[2]
    return _FUNCTIONS[node[1]](*[value(a, names) for a in node[2:]])


def evaluate(kernel: Kernel, names: Mapping[str, Any]) -> dict[str, Any]:
    """All results of a kernel at the current mpmath precision."""
    known = dict(names)
    for statement in kernel.statements:
        result = value(statement.expression, known)
        if len(statement.targets) > 1:
            known.update(zip(statement.targets, result, strict=True))
        else:
            known[statement.targets[0]] = result
    return {name: value(node, known) for name, node in kernel.results}
