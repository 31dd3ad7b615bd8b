"""SymPy objects of this package as one line of Unicode text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr
from sympy.printing.str import StrPrinter

from ..calculus.averages import CHANNEL, Average, Jacobian, MatrixAverage
from ..calculus.functions import SoftmaxEntry
from .blocks import Names, Stacked, Words
from .printing import (
    Indices,
    is_sum,
    mean_entry,
    parameters_first,
    print_average,
    print_jacobian,
    signed,
    terms_positive_first,
)
from .symbols import CONTEXT_INDEX, MEANS, STEMS, SUMS, TEXT, THEORY, TOKEN_INDEX, Entry, own_entry, theory_entry

WIDTH = 100
TIE = "\u00a0"  # a blank at which a line is not broken if it can be helped
_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


class TextPrinter(StrPrinter):
    """SymPy objects of this package as one line of Unicode text."""

    form = TEXT

    def __init__(self, names: Names, theory: Mapping[str, Entry] | None = None, width: int = WIDTH) -> None:
        self.width = width
        super().__init__({"order": "none"})  # of factors, which come in an order of their own
        self.names, self.entries, self.at = names, THEORY if theory is None else theory, Indices()
        self.stacked = False

    def theory(self, name: str) -> str | None:
        found = theory_entry(name, self.entries)
        if found is None:
            return None
        change, (text, _, index), replicas = found
        if name.startswith("slope_"):
            return f"∂{text}/∂n at n = 0"
        label = {CONTEXT_INDEX: self.at.context, TOKEN_INDEX: self.at.token}.get(index, "")
        labels = [part for part in (replicas, "" if self.stacked else label) if part]
        if replicas and "(" in text:  # loss(X_a, Y, k, u)
            return re.sub(r"\((\w)", rf"(\1_{replicas}", text, count=1)
        return change + text + (f"_{','.join(labels)}" if labels else "")

    def _print_MatrixSymbol(self, expr: sp.MatrixSymbol) -> str:
        return self.theory(expr.name) or expr.name

    def _print_Symbol(self, expr: sp.Symbol) -> str:
        if expr in self.names:
            stem, indices = self.names[expr]
            kind, _, word = stem.rpartition(" ")
            shown = {"B0": "B₀", "rho": "ρ"}.get(word, word) if not kind else own_entry(stem, self.entries, word)[TEXT]
            separator = "," if any(len(str(n)) > 1 for n in indices) else ""
            return shown + (f"_{separator.join(str(n) for n in indices)}" if indices else "")
        found = re.fullmatch(r"softmax_(\w+?)(?:_(\w+))?", expr.name)
        if found:
            return f"S{found[1]}" + (f"[{found[2]}]" if found[2] else "")
        found = re.fullmatch(r"(tau|pi|rhostar|psi|psistar)_(\d+)", expr.name)
        if found:
            return f"{self.entries[STEMS[found[1]]][TEXT]}_{int(found[2]) + 1}"
        if expr.name.startswith("slope@"):
            return f"∂loss/∂{self._print_Symbol(sp.Symbol(expr.name.removeprefix('slope@'), real=True))}"
        return self.theory(expr.name) or expr.name

    def _sum(self, terms: Any) -> str:
        text = ""
        for term in terms_positive_first(terms):
            negative, bare = signed(term)
            printed = self._print(bare)
            if negative and isinstance(bare, sp.Add | sp.MatAdd):
                printed = f"({printed})"
            text += (f" {'-' if negative else '+'}{TIE}" if text else "-" if negative else "") + printed
        return text

    def _print_Add(self, expr: sp.Add, order: Any = None) -> str:
        return self._sum(expr.as_ordered_terms())

    def _print_MatAdd(self, expr: sp.MatAdd) -> str:
        return self._sum(expr.args)

    def _print_MatMul(self, expr: sp.MatMul) -> str:
        negative, bare = signed(expr)
        if not isinstance(bare, sp.MatMul):
            return ("-" if negative else "") + self._print(bare)
        scalar, factors = bare.as_coeff_matrices()
        numbers = [] if scalar == 1 else [scalar] if not scalar.has(Average) else list(sp.Mul.make_args(scalar))
        parts = [f"({self._print(a)})" if is_sum(a) else self._print(a) for a in (*numbers, *factors)]
        return ("-" if negative else "") + TIE.join(parts)

    def _print_Mul(self, expr: sp.Mul) -> str:
        return super()._print_Mul(parameters_first(expr, self.names)).replace("*", TIE)

    def _print_Pow(self, expr: sp.Pow, rational: bool = False) -> str:
        base, exponent = expr.args
        if exponent.is_Integer and exponent > 1:
            printed = self._print(base)
            bare = base.is_Symbol or (base.is_Function and not isinstance(base, sp.Derivative))
            return (printed if bare else f"({printed})") + str(exponent).translate(_SUPERSCRIPT)
        return super()._print_Pow(expr, rational=rational).replace("**", "^").replace("*", TIE)

    def _print_Transpose(self, expr: sp.Transpose) -> str:
        return self._tight(expr.arg) + "ᵀ"

    def _print_Inverse(self, expr: sp.Inverse) -> str:
        return self._tight(expr.arg) + "⁻¹"

    def _print_MatPow(self, expr: sp.MatPow) -> str:
        return self._tight(expr.base) + str(expr.exp).translate(_SUPERSCRIPT)

    def _tight(self, expr: MatrixExpr) -> str:
        printed = self._print(expr)
        bare = isinstance(expr, sp.MatrixSymbol) and not printed.endswith("ᴮ")  # Qᴮ⁻¹ is no power
        return printed if bare else f"({printed})"

    def _print_Identity(self, expr: sp.Identity) -> str:
        return "I"

    def _print_ZeroMatrix(self, expr: sp.ZeroMatrix) -> str:
        return "0"

    def _print_Trace(self, expr: sp.Trace) -> str:
        return f"Tr[{self._print(expr.arg)}]"

    def _print_Jacobian(self, expr: Jacobian) -> str:
        field, variable = print_jacobian(self, expr)
        return f"∂{field}/∂{variable}"

    def _print_Derivative(self, expr: sp.Derivative) -> str:
        function, variable = (self.entries[name][TEXT] for name in (expr.expr.func.__name__, expr.variables[0].name))
        return f"∂{function}/∂{variable}"

    def _print_average(self, expr: Average | MatrixAverage) -> str:
        return print_average(self, expr)

    _print_Average = _print_MatrixAverage = _print_average

    def wrap_average(self, kind: str, label: str, body: str, several: bool) -> str:
        if kind == CHANNEL:
            return f"E{label}[{body}]"
        if kind in MEANS:
            return f"{self.entries[mean_entry(kind, label)][TEXT]}[{body}]"
        if "@" in kind:
            return f"E{'_' * bool(label)}{label}[{body}]"
        label = self.entries[SUMS[kind]][TEXT] if kind in SUMS else label
        return f"Σ_{label}{TIE}{f'[{body}]' if several else body}"

    def _print_LogDet(self, expr: sp.Expr) -> str:
        return f"log{TIE}det({self._print(expr.args[0])})"

    def _print_LogIntegral(self, expr: sp.Expr) -> str:
        several = "Π_a " if "|" in expr.args[1].name else ""
        variable = "X" if expr.args[1].name == "x" else self._print(expr.args[1])
        return f"log ∫ {several}d{variable} exp{{ {self._print(expr.args[0])} }}"

    def _print_softmax(self, expr: sp.Expr) -> str:
        return f"softmax({', '.join(self._print(z) for z in expr.args)})"

    def _print_Function(self, expr: sp.Function) -> str:
        name = expr.func.__name__
        if name == "minimum":
            return f"min_X {{ {self._print(expr.args[0])} }}"
        if name == "maximum":
            return f"max_{self.entries['w'][TEXT]} {{ {self._print(expr.args[0])} }}"
        if name == "gradient":
            return f"∂{self._print(expr.args[0])}/∂{self._print(expr.args[1])}"
        if name == "change":
            return f"d{TIE}{self._print(expr.args[0])}"
        if name == "softmax":
            return self._print_softmax(expr)
        shown = name if name in ("Cov", "mean") else name.lower()
        return f"{shown}({', '.join(self._print(z) for z in expr.args)})"

    def _print_SoftmaxEntry(self, expr: SoftmaxEntry) -> str:
        return f"{self._print_softmax(sp.Function('softmax')(*expr.args[1:]))}[{int(expr.args[0]) + 1}]"

    def _print_Piecewise(self, expr: sp.Piecewise) -> str:
        cases = [f"{self._print(e)} {'else' if c == True else f'if {self._print(c)}'}" for e, c in expr.args]  # noqa: E712
        return "{ " + "; ".join(cases) + " }"

    def _print_MatrixBase(self, expr: sp.MatrixBase) -> str:
        rows = [", ".join(self._print(e) for e in expr.row(i)) for i in range(expr.rows)]
        return f"({rows[0]})" if expr.rows == 1 else "[" + "; ".join(rows) + "]"

    _print_ImmutableDenseMatrix = _print_MutableDenseMatrix = _print_MatrixBase

    def _print_BlockMatrix(self, expr: sp.BlockMatrix) -> str:
        return self._print_MatrixBase(expr.blocks)

    def _print_Tuple(self, expr: sp.Tuple) -> str:
        return "(" + ", ".join(self._print(e) for e in expr) + ")"

    def _print_Stacked(self, expr: Stacked) -> str:
        return self.show(expr.expression, stacked=True)

    def show(self, value: Any, stacked: bool = False) -> str:
        """Print an object of a report; strings pass unchanged."""
        if isinstance(value, str):
            return value
        if isinstance(value, Words):
            return value.text.format(*[self.show(e) for e in value.objects])
        if isinstance(value, Stacked):
            return self.show(value.expression, stacked=True)
        self.stacked = stacked
        try:
            return self.doprint(value)
        finally:
            self.stacked = False
