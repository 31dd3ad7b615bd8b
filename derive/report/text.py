"""A derivation as plain text: how a terminal shows what `compose.report` says.

Every formula is printed from the SymPy object that the generator uses.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from itertools import zip_longest

from ..authoring.model import Model
from ..authoring.parameters import Structure
from .blocks import Relation, Report, Table, Words
from .compose import report
from .symbols import TEXT, renamed
from .text_printer import TIE, WIDTH, TextPrinter


def describe(
    model: Model,
    structure: Structure | None = None,
    steps: bool = False,
    names: Mapping[str, str] | None = None,
    rsb: int = 0,
    dynamics: bool = False,
    width: int = WIDTH,
) -> str:
    """The derivation of a model as text of at most `width` columns, 80 or more.

    Args:
        structure: default, the model's own.
        steps: with the replica calculation, step by step.
        names: symbols of the reader's own in LaTeX, {"theta": "T", "omega": "a"}, as `renamed` takes them.
        rsb: how often the steps break replica symmetry, 0, 1 or 2.
        dynamics: the equations of one-pass stochastic gradient descent in place of the static theory.

    Raises:
        ModelError: the model is not well posed at the structure, a name is unknown or taken, or rsb is no such number.
    """
    return shown(report(model, structure, steps, rsb, dynamics), names, width)


def shown(content: Report, names: Mapping[str, str] | None = None, width: int = WIDTH) -> str:
    """A report as text, as `describe` returns it."""
    printer = TextPrinter(content.names, renamed(names or {}, content.names, TEXT), width)
    blocks = [f"{content.title}\n{'=' * len(content.title)}"]
    for section in content.sections:
        blocks.append(f"{section.title}\n{'-' * len(section.title)}")
        blocks.append("\n".join(line for item in section.items for line in _lines(item, printer)))
    return "\n\n".join(blocks) + "\n"


def _lines(item: Relation | Words | Table, printer: TextPrinter) -> list[str]:
    if isinstance(item, Words):
        return _wrapped(printer.show(item), "", "", printer.width)
    if isinstance(item, Table):
        return _table(item, printer)
    left = f"{printer.show(item.left)} {printer.sign(item)} "
    right = printer.show(item.right)
    lines = _wrapped(right, f"    {left}", " " * (4 + min(len(left), 16)), printer.width, formula=True)
    if not item.note:
        return lines
    if len(lines[-1]) + len(item.note) + 5 <= printer.width:
        return [*lines[:-1], f"{lines[-1]}   ({item.note})"]
    return lines + _wrapped(f"({item.note})", " " * 8, " " * 8, printer.width)


def _wrapped(text: str, first: str, following: str, width: int, formula: bool = False) -> list[str]:
    """Lines of at most `width` columns; a formula is broken in the outermost brackets that make it fit."""
    forms = [_tied(text, level) for level in range(4)] if formula else []
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


def _tied(formula: str, level: int) -> str:
    """Tie what stands more than `level` brackets deep together."""
    depth, characters = 0, []
    for character in formula:
        depth += (character in "([{") - (character in ")]}")
        characters.append(TIE if character == " " and depth > level else character)
    return "".join(characters)


def _table(table: Table, printer: TextPrinter) -> list[str]:
    rows = [table.head, *[tuple(printer.show(cell).replace(TIE, " ") for cell in row) for row in table.rows]]
    most = 34 - (WIDTH - printer.width) * 7 // 10  # of a column, so that the last one keeps its share
    widths = [min(max(len(row[i]) for row in rows), most) for i in range(len(table.head))]
    widths[-1] = max(12, printer.width - 4 - sum(widths[:-1]) - 2 * (len(widths) - 1))
    lines: list[str] = []
    for row in rows:
        cells = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            padded = [part.ljust(width) for part, width in zip(parts, widths, strict=True)]
            lines.append(f"    {'  '.join(padded)}".rstrip())
    return lines
