"""Two tasks share one weight vector: classification by one teacher, regression on another that overlaps with it.

A sample's label k names its task; a share of the samples, alpha share, belongs to the first. Both tasks see inputs of
one law, so that their overlaps coincide; the conjugates of the two channels add up.
"""

import sympy as sp

import saddleforge as sf


def related_tasks(structure, *, share=sf.Parameter(0.5, 0, 1), overlap=sf.Parameter(0.8, -1, 1, True, True)):
    """Standard normal inputs; teacher rows with a given overlap; the cluster label names the task."""
    rows = sp.Matrix([[1, overlap], [overlap, 1]])
    return sf.Tokens(weights=[1], covariance=[[1, 1]], labels=[share, 1 - share], teacher=rows)


@sf.model(
    clusters=2,
    teacher=2,
    law=related_tasks,
    regulariser=sf.Ridge(0.1),
    metric=lambda h, Y, k: sf.by_label(k[0], (1 - sp.sign(h[0]) * sp.sign(Y[0])) / 2, sf.square(Y[1] - h[0])),
    starts={"informed": sf.Start(teacher=((0.3, 0.3),)), "uninformed": sf.Start(noise=0.6)},
)
def two_tasks(X, Y, k):
    """Logistic loss on sign(Y_1) where k = 0, square loss on Y_2 where k = 1."""
    return sf.by_label(k[0], sf.softplus(-sp.sign(Y[0]) * X[0]), sf.half_square(Y[1] - X[0]))


# saddleforge solve examples/two_tasks.py --set alpha=2 --set share=0.3
