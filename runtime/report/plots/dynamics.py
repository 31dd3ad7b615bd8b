"""Figures of descent in time: overlaps above, loss and test error below."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...descent.dynamics import Dynamics
from ...presenting import plot, to_dataset
from .drawing import (
    GREY,
    LOSS_STYLES,
    ORANGE,
    OVERLAP_STYLES,
    STYLE,
    along,
    distinct_entries,
    draw_legend,
    entry_label,
    from_zero,
    save_figure,
    shade_of,
    symbol_of,
)


@plot.register(Dynamics)
def plot_of(dynamics: Dynamics, path: str | Path | None = None, log: bool = False) -> Figure:
    """As `plot_dynamics`."""
    return plot_dynamics(to_dataset(dynamics), path, log)


def plot_dynamics(dataset: xarray.Dataset, path: str | Path | None = None, log: bool = False) -> Figure:
    """Overlaps, and below them loss and test error, against time, with half widths as bands; plateaus are shaded.

    Args:
        dataset: from `dynamics_tables.dynamics_dataset`, or loaded.
        log: whether time and losses have logarithmic axes, for plateaus and power laws.
    """
    told, times = json.loads(dataset.attrs["dynamics"]), dataset["time"].values
    below = [name for name in ("loss", "test_error") if np.isfinite(dataset[name].values).any()]
    with rc_context(STYLE):
        figure = Figure(figsize=(9.2, 4.2 + 1.9 * len(below)), layout="constrained")
        upper, *lower = figure.subplots(1 + len(below), 1, sharex=True, height_ratios=(3.4, *[1.6] * len(below)))
        upper.set_title(f"{dataset.attrs['model']}, descent from {told['start']}, rate {told['rate']}", loc="left")
        draw_overlaps(upper, dataset)
        upper.axhline(0, color=GREY, linewidth=0.6)
        upper.set_ylabel("overlap")
        for axes, name in zip(lower, below, strict=True):
            colour = LOSS_STYLES[name][0] if name in LOSS_STYLES else ORANGE
            _draw(axes, times, dataset[name].values, dataset[f"{name}_error"].values, colour, None)
            axes.set_ylabel(name.replace("_", " "))
            if log:
                axes.set_yscale("log")
            else:
                from_zero(axes)
        (upper, *lower)[-1].set_xlabel("time (steps / d)")
        for axes in (upper, *lower):
            for plateau in told["plateaus"]:
                axes.axvspan(plateau["begin"], plateau["end"], color=GREY, alpha=0.10, linewidth=0, zorder=0)
            if log:
                axes.set_xscale("log")
        draw_legend(upper, [])
    if path is not None:
        save_figure(figure, path)
    return figure


def draw_overlaps(axes: Axes, dataset: xarray.Dataset) -> None:
    """Those that differ, each once, with half widths as bands."""
    times = dataset["time"].values
    for name, (colour, _, _) in OVERLAP_STYLES.items():
        symbol, shape = symbol_of(dataset, name), dataset[name].shape[1:]
        for number, entry in enumerate(distinct_entries(dataset, name)):
            first = entry.indices[0]
            errors = along(dataset[f"{name}_error"].values, first)
            _draw(
                axes, times, entry.values, errors, shade_of(colour, number), entry_label(symbol, entry.indices, shape)
            )


def _draw(axes: Axes, x: Any, y: np.ndarray, error: np.ndarray, colour: str, label: str | None) -> None:
    known = np.nan_to_num(error)
    axes.fill_between(x, y - known, y + known, color=colour, alpha=0.25, linewidth=0)
    axes.plot(x, y, color=colour, label=label)
