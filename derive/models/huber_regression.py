"""Robust regression with Huber's loss."""

from typing import Any

import sympy as sp

from ..authoring.language import square
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
def huber_regression(
    X: sp.Matrix,
    Y: sp.Matrix,
    u: sp.Symbol,
    *,
    Delta: Any = Parameter(0.25, 0, doc="variance of the label noise"),  # noqa: B008
    width: Any = Parameter(1, 0, open_low=True, doc="error beyond which the loss is linear"),  # noqa: B008
) -> sp.Expr:
    """Huber's loss on y = Y + u: quadratic up to an error of `width`, linear beyond, and a ridge penalty.

    Source: Huber, Ann. Math. Statist. 35 (1964) 73; Donoho, Montanari, PTRF 166 (2016) 935
    """
    error = sp.Abs(Y[0, 0] + u - X[0, 0])
    return (error**2 - sp.Max(0, error - width) ** 2) / 2
