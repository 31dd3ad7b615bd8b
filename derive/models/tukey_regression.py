"""Robust regression with Tukey's bounded loss, smooth and not convex."""

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
def tukey_regression(
    X: sp.Matrix,
    Y: sp.Matrix,
    u: sp.Symbol,
    *,
    Delta: Any = Parameter(0.25, 0, doc="variance of the label noise"),  # noqa: B008
    width: Any = Parameter(2, 0, open_low=True, doc="error beyond which the loss is constant"),  # noqa: B008
) -> sp.Expr:
    """Tukey's biweight loss on y = Y + u, constant beyond an error of `width`, and a ridge penalty.

    Source: Beaton, Tukey, Technometrics 16 (1974) 147
    """
    inside = sp.Max(0, 1 - ((Y[0, 0] + u - X[0, 0]) / width) ** 2)
    return width**2 / 6 * (1 - inside**3)
