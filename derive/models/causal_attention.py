"""Dot-product attention with a causal mask: a token attends to itself and to those before it."""

from typing import Any

import sympy as sp

from ..authoring.language import half_square, rho, softmax
from ..authoring.model import model
from ..authoring.parameters import Parameter, Structure, structural
from ..authoring.tokens import isotropic_tokens
from .mixed_target import attention_error_per_token, mix_with_positional_matrix


def masked_softmax(scores: sp.Matrix) -> sp.Matrix:
    """Return the causal attention matrix: the softmax of each row up to the diagonal, zero beyond."""
    count = scores.shape[0]
    return sp.Matrix([[*softmax(scores[i : i + 1, : i + 1]), *[0] * (count - i - 1)] for i in range(count)])


def causal_positional_matrix(structure: Structure) -> tuple[tuple[sp.Expr, ...], ...]:
    """Return the causal positional matrix: 0.6 on the diagonal, the rest of each row spread over earlier tokens."""
    rows = []
    for i in range(structure.tokens):
        before = [sp.Rational(2, 5) / i] * i
        rows.append((*before, sp.Rational(3, 5) if i else sp.Integer(1), *[sp.Integer(0)] * (structure.tokens - i - 1)))
    return tuple(rows)


def mixed_attention_target(Y: sp.Matrix, omega: sp.Expr, A: sp.Matrix) -> sp.Matrix:
    """Return masked teacher attention mixed with the positional matrix.

    Args:
        Y: fields of the teacher, L x t.
        omega: weight of the positional part.
        A: positional matrix, L x L.
    """
    return mix_with_positional_matrix(masked_softmax(Y @ Y.T), omega, A)


@model(
    tokens=structural(2, low=2),
    student=structural(1),
    teacher=structural(1),
    law=isotropic_tokens,
    metric=lambda h, Y, omega, A: attention_error_per_token(
        mixed_attention_target(Y, omega, A) - masked_softmax(h @ h.T)
    ),
    baseline=lambda B, Y, omega, A: attention_error_per_token(mixed_attention_target(Y, omega, A) - B),
)
def causal_attention(
    X: sp.Matrix,
    Y: sp.Matrix,
    *,
    omega: Any = Parameter(0.3, 0, 1, doc="weight of the positional part of the target"),  # noqa: B008
    A: Any = Parameter(causal_positional_matrix, doc="positional target, L x L, lower triangular"),  # noqa: B008
) -> sp.Expr:
    """Tied attention with a lower-triangular mask in student and teacher, on the mixed target.

    Source: arXiv 2402.03902, conclusion
    """
    return half_square(mixed_attention_target(Y, omega, A) - masked_softmax(X @ X.T), weight=rho)
