"""A product of two projections, y = z1 z2, seen without noise: a multi-index model with a weak-recovery transition.

Of z1 = e exp((u + v)/2) and z2 = e sigma exp((u - v)/2) the learner sees u = log|y| and sigma, v and e stay hidden.
Troiani, Dandi, Defilippis, Zdeborova, Loureiro, Krzakala, arXiv 2405.15480: weak recovery from alpha = 0.5937...
"""

import sympy as sp

import saddleforge as sf


@sf.model(
    student=2,
    teacher=2,
    regulariser=sf.Ridge(0.1),
    metric=lambda h, Y: (Y[0] * Y[1] - h[0] * h[1]) ** 2,
    starts={"informed": sf.Start(teacher=0.6), "uninformed": sf.Start(noise=0.6)},
    output=sf.Output(
        lambda u, v, sigma, e: [[e * sp.exp((u + v) / 2), e * sigma * sp.exp((u - v) / 2)]],
        observed={"u": "real", "sigma": (-1, 1)},
        hidden={"v": "real", "e": (-1, 1)},
        read=lambda Y: [sp.log(sp.Abs(Y[0, 0] * Y[0, 1])), sp.sign(Y[0, 0] * Y[0, 1])],
    ),
)
def product_of_two(X, Y):
    """Square loss on y = Y1 Y2 against X1 X2."""
    return sf.half_square(Y[0] * Y[1] - X[0] * X[1])


# saddleforge solve examples/product_of_two.py --set alpha=4 --accuracy 2e-2
