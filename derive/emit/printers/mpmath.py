"""Source for mpmath from kernels, at any precision: the reference for the Numba code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import CodeType
from typing import Any

from mpmath import mpf

from ...calculus.numeric import OverflowSafeFunctions
from ..kernel import Kernel
from .dialect import SourceCodeDialect


def _number_source(numerator: int, denominator: int) -> str:
    return f"{numerator}" if denominator == 1 else f"(mpf({numerator}) / {denominator})"


_MILLS = "lambda z: mp.sqrt(2 / mp.pi) * mp.exp(-z * z / 2) / mp.erfc(-z / mp.sqrt(2))"
_FUNCTIONS = {
    "pi": "+mp.pi",
    "sign": "(mpf(1) if {0} >= 0 else mpf(-1))",
    "equal": "mpf({0} == {1})",
    "sigmoid": "(1 / (1 + mp.exp(-({0}))))",
    "softplus": "mp.log1p(mp.exp({0}))",
    "heaviside": "(mpf(1) if {0} > 0 else mpf(0.5) if {0} == 0 else mpf(0))",
    "log_sum_exp": "mp.log(mp.fsum(mp.exp(z) for z in ({all},)))",
    "log_softplus": "mp.log(mp.log1p(mp.exp({0})))",
    "sigmoid_over_softplus": "(lambda z: 1 / ((1 + mp.exp(-z)) * mp.log1p(mp.exp(z))))({0})",
    "log_normal_cdf": "mp.log(mp.erfc(-({0}) / mp.sqrt(2)) / 2)",
    "inverse_mills_ratio": f"({_MILLS})({{0}})",
    "truncated_normal_mean": f"(lambda z: z + ({_MILLS})(z))({{0}})",
    "log_gumbel_cdf": "mp.log(-mp.expm1(-mp.exp({0})))",
    "gumbel_ratio": "(lambda n, z: mp.exp(n * z - mp.exp(z)) / -mp.expm1(-mp.exp(z)))({all})",
    "softmax": (
        "[1 / (1 + mp.fsum(mp.exp(b - a) for j, b in enumerate(({all})) if j != i)) for i, a in enumerate(({all}))]"
    ),
}
MPMATH = SourceCodeDialect(_number_source, _FUNCTIONS, "mp")
expression_source, kernel_body_lines = MPMATH.expression_source, MPMATH.kernel_body_lines
_BOUNDED = replace(MPMATH, functions=_FUNCTIONS | {"pow": "mp.power({0}, {1})"})


@lru_cache(maxsize=256)
def _compile_kernel(kernel: Kernel) -> CodeType:
    return compile("\n".join(_BOUNDED.kernel_body_lines(kernel)), "<kernel>", "exec")


def evaluate_kernel(kernel: Kernel, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return all results of a kernel by name, evaluated by mpmath at its current precision.

    Powers are computed by a function whose running time is bounded.

    Args:
        kernel: kernel to evaluate.
        names: values of the kernel's inputs, by name.
    """
    scope = {"mp": OverflowSafeFunctions(), "mpf": mpf, **names}
    exec(_compile_kernel(kernel), scope)
    return {name: scope[name] for name, _ in kernel.results}
