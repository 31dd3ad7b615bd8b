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
    """Create a Matplotlib figure in the style of the package, and save it at the end of the block.

    Args:
        path: PNG file to write; None: the figure is not saved.
        width: width in inches.
        height: height in inches.
    """
    with rc_context({**plots.STYLE, "axes.titlelocation": "left"}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
    if path is not None:
        plots.save_figure(figure, path)


def branch_colour(branch: str) -> str:
    """Return the colour in which a branch is drawn, by its name; grey for unknown names."""
    return plots.BRANCH_COLOURS.get(branch, plots.GREY)


def legend_entry(label: str, colour: str = plots.GREY, **style: Any) -> Line2D:
    """Return a Matplotlib line that is not drawn, as an entry of a legend.

    Args:
        label: text of the entry.
        colour: colour of the line.
        **style: further options of `matplotlib.lines.Line2D`.
    """
    return Line2D([], [], color=colour, label=label, **style)


def legend_entries_of_branches(names: Iterable[str]) -> list[Line2D]:
    """Return one legend entry for each branch, in its colour."""
    return [legend_entry(f"{name} branch", branch_colour(name), marker="o") for name in names]


def draw_zero_line(axes: Axes) -> None:
    """Draw a thin horizontal line at zero, and use scientific notation on the vertical axis."""
    axes.axhline(0, color=plots.GREY, linewidth=0.8)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))


def draw_quantity_along_branch(
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
        axes: Matplotlib axes to draw on.
        name: name of the branch.
        dataset: table of the branch.
        y: values of the quantity, shape (N points,).
        error: error bars of the quantity, shape (N points,).
        at: values of the parameter at which the quantity is known; None: all values of the table.
        label: label in the legend.
        faint: whether to draw only a faint line.
    """
    every, colour = plots.parameter_values_along_table(dataset), branch_colour(name)
    x = every if at is None else at
    if faint:
        axes.plot(x, y, color=colour, linewidth=1.2, alpha=FAINT_OPACITY, zorder=1)
    else:
        plots.draw_line_with_verdicts(
            axes, x, y, error, plots.stability_verdicts_of_points(dataset)[np.isin(every, x)], colour, "o", label
        )


def draw_test_error(axes: Axes, name: str, dataset: xarray.Dataset, **how: Any) -> None:
    """Draw the test error of a branch along its parameter, with error bars.

    Args:
        axes: Matplotlib axes to draw on.
        name: name of the branch.
        dataset: table of the branch.
        **how: further options of `draw_quantity_along_branch`.
    """
    draw_quantity_along_branch(
        axes, name, dataset, dataset["test_error"].values, dataset["test_error_error"].values, **how
    )


def values_on_grid(
    rows: Sequence[Mapping[str, Any]], values: Iterable[float], alphas: Sequence[float], omegas: Sequence[float]
) -> np.ndarray:
    """Arrange values on the grid of alpha and omega: an array of shape (alphas, omegas), with NaN where none is known.

    Args:
        rows: records: dicts that contain alpha and omega.
        values: one value per record.
        alphas: values of alpha of the grid.
        omegas: values of omega of the grid.
    """
    grid = np.full((len(alphas), len(omegas)), np.nan)
    for row, value in zip(rows, values, strict=True):
        grid[alphas.index(row["alpha"]), omegas.index(row["omega"])] = value
    return grid
