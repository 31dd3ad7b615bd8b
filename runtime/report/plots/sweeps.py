"""Figures of sweeps: families of curves along one axis, maps along two."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ...base.errors import InputError
from ...problems.columns import OBSERVED, quantity_in_column, table_column_name
from ...stability.assess import MARGINAL, UNSTABLE
from . import drawing
from .drawing import BRANCH_COLOURS, GREY, ORANGE, SYMBOLS, FigureOptions

Quantities = dict[str, tuple[str, xarray.DataArray]]
Families = list[tuple[str, dict[str, Any]]]
_MISSING = "#eeeeee"
_HATCHES, _MARKERS = {UNSTABLE: "////", MARGINAL: "\\\\\\\\"}, {UNSTABLE: "x", MARGINAL: "+"}
_LINES: tuple[Any, ...] = ("-", "--", ":", "-.")


def plot_sweep(dataset: xarray.Dataset, path: str | Path | None = None) -> Figure:
    """Draw overlaps, training loss and test error of a sweep: curves along one parameter, maps along two.

    Further parameters are kept at their first values, as the title says. Hatching on maps and crosses on curves mark
    solutions that are unstable or marginal.

    Args:
        dataset: table from `sweep_tables.sweep_dataset`, or loaded from a file.
        path: PNG, PDF or SVG file to write; None: the figure is only returned.

    Raises:
        InputError: the sweep is over a list of points, which has no axes.
    """
    axes = [table_column_name(name) for name in json.loads(dataset.attrs["sweep"])["axes"]]
    if not axes:
        raise InputError("a sweep over a list of points has no axes to draw along; draw the columns of to_pandas()")
    held = {name: float(dataset[name][0]) for name in axes[2:]}
    dataset = dataset.isel(dict.fromkeys(axes[2:], 0))
    quantities = _plotted_quantities(dataset)
    families, has_maps = (
        _starts_and_directions_of_sweep(dataset),
        len(axes) > 1 and min(dataset.sizes[name] for name in axes[:2]) > 1,
    )
    size = (2.5 * len(quantities) + 0.8, 2.1 * len(families) + 1.2) if has_maps else (7.5, 1.9 * len(quantities) + 0.8)
    with drawing.new_figure(*size, path) as figure:
        draw = _draw_sweep_maps if has_maps else _draw_sweep_curves
        draw(figure, dataset, axes[:2], quantities, families)
        fixed = [f"{SYMBOLS.get(name, name)} = {value:g}" for name, value in held.items()]
        title = ", ".join([f"Sweep of {drawing.describe_model_and_omega(dataset)}", *fixed])
        notes = [*drawing.describe_scalar_parameters(dataset), *drawing.replica_symmetry_warning(dataset)]
        figure.suptitle("\n".join([title, *notes]), x=0.01, ha="left", fontsize=10)
    return figure


def _plotted_quantities(dataset: xarray.Dataset) -> Quantities:
    """Return, by name, the quantities of a sweep to draw: a label, and an array with one number per point."""
    found = {}
    for name in ("theta", "m", "q"):
        there = drawing.token_cluster_pairs_with_overlap(dataset, name)
        values = dataset[name]
        inner = quantity_in_column(name).axes
        several = np.prod([values.sizes[axis] for axis in inner]) > 1
        symbol = drawing.overlap_symbol(dataset, name).strip("|")
        if there:
            label = f"largest |{symbol}|" if several and name != "q" else f"largest {symbol}" if several else symbol
            found[name] = (label, abs(values).max(inner))
    found |= {name: (name.replace("_", " "), dataset[name]) for name in OBSERVED if name in dataset}
    return {name: pair for name, pair in found.items() if np.isfinite(pair[1].values).any()}


def _instability_masks(dataset: xarray.Dataset) -> dict[str, xarray.DataArray]:
    """Return two masks of the points of a sweep: where replica symmetric solutions are unstable, and where marginal."""
    names = [name for name in ("replica_symmetry", "longitudinal") if name in dataset]
    if not names:  # of a release without these columns
        return {UNSTABLE: (dataset["unstable"] != "") | (dataset["longitudinal_eigenvalue"] >= 1)}
    found = {verdict: dataset[names].to_dataarray().isin([verdict]).any("variable") for verdict in (UNSTABLE, MARGINAL)}
    return {UNSTABLE: found[UNSTABLE], MARGINAL: found[MARGINAL] & ~found[UNSTABLE]}


def _starts_and_directions_of_sweep(dataset: xarray.Dataset) -> Families:
    """Return, for every start and direction of a sweep, a label and the dict that selects its points."""
    names = [name for name in ("start", "direction") if name in dataset.dims]
    every = product(*(map(str, dataset[name].values) for name in names))
    return [(", ".join(values), dict(zip(names, values, strict=True))) for values in every]


def _draw_sweep_maps(
    figure: Figure, dataset: xarray.Dataset, axes: list[str], quantities: Quantities, families: Families
) -> None:
    """Draw a row of maps for each start and direction, with one colour scale per quantity."""
    judged = _instability_masks(dataset)
    panels = figure.subplots(len(families), len(quantities), sharex=True, sharey=True, squeeze=False)
    x, y = (dataset[name].values for name in axes)
    across, up = np.argsort(x), np.argsort(y)
    for column, (label, values) in enumerate(quantities.values()):
        low, high = float(values.min()), float(values.max())
        for row, (family, chosen) in enumerate(families):
            panel: Axes = panels[row, column]
            panel.set_facecolor(_MISSING)
            panel.grid(False)
            shown = values.sel(chosen).transpose(axes[1], axes[0]).values[np.ix_(up, across)]
            drawn = panel.pcolormesh(x[across], y[up], shown, vmin=low, vmax=high, cmap="viridis", shading="nearest")
            drawn.set_rasterized(True)
            for verdict, where in judged.items():
                there = where.sel(chosen).transpose(axes[1], axes[0]).values[np.ix_(up, across)]
                if there.any():
                    _hatch_map_cells(panel, x[across], y[up], there, _HATCHES[verdict])
            if row == 0:
                panel.set_title(label, fontsize=10)
                figure.colorbar(drawn, ax=panels[:, column], location="bottom", shrink=0.9, pad=0.02)
            if column == 0:
                panel.set_ylabel(f"{family}\n{SYMBOLS.get(axes[1], axes[1])}", fontsize=9)
            if row == len(families) - 1:
                panel.set_xlabel(SYMBOLS.get(axes[0], axes[0]), fontsize=9)
    extra = [Patch(facecolor=_MISSING, edgecolor=GREY, linewidth=0.5, label="no solution on the branch")]
    for verdict in (verdict for verdict, where in judged.items() if where.any()):
        words = f"replica symmetry {verdict}"
        extra.append(Patch(facecolor="none", edgecolor=GREY, hatch=_HATCHES[verdict], label=words))
    figure.legend(handles=extra, loc="outside lower right", ncols=2)


def _hatch_map_cells(panel: Axes, x: np.ndarray, y: np.ndarray, where: np.ndarray, hatch: str) -> None:
    """Hatch those cells of a map at which `where` is true."""
    masked = np.ma.masked_where(~where, np.ones(where.shape))
    nothing = ListedColormap([(0, 0, 0, 0)])
    panel.pcolor(x, y, masked, shading="nearest", cmap=nothing, hatch=hatch, edgecolor="white", linewidth=0)


def _draw_sweep_curves(
    figure: Figure, dataset: xarray.Dataset, axes: list[str], quantities: Quantities, families: Families
) -> None:
    """Draw curves along one parameter of a sweep, one curve for each of up to a dozen values of the other parameter."""
    over = axes[0] if len(axes) == 1 or dataset.sizes[axes[0]] > 1 else axes[1]
    other = next((name for name in axes if name != over), None)
    judged = _instability_masks(dataset)
    panels = figure.subplots(len(quantities), 1, sharex=True, squeeze=False)[:, 0]
    x = dataset[over].values
    order = np.argsort(x)
    for panel, (name, (label, values)) in zip(panels, quantities.items(), strict=True):
        for number, (family, chosen) in enumerate(families):
            at = dataset[other].values if other is not None else np.zeros(1)
            for value in at[:: max(1, len(at) // FigureOptions.current().max_curves)]:
                here = chosen if other is None else {**chosen, other: value}
                line = values.sel(here).values[order]
                colour = BRANCH_COLOURS.get(chosen["start"], ORANGE)
                if len(at) > 1:
                    colour = colormaps["viridis"]((value - at.min()) / (at.max() - at.min()) * 0.9)
                style = _LINES[number % len(_LINES)]
                panel.plot(x[order], line, style, color=colour, marker=".", label=family if value == at[0] else None)
                for verdict, where in judged.items():
                    there = where.sel(here).values[order]
                    if there.any():
                        panel.plot(x[order][there], line[there], _MARKERS[verdict], color=colour, markersize=7)
                if f"{name}_error" in dataset and name in OBSERVED:
                    error = dataset[f"{name}_error"].sel(here).values[order]
                    drawing.draw_error_band(panel, x[order], line, error, colour, alpha=0.2)
        panel.set_ylabel(label)
    handles = [
        Line2D([], [], linestyle=_LINES[n % len(_LINES)], color=BRANCH_COLOURS.get(c["start"], ORANGE), label=f)
        for n, (f, c) in enumerate(families)
    ]
    handles += [
        Line2D([], [], linestyle="", marker=_MARKERS[verdict], color=GREY, label=verdict)
        for verdict, where in judged.items()
        if where.any()
    ]
    figure.legend(handles=handles, loc="outside right upper")
    panels[-1].set_xlabel(drawing.parameter_axis_label(over))
