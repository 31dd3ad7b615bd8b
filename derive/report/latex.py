"""A derivation as a LaTeX document of its own (article, amsmath), with the content of text.py."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr
from sympy.printing.latex import LatexPrinter as SympyLatexPrinter

from ..authoring.model import Model
from ..authoring.parameters import Structure
from ..calculus.averages import CHANNEL, Average, Jacobian, MatrixAverage
from .names import GREEK
from .text import (
    CONTEXT_INDEX,
    LATEX,
    MEANS,
    STEMS,
    SUMS,
    THEORY,
    TOKEN_INDEX,
    Entry,
    Indices,
    Names,
    Relation,
    Report,
    Table,
    TextPrinter,
    Words,
    is_sum,
    mean_entry,
    own_entry,
    parameters_first,
    print_average,
    print_jacobian,
    renamed,
    report,
    signed,
    terms_positive_first,
    theory_entry,
)

LINE = 68  # characters of the text form that fit on one line of a display

_PREAMBLE = r"""\documentclass[11pt,a4paper]{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage{amsmath,amssymb,graphicx}
\usepackage[margin=25mm]{geometry}
\newsavebox{\fitbox}
\newcommand{\fitted}[1]{\sbox{\fitbox}{$\displaystyle #1$}\ifdim\wd\fitbox>0.8\textwidth
  \resizebox{0.8\textwidth}{!}{\usebox{\fitbox}}\else\usebox{\fitbox}\fi}
\setlength{\parindent}{0pt}
\setlength{\parskip}{4pt plus 2pt}
\renewcommand{\arraystretch}{1.25}
\allowdisplaybreaks
\emergencystretch=3em
"""
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
        return rf"\mathtt{{{_escaped(name)}}}"
    return symbol


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in text)


def document(
    model: Model, structure: Structure | None = None, steps: bool = False, names: Mapping[str, str] | None = None
) -> str:
    """The derivation of a model as a complete LaTeX document.

    Args:
        structure: default, the model's own.
        steps: with the replica calculation, step by step.
        names: symbols of the reader's own, {"theta": "M", "rho_star": r"\\chi"}, as `renamed` takes them.

    Raises:
        ModelError: the model is not well posed at the structure, or a name is unknown or taken.
    """
    return typeset(report(model, structure, steps), names)


def typeset(content: Report, names: Mapping[str, str] | None = None) -> str:
    """A report as a LaTeX document, as `document` returns it."""
    theory = renamed(names or {}, content.names)
    printer, ruler = LatexPrinter(content.names, theory), TextPrinter(content.names, theory)
    title = _escaped(content.title)
    lines = [_PREAMBLE, r"\begin{document}", rf"\begin{{center}}\Large\bfseries {title}\end{{center}}"]
    for section in content.sections:
        lines += ["", rf"\section*{{{_escaped(section.title)}}}"]
        pending: list[Relation] = []
        for item in section.items:
            if isinstance(item, Relation):
                pending.append(item)
                continue
            lines += _display(pending, printer, ruler)
            pending = []
            lines += ["", _words(item, printer)] if isinstance(item, Words) else _table(item, printer)
        lines += _display(pending, printer, ruler)
    return "\n".join([*lines, r"\end{document}"]) + "\n"


def _words(item: Words, printer: LatexPrinter) -> str:
    pieces = item.text.split("{}")
    text = _prose(pieces[0])
    for piece, value in zip(pieces[1:], item.objects, strict=True):
        text += (_prose(value) if isinstance(value, str) else f"${printer.show(value)}$") + _prose(piece)
    return text


def _prose(text: str) -> str:
    """Words with the letters of the theory in mathematics mode: L = 2, (l, k), s x t, X^T and the like."""
    pieces, position = [], 0
    for found in _MATHEMATICS.finditer(text):
        formula = re.sub(r"\bl\b", r"\\ell", found[0]).replace(" x ", r" \times ").replace("inf", r"\infty")
        pieces += [_escaped(text[position : found.start()]), f"${formula}$"]
        position = found.end()
    return "".join([*pieces, _escaped(text[position:])])


_LETTER = r"(?<![\w'.-])[LstKVHXYhdclknu](?![\w'-])"
_MATHEMATICS = re.compile(
    rf"c = \(l, k\)|\((?:-inf|\d[\d.]*), \S+[\])]|\[\d[\d.]*, \S+[\])]|n/d|L = s = K = 1|L = s = t = 1|s = t = 2"
    rf"|{_LETTER}(?:\^T| = \d+| x (?:[Lst]|1)\b)?"
)


def _display(relations: list[Relation], printer: LatexPrinter, ruler: TextPrinter) -> list[str]:
    """One align* for consecutive relations; notes in words at the right or below, long sums over several lines."""
    if not relations:
        return []
    rows: list[str] = []
    for relation in relations:
        sign = {">": r"\succ", "->": r"\to"}.get(relation.sign, relation.sign)
        left = printer.show(relation.left, relation.stacked)
        if isinstance(relation.right, sp.MatrixBase) and _width(relation.right, ruler) > 2 * LINE:
            rows += _entries(left, relation.right, printer)
            continue
        parts = _broken(relation, printer, ruler)
        rows.append(f"{left} &{sign} {parts[0]}")
        rows += [rf"&\quad {part}" for part in parts[1:]]
        if relation.note:
            width = len(ruler.show(relation.left)) + _width(relation.right, ruler) if len(parts) == 1 else LINE
            note = rf"\text{{\small ({_prose(relation.note)})}}"
            if width + len(relation.note) <= LINE:
                rows[-1] += rf" \qquad {note}"
            else:
                rows.append(rf"&\qquad {note}")
    return [r"\begin{align*}", " \\\\\n".join(rows), r"\end{align*}"]


def _entries(left: str, matrix: sp.MatrixBase, printer: LatexPrinter) -> list[str]:
    """A wide matrix entry by entry: the upper triangle if it is symmetric, without zeros."""
    upper = matrix.is_symmetric()
    rows = []
    for i in range(matrix.rows):
        for j in range(i if upper else 0, matrix.cols):
            if matrix[i, j] != 0:
                rows.append(rf"\left({left}\right)_{{{i + 1}{j + 1}}} &= \fitted{{{printer.show(matrix[i, j])}}}")
    return rows


def _width(value: Any, ruler: TextPrinter) -> int:
    if isinstance(value, sp.MatrixBase | sp.BlockMatrix):
        blocks = value.blocks if isinstance(value, sp.BlockMatrix) else value
        return max(sum(len(ruler.show(e)) + 3 for e in blocks.row(i)) for i in range(blocks.rows))
    return len(ruler.show(value))


def _broken(relation: Relation, printer: LatexPrinter, ruler: TextPrinter) -> list[str]:
    """The right side as lines that fit, broken between the terms of its sum or of the sum that is its one factor."""
    value = relation.right
    room = LINE - len(ruler.show(relation.left))
    scalar = isinstance(value, sp.Mul) and not isinstance(value, MatrixExpr)
    sums = [factor for factor in value.args if factor.is_Add] if scalar else []
    if len(sums) == 1 and _width(value, ruler) > 1.2 * room:
        outside = printer.show(value / sums[0]).strip()
        outside = {"1": "", "-1": "-"}.get(outside, outside)
        lines = _lines_of(sums[0], relation, printer, ruler, room - min(room // 3, len(outside) // 4))
        return [rf"{outside} \Bigl({lines[0]}", *lines[1:-1], rf"{lines[-1]} \Bigr)"] if len(lines) > 1 else [
            rf"{outside} \Bigl({lines[0]}\Bigr)"
        ]  # fmt: skip
    if not isinstance(value, sp.Add | sp.MatAdd) or _width(value, ruler) <= room:
        return [_fitted(printer.show(value, relation.stacked), _width(value, ruler), room)]
    return _lines_of(value, relation, printer, ruler, room)


def _lines_of(value: Any, relation: Relation, printer: LatexPrinter, ruler: TextPrinter, room: int) -> list[str]:
    """A sum as lines of whole terms."""
    terms = value.args if isinstance(value, sp.MatAdd) else value.as_ordered_terms()
    printer.stacked = relation.stacked
    printed = printer.join_terms(terms)
    printer.stacked = False
    lengths = [len(ruler.show(term)) + 3 for term in terms_positive_first(terms)]
    printed = [_fitted(text, length, room) for text, length in zip(printed, lengths, strict=True)]
    lines, used = [printed[0]], lengths[0]
    for text, length in zip(printed[1:], lengths[1:], strict=True):
        if used + length > room:
            lines.append(text)
            used = length
        else:
            lines[-1] += f" {text}"
            used += length
    return lines


def _fitted(text: str, width: int, room: int) -> str:
    """What cannot be broken and does not fit is made smaller."""
    return rf"\fitted{{{text}}}" if width > 1.35 * room else text


def _table(table: Table, printer: LatexPrinter) -> list[str]:
    def cell(value: Any) -> str:
        if isinstance(value, str):
            return _prose(value)
        return _words(value, printer) if isinstance(value, Words) else f"${printer.show(value)}$"

    printer._settings |= {"fold_short_frac": True, "mat_str": "smallmatrix"}
    columns = "l" * (len(table.head) - 1) + ("p{50mm}" if len(table.head) > 2 else "l")
    rows = [" & ".join(cell(value) for value in row) + r" \\" for row in table.rows]
    head = " & ".join(rf"\textit{{{_escaped(name)}}}" for name in table.head) + r" \\ \hline"
    printer._settings |= {"fold_short_frac": None, "mat_str": None}
    return ["", r"\medskip", rf"\begin{{tabular}}{{{columns}}}", head, *rows, r"\end{tabular}", r"\medskip", ""]
