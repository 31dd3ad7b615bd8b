"""Kernels evaluated at a row w of W in a field b (docs/theory.md (6.1)).

d and h are gradient and Hessian of the penalty r in w; G as in (3.8).
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy as sp

from ..kernel import Entry, Kernel, as_kernel, entries
from .nodes import symmetric_matrix


def _quadratic_part(s: int) -> tuple[sp.Expr, list[sp.Symbol]]:
    """Return 1/2 w^T G w - w^T b, which is added to r(w) in (6.1), and w."""
    w, b = (sp.Matrix([entry.symbol for entry in entries(array, s)]) for array in ("w", "b"))
    return (w.T * symmetric_matrix("G", s) * w)[0] / 2 - (w.T * b)[0], list(w)


def stationarity(s: int) -> Kernel:
    """Return gradient and Hessian of r(w) + 1/2 w^T G w - w^T b in w: zero and positive at the minimum."""
    tilted, w = _quadratic_part(s)
    d, h = [entry.symbol for entry in entries("d", s)], symmetric_matrix("h", s)
    found = {f"force[{a}]": sp.expand(sp.diff(tilted, w[a])) + d[a] for a in range(s)}
    found |= {f"hessian[{a}, {b}]": sp.diff(tilted, w[a], w[b]) + h[a, b] for a in range(s) for b in range(s)}
    if s == 1:
        found = {"force": found["force[0]"], "curvature": found["hessian[0, 0]"]}
    return as_kernel(found, prefix="a", equations="docs/theory.md (6.1), (6.2)")


def resting_field() -> Kernel:
    """Return the field for which a row of one column is stationary where the penalty's slope is d."""
    tilted, (w,) = _quadratic_part(1)
    b = Entry("b", 0)
    (field,) = sp.solve(sp.diff(tilted, w) + Entry("d", 0).symbol, b.symbol)
    return as_kernel({b: sp.expand(field)}, prefix="a", equations="docs/theory.md (6.1)")


def envelope(s: int) -> Kernel:
    """Return w^T b - r(w) - 1/2 w^T G w of (4.5), `penalty` being r(w)."""
    value = -_quadratic_part(s)[0] - sp.Symbol("penalty", real=True)
    return as_kernel({"envelope": value}, prefix="a", equations="docs/theory.md (4.5)")


def normal_density() -> Kernel:
    """Return the density of a standard normal number xi."""
    xi = sp.Symbol("xi", real=True)
    return as_kernel({"density": sp.exp(-(xi**2) / 2) / sp.sqrt(2 * sp.pi)}, prefix="a")


def known_teachers(names: Sequence[str]) -> Kernel:
    """Return the teacher's row from standard normal coordinates zeta, by a Cholesky factor of Cov(pi, b)."""
    return as_kernel(
        {
            name: sp.Add(*[Entry("factor", n, e).symbol * Entry("zeta", e).symbol for e in range(n + 1)])
            for n, name in enumerate(names)
        },
        prefix="a",
    )
