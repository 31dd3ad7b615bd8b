"""What the figures of `reproduce` share: a sheet, entries of legends, a quantity along a branch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...report.plots import drawing as plots

ALPHA, OMEGA = plots.parameter_label("alpha"), plots.parameter_label("omega")
FAINT = 0.4


@contextmanager
def sheet(path: str | Path | None, width: float, height: float) -> Iterator[Figure]:
    """A figure to be drawn on, in the style of the package with titles at the left; saved at the end of the block."""
    with rc_context({**plots.STYLE, "axes.titlelocation": "left"}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
    if path is not None:
        plots.save_figure(figure, path)


def colour_of(branch: str) -> str:
    """The colour of a branch; grey where it has none."""
    return plots.BRANCH_COLOURS.get(branch, plots.GREY)


def handle(label: str, colour: str = plots.GREY, **style: Any) -> Line2D:
    """An entry of a legend."""
    return Line2D([], [], color=colour, label=label, **style)


def branch_keys(names: Iterable[str]) -> list[Line2D]:
    """Entries of a legend, one a branch."""
    return [handle(f"{name} branch", colour_of(name), marker="o") for name in names]


def draw_zero(axes: Axes) -> None:
    """A thin line at zero, and powers of ten at the axis."""
    axes.axhline(0, color=plots.GREY, linewidth=0.8)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))


def draw_branch(
    axes: Axes,
    name: str,
    dataset: xarray.Dataset,
    y: np.ndarray,
    error: np.ndarray,
    *,
    at: np.ndarray | None = None,
    label: str | None = None,
    faint: bool = False,
) -> None:
    """A quantity along a branch with its half widths, or a faint line without, as of another setting behind it.

    Args:
        at: values of the parameter at which it is known, of those of the table; default all.
    """
    every, colour = plots.parameter_values(dataset), colour_of(name)
    x = every if at is None else at
    if faint:
        axes.plot(x, y, color=colour, linewidth=1.2, alpha=FAINT, zorder=1)
    else:
        plots.draw_line(axes, x, y, error, plots.verdicts_of(dataset)[np.isin(every, x)], colour, "o", label)


def draw_test_error(axes: Axes, name: str, dataset: xarray.Dataset, **how: Any) -> None:
    """The test error along a branch."""
    draw_branch(axes, name, dataset, dataset["test_error"].values, dataset["test_error_error"].values, **how)


def on_grid(
    rows: Sequence[Mapping[str, Any]], values: Iterable[float], alphas: Sequence[float], omegas: Sequence[float]
) -> np.ndarray:
    """The values of rows by their alpha and omega, (alphas, omegas); nan where there is none."""
    grid = np.full((len(alphas), len(omegas)), np.nan)
    for row, value in zip(rows, values, strict=True):
        grid[alphas.index(row["alpha"]), omegas.index(row["omega"])] = value
    return grid
