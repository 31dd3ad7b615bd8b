"""Dot-product attention on tokens from Gaussian mixtures whose labels correlate the tokens of a sentence."""

from typing import Any

import sympy as sp

from ..authoring.language import half_square, rho, softmax
from ..authoring.model import model
from ..authoring.outputs import attention_output_channel
from ..authoring.parameters import Parameter, structural
from ..authoring.tokens import clustered_tokens
from .dot_product_attention import attention_test_error, linear_baseline_error, mixed_attention_target
from .mixed_target import positional_attention_matrix


@model(
    tokens=structural(2, low=2),
    student=structural(1),
    teacher=structural(1),
    clusters=structural(2),
    law=clustered_tokens,
    metric=attention_test_error,
    baseline=linear_baseline_error,
    output=lambda structure: attention_output_channel(structure, needs=lambda omega: 1 - omega),
)
def attention_on_mixture(
    X: sp.Matrix,
    Y: sp.Matrix,
    *,
    omega: Any = Parameter(0.3, 0, 1, doc="weight of the positional part of the target"),  # noqa: B008
    A: Any = Parameter(positional_attention_matrix, doc="positional target, L x L"),  # noqa: B008
) -> sp.Expr:
    """Tied attention on the mixed target, tokens from K clusters with any joint law of the labels.

    Source: arXiv 2402.03902, Result C.2 and appendix E.3
    """
    return half_square(mixed_attention_target(Y, omega, A) - softmax(X @ X.T), weight=rho)
