"""The equations of the multipliers of given norms: the free entropy differentiated in them (docs/theory.md (6.6)).

Of one coordinate; the diagonal vanishes on average over the spectrum.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ..authoring.regulariser import Sphere
from ..calculus.averages import Symbols, trace_gradient
from .stability import change_symbol, differential
from .thermal import beta, thermal_corrections


@dataclass(frozen=True)
class NormCondition:
    """The excess of a row's mean squares over the prescribed norms, and its derivative in the multipliers.

    Attributes:
        excess: -2 d Phi / d Lambda = R (B B^T + Q) R + R / beta - Norms, s x s.
        slope: its change with a `change` of the multipliers.
    """

    excess: MatrixExpr
    slope: MatrixExpr
    change: sp.MatrixSymbol

    @property
    def at_zero_temperature(self) -> MatrixExpr:
        """Return the excess without the term due to the volume of the rows."""
        terms = sp.MatAdd.make_args(self.excess)
        return sp.MatAdd(*[term for term in terms if not term.has(beta)]).doit()


def norm_condition(symbols: Symbols) -> NormCondition:
    """Return the condition at any temperature; terms that contain beta vanish at zero temperature."""
    p = symbols
    gradient = trace_gradient(Sphere().potential(p), p.Lambda, p)
    volume = thermal_corrections(p, ridge=True).log_det * (p.Lambda + p.G).inv()  # d log det A / dA = A^(-1)
    excess = (-2 * (gradient + volume)).expand().doit()
    change = change_symbol(p.Lambda)
    return NormCondition(excess, differential(excess, {p.Lambda: change}), change)
