"""Numba-compatible Python source from the nodes of a kernel."""

from __future__ import annotations

from .dialect import STABLE, SourceCodeDialect


def _number_source(numerator: int, denominator: int) -> str:
    return f"{numerator}.0" if denominator == 1 else f"({numerator}.0 / {denominator}.0)"


_FUNCTIONS = {
    "pi": "math.pi",
    "sign": "math.copysign(1.0, {0})",
    "equal": "(1.0 if {0} == {1} else 0.0)",
    "sigmoid": "special.sigmoid({0})",
    "softplus": "special.softplus({0})",
    "heaviside": "special.step({0})",
    "softmax": "special.softmax({all})",
    **{name: f"special.{name}({{all}})" for name in STABLE},
}
NUMBA = SourceCodeDialect(_number_source, _FUNCTIONS, "math")
expression_source, kernel_body_lines = NUMBA.expression_source, NUMBA.kernel_body_lines
