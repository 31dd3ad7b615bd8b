"""How a run writes what it found: tables, figures, and its page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from ...files import write_whole
from ...report.contract import dumps
from ..run import Run
from .blocks import Block, html_of, markdown_of


def write_rows(run: Run, name: str, rows: pandas.DataFrame | Sequence[Mapping[str, Any]]) -> None:
    """A table as CSV, by its name."""
    text = pandas.DataFrame(rows).to_csv(index=False, lineterminator="\n")
    write_whole(run.out / "tables" / f"{name}.csv", text)


def drawn(run: Run, name: str, draw: Callable[[Path], Any]) -> bytes:
    """A figure by its name, drawn into a file; returns its bytes."""
    path = run.out / "figures" / f"{name}.png"
    draw(path)
    return path.read_bytes()


def write_page(run: Run, blocks: Sequence[Block], images: Mapping[str, bytes]) -> None:
    """The page of a run as Markdown and as HTML that holds its figures, and all its results as JSON."""
    write_whole(run.out / f"{run.page}.md", markdown_of(blocks))
    write_whole(run.out / f"{run.page}.html", html_of(blocks, images))
    write_whole(run.out / f"{run.data}.json", dumps(run.results) + "\n")


def number_or_nan(value: float | None) -> float:
    """NaN for what was not found: a gap in a figure, an empty cell of a table."""
    return np.nan if value is None else float(value)
