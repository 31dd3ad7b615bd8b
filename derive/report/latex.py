"""A derivation as a LaTeX document of its own (article, amsmath), with the content of `compose.report`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ..authoring.model import Model
from ..authoring.parameters import Structure
from .blocks import Relation, Report, Table, Words
from .compose import report
from .latex_printer import LatexPrinter, escaped
from .long_lines import broken, visible
from .printing import terms_positive_first
from .symbols import renamed
from .text_printer import TextPrinter

LINE = 68  # characters of the text form that fit on one line of a display
WIDTH = 74.0  # letters that do, beside the number of an equation (`long_lines.visible`)
_SUMMARY = "Summary: the equations to code by"
_CODED = ("Free entropy", "Saddle-point equations", "Training loss and domain")  # sections that hold them

_PREAMBLE = r"""\documentclass[11pt,a4paper]{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage{amsmath,amssymb}
\usepackage[margin=25mm]{geometry}
\usepackage[colorlinks,allcolors=blue]{hyperref}
\setlength{\parindent}{0pt}
\setlength{\parskip}{4pt plus 2pt}
\renewcommand{\arraystretch}{1.25}
\allowdisplaybreaks
\emergencystretch=3em
"""


def document(
    model: Model,
    structure: Structure | None = None,
    steps: bool = False,
    names: Mapping[str, str] | None = None,
    rsb: int = 0,
    dynamics: bool = False,
) -> str:
    """The derivation of a model as a complete LaTeX document.

    Args:
        structure: default, the model's own.
        steps: with the replica calculation, step by step.
        names: symbols of the reader's own, {"theta": "M", "rho_star": r"\\chi"}, as `renamed` takes them.
        rsb: how often the steps break replica symmetry, 0, 1 or 2.
        dynamics: the equations of one-pass stochastic gradient descent in place of the static theory.

    Raises:
        ModelError: the model is not well posed at the structure, a name is unknown or taken, or rsb is no such number.
    """
    return typeset(report(model, structure, steps, rsb, dynamics), names)


def typeset(content: Report, names: Mapping[str, str] | None = None) -> str:
    """A report as a LaTeX document, as `document` returns it."""
    theory = renamed(names or {}, content.names)
    printer, ruler = LatexPrinter(content.names, theory), TextPrinter(content.names, theory)
    title = escaped(content.title)
    lines = [_PREAMBLE, r"\begin{document}", rf"\begin{{center}}\Large\bfseries {title}\end{{center}}"]
    lines += [r"\tableofcontents", *_summary(content, printer, ruler), r"\clearpage"]
    numbers = _Numbers()
    for section in content.sections:
        lines += ["", rf"\section{{{_heading(section.title)}}}", rf"\label{{{_section_label(section.title)}}}"]
        pending: list[Relation] = []
        for item in section.items:
            if isinstance(item, Relation):
                pending.append(item)
                continue
            lines += _display(pending, printer, ruler, numbers)
            pending = []
            lines += (
                ["", _referred(_words(item, printer), content)] if isinstance(item, Words) else _table(item, printer)
            )
        lines += _display(pending, printer, ruler, numbers)
    return "\n".join([*lines, r"\end{document}"]) + "\n"


class _Numbers:
    """Labels of equations, in the order in which they stand: eq:1, eq:2, ..."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> str:
        self.count += 1
        return f"eq:{self.count}"


def _labels(content: Report) -> dict[int, str]:
    """Of every relation, by its identity, the label that it will have."""
    numbers = _Numbers()
    relations = [item for section in content.sections for item in section.items if isinstance(item, Relation)]
    return {id(relation): numbers.next() for relation in relations}


def _summary(content: Report, printer: LatexPrinter, ruler: TextPrinter) -> list[str]:
    """The equations that a program needs, on a page of their own, each with the number that it has below."""
    labels = _labels(content)
    wanted = [
        (section.title, [item for item in section.items if isinstance(item, Relation)])
        for section in content.sections
        if section.title in _CODED
    ]
    if not any(relations for _, relations in wanted):
        return []
    lines = [r"\clearpage", rf"\section*{{{_SUMMARY}}}", rf"\addcontentsline{{toc}}{{section}}{{{_SUMMARY}}}"]
    lines += ["Symbols are explained where the equations stand, under the same numbers.", r"{\small"]
    for title, relations in wanted:
        if relations:
            lines += ["", rf"\textbf{{{_heading(title)}}} (section~\ref{{{_section_label(title)}}})"]
            lines += _display(relations, printer, ruler, labels)
    return [*lines, "}"]


def _heading(title: str) -> str:
    return escaped(title)


def _section_label(title: str) -> str:
    return "sec:" + re.sub(r"\W+", "-", title.lower()).strip("-")


def _referred(text: str, content: Report) -> str:
    """Words in which a step that is named is a reference to its section."""
    steps = {
        found[1]: section.title for section in content.sections if (found := re.match(r"Step (\d+):", section.title))
    }

    def link(found: re.Match[str]) -> str:
        title = steps.get(found[2])
        return found[0] if title is None else rf"\hyperref[{_section_label(title)}]{{{found[0]}}}"

    return re.sub(r"\b([Ss]teps?) (\d+)\b", link, text)


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
        pieces += [escaped(text[position : found.start()]), f"${formula}$"]
        position = found.end()
    return "".join([*pieces, escaped(text[position:])])


_LETTER = r"(?<![\w'.-])[LstKVHXYhdclknu](?![\w'-])"
_MATHEMATICS = re.compile(
    rf"c = \(l, k\)|\((?:-inf|\d[\d.]*), \S+[\])]|\[\d[\d.]*, \S+[\])]|n/d|L = s = K = 1|L = s = t = 1|s = t = 2"
    rf"|{_LETTER}(?:\^T| = \d+| x (?:[Lst]|1)\b)?"
)


def _display(
    relations: list[Relation], printer: LatexPrinter, ruler: TextPrinter, numbers: _Numbers | Mapping[int, str]
) -> list[str]:
    """One align for consecutive relations, a number each; notes in words at the right or below, long sums over several
    lines.

    Args:
        numbers: labels to come, or those that relations have elsewhere, which are cited.
    """
    if not relations:
        return []
    rows: list[str] = []
    for relation in relations:
        label = (
            rf"\label{{{numbers.next()}}}"
            if isinstance(numbers, _Numbers)
            else rf"\tag{{\ref{{{numbers[id(relation)]}}}}}"
        )
        sign = {">": r"\succ", "->": r"\to"}.get(relation.sign, relation.sign)
        left = printer.show(relation.left, relation.stacked)
        if isinstance(relation.right, sp.MatrixBase) and _width(relation.right, ruler) > 2 * LINE:
            first, *others = _entries(left, relation.right, printer)
            rows += [f"{first} {label}", *(rf"{row} \notag" for row in others)]
            continue
        room = WIDTH - min(visible(left), WIDTH / 3)
        parts = [line for part in _broken(relation, printer, ruler) for line in broken(part, room)]
        rows.append(f"{left} &{sign} {parts[0]} {label}")
        rows += [rf"&\quad {part} \notag" for part in parts[1:]]
        if relation.note:
            note = rf"\text{{\small ({_prose(relation.note)})}}"
            if len(parts) == 1 and visible(left) + visible(parts[0]) + len(relation.note) <= LINE:
                rows[-1] = rows[-1].replace(f" {label}", rf" \qquad {note} {label}")
            else:
                rows.append(rf"&\qquad {note} \notag")
    return [r"\begin{align}", " \\\\\n".join(rows), r"\end{align}"]


def _entries(left: str, matrix: sp.MatrixBase, printer: LatexPrinter) -> list[str]:
    """A wide matrix entry by entry: the upper triangle if it is symmetric, without zeros."""
    upper = matrix.is_symmetric()
    rows = []
    for i in range(matrix.rows):
        for j in range(i if upper else 0, matrix.cols):
            if matrix[i, j] != 0:
                name = rf"\left({left}\right)_{{{i + 1}{j + 1}}}"
                first, *others = broken(printer.show(matrix[i, j]), WIDTH - visible(name))
                rows += [f"{name} &= {first}", *(rf"&\quad {line}" for line in others)]
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
        return [printer.show(value, relation.stacked)]
    return _lines_of(value, relation, printer, ruler, room)


def _lines_of(value: Any, relation: Relation, printer: LatexPrinter, ruler: TextPrinter, room: int) -> list[str]:
    """A sum as lines of whole terms."""
    terms = value.args if isinstance(value, sp.MatAdd) else value.as_ordered_terms()
    printer.stacked = relation.stacked
    printed = printer.join_terms(terms)
    printer.stacked = False
    lengths = [len(ruler.show(term)) + 3 for term in terms_positive_first(terms)]
    lines, used = [printed[0]], lengths[0]
    for text, length in zip(printed[1:], lengths[1:], strict=True):
        if used + length > room:
            lines.append(text)
            used = length
        else:
            lines[-1] += f" {text}"
            used += length
    return lines


def _table(table: Table, printer: LatexPrinter) -> list[str]:
    def cell(value: Any) -> str:
        if isinstance(value, str):
            return _prose(value)
        return _words(value, printer) if isinstance(value, Words) else f"${printer.show(value)}$"

    printer._settings |= {"fold_short_frac": True, "mat_str": "smallmatrix"}
    columns = "l" * (len(table.head) - 1) + ("p{50mm}" if len(table.head) > 2 else "l")
    rows = [" & ".join(cell(value) for value in row) + r" \\" for row in table.rows]
    head = " & ".join(rf"\textit{{{escaped(name)}}}" for name in table.head) + r" \\ \hline"
    printer._settings |= {"fold_short_frac": None, "mat_str": None}
    return ["", r"\medskip", rf"\begin{{tabular}}{{{columns}}}", head, *rows, r"\end{tabular}", r"\medskip", ""]
