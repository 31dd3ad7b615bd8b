"""Kernels evaluated at a row w of W in a field b (docs/theory.md (6.1)).

d and h are gradient and Hessian of the penalty r in w; G as in (3.8).
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy as sp

from ..kernel import ArrayEntryName, Kernel, array_entries, make_kernel
from .nodes import symmetric_matrix_symbols


def _row_quadratic_and_linear_part(s: int) -> tuple[sp.Expr, list[sp.Symbol]]:
    """Return 1/2 w^T G w - w^T b, a row's objective (6.1) without its penalty, and the symbols w."""
    w, b = (sp.Matrix([entry.symbol for entry in array_entries(array, s)]) for array in ("w", "b"))
    return (w.T * symmetric_matrix_symbols("G", s) * w)[0] / 2 - (w.T * b)[0], list(w)


def row_stationarity_kernel(s: int) -> Kernel:
    """Return a kernel of gradient and Hessian in w of a row's objective r(w) + 1/2 w^T G w - w^T b, r the penalty."""
    tilted, w = _row_quadratic_and_linear_part(s)
    d, h = [entry.symbol for entry in array_entries("d", s)], symmetric_matrix_symbols("h", s)
    found = {f"force[{a}]": sp.expand(sp.diff(tilted, w[a])) + d[a] for a in range(s)}
    found |= {f"hessian[{a}, {b}]": sp.diff(tilted, w[a], w[b]) + h[a, b] for a in range(s) for b in range(s)}
    if s == 1:
        found = {"force": found["force[0]"], "curvature": found["hessian[0, 0]"]}
    return make_kernel(found, prefix="a", equations="docs/theory.md (6.1), (6.2)")


def stationary_row_field_kernel() -> Kernel:
    """Return a kernel of the field b = G w + d at which a weight w (s = 1) is stationary.

    G is the precision of the row's effective prior; the input `d` is the penalty's derivative at w.
    """
    tilted, (w,) = _row_quadratic_and_linear_part(1)
    b = ArrayEntryName("b", 0)
    (field,) = sp.solve(sp.diff(tilted, w) + ArrayEntryName("d", 0).symbol, b.symbol)
    return make_kernel({b: sp.expand(field)}, prefix="a", equations="docs/theory.md (6.1)")


def row_envelope_kernel(s: int) -> Kernel:
    """Return a kernel of the envelope w^T b - r(w) - 1/2 w^T G w of a row (4.5); the input `penalty` is r(w).

    w is the minimiser, b the row's field and G the precision of its effective prior.
    """
    value = -_row_quadratic_and_linear_part(s)[0] - sp.Symbol("penalty", real=True)
    return make_kernel({"envelope": value}, prefix="a", equations="docs/theory.md (4.5)")


def normal_density_kernel() -> Kernel:
    """Return a kernel of the standard normal density at the input `xi`."""
    xi = sp.Symbol("xi", real=True)
    return make_kernel({"density": sp.exp(-(xi**2) / 2) / sp.sqrt(2 * sp.pi)}, prefix="a")


def teacher_row_kernel(names: Sequence[str]) -> Kernel:
    """Return a kernel of the teacher's row pi from standard normal numbers, for averages over pi and the field b."""
    return make_kernel(
        {
            name: sp.Add(
                *[ArrayEntryName("factor", n, e).symbol * ArrayEntryName("zeta", e).symbol for e in range(n + 1)]
            )
            for n, name in enumerate(names)
        },
        prefix="a",
    )
