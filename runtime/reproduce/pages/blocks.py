"""The content of a page, built once and laid out as Markdown and as HTML, and how a run leaves what it found.

Of a page, words that begin with # are a heading (one # for the title), others a paragraph.
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

from ...base.files import write_whole
from ...base.numbers import with_error
from ...report.contract import dumps
from ..run import Run


@dataclass(frozen=True)
class Table:
    """Rows under a head.

    Attributes:
        head: titles of the columns, between bars.
        rows: cells are words, numbers, pairs of a value and its error; None for what there is not.
    """

    head: str
    rows: Sequence[Sequence[Any]]

    def lines(self) -> list[list[str]]:
        """Head and rows as words."""
        return [self.head.split(" | "), *([_cell(cell) for cell in row] for row in self.rows)]


def cells(rows: Iterable[Mapping[str, Any]], *columns: str | Callable[[Any], Any]) -> list[tuple[Any, ...]]:
    """Rows of a table.

    Args:
        columns: names of quantities; two, as "value error", for a value and its error; or a function of a row.
    """

    def cell(row: Mapping[str, Any], column: str | Callable[[Any], Any]) -> Any:
        if callable(column):
            return column(row)
        value, *error = (row[name] for name in column.split())
        return (value, *error) if error else value

    return [tuple(cell(row, column) for column in columns) for row in rows]


def words(name: str) -> Callable[[Mapping[str, Any]], str]:
    """A column of names as words: with spaces."""
    return lambda row: row[name].replace("_", " ")


def counts(part: str) -> Callable[[Mapping[str, Any]], str]:
    """A column that says how many of how many."""
    return lambda row: f"{row[part]} of {row['of']}"


def rounded(name: str, digits: str, times: int = 1) -> Callable[[Mapping[str, Any]], str | None]:
    """A column of numbers in a format; none for what is not finite."""
    return lambda row: None if row[name] is None or not np.isfinite(row[name]) else format(times * row[name], digits)


@dataclass(frozen=True)
class Picture:
    """A figure by its name, with a caption."""

    name: str
    caption: str


Block = str | Table | Picture


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return with_error(*value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def markdown_of(blocks: Iterable[Block]) -> str:
    """Blocks in Markdown."""
    parts = []
    for block in blocks:
        if isinstance(block, str):
            parts.append(block)
        elif isinstance(block, Picture):
            parts.append(f"![{block.caption}](figures/{block.name}.png)\n\n*{block.caption}*")
        else:
            head, *rows = block.lines()
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


def html_of(blocks: Sequence[Block], images: Mapping[str, bytes]) -> str:
    """Blocks, the title first, as one HTML file that holds its figures."""
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
            head, *rows = ([markup.escape(cell) for cell in row] for row in block.lines())
            lines = [f"<th>{'</th><th>'.join(head)}</th>", *(f"<td>{'</td><td>'.join(row)}</td>" for row in rows)]
            parts.append("<table>\n" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "\n</table>")
    title = str(blocks[0]).removeprefix("# ")
    return _PAGE.format(title=markup.escape(title), body="\n".join(parts))


def write_rows(run: Run, name: str, rows: Any, as_json: bool = False) -> None:
    """Write a table, by its name, as CSV and also as JSON where that is asked for."""
    text = pandas.DataFrame(rows).to_csv(index=False, lineterminator="\n")
    write_whole(run.out / "tables" / f"{name}.csv", text)
    if as_json:
        write_whole(run.out / "tables" / f"{name}.json", dumps(rows) + "\n")


def write_page(run: Run, blocks: Sequence[Block], draw: Mapping[str, Callable[[Path], Any]]) -> None:
    """Draw the figures of a run that were asked for; write its page as Markdown and as HTML that holds them, and its
    results as JSON."""
    images = {}
    for name in run.figures:
        path = run.out / "figures" / f"{name}.png"
        draw[name](path)
        images[name] = path.read_bytes()
    write_whole(run.out / f"{run.page}.md", markdown_of(blocks))
    write_whole(run.out / f"{run.page}.html", html_of(blocks, images))
    write_whole(run.out / f"{run.data}.json", dumps(run.results) + "\n")


def columns_of(rows: Sequence[Mapping[str, Any]], *names: str) -> list[np.ndarray]:
    """Numbers of rows, one array a name; NaN for what was not found."""
    return [np.array([row[name] for row in rows], float) for name in names]


def counted(counts: Mapping[str, int]) -> str:
    """How many of what, as in '3 semantic, 1 mixed'."""
    return ", ".join(f"{count} {name}" for name, count in counts.items())
