"""Common parts of the attention models: the mixed positional-semantic target and errors counted a token."""

import sympy as sp

from ..authoring.language import Matrix, rho, square
from ..authoring.parameters import Structure


def positional_attention_matrix(structure: Structure) -> tuple[tuple[sp.Expr, ...], ...]:
    """Return the positional attention matrix A: 0.6 on the diagonal, the rest of each row spread evenly."""
    count = structure.tokens
    off = sp.Rational(2, 5) / (count - 1)
    return tuple(tuple(sp.Rational(3, 5) if i == j else off for j in range(count)) for i in range(count))


def mix_with_positional_matrix(attention: sp.Matrix, omega: sp.Expr, A: sp.Matrix) -> sp.Matrix:
    """Return (1 - omega) times an attention matrix plus omega times the positional matrix A.

    Args:
        attention: attention matrix of the teacher, L x L.
        omega: weight of the positional part.
        A: positional matrix, L x L.
    """
    return (1 - omega) * attention + omega * Matrix(A)


def attention_error_per_token(difference: sp.Matrix) -> sp.Expr:
    """Return the squared error (1/L) Tr[D rho D^T] per token of attention matrices differing by D; rho: variances."""
    return square(difference, weight=rho) / difference.shape[0]
