"""Tied low-rank dot-product attention on the mixed positional-semantic target."""

from typing import Any

import sympy as sp

from ..authoring.language import half_square, rho, softmax
from ..authoring.model import model
from ..authoring.outputs import attention_output_channel
from ..authoring.parameters import Parameter, structural
from ..authoring.tokens import isotropic_tokens
from .mixed_target import attention_error_per_token, mix_with_positional_matrix, positional_attention_matrix


def mixed_attention_target(Y: sp.Matrix, omega: sp.Expr, A: sp.Matrix) -> sp.Matrix:
    """Return softmax(Y Y^T) mixed with the positional matrix.

    Args:
        Y: fields of the teacher, L x t.
        omega: weight of the positional part.
        A: positional matrix, L x L.
    """
    return mix_with_positional_matrix(softmax(Y @ Y.T), omega, A)


def attention_test_error(h: sp.Matrix, Y: sp.Matrix, omega: sp.Expr, A: sp.Matrix) -> sp.Expr:
    """Return the squared error per token between student attention softmax(h h^T) and teacher attention mixed with A.

    Args:
        h: fields of the student, L x s.
        Y: fields of the teacher, L x t.
        omega: weight of the positional part.
        A: positional matrix, L x L.
    """
    return attention_error_per_token(mixed_attention_target(Y, omega, A) - softmax(h @ h.T))


def linear_baseline_error(B: sp.Matrix, Y: sp.Matrix, omega: sp.Expr, A: sp.Matrix) -> sp.Expr:
    """Return the squared error per token of a constant attention matrix B (docs/theory.md (7.7)).

    Args:
        B: constant attention matrix, L x L.
        Y: fields of the teacher, L x t.
        omega: weight of the positional part.
        A: positional matrix, L x L.
    """
    return attention_error_per_token(mixed_attention_target(Y, omega, A) - B)


@model(
    tokens=structural(2, low=2),
    student=structural(1),
    teacher=structural(1),
    law=isotropic_tokens,
    metric=attention_test_error,
    baseline=linear_baseline_error,
    output=lambda structure: attention_output_channel(structure, needs=lambda omega: 1 - omega),
)
def dot_product_attention(
    X: sp.Matrix,
    Y: sp.Matrix,
    *,
    omega: Any = Parameter(0.3, 0, 1, doc="weight of the positional part of the target"),  # noqa: B008
    A: Any = Parameter(positional_attention_matrix, doc="positional target, L x L"),  # noqa: B008
) -> sp.Expr:
    """Tied low-rank attention softmax(X X^T) learns (1-omega) softmax(Y Y^T) + omega A.

    Source: arXiv 2402.03902, eq. 1-3 and 15-16
    """
    return half_square(mixed_attention_target(Y, omega, A) - softmax(X @ X.T), weight=rho)
