"""Common parts of the figures of `reproduce`: a figure, legend entries, a quantity along a branch."""

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

ALPHA, OMEGA = plots.parameter_axis_label("alpha"), plots.parameter_axis_label("omega")
FAINT_OPACITY = 0.4


@contextmanager
def styled_figure(path: str | Path | None, width: float, height: float) -> Iterator[Figure]:
    """Yield a figure in the style of the package; save it at the end of the block.

    Args:
        path: output file.
        width: width in inches.
        height: height in inches.
    """
    with rc_context({**plots.STYLE, "axes.titlelocation": "left"}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
    if path is not None:
        plots.save_figure(figure, path)


def branch_colour(branch: str) -> str:
    """Return the colour of a branch; grey if it has none."""
    return plots.BRANCH_COLOURS.get(branch, plots.GREY)


def legend_entry(label: str, colour: str = plots.GREY, **style: Any) -> Line2D:
    """Return a legend entry.

    Args:
        label: text of the entry.
        colour: colour of the entry.
        **style: options of Matplotlib's line.
    """
    return Line2D([], [], color=colour, label=label, **style)


def branch_legend_entries(names: Iterable[str]) -> list[Line2D]:
    """Return one legend entry for each branch."""
    return [legend_entry(f"{name} branch", branch_colour(name), marker="o") for name in names]


def draw_zero_line(axes: Axes) -> None:
    """Draw a thin horizontal line at zero, and use scientific notation on the vertical axis."""
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
    """Draw a quantity along a branch with its error bars, or as a faint line without error bars.

    Args:
        axes: panel of the figure.
        name: name of the branch.
        dataset: table of the branch.
        y: values of the quantity, (N,).
        error: error bars, (N,).
        at: values of the parameter at which the quantity is known; None for all of the table.
        label: label in the legend.
        faint: whether to draw a faint line.
    """
    every, colour = plots.parameter_values_along_table(dataset), branch_colour(name)
    x = every if at is None else at
    if faint:
        axes.plot(x, y, color=colour, linewidth=1.2, alpha=FAINT_OPACITY, zorder=1)
    else:
        plots.draw_line_with_verdicts(
            axes, x, y, error, plots.point_stability_verdicts(dataset)[np.isin(every, x)], colour, "o", label
        )


def draw_test_error(axes: Axes, name: str, dataset: xarray.Dataset, **how: Any) -> None:
    """Draw the test error along a branch.

    Args:
        axes: panel of the figure.
        name: name of the branch.
        dataset: table of the branch.
        **how: options of `draw_branch`.
    """
    draw_branch(axes, name, dataset, dataset["test_error"].values, dataset["test_error_error"].values, **how)


def values_on_grid(
    rows: Sequence[Mapping[str, Any]], values: Iterable[float], alphas: Sequence[float], omegas: Sequence[float]
) -> np.ndarray:
    """Return values of records on a grid, (alphas, omegas), with NaN at points without a record.

    Args:
        rows: records with alpha and omega.
        values: one value per record.
        alphas: values of alpha of the grid.
        omegas: values of omega of the grid.
    """
    grid = np.full((len(alphas), len(omegas)), np.nan)
    for row, value in zip(rows, values, strict=True):
        grid[alphas.index(row["alpha"]), omegas.index(row["omega"])] = value
    return grid
