"""A derivation as plain text for a terminal, with the content of `compose.compose_report`.

Every formula is printed from the SymPy object that the generator uses.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from itertools import zip_longest

from ..authoring.model import Model
from ..authoring.parameters import Structure
from .blocks import Relation, Report, Table, TextWithSymbols
from .compose import compose_report
from .symbols import TEXT
from .text_printer import TIE, WIDTH, TextPrinter
from .wording import symbols_of_report


def report_text(
    model: Model,
    structure: Structure | None = None,
    steps: bool = False,
    names: Mapping[str, str] | None = None,
    rsb: int = 0,
    dynamics: bool = False,
    width: int = WIDTH,
) -> str:
    """Return the derivation of a model as text of at most `width` columns, 80 or more.

    Args:
        model: the model.
        structure: default, the model's own.
        steps: with the replica calculation, step by step.
        names: symbols that the reader prefers: name -> LaTeX, as {"theta": "T", "omega": "a"}.
        rsb: number of steps of replica symmetry breaking, 0, 1 or 2.
        dynamics: the equations of one-pass stochastic gradient descent in place of the static theory.
        width: most characters of a line, 80 or more.

    Raises:
        ModelError: the model is not well posed at these sizes, a symbol is unknown or used twice, or rsb is wrong.
    """
    return render_report_as_text(compose_report(model, structure, steps, rsb, dynamics), names, width)


def render_report_as_text(content: Report, names: Mapping[str, str] | None = None, width: int = WIDTH) -> str:
    """Return a report as text.

    Args:
        content: the report.
        names: symbols that the reader prefers: name -> LaTeX, as {"theta": "T"}.
        width: most characters of a line.
    """
    printer = TextPrinter(content.names, symbols_of_report(content, names, TEXT), width)
    blocks = [f"{content.title}\n{'=' * len(content.title)}"]
    for section in content.sections:
        blocks.append(f"{section.title}\n{'-' * len(section.title)}")
        blocks.append("\n".join(line for item in section.items for line in _content_as_text_lines(item, printer)))
    return "\n\n".join(blocks) + "\n"


def _content_as_text_lines(item: Relation | TextWithSymbols | Table, printer: TextPrinter) -> list[str]:
    """Return an equation, sentence or table of a report as lines of text."""
    if isinstance(item, TextWithSymbols):
        return _wrap_text_or_formula(printer.print_object(item), "", "", printer.width)
    if isinstance(item, Table):
        return _table_lines(item, printer)
    left = f"{printer.print_object(item.left)} {printer.print_relation_sign(item)} "
    right = printer.print_object(item.right)
    lines = _wrap_text_or_formula(right, f"    {left}", " " * (4 + min(len(left), 16)), printer.width, formula=True)
    if not item.note:
        return lines
    if len(lines[-1]) + len(item.note) + 5 <= printer.width:
        return [*lines[:-1], f"{lines[-1]}   ({item.note})"]
    return lines + _wrap_text_or_formula(f"({item.note})", " " * 8, " " * 8, printer.width)


def _wrap_text_or_formula(text: str, first: str, following: str, width: int, formula: bool = False) -> list[str]:
    """Return text as lines of at most `width` columns; a formula is broken inside as few brackets as possible."""
    forms = [_make_inner_spaces_nonbreaking(text, level) for level in range(4)] if formula else []
    lines: list[str] = []
    for form in (*forms, text.replace(TIE, " ")):
        lines = textwrap.wrap(
            form,
            width,
            initial_indent=first.replace(" ", TIE),
            subsequent_indent=following,
            break_long_words=False,
            break_on_hyphens=False,
        )
        if all(len(line) <= width for line in lines):
            break
    return [line.replace(TIE, " ").rstrip() for line in lines]


def _make_inner_spaces_nonbreaking(formula: str, level: int) -> str:
    """Return a formula in which spaces inside more than `level` nested brackets are nonbreaking."""
    depth, characters = 0, []
    for character in formula:
        depth += (character in "([{") - (character in ")]}")
        characters.append(TIE if character == " " and depth > level else character)
    return "".join(characters)


def _table_lines(table: Table, printer: TextPrinter) -> list[str]:
    rows = [table.head, *[tuple(printer.print_object(cell).replace(TIE, " ") for cell in row) for row in table.rows]]
    most = 34 - (WIDTH - printer.width) * 7 // 10  # of a column, so that space is left for the last one
    widths = [min(max(len(row[i]) for row in rows), most) for i in range(len(table.head))]
    widths[-1] = max(12, printer.width - 4 - sum(widths[:-1]) - 2 * (len(widths) - 1))
    lines: list[str] = []
    for row in rows:
        cells = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            padded = [part.ljust(width) for part, width in zip(parts, widths, strict=True)]
            lines.append(f"    {'  '.join(padded)}".rstrip())
    return lines
