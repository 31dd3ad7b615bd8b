"""Nodes of a kernel as Numba-compatible Python source."""

from __future__ import annotations

from collections.abc import Callable

from .kernel import Kernel, Node

_PRECEDENCE = {"add": 1, "mul": 2, "power": 3}


def expression(node: Node, parent: int = 0) -> str:
    """One node as an expression."""
    kind = node[0]
    if kind == "number":
        text = f"{node[1]}.0" if node[2] == 1 else f"({node[1]}.0 / {node[2]}.0)"
        return f"({text})" if node[1] < 0 and parent > 1 else text
    if kind == "name":
        return node[1]
    if kind == "add":
        text = " + ".join(expression(a, 1) for a in node[1:]).replace("+ -", "- ")
    elif kind == "mul":
        text = _product(node)
    elif kind == "power":
        return _power(node, parent)
    else:
        return _call(node)
    return f"({text})" if _PRECEDENCE[kind] < parent or (kind == parent) else text


def _product(node: Node) -> str:
    sign, numerator, denominator = "", [], []
    for factor in node[1:]:
        if factor == ("number", -1, 1):
            sign = "-"
        elif factor[0] == "power" and factor[2] < 0:
            denominator.append(factor[1] if factor[2] == -1 else ("power", factor[1], -factor[2]))
        else:
            numerator.append(factor)
    top = " * ".join(expression(a, 2) for a in numerator) or "1.0"
    if denominator:
        bottom = " * ".join(expression(a, 2) for a in denominator)
        top = f"{top} / ({bottom})"
    return sign + top


def _power(node: Node, parent: int) -> str:
    base, exponent = node[1], node[2]
    if exponent < 0:
        inner = expression(base, 2) if exponent == -1 else _power(("power", base, -exponent), 3)
        return f"(1.0 / {inner})"
    if base[0] == "name" and exponent <= 4:
        text = " * ".join([base[1]] * exponent)
        return f"({text})" if parent >= 2 else text
    return f"{expression(base, 3)} ** {exponent}"


def _call(node: Node) -> str:
    name, arguments = node[1], [expression(a) for a in node[2:]]
    table: dict[str, Callable[[], str]] = {
        "pi": lambda: "math.pi",
        "abs": lambda: f"abs({arguments[0]})",
        "max": lambda: f"max({', '.join(arguments)})",
        "min": lambda: f"min({', '.join(arguments)})",
        "sign": lambda: f"math.copysign(1.0, {arguments[0]})",
        "heaviside": lambda: f"_step({arguments[0]})",
        "equal": lambda: f"(1.0 if {arguments[0]} == {arguments[1]} else 0.0)",
        "where": lambda: f"({arguments[1]} if {arguments[0]} else {arguments[2]})",
        "gt": lambda: f"{arguments[0]} > {arguments[1]}",
        "ge": lambda: f"{arguments[0]} >= {arguments[1]}",
        "lt": lambda: f"{arguments[0]} < {arguments[1]}",
        "le": lambda: f"{arguments[0]} <= {arguments[1]}",
        "and": lambda: f"({' and '.join(arguments)})",
        "or": lambda: f"({' or '.join(arguments)})",
        "sigmoid": lambda: f"_sigmoid({arguments[0]})",
        "softplus": lambda: f"_softplus({arguments[0]})",
        "softmax": lambda: f"_softmax{len(arguments)}({', '.join(arguments)})",
        "pow": lambda: f"({arguments[0]}) ** ({arguments[1]})",
    }
    return table[name]() if name in table else f"math.{name}({', '.join(arguments)})"


def body(kernel: Kernel) -> list[str]:
    """Statements of a kernel, results assigned to their names."""
    lines = [f"{', '.join(s.targets)} = {expression(s.expression)}" for s in kernel.statements]
    return lines + [f"{name} = {expression(node)}" for name, node in kernel.results if node != ("name", name)]


def helpers(kernels: list[Kernel]) -> list[int]:
    """Widths of the softmax rows that the kernels call."""
    widths: set[int] = set()
    for kernel in kernels:
        for statement in kernel.statements:
            if statement.expression[:2] == ("call", "softmax"):
                widths.add(len(statement.expression) - 2)
    return sorted(widths)
