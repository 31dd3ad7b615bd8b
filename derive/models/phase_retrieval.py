"""Real phase retrieval with the square loss on squared projections."""

import sympy as sp

from ..authoring.language import half_square, square
from ..authoring.model import model
from ..authoring.outputs import POSITIVE, Output
from ..authoring.parameters import Start
from ..authoring.regulariser import Ridge


@model(
    regulariser=Ridge(0.1),
    metric=lambda h, Y: square(Y[0, 0] ** 2 - h[0, 0] ** 2),
    starts={"informed": Start(teacher="3/5"), "uninformed": Start(noise="3/5")},
    output=Output(lambda y, sign: sign * y, observed={"y": POSITIVE}, hidden={"sign": (-1, 1)}),
)
def phase_retrieval(X: sp.Matrix, Y: sp.Matrix) -> sp.Expr:
    """Square loss on y = Y^2 against X^2, with a ridge penalty: not convex, the sign is free.

    Source: Mignacco, Urbani, Zdeborova, MLST 2 (2021) 035029
    """
    return half_square(Y[0, 0] ** 2 - X[0, 0] ** 2)
