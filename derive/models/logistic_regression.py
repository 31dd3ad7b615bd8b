"""Logistic regression on the sign of a linear teacher."""

import sympy as sp

from ..language import softplus
from ..model import model
from ..outputs import sign_of_field
from ..parameters import Start
from ..regulariser import Ridge


def zero_one(h: sp.Matrix, Y: sp.Matrix) -> sp.Expr:
    """1 where the signs of student and teacher differ."""
    return (1 - sp.sign(h[0, 0]) * sp.sign(Y[0, 0])) / 2


@model(
    regulariser=Ridge(0.1),
    metric=zero_one,
    starts={"semantic": Start(teacher="3/5"), "uninformed": Start(noise="3/5")},
    output=sign_of_field(),
)
def logistic_regression(X: sp.Matrix, Y: sp.Matrix) -> sp.Expr:
    """Logistic loss log(1 + exp(-sign(Y) X)) with a ridge penalty.

    Source: Aubin, Krzakala, Lu, Zdeborova, NeurIPS 2020, arXiv 2006.06560
    """
    return softplus(-sp.sign(Y[0, 0]) * X[0, 0])
