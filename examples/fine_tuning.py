"""Fine-tuning: the weights are pulled toward those learned on an earlier task, not toward zero.

The penalty lambda/2 |w - w_0|^2 contains the pre-trained row w_0 = pi_2; the target's row is pi_1, and the two overlap.
Square loss: w - w_0 is the ridge estimator of pi_1 - pi_2, so that this beats a plain ridge where overlap > 1/2.
"""

import sympy as sp

import saddleforge as sf


def related_tasks(structure, *, overlap=sf.Parameter(0.8, -1, 1, True, True, doc="of target and pre-trained row")):
    """Standard normal inputs and rows; the second teacher column is where the training starts from."""
    rows = sp.Matrix([[1, overlap], [overlap, 1]])
    return sf.Tokens(weights=[1], covariance=[[1]], teacher=rows)


@sf.penalty
def toward_pre_trained(w, pi, *, strength=sf.Parameter(0.5, 0, open_low=True)):
    """strength/2 (w - pi_2)^2."""
    return strength * (w[0] - pi[1]) ** 2 / 2


@sf.model(
    teacher=2,
    law=related_tasks,
    regulariser=toward_pre_trained,
    noise={"u": sf.GaussianNoise(variance="Delta")},
    metric=lambda h, Y: sf.square(Y[0, 0] - h[0, 0]),
    starts={"pre_trained": sf.Start(teacher=((0, 1),), noise=0.1)},
)
def fine_tuning(X, Y, u, *, Delta=sf.Parameter(0.25, 0, doc="variance of the label noise")):
    """Linear regression on the new task from pre-trained weights."""
    return sf.half_square(Y[0, 0] + u - X[0, 0])


# saddleforge solve examples/fine_tuning.py --set alpha=0.5 --set overlap=0.9
