"""Figures of the base case: overlaps, test error and training losses of both branches, and where they cross."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ...report.plots.drawing import (
    BLUE,
    BRANCH_COLOURS,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    STYLE,
    distinct_entries,
    draw_baseline,
    draw_ends,
    draw_legend,
    draw_line,
    draw_marks,
    end_handles,
    from_zero,
    jump_intervals,
    mark_handles,
    parameter_label,
    parameter_values,
    save_figure,
    setting_of,
    style_handles,
    verdicts_of,
)
from ...report.tables import loss_difference_along


def plot_overlaps(
    datasets: Mapping[str, xarray.Dataset], path: str | Path | None = None, *, marks: Sequence[Mapping[str, Any]] = ()
) -> Figure:
    """Overlaps of several branches against the parameter (the paper's Fig. 2): theta, |m| and q below each other.

    Args:
        datasets: branch name -> table.
        marks: vertical lines, each with `value`, `error` and `label`.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(9.2, 8.0), layout="constrained")
        panels = figure.subplots(3, 1, sharex=True)
        texts = {"theta": "semantic overlap θ", "m": "positional overlap |m|", "q": "self-overlap q"}
        for axes, (name, label) in zip(panels, texts.items(), strict=True):
            for branch, dataset in datasets.items():
                colour = BRANCH_COLOURS.get(branch, GREY)
                for number, one in enumerate(distinct_entries(dataset, name)):
                    text = f"{branch} branch" if number == 0 else None
                    draw_line(
                        axes,
                        parameter_values(dataset),
                        one.values,
                        one.errors,
                        verdicts_of(dataset),
                        colour,
                        "o",
                        text,
                    )
            axes.axhline(0, color=GREY, linewidth=0.6)
            axes.set_ylabel(label)
            _draw_strips(axes, datasets)
            draw_marks(axes, marks)
        _finish_branches(panels[0], panels[-1], datasets, "Overlaps", marks)
    if path is not None:
        save_figure(figure, path)
    return figure


def plot_test_error(
    datasets: Mapping[str, xarray.Dataset], path: str | Path | None = None, *, marks: Sequence[Mapping[str, Any]] = ()
) -> Figure:
    """Test error of several branches against the parameter, with the linear baseline."""
    with rc_context(STYLE):
        figure = Figure(figsize=(9.2, 4.6), layout="constrained")
        axes = figure.subplots()
        for branch, dataset in datasets.items():
            draw_line(
                axes,
                parameter_values(dataset),
                dataset["test_error"].values,
                dataset["test_error_error"].values,
                verdicts_of(dataset),
                BRANCH_COLOURS.get(branch, GREY),
                "o",
                f"{branch} branch",
            )
        draw_baseline(
            axes, max(datasets.values(), key=lambda d: np.ptp(parameter_values(d)) if len(parameter_values(d)) else 0.0)
        )
        from_zero(axes)
        axes.set_ylabel("test error per token")
        _draw_strips(axes, datasets)
        draw_marks(axes, marks)
        _finish_branches(axes, axes, datasets, "Test error", marks)
    if path is not None:
        save_figure(figure, path)
    return figure


def plot_loss_difference(
    first: xarray.Dataset,
    second: xarray.Dataset,
    path: str | Path | None = None,
    *,
    marks: Sequence[Mapping[str, Any]] = (),
) -> Figure:
    """Training loss of one branch minus that of the other where both were found; the sign says which is the minimum."""
    values, difference, error = loss_difference_along(first, second)
    names = first.attrs["branch"], second.attrs["branch"]
    with rc_context(STYLE):
        figure = Figure(figsize=(9.2, 4.4), layout="constrained")
        axes = figure.subplots()
        for name, side in ((names[1], difference > 0), (names[0], difference < 0)):
            axes.fill_between(
                values,
                0,
                difference,
                where=side,
                color=BRANCH_COLOURS.get(name, GREY),
                alpha=0.15,
                interpolate=True,
                linewidth=0,
                label=f"{name} has the lower training loss",
            )
        axes.errorbar(values, difference, yerr=error, color="black", marker="o", markersize=4, capsize=2)
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.set_ylabel(f"training loss per d:\n{names[0]} minus {names[1]}")
        axes.set_xlabel(parameter_label(first.attrs["parameter"]))
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
        draw_marks(axes, marks)
        axes.set_title(f"Difference of training losses, {setting_of(first)}", loc="left")
        draw_legend(axes, mark_handles(marks))
    if path is not None:
        save_figure(figure, path)
    return figure


def plot_phase_diagram(lines: Sequence[Mapping[str, Any]], path: str | Path | None = None) -> Figure:
    """Thresholds in alpha against omega, with error bars and published points.

    Args:
        lines: one a threshold: `label`, `omega`, `alpha`, `error` (equally long; nan where it does not exist), and
            optionally `published`, pairs (omega, alpha), and `line`: omega, alpha, error of the same threshold as a
            continuous line, drawn with its half width as a band.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(9.2, 5.0), layout="constrained")
        axes = figure.subplots()
        for line, colour, marker in zip(lines, (BLUE, ORANGE, GREEN, PINK), "os^D", strict=False):
            omega, alpha, error = (np.asarray(line[name], float) for name in ("omega", "alpha", "error"))
            there = np.isfinite(alpha)
            curve = {name: np.asarray(values, float) for name, values in line.get("line", {}).items() if name in line}
            if len(curve.get("omega", ())):
                low, high = (curve["alpha"] + way * np.nan_to_num(curve["error"]) for way in (-1, 1))
                axes.fill_between(curve["omega"], low, high, color=colour, alpha=0.25, linewidth=0)
                axes.plot(curve["omega"], curve["alpha"], color=colour)
            axes.errorbar(
                omega[there],
                alpha[there],
                yerr=error[there],
                color=colour,
                marker=marker,
                linestyle="none" if curve else "-",
                capsize=3,
                label=line["label"],
            )
            published = np.array(line.get("published", ()), float).reshape(-1, 2)
            if len(published):
                axes.plot(
                    *published.T,
                    linestyle="none",
                    marker=marker,
                    markersize=8,
                    markerfacecolor="none",
                    markeredgecolor="black",
                    markeredgewidth=1.2,
                    label=f"{line['label'].split(':')[0]} as published",
                )
        axes.set_xlabel(parameter_label("omega"))
        axes.set_ylabel(parameter_label("alpha"))
        from_zero(axes)
        axes.set_title("Phase diagram", loc="left")
        draw_legend(axes, [])
    if path is not None:
        save_figure(figure, path)
    return figure


def _draw_strips(axes: Axes, datasets: Mapping[str, xarray.Dataset]) -> None:
    """A thin strip a branch at the foot of the panel, where its proximal map jumps; and a line where it ends."""
    for row, (branch, dataset) in enumerate(datasets.items()):
        colour = BRANCH_COLOURS.get(branch, GREY)
        for left, right in jump_intervals(dataset):
            axes.axvspan(left, right, 0.022 * row, 0.022 * row + 0.018, color=colour, alpha=0.45, linewidth=0)
        draw_ends(axes, dataset, colour)


def _finish_branches(
    first: Axes, last: Axes, datasets: Mapping[str, xarray.Dataset], title: str, marks: Sequence[Mapping[str, Any]]
) -> None:
    """Title, labels and one legend for figures with a colour a branch."""
    one = next(iter(datasets.values()))
    last.set_xlabel(parameter_label(one.attrs["parameter"]))
    first.set_title(f"{title}, {setting_of(one)}", loc="left")
    handles: list[Any] = style_handles(np.concatenate([verdicts_of(d) for d in datasets.values()]))
    handles += mark_handles(marks)
    handles += end_handles(datasets.values())
    if any(jump_intervals(d) for d in datasets.values()):
        handles.append(Patch(color=GREY, alpha=0.45, label="strip: proximal map jumps, RS not strict"))
    draw_legend(first, handles)
