"""Figures of phase transitions: errors, losses, phase diagrams, maps of stability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from ...stability.assess import NEGLIGIBLE_LOSS
from ..tables import loss_difference
from .drawing import (
    BLUE,
    BRANCH_COLOURS,
    FAINT,
    GREEN,
    GREY,
    MARK_STYLES,
    ORANGE,
    PINK,
    STYLE,
    draw_baseline,
    draw_branch_error,
    draw_either,
    draw_legend,
    draw_line,
    draw_marks,
    draw_strips,
    finish_branches,
    from_zero,
    mark_handles,
    parameter_label,
    parameter_values,
    save_figure,
    setting_of,
    span_of,
    stable_points,
    style_handles,
    within,
)


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
                stable_points(dataset),
                BRANCH_COLOURS.get(branch, GREY),
                "o",
                f"{branch} branch",
            )
        draw_baseline(
            axes, max(datasets.values(), key=lambda d: np.ptp(parameter_values(d)) if len(parameter_values(d)) else 0.0)
        )
        from_zero(axes)
        axes.set_ylabel("test error per token")
        draw_strips(axes, datasets)
        draw_marks(axes, marks)
        finish_branches(axes, axes, datasets, "Test error", marks)
    if path is not None:
        save_figure(figure, path)
    return figure


def plot_loss_difference(
    one: xarray.Dataset,
    other: xarray.Dataset,
    path: str | Path | None = None,
    *,
    marks: Sequence[Mapping[str, Any]] = (),
) -> Figure:
    """Training loss of one branch minus that of the other where both were found; the sign says which is the minimum."""
    values, difference, error = loss_difference(one, other)
    names = one.attrs["branch"], other.attrs["branch"]
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
        axes.set_xlabel(parameter_label(one.attrs["parameter"]))
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
        draw_marks(axes, marks)
        axes.set_title(f"Difference of training losses, {setting_of(one)}", loc="left")
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


def plot_stability_map(
    rows: Sequence[Mapping[str, Any]],
    ends: Mapping[str, Sequence[Sequence[tuple[float, float]]]],
    path: str | Path | None = None,
) -> Figure:
    """Self-overlap loss over omega and alpha: one panel a branch, and one for the branch of lowest training loss.

    Args:
        rows: branch, omega, alpha, self_overlap_loss, lowest, one a solution (see `reproduce.pages.stability_map`).
        ends: branch -> lines of (omega, alpha) at which it ends.
    """
    branches = sorted({row["branch"] for row in rows}, reverse=True)
    omegas, alphas = (sorted({row[name] for row in rows}) for name in ("omega", "alpha"))

    def grid(chosen: Sequence[Mapping[str, Any]]) -> np.ndarray:
        values = np.full((len(alphas), len(omegas)), np.nan)
        for row in chosen:
            value = max(row["self_overlap_loss"], NEGLIGIBLE_LOSS / 10)  # a logarithm has no zero
            values[alphas.index(row["alpha"]), omegas.index(row["omega"])] = value
        return values

    panels = [(f"{name} branch", [row for row in rows if row["branch"] == name]) for name in branches]
    panels.append(("branch of lowest training loss", [row for row in rows if row["lowest"]]))
    colours = colormaps["viridis_r"].with_extremes(under="#f2f2ec", bad="white")
    with rc_context(STYLE):
        figure = Figure(figsize=(4.2 * len(panels) + 1.0, 4.8), layout="constrained")
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        mesh = None
        for axis, (title, chosen) in zip(axes, panels, strict=True):
            values = grid(chosen)
            mesh = axis.pcolormesh(
                omegas, alphas, values, norm=LogNorm(NEGLIGIBLE_LOSS, 1.0), cmap=colours, shading="nearest"
            )
            missing = np.isnan(values)
            if missing.any():
                steps = [np.diff(one).min() if len(one) > 1 else 1.0 for one in (omegas, alphas)]
                for i, j in np.argwhere(missing):
                    corner = (omegas[j] - steps[0] / 2, alphas[i] - steps[1] / 2)
                    axis.add_patch(
                        Rectangle(corner, *steps, facecolor="none", edgecolor="#bbbbbb", hatch="///", linewidth=0)
                    )
            axis.grid(False)
            axis.set_title(title, loc="left")
            axis.set_xlabel(parameter_label("omega").split("  ")[0])
        for axis, name in zip(axes, branches, strict=False):
            for line in ends.get(name, ()):
                if len(line):
                    axis.plot(*np.array(sorted(line)).T, color="black", linewidth=1.2, marker=".")
        owners = np.full((len(alphas), len(omegas)), np.nan)
        for row in rows:
            if row["lowest"]:
                owners[alphas.index(row["alpha"]), omegas.index(row["omega"])] = branches.index(row["branch"])
        if len(np.unique(owners[np.isfinite(owners)])) > 1:
            axes[-1].contour(omegas, alphas, owners, levels=[0.5], colors="black", linewidths=1.4)
        axes[0].set_ylabel(parameter_label("alpha"))
        assert mesh is not None
        bar = figure.colorbar(mesh, ax=axes, extend="min", pad=0.01)
        bar.set_label(f"self-overlap loss D*/q  (below {NEGLIGIBLE_LOSS:g}: negligible)")
        handles: list[Any] = [
            Line2D([], [], color="black", label="end of the branch; equal training loss on the right"),
            Patch(facecolor="white", edgecolor="#bbbbbb", hatch="///", label="no solution found"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=2)
    if path is not None:
        save_figure(figure, path)
    return figure


def plot_extensions(
    rows: Sequence[Mapping[str, Any]],
    base: Mapping[str, xarray.Dataset],
    base_line: Mapping[str, Any],
    path: str | Path | None = None,
    *,
    reference: str = "positional",
) -> Figure:
    """One row of panels a setting: difference of training losses, test error, transition line; the base case faint.

    Args:
        rows: `title`; `branches`, name -> table; `mark`, None or (value, half width) of the transition on the axis of
            the branches; `line` as `base_line`: `label`, `omega`, `alpha`, `error` (nan where there is none).
        base: tables of the base case's branches.
        reference: branch whose training loss is taken away.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(13.0, 3.1 * len(rows) + 0.5), layout="constrained")
        panels = figure.subplots(len(rows), 3, squeeze=False)
        for (losses, errors, line), row in zip(panels, rows, strict=True):
            datasets = row["branches"]
            span = span_of(datasets)
            if row["mark"] is not None:
                value, half_width = row["mark"]
                span = (min(span[0], value), max(span[1], value))
                for axes in (losses, errors):
                    draw_marks(axes, [{"value": value, "error": half_width}])
            nearby = {name: within(dataset, span) for name, dataset in base.items()}
            _draw_differences(losses, nearby, reference, faint=True)
            _draw_differences(losses, datasets, reference)
            losses.axhline(0, color=GREY, linewidth=0.8)
            losses.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
            losses.set_ylabel(f"training loss per d,\nless the {reference}")
            losses.set_title(row["title"], loc="left", fontweight="bold")
            for name, dataset in nearby.items():
                draw_branch_error(errors, name, dataset, faint=True)
            for name, dataset in datasets.items():
                draw_branch_error(errors, name, dataset)
            errors.set_ylabel("test error per token")
            from_zero(errors)
            for axes in (losses, errors):
                axes.set_xlim(span[0] - 0.05, span[1] + 0.05)
            _draw_transition(line, base_line, faint=True)
            _draw_transition(line, row["line"])
            line.set_ylabel("α of the transition")
            from_zero(line)
            line.legend(loc="upper left")
        for axes, label in zip(panels[-1], ("alpha", "alpha", "omega"), strict=True):
            axes.set_xlabel(parameter_label(label))
        names = dict.fromkeys(name for row in rows for name in row["branches"])
        handles: list[Any] = [
            Line2D([], [], color=BRANCH_COLOURS.get(name, GREY), marker="o", label=f"{name} branch") for name in names
        ]
        handles += [
            Line2D([], [], color=GREY, linewidth=1.2, alpha=FAINT, label="faint: base case"),
            *style_handles(np.zeros(1, bool)),
            Line2D([], [], color="black", linewidth=1.0, linestyle=MARK_STYLES[0], label="transition"),
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    if path is not None:
        save_figure(figure, path)
    return figure


def _draw_differences(
    axes: Axes, datasets: Mapping[str, xarray.Dataset], reference: str, *, faint: bool = False
) -> None:
    """Training loss of every other branch less that of the reference, where both were found."""
    if reference not in datasets:
        return
    for name, dataset in datasets.items():
        if name == reference:
            continue
        values, difference, error = loss_difference(dataset, datasets[reference])
        stable = np.isin(values, parameter_values(dataset)[stable_points(dataset)])
        draw_either(axes, values, difference, error, stable, BRANCH_COLOURS.get(name, GREY), faint)


def _draw_transition(axes: Axes, line: Mapping[str, Any], *, faint: bool = False) -> None:
    omega, alpha, error = (np.asarray(line[name], float) for name in ("omega", "alpha", "error"))
    there = np.isfinite(alpha)
    axes.errorbar(
        omega[there],
        alpha[there],
        yerr=error[there],
        color=GREY if faint else "black",
        alpha=FAINT if faint else 1.0,
        linewidth=1.2 if faint else 1.6,
        marker=None if faint else "o",
        capsize=0 if faint else 3,
        label=line["label"],
    )
