"""The algebra of matrices I_n (x) A + J_n (x) C, J_n all ones, for a symbolic number n of replicas."""

from __future__ import annotations

from dataclasses import dataclass

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from .objects import LogDet, n


@dataclass(frozen=True)
class ReplicaMatrix:
    """I_n (x) A + J_n (x) C: blocks A + C on the diagonal of the replicas, C off it."""

    A: MatrixExpr
    C: MatrixExpr

    def log_det(self) -> sp.Expr:
        """J_n has the eigenvalue n once and 0 else."""
        return (n - 1) * LogDet(self.A) + LogDet(self.A + n * self.C)

    def sum_of_inverse(self) -> MatrixExpr:
        """The sum of all blocks of the inverse, over n: (A + n C)^{-1}."""
        return (self.A + n * self.C).inv()


def explicit(A: sp.Matrix, C: sp.Matrix, replicas: int) -> sp.Matrix:
    """The same as one matrix, written out."""
    identity, ones = sp.eye(replicas), sp.ones(replicas, replicas)
    return sp.Matrix(sp.kronecker_product(identity, A) + sp.kronecker_product(ones, C))
