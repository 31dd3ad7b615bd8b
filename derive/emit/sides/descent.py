"""What the search for the minima of the objective computes at a point, as kernels (docs/theory.md (4.3)).

Vectors of all D = L s fields: x, the gradient d, a Newton step, a direction v; symmetric D x D: the Hessian h with
pivots e. P is V^(-1), block diagonal over tokens.
"""

from __future__ import annotations

import sympy as sp

from ...authoring.parameters import Structure
from ..kernel import Kernel, entries, freeze
from .nodes import blocks, symmetric


def _vector(array: str, size: int) -> sp.Matrix:
    return sp.Matrix([entry.symbol for entry in entries(array, size)])


def _fields(structure: Structure, array: str) -> sp.Matrix:
    return sp.Matrix([entry.symbol for entry in entries(array, structure.tokens, structure.student_rank)])


def _along(structure: Structure, name: str, direction: str, hessian: str) -> Kernel:
    """The second derivative v^T H v along a direction v."""
    size = structure.tokens * structure.student_rank
    v = _vector(direction, size)
    return freeze({name: (v.T * symmetric(hessian, size) * v)[0]}, prefix="a")


def _square(name: str, vector: sp.Matrix) -> Kernel:
    return freeze({name: sp.Add(*[entry**2 for entry in vector])}, prefix="a")


def descent(structure: Structure) -> dict[str, Kernel]:
    """Kernels by name: the scale of the quadratic part, lengths, distances, curvatures along directions.

    `lowest` bounds the lowest eigenvalue of the Hessian from below: its determinant, the product of the pivots, over
    the most that the other eigenvalues can contribute at a given trace.
    """
    size = structure.tokens * structure.student_rank
    h, step = symmetric("h", size), _vector("step", size)
    others = (sp.Integer(size - 1) / h.trace()) ** (size - 1) if size > 1 else sp.Integer(1)
    new, x, home = _fields(structure, "new_x"), _fields(structure, "x"), _fields(structure, "home_x")
    return {
        "scale": freeze({"scale": blocks(structure, "p").trace() / size}, prefix="a"),
        "decrement": freeze({"decrement": -(_vector("d", size).T * step)[0]}, prefix="a"),
        "lowest": freeze({"lowest": sp.Mul(*_vector("e", size)) * others}, prefix="a"),
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
