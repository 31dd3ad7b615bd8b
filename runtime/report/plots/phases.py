"""The figure of a phase diagram: named regions, boundaries with error bars, hatching."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
import xarray
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ...base.options import AlgorithmOptions
from ...extensions.planes.boundaries import BRACKETED, CROSSING, REPLICON, SPINODAL
from ...extensions.planes.codim2_points import UNCONFIRMED
from ...problems.columns import table_column_name
from ...stability.assess import MARGINAL
from ..phases import describe_boundary
from . import drawing
from .drawing import BRANCH_COLOURS, GREEN, GREY, ORANGE, PINK, SKY

_KINDS: dict[str, tuple[Any, str]] = {
    CROSSING: ("-", "o"),
    SPINODAL: ("--", "s"),
    REPLICON: (":", "^"),
}  # jumps: the end of hatching
_BROKEN = (
    ("unstable", "replicon", "RS unstable, replicon", "////"),
    ("unstable", "jumps", "RS unstable, jumps", ".."),
    ("replica_symmetry", MARGINAL, "RS marginal: replicon 1 within its error", "\\\\\\\\"),
)  # variable of the dataset, its value, label, hatch
_OTHERS = (ORANGE, GREEN, PINK, SKY)


@dataclass(frozen=True)
class PhaseFigureOptions(AlgorithmOptions):
    """Options of the figure of a phase diagram.

    Attributes:
        white_fraction: fraction of white mixed into the colour of a region.
        row_half_height: half the height of a diagram of a single row, relative to max(|second parameter|, 1).
        pixels: pixels along both axes; more give smoother boundaries and take longer.
        min_label_width: smallest width of a region that gets a letter, as a fraction of the width of the figure.
        frame_weight: factor on the widths of the first and last row when the row for a letter is chosen, below 1.
        label_margin: smallest distance of a letter from the frame, as a fraction of the height of the figure.
    """

    white_fraction: float = 0.72
    row_half_height: float = 0.05
    pixels: int = 400
    min_label_width: float = 0.015
    frame_weight: float = 0.5
    label_margin: float = 0.04


def plot_phases(dataset: xarray.Dataset, path: str | Path | None = None) -> Figure:
    """Draw a phase diagram: regions by the branch of lowest loss, boundaries with error bars, triple points as stars.

    Regions have letters, which the legend explains. They are hatched where replica symmetry of the branch of lowest
    loss is unstable (by the replicon or by jumps) or marginal.

    Args:
        dataset: table from `phase_tables.phase_diagram_dataset`, or loaded from a file.
        path: PNG, PDF or SVG file to write; None: the figure is only returned.
    """
    names = json.loads(dataset.attrs["phases"])
    if dataset.sizes[table_column_name(names[1])] == 1:  # an interrupted diagram
        dataset = _widen_single_grid_row(dataset, table_column_name(names[1]))
    x, y = _parameter_values_of_grid(dataset)
    pixels = PhaseFigureOptions.current().pixels
    branches = [str(name) for name in dataset["solution"].values]
    spare = iter(_OTHERS * len(branches))
    colours = {name: BRANCH_COLOURS.get(name) or next(spare) for name in branches}
    with drawing.new_figure(9.2, 5.4, path) as figure:
        axes = figure.subplots()
        axes.grid(False)
        numbers = np.array([[branches.index(n) if n else -1 for n in row] for row in dataset["lowest"].values.tolist()])
        shades = ListedColormap([_lighten_colour(colours[name]) for name in branches])
        fine = np.linspace(x[0], x[-1], pixels), np.linspace(y[0], y[-1], pixels)
        regions = _branches_of_lowest_loss(dataset, numbers, *fine)
        masked = np.ma.masked_less(regions, 0)
        axes.pcolormesh(*fine, masked, cmap=shades, vmin=-0.5, vmax=len(branches) - 0.5, shading="nearest", zorder=0)
        broken = [
            (label, marks, _pixels_with_stability_verdict(dataset[name].values == why, dataset, regions, *fine))
            for name, why, label, marks in _BROKEN
            if name in dataset
        ]
        for _, marks, where in broken:
            if where.any():
                marked = axes.contourf(*fine, where, levels=[0.5, 1.5], colors="none", hatches=[marks], zorder=1)
                marked.set(edgecolor=GREY, linewidth=0)
        lines = _draw_phase_boundaries(axes, dataset, colours)
        triple = _draw_codim2_points(axes, dataset)
        named = _label_regions(axes, dataset)
        axes.set_xlim(x[0], x[-1])
        axes.set_ylim(y[0], y[-1])
        axes.set_xlabel(drawing.parameter_axis_label(names[0]))
        axes.set_ylabel(drawing.parameter_axis_label(names[1]))
        unjudged = [] if dataset.attrs.get("judged", 1) else ["replica symmetry not judged"]
        held = [*drawing.describe_scalar_parameters(dataset), *drawing.replica_symmetry_warning(dataset), *unjudged]
        axes.set_title(
            "\n".join([f"Phases of {drawing.describe_model_and_omega(dataset)}", *held]), loc="left", fontsize=10
        )
        drawn = [name for n, name in enumerate(branches) if n in numbers]
        extra = [Patch(facecolor=_lighten_colour(colours[name]), label=f"{name} is lowest") for name in drawn]
        extra += [
            Patch(facecolor="none", edgecolor=GREY, hatch=marks, label=label) for label, marks, at in broken if at.any()
        ]
        drawing.draw_legend(axes, [*named, *lines, *triple, *extra])
    return figure


def _widen_single_grid_row(dataset: xarray.Dataset, second: str) -> xarray.Dataset:
    """Return a phase diagram with a single row as one with two equal rows, so that it can be drawn as a narrow band."""
    at = float(dataset[second][0])
    height = PhaseFigureOptions.current().row_half_height
    sides = [at + sign * height * max(abs(at), 1.0) for sign in (-1, 1)]
    points = dataset.sizes["point"]
    wide = dataset.isel({second: [0, 0], "point": [*range(points)] * 2}).assign_coords({second: sides})
    wide["at"] = ("point", np.repeat(sides, points))
    return wide


def _parameter_values_of_grid(dataset: xarray.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of both parameters of a phase diagram at which solutions were computed."""
    first, second = (table_column_name(name) for name in json.loads(dataset.attrs["phases"]))
    return dataset[first].values, dataset[second].values


def _branches_of_lowest_loss(
    dataset: xarray.Dataset, numbers: np.ndarray, wide: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Return the number of the branch of lowest training loss at every pixel, shape (pixels, pixels).

    Each row of the phase diagram is cut at its boundaries. Between rows with the same sequence of branches the cuts are
    interpolated linearly; otherwise the nearer row is taken.
    """
    x, y = _parameter_values_of_grid(dataset)
    rows = [_branch_changes_along_row(dataset, numbers[r], x, at) for r, at in enumerate(y)]
    found = np.empty((len(high), len(wide)), int)
    for n, at in enumerate(high):
        upper = int(np.clip(np.searchsorted(y, at), 1, len(y) - 1))
        share = (at - y[upper - 1]) / (y[upper] - y[upper - 1])
        (names, cuts), (others, above) = rows[upper - 1], rows[upper]
        if names == others:
            cuts = _interpolate_boundaries_between_rows(dataset, (y[upper - 1], y[upper]), (cuts, above), share)
        elif share > 0.5:
            names, cuts = others, above
        found[n] = np.array(names)[np.searchsorted(cuts, wide)]
    return found


def _interpolate_boundaries_between_rows(
    dataset: xarray.Dataset, ends: tuple[float, float], cuts: tuple[np.ndarray, np.ndarray], share: float
) -> np.ndarray:
    """Return the cuts between regions, interpolated between two rows of the grid through codimension-2 points."""
    found = (1 - share) * cuts[0] + share * cuts[1]
    for value, at, _ in _confirmed_codim2_points(dataset) if len(found) else ():
        there = (at - ends[0]) / (ends[1] - ends[0])
        if 0 < there < 1:
            k = int(np.abs((1 - there) * cuts[0] + there * cuts[1] - value).argmin())
            found[k] = np.interp(share, (0, there, 1), (cuts[0][k], value, cuts[1][k]))
    return np.maximum.accumulate(found)


def _branch_changes_along_row(
    dataset: xarray.Dataset, numbers: np.ndarray, x: np.ndarray, at: float
) -> tuple[list[int], np.ndarray]:
    """Return the lowest-loss branches in turn along a row of the grid, and the parameter values where they change."""
    places = np.flatnonzero(np.diff(numbers))
    kinds, here = dataset["kind"].values, dataset["at"].values == at
    located = dataset["value"].values
    cuts = []
    for n in places:
        near = here & (located >= x[n]) & (located <= x[n + 1])
        for kind in (CROSSING, SPINODAL):
            if (near & (kinds == kind)).any():
                cuts.append(float(located[near & (kinds == kind)][0]))
                break
        else:
            cuts.append((x[n] + x[n + 1]) / 2)
    return [int(numbers[0]), *(int(numbers[n + 1]) for n in places)], np.maximum.accumulate(np.array(cuts, float))


def _pixels_with_stability_verdict(
    through: np.ndarray, dataset: xarray.Dataset, regions: np.ndarray, wide: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Return a mask of the pixels at which the branch of lowest loss has a given verdict, by the nearest grid point."""
    x, y = _parameter_values_of_grid(dataset)
    found = np.isfinite(dataset["training_loss"].values)
    rows = np.abs(high[:, None] - y).argmin(axis=1)
    out = np.zeros(regions.shape)
    for b in range(len(through)):
        nearest = np.zeros((len(y), len(wide)), bool)
        for n in range(len(y)):
            has = np.flatnonzero(found[b, n])
            if len(has):
                nearest[n] = through[b, n, has[np.abs(wide[:, None] - x[has]).argmin(axis=1)]]
        out[(regions == b) & nearest[rows]] = 1
    return out


def _phase_boundary_lines(dataset: xarray.Dataset) -> list[tuple[str, str, np.ndarray]]:
    """Return kind, branches and points of every boundary line of a phase diagram.

    Points have shape (N points, 4): first parameter, its error bar, second parameter, 1 if only bracketed. If rows have
    several boundaries of one kind, the first of each row form one line, the second ones another.
    """
    table = zip(
        *(dataset[n].values.tolist() for n in ("kind", "between", "at", "value", "error", "located")), strict=True
    )
    found = []
    for (kind, between), group in groupby(sorted(table), key=lambda row: row[:2]):
        lines: dict[int, list[tuple[float, float, float, float]]] = {}
        for at, row in groupby(group, key=lambda row: row[2]):
            for number, (_, _, _, value, error, status) in enumerate(row):
                lines.setdefault(number, []).append((value, error, at, float(status == BRACKETED)))
        found += [(kind, between, np.array(points)) for points in lines.values()]
    return found


def _draw_phase_boundaries(axes: Axes, dataset: xarray.Dataset, colours: dict[str, str]) -> list[Line2D]:
    """Draw the boundaries of the phases with error bars, joined by lines; return their legend entries."""
    handles: dict[tuple[str, str], Line2D] = {}
    for kind, between, points in _phase_boundary_lines(dataset):
        if kind not in _KINDS:
            continue
        style, marker = _KINDS[kind]
        value, error, at, _ = points.T
        look: dict[str, Any] = {
            "color": "black" if kind == CROSSING else colours.get(between, GREY), "marker": marker, "markersize": 3.5,
        }  # fmt: skip
        axes.plot(*_extend_to_codim2_points(dataset, kind, between, points), style, color=look["color"], zorder=3)
        axes.errorbar(value, at, xerr=error, linestyle="none", capsize=2, zorder=4, **look)
        handles[kind, between] = Line2D([], [], linestyle=style, label=describe_boundary(kind, (between,)), **look)
    return list(handles.values())


def _confirmed_codim2_points(dataset: xarray.Dataset) -> list[tuple[float, float, list[list[str]]]]:
    """Return, for every confirmed codimension-2 point, both parameters and the boundaries that meet there."""
    if not dataset.sizes.get("triple"):
        return []
    columns = (dataset[f"triple_{n}"].values.tolist() for n in ("value", "at", "lines", "located"))
    return [
        (value, at, json.loads(lines))
        for value, at, lines, located in zip(*columns, strict=True)
        if located not in (BRACKETED, UNCONFIRMED)
    ]


def _extend_to_codim2_points(
    dataset: xarray.Dataset, kind: str, between: str, points: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return both parameters along a boundary line, extended to the codimension-2 points in which it ends."""
    y = np.sort(_parameter_values_of_grid(dataset)[1])
    line = {float(at): float(value) for value, _, at, _ in points}
    for value, at, lines in _confirmed_codim2_points(dataset):
        upper = int(np.clip(np.searchsorted(y, at), 1, len(y) - 1))
        rows_on_line = sum(float(row) in line for row in y[upper - 1 : upper + 1])
        if [kind, between] in lines and (rows_on_line == 1 or (rows_on_line == 2 and kind == SPINODAL)):
            line[at] = value
    heights = np.array(sorted(line))
    return np.array([line[at] for at in heights]), heights


def _draw_codim2_points(axes: Axes, dataset: xarray.Dataset) -> list[Line2D]:
    """Draw codimension-2 points as stars with error bars, grey if not confirmed; return their legend entries."""
    handles: list[Line2D] = []
    if not dataset.sizes.get("triple"):
        return handles
    for unsure in (False, True):
        some = dataset.isel(triple=(dataset["triple_located"].values == UNCONFIRMED) == unsure)
        if not some.sizes["triple"]:
            continue
        value, error, at, at_error = (some[f"triple_{n}"].values for n in ("value", "error", "at", "at_error"))
        look: dict[str, Any] = {"color": GREY if unsure else "black", "markerfacecolor": "white", "markersize": 9}
        axes.errorbar(value, at, yerr=at_error, xerr=error, fmt="*", capsize=2, zorder=5, **look)
        label = "triple point, unconfirmed" if unsure else "triple point"
        handles.append(Line2D([], [], linestyle="none", marker="*", label=label, **look))
    return handles


def _label_regions(axes: Axes, dataset: xarray.Dataset) -> list[Patch]:
    """Draw a letter in every phase, at the row in which the phase is widest; return the legend entries."""
    options = PhaseFigureOptions.current()
    x, y = _parameter_values_of_grid(dataset)
    widest: dict[str, tuple[float, float, float]] = {}  # (fraction of the width, reduced at the frame; position)
    for r, at in enumerate(y):
        inner = 1.0 if 0 < r < len(y) - 1 else options.frame_weight
        for name, left, right in _phases_along_row(dataset, r, x):
            share = inner * (right - left) / np.ptp(x)
            if share > widest.get(name, (0.0, 0.0, 0.0))[0]:
                widest[name] = share, (left + right) / 2, float(at)
    margin = options.label_margin * np.ptp(y)
    named = []
    phases = map(str, dict.fromkeys(dataset["phase"].values.ravel()))
    for letter, name in zip(ascii_uppercase, phases, strict=False):
        share, value, at = widest[name]
        if share >= options.min_label_width:
            inside = float(np.clip(at, y[0] + margin, y[-1] - margin))
            text = axes.text(value, inside, letter, ha="center", va="center", fontsize=11, weight="bold")
            text.set_path_effects([patheffects.withStroke(linewidth=3, foreground="white")])
        named.append(Patch(facecolor="none", edgecolor="none", label=f"{letter}: {name}"))
    return named


def _phases_along_row(dataset: xarray.Dataset, r: int, x: np.ndarray) -> Iterator[tuple[str, float, float]]:
    """Yield every phase along a row of the grid, with the values of the first parameter at its two ends."""
    names, at = dataset["phase"].values[r].tolist(), float(dataset[dataset["phase"].dims[0]].values[r])
    here = dataset["value"].values[(dataset["at"].values == at) & np.isin(dataset["kind"].values, (CROSSING, SPINODAL))]
    left, start = float(x[0]), 0
    for n in range(1, len(names) + 1):
        if n < len(names) and names[n] == names[start]:
            continue
        if n == len(names):
            yield names[start], left, float(x[-1])
            return
        within = here[(here >= x[n - 1]) & (here <= x[n])]
        first, last = (within.min(), within.max()) if len(within) else ((x[n - 1] + x[n]) / 2,) * 2
        yield names[start], left, float(first)
        left, start = float(last), n


def _lighten_colour(colour: str) -> tuple[float, float, float]:
    white = PhaseFigureOptions.current().white_fraction
    red, green, blue = (value + white * (1 - value) for value in to_rgb(colour))
    return red, green, blue
