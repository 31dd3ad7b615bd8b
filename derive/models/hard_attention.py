"""Dot-product attention that learns from a hard-attention teacher."""

from typing import Any

import sympy as sp

from ..authoring.language import half_square, rho, softmax
from ..authoring.model import model
from ..authoring.parameters import Parameter, structural
from ..authoring.tokens import isotropic_tokens
from .mixed_target import attention_error_per_token, mix_with_positional_matrix, positional_attention_matrix


def hardmax(scores: sp.Matrix) -> sp.Matrix:
    """Return a matrix with 1 at the largest entry of each row and 0 elsewhere: the softmax at zero temperature.

    Of equal entries the first one is taken.
    """
    count = scores.shape[1]

    def _larger_score_indicator(one: sp.Expr, other: sp.Expr, first: bool) -> sp.Expr:
        return sp.Piecewise((1, one >= other if first else one > other), (0, True))

    return sp.Matrix(
        *scores.shape,
        lambda i, j: sp.Mul(
            *[_larger_score_indicator(scores[i, j], scores[i, b], j < b) for b in range(count) if b != j]
        ),
    )


def mixed_attention_target(Y: sp.Matrix, omega: sp.Expr, A: sp.Matrix) -> sp.Matrix:
    """Return the hard attention matrix of the teacher, mixed with the positional matrix.

    Args:
        Y: fields of the teacher, L x t.
        omega: weight of the positional part.
        A: positional matrix, L x L.
    """
    return mix_with_positional_matrix(hardmax(Y @ Y.T), omega, A)


@model(
    tokens=structural(2, low=2),
    student=structural(1),
    teacher=structural(1),
    law=isotropic_tokens,
    metric=lambda h, Y, omega, A: attention_error_per_token(mixed_attention_target(Y, omega, A) - softmax(h @ h.T)),
    baseline=lambda B, Y, omega, A: attention_error_per_token(mixed_attention_target(Y, omega, A) - B),
)
def hard_attention(
    X: sp.Matrix,
    Y: sp.Matrix,
    *,
    omega: Any = Parameter(0.3, 0, 1, doc="weight of the positional part of the target"),  # noqa: B008
    A: Any = Parameter(positional_attention_matrix, doc="positional target, L x L"),  # noqa: B008
) -> sp.Expr:
    """Tied attention softmax(X X^T) learns (1-omega) hardmax(Y Y^T) + omega A.

    Source: hard targets for the model of arXiv 2402.03902, eq. 15-16
    """
    return half_square(mixed_attention_target(Y, omega, A) - softmax(X @ X.T), weight=rho)
