"""Linear regression with the elastic net on a sparse teacher."""

from typing import Any

import sympy as sp

from ..authoring.language import half_square, square
from ..authoring.model import model
from ..authoring.outputs import noisy_output_channel
from ..authoring.parameters import GaussianNoise, Parameter, Start
from ..authoring.regulariser import penalty
from ..authoring.tokens import sparse_teacher


@penalty
def elastic_net(
    w: sp.Matrix,
    *,
    l1: Any = Parameter(0.1, 0, doc="strength of |w|"),  # noqa: B008
    l2: Any = Parameter(0.1, 0, doc="strength of w^2 / 2"),  # noqa: B008
) -> sp.Expr:
    """Return the elastic net penalty l1 |w| + l2 w^2 / 2.

    Args:
        w: a row of W, 1 x 1.
        l1: strength of |w|.
        l2: strength of w^2 / 2.
    """
    return l1 * sp.Abs(w[0]) + l2 * w[0] ** 2 / 2


@model(
    noise={"u": GaussianNoise(variance="Delta")},
    law=sparse_teacher,
    regulariser=elastic_net,
    metric=lambda h, Y, u: square(Y[0, 0] + u - h[0, 0]),
    starts={"informed": Start(teacher="3/5"), "uninformed": Start(noise="3/5")},
    output=noisy_output_channel(),
)
def elastic_net_regression(
    X: sp.Matrix,
    Y: sp.Matrix,
    u: sp.Symbol,
    *,
    Delta: Any = Parameter(0.25, 0, doc="variance of the label noise"),  # noqa: B008
) -> sp.Expr:
    """Square loss on y = Y + u, a Gauss-Bernoulli teacher and the elastic net l1 |w| + l2 w^2 / 2.

    Source: Zou, Hastie, J. R. Stat. Soc. B 67 (2005) 301
    """
    return half_square(Y[0, 0] + u - X[0, 0])
