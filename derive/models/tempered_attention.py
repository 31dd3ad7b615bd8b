"""Dot-product attention with temperatures: scores scaled by a parameter, and by 1/sqrt(rank) as in transformers."""

from typing import Any

import sympy as sp

from ..language import Matrix, half_square, rho, softmax, square
from ..model import model
from ..parameters import Parameter, structural
from ..tokens import isotropic_tokens
from .dot_product_attention import positional_target


def attention(Z: sp.Matrix, beta: sp.Expr) -> sp.Matrix:
    """softmax(beta Z Z^T / sqrt(rank))."""
    return softmax(beta * Z @ Z.T / sp.sqrt(Z.shape[1]))


def target(Y: sp.Matrix, omega: sp.Expr, A: sp.Matrix, beta_teacher: sp.Expr) -> sp.Matrix:
    """Teacher attention at its own temperature, mixed with the positional matrix A."""
    return (1 - omega) * attention(Y, beta_teacher) + omega * Matrix(A)


def metric(h: sp.Matrix, Y: sp.Matrix, omega: sp.Expr, A: sp.Matrix, beta: sp.Expr, beta_teacher: sp.Expr) -> sp.Expr:
    """Test error a token."""
    return square(target(Y, omega, A, beta_teacher) - attention(h, beta), weight=rho) / h.shape[0]


def baseline(B: sp.Matrix, Y: sp.Matrix, omega: sp.Expr, A: sp.Matrix, beta_teacher: sp.Expr) -> sp.Expr:
    """The same error of a linear layer that mixes the tokens with a constant matrix B."""
    return square(target(Y, omega, A, beta_teacher) - B, weight=rho) / B.shape[0]


@model(
    tokens=structural(2, low=2),
    student=structural(1),
    teacher=structural(1),
    law=isotropic_tokens,
    metric=metric,
    baseline=baseline,
)
def tempered_attention(
    X: sp.Matrix,
    Y: sp.Matrix,
    *,
    omega: Any = Parameter(0.3, 0, 1, doc="weight of the positional part of the target"),  # noqa: B008
    A: Any = Parameter(positional_target, doc="positional target, L x L"),  # noqa: B008
    beta: Any = Parameter(1, 0, open_low=True, doc="inverse temperature of the student's softmax"),  # noqa: B008
    beta_teacher: Any = Parameter(1, 0, open_low=True, doc="inverse temperature of the teacher's"),  # noqa: B008
) -> sp.Expr:
    """Tied attention softmax(beta X X^T / sqrt(rank)), teacher alike, on the mixed target.

    Source: arXiv 2402.03902, eq. 1-3 and 15-16, with temperatures
    """
    return half_square(target(Y, omega, A, beta_teacher) - attention(X, beta), weight=rho)
