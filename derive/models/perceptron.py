"""The perceptron on a sphere that learns the sign of a linear teacher, errors within a margin counted."""

from typing import Any

import sympy as sp

from ..authoring.model import model
from ..authoring.outputs import sign_output_channel
from ..authoring.parameters import Parameter, Start
from ..authoring.regulariser import Sphere
from .logistic_regression import zero_one_error


@model(
    regulariser=Sphere(1),
    metric=zero_one_error,
    starts={"informed": Start(teacher="3/5", noise="4/5")},
    output=sign_output_channel(),
)
def perceptron(
    X: sp.Matrix,
    Y: sp.Matrix,
    *,
    kappa: Any = Parameter(1, doc="margin below which a sample counts as an error"),  # noqa: B008
) -> sp.Expr:
    """Number of errors, sign(Y) X below a margin, of weights of fixed norm.

    Source: Gardner, Derrida, J. Phys. A 21 (1988) 271; Seung, Sompolinsky, Tishby, Phys. Rev. A 45 (1992) 6056
    """
    return sp.Heaviside(kappa - sp.sign(Y[0, 0]) * X[0, 0])
