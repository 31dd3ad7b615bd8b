"""Figure of the self-overlap that is lost over omega and alpha."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from ...report.plots.drawing import STYLE, parameter_label, save_figure
from ...stability.assess import NEGLIGIBLE_LOSS


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
