"""SymPy objects of this package in the mathematics mode of LaTeX, and words that are safe there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr
from sympy.printing.latex import LatexPrinter as SympyLatexPrinter

from ..calculus.averages import CHANNEL, Average, Jacobian, MatrixAverage
from .blocks import Names
from .names import GREEK
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
from .symbols import CONTEXT_INDEX, LATEX, MEANS, STEMS, SUMS, THEORY, TOKEN_INDEX, Entry, own_entry, theory_entry

_SPECIAL = {
    "\\": r"\textbackslash{}", "_": r"\_", "^": r"\textasciicircum{}", "&": r"\&", "%": r"\%", "#": r"\#", "$": r"\$",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


class LatexPrinter(SympyLatexPrinter):
    """SymPy objects of this package in LaTeX's mathematics mode."""

    form = LATEX

    def __init__(self, names: Names, theory: Mapping[str, Entry] | None = None) -> None:
        super().__init__({"mat_delim": "(", "order": "none", "mul_symbol": r" \, ", "long_frac_ratio": 2})
        self.names, self.entries, self.at = names, THEORY if theory is None else theory, Indices()
        self.stacked = False

    def theory(self, name: str) -> str | None:
        found = theory_entry(name, self.entries)
        if found is None:
            return None
        change, (_, symbol, index), replicas = found
        if name.startswith("slope_"):
            return rf"\left. \tfrac{{\partial}}{{\partial n}} {symbol} \right|_{{n = 0}}"
        label = {CONTEXT_INDEX: self.at.context, TOKEN_INDEX: self.at.token}.get(index, "").replace("l", r"\ell")
        if replicas and "(" in symbol:
            return re.sub(r"\((\w)", rf"(\1_{{{replicas}}}", symbol, count=1)
        labels = [part for part in (replicas, "" if self.stacked else label) if part]
        return (r"\mathrm{d}" if change else "") + symbol + (f"_{{{','.join(labels)}}}" if labels else "")

    def _print_MatrixSymbol(self, expr: sp.MatrixSymbol) -> str:
        return self.theory(expr.name) or expr.name

    def _print_Symbol(self, expr: sp.Symbol, style: str = "plain") -> str:
        if expr in self.names:
            stem, indices = self.names[expr]
            kind, _, word = stem.rpartition(" ")
            symbol = {"B0": "B_{0}", "rho": r"\rho"}.get(word, word)
            if kind:
                symbol = own_entry(stem, self.entries, parameter_symbol(word, self.entries))[LATEX]
            separator = "," if any(len(str(n)) > 1 for n in indices) else ""
            subscript = separator.join(re.sub(r"([a-z]{2,})", r"\\mathrm{\1}", str(n)) for n in indices)
            if word == "B0":
                return f"(B_{{0}})_{{{subscript}}}" if subscript else symbol
            return symbol + (f"_{{{subscript}}}" if subscript else "")
        found = re.fullmatch(r"softmax_([^_]+)(?:_(\w+))?", expr.name)
        if found:
            return f"S^{{({found[1]})}}" + (f"_{{{found[2]}}}" if found[2] else "")
        found = re.fullmatch(r"(tau|pi|rhostar|psi|psistar)_(\d+)", expr.name)
        if found:
            return f"{self.entries[STEMS[found[1]]][LATEX]}_{{{int(found[2]) + 1}}}"
        if expr.name.startswith("slope@"):
            variable = self._print_Symbol(sp.Symbol(expr.name.removeprefix("slope@"), real=True))
            return rf"\frac{{\partial \ell}}{{\partial {variable}}}"
        return self.theory(expr.name) or expr.name

    def join_terms(self, terms: Any) -> list[str]:
        """The printed terms of a sum, each with its sign; the first bare unless negative."""
        printed: list[str] = []
        for term in terms_positive_first(terms):
            negative, bare = signed(term)
            body = self._print(bare)
            if negative and isinstance(bare, sp.Add | sp.MatAdd):
                body = rf"\left({body}\right)"
            printed.append(f"{'-' if negative else '+' if printed else ''} {body}".strip())
        return printed

    def _print_Add(self, expr: sp.Add, order: Any = None) -> str:
        return " ".join(self.join_terms(expr.as_ordered_terms()))

    def _print_Mul(self, expr: sp.Mul) -> str:
        number, rest = expr.as_coeff_Mul()
        if number.is_Rational and not number.is_Integer and sp.fraction(rest)[1] == 1:
            body = self._print(rest)
            body = rf"\left({body}\right)" if rest.is_Add else body
            return rf"{'-' if number < 0 else ''}\frac{{{abs(number).p}}}{{{number.q}}} \, {body}"
        return super()._print_Mul(parameters_first(expr, self.names))

    def _print_MatAdd(self, expr: sp.MatAdd) -> str:
        return " ".join(self.join_terms(expr.args))

    def _print_MatMul(self, expr: sp.MatMul) -> str:
        negative, bare = signed(expr)
        if not isinstance(bare, sp.MatMul):
            return ("-" if negative else "") + self._print(bare)
        scalar, factors = bare.as_coeff_matrices()
        numbers = [] if scalar == 1 else [scalar] if not scalar.has(Average) else list(sp.Mul.make_args(scalar))
        parts = [rf"\left({self._print(a)}\right)" if is_sum(a) else self._print(a) for a in (*numbers, *factors)]
        return ("-" if negative else "") + r" \, ".join(parts)

    def _print_Transpose(self, expr: sp.Transpose) -> str:
        return self._raised(expr.arg, "T")

    def _print_Inverse(self, expr: sp.Inverse) -> str:
        return self._raised(expr.arg, "-1")

    def _raised(self, expr: MatrixExpr, exponent: str) -> str:
        printed = self._print(expr)
        # rho^star and the like hold a superscript already.
        bare = isinstance(expr, sp.MatrixSymbol) and "^" not in printed
        return f"{printed}^{{{exponent}}}" if bare else rf"\left({printed}\right)^{{{exponent}}}"

    def _print_Identity(self, expr: sp.Identity) -> str:
        return "I"

    def _print_ZeroMatrix(self, expr: sp.ZeroMatrix) -> str:
        return "0"

    def _print_Trace(self, expr: sp.Trace, exp: Any = None) -> str:
        return rf"\operatorname{{Tr}}\left[{self._print(expr.arg)}\right]"

    def _print_Jacobian(self, expr: Jacobian) -> str:
        field, variable = print_jacobian(self, expr)
        return rf"\frac{{\partial {field}}}{{\partial {variable}}}"

    def _print_Derivative(self, expr: sp.Derivative) -> str:
        function, variable = (self.entries[name][LATEX] for name in (expr.expr.func.__name__, expr.variables[0].name))
        return rf"\frac{{\partial {function}}}{{\partial {variable}}}"

    def _print_average(self, expr: Average | MatrixAverage) -> str:
        return print_average(self, expr)

    _print_Average = _print_MatrixAverage = _print_average

    def wrap_average(self, kind: str, label: str, body: str, several: bool) -> str:
        if kind == CHANNEL:
            return r"\mathbb{E}" + (f"_{{{label[1:]}}}" if label else "") + rf"\left[{body}\right]"
        if kind in MEANS:
            return rf"{self.entries[mean_entry(kind, label)][LATEX]}\left[{body}\right]"
        if "@" in kind:
            return r"\mathbb{E}" + (f"_{{{label}}}" if label else "") + rf"\left[{body}\right]"
        index = self.entries[SUMS[kind]][LATEX] if kind in SUMS else label.replace("l", r"\ell")
        return rf"\sum_{{{index}}} " + (rf"\left[{body}\right]" if several else body)

    def _print_LogDet(self, expr: sp.Expr) -> str:
        return rf"\log\det\left({self._print(expr.args[0])}\right)"

    def _print_LogIntegral(self, expr: sp.Expr) -> str:
        several = r"\prod_{a} " if "|" in expr.args[1].name else ""
        variable = "X" if expr.args[1].name == "x" else self._print(expr.args[1])
        return rf"\log \int {several}\mathrm{{d}}{variable} \exp\left\{{{self._print(expr.args[0])}\right\}}"

    def _print_log(self, expr: sp.log, exp: Any = None) -> str:
        return rf"\log\left({self._print(expr.args[0])}\right)" + (f"^{{{exp}}}" if exp else "")

    def _print_ExpBase(self, expr: sp.exp, exp: Any = None) -> str:
        return rf"\exp\left({self._print(expr.args[0])}\right)" + (f"^{{{exp}}}" if exp else "")

    def _print_Function(self, expr: sp.Function, exp: Any = None) -> str:
        name, arguments = expr.func.__name__, [self._print(z) for z in expr.args]
        if name == "minimum":
            body = rf"\min_{{X}} \left\{{{arguments[0]}\right\}}"
        elif name == "maximum":
            body = rf"\max_{{{self.entries['w'][LATEX]}}} \left\{{{arguments[0]}\right\}}"
        elif name == "gradient":
            body = rf"\frac{{\partial {arguments[0]}}}{{\partial {arguments[1]}}}"
        elif name == "change":
            body = rf"\mathrm{{d}}\,{arguments[0]}"
        else:
            shown = {"Sigmoid": "sigmoid", "Softplus": "softplus"}.get(name)
            if shown is None and name != "softmax":
                return super()._print_Function(expr, exp)
            body = rf"\operatorname{{{shown or name}}}\left({', '.join(arguments)}\right)"
        return body if exp is None else rf"\left({body}\right)^{{{exp}}}"

    def _print_sign(self, expr: sp.sign, exp: Any = None) -> str:
        body = rf"\operatorname{{sign}}\left({self._print(expr.args[0])}\right)"
        return body if exp is None else rf"\left({body}\right)^{{{exp}}}"

    def _print_tuple(self, expr: Any) -> str:
        return rf"\left({', '.join(self._print(e) for e in expr)}\right)"

    _print_Tuple = _print_tuple

    def _print_BlockMatrix(self, expr: sp.BlockMatrix) -> str:
        return self._print(expr.blocks)

    def show(self, value: Any, stacked: bool = False) -> str:
        """Print an object of a report, without dollar signs."""
        if hasattr(value, "expression") and not isinstance(value, sp.Basic):
            value, stacked = value.expression, True
        self.stacked = stacked
        try:
            return self.doprint(value)
        finally:
            self.stacked = False


def parameter_symbol(name: str, theory: Mapping[str, Entry] = THEORY) -> str:
    """A parameter's symbol; one whose letter means something else in the theory is set in typewriter."""
    taken = {entry[1] for entry in theory.values()} - {r"\alpha"}
    symbol = (rf"\{name}" if name in GREEK else name) if len(name) == 1 or name in GREEK else ""
    if name != "alpha" and (not symbol or symbol in taken):
        return rf"\mathtt{{{escaped(name)}}}"
    return symbol


def escaped(text: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in text)
