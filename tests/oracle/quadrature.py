"""Adaptive quadrature over many panels at once, expressions as functions of arrays, and where these have corners."""
# ruff: noqa: E731

from itertools import combinations
from typing import Any

import numpy as np
import sympy as sp
from scipy.special import expit

NODES, WEIGHTS = np.polynomial.legendre.leggauss(14)
TOP = (WEIGHTS[:, None] * np.polynomial.legendre.legvander(NODES, 13) * (np.arange(14) + 0.5))[:, -3:]
FUNCTIONS: list[Any] = [{"DiracDelta": lambda x, *_: 0 * x, "Heaviside": lambda x, *_: np.heaviside(x, 0.5),
                         "Softplus": lambda x: np.logaddexp(0, x), "Sigmoid": expit}, "scipy", "numpy"]  # fmt: skip


def adaptive(f: Any, a: Any, b: Any, owner: Any, count: int, tolerance: float) -> np.ndarray:
    """Return the integrals (n, count) over each owner's panels, halved until last Legendre coefficients are small."""
    total, size, level = 0.0, 0.0, 0
    by_owner = lambda parts, of: np.array([np.bincount(of, part, count) for part in parts])
    while len(a) or not level:
        half, level = (b - a) / 2, level + 1
        x = (a + b)[:, None] / 2 + half[:, None] * NODES
        y = f(x.ravel(), np.repeat(owner, len(NODES)))
        y = y.reshape(len(y), len(a), len(NODES)) * half[:, None]
        size = np.maximum(size, by_owner(np.abs(y) @ WEIGHTS, owner).max(axis=1, initial=0))
        rough = (np.abs(y @ TOP).max(axis=-1) > tolerance * size[:, None]).any(axis=0)
        halve = rough & (half > 1e-15 * (np.abs(a) + np.abs(b))) & (level < 45)
        total = total + by_owner((y @ WEIGHTS)[:, ~halve], owner[~halve])
        a, b, owner = a[halve], b[halve], np.tile(owner[halve], 2)
        a, b = np.concatenate([a, (a + b) / 2]), np.concatenate([(a + b) / 2, b])
    return total


def compiled(expressions: list[Any], symbols: list[sp.Symbol]) -> Any:
    """Return a function of arrays: the expressions' values in rows."""
    made = sp.lambdify(symbols, expressions, FUNCTIONS, cse=True)

    def rows(*values: Any) -> np.ndarray:
        found = np.empty((len(expressions), *np.broadcast_shapes(*map(np.shape, values))))
        with np.errstate(all="ignore"):
            for row, one in zip(found, made(*values), strict=True):
                row[...] = one
        return found

    return rows


def edges_of(expression: sp.Expr) -> set[sp.Expr]:
    """Return expressions at whose zeros there is a corner or a step."""
    found = {e.args[0] for e in expression.atoms(sp.Abs, sp.sign, sp.Heaviside)}
    found |= {a - b for e in expression.atoms(sp.Max, sp.Min) for a, b in combinations(e.args, 2)}
    of_pieces = {r for e in expression.atoms(sp.Piecewise) for r in e.atoms(sp.core.relational.Relational)}
    return found | {r.lhs - r.rhs for r in of_pieces}


def crossings(f: Any, x: np.ndarray, owner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where a row of f(x, owner) changes sign along a grid (owners, points), by bisection, and the owners."""
    y = np.sign(f(x, np.broadcast_to(owner[:, None], x.shape)))
    line, row, at = np.nonzero(y[..., :-1] * y[..., 1:] <= 0)
    low, high, of, before = x[row, at], x[row, at + 1], owner[row], y[line, row, at]
    for _ in range(52 if len(row) else 0):
        middle = (low + high) / 2
        left = np.sign(f(middle, of)[line, np.arange(len(line))]) == before
        low, high = np.where(left, middle, low), np.where(left, high, middle)
    return high, of
