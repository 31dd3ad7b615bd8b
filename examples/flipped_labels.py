"""Classification with flipped labels: the sign of a linear teacher, wrong with probability `flip`.

The flip is noise with two values; their probabilities may depend on parameters, and on Y. Logistic loss as in
Aubin, Krzakala, Lu, Zdeborova, arXiv 2006.06560; at flip = 0 it is that model, at flip = 1/2 nothing can be learned.
"""

import sympy as sp

import saddleforge as sf


def zero_one(h, Y):
    """1 where the student misses the clean label."""
    return (1 - sp.sign(h[0]) * sp.sign(Y[0])) / 2


@sf.model(
    noise={"u": sf.DiscreteNoise((1, -1), lambda Y, flip: (1 - flip, flip))},
    regulariser=sf.Ridge(0.1),
    metric=zero_one,
    starts={"informed": sf.Start(teacher=0.6), "uninformed": sf.Start(noise=0.6)},
)
def flipped_labels(X, Y, u, *, flip=sf.Parameter(0.1, 0, 0.5, doc="probability that a label is wrong")):
    """Logistic regression on labels u sign(Y), u = -1 with probability `flip`."""
    return sf.softplus(-u * sp.sign(Y[0]) * X[0])


# saddleforge solve examples/flipped_labels.py --set alpha=2 --set flip=0.2
