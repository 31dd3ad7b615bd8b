"""Dot-product attention with separate query and key weights."""

from collections.abc import Callable
from typing import Any

import sympy as sp

from ..authoring.language import half_square, rho, softmax
from ..authoring.model import model
from ..authoring.parameters import Parameter, Start, Structure, structural
from ..authoring.tokens import isotropic_tokens
from .dot_product_attention import linear_baseline_error, mixed_attention_target
from .mixed_target import attention_error_per_token, positional_attention_matrix


def query_key_scores(X: sp.Matrix) -> sp.Matrix:
    """Return the attention scores X_Q X_K^T: the first half of the columns of X are queries, the second half keys."""
    half = X.shape[1] // 2
    if X.shape[1] != 2 * half:
        raise ValueError(
            f"student_rank = {X.shape[1]} is odd; it must be even, half query columns and half key columns"
        )
    return X[:, :half] @ X[:, half:].T


def start_in_first_columns(columns: str, value: sp.Rational) -> Callable[[Structure], tuple[tuple[sp.Expr, ...], ...]]:
    """Return start values that are zero except in the first query and the first key column of the student.

    Args:
        columns: "teacher_rank" for coefficients of teacher columns, "tokens" for those of positional encodings.
        value: value of the non-zero coefficients.
    """

    def start_coefficients(structure: Structure) -> tuple[tuple[sp.Expr, ...], ...]:
        count, half = getattr(structure, columns), structure.student_rank // 2
        return tuple(
            tuple(value if a % half == 0 and b == 0 else sp.Integer(0) for b in range(count))
            for a in range(structure.student_rank)
        )

    return start_coefficients


@model(
    tokens=structural(2, low=2),
    student=structural(2, low=2),
    teacher=structural(1),
    law=isotropic_tokens,
    metric=lambda h, Y, omega, A: attention_error_per_token(
        mixed_attention_target(Y, omega, A) - softmax(query_key_scores(h))
    ),
    baseline=linear_baseline_error,
    starts={
        "semantic": Start(teacher=start_in_first_columns("teacher_rank", sp.Rational(3, 5))),
        "positional": Start(encodings=start_in_first_columns("tokens", sp.Rational(2, 5))),
        "uninformed": Start(noise="3/5"),
    },
)
def untied_attention(
    X: sp.Matrix,
    Y: sp.Matrix,
    *,
    omega: Any = Parameter(0.3, 0, 1, doc="weight of the positional part of the target"),  # noqa: B008
    A: Any = Parameter(positional_attention_matrix, doc="positional target, L x L"),  # noqa: B008
) -> sp.Expr:
    """Attention softmax(X_Q X_K^T) with untied query and key, a ridge on each, on the mixed target.

    Source: arXiv 2402.03902, appendix C.10 and E.3
    """
    return half_square(mixed_attention_target(Y, omega, A) - softmax(query_key_scores(X)), weight=rho)
