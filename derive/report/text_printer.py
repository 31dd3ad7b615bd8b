"""A printer of the package's SymPy objects as one line of Unicode text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy as sp
from sympy.printing.str import StrPrinter

from ..calculus.functions import SoftmaxEntry
from .blocks import Names, render_text_or_formula
from .printing import FormulaPrinter, order_factors
from .symbols import TEXT, Entry

WIDTH = 100  # default characters of a line
TIE = "\u00a0"  # a blank at which a line is not broken if it can be helped
_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_LEAVES = {
    "l": "l", "loss": "loss", "times": TIE, "change": "d", "index": "_%s", "brackets": "(%s)", "tilted": "⟨%s⟩",
    "square brackets": "[%s]", "transpose": "%sᵀ", "inverse": "%s⁻¹", "trace": "Tr[%s]", "log det": f"log{TIE}det(%s)",
    "derivative": "∂%s/∂%s", "slope": "∂%s/∂n at n = 0", "change of": f"d{TIE}%s", "mean": "E", "sum": f"Σ_%s{TIE}%s",
    "log integral": "log ∫ %sd%s exp{ %s }", "all replicas": "Π_a ", "minimum": "min_X { %s }",
    "maximum": "max_%s { %s }", "softmax": "S%s", "softmax entry": "[%s]", "B0": "B₀", "rho": "ρ", ">": "≻", "->": "→",
    "plus": f"+{TIE}%s", "minus": f"-{TIE}%s", "minus in front": "-%s",
}  # fmt: skip


class TextPrinter(FormulaPrinter, StrPrinter):
    """A printer of the package's SymPy objects as one line of Unicode text."""

    form, leaves, exponent = TEXT, _LEAVES, "ᴮ$"  # Qᴮ⁻¹ is no power

    def __init__(self, names: Names, theory: Mapping[str, Entry] | None = None, width: int = WIDTH) -> None:
        self.width = width
        super().__init__({"order": "none"}, names, theory)  # of factors, which `order_factors` orders

    def _print_Mul(self, expr: sp.Mul) -> str:
        return super()._print_Mul(order_factors(expr, self.names)).replace("*", TIE)

    def _print_Pow(self, expr: sp.Pow, rational: bool = False) -> str:
        base, exponent = expr.args
        if exponent.is_Integer and exponent > 1:
            printed = self._print(base)
            bare = base.is_Symbol or (base.is_Function and not isinstance(base, sp.Derivative))
            return (printed if bare else f"({printed})") + str(exponent).translate(_SUPERSCRIPT)
        return super()._print_Pow(expr, rational=rational).replace("**", "^").replace("*", TIE)

    def _print_MatPow(self, expr: sp.MatPow) -> str:
        return self.print_base_of_power(expr.base) + str(expr.exp).translate(_SUPERSCRIPT)

    def _print_softmax(self, expr: sp.Expr) -> str:
        return f"softmax({', '.join(self._print(z) for z in expr.args)})"

    def _print_Function(self, expr: sp.Function) -> str:
        name, arguments = expr.func.__name__, [self._print(z) for z in expr.args]
        shown = name if name in ("Cov", "mean") else name.lower()
        return self.print_special_function(name, arguments) or f"{shown}({', '.join(arguments)})"

    def _print_SoftmaxEntry(self, expr: SoftmaxEntry) -> str:
        return f"{self._print_softmax(sp.Function('softmax')(*expr.args[1:]))}[{int(expr.args[0]) + 1}]"

    def _print_Equality(self, expr: sp.Equality) -> str:
        return f"{self._print(expr.lhs)} = {self._print(expr.rhs)}"

    def _print_Piecewise(self, expr: sp.Piecewise) -> str:
        cases = [f"{self._print(e)} {'else' if c == True else f'if {self._print(c)}'}" for e, c in expr.args]  # noqa: E712
        return "{ " + "; ".join(cases) + " }"

    def _print_MatrixBase(self, expr: sp.MatrixBase) -> str:
        rows = [", ".join(self._print(e) for e in expr.row(i)) for i in range(expr.rows)]
        return f"({rows[0]})" if expr.rows == 1 else "[" + "; ".join(rows) + "]"

    _print_ImmutableDenseMatrix = _print_MutableDenseMatrix = _print_MatrixBase

    def print_object(self, value: Any) -> str:
        """Return a SymPy object or a sentence of a report as text."""
        return render_text_or_formula(value, str, super().print_object)
