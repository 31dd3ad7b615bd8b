"""Logistic regression on the sign of a linear teacher."""

import sympy as sp

from ..authoring.language import softplus
from ..authoring.model import model
from ..authoring.outputs import sign_output_channel
from ..authoring.parameters import Start
from ..authoring.regulariser import Ridge


def zero_one_error(h: sp.Matrix, Y: sp.Matrix) -> sp.Expr:
    """Return the classification error: 1 if the signs of student and teacher fields differ, else 0.

    Args:
        h: field of the student, 1 x 1.
        Y: field of the teacher, 1 x 1.
    """
    return (1 - sp.sign(h[0, 0]) * sp.sign(Y[0, 0])) / 2


@model(
    regulariser=Ridge(0.1),
    metric=zero_one_error,
    starts={"informed": Start(teacher="3/5"), "uninformed": Start(noise="3/5")},
    output=sign_output_channel(),
)
def logistic_regression(X: sp.Matrix, Y: sp.Matrix) -> sp.Expr:
    """Logistic loss log(1 + exp(-sign(Y) X)) with a ridge penalty.

    Source: Aubin, Krzakala, Lu, Zdeborova, NeurIPS 2020, arXiv 2006.06560
    """
    return softplus(-sp.sign(Y[0, 0]) * X[0, 0])
