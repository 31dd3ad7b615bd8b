"""The equations of the multipliers of given norms: the free entropy differentiated in them (docs/theory.md (6.6)).

Of one coordinate; the diagonal vanishes on average over the spectrum.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ..authoring.regulariser import Sphere
from ..calculus.averages import OrderParameterSymbols, gradient_of_trace
from .stability import matrix_change_symbol, matrix_differential
from .thermal import beta, thermal_corrections


@dataclass(frozen=True)
class RowNormCondition:
    """The excess of the norms of W over the prescribed norms, and its derivative in the multipliers.

    Attributes:
        excess: -2 d Phi / d Lambda = R (B B^T + Q) R + R / beta - Norms, s x s.
        slope: its change with a `change` of the multipliers.
    """

    excess: MatrixExpr
    slope: MatrixExpr
    change: sp.MatrixSymbol

    @property
    def at_zero_temperature(self) -> MatrixExpr:
        """Return the excess of the norms at zero temperature."""
        terms = sp.MatAdd.make_args(self.excess)
        return sp.MatAdd(*[term for term in terms if not term.has(beta)]).doit()


def row_norm_condition(symbols: OrderParameterSymbols) -> RowNormCondition:
    """Return the condition of prescribed norms at inverse temperature beta."""
    p = symbols
    gradient = gradient_of_trace(Sphere().averaged_envelope(p), p.Lambda, p)
    volume = thermal_corrections(p, ridge=True).log_det * (p.Lambda + p.G).inv()  # d log det A / dA = A^(-1)
    excess = (-2 * (gradient + volume)).expand().doit()
    change = matrix_change_symbol(p.Lambda)
    return RowNormCondition(excess, matrix_differential(excess, {p.Lambda: change}), change)
