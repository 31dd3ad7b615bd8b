"""What is computed at a row w of W exposed to a field b, as kernels (docs/theory.md (6.1)).

d and h are gradient and Hessian of the penalty r in w; G as in (3.8).
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy as sp

from ..kernel import Entry, Kernel, entries, freeze
from .nodes import symmetric


def _tilted(s: int) -> tuple[sp.Expr, list[sp.Symbol]]:
    """1/2 w^T G w - w^T b, what stands beside r(w) in (6.1), and w."""
    w, b = (sp.Matrix([entry.symbol for entry in entries(array, s)]) for array in ("w", "b"))
    return (w.T * symmetric("G", s) * w)[0] / 2 - (w.T * b)[0], list(w)


def stationarity(s: int) -> Kernel:
    """Gradient and Hessian of r(w) + 1/2 w^T G w - w^T b in w: zero and positive at the minimum."""
    tilted, w = _tilted(s)
    d, h = [entry.symbol for entry in entries("d", s)], symmetric("h", s)
    found = {f"force[{a}]": sp.expand(sp.diff(tilted, w[a])) + d[a] for a in range(s)}
    found |= {f"hessian[{a}, {b}]": sp.diff(tilted, w[a], w[b]) + h[a, b] for a in range(s) for b in range(s)}
    if s == 1:
        found = {"force": found["force[0]"], "curvature": found["hessian[0, 0]"]}
    return freeze(found, prefix="a", equations="docs/theory.md (6.1), (6.2)")


def resting_field() -> Kernel:
    """The field at which a row of one column rests where the penalty's slope is d."""
    tilted, (w,) = _tilted(1)
    b = Entry("b", 0)
    (field,) = sp.solve(sp.diff(tilted, w) + Entry("d", 0).symbol, b.symbol)
    return freeze({b: sp.expand(field)}, prefix="a", equations="docs/theory.md (6.1)")


def envelope(s: int) -> Kernel:
    """w^T b - r(w) - 1/2 w^T G w of (4.5), `penalty` being r(w)."""
    value = -_tilted(s)[0] - sp.Symbol("penalty", real=True)
    return freeze({"envelope": value}, prefix="a", equations="docs/theory.md (4.5)")


def normal_density() -> Kernel:
    """Density of a standard normal number xi."""
    xi = sp.Symbol("xi", real=True)
    return freeze({"density": sp.exp(-(xi**2) / 2) / sp.sqrt(2 * sp.pi)}, prefix="a")


def known_teachers(names: Sequence[str]) -> Kernel:
    """The teacher's row from standard normal coordinates zeta, by the Cholesky factor of the covariance of (pi, b)."""
    return freeze(
        {
            name: sp.Add(*[Entry("factor", n, e).symbol * Entry("zeta", e).symbol for e in range(n + 1)])
            for n, name in enumerate(names)
        },
        prefix="a",
    )
