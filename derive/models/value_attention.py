"""Attention with a low-rank value matrix."""

from typing import Any

import sympy as sp

from ..authoring.language import half_square, softmax, square
from ..authoring.model import model
from ..authoring.parameters import Parameter, Start
from ..authoring.tokens import isotropic_tokens
from .dot_product_attention import mixed_attention_target
from .mixed_target import positional_attention_matrix


def teacher_attention_output(Y: sp.Matrix, omega: sp.Expr, A: sp.Matrix) -> sp.Matrix:
    """Return the teacher's output: the mixed attention matrix of the first column of Y times the second column.

    Args:
        Y: fields of the teacher, L x 2.
        omega: weight of the positional part.
        A: positional matrix, L x L.
    """
    return mixed_attention_target(Y[:, :1], omega, A) @ Y[:, 1]


def value_attention_output(Z: sp.Matrix) -> sp.Matrix:
    """Return the output of attention with values: softmax(Z_1 Z_1^T) Z_2 with the columns Z_1, Z_2 of fields Z."""
    return softmax(Z[:, 0] @ Z[:, 0].T) @ Z[:, 1]


def attention_test_error(h: sp.Matrix, Y: sp.Matrix, omega: sp.Expr, A: sp.Matrix) -> sp.Expr:
    """Return the squared test error per token between teacher output and student output.

    Args:
        h: fields of the student, L x 2.
        Y: fields of the teacher, L x 2.
        omega: weight of the positional part.
        A: positional matrix, L x L.
    """
    return square(teacher_attention_output(Y, omega, A) - value_attention_output(h)) / h.shape[0]


@model(
    tokens=2,
    student=2,
    teacher=2,
    law=isotropic_tokens,
    metric=attention_test_error,
    starts={
        "semantic": Start(teacher="3/5"),
        "positional": Start(teacher=((0, 0), (0, "3/5")), encodings=(("2/5", 0), (0, 0))),
        "uninformed": Start(noise="3/5"),
    },
)
def value_attention(
    X: sp.Matrix,
    Y: sp.Matrix,
    *,
    omega: Any = Parameter(0.3, 0, 1, doc="weight of the positional part of the target"),  # noqa: B008
    A: Any = Parameter(positional_attention_matrix, doc="positional target, L x L"),  # noqa: B008
) -> sp.Expr:
    """Attention with a rank-one value matrix, 1/2 ||T(Y_1) Y_2 - softmax(X_1 X_1^T) X_2||^2 on the mixed target T.

    Source: arXiv 2402.03902, appendix C.10 and E.3
    """
    return half_square(teacher_attention_output(Y, omega, A) - value_attention_output(X))
