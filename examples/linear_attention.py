"""Attention without softmax: the scores X X^T / L mix the tokens directly.

The loss is a polynomial of degree four in the fields. The linear counterpart of arXiv 2402.03902, eq. 15-16.
"""

import saddleforge as sf


def scores(fields):
    """X X^T / L."""
    return fields @ fields.T / fields.shape[0]


def target(Y, omega, A):
    """Linear attention of the teacher, mixed with the positional matrix A."""
    return (1 - omega) * scores(Y) + omega * sf.Matrix(A)


@sf.model(
    tokens=2,
    student=sf.structural(1),
    teacher=sf.structural(1),
    law=sf.isotropic_tokens,
    metric=lambda h, Y, omega, A: sf.square(target(Y, omega, A) - scores(h), weight=sf.rho) / 2,
    baseline=lambda B, Y, omega, A: sf.square(target(Y, omega, A) - B, weight=sf.rho) / 2,
)
def linear_attention(X, Y, *, omega=sf.Parameter(0.3, 0, 1), A=((0.6, 0.4), (0.4, 0.6))):
    """Tied linear attention learns (1 - omega) Y Y^T / L + omega A."""
    return sf.half_square(target(Y, omega, A) - scores(X), weight=sf.rho)


# saddleforge solve examples/linear_attention.py --set alpha=2 --accuracy 1e-3
