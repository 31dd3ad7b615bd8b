"""A support vector machine on a score that is pooled over the tokens of a sentence.

The label is the sign of what the teacher finds in all tokens together, the score weighs them by position, with weights
that are not trained. What the loss reads is one combination of the tokens: it is solved in one field. That is one token
of covariance |pool|^2 whose label is that of the teacher's score and noise, as far as the two ways to pool differ.
"""

import sympy as sp

import saddleforge as sf


def score(X, pool):
    """Of a sentence, token by token."""
    return sum(weight * x for weight, x in zip(pool, X, strict=True))


@sf.model(
    tokens=3,
    regulariser=sf.Ridge(0.1),
    metric=lambda h, Y, pool: (1 - sp.sign(score(h, pool)) * sp.sign(sum(Y))) / 2,
    starts={"semantic": sf.Start(teacher=0.6), "uninformed": sf.Start(noise=0.6)},
)
def pooled_hinge(X, Y, *, pool=(1.0, 0.5, 0.25)):
    """Hinge loss of sign(Y_1 + Y_2 + Y_3) and the pooled score."""
    return sp.Max(0, 1 - sp.sign(sum(Y)) * score(X, pool))


# saddleforge solve examples/pooled_hinge.py --set alpha=2
