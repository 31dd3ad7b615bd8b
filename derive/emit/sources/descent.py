"""Kernels of the search for minima of the objective, evaluated at a point (docs/theory.md (4.3)).

Vectors of all D = L s fields: x, the gradient d, a Newton step, a direction v; symmetric D x D: the Hessian h with
pivots e. P is V^(-1), block diagonal over tokens.
"""

from __future__ import annotations

import sympy as sp

from ...authoring.parameters import Structure
from ..kernel import Kernel, as_kernel, entries
from .nodes import block_diagonal, symmetric_matrix


def _vector_symbols(array: str, size: int) -> sp.Matrix:
    return sp.Matrix([entry.symbol for entry in entries(array, size)])


def _fields(structure: Structure, array: str) -> sp.Matrix:
    return sp.Matrix([entry.symbol for entry in entries(array, structure.tokens, structure.student_rank)])


def _along(structure: Structure, name: str, direction: str, hessian: str) -> Kernel:
    """Return the second derivative v^T H v along a direction v."""
    size = structure.tokens * structure.student_rank
    v = _vector_symbols(direction, size)
    return as_kernel({name: (v.T * symmetric_matrix(hessian, size) * v)[0]}, prefix="a")


def _square(name: str, vector: sp.Matrix) -> Kernel:
    return as_kernel({name: sp.Add(*[entry**2 for entry in vector])}, prefix="a")


def descent(structure: Structure) -> dict[str, Kernel]:
    """Return kernels by name: the scale of the quadratic part, lengths, distances, curvatures along directions.

    `lowest` is a lower bound of the lowest eigenvalue of the Hessian: its determinant, the product of the pivots, over
    the largest product of the other eigenvalues at a given trace.
    """
    size = structure.tokens * structure.student_rank
    h, step = symmetric_matrix("h", size), _vector_symbols("step", size)
    others = (sp.Integer(size - 1) / h.trace()) ** (size - 1) if size > 1 else sp.Integer(1)
    new, x, home = (_fields(structure, "new_x"), _fields(structure, "x"), _fields(structure, "home_x"))
    return {
        "scale": as_kernel({"scale": block_diagonal(structure, "p").trace() / size}, prefix="a"),
        "decrement": as_kernel({"decrement": -(_vector_symbols("d", size).T * step)[0]}, prefix="a"),
        "lowest": as_kernel({"lowest": sp.Mul(*_vector_symbols("e", size)) * others}, prefix="a"),
        "step_square": _square("square", step),
        "field_square": _square("square", x),
        "home_aimed": _square("aimed", x + step - home),
        "home_away": _square("away", x - home),
        "apart": _square("apart", new - x),
        "one_two_apart": _square("apart", _fields(structure, "one_x") - _fields(structure, "two_x")),
        "soft_curvature": _along(structure, "curvature", "d", "h"),
        "soft_curvature_beyond": _along(structure, "beyond", "d", "new_h"),
        "curvature": _along(structure, "curvature", "v", "at_h"),
        "curvature_ahead": _along(structure, "ahead", "v", "h"),
        "curvature_behind": _along(structure, "behind", "v", "h"),
    }
