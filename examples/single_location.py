"""One token of two holds the answer, marked by a direction that attention has to find: a label is the teacher's field
of that token. The first column of W is the key, the second the value.

Duranthon, Marion, Boyer, Loureiro, Zdeborova, arXiv 2509.21936; Marion, Berthier, Biau, Boyer, arXiv 2410.01537.
"""

import sympy as sp

import saddleforge as sf


def one_is_marked(structure, *, nu=sf.Parameter(4, 0, doc="squared length of the mark")):
    """Tokens N(0, I); the token of cluster 2 is moved by the mark, and one of the two is of cluster 2."""
    mark = sp.Matrix([0, 1, 0, 1])
    law = {"labels": [0, "1/2", "1/2", 0], "means": nu * mark * mark.T, "teacher": [[1]]}
    return sf.Tokens(weights=[1], covariance=[[1] * 4], **law)


def answer(Y, k):
    """What the marked token says."""
    return sf.by_label(k[0], Y[1], Y[0])


def attended(h):
    """Values weighed by a softmax of the keys."""
    return (sf.softmax(h[:, 0].T) * h[:, 1])[0]


@sf.model(
    tokens=2, student=2, clusters=2, law=one_is_marked, regulariser=sf.Ridge(0.1),
    noise={"u": sf.GaussianNoise(variance="Delta")}, metric=lambda h, Y, k: (answer(Y, k) - attended(h)) ** 2,
    starts={"semantic": sf.Start(teacher=((0,), (0.5,)), encodings=((0, 0.4, 0, 0.4), (0, 0, 0, 0)))},
)  # fmt: skip
def single_location(X, Y, k, u, *, Delta=sf.Parameter(0.1, 0)):
    """Least squares of softmax attention on what one token says."""
    return sf.half_square(answer(Y, k) + u - attended(X))


# saddleforge solve examples/single_location.py --set alpha=3 --accuracy 2e-2
