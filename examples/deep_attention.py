"""Two layers of attention with a skip connection c, one column each: which layer can be learned, and when.

z1 = x w1 / sqrt d mixes the tokens, A = softmax(z1 z1^T) + c 1; z2 = x w2 / sqrt d, u = A z2, y = softmax(u u^T).
Of y one reads u up to a sign; the sign and z1 stay hidden. After Troiani et al., arXiv 2502.00901."""

import saddleforge as sf


def attention(z):
    """Attention of one column."""
    return sf.softmax(z * z.T)


def mixing(z, c):
    """The first layer with its skip connection."""
    return attention(z) + c * sf.Matrix([[1, 0], [0, 1]])


def off(read):
    """Squared error of what is read from fields, those of h and those of Y; columns are layers."""
    return lambda h, Y, c: sf.square(read(Y[:, 0], Y[:, 1], c) - read(h[:, 0], h[:, 1], c))


def fields(a, b, half, mean, sign, c):
    """Fields of both layers: z1 = (a, b), z2 = sign A^{-1} u, of whose u mean and half the difference are observed."""
    return sf.Matrix([a, b]).row_join(sign * mixing(sf.Matrix([a, b]), c).inv() * sf.Matrix([mean + half, mean - half]))


y = off(lambda z1, z2, c: attention(mixing(z1, c) * z2))
errors = {"y": y, "first": off(lambda z1, z2, c: attention(z1)), "second": off(lambda z1, z2, c: attention(z2))}
output = sf.Output(fields, {"half": "positive", "mean": "real"}, hidden={"a": "real", "b": "real", "sign": (-1, 1)})


@sf.model(tokens=2, student=2, teacher=2, metric=errors, output=output, starts={"semantic": sf.Start(teacher=0.6)})
def deep_attention(X, Y, *, c=sf.Parameter(1, 0, open_low=True)):
    """Square loss between the layers of student and teacher."""
    return y(X, Y, c) / 2


# saddleforge bayes examples/deep_attention.py --set alpha=0.4 --columns 2 --alone --accuracy 2e-3
