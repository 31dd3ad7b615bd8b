"""Attention without softmax: scores X X^T / L."""

from typing import Any

import sympy as sp

from ..authoring.language import half_square, rho
from ..authoring.model import model
from ..authoring.outputs import field_products_output_channel
from ..authoring.parameters import Parameter, structural
from ..authoring.tokens import isotropic_tokens
from .mixed_target import attention_error_per_token, mix_with_positional_matrix, positional_attention_matrix


def mixed_attention_target(Y: sp.Matrix, omega: sp.Expr, A: sp.Matrix) -> sp.Matrix:
    """Return linear teacher attention mixed with the positional matrix.

    Args:
        Y: fields of the teacher, L x t.
        omega: weight of the positional part.
        A: positional matrix, L x L.
    """
    return mix_with_positional_matrix(Y @ Y.T / Y.shape[0], omega, A)


@model(
    tokens=structural(2, low=2),
    student=structural(1),
    teacher=structural(1),
    law=isotropic_tokens,
    metric=lambda h, Y, omega, A: attention_error_per_token(mixed_attention_target(Y, omega, A) - h @ h.T / h.shape[0]),
    baseline=lambda B, Y, omega, A: attention_error_per_token(mixed_attention_target(Y, omega, A) - B),
    output=lambda structure: field_products_output_channel(structure, needs=lambda omega: 1 - omega),
)
def linear_attention(
    X: sp.Matrix,
    Y: sp.Matrix,
    *,
    omega: Any = Parameter(0.3, 0, 1, doc="weight of the positional part of the target"),  # noqa: B008
    A: Any = Parameter(positional_attention_matrix, doc="positional target, L x L"),  # noqa: B008
) -> sp.Expr:
    """Tied linear attention X X^T / L learns (1-omega) Y Y^T / L + omega A.

    Source: the linear counterpart of arXiv 2402.03902, eq. 15-16
    """
    return half_square(mixed_attention_target(Y, omega, A) - X @ X.T / X.shape[0], weight=rho)
