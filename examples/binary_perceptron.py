"""A perceptron with binary weights: what a Bayes-optimal learner finds, compared with a ridge regression on the labels.

The teacher's weights are +1 or -1, its labels sign(z). Gyorgyi, Phys. Rev. A 41 (1990) 7097; Barbier, Krzakala,
Macris, Miolane, Zdeborova, PNAS 116 (2019) 5451: alpha_IT = 1.2449..., alpha_alg = 1.4926...
"""

import sympy as sp

import saddleforge as sf


@sf.model(
    law=sf.binary_teacher,
    regulariser=sf.Ridge(0.1),
    metric=lambda h, Y: (1 - sp.sign(h[0]) * sp.sign(Y[0])) / 2,
    starts={"informed": sf.Start(teacher=0.6), "uninformed": sf.Start(noise=0.6)},
    output=sf.Output(
        lambda label, s: label * sp.exp(s),
        observed={"label": (-1, 1)},
        hidden={"s": "real"},
        read=lambda Y: [sp.sign(Y[0, 0])],
    ),
)
def binary_perceptron(X, Y):
    """Square loss on the labels of a perceptron with binary weights."""
    return sf.half_square(sp.sign(Y[0]) - X[0])


# saddleforge solve examples/binary_perceptron.py --set alpha=2
