"""Classification of the sign of a linear teacher with the hinge loss: a linear support vector machine."""

from typing import Any

import sympy as sp

from ..authoring.language import rounded_hinge
from ..authoring.model import model
from ..authoring.outputs import sign_of_field
from ..authoring.parameters import Parameter, Start
from ..authoring.regulariser import Ridge
from .logistic_regression import zero_one


@model(
    regulariser=Ridge(0.1),
    metric=zero_one,
    starts={"semantic": Start(teacher="3/5"), "uninformed": Start(noise="3/5")},
    output=sign_of_field(),
)
def hinge(
    X: sp.Matrix,
    Y: sp.Matrix,
    *,
    rounding: Any = Parameter(  # noqa: B008
        "1e-7", 0, 1, True, True, doc="half width over which the corner is rounded", vanishing=True
    ),
) -> sp.Expr:
    """Hinge loss max(0, 1 - sign(Y) X) with a ridge penalty; its corner is rounded over a width far below any error.

    Source: Aubin, Krzakala, Lu, Zdeborova, NeurIPS 2020, arXiv 2006.06560
    """
    return rounded_hinge(1 - sp.sign(Y[0, 0]) * X[0, 0], rounding)
