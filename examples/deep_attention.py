"""Two layers of attention with a skip connection c, one column each: which layer can be learned, and when.

z1 = x w1 / sqrt d mixes the tokens, A = softmax(z1 z1^T) + c 1; z2 = x w2 / sqrt d, u = A z2, y = softmax(u u^T).
Of y one reads u up to a sign; the sign and z1 stay hidden. After Troiani et al., arXiv 2502.00901.
"""

import saddleforge as sf


def mixing(z, c):
    """Attention of the first layer, with its skip connection."""
    return sf.softmax(z * z.T) + c * sf.Matrix([[1, 0], [0, 1]])


def attention(fields, c):
    """Attention of the second layer; columns of the fields are layers."""
    u = mixing(fields[:, 0], c) * fields[:, 1]
    return sf.softmax(u * u.T)


def read(a, b, u1, u2, sign, c):
    """Fields of both layers: z1 = (a, b), z2 = sign A^{-1} u."""
    z = sf.Matrix([a, b])
    return z.row_join(sign * mixing(z, c).inv() * sf.Matrix([u1, u2]))


@sf.model(
    tokens=2,
    student=2,
    teacher=2,
    metric=lambda h, Y, c: sf.square(attention(Y, c) - attention(h, c)),
    starts={"semantic": sf.Start(teacher=0.6), "uninformed": sf.Start(noise=0.6)},
    output=sf.Output(read, {"u1": "positive", "u2": "real"}, hidden={"a": "real", "b": "real", "sign": (-1, 1)}),
)
def deep_attention(X, Y, *, c=sf.Parameter(1, 0, open_low=True)):
    """Square loss between the layers of student and teacher."""
    return sf.square(attention(Y, c) - attention(X, c)) / 2


# saddleforge bayes examples/deep_attention.py --set alpha=0.4 --columns 2 --alone --accuracy 2e-3
