"""Three layers of attention with skip connections c, one column each: what is learned of the last one, and when.

z_k = x w_k / sqrt d, A1 = softmax(z1 z1^T) + c 1, v = A1 z2, A2 = softmax(v v^T) + c 1; u = A2 A1 z3, softmax(u u^T).
is seen. One reads u up to a sign; the sign, z1 and z2 stay hidden. After Troiani et al., arXiv 2502.00901.
"""

import saddleforge as sf


def mixing(z, c):
    return sf.softmax(z * z.T) + c * sf.Matrix([[1, 0], [0, 1]])


def mixed(z1, z2, c):
    first = mixing(z1, c)
    return mixing(first * z2, c) * first


def attention(fields, c):
    u = mixed(fields[:, 0], fields[:, 1], c) * fields[:, 2]
    return sf.softmax(u * u.T)


def read(a1, b1, a2, b2, u1, u2, sign, c):
    """Fields of the layers: z1 = (a1, b1), z2 = (a2, b2), z3 = sign (A2 A1)^{-1} u."""
    z1, z2, u = sf.Matrix([a1, b1]), sf.Matrix([a2, b2]), sf.Matrix([u1, u2])
    m = mixed(z1, z2, c)
    return z1.row_join(z2).row_join(sign * m.adjugate() * u / m.det())


HIDDEN = {"a1": "real", "b1": "real", "a2": "real", "b2": "real", "sign": (-1, 1)}


@sf.model(tokens=2, student=3, teacher=3, output=sf.Output(read, {"u1": "positive", "u2": "real"}, hidden=HIDDEN))
def three_layers(X, Y, *, c=sf.Parameter(1, 0, open_low=True)):
    """Square loss between the layers of student and teacher."""
    return sf.square(attention(Y, c) - attention(X, c)) / 2


# saddleforge bayes examples/three_layers.py --set alpha=0.1 --alone --accuracy 1e-2
