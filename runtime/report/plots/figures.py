"""The figure of a table, whichever result it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import xarray
from matplotlib.figure import Figure

from ...base.presenting import Recorded, plot
from .branches import plot_critical_line, plot_dataset
from .dynamics import plot_dynamics, plot_passes
from .phases import plot_phases
from .simulation import plot_runs
from .sweeps import plot_sweep

# Attribute that only tables of one kind have -> their figure.
_FIGURES = {
    "dynamics": plot_dynamics,
    "sweep": plot_sweep,
    "phases": plot_phases,
    "plan": plot_runs,
    "special": plot_critical_line,
}


@plot.register(xarray.Dataset)
def plot_table(dataset: xarray.Dataset, path: str | Path | None = None, **options: Any) -> Figure:
    """Draw a table of any kind.

    Args:
        dataset: of a result, or loaded.
        path: where to write it, as PNG, PDF or SVG; default, nowhere.
        options: of the figure of its kind, as `beside` of critical lines.

    Raises:
        InputError: the table holds nothing to draw.
    """
    draw: Any = next((draw for mark, draw in _FIGURES.items() if mark in dataset.attrs), plot_dataset)
    if draw is plot_runs and "path_q" in dataset:
        draw = plot_passes
    return draw(dataset, path, **options)


@plot.register(Recorded)
def plot_result(result: Recorded, path: str | Path | None = None, **options: Any) -> Figure:
    """Draw a result that is a table of points."""
    return plot_table(result.to_xarray(), path, **options)
