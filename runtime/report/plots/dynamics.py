"""Figures of one-pass descent in time: overlaps above, loss and test error below."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import xarray
from matplotlib.figure import Figure

from . import drawing
from .drawing import GREY, LOSS_STYLES, ORANGE, OVERLAP_STYLES, FigureOptions
from .simulation import draw_simulation_means


def plot_dynamics(dataset: xarray.Dataset, path: str | Path | None = None, log: bool = False) -> Figure:
    """Draw overlaps, loss and test error of descent against time, with error bands; plateaus are shaded.

    Args:
        dataset: table from `dynamics_tables.dynamics_dataset`, or loaded from a file.
        path: PNG, PDF or SVG file to write; None: the figure is only returned.
        log: whether time and losses have logarithmic axes, which show plateaus and power laws.
    """
    record, times = json.loads(dataset.attrs["dynamics"]), dataset["time"].values
    below = [name for name in ("loss", "test_error") if np.isfinite(dataset[name].values).any()]
    with drawing.new_figure(9.2, 4.2 + 1.9 * len(below), path) as figure:
        upper, lower = drawing.create_overlap_panels(figure, len(below))
        upper.set_title(f"{dataset.attrs['model']}, descent from {record['start']}, rate {record['rate']}", loc="left")
        for entry in drawing.overlap_entries_to_draw(dataset):
            drawing.draw_error_band(upper, times, entry.values, entry.errors, entry.colour)
            upper.plot(times, entry.values, color=entry.colour, label=entry.label)
        upper.axhline(0, color=GREY, linewidth=0.6)
        for axes, name in zip(lower, below, strict=True):
            colour = LOSS_STYLES[name][0] if name in LOSS_STYLES else ORANGE
            drawing.draw_error_band(axes, times, dataset[name].values, dataset[f"{name}_error"].values, colour)
            axes.plot(times, dataset[name].values, color=colour)
            axes.set_ylabel(name.replace("_", " "))
            if log:
                axes.set_yscale("log")
            else:
                drawing.start_axis_at_zero(axes)
        [upper, *lower][-1].set_xlabel("time (steps / d)")
        for axes in (upper, *lower):
            for plateau in record["plateaus"]:
                axes.axvspan(plateau["begin"], plateau["end"], color=GREY, alpha=0.10, linewidth=0, zorder=0)
            if log:
                axes.set_xscale("log")
        drawing.draw_legend(upper, [])
    return figure


def plot_one_pass_runs(dataset: xarray.Dataset, path: str | Path | None = None) -> Figure:
    """Draw overlaps of one-pass runs at finite d against time: a thin line per seed, points for the mean.

    Points have standard errors. If the table contains the dynamics at infinite d, thick lines show it.

    Args:
        dataset: table from `simulation_tables.simulation_dataset` or `add_dynamics_at_infinite_d`, or from a file.
        path: PNG, PDF or SVG file to write; None: the figure is only returned.
    """
    plan, times = json.loads(dataset.attrs["plan"]), dataset["time"].values
    theory = None
    if "theory" in dataset.attrs:
        known = {str(n): str(n).removeprefix("theory_") for n in dataset.data_vars if str(n).startswith("theory_")}
        theory = dataset[list(known)].rename(known)
    shown = np.unique(np.linspace(0, len(times) - 1, FigureOptions.current().mean_points).round().astype(int))
    with drawing.new_figure(9.2, 5.2, path) as figure:
        axes = figure.subplots()
        axes.axhline(0, color=GREY, linewidth=0.6)
        for name in OVERLAP_STYLES:
            runs = dataset[f"path_{name}"].values
            if drawing.overlap_symbol(dataset, name).startswith("|"):
                runs = np.abs(runs)
            own = dataset[[name]].isel(seed=0).drop_vars("seed")
            own = own.assign({name: (dataset[f"path_{name}"].dims[1:], runs.mean(axis=0))})
            own[name].attrs = dataset[name].attrs
            spread = runs.std(axis=0, ddof=1) / np.sqrt(len(runs)) if len(runs) > 1 else np.full(runs.shape[1:], np.nan)
            # Entries that agree in theory, else within two standard errors, are drawn once.
            own[f"{name}_error"] = (own[name].dims, 2 * spread)
            for entry in drawing.distinct_overlap_entries(own if theory is None else theory, name):
                first, colour = entry.indices[0], entry.colour
                if theory is not None:
                    drawing.draw_error_band(axes, times, entry.values, entry.errors, colour)
                    axes.plot(times, entry.values, color=colour)
                for run in runs:
                    axes.plot(
                        times, drawing.overlap_entry_along_curve(run, first), color=colour, linewidth=0.5, alpha=0.3
                    )
                means, errors = (
                    drawing.overlap_entry_along_curve(runs.mean(axis=0), first),
                    drawing.overlap_entry_along_curve(spread, first),
                )
                draw_simulation_means(
                    axes, times[shown], means[shown], errors[shown], colour, entry.marker, entry.label
                )
        theory_note = "" if theory is None else "; thick lines: infinite d"
        axes.set_title(
            f"{dataset.attrs['model']}, descent from {plan['start']}, rate {plan['rate']}\n"
            f"{len(dataset['seed'])} passes at d = {plan['d']}{theory_note}",
            loc="left",
        )
        axes.set_xlabel("time (steps / d)")
        axes.set_ylabel("overlap")
        drawing.draw_legend(axes, [])
    return figure
