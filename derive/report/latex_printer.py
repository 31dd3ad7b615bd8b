"""SymPy objects of this package in the mathematics mode of LaTeX, and words that are safe there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partialmethod
from typing import Any

import sympy as sp
from sympy.printing.latex import LatexPrinter as SympyLatexPrinter

from .blocks import Names
from .names import GREEK
from .printing import FormulaPrinter, order_factors
from .symbols import LATEX, THEORY, Entry

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
    "softmax": "S^{(%s)}", "softmax entry": "_{%s}", "B0": "B_{0}", "rho": r"\rho", ">": r"\succ", "->": r"\to",
    "plus": "+ %s", "minus": "- %s", "minus in front": "- %s",
}  # fmt: skip


class LatexPrinter(FormulaPrinter, SympyLatexPrinter):
    """A printer of SymPy objects of this package as LaTeX source in mathematics mode."""

    form, leaves, exponent = LATEX, _LEAVES, r"\^"  # rho^star and the like have one: TeX refuses a second

    def __init__(self, names: Names, theory: Mapping[str, Entry] | None = None) -> None:
        settings = {"mat_delim": "(", "order": "none", "mul_symbol": r" \, ", "long_frac_ratio": 2}
        super().__init__(settings, names, theory)

    def print_parameter_symbol(self, name: str) -> str:
        """Return the LaTeX symbol of a model parameter."""
        return parameter_latex_symbol(name, self.entries)

    def print_index(self, number: str) -> str:
        """Return the LaTeX source of an index; an index of several letters is printed upright."""
        return re.sub(r"([a-z]{2,})", r"\\mathrm{\1}", number)

    def append_indices_to_symbol(self, symbol: str, indices: str) -> str:
        """Return the LaTeX source of a symbol with indices; braces are added if the symbol has an index already.

        Args:
            symbol: LaTeX source of the symbol.
            indices: LaTeX source of the indices.
        """
        if "_" in symbol:
            symbol = f"({symbol})" if symbol == self.fill_notation_pattern("B0") else f"{{{symbol}}}"
        return f"{symbol}_{{{indices}}}"

    def _print_Mul(self, expr: sp.Mul) -> str:
        number, rest = expr.as_coeff_Mul()
        if number.is_Rational and not number.is_Integer and sp.fraction(rest)[1] == 1:
            body = self._print(rest)
            body = rf"\left({body}\right)" if rest.is_Add else body
            return rf"{'-' if number < 0 else ''}\frac{{{abs(number).p}}}{{{number.q}}} \, {body}"
        return super()._print_Mul(order_factors(expr, self.names))

    def _print_elementary_function(self, name: str, expr: sp.Function, exp: Any = None) -> str:
        return rf"{name}\left({self._print(expr.args[0])}\right)" + (f"^{{{exp}}}" if exp else "")

    _print_log = partialmethod(_print_elementary_function, r"\log")
    _print_ExpBase = partialmethod(_print_elementary_function, r"\exp")

    def _print_Function(self, expr: sp.Function, exp: Any = None) -> str:
        name, arguments = expr.func.__name__, [self._print(z) for z in expr.args]
        body = self.print_special_function(name, arguments)
        if body is None:
            shown = {"Sigmoid": "sigmoid", "Softplus": "softplus", "softmax": "softmax", "sign": "sign"}.get(name)
            if shown is None:
                return super()._print_Function(expr, exp)
            body = rf"\operatorname{{{shown}}}\left({', '.join(arguments)}\right)"
        return body if exp is None else rf"\left({body}\right)^{{{exp}}}"

    _print_tuple = FormulaPrinter._print_Tuple


def parameter_latex_symbol(name: str, theory: Mapping[str, Entry] = THEORY) -> str:
    """Return the LaTeX symbol of a model parameter: a letter or Greek letter, with an index, or an upright word.

    A letter that the theory already uses is printed as a variant of the Greek letter, or with a mark above it.

    Args:
        name: name of the parameter.
        theory: printed symbols of the theory, which a parameter must not share.
    """
    taken = {entry[1] for entry in theory.values()} - {r"\alpha"}
    head, _, index = name.partition("_")
    symbol = (rf"\{head}" if head in GREEK else head) if len(head) == 1 or head in GREEK else ""
    if not symbol:
        return rf"\mathrm{{{escape_latex(name)}}}"
    if index:
        return rf"{symbol}_{{\mathrm{{{escape_latex(index)}}}}}"
    if name == "alpha" or symbol not in taken:
        return symbol
    other = _OTHER_FORM.get(name, "")
    return other if other and other not in taken else rf"\check{{{symbol}}}"


_OTHER_FORM = {
    "omega": r"\varpi", "theta": r"\vartheta", "rho": r"\varrho", "phi": r"\varphi", "epsilon": r"\epsilon",
    "kappa": r"\varkappa", "sigma": r"\varsigma",
}  # fmt: skip


def escape_latex(text: str) -> str:
    """Return plain text with every special character of LaTeX escaped."""
    return "".join(_SPECIAL.get(character, character) for character in text)
