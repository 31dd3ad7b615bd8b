"""A derivation as a LaTeX document of its own (article, amsmath), with the content of `compose.compose_report`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ..authoring.model import Model
from ..authoring.parameters import Structure
from .blocks import Relation, Report, Table, TextWithSymbols, group_by_type, render_text_or_formula
from .compose import compose_report
from .latex_printer import LatexPrinter, escape_latex
from .long_lines import break_formula, formula_width, pack_formula_lines
from .printing import order_terms
from .text_printer import TextPrinter
from .wording import symbols_of_report

MAX_TEXT_CHARACTERS = 68  # characters of the text form that fit on one line of a display
LINE_WIDTH = 74.0  # letters of `long_lines.formula_width` that fit on a line next to the number of the equation
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


def latex_document(
    model: Model,
    structure: Structure | None = None,
    steps: bool = False,
    names: Mapping[str, str] | None = None,
    rsb: int = 0,
    dynamics: bool = False,
) -> str:
    r"""Return the derivation of a model as a complete LaTeX document.

    Args:
        model: the model.
        structure: default, the model's own.
        steps: with the replica calculation, step by step.
        names: symbols that the reader prefers: name -> LaTeX, as {"theta": "M", "rho_star": r"\chi"}.
        rsb: number of steps of replica symmetry breaking, 0, 1 or 2.
        dynamics: the equations of one-pass stochastic gradient descent in place of the static theory.

    Raises:
        ModelError: the model is not well posed at these sizes, a symbol is unknown or used twice, or rsb is wrong.
    """
    return render_report_as_latex(compose_report(model, structure, steps, rsb, dynamics), names)


def render_report_as_latex(content: Report, names: Mapping[str, str] | None = None) -> str:
    """Return a report as a LaTeX document.

    Args:
        content: the report.
        names: symbols that the reader prefers: name -> LaTeX, as {"theta": "M"}.
    """
    theory = symbols_of_report(content, names)
    printers = LatexPrinter(content.names, theory), TextPrinter(content.names, theory)
    relations = [item for section in content.sections for item in section.items if isinstance(item, Relation)]
    labels = {id(relation): f"eq:{number}" for number, relation in enumerate(relations, 1)}
    title = rf"\begin{{center}}\Large\bfseries {escape_latex(content.title)}\end{{center}}"
    lines = [
        _PREAMBLE,
        r"\begin{document}",
        title,
        r"\tableofcontents",
        *_equation_summary_page(content, labels, *printers),
    ]
    lines.append(r"\clearpage")
    for section in content.sections:
        lines += [
            "",
            rf"\section{{{escape_latex(section.title)}}}",
            rf"\label{{{_latex_section_label(section.title)}}}",
        ]
        for kind, items in group_by_type(section.items):
            if kind is Relation:
                lines += _align_environment([(item, rf"\label{{{labels[id(item)]}}}") for item in items], *printers)
            elif kind is TextWithSymbols:
                lines += [
                    line
                    for item in items
                    for line in ("", _link_step_references(_content_as_latex(item, printers[0]), content))
                ]
            else:
                lines += [line for item in items for line in _latex_table(item, printers[0])]
    return "\n".join([*lines, r"\end{document}"]) + "\n"


def _equation_summary_page(
    content: Report, labels: Mapping[int, str], printer: LatexPrinter, ruler: TextPrinter
) -> list[str]:
    """Return a LaTeX page that repeats the equations needed to write a program, with their numbers."""
    lines: list[str] = []
    for section in content.sections:
        relations = [item for item in section.items if isinstance(item, Relation)]
        if relations and section.title in _CODED:
            reference = rf"section~\ref{{{_latex_section_label(section.title)}}}"
            lines += ["", rf"\textbf{{{escape_latex(section.title)}}} ({reference})"]
            cited = [(relation, rf"\tag{{\ref{{{labels[id(relation)]}}}}}") for relation in relations]
            lines += _align_environment(cited, printer, ruler)
    if not lines:
        return []
    return [
        r"\clearpage",
        rf"\section*{{{_SUMMARY}}}",
        rf"\addcontentsline{{toc}}{{section}}{{{_SUMMARY}}}",
        "Symbols are explained where the equations stand, under the same numbers.",
        r"{\small",
        *lines,
        "}",
    ]


def _latex_section_label(title: str) -> str:
    return "sec:" + re.sub(r"\W+", "-", title.lower()).strip("-")


def _link_step_references(text: str, content: Report) -> str:
    """Return LaTeX text in which each "step 3" or the like is a hyperlink to the section of that step."""

    def hyperlink_to_step(found: re.Match[str]) -> str:
        titles = (section.title for section in content.sections if section.title.startswith(f"Step {found[2]}:"))
        title = next(titles, None)
        return found[0] if title is None else rf"\hyperref[{_latex_section_label(title)}]{{{found[0]}}}"

    return re.sub(r"\b([Ss]teps?) (\d+)\b", hyperlink_to_step, text)


def _content_as_latex(value: Any, printer: LatexPrinter) -> str:
    """Return a string, a sentence with symbols or a SymPy object as LaTeX source."""
    return render_text_or_formula(value, _escape_latex_prose, lambda formula: f"${printer.print_object(formula)}$")


def _escape_latex_prose(text: str) -> str:
    """Return plain text as LaTeX source, with formulas in it such as L = 2, s x t and X^T in mathematics mode."""
    pieces, position = [], 0
    for found in _MATHEMATICS.finditer(text):
        formula = re.sub(r"\bl\b", r"\\ell", found[0]).replace(" x ", r" \times ").replace("inf", r"\infty")
        pieces += [escape_latex(text[position : found.start()]), f"${formula}$"]
        position = found.end()
    return "".join([*pieces, escape_latex(text[position:])])


_LETTER = r"(?<![\w'.-])[LstKVHXYhdclknu](?![\w'-])"
_MATHEMATICS = re.compile(
    rf"c = \(l, k\)|\((?:-inf|\d[\d.]*), \S+[\])]|\[\d[\d.]*, \S+[\])]|n/d|L = s = K = 1|L = s = t = 1|s = t = 2"
    rf"|{_LETTER}(?:\^T| = \d+| x (?:[Lst]|1)\b)?"
)


def _align_environment(relations: list[tuple[Relation, str]], printer: LatexPrinter, ruler: TextPrinter) -> list[str]:
    """Return the lines of a LaTeX align environment with the given equations, each with its label or tag.

    A note is printed to the right of its equation or below; long sums take several lines.
    """
    rows: list[str] = []
    for relation, label in relations:
        left = printer.print_object(relation.left)
        if (
            isinstance(relation.right, sp.MatrixBase)
            and _printed_text_width(relation.right, ruler) > 2 * MAX_TEXT_CHARACTERS
        ):
            first, *others = _equations_of_matrix_entries(left, relation.right, printer)
            rows += [f"{first} {label}", *(rf"{row} \notag" for row in others)]
            continue
        room = LINE_WIDTH - min(formula_width(left), LINE_WIDTH / 3)
        first, *others = [
            line for part in _break_right_hand_side(relation, printer, ruler) for line in break_formula(part, room)
        ]
        note = rf"\text{{\small ({_escape_latex_prose(relation.note)})}}" if relation.note else ""
        fits = not others and formula_width(left) + formula_width(first) + len(relation.note) <= MAX_TEXT_CHARACTERS
        same_line = rf"\qquad {note} " if note and fits else ""
        rows.append(f"{left} &{printer.print_relation_sign(relation)} {first} {same_line}{label}")
        rows += [rf"&\quad {part} \notag" for part in others]
        if note and not fits:
            rows.append(rf"&\qquad {note} \notag")
    return [r"\begin{align}", " \\\\\n".join(rows), r"\end{align}"]


def _equations_of_matrix_entries(left: str, matrix: sp.MatrixBase, printer: LatexPrinter) -> list[str]:
    """Return LaTeX equations for the nonzero entries of a matrix; for a symmetric one those of the upper triangle."""
    upper = matrix.is_symmetric()
    rows = []
    for i in range(matrix.rows):
        for j in range(i if upper else 0, matrix.cols):
            if matrix[i, j] != 0:
                name = rf"\left({left}\right)_{{{i + 1}{j + 1}}}"
                first, *others = break_formula(printer.print_object(matrix[i, j]), LINE_WIDTH - formula_width(name))
                rows += [f"{name} &= {first}", *(rf"&\quad {line}" for line in others)]
    return rows


def _printed_text_width(value: Any, ruler: TextPrinter) -> int:
    if isinstance(value, sp.MatrixBase | sp.BlockMatrix):
        blocks = value.blocks if isinstance(value, sp.BlockMatrix) else value
        return max(sum(len(ruler.print_object(e)) + 3 for e in blocks.row(i)) for i in range(blocks.rows))
    return len(ruler.print_object(value))


def _break_right_hand_side(relation: Relation, printer: LatexPrinter, ruler: TextPrinter) -> list[str]:
    """Return the right-hand side of an equation as lines of LaTeX, broken between the terms of a sum."""
    value = relation.right
    room = MAX_TEXT_CHARACTERS - len(ruler.print_object(relation.left))
    scalar = isinstance(value, sp.Mul) and not isinstance(value, MatrixExpr)
    sums = [factor for factor in value.args if factor.is_Add] if scalar else []
    if len(sums) == 1 and _printed_text_width(value, ruler) > 1.2 * room:
        outside = printer.print_object(value / sums[0]).strip()
        outside = {"1": "", "-1": "-"}.get(outside, outside)
        room -= min(room // 3, len(outside) // 4)
        lines = _break_sum_into_lines(sums[0], printer, ruler, room)
        lines[0] = rf"{outside} \Bigl({lines[0]}"
        lines[-1] += r" \Bigr)" if len(lines) > 1 else r"\Bigr)"
        return lines
    if not isinstance(value, sp.Add | sp.MatAdd) or _printed_text_width(value, ruler) <= room:
        return [printer.print_object(value)]
    return _break_sum_into_lines(value, printer, ruler, room)


def _break_sum_into_lines(total: sp.Add | sp.MatAdd, printer: LatexPrinter, ruler: TextPrinter, room: int) -> list[str]:
    """Return a sum as lines of LaTeX, each with as many terms as fit on it."""
    widths = [len(ruler.print_object(term)) + 3 for term in order_terms(total)]
    return pack_formula_lines(printer.print_signed_terms(total), widths, room, " ")


def _latex_table(table: Table, printer: LatexPrinter) -> list[str]:
    printer._settings |= {"fold_short_frac": True, "mat_str": "smallmatrix"}
    columns = "l" * (len(table.head) - 1) + ("p{50mm}" if len(table.head) > 2 else "l")
    rows = [" & ".join(_content_as_latex(value, printer) for value in row) + r" \\" for row in table.rows]
    head = " & ".join(rf"\textit{{{escape_latex(name)}}}" for name in table.head) + r" \\ \hline"
    printer._settings |= {"fold_short_frac": None, "mat_str": None}
    return ["", r"\medskip", rf"\begin{{tabular}}{{{columns}}}", head, *rows, r"\end{tabular}", r"\medskip", ""]
