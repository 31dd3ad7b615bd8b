"""Figures of simulations compared with theory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ...base.presenting import plot
from ...extensions.comparison.compare import FiniteSizeScaling, SimulationComparison
from ...extensions.comparison.measurements import MeasurementComparison
from ...problems.columns import column_suffix_of_entry
from . import drawing
from .drawing import BLUE, BRANCH_COLOURS, GREEN, GREY, LOSS_STYLES, ORANGE, OVERLAP_STYLES, PINK, RED, SKY

if TYPE_CHECKING:
    import xarray


def draw_simulation_means(
    axes: Axes, x: Any, y: Any, error: Any, colour: str, marker: str, label: str | None = None, face: str = "white"
) -> None:
    """Draw means of simulations with their standard errors, as hollow markers through which a line stays visible.

    Args:
        axes: Matplotlib axes to draw on.
        x: values of the parameter, shape (N points,).
        y: means over seeds, shape (N points,).
        error: standard errors of the means, shape (N points,).
        colour: colour of the markers.
        marker: Matplotlib's marker.
        label: text in the legend.
        face: colour inside the markers.
    """
    size: dict[str, Any] = {"markersize": 5, "capsize": 2.5, "linewidth": 1.1}
    look: dict[str, Any] = {"color": colour, "markerfacecolor": face, "label": label, "zorder": 4}
    axes.errorbar(x, y, yerr=error, fmt=marker, **size, **look)


@plot.register_renderer_of_class(SimulationComparison)
def plot_comparison(comparison: SimulationComparison, path: str | Path | None = None) -> Figure:
    """Draw simulations (points) and theory (lines) along a branch: overlaps above, training loss and test error below.

    Of overlaps that are equal in theory, only that of the first token and cluster is drawn.

    Args:
        comparison: simulations along a branch, compared with theory.
        path: PNG, PDF or SVG file to write; None: the figure is only returned.
    """
    curve, found = comparison.curve, comparison.measurements()
    losses = [name for name in LOSS_STYLES if any(name in one for one in found)]

    def draw_simulated_quantity(
        axes: Axes, name: str, colour: str, marker: str, label: str | None, absolute: bool
    ) -> None:
        """Draw simulated values of a quantity along a branch of theory, at the parameter values that were simulated.

        Args:
            axes: Matplotlib axes to draw on.
            name: name of the quantity.
            colour: colour of the markers.
            marker: Matplotlib's marker.
            label: text in the legend.
            absolute: whether to draw absolute values.
        """
        known = [(value, one[name]) for value, one in zip(comparison.values, found, strict=True) if name in one]
        if known:
            values, measured = zip(*known, strict=True)
            means = [abs(item.mean) if absolute else item.mean for item in measured]
            draw_simulation_means(
                axes, values, means, [item.standard_error for item in measured], colour, marker, label
            )

    with drawing.new_figure(7.0, 4.0 + 1.9 * len(losses), path) as figure:
        upper, lower = drawing.create_overlap_panels(figure, len(losses), 3.0)
        upper.set_title(f"{curve.name} branch, d = {comparison.simulations[0].plan.d}", loc="left")
        upper.axhline(0, color=GREY, linewidth=0.6)
        theory = curve.to_xarray(stability=False)
        for entry in drawing.overlap_entries_to_draw(theory):
            first, shape, symbol = (
                entry.indices[0],
                theory[entry.name].shape[1:],
                drawing.overlap_symbol(theory, entry.name),
            )
            upper.plot(curve.values, entry.values, color=entry.colour)
            key, label = (
                entry.name + column_suffix_of_entry(first, shape),
                drawing.overlap_entry_label(symbol, [first], shape),
            )
            draw_simulated_quantity(upper, key, entry.colour, entry.marker, label, symbol.startswith("|"))
        drawing.draw_legend(upper, [])
        for axes, name in zip(lower, losses, strict=True):
            colour, marker = LOSS_STYLES[name]
            axes.plot(curve.values, [getattr(s, name) for s in curve.solutions], color=colour)
            draw_simulated_quantity(axes, name, colour, marker, None, False)
            axes.set_ylabel(name.replace("_", " "))
            drawing.start_axis_at_zero(axes)
        [upper, *lower][-1].set_xlabel(drawing.parameter_axis_label(curve.parameter))
    return figure


@plot.register_renderer_of_class(MeasurementComparison)
def plot_measurement_comparison(points: MeasurementComparison, path: str | Path | None = None) -> Figure:
    """Draw an observable of a branch as a line, and the user's measurements with their standard errors.

    Args:
        points: comparison of the measurements with the branch.
        path: PNG, PDF or SVG file to write; None: the figure is only returned.
    """
    colour, marker = LOSS_STYLES[points.observable]
    with drawing.new_figure(6.4, 4.0, path) as figure:
        axes = figure.subplots()
        line = [getattr(solution, points.observable) for solution in points.curve.solutions]
        axes.plot(points.curve.values, line, color=colour, label="theory")
        means, widths = ([getattr(one, name) for one in points.measured] for name in ("mean", "standard_error"))
        draw_simulation_means(axes, points.values, means, widths, colour, marker, "measured")
        if points.values[0] > 0 and points.values[-1] > 8 * points.values[0]:
            axes.set_xscale("log")
        axes.set_xlabel(drawing.parameter_axis_label(points.over))
        axes.set_ylabel(points.observable.replace("_", " "))
        drawing.start_axis_at_zero(axes)
        axes.legend()
    return figure


def plot_simulation_runs(dataset: xarray.Dataset, path: str | Path | None = None) -> Figure:
    """Draw the runs of a simulation against their seeds: overlaps of the first token and cluster, losses.

    Overlaps, training loss and test error have a panel each; the colour shows the state in which a run ended.

    Args:
        dataset: table from `simulation_tables.simulation_dataset`, or loaded from a file.
        path: PNG, PDF or SVG file to write; None: the figure is only returned.
    """
    plan = json.loads(dataset.attrs["plan"])
    branches, seeds = dataset["branch"].values, dataset["seed"].values
    losses = [name for name in LOSS_STYLES if np.isfinite(dataset[name].values).any()]
    with drawing.new_figure(9.2, 3.6 + 1.9 * len(losses), path) as figure:
        upper, lower = drawing.create_overlap_panels(figure, len(losses), 3.0)
        upper.axhline(0, color=GREY, linewidth=0.6)
        handles = [handle for name in OVERLAP_STYLES for handle in _draw_overlaps_by_seed(upper, dataset, name)]
        for branch in dict.fromkeys(branches):
            own, colour = branches == branch, BRANCH_COLOURS.get(branch, GREY)
            for axes, name in zip(lower, losses, strict=True):
                axes.plot(seeds[own], dataset[name].values[own], LOSS_STYLES[name][1], color=colour)
            handles.append(Line2D([], [], color=colour, linewidth=5, label=f"ended {branch}"))
        for axes, name in zip(lower, losses, strict=True):
            axes.set_ylabel(name.replace("_", " "))
            drawing.start_axis_at_zero(axes)
        model = dataset.attrs["model"].replace("_", " ")
        upper.set_title(f"{model}, d = {plan['d']}, {plan['method']} from {plan['start']}", loc="left")
        last = [upper, *lower][-1]
        last.set_xlabel("seed")
        last.xaxis.set_major_locator(MaxNLocator(integer=True))
        upper.legend(handles=handles, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def _draw_overlaps_by_seed(axes: Axes, dataset: xarray.Dataset, name: str) -> list[Line2D]:
    """Draw the entries of an overlap of the first token and cluster against the seed; return the legend entries."""
    block, marker = drawing.overlap_values_to_draw(dataset, name), OVERLAP_STYLES[name][1]
    branches, seeds = dataset["branch"].values, dataset["seed"].values
    handles: list[Line2D] = []
    for context in drawing.token_cluster_pairs_with_overlap(dataset, name)[:1]:
        for index in ((*context, *entry) for entry in drawing.independent_overlap_entries(block.shape[3:], name)):
            style = _ENTRY_FILLS[len(handles) % len(_ENTRY_FILLS)]
            for branch in dict.fromkeys(branches):
                own, colour = branches == branch, BRANCH_COLOURS.get(branch, GREY)
                axes.plot(
                    seeds[own], drawing.overlap_entry_along_curve(block, index)[own], marker, color=colour, **style
                )
            label = drawing.overlap_entry_label(drawing.overlap_symbol(dataset, name), [index], block.shape[1:])
            handles.append(Line2D([], [], color=GREY, marker=marker, linestyle="none", label=label, **style))
    return handles


# The colour is the final state of a run: entries of one overlap differ in the fill of their markers.
_ENTRY_FILLS: tuple[dict[str, Any], ...] = (
    {"markersize": 5.5},
    {"markersize": 5.5, "markerfacecolor": "white"},
    {"markersize": 6.5, "fillstyle": "left"},
    {"markersize": 6.5, "fillstyle": "top"},
)


@plot.register_renderer_of_class(FiniteSizeScaling)
def plot_finite_size_scaling(scaling: FiniteSizeScaling, path: str | Path | None = None) -> Figure:
    """Draw the ratio of simulated and theoretical observables against 1/d, with the extrapolation to infinite d.

    Args:
        scaling: simulations at several d, compared with theory.
        path: PNG, PDF or SVG file to write; None: the figure is only returned.
    """
    limits, every = scaling.limits(), scaling.measurements()
    shown = [name for name, (limit, _) in limits.items() if abs(limit.theory) > 10 * limit.theory_error]
    with drawing.new_figure(6.4, 4.4, path) as figure:
        draw_finite_size_scaling(figure.subplots(), scaling.dims, {name: (limits[name], every) for name in shown})
    return figure


def draw_finite_size_scaling(
    axes: Axes, dims: Sequence[int], rows: Mapping[str, tuple[Any, Sequence[Mapping[str, Any]]]]
) -> None:
    """Draw the ratio of simulated and theoretical observables against 1/d, one colour per observable.

    Args:
        axes: Matplotlib axes to draw on.
        dims: dimensions d.
        rows: by name of the observable, ((limit at infinite d, fit), simulated values at each d).
    """
    inverse = np.linspace(0, 1 / min(dims), 100)
    apart = 0.008 * inverse[-1]  # horizontal offset of the observables
    colours = (BLUE, RED, GREEN, ORANGE, PINK, SKY)
    for number, (name, ((limit, fit), every)) in enumerate(rows.items()):
        colour, marker = colours[number % len(colours)], "os^v"[number // len(colours) % 4]
        axes.plot(inverse, (fit.value + fit.slope * inverse**fit.power) / limit.theory, color=colour, linewidth=1.1)
        values = [one[name] for one in every]
        offset = apart * (number - (len(rows) - 1) / 2)
        means = [item.mean / limit.theory for item in values]
        errors = [item.standard_error / abs(limit.theory) for item in values]
        at = 1 / np.array(dims, float) + offset
        draw_simulation_means(axes, at, means, errors, colour, marker, name.replace("_", " "))
        error = [limit.standard_error / abs(limit.theory)]
        draw_simulation_means(axes, [offset], [limit.mean / limit.theory], error, colour, "D", face=colour)
    axes.axhline(1, color="black", linewidth=1.0, linestyle="--")
    axes.set_xlabel("1/d  (diamonds: fitted limit; dashed: theory)")
    axes.set_ylabel("simulation / theory")
    axes.legend(loc="best", ncols=2)
