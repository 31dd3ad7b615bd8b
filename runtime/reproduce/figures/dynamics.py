"""Figure of one-pass descent: the base case in time, basins, and times of escape."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...report.plots.drawing import BLUE, BRANCH_COLOURS, GREEN, GREY, RED, STYLE, save_figure
from ...report.plots.simulation import draw_points

_DRAWN = (("q", GREEN, "^"), ("m", RED, "o"), ("θ", BLUE, "s"))


def plot_dynamics_figure(results: Mapping[str, Any], path: str | Path | None = None) -> Figure:
    """Above overlaps in time with simulations and times of escape, below a panel of basins a rate and mixing.

    Args:
        results: of `reproduce.dynamics.DynamicsRun`.
    """
    basins = {tuple(float(part) for part in name.split(",")): found for name, found in results["basins"].items()}
    rates, omegas = (sorted({key[n] for key in basins}) for n in (0, 1))
    with rc_context(STYLE):
        figure = Figure(figsize=(3.6 * max(len(rates), 2) + 1.0, 4.0 + 3.0 * len(omegas)), layout="constrained")
        parts: Any = figure.subfigures(2, 1, height_ratios=(4.0, 3.0 * len(omegas)))
        above, below = parts
        left, right = above.subplots(1, 2)
        _draw_trajectory(left, results["trajectory"])
        _draw_escape(right, results["escape"])
        panels = below.subplots(len(omegas), len(rates), sharex=True, sharey=True, squeeze=False)
        for row, omega in zip(panels, omegas, strict=True):
            for axes, rate in zip(row, rates, strict=True):
                _draw_plane(axes, basins[rate, omega])
                axes.set_title(f"rate {rate:g}, ω = {omega:g}", loc="left")
            row[0].set_ylabel("initial m")
        for axes in panels[-1]:
            axes.set_xlabel("initial θ")
        names = {name for found in basins.values() for line in found["reached"] for name in line if name}
        names |= {name for found in basins.values() for *_, name in found["simulated"]}
        handles = [
            Line2D([], [], color=BRANCH_COLOURS.get(name, GREY), marker="o", linestyle="", label=name)
            for name in sorted(names)
        ]
        handles.append(
            Line2D([], [], color=GREY, marker="D", markerfacecolor="none", linestyle="", label="one pass at finite d")
        )
        below.legend(handles=handles, fontsize=8, loc="outside upper right", ncols=len(handles))
    if path is not None:
        save_figure(figure, path)
    return figure


def _draw_trajectory(axes: Any, found: Mapping[str, Any]) -> None:
    times, path = np.array(found["times"]), np.array(found["path"])
    measured, means, errors = (np.array(found[name]) for name in ("measured", "means", "errors"))
    for n, (label, colour, marker) in enumerate(_DRAWN):
        axes.plot(times, path[:, n], color=colour, label=label)
        draw_points(axes, measured, means[:, n], errors[:, n], colour, marker)
    axes.set_xlabel("time (steps / d)")
    axes.set_ylabel("overlap")
    axes.set_title("base case, rate 4; points: d = 500", loc="left")
    axes.legend()


def _draw_escape(axes: Any, found: Mapping[str, Any]) -> None:
    d = np.array(found["d"], float)
    times = [np.array([t for t in row if t is not None], float) for row in found["times"]]
    for x, row in zip(d, times, strict=True):
        axes.plot(np.full(len(row), x), row, ".", color=GREY, markersize=4)
    medians = np.array([np.median(row) if len(row) else np.nan for row in times])
    axes.plot(d, medians, "o-", color=BLUE, label="median")
    for (rate, words), style in zip(found["growths"][:2], ("--", ":"), strict=False):
        line = medians[-1] + (np.log(d) - np.log(d[-1])) / (2 * rate)
        axes.plot(d, line, style, linewidth=1.2, color=GREY, label=words)
    axes.legend(fontsize=8, loc="upper left")
    axes.set_xscale("log")
    axes.set_xlabel("d")
    axes.set_ylabel("time of escape")
    axes.set_title("from a random start; broken: log(d) / (2 growth)", loc="left")


def _draw_plane(axes: Any, found: Mapping[str, Any]) -> None:
    for theta, row in zip(found["theta"], found["reached"], strict=True):
        for m, name in zip(found["m"], row, strict=True):
            if name:
                axes.plot(theta, m, "o", color=BRANCH_COLOURS[name], markersize=5)
    for theta, m, name in found["simulated"]:
        axes.plot(theta, m, "D", color=BRANCH_COLOURS.get(name, GREY), markerfacecolor="none", markersize=11)
    if found["boundary"]:
        line = np.array(found["boundary"])
        axes.errorbar(line[:, 0], line[:, 1], yerr=line[:, 2], fmt="k_", markersize=9)
