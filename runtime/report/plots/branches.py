"""Figures of branches and critical lines: overlaps, losses and errors along a parameter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ...base.errors import InputError
from ...problems.columns import OBSERVED, quantity_in_column
from ...problems.overlaps import OVERLAPS
from . import drawing
from .drawing import BLUE, GREEN, GREY, LOSS_STYLES, ORANGE, PINK, RED, SKY, SYMBOLS

_LINE_COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY)


def plot_branch(dataset: xarray.Dataset, path: str | Path | None = None) -> Figure:
    """Draw a branch along its parameter, with error bars: overlaps m, theta and q above, losses below.

    Training loss and test error have a panel each; of a tuned curve the optimal parameter value has one, too.

    Args:
        dataset: table from `tables.curve_dataset`, or loaded from a file.
        path: PNG, PDF or SVG file to write; None: the figure is only returned.

    Raises:
        InputError: the table contains no overlaps, so that it is not that of a branch.
    """
    if any(name not in dataset for name in OVERLAPS):
        raise InputError(
            f"the table of {dataset.attrs['model']} holds no branch, since it has no overlaps to draw; give a table "
            "that `curve` or `follow` wrote"
        )
    below = _plotted_observables(dataset)
    with drawing.new_figure(9.2, 4.2 + 1.9 * len(below), path) as figure:
        upper, lower = drawing.create_overlap_panels(figure, len(below))
        held = [*drawing.describe_scalar_parameters(dataset), *drawing.replica_symmetry_warning(dataset)]
        upper.set_title(drawing.branch_figure_title(dataset), loc="left", pad=8 + 11 * len(held))
        upper.text(0, 1.02, "\n".join(held), transform=upper.transAxes, fontsize=8, color=GREY)
        x, verdicts = drawing.parameter_values_along_table(dataset), drawing.stability_verdicts_of_points(dataset)
        for entry in drawing.overlap_entries_to_draw(dataset):
            look = entry.colour, entry.marker, entry.label
            drawing.draw_line_with_verdicts(
                upper, x, entry.values, entry.errors, verdicts, *look, hollow=entry.number > 0
            )
        if "q_between" in dataset:
            drawing.draw_overlaps_between_states(upper, dataset)
        upper.axhline(0, color=GREY, linewidth=0.6)
        for axes, (name, (colour, marker, label)) in zip(lower, below.items(), strict=True):
            drawing.draw_line_with_verdicts(
                axes, x, dataset[name].values, dataset[f"{name}_error"].values, verdicts, colour, marker, label
            )
            if name == "test_error":
                drawing.draw_linear_baseline(axes, dataset)
            axes.set_ylabel(label.replace(" per ", "\nper "))  # the label is long for a low panel
            drawing.start_axis_at_zero(axes)
        [upper, *lower][-1].set_xlabel(drawing.parameter_axis_label(dataset.attrs["parameter"]))
        jumps = drawing.intervals_of_proximal_jumps(dataset)
        marks = [
            {**event, "label": event["type"] if event["kind"] == "spinodal" else event["kind"]}
            for event in json.loads(dataset.attrs.get("events", "[]"))
        ]
        for axes in (upper, *lower):
            drawing.draw_thresholds(axes, marks)
            for left, right in jumps:
                axes.axvspan(left, right, color=GREY, alpha=0.10, linewidth=0, zorder=0)
            drawing.draw_branch_ends(axes, dataset, GREY)
        extra = (
            drawing.legend_entries_of_stability(verdicts)
            + drawing.legend_entries_of_thresholds(marks)
            + drawing.legend_entries_of_branch_ends([dataset])
        )
        if jumps:
            extra.append(Patch(color=GREY, alpha=0.2, label="proximal map jumps: RS not strict"))
        drawing.draw_legend(upper, extra)
        for axes in lower:
            if len(axes.get_legend_handles_labels()[1]) > 1:  # a single line is named by the axis
                drawing.draw_legend(axes, [])
    return figure


def _plotted_observables(dataset: xarray.Dataset) -> dict[str, tuple[str, str, str]]:
    """Return, by name, colour, marker and label of the quantities that are drawn below the panel of the overlaps."""
    tuned = dataset.attrs.get("tuned", "")
    labels = {"energy_moved": "training loss above RS", f"best_{tuned}": f"best {SYMBOLS.get(tuned, tuned)}"}
    found = {}
    for name in (*OBSERVED, *labels):
        if name not in dataset:
            continue
        label = labels.get(name) or dataset[name].attrs.get("long_name", quantity_in_column(name).meaning)
        if np.isfinite(dataset[name].values).any():
            found[name] = (*LOSS_STYLES.get(name, (SKY, "D")), label)
    return found


def plot_critical_line(
    dataset: xarray.Dataset, path: str | Path | None = None, overlay: Sequence[xarray.Dataset] = ()
) -> Figure:
    """Draw a critical line: where an event lies along a second parameter, with error band and codimension-2 points.

    Args:
        dataset: table from `tables.critical_line_dataset` or `bayes_threshold_line_dataset`, or loaded from a file.
        path: PNG, PDF or SVG file to write; None: the figure is only returned.
        overlay: tables of further critical lines in the same two parameters, drawn in the same axes.

    Raises:
        InputError: a further line has other parameters.
    """
    over, parameter = dataset.attrs["over"], dataset.attrs["parameter"]
    every = [dataset, *overlay]
    for other in overlay:
        if (other.attrs.get("over"), other.attrs["parameter"]) != (over, parameter):
            raise InputError(
                f"a critical line of {parameter} along {over} and one of {other.attrs['parameter']} along "
                f"{other.attrs.get('over')} cannot be drawn in the same axes; draw them in separate figures"
            )
    with drawing.new_figure(9.2, 5.0, path) as figure:
        axes = figure.subplots()
        alone = len(every) == 1
        for number, line in enumerate(every):
            colour = _LINE_COLOURS[number % len(_LINE_COLOURS)]
            second, value, error = (line[name].values for name in ("over", "value", "error"))
            drawing.draw_error_band(axes, second, value, error, colour, label="error bar" if alone else None)
            axes.plot(second, value, color=colour, marker="o", markersize=3, label=line.attrs["kind"])
            for special in json.loads(line.attrs["special"]):
                axes.plot(special["over"], special["value"], "*", color=RED, markersize=12, label=special["kind"])
        values = np.concatenate([line["value"].values for line in every])
        if not alone and np.nanmin(values) > 0 and np.nanmax(values) > 10 * np.nanmin(values):
            axes.set_yscale("log")
        axes.set_xlabel(drawing.parameter_axis_label(over))
        axes.set_ylabel(drawing.parameter_axis_label(parameter))
        what = dataset.attrs["kind"].capitalize() if alone else "Critical lines"
        axes.set_title(f"{what} of {dataset.attrs['branches']}", loc="left")
        drawing.draw_legend(axes, [])
    return figure
