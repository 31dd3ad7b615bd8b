"""The same kernels as source for mpmath, at any precision: the oracle for the Numba code."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

from ..kernel import Kernel
from .dialect import Dialect

_HELPERS = Path(__file__).parents[1] / "templates" / "special_reference.py.jinja"


def _number(numerator: int, denominator: int) -> str:
    return f"{numerator}" if denominator == 1 else f"(mpf({numerator}) / {denominator})"


_FUNCTIONS = {
    "pi": "+mp.pi",
    "sign": "_sign({0})",
    "equal": "mpf({0} == {1})",
    "softmax": "_softmax({all})",
}
MPMATH = Dialect(_number, _FUNCTIONS, "mp")
expression, body = MPMATH.expression, MPMATH.body


@lru_cache
def _helpers() -> dict[str, Any]:
    """The functions that printed code calls beside mpmath's."""
    scope: dict[str, Any] = {}
    exec(_HELPERS.read_text(encoding="utf-8"), scope)
    return scope


@lru_cache(maxsize=64)
def _compiled(kernel: Kernel) -> CodeType:
    return compile("\n".join(body(kernel)), "<kernel>", "exec")


def evaluate(kernel: Kernel, names: Mapping[str, Any]) -> dict[str, Any]:
    """All results of a kernel at the current mpmath precision, by running what is printed of it."""
    scope = {**_helpers(), **names}
    exec(_compiled(kernel), scope)
    return {name: scope[name] for name, _ in kernel.results}
