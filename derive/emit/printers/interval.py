"""Numba-compatible interval arithmetic from the nodes of a kernel: every value is a pair (lower, upper)."""

from __future__ import annotations

from ..kernel import Kernel, Node
from .dialect import kernel_source_lines

_RENAMED = {
    "abs": "magnitude",
    "max": "greatest",
    "min": "least",
    "pow": "raised",
    "and": "both",
    "or": "either",
}


def expression_source(node: Node) -> str:
    """Return the source code of an expression tree's node in interval arithmetic, as nested calls."""
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
            text = f"intervals.minus({expression_source(terms[1])})"
            del terms[0]
        else:
            text = expression_source(terms[0])
        for other in terms[1:]:
            text = f"intervals.{'plus' if kind == 'add' else 'times'}({text}, {expression_source(other)})"
        return text
    if kind == "power":
        whole = f"intervals.power({expression_source(node[1])}, {abs(node[2])})"
        return f"intervals.inverse({whole if node[2] < -1 else expression_source(node[1])})" if node[2] < 0 else whole
    name, arguments = node[1], [expression_source(a) for a in node[2:]]
    if name in ("max", "min", "and", "or"):
        text = arguments[0]
        for other in arguments[1:]:
            text = f"intervals.{_RENAMED.get(name, name)}({text}, {other})"
        return text
    return f"intervals.{_RENAMED.get(name, name)}({', '.join(arguments)})"


def kernel_body_lines(kernel: Kernel) -> list[str]:
    """Return the lines of source code that evaluate a kernel in interval arithmetic."""
    return kernel_source_lines(kernel, expression_source)
