"""Table, figure and page of the self-overlap loss over (alpha, omega)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LogNorm
from matplotlib.patches import Patch, Rectangle

from ...base.numbers import format_value_with_error
from ...stability.assess import NEGLIGIBLE_LOSS
from ..run import BRANCHES
from ..stability_map import STABILITY, StabilityRun
from .content import Block, Picture, Table, write_page, write_table
from .drawing import ALPHA, OMEGA, legend_entry, styled_figure, values_on_grid


def write_report(run: StabilityRun) -> None:
    """Write the table, the figure and the report of a stability map."""
    found = run.results["map"]
    rows = table_rows(found)
    write_table(run, "stability", rows, as_json=True)
    draw = {STABILITY: lambda path: plot_stability_map(rows, branch_ends(found), path)}
    write_page(run, build_page(run.results, rows), draw)


def table_rows(curves: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return a table row for every solution; `lowest` says whether it has the lowest training loss of the branches."""
    rows = [
        {"branch": name, "omega": float(omega), **{key: value for key, value in point.items() if key != "overlaps"}}
        for name, by_omega in curves.items()
        for omega, row in by_omega.items()
        for point in row["points"]
    ]
    best: dict[tuple[float, float], float] = {}
    for row in rows:
        place = (row["omega"], row["alpha"])
        best[place] = min(best.get(place, np.inf), row["training_loss"])
    for row in rows:
        row["lowest"] = row["training_loss"] == best[row["omega"], row["alpha"]]
    return sorted(rows, key=lambda row: (row["branch"], row["omega"], row["alpha"]))


def branch_ends(curves: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, list[list[tuple[float, float]]]]:
    """Return, by branch, two lists of points (omega, alpha): where it ends at small and at large alpha."""
    return {
        name: [
            [(float(omega), float(np.mean(row["ends"][side]))) for omega, row in by_omega.items() if row["ends"][side]]
            for side in (0, 1)
        ]
        for name, by_omega in curves.items()
    }


def plot_stability_map(
    rows: Sequence[Mapping[str, Any]], ends: Mapping[str, Sequence[Sequence[tuple[float, float]]]], path: Path
) -> None:
    """Draw maps of the self-overlap loss D*/q over (omega, alpha): of every branch, and of the branch of lowest loss.

    Args:
        rows: rows of the table of solutions, from `table_rows`.
        ends: by branch, lists of points (omega, alpha) at which it ends, from `branch_ends`.
        path: PNG file to write.
    """
    branches = sorted({row["branch"] for row in rows}, reverse=True)
    omegas, alphas = (sorted({row[name] for row in rows}) for name in ("omega", "alpha"))
    width, height = (np.diff(one).min() if len(one) > 1 else 1.0 for one in (omegas, alphas))
    lowest = [row for row in rows if row["lowest"]]
    panels = [(f"{name} branch", [row for row in rows if row["branch"] == name]) for name in branches]
    panels.append(("branch of lowest training loss", lowest))
    with styled_figure(path, 4.2 * len(panels) + 1.0, 4.8) as figure:
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        style: Any = {"norm": LogNorm(NEGLIGIBLE_LOSS, 1.0), "shading": "nearest"}
        style["cmap"] = colormaps["viridis_r"].with_extremes(under="#f2f2ec", bad="white")
        missing: Any = {"edgecolor": "#bbbbbb", "hatch": "///"}
        for axis, (title, chosen) in zip(axes, panels, strict=True):
            # A logarithm has no zero.
            losses = [max(row["self_overlap_loss"], NEGLIGIBLE_LOSS / 10) for row in chosen]
            values = values_on_grid(chosen, losses, alphas, omegas)
            mesh = axis.pcolormesh(omegas, alphas, values, **style)
            for i, j in np.argwhere(np.isnan(values)):
                corner = (omegas[j] - width / 2, alphas[i] - height / 2)
                axis.add_patch(Rectangle(corner, width, height, facecolor="none", linewidth=0, **missing))
            axis.grid(False)
            axis.set(title=title, xlabel=OMEGA.split("  ")[0])
        for axis, name in zip(axes, branches, strict=False):
            for line in ends.get(name, ()):
                if len(line):
                    axis.plot(*np.array(sorted(line)).T, color="black", linewidth=1.2, marker=".")
        owners = values_on_grid(lowest, [branches.index(row["branch"]) for row in lowest], alphas, omegas)
        if len(np.unique(owners[np.isfinite(owners)])) > 1:
            axes[-1].contour(omegas, alphas, owners, levels=[0.5], colors="black", linewidths=1.4)
        axes[0].set_ylabel(ALPHA)
        bar = figure.colorbar(mesh, ax=axes, extend="min", pad=0.01)
        bar.set_label(f"self-overlap loss D*/q  (below {NEGLIGIBLE_LOSS:g}: negligible)")
        handles: list[Any] = [
            legend_entry("end of the branch; equal training loss on the right", "black"),
            Patch(facecolor="white", label="no solution found", **missing),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=2)


def build_page(results: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return the report on the stability map as a list of paragraphs, tables and pictures.

    Args:
        results: results of the run by key, see `ReproductionRun.results`.
        rows: rows of the table of solutions, from `table_rows`.
    """
    winners = [row for row in rows if row["lowest"]]
    stable = [row for row in winners if row["self_overlap_loss"] + row["self_overlap_loss_error"] < NEGLIGIBLE_LOSS]
    worst = max(winners, key=lambda row: row["self_overlap_loss"])
    lines = []
    for name in BRANCHES:
        for omega in sorted(float(omega) for omega in results["map"][name]):
            here = {r["alpha"]: r["self_overlap_loss"] for r in rows if (r["branch"], r["omega"]) == (name, omega)}
            calm = [alpha for alpha, loss in here.items() if loss < NEGLIGIBLE_LOSS]
            found: list[Any] = [None] * 3
            if here:
                span, largest = f"{min(here):g} to {max(here):g}", f"{max(here.values()):.2g}"
                found = [span, largest, min(calm, default="nowhere")]
            lines.append([name, omega, *found])
    return [
        "# Is the replica-symmetric phase diagram right?",
        f"{results['model']}, saddleforge {results['version']}. The self-overlap loss is the fraction of q that an "
        "estimate loses to itself because the proximal map jumps, or because the replicon is above 1: the largest "
        "fixed point D* of the map of two copies, over q. Zero: the replica-symmetric solution is self-consistent.",
        f"On the branch of lowest training loss it is below {NEGLIGIBLE_LOSS:g} at {len(stable)} of {len(winners)} "
        f"points; its largest value there is "
        f"{format_value_with_error(worst['self_overlap_loss'], worst['self_overlap_loss_error'])}"
        f", on the {worst['branch']} branch at alpha = {worst['alpha']:g}, omega = {worst['omega']:g}.",
        Picture(
            STABILITY,
            "Colour: self-overlap loss; light grey: negligible. Black: where a branch ends, and on the right where the "
            "branches change places. Hatched: no solution found.",
        ),
        Table("branch | omega | found at alpha | largest loss | negligible from alpha", lines),
    ]
