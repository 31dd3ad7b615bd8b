"""Linear regression with the l1 penalty on a sparse teacher."""

from typing import Any

import sympy as sp

from ..authoring.language import half_square, square
from ..authoring.model import model
from ..authoring.outputs import noisy_output_channel
from ..authoring.parameters import GaussianNoise, Parameter, Start
from ..authoring.regulariser import penalty
from ..authoring.tokens import sparse_teacher


@penalty
def l1_norm(w: sp.Matrix, *, lambda_: Any = Parameter(0.2, 0, open_low=True, doc="strength of |w|")) -> sp.Expr:  # noqa: B008
    """Return the l1 penalty lambda |w|.

    Args:
        w: a row of W, 1 x 1.
        lambda_: strength of |w|.
    """
    return lambda_ * sp.Abs(w[0])


@model(
    noise={"u": GaussianNoise(variance="Delta")},
    law=sparse_teacher,
    regulariser=l1_norm,
    metric=lambda h, Y, u: square(Y[0, 0] + u - h[0, 0]),
    starts={"informed": Start(teacher="3/5"), "uninformed": Start(noise="3/5")},
    output=noisy_output_channel(),
)
def lasso_regression(
    X: sp.Matrix,
    Y: sp.Matrix,
    u: sp.Symbol,
    *,
    Delta: Any = Parameter(0.25, 0, doc="variance of the label noise"),  # noqa: B008
) -> sp.Expr:
    """Square loss on y = Y + u, a Gauss-Bernoulli teacher and the LASSO.

    Source: Bayati, Montanari, IEEE Trans. Inf. Theory 58 (2012) 1997, arXiv 1008.2581
    """
    return half_square(Y[0, 0] + u - X[0, 0])
