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

from ...numbers import with_error
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
from ..finite_size import FOUND, POLISHED


def plot_finite_size(content: Mapping[str, Any], path: str | Path | None = None) -> Figure:
    """Eight panels of `reproduce.finite_size`: overlaps, losses, both searches less theory, the transition, scaling,
    difference of losses, random starts, GAMP."""
    with rc_context(STYLE):
        figure = Figure(figsize=(13.4, 15.4), layout="constrained")
        panels = figure.subplots(4, 2)
        _draw_overlaps(panels[0, 0], content)
        _draw_losses(panels[0, 1], content)
        _draw_deviations(panels[1, 0], content)
        _draw_transition(panels[1, 1], content)
        rows = content["scaling"]
        draw_scaling(panels[2, 0], rows["dims"], rows["rows"])
        panels[2, 0].set_title(f"{rows['title']}", loc="left")
        _draw_plane(panels[2, 1], content)
        _draw_random(panels[3, 0], content)
        _draw_gamp(panels[3, 1], content)
    if path is not None:
        save_figure(figure, path)
    return figure


def _draw_overlaps(axes: Axes, content: Mapping[str, Any]) -> None:
    """Of polished minima, and crosses for what L-BFGS finds."""
    for branch, theory in content["theory"].items():
        style = "-" if branch == "semantic" else "--"
        for name, (colour, _, _) in OVERLAP_STYLES.items():
            axes.plot(theory["alpha"], theory[name], color=colour, linestyle=style)
    for branch, found in content["points"][POLISHED].items():
        for name, (colour, marker, _) in OVERLAP_STYLES.items():
            face = "white" if branch == "semantic" else colour
            draw_points(axes, found["alpha"], found[name], found[f"{name}_error"], colour, marker, face=face)
    for found in content["points"][FOUND].values():
        for name, (colour, _, _) in OVERLAP_STYLES.items():
            draw_points(axes, found["alpha"], found[name], found[f"{name}_error"], colour, "x")
    axes.set_ylim(top=0.36)  # room for the legend
    axes.set_title(f"overlaps, d = {content['d']}, {content['seeds']} seeds", loc="left")
    axes.set_xlabel(parameter_label("alpha"))
    axes.set_ylabel("overlap")
    handles = [
        Line2D([], [], color=colour, marker=marker, label=label) for colour, marker, label in OVERLAP_STYLES.values()
    ]
    handles += [
        Line2D([], [], color=GREY, marker="o", markerfacecolor="white", label="semantic, polished (line: theory)"),
        Line2D([], [], color=GREY, marker="o", linestyle="--", label="positional, polished (dashed: theory)"),
        Line2D([], [], color=GREY, marker="x", linestyle="", label="L-BFGS"),
    ]
    axes.legend(handles=handles, loc="upper left", ncols=2)


def _draw_losses(axes: Axes, content: Mapping[str, Any]) -> None:
    for branch, theory in content["theory"].items():
        colour = BRANCH_COLOURS[branch]
        axes.plot(theory["alpha"], theory["training_loss"], color=colour)
        axes.plot(theory["alpha"], theory["test_error"], color=colour, linestyle=":")
    for search, marks in ((POLISHED, "os"), (FOUND, "xx")):
        for branch, found in content["points"][search].items():
            for name, mark in zip(("training_loss", "test_error"), marks, strict=True):
                draw_points(axes, found["alpha"], found[name], found[f"{name}_error"], BRANCH_COLOURS[branch], mark)
    axes.set_title("training loss (circles), test error (squares, dotted); crosses: L-BFGS", loc="left")
    axes.set_xlabel(parameter_label("alpha"))
    axes.set_ylabel("loss per d, error per token")
    from_zero(axes)
    handles = [Line2D([], [], color=BRANCH_COLOURS[branch], marker="o", label=branch) for branch in content["theory"]]
    axes.legend(handles=handles, loc="best")


def _draw_deviations(axes: Axes, content: Mapping[str, Any]) -> None:
    """What both searches find less theory, the overlap that each branch is named after and its training loss."""
    for branch, overlap in (("semantic", "theta"), ("positional", "m")):
        theory = content["theory"][branch]
        for name, marks in ((overlap, "o"), ("training_loss", "s")):
            for search, face, aside in ((FOUND, None, -0.008), (POLISHED, BRANCH_COLOURS[branch], 0.008)):
                found = content["points"][search][branch]
                at = [(i, np.flatnonzero(np.abs(theory["alpha"] - a) < 1e-9)) for i, a in enumerate(found["alpha"])]
                pairs = [(i, place[0]) for i, place in at if len(place)]
                unit = np.array([theory[name][j] for _, j in pairs]) / 100
                draw_points(
                    axes,
                    np.array([found["alpha"][i] for i, _ in pairs]) + aside * (1 if name == overlap else 2),
                    np.array([found[name][i] for i, _ in pairs]) / unit - 100,
                    np.array([found[f"{name}_error"][i] for i, _ in pairs]) / unit,
                    BRANCH_COLOURS[branch],
                    marks,
                    face=face or "white",
                )
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_ylim(-8, 14)
    axes.set_title("less replica symmetric theory, %", loc="left")
    axes.set_xlabel(parameter_label("alpha"))
    handles = [
        Line2D([], [], color=BRANCH_COLOURS["semantic"], marker="o", linestyle="", label="semantic, θ"),
        Line2D([], [], color=BRANCH_COLOURS["positional"], marker="o", linestyle="", label="positional, m"),
        Line2D([], [], color=GREY, marker="s", linestyle="", label="squares: training loss"),
        Line2D([], [], color=GREY, marker="o", linestyle="", markerfacecolor="white", label="hollow: L-BFGS"),
        Line2D([], [], color=GREY, marker="o", linestyle="", label="full: polished"),
    ]
    axes.legend(handles=handles, loc="upper right", ncols=2)


def _draw_transition(axes: Axes, content: Mapping[str, Any]) -> None:
    """Training loss, semantic less positional, pairs on the same data, about the transition."""
    for (search, found), colour in zip(content["transition"].items(), (RED, BLUE), strict=True):
        rows = found["differences"]
        alphas = np.array([row["alpha"] for row in rows])
        means = 1e3 * np.array([row["mean"] for row in rows])
        label = f"{search}: {with_error(found['value'], found['error'])}"
        draw_points(axes, alphas, means, [1e3 * row["standard_error"] for row in rows], colour, "o", label)
        fine = np.linspace(alphas[0], alphas[-1], 60)
        axes.plot(fine, np.polyval(np.polyfit(alphas, means, 2), fine), color=colour, linewidth=1.0)
        axes.axvspan(found["value"] - found["error"], found["value"] + found["error"], color=colour, alpha=0.2, lw=0)
    axes.axvline(content["alpha_c"], color="black", linewidth=1.0, linestyle="--", label="equal loss in theory")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_title(f"training loss, semantic less positional, × 1000, d = {content['d']}", loc="left")
    axes.set_xlabel(parameter_label("alpha"))
    axes.legend(loc="best")


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
    gamp = content["gamp"]
    for name, (colour, marker, label) in OVERLAP_STYLES.items():
        theory = np.abs(gamp["theory"][name])
        axes.plot(np.arange(len(theory)), theory, color=colour)
        mean, error = np.array(gamp["simulation"][name]), np.array(gamp["simulation"][f"{name}_error"])
        draw_points(axes, np.arange(len(mean)), mean, error, colour, marker, label)
    axes.set_title(f"GAMP (points) follows state evolution (lines), d = {gamp['d']}", loc="left")
    axes.set_xlabel(f"iteration, {gamp['start']} start at α = {gamp['alpha']:g}")
    axes.set_ylabel("overlap")
    axes.legend(loc="best")
