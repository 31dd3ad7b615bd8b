"""The content of a page, rendered as Markdown and HTML, and functions that write the output of a run.

In a page, strings that begin with # are headings (one # for the title), other strings are paragraphs.
"""

from __future__ import annotations

import base64
import html as markup
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from ...base.files import write_atomically
from ...base.numbers import format_value_with_error
from ...report.contract import json_text
from ..run import ReproductionRun


@dataclass(frozen=True)
class Table:
    """A table of a report: rows under a header.

    Attributes:
        head: titles of the columns, separated by " | ".
        rows: rows of cells: words, numbers, or pairs of a value and its error; None for an empty cell.
    """

    head: str
    rows: Sequence[Sequence[Any]]

    def header_and_rows_as_text(self) -> list[list[str]]:
        """Return the header and the rows of the table as lists of cells, formatted as text."""
        return [self.head.split(" | "), *([_format_cell(cell) for cell in row] for row in self.rows)]


def table_cells(rows: Iterable[Mapping[str, Any]], *columns: str | Callable[[Any], Any]) -> list[tuple[Any, ...]]:
    """Return the rows of a table: for every record, the cells of the given columns.

    Args:
        rows: records: dicts of quantities by name.
        *columns: name of a quantity; two names, as "value error", for a value with its error bar; or a function of a
            record that returns the cell.
    """

    def cell_content(row: Mapping[str, Any], column: str | Callable[[Any], Any]) -> Any:
        """Return the text or number that a table shows for one record in one column.

        Args:
            row: record: a dict of quantities by name.
            column: name of a quantity, names of a value and its error, or a function of a record.
        """
        if callable(column):
            return column(row)
        value, *error = (row[name] for name in column.split())
        return (value, *error) if error else value

    return [tuple(cell_content(row, column) for column in columns) for row in rows]


def words_column(name: str) -> Callable[[Mapping[str, Any]], str]:
    """Return a column for `table_cells` that shows a text with underscores replaced by spaces."""
    return lambda row: row[name].replace("_", " ")


def counts_column(part: str) -> Callable[[Mapping[str, Any]], str]:
    """Return a column for `table_cells` that shows a count and its total, as "15 of 16"."""
    return lambda row: f"{row[part]} of {row['of']}"


def rounded_column(name: str, digits: str, times: int = 1) -> Callable[[Mapping[str, Any]], str | None]:
    """Return a column for `table_cells` that shows numbers with given digits, empty where they are not finite.

    Args:
        name: name of the quantity.
        digits: format specification, as ".3f".
        times: factor by which the numbers are multiplied.
    """
    return lambda row: None if row[name] is None or not np.isfinite(row[name]) else format(times * row[name], digits)


@dataclass(frozen=True)
class Picture:
    """A figure of a report: `name` is its file name without suffix, `caption` the text below it."""

    name: str
    caption: str


Block = str | Table | Picture


def _format_cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return format_value_with_error(*value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def render_markdown(blocks: Iterable[Block]) -> str:
    """Return a report (paragraphs, tables and pictures, in order) as Markdown text."""
    parts = []
    for block in blocks:
        if isinstance(block, str):
            parts.append(block)
        elif isinstance(block, Picture):
            parts.append(f"![{block.caption}](figures/{block.name}.png)\n\n*{block.caption}*")
        else:
            head, *rows = block.header_and_rows_as_text()
            lines = [head, ["---"] * len(head), *rows]
            parts.append("\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines))
    return "\n\n".join(parts) + "\n"


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
h1, h2, h3 {{ line-height: 1.25; }}
h2 {{ border-bottom: 1px solid #ddd; padding-bottom: .2rem; margin-top: 2.2rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; font-size: .93rem; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; vertical-align: top; padding: .3rem .7rem; border-bottom: 1px solid #e2e2e2; }}
th {{ border-bottom: 2px solid #999; }}
figure {{ margin: 1.5rem 0; }}
figure img {{ max-width: 100%; height: auto; }}
figcaption {{ color: #555; font-size: .9rem; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def render_html(blocks: Sequence[Block], images: Mapping[str, bytes]) -> str:
    """Return a report as the text of one HTML file that contains its figures.

    Args:
        blocks: paragraphs, tables and pictures in order, the title first.
        images: PNG bytes of the figures by name.
    """
    parts = []
    for block in blocks:
        if isinstance(block, str):
            marks, _, text = block.partition(" ") if block.startswith("#") else ("", "", block)
            tag = f"h{len(marks)}" if marks else "p"
            parts.append(f"<{tag}>{markup.escape(text)}</{tag}>")
        elif isinstance(block, Picture):
            data, caption = base64.b64encode(images[block.name]).decode(), markup.escape(block.caption)
            image = f'<img alt="{caption}" src="data:image/png;base64,{data}">'
            parts.append(f"<figure>{image}<figcaption>{caption}</figcaption></figure>")
        else:
            head, *rows = ([markup.escape(cell) for cell in row] for row in block.header_and_rows_as_text())
            lines = [f"<th>{'</th><th>'.join(head)}</th>", *(f"<td>{'</td><td>'.join(row)}</td>" for row in rows)]
            parts.append("<table>\n" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "\n</table>")
    title = str(blocks[0]).removeprefix("# ")
    return _PAGE.format(title=markup.escape(title), body="\n".join(parts))


def write_table(run: ReproductionRun, name: str, rows: Any, as_json: bool = False) -> None:
    """Write a table of a run as CSV, and optionally as JSON.

    Args:
        run: run of `reproduce`, whose output folder is used.
        name: name of the files, without suffix.
        rows: records: dicts of quantities by name, or a DataFrame.
        as_json: whether to write JSON as well.
    """
    text = pandas.DataFrame(rows).to_csv(index=False, lineterminator="\n")
    write_atomically(run.out / "tables" / f"{name}.csv", text)
    if as_json:
        write_atomically(run.out / "tables" / f"{name}.json", json_text(rows) + "\n")


def write_page(run: ReproductionRun, blocks: Sequence[Block], draw: Mapping[str, Callable[[Path], Any]]) -> None:
    """Draw the requested figures of a run; write its report as Markdown and HTML, and its results as JSON.

    Args:
        run: run of `reproduce`: names of the requested figures, results and output folder.
        blocks: paragraphs, tables and pictures of the report, in order.
        draw: by name of a figure, the function that draws it into a file.
    """
    images = {}
    for name in run.figures:
        path = run.out / "figures" / f"{name}.png"
        draw[name](path)
        images[name] = path.read_bytes()
    write_atomically(run.out / f"{run.page}.md", render_markdown(blocks))
    write_atomically(run.out / f"{run.page}.html", render_html(blocks, images))
    write_atomically(run.out / f"{run.data}.json", json_text(run.results) + "\n")


def numeric_columns(rows: Sequence[Mapping[str, Any]], *names: str) -> list[np.ndarray]:
    """Return quantities of all records as arrays, one per name, with NaN for missing numbers.

    Args:
        rows: records: dicts of quantities by name.
        *names: names of the quantities.
    """
    return [np.array([row[name] for row in rows], float) for name in names]


def describe_counts(counts: Mapping[str, int]) -> str:
    """Return counts by name as text, as '3 semantic, 1 mixed'."""
    return ", ".join(f"{count} {name}" for name, count in counts.items())
