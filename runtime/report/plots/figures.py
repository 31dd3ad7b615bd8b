"""The figure of a table, by the kind of result it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import xarray
from matplotlib.figure import Figure

from ...base.presenting import DatasetResult, plot
from .branches import plot_branch, plot_critical_line
from .dynamics import plot_dynamics, plot_one_pass_runs
from .phases import plot_phases
from .simulation import plot_simulation_runs
from .sweeps import plot_sweep

# Attribute of tables of one kind -> their figure.
_FIGURES = {
    "dynamics": plot_dynamics,
    "sweep": plot_sweep,
    "phases": plot_phases,
    "plan": plot_simulation_runs,
    "special": plot_critical_line,
}


@plot.register_renderer_of_class(xarray.Dataset)
def plot_table(dataset: xarray.Dataset, path: str | Path | None = None, **options: Any) -> Figure:
    """Draw the figure of a Dataset; which figure depends on the kind of result that it contains.

    Args:
        dataset: table of a result, computed or loaded from a file.
        path: PNG, PDF or SVG file to write; None: the figure is only returned.
        options: further options of that figure, as `overlay` of `plot_critical_line`.

    Raises:
        InputError: the table contains nothing that can be drawn.
    """
    draw: Any = next((draw for mark, draw in _FIGURES.items() if mark in dataset.attrs), plot_branch)
    if draw is plot_simulation_runs and "path_q" in dataset:
        draw = plot_one_pass_runs
    return draw(dataset, path, **options)


@plot.register_renderer_of_class(DatasetResult)
def plot_result(result: DatasetResult, path: str | Path | None = None, **options: Any) -> Figure:
    """Draw the figure of a result, from its Dataset.

    Args:
        result: result that can be converted to xarray.
        path: PNG, PDF or SVG file to write; None: the figure is only returned.
        options: further options of that figure.
    """
    return plot_table(result.to_xarray(), path, **options)
