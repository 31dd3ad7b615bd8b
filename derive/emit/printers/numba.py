"""Nodes of a kernel as Numba-compatible Python source."""

from __future__ import annotations

from ..kernel import Kernel
from .dialect import Dialect


def _number(numerator: int, denominator: int) -> str:
    return f"{numerator}.0" if denominator == 1 else f"({numerator}.0 / {denominator}.0)"


_FUNCTIONS = {
    "pi": "math.pi",
    "sign": "math.copysign(1.0, {0})",
    "equal": "(1.0 if {0} == {1} else 0.0)",
    "softmax": "_softmax{count}({all})",
}
NUMBA = Dialect(_number, _FUNCTIONS, "math")
expression, body = NUMBA.expression, NUMBA.body


def helpers(kernels: list[Kernel]) -> list[int]:
    """Widths of the softmax rows that the kernels call."""
    widths: set[int] = set()
    for kernel in kernels:
        for statement in kernel.statements:
            if statement.expression[:2] == ("call", "softmax"):
                widths.add(len(statement.expression) - 2)
    return sorted(widths)
