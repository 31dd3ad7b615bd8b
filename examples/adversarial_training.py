"""Adversarial training of a linear classifier: every input is moved by up to eps against its label, in the 2-norm.

The worst move costs eps |W| / sqrt d, and |W|^2 / d = q / sigma^2: the loss holds the overlap q (linear classifiers:
Javanmard, Soltanolkotabi, arXiv 2010.11213). W = 0 is the minimum where the attack outweighs all that the labels tell,
|sum y x| <= n eps:

    eps / sigma >= sqrt(2 / pi + 1 / alpha)

whatever the ridge, which is of second order in W; `solve` then says that it collapsed to W = 0.
"""

import sympy as sp

import saddleforge as sf


def zero_one(h, Y):
    """1 where the student misses the label of an input that was not moved."""
    return (1 - sp.sign(h[0]) * sp.sign(Y[0])) / 2


@sf.model(
    regulariser=sf.Ridge(0.01),
    metric=zero_one,
    loss_kinks=lambda Y: Y[0],
    metric_kinks=lambda h, Y: [h[0], Y[0]],
    starts={"informed": sf.Start(teacher=0.6), "uninformed": sf.Start(noise=0.6)},
)
def adversarial_training(X, Y, Q, *, eps=sf.Parameter(0.5, 0, doc="length of the attack"), sigma):
    """Logistic loss on sign(Y) X - eps |W| / sqrt d, the smallest margin within the reach of the attack."""
    return sf.softplus(-sp.sign(Y[0]) * X[0] + eps * sp.sqrt(Q[0][0, 0]) / sigma)


# saddleforge solve examples/adversarial_training.py --set alpha=2 --set eps=0.5
