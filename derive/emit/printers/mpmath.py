"""The same kernels as source for mpmath, at any precision: the oracle for the Numba code."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

from mpmath import mp, mpf

from ..kernel import Kernel
from .dialect import Dialect


def _number(numerator: int, denominator: int) -> str:
    return f"{numerator}" if denominator == 1 else f"(mpf({numerator}) / {denominator})"


_FUNCTIONS = {
    "pi": "+mp.pi",
    "sign": "(mpf(1) if {0} >= 0 else mpf(-1))",
    "equal": "mpf({0} == {1})",
    "sigmoid": "(1 / (1 + mp.exp(-({0}))))",
    "softplus": "mp.log1p(mp.exp({0}))",
    "heaviside": "(mpf(1) if {0} > 0 else mpf(0.5) if {0} == 0 else mpf(0))",
    "softmax": (
        "[1 / (1 + mp.fsum(mp.exp(b - a) for j, b in enumerate(({all})) if j != i)) for i, a in enumerate(({all}))]"
    ),
}
MPMATH = Dialect(_number, _FUNCTIONS, "mp")
expression, body = MPMATH.expression, MPMATH.body


@lru_cache(maxsize=256)
def _compiled(kernel: Kernel) -> CodeType:
    return compile("\n".join(body(kernel)), "<kernel>", "exec")


def evaluate(kernel: Kernel, names: Mapping[str, Any]) -> dict[str, Any]:
    """All results of a kernel at the current mpmath precision, by running what is printed of it."""
    scope = {"mp": mp, "mpf": mpf, **names}
    exec(_compiled(kernel), scope)
    return {name: scope[name] for name, _ in kernel.results}
