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

_POINTS = 11  # of passes, at which means are drawn


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


def plot_passes(dataset: xarray.Dataset, path: str | Path | None = None) -> Figure:
    """Overlaps of passes at finite d against time: a thin line a seed, points with standard errors their mean; where it
    is there, the dynamics of infinite d as lines with half widths.

    Args:
        dataset: from `simulation_tables.simulation_dataset` or `beside_dynamics`, or loaded.
    """
    plan, times = json.loads(dataset.attrs["plan"]), dataset["time"].values
    theory = None
    if "theory" in dataset.attrs:
        known = {str(n): str(n).removeprefix("theory_") for n in dataset.data_vars if str(n).startswith("theory_")}
        theory = dataset[list(known)].rename(known)
    shown = np.unique(np.linspace(0, len(times) - 1, _POINTS).round().astype(int))
    with rc_context(STYLE):
        figure = Figure(figsize=(9.2, 5.2), layout="constrained")
        axes = figure.subplots()
        axes.axhline(0, color=GREY, linewidth=0.6)
        for name, (colour, marker, _) in OVERLAP_STYLES.items():
            runs = dataset[f"path_{name}"].values
            if symbol_of(dataset, name).startswith("|"):
                runs = np.abs(runs)
            own = dataset[[name]].isel(seed=0).drop_vars("seed")
            own = own.assign({name: (dataset[f"path_{name}"].dims[1:], runs.mean(axis=0))})
            own[name].attrs = dataset[name].attrs
            spread = runs.std(axis=0, ddof=1) / np.sqrt(len(runs)) if len(runs) > 1 else np.full(runs.shape[1:], np.nan)
            # What fluctuates alike is drawn once where theory is, else where means agree within two standard errors.
            own[f"{name}_error"] = (own[name].dims, 2 * spread)
            entries = distinct_entries(own if theory is None else theory, name)
            symbol, shape = symbol_of(dataset, name), runs.shape[2:]
            for number, entry in enumerate(entries):
                first, shade = entry.indices[0], shade_of(colour, number)
                label = entry_label(symbol, entry.indices, shape)
                if theory is not None:
                    _draw(axes, times, entry.values, entry.errors, shade, None)
                for run in runs:
                    axes.plot(times, along(run, first), color=shade, linewidth=0.5, alpha=0.3)
                means, errors = along(runs.mean(axis=0), first), along(spread, first)
                axes.errorbar(
                    times[shown], means[shown], yerr=errors[shown], fmt=marker, color=shade, markerfacecolor="white",
                    markersize=5, capsize=2.5, linewidth=1.1, label=label, zorder=4,
                )  # fmt: skip
        beside = "" if theory is None else "; thick lines: infinite d"
        axes.set_title(
            f"{dataset.attrs['model']}, descent from {plan['start']}, rate {plan['rate']}\n"
            f"{len(dataset['seed'])} passes at d = {plan['d']}{beside}",
            loc="left",
        )
        axes.set_xlabel("time (steps / d)")
        axes.set_ylabel("overlap")
        draw_legend(axes, [])
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
