"""The equations of the multipliers of given norms: the free entropy differentiated in them (docs/theory.md (6.6)).

Of one coordinate; the diagonal vanishes on average over the spectrum.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ..authoring.regulariser import Sphere
from ..calculus.averages import OrderParameterSymbols, gradient_of_trace
from .stability import differential_symbol, matrix_differential
from .thermal import beta, thermal_corrections


@dataclass(frozen=True)
class RowNormCondition:
    """The condition that fixes the norms of the columns of W, one equation for each Lagrange multiplier.

    Attributes:
        excess: second moments of a row of W minus the prescribed squared norms, s x s; the diagonal must vanish on
            average over coordinates.
        slope: first-order change of `excess` for a change of the multipliers.
        change: the matrix symbol of that change of the multipliers.
    """

    excess: MatrixExpr
    slope: MatrixExpr
    change: sp.MatrixSymbol

    @property
    def excess_at_zero_temperature(self) -> MatrixExpr:
        """Return `excess`, second moments minus squared norms, at zero temperature: its terms without beta."""
        terms = sp.MatAdd.make_args(self.excess)
        return sp.MatAdd(*[term for term in terms if not term.has(beta)]).doit()


def row_norm_condition(symbols: OrderParameterSymbols) -> RowNormCondition:
    """Return the condition that fixes the norms of the columns of W, at inverse temperature beta."""
    p = symbols
    gradient = gradient_of_trace(Sphere().entropic_potential_of_row(p), p.Lambda, p)
    volume = thermal_corrections(p, ridge=True).log_det * (p.Lambda + p.G).inv()  # d log det A / dA = A^(-1)
    excess = (-2 * (gradient + volume)).expand().doit()
    change = differential_symbol(p.Lambda)
    return RowNormCondition(excess, matrix_differential(excess, {p.Lambda: change}), change)
