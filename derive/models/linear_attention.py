"""Attention without softmax: scores X X^T / L."""

from typing import Any

import sympy as sp

from ..language import Matrix, half_square, rho, square
from ..model import model
from ..parameters import Parameter, structural
from ..tokens import isotropic_tokens
from .dot_product_attention import positional_target


def target(Y: sp.Matrix, omega: sp.Expr, A: sp.Matrix) -> sp.Matrix:
    """Linear teacher attention mixed with the positional matrix A."""
    return (1 - omega) * Y @ Y.T / Y.shape[0] + omega * Matrix(A)


def metric(h: sp.Matrix, Y: sp.Matrix, omega: sp.Expr, A: sp.Matrix) -> sp.Expr:
    """Test error a token."""
    return square(target(Y, omega, A) - h @ h.T / h.shape[0], weight=rho) / h.shape[0]


def baseline(B: sp.Matrix, Y: sp.Matrix, omega: sp.Expr, A: sp.Matrix) -> sp.Expr:
    """The same error of a linear layer that mixes the tokens with a constant matrix B."""
    return square(target(Y, omega, A) - B, weight=rho) / B.shape[0]


@model(
    tokens=structural(2, low=2),
    student=structural(1),
    teacher=structural(1),
    law=isotropic_tokens,
    metric=metric,
    baseline=baseline,
)
def linear_attention(
    X: sp.Matrix,
    Y: sp.Matrix,
    *,
    omega: Any = Parameter(0.3, 0, 1, doc="weight of the positional part of the target"),  # noqa: B008
    A: Any = Parameter(positional_target, doc="positional target, L x L"),  # noqa: B008
) -> sp.Expr:
    """Tied linear attention X X^T / L learns (1-omega) Y Y^T / L + omega A.

    Source: the linear counterpart of arXiv 2402.03902, eq. 15-16
    """
    return half_square(target(Y, omega, A) - X @ X.T / X.shape[0], weight=rho)
