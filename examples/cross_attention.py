"""Cross-attention: the first token asks, the tokens of another sequence answer.

The query is the first column of W, the key the second: S = softmax(X_11 X_22, ..., X_11 X_L2), one row. The target is
the teacher's row mixed with a preference A for positions, as in arXiv 2402.03902, eq. 15-16.
"""

import saddleforge as sf


def attention(query, keys):
    """One row of weights over the keys."""
    return sf.softmax(query * keys.T)


def target(Y, omega, A):
    """Teacher attention, mixed with the positions A."""
    return (1 - omega) * attention(Y[0, 0], Y[1:, 0]) + omega * sf.Matrix([A])


def error(h, Y, omega, A):
    """Squared distance of the two rows of weights."""
    return sf.square(target(Y, omega, A) - attention(h[0, 0], h[1:, 1]))


@sf.model(
    tokens=3,
    student=2,
    law=sf.isotropic_tokens,
    metric=error,
    starts={
        "semantic": sf.Start(teacher=((0.6,), (0.6,))),
        "positional": sf.Start(encodings=((0.4, 0, 0), (0, 0.4, 0))),
    },
)
def cross_attention(X, Y, *, omega=sf.Parameter(0.3, 0, 1), A=(0.8, 0.2)):
    """A query of one sequence attends to the tokens of another."""
    return error(X, Y, omega, A) / 2


# saddleforge solve examples/cross_attention.py --set alpha=3 --start positional --accuracy 2e-2
