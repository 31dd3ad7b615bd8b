"""The algebra of replica matrices I (x) A + sum of I (x) J (x) C over blocks in blocks, their numbers symbols."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from .objects import LogDet, n


@dataclass(frozen=True)
class ReplicaMatrix:
    """I_n (x) A + sum over levels of I_{n/k} (x) J_k (x) C, J_k the k x k matrix of ones (docs/theory.md (18.5)).

    Attributes:
        A: s x s; levels: (k, C) from the smallest blocks to the one of all replicas, k = n, C s x s.
    """

    A: MatrixExpr
    levels: tuple[tuple[sp.Expr, MatrixExpr], ...]

    def log_det(self) -> sp.Expr:
        """J_k has the eigenvalue k once and 0 else: what is orthogonal to a level's blocks does not feel it."""
        total, number, matrix = sp.Integer(0), n, self.A
        for size, C in self.levels:
            total, number, matrix = total + (number - n / size) * LogDet(matrix), n / size, matrix + size * C
        return total + number * LogDet(matrix)

    def sum_of_inverse(self) -> MatrixExpr:
        """The sum of all blocks of the inverse, over n: (A + sum k C)^{-1}."""
        return sp.MatAdd(self.A, *[size * C for size, C in self.levels]).doit().inv()


def explicit(A: sp.Matrix, levels: Sequence[tuple[int, Any]], replicas: int) -> sp.Matrix:
    """The same as one matrix, written out."""
    total = sp.Matrix(sp.kronecker_product(sp.eye(replicas), A))
    for size, C in levels:
        total += sp.Matrix(sp.kronecker_product(sp.eye(replicas // size), sp.ones(size, size), C))
    return total
