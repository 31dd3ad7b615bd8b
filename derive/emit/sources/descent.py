"""Kernels of the search for minima of the objective, evaluated at a point (docs/theory.md (4.3)).

Vectors of all D = L s fields: x, the gradient d, a Newton step, a direction v; symmetric D x D: the Hessian h with
pivots e. P is V^(-1), block diagonal over tokens.
"""

from __future__ import annotations

import sympy as sp

from ...authoring.parameters import Structure
from ..kernel import Kernel, array_entries, make_kernel
from .nodes import block_diagonal_symbols, symmetric_matrix_symbols


def _vector_symbols(array: str, size: int) -> sp.Matrix:
    return sp.Matrix([entry.symbol for entry in array_entries(array, size)])


def _student_field_vector(structure: Structure, array: str) -> sp.Matrix:
    return sp.Matrix([entry.symbol for entry in array_entries(array, structure.tokens, structure.student_rank)])


def _curvature_along_direction(structure: Structure, name: str, direction: str, hessian: str) -> Kernel:
    """Return a kernel of the second derivative v^T H v along a direction v, for a Hessian H."""
    size = structure.tokens * structure.student_rank
    v = _vector_symbols(direction, size)
    return make_kernel({name: (v.T * symmetric_matrix_symbols(hessian, size) * v)[0]}, prefix="a")


def _squared_length_kernel(name: str, vector: sp.Matrix) -> Kernel:
    return make_kernel({name: sp.Add(*[entry**2 for entry in vector])}, prefix="a")


def minimum_search_kernels(structure: Structure) -> dict[str, Kernel]:
    """Return by name the kernels of the search for minima of the proximal objective: scales, distances, curvatures.

    `lowest` is a lower bound of the lowest eigenvalue of the Hessian: its determinant, the product of the pivots, over
    the largest product of the other eigenvalues at a given trace.
    """
    size = structure.tokens * structure.student_rank
    h, step = symmetric_matrix_symbols("h", size), _vector_symbols("step", size)
    others = (sp.Integer(size - 1) / h.trace()) ** (size - 1) if size > 1 else sp.Integer(1)
    new, x, home = (
        _student_field_vector(structure, "new_x"),
        _student_field_vector(structure, "x"),
        _student_field_vector(structure, "home_x"),
    )
    return {
        "scale": make_kernel({"scale": block_diagonal_symbols(structure, "p").trace() / size}, prefix="a"),
        "decrement": make_kernel({"decrement": -(_vector_symbols("d", size).T * step)[0]}, prefix="a"),
        "lowest": make_kernel({"lowest": sp.Mul(*_vector_symbols("e", size)) * others}, prefix="a"),
        "step_square": _squared_length_kernel("square", step),
        "field_square": _squared_length_kernel("square", x),
        "home_aimed": _squared_length_kernel("aimed", x + step - home),
        "home_away": _squared_length_kernel("away", x - home),
        "apart": _squared_length_kernel("apart", new - x),
        "one_two_apart": _squared_length_kernel(
            "apart", _student_field_vector(structure, "one_x") - _student_field_vector(structure, "two_x")
        ),
        "soft_curvature": _curvature_along_direction(structure, "curvature", "d", "h"),
        "soft_curvature_beyond": _curvature_along_direction(structure, "beyond", "d", "new_h"),
        "curvature": _curvature_along_direction(structure, "curvature", "v", "at_h"),
        "curvature_ahead": _curvature_along_direction(structure, "ahead", "v", "h"),
        "curvature_behind": _curvature_along_direction(structure, "behind", "v", "h"),
    }
