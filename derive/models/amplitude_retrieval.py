"""Retrieval of a signal from the moduli of its projections, by the square loss on moduli."""

import sympy as sp

from ..authoring.language import square
from ..authoring.model import model
from ..authoring.parameters import Start
from ..authoring.regulariser import Ridge


@model(
    regulariser=Ridge(0.1),
    metric=lambda h, Y: square(sp.Abs(Y[0, 0]) - sp.Abs(h[0, 0])),
    starts={"informed": Start(teacher="3/5"), "uninformed": Start(noise="3/5")},
)
def amplitude_retrieval(X: sp.Matrix, Y: sp.Matrix) -> sp.Expr:
    """(|Y| - |X|)^2 and a ridge penalty: real phase retrieval from amplitudes, with a concave corner at X = 0.

    Source: Gerchberg, Saxton, Optik 35 (1972) 237; Zhang, Liang, NeurIPS 2016, arXiv 1605.07719
    """
    return square(sp.Abs(Y[0, 0]) - sp.Abs(X[0, 0]))
