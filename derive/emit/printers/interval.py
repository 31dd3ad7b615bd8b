"""Numba-compatible interval arithmetic from the nodes of a kernel: every value is a pair (lower, upper)."""

from __future__ import annotations

from ..kernel import Kernel, Node
from .dialect import kernel_lines

_RENAMED = {
    "abs": "magnitude",
    "max": "greatest",
    "min": "least",
    "pow": "raised",
    "and": "both",
    "or": "either",
}


def expression(node: Node) -> str:
    """Return a node as nested calls of the library of intervals."""
    kind = node[0]
    if kind == "number":
        if node[2] == 1:
            return f"({node[1]}.0, {node[1]}.0)"
        return f"intervals.rounded({node[1]}.0 / {node[2]}.0, {node[1]}.0 / {node[2]}.0)"
    if kind == "name":
        return node[1]
    if kind in ("add", "mul"):
        terms = list(node[1:])
        if kind == "mul" and terms[0] == ("number", -1, 1):
            text = f"intervals.minus({expression(terms[1])})"
            del terms[0]
        else:
            text = expression(terms[0])
        for other in terms[1:]:
            text = f"intervals.{'plus' if kind == 'add' else 'times'}({text}, {expression(other)})"
        return text
    if kind == "power":
        whole = f"intervals.power({expression(node[1])}, {abs(node[2])})"
        return f"intervals.inverse({whole if node[2] < -1 else expression(node[1])})" if node[2] < 0 else whole
    name, arguments = node[1], [expression(a) for a in node[2:]]
    if name in ("max", "min", "and", "or"):
        text = arguments[0]
        for other in arguments[1:]:
            text = f"intervals.{_RENAMED.get(name, name)}({text}, {other})"
        return text
    return f"intervals.{_RENAMED.get(name, name)}({', '.join(arguments)})"


def body(kernel: Kernel) -> list[str]:
    """Return the statements of a kernel, with results assigned to their names."""
    return kernel_lines(kernel, expression)
