"""Attention whose inverse temperature and diagonal bias are trained together with the weights.

S = softmax(beta X X^T + bias I). The ridge on beta keeps it finite: larger beta and smaller W would go on for ever.
The bias learns the positional part of the target of arXiv 2402.03902, eq. 15-16, and leaves the rest to the weights.
"""

import sympy as sp

import saddleforge as sf


def attention(fields, beta, bias):
    """softmax(beta X X^T + bias I)."""
    return sf.softmax(beta * fields @ fields.T + bias * sp.eye(fields.shape[0]))


def error(h, Y, omega, A, beta, bias):
    """1/2 Tr[(T - S) rho (T - S)^T], which for two tokens is the error of one."""
    target = (1 - omega) * attention(Y, 1, 0) + omega * sf.Matrix(A)
    return sf.half_square(target - attention(h, beta, bias), weight=sf.rho)


@sf.model(tokens=2, law=sf.isotropic_tokens, metric=error)
def trained_temperature(
    X,
    Y,
    *,
    omega=sf.Parameter(0.3, 0, 1),
    A=((0.6, 0.4), (0.4, 0.6)),
    beta=sf.trained(1, ridge=0.002),
    bias=sf.trained(0),
):
    """Tied attention with trained temperature and bias on the mixed positional-semantic target."""
    return error(X, Y, omega, A, beta, bias)


# saddleforge solve examples/trained_temperature.py --set alpha=2 --accuracy 1e-3
