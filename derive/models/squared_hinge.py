"""Classification of the sign of a linear teacher with the squared hinge loss."""

import sympy as sp

from ..authoring.model import model
from ..authoring.outputs import sign_output_channel
from ..authoring.parameters import Start
from ..authoring.regulariser import Ridge
from .logistic_regression import zero_one_error


@model(
    regulariser=Ridge(0.1),
    metric=zero_one_error,
    starts={"informed": Start(teacher="3/5"), "uninformed": Start(noise="3/5")},
    output=sign_output_channel(),
)
def squared_hinge(X: sp.Matrix, Y: sp.Matrix) -> sp.Expr:
    """Squared hinge loss 1/2 max(0, 1 - sign(Y) X)^2 with a ridge penalty.

    Source: Aubin, Krzakala, Lu, Zdeborova, NeurIPS 2020, arXiv 2006.06560 (hinge and logistic)
    """
    return sp.Max(0, 1 - sp.sign(Y[0, 0]) * X[0, 0]) ** 2 / 2
