"""Three layers of attention with skip connections c on two tokens, one column each, as examples/deep_attention.py.

h_l = x w_l / sqrt d, A1 = softmax(h1 h1^T) + c, z = A1 h2, A2 = softmax(z z^T) + c, u = A2 A1 h3, y = softmax(u u^T).
Of y one reads u up to a sign; the sign, h1 and h2 stay hidden. The loss is that of a student who is shown all fields:
what the best learner knows does not depend on it, and derivatives through three layers are long."""

import saddleforge as sf


def mixing(z, c):
    """Attention of a layer with its skip connection."""
    return sf.softmax(z * z.T) + c * sf.Matrix([[1, 0], [0, 1]])


def inverse(A):
    """Of a matrix with two rows."""
    return sf.Matrix([[A[1, 1], -A[0, 1]], [-A[1, 0], A[0, 0]]]) / (A[0, 0] * A[1, 1] - A[0, 1] * A[1, 0])


def fields(a1, b1, a2, b2, u1, u2, sign, c):
    """Fields of the layers: h3 = sign (A2 A1)^{-1} u."""
    h1, h2 = sf.Matrix([a1, b1]), sf.Matrix([a2, b2])
    first = mixing(h1, c)
    return h1.row_join(h2).row_join(sign * inverse(first) * (inverse(mixing(first * h2, c)) * sf.Matrix([u1, u2])))


hidden = {**dict.fromkeys(("a1", "b1", "a2", "b2"), "real"), "sign": (-1, 1)}


@sf.model(tokens=2, student=3, teacher=3, output=sf.Output(fields, {"u1": "positive", "u2": "real"}, hidden=hidden))
def three_layers(X, Y, *, c=sf.Parameter(1, 0, open_low=True)):
    """Fields of the student and those of the teacher."""
    return sf.square(Y - X) / 2


# saddleforge bayes examples/three_layers.py --set alpha=0.15 --columns 3 --alone --accuracy 2e-2
