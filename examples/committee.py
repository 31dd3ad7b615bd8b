"""A two-layer network with fixed second layer learns from one of its kind: a committee of tanh units.

Specialised: every hidden unit follows one unit of the teacher. Unspecialised: all follow their average.
After Saad, Solla, Phys. Rev. E 52 (1995) 4225, and Aubin et al., arXiv 1806.05451.
"""

import sympy as sp

import saddleforge as sf


def output(fields):
    """Sum of the hidden units over the root of their number."""
    return sum(sp.tanh(x) for x in fields) / sp.sqrt(len(fields))


def averaged(structure):
    """Every hidden unit starts as the same mixture of all teacher units."""
    return ((sp.Rational(3, 10),) * structure.teacher_rank,) * structure.student_rank


@sf.model(
    student=sf.structural(2),
    teacher=sf.structural(2),
    regulariser=sf.Ridge(0.01),
    metric=lambda h, Y: sf.square(output(Y) - output(h)),
    starts={"specialised": sf.Start(teacher=0.6), "unspecialised": sf.Start(teacher=averaged)},
)
def committee(X, Y):
    """Square loss between two committees of tanh units, with a ridge penalty on the first layer."""
    return sf.half_square(output(Y) - output(X))


# saddleforge solve examples/committee.py --set alpha=8 --start specialised --accuracy 3e-3
