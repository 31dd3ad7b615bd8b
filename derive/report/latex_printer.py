"""SymPy objects of this package in the mathematics mode of LaTeX, and words that are safe there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import sympy as sp
from sympy.printing.latex import LatexPrinter as SympyLatexPrinter

from .blocks import Names
from .names import GREEK
from .printing import FormulaPrinter, parameters_first
from .symbols import LATEX, THEORY, Entry, own_entry

_SPECIAL = {
    "\\": r"\textbackslash{}", "_": r"\_", "^": r"\textasciicircum{}", "&": r"\&", "%": r"\%", "#": r"\#", "$": r"\$",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip
_LEAVES = {
    "l": r"\ell", "loss": r"\ell", "times": r" \, ", "change": r"\mathrm{d}", "index": "_{%s}",
    "brackets": r"\left(%s\right)", "square brackets": r"\left[%s\right]", "transpose": "%s^{T}", "inverse": "%s^{-1}",
    "tilted": r"\left\langle %s\right\rangle",
    "trace": r"\operatorname{Tr}\left[%s\right]", "log det": r"\log\det\left(%s\right)",
    "derivative": r"\frac{\partial %s}{\partial %s}",
    "slope": r"\left. \tfrac{\partial}{\partial n} %s \right|_{n = 0}",
    "change of": r"\mathrm{d}\,%s", "mean": r"\mathbb{E}", "sum": r"\sum_{%s} %s",
    "log integral": r"\log \int %s\mathrm{d}%s \exp\left\{%s\right\}", "all replicas": r"\prod_{a} ",
    "minimum": r"\min_{X} \left\{%s\right\}", "maximum": r"\max_{%s} \left\{%s\right\}",
    "softmax": "S^{(%s)}", "softmax entry": "_{%s}",
}  # fmt: skip


class LatexPrinter(FormulaPrinter, SympyLatexPrinter):
    """SymPy objects of this package in LaTeX's mathematics mode."""

    form, leaves = LATEX, _LEAVES

    def __init__(self, names: Names, theory: Mapping[str, Entry] | None = None) -> None:
        settings = {"mat_delim": "(", "order": "none", "mul_symbol": r" \, ", "long_frac_ratio": 2}
        super().__init__(settings, names, theory)

    def own(self, stem: str, indices: tuple[int | str, ...]) -> str:
        """As of `FormulaPrinter`; indices of several letters are set upright, those of B_0 stand behind brackets."""
        kind, _, word = stem.rpartition(" ")
        symbol = {"B0": "B_{0}", "rho": r"\rho"}.get(word, word)
        if kind:
            symbol = own_entry(stem, self.entries, parameter_symbol(word, self.entries))[LATEX]
        if kind and indices and "_" in symbol:
            symbol = f"{{{symbol}}}"  # TeX refuses a second index
        separator = "," if any(len(str(n)) > 1 for n in indices) else ""
        subscript = separator.join(re.sub(r"([a-z]{2,})", r"\\mathrm{\1}", str(n)) for n in indices)
        if word == "B0":
            return f"(B_{{0}})_{{{subscript}}}" if subscript else symbol
        return symbol + (f"_{{{subscript}}}" if subscript else "")

    def join_terms(self, terms: Any) -> list[str]:
        """The printed terms of a sum, each with its sign; the first bare unless negative."""
        printed: list[str] = []
        for negative, body in self.signed_terms(terms):
            printed.append(f"{'-' if negative else '+' if printed else ''} {body}".strip())
        return printed

    def _print_Add(self, expr: sp.Add, order: Any = None) -> str:
        return " ".join(self.join_terms(expr.as_ordered_terms()))

    def _print_MatAdd(self, expr: sp.MatAdd) -> str:
        return " ".join(self.join_terms(expr.args))

    def _print_Mul(self, expr: sp.Mul) -> str:
        number, rest = expr.as_coeff_Mul()
        if number.is_Rational and not number.is_Integer and sp.fraction(rest)[1] == 1:
            body = self._print(rest)
            body = rf"\left({body}\right)" if rest.is_Add else body
            return rf"{'-' if number < 0 else ''}\frac{{{abs(number).p}}}{{{number.q}}} \, {body}"
        return super()._print_Mul(parameters_first(expr, self.names))

    def has_exponent(self, symbol: str) -> bool:
        """As of `FormulaPrinter`: any superscript is one, for TeX refuses a second."""
        return "^" in symbol  # rho^star and the like hold a superscript already

    def _print_log(self, expr: sp.log, exp: Any = None) -> str:
        return rf"\log\left({self._print(expr.args[0])}\right)" + (f"^{{{exp}}}" if exp else "")

    def _print_ExpBase(self, expr: sp.exp, exp: Any = None) -> str:
        return rf"\exp\left({self._print(expr.args[0])}\right)" + (f"^{{{exp}}}" if exp else "")

    def _print_Function(self, expr: sp.Function, exp: Any = None) -> str:
        name, arguments = expr.func.__name__, [self._print(z) for z in expr.args]
        body = self.named_function(name, arguments)
        if body is None:
            shown = {"Sigmoid": "sigmoid", "Softplus": "softplus", "softmax": "softmax"}.get(name)
            if shown is None:
                return super()._print_Function(expr, exp)
            body = rf"\operatorname{{{shown}}}\left({', '.join(arguments)}\right)"
        return body if exp is None else rf"\left({body}\right)^{{{exp}}}"

    def _print_sign(self, expr: sp.sign, exp: Any = None) -> str:
        body = rf"\operatorname{{sign}}\left({self._print(expr.args[0])}\right)"
        return body if exp is None else rf"\left({body}\right)^{{{exp}}}"

    _print_tuple = FormulaPrinter._print_Tuple


def parameter_symbol(name: str, theory: Mapping[str, Entry] = THEORY) -> str:
    """A parameter's symbol: its letter, Greek as Greek; Delta_in is Delta with an index, a word is set upright.

    A letter that means something else in the theory gets the other form of a Greek letter, or a mark above.
    """
    taken = {entry[1] for entry in theory.values()} - {r"\alpha"}
    head, _, index = name.partition("_")
    symbol = (rf"\{head}" if head in GREEK else head) if len(head) == 1 or head in GREEK else ""
    if not symbol:
        return rf"\mathrm{{{escaped(name)}}}"
    if index:
        return rf"{symbol}_{{\mathrm{{{escaped(index)}}}}}"
    if name == "alpha" or symbol not in taken:
        return symbol
    other = _OTHER_FORM.get(name, "")
    return other if other and other not in taken else rf"\check{{{symbol}}}"


_OTHER_FORM = {
    "omega": r"\varpi", "theta": r"\vartheta", "rho": r"\varrho", "phi": r"\varphi", "epsilon": r"\epsilon",
    "kappa": r"\varkappa", "sigma": r"\varsigma",
}  # fmt: skip


def escaped(text: str) -> str:
    """Words with every character that LaTeX would take for a command made harmless."""
    return "".join(_SPECIAL.get(character, character) for character in text)
