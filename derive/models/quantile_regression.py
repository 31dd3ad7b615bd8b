"""Regression of a quantile of the labels."""

from typing import Any

import sympy as sp

from ..authoring.language import square
from ..authoring.model import model
from ..authoring.parameters import GaussianNoise, Parameter, Start
from ..authoring.regulariser import Ridge


@model(
    noise={"u": GaussianNoise(variance="Delta")},
    regulariser=Ridge(0.1),
    metric=lambda h, Y, u: square(Y[0, 0] + u - h[0, 0]),
    starts={"informed": Start(teacher="3/5"), "uninformed": Start(noise="3/5")},
)
def quantile_regression(
    X: sp.Matrix,
    Y: sp.Matrix,
    u: sp.Symbol,
    *,
    Delta: Any = Parameter(0.25, 0, doc="variance of the label noise"),  # noqa: B008
    quantile: Any = Parameter(0.7, 0, 1, True, True, doc="share of the labels that are to lie below X"),  # noqa: B008
) -> sp.Expr:
    """Pinball loss max(tau e, (tau - 1) e) of the error e = Y + u - X, and a ridge penalty.

    Source: Koenker, Bassett, Econometrica 46 (1978) 33
    """
    error = Y[0, 0] + u - X[0, 0]
    return sp.Max(quantile * error, (quantile - 1) * error)
