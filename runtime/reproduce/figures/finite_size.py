"""Figure of finite size: minimisers and message passing beside theory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...report.plots.drawing import (
    BLUE,
    BRANCH_COLOURS,
    GREEN,
    GREY,
    ORANGE,
    OVERLAP_STYLES,
    PINK,
    RED,
    STYLE,
    from_zero,
    parameter_label,
    save_figure,
)
from ...report.plots.simulation import draw_points, draw_scaling


def plot_finite_size(content: Mapping[str, Any], path: str | Path | None = None) -> Figure:
    """Six panels of `reproduce.finite_size`: overlaps, losses, scaling, difference of losses, random starts, GAMP."""
    with rc_context(STYLE):
        figure = Figure(figsize=(13.4, 11.6), layout="constrained")
        panels = figure.subplots(3, 2)
        _draw_overlaps(panels[0, 0], content)
        _draw_losses(panels[0, 1], content)
        rows = content["scaling"]
        draw_scaling(panels[1, 0], rows["dims"], rows["rows"])
        panels[1, 0].set_title(f"{rows['title']}", loc="left")
        _draw_plane(panels[1, 1], content)
        _draw_random(panels[2, 0], content)
        _draw_gamp(panels[2, 1], content)
    if path is not None:
        save_figure(figure, path)
    return figure


def _draw_overlaps(axes: Axes, content: Mapping[str, Any]) -> None:
    for branch, theory in content["theory"].items():
        style = "-" if branch == "semantic" else "--"
        for name, (colour, _, _) in OVERLAP_STYLES.items():
            axes.plot(theory["alpha"], theory[name], color=colour, linestyle=style)
    for branch, found in content["points"].items():
        for name, (colour, marker, _) in OVERLAP_STYLES.items():
            face = "white" if branch == "semantic" else colour
            axes.errorbar(
                found["alpha"], found[name], yerr=found[f"{name}_error"], fmt=marker, color=colour,
                markerfacecolor=face, markersize=5, capsize=2, linewidth=1.0, zorder=4,
            )  # fmt: skip
    axes.set_ylim(top=0.36)  # room for the legend
    axes.set_title(f"overlaps, d = {content['d']}, {content['seeds']} seeds", loc="left")
    axes.set_xlabel(parameter_label("alpha"))
    axes.set_ylabel("overlap")
    handles = [
        Line2D([], [], color=colour, marker=marker, label=label) for colour, marker, label in OVERLAP_STYLES.values()
    ]
    handles += [
        Line2D([], [], color=GREY, marker="o", markerfacecolor="white", label="semantic (line: theory)"),
        Line2D([], [], color=GREY, marker="o", linestyle="--", label="positional (dashed: theory)"),
    ]
    axes.legend(handles=handles, loc="upper left", ncols=2)


def _draw_losses(axes: Axes, content: Mapping[str, Any]) -> None:
    for branch, theory in content["theory"].items():
        colour = BRANCH_COLOURS[branch]
        axes.plot(theory["alpha"], theory["training_loss"], color=colour)
        axes.plot(theory["alpha"], theory["test_error"], color=colour, linestyle=":")
    for branch, found in content["points"].items():
        colour = BRANCH_COLOURS[branch]
        draw_points(axes, found["alpha"], found["training_loss"], found["training_loss_error"], colour, "o")
        draw_points(axes, found["alpha"], found["test_error"], found["test_error_error"], colour, "s")
    low = content["transition"]
    axes.axvspan(low["value"] - low["error"], low["value"] + low["error"], color=GREY, alpha=0.25, linewidth=0)
    axes.axvline(low["theory"], color="black", linewidth=1.0, linestyle="--")
    axes.set_title("training loss (circles), test error (squares, dotted)", loc="left")
    axes.set_xlabel(parameter_label("alpha"))
    axes.set_ylabel("loss per d, error per token")
    from_zero(axes)
    handles = [Line2D([], [], color=BRANCH_COLOURS[b], marker="o", label=b) for b in content["points"]]
    handles.append(Line2D([], [], color="black", linestyle="--", label="equal loss: theory; grey: simulation"))
    axes.legend(handles=handles, loc="best")


def _draw_plane(axes: Axes, content: Mapping[str, Any]) -> None:
    """Difference of training losses against alpha, one colour an omega."""
    rows = content["plane"]
    omegas = sorted({row["omega"] for row in rows})
    for number, omega in enumerate(omegas):
        colour = (BLUE, GREEN, ORANGE, RED, PINK)[number % 5]
        here = sorted((row for row in rows if row["omega"] == omega), key=lambda row: row["alpha"])
        both = [row for row in here if row["theory"] is not None]
        axes.plot([r["alpha"] for r in both], [1e3 * r["theory"] for r in both], color=colour, marker="_", markersize=9)
        found = [row for row in here if row["simulation"] is not None]
        draw_points(
            axes,
            [row["alpha"] for row in found],
            [1e3 * row["simulation"] for row in found],
            [1e3 * (row["error"] or 0.0) for row in found],
            colour,
            "o",
            f"ω = {omega:g}",
        )
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_title("training loss, semantic less positional, × 1000", loc="left")
    axes.set_xlabel(f"{parameter_label('alpha')};  lines where theory has both")
    axes.legend(loc="best")


def _draw_random(axes: Axes, content: Mapping[str, Any]) -> None:
    """Shares of the minima reached from random starts, a bar a method and alpha."""
    rows = content["random"]
    places = np.arange(len(rows), dtype=float)
    bottom = np.zeros(len(rows))
    for branch, colour in BRANCH_COLOURS.items():
        share = np.array([row["reached"].get(branch, 0) / max(row["runs"], 1) for row in rows])
        axes.bar(places, share, 0.7, bottom=bottom, color=colour, label=branch)
        bottom += share
    axes.set_xticks(places, [f"{row['method']}\nα = {row['alpha']:g}" for row in rows])
    axes.set_ylim(0, 1.18)
    axes.set_title("minima reached from random starts", loc="left")
    axes.set_ylabel("share of seeds")
    axes.legend(loc="upper center", ncols=4)
    axes.grid(False, axis="x")


def _draw_gamp(axes: Axes, content: Mapping[str, Any]) -> None:
    """Overlaps of GAMP against iteration, mean and spread over seeds, on state evolution."""
    found = content["gamp"]
    for name, (colour, marker, label) in OVERLAP_STYLES.items():
        theory = np.abs(found["theory"][name])
        axes.plot(np.arange(len(theory)), theory, color=colour)
        mean, error = np.array(found["simulation"][name]), np.array(found["simulation"][f"{name}_error"])
        draw_points(axes, np.arange(len(mean)), mean, error, colour, marker, label)
    axes.set_title(f"GAMP (points) follows state evolution (lines), d = {found['d']}", loc="left")
    axes.set_xlabel(f"iteration, {found['start']} start at α = {found['alpha']:g}")
    axes.set_ylabel("overlap")
    axes.legend(loc="best")
