"""Figure of one step of breaking beside replica symmetry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...report.plots.drawing import BRANCH_COLOURS, GREY, STYLE, parameter_label, save_figure

_ENERGY_MOVED = "training loss per d, moved\nby one step of breaking"
_UNIT = 1e-7  # of the map


def plot_breaking(
    rows: Sequence[Mapping[str, Any]],
    symmetric: Sequence[Mapping[str, Any]],
    ends: Sequence[Mapping[str, Any]],
    crossings: Mapping[str, Any],
    shown: float,
    path: str | Path | None = None,
) -> Figure:
    """Energy moved, share of the self-overlap between states, theta, y along alpha; crossings; map of the energy moved.

    Args:
        rows: one a solution with one step of breaking (see `reproduce.pages.breaking`); symmetric: replica symmetric
            ones, of the same omega.
        ends: `branch`, `steps` of breaking (0 or 1) and `alpha`, two values between which a branch ends.
        crossings: "symmetric" and "broken" -> value and error; "visited" -> alpha, difference of the losses and its
            error with one step of breaking.
        shown: the omega of all panels but the map.
    """
    here = [row for row in rows if row["omega"] == shown]
    with rc_context(STYLE):
        figure = Figure(figsize=(13.0, 7.4), layout="constrained")
        (moved, share, theta), (parisi, crossing, plane) = figure.subplots(2, 3)
        for name in sorted({row["branch"] for row in here}):
            own = [row for row in here if row["branch"] == name]
            broken = [row for row in own if row["distance"] > 0]
            _draw(moved, name, own, "energy_moved", "energy_moved_error")
            _draw(share, name, own, "share", "share_error")
            _draw(parisi, name, broken, "parisi", "parisi_error")
        _draw(theta, "semantic", _of(here, "semantic"), "theta", "theta_error")
        _draw(theta, "semantic", _of(symmetric, "semantic"), "theta", "theta_error", dashed=True)
        for end in ends:
            if end["branch"] == "semantic":
                theta.axvspan(*sorted(end["alpha"]), color=GREY, alpha=0.25 if end["steps"] else 0.12, linewidth=0)
        for axes in (moved, parisi):
            axes.set_yscale("log")
        moved.set_ylabel(_ENERGY_MOVED)
        share.set_ylabel("Δ / q, between states")
        theta.set_ylabel("θ of the semantic branch")
        theta.set_ylim(bottom=0)
        share.set_ylim(bottom=0)
        parisi.set_ylabel("Parisi parameter y")
        for axes in (moved, share, theta, parisi):
            axes.set_xlabel(parameter_label("alpha"))
        _draw_crossing(crossing, here, symmetric, crossings)
        _draw_map(figure, plane, [row for row in rows if row["branch"] == "positional"])
        handles = [Line2D([], [], color=BRANCH_COLOURS[n], marker="o", label=f"{n} branch") for n in BRANCH_COLOURS
                   if any(row["branch"] == n for row in here)]  # fmt: skip
        handles += [
            Line2D([], [], color=GREY, label="one step of breaking"),
            Line2D([], [], color=GREY, linestyle="--", label="replica symmetric"),
            Line2D([], [], color=GREY, linewidth=6, alpha=0.25, label="end of the branch (fainter: replica symmetric)"),
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    if path is not None:
        save_figure(figure, path)
    return figure


def _of(rows: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["branch"] == name]


def _numbers(rows: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    return np.array([np.nan if row[name] is None else row[name] for row in rows], float)


def _draw(
    axes: Axes, branch: str, rows: Sequence[Mapping[str, Any]], name: str, error: str, *, dashed: bool = False
) -> None:
    """A quantity along alpha with its half widths."""
    axes.errorbar(
        _numbers(rows, "alpha"), _numbers(rows, name), yerr=_numbers(rows, error), color=BRANCH_COLOURS[branch],
        marker="s" if dashed else "o", linestyle="--" if dashed else "-", capsize=3,
        markerfacecolor="white" if dashed else None,
    )  # fmt: skip


def _draw_crossing(
    axes: Axes,
    rows: Sequence[Mapping[str, Any]],
    symmetric: Sequence[Mapping[str, Any]],
    crossings: Mapping[str, Any],
) -> None:
    """Training loss of the semantic branch less that of the positional one, under both, and where it vanishes."""
    for chosen, style, located in ((symmetric, "--", "symmetric"), (rows, "-", "broken")):
        one, other = ({row["alpha"]: row for row in _of(chosen, name)} for name in ("semantic", "positional"))
        both = sorted(set(one) & set(other))
        points = [
            (a, one[a]["training_loss"] - other[a]["training_loss"],
             one[a]["training_loss_error"] + other[a]["training_loss_error"]) for a in both
        ]  # fmt: skip
        if located == "broken":
            points = sorted([*points, *map(tuple, crossings.get("visited", ()))])
        if points:
            alpha, difference, error = zip(*points, strict=True)
            axes.errorbar(alpha, difference, yerr=error, color="black", linestyle=style, marker="o", capsize=3)
        if located in crossings:
            value, error = crossings[located]["value"], crossings[located]["error"]
            axes.axvline(value, color="black", linewidth=1.0, linestyle=style)
            axes.axvspan(value - error, value + error, color="black", alpha=0.15, linewidth=0)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    axes.set_ylabel("training loss per d,\nsemantic less positional")
    axes.set_xlabel(parameter_label("alpha"))


def _draw_map(figure: Figure, axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """The energy moved of the positional branch, a square a solution, its half width written into it."""
    known = [row for row in rows if row["on_map"] and row["energy_moved"] is not None]
    if not known:
        axes.set_title("positional branch: nothing found", loc="left")
        return
    omegas, alphas = (sorted({row[name] for row in rows if row["on_map"]}) for name in ("omega", "alpha"))
    values = np.full((len(alphas), len(omegas)), np.nan)
    for row in known:
        values[alphas.index(row["alpha"]), omegas.index(row["omega"])] = row["energy_moved"] / _UNIT
    colours = colormaps["viridis_r"].with_extremes(bad="white")
    mesh = axes.pcolormesh(range(len(omegas)), range(len(alphas)), values, cmap=colours, shading="nearest")
    middle = float(np.nanmean([np.nanmin(values), np.nanmax(values)]))
    for row in known:
        text = f"{row['energy_moved'] / _UNIT:.3g} ± {row['energy_moved_error'] / _UNIT:.1g}"
        place = omegas.index(row["omega"]), alphas.index(row["alpha"])
        dark = row["energy_moved"] / _UNIT > middle
        axes.text(*place, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.set_xticks(range(len(omegas)), [f"{omega:g}" for omega in omegas])
    axes.set_yticks(range(len(alphas)), [f"{alpha:g}" for alpha in alphas])
    axes.grid(False)
    axes.set_xlabel(parameter_label("omega").split("  ")[0])
    axes.set_ylabel(parameter_label("alpha"))
    axes.set_title("positional branch", loc="left")
    figure.colorbar(mesh, ax=axes, pad=0.02).set_label("training loss moved, in units of 1e-7")
