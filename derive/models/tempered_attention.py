"""Dot-product attention with temperatures: scores scaled by a parameter, and by 1/sqrt(rank) as in transformers."""

from typing import Any

import sympy as sp

from ..authoring.language import half_square, rho, softmax
from ..authoring.model import model
from ..authoring.outputs import attention_output_channel
from ..authoring.parameters import Parameter, structural
from ..authoring.tokens import isotropic_tokens
from .mixed_target import attention_error_per_token, mix_with_positional_matrix, positional_attention_matrix


def tempered_softmax_attention(Z: sp.Matrix, beta: sp.Expr) -> sp.Matrix:
    """Return the attention matrix softmax(beta Z Z^T / sqrt(rank)) of fields Z.

    Args:
        Z: fields, L x rank.
        beta: inverse temperature.
    """
    return softmax(beta * Z @ Z.T / sp.sqrt(Z.shape[1]))


def mixed_attention_target(Y: sp.Matrix, omega: sp.Expr, A: sp.Matrix, beta_teacher: sp.Expr) -> sp.Matrix:
    """Return teacher attention at its own temperature, mixed with the positional matrix.

    Args:
        Y: fields of the teacher, L x t.
        omega: weight of the positional part.
        A: positional matrix, L x L.
        beta_teacher: inverse temperature of the teacher's softmax.
    """
    return mix_with_positional_matrix(tempered_softmax_attention(Y, beta_teacher), omega, A)


@model(
    tokens=structural(2, low=2),
    student=structural(1),
    teacher=structural(1),
    law=isotropic_tokens,
    metric=lambda h, Y, omega, A, beta, beta_teacher: attention_error_per_token(
        mixed_attention_target(Y, omega, A, beta_teacher) - tempered_softmax_attention(h, beta)
    ),
    baseline=lambda B, Y, omega, A, beta_teacher: attention_error_per_token(
        mixed_attention_target(Y, omega, A, beta_teacher) - B
    ),
    output=lambda structure: attention_output_channel(structure, needs=lambda omega: 1 - omega),
)
def tempered_attention(
    X: sp.Matrix,
    Y: sp.Matrix,
    *,
    omega: Any = Parameter(0.3, 0, 1, doc="weight of the positional part of the target"),  # noqa: B008
    A: Any = Parameter(positional_attention_matrix, doc="positional target, L x L"),  # noqa: B008
    beta: Any = Parameter(1, 0, open_low=True, doc="inverse temperature of the student's softmax"),  # noqa: B008
    beta_teacher: Any = Parameter(1, 0, open_low=True, doc="inverse temperature of the teacher's"),  # noqa: B008
) -> sp.Expr:
    """Tied attention softmax(beta X X^T / sqrt(rank)), teacher alike, on the mixed target.

    Source: arXiv 2402.03902, eq. 1-3 and 15-16, with temperatures
    """
    return half_square(
        mixed_attention_target(Y, omega, A, beta_teacher) - tempered_softmax_attention(X, beta), weight=rho
    )
