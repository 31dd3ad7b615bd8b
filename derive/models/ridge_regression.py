"""Linear regression with label noise and ridge: the case with a closed form."""

from typing import Any

import sympy as sp

from ..authoring.language import half_square, square
from ..authoring.model import model
from ..authoring.outputs import noisy_output_channel
from ..authoring.parameters import GaussianNoise, Parameter, Start
from ..authoring.regulariser import Ridge


@model(
    noise={"u": GaussianNoise(variance="Delta")},
    regulariser=Ridge(0.1),
    metric=lambda h, Y, u: square(Y[0, 0] + u - h[0, 0]),
    starts={"informed": Start(teacher="3/5"), "uninformed": Start(noise="3/5")},
    output=noisy_output_channel(),
)
def ridge_regression(
    X: sp.Matrix,
    Y: sp.Matrix,
    u: sp.Symbol,
    *,
    Delta: Any = Parameter(0.25, 0, doc="variance of the label noise"),  # noqa: B008
) -> sp.Expr:
    """Square loss on y = Y + u with Gaussian label noise u and a ridge penalty.

    Source: Hastie, Montanari, Rosset, Tibshirani, Ann. Statist. 50 (2022) 949
    """
    return half_square(Y[0, 0] + u - X[0, 0])
