"""Regression with the absolute error."""

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
def l1_regression(
    X: sp.Matrix,
    Y: sp.Matrix,
    u: sp.Symbol,
    *,
    Delta: Any = Parameter(0.25, 0, doc="variance of the label noise"),  # noqa: B008
) -> sp.Expr:
    """Absolute error |y - X| on y = Y + u, and a ridge penalty: least absolute deviations.

    Source: Thrampoulidis, Abbasi, Hassibi, IEEE Trans. Inf. Theory 64 (2018) 5592, arXiv 1601.06233
    """
    return sp.Abs(Y[0, 0] + u - X[0, 0])
