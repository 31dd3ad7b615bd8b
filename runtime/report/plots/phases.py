"""The picture of a phase diagram: named regions, boundaries with half widths, hatching."""

from __future__ import annotations

import json
from collections.abc import Iterator
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

from ...extensions.planes.boundaries import BRACKETED, CROSSING, REPLICON, SPINODAL
from ...extensions.planes.meetings import UNCONFIRMED
from ...problems.columns import column_of
from ...stability.assess import MARGINAL
from ..phases import boundary_name
from . import drawing
from .drawing import BRANCH_COLOURS, GREEN, GREY, ORANGE, PINK, SKY

_KINDS: dict[str, tuple[Any, str]] = {
    CROSSING: ("-", "o"),
    SPINODAL: ("--", "s"),
    REPLICON: (":", "^"),
}  # jumps are negligible where hatching ends
_BROKEN = (
    ("unstable", "replicon", "RS unstable, replicon", "////"),
    ("unstable", "jumps", "RS unstable, jumps", ".."),
    ("replica_symmetry", MARGINAL, "RS marginal: replicon 1 within its error", "\\\\\\\\"),
)  # variable of the dataset, its value, label, hatch
_OTHERS = (ORANGE, GREEN, PINK, SKY)
_LIGHT = 0.72  # of a colour's way to white, as a region
_BAND = 0.05  # half height of a single row, relative to its place or 1
_FINE = 400  # points of regions along both axes
_NAMED = 0.015  # least share of the width of a region that has room for its letter
_AT_FRAME, _MARGIN = 0.5, 0.04  # what a row at the frame counts, and how far from it a letter stands


def plot_phases(dataset: xarray.Dataset, path: str | Path | None = None) -> Figure:
    """Regions by the lowest branch, with letters that the legend explains; boundaries as lines with half widths, triple
    points as stars; hatched where replica symmetry of the lowest branch is unstable, through the replicon or jumps, or
    marginal.

    Args:
        dataset: from `phase_tables.phases_dataset`, or loaded.
    """
    names = json.loads(dataset.attrs["phases"])
    if dataset.sizes[column_of(names[1])] == 1:  # an interrupted diagram
        dataset = _widened(dataset, column_of(names[1]))
    x, y = _grid(dataset)
    branches = [str(name) for name in dataset["solution"].values]
    spare = iter(_OTHERS * len(branches))
    colours = {name: BRANCH_COLOURS.get(name) or next(spare) for name in branches}
    with drawing.new_figure(9.2, 5.4, path) as figure:
        axes = figure.subplots()
        axes.grid(False)
        numbers = np.array([[branches.index(n) if n else -1 for n in row] for row in dataset["lowest"].values.tolist()])
        shades = ListedColormap([_lighter(colours[name]) for name in branches])
        fine = np.linspace(x[0], x[-1], _FINE), np.linspace(y[0], y[-1], _FINE)
        regions = _regions(dataset, numbers, *fine)
        masked = np.ma.masked_less(regions, 0)
        axes.pcolormesh(*fine, masked, cmap=shades, vmin=-0.5, vmax=len(branches) - 0.5, shading="nearest", zorder=0)
        broken = [
            (label, marks, _where(dataset[name].values == why, dataset, regions, *fine))
            for name, why, label, marks in _BROKEN
            if name in dataset
        ]
        for _, marks, where in broken:
            if where.any():
                marked = axes.contourf(*fine, where, levels=[0.5, 1.5], colors="none", hatches=[marks], zorder=1)
                marked.set(edgecolor=GREY, linewidth=0)
        lines = _draw_boundaries(axes, dataset, colours)
        triple = _draw_triple_points(axes, dataset)
        named = _name_regions(axes, dataset)
        axes.set_xlim(x[0], x[-1])
        axes.set_ylim(y[0], y[-1])
        axes.set_xlabel(drawing.parameter_label(names[0]))
        axes.set_ylabel(drawing.parameter_label(names[1]))
        unjudged = [] if dataset.attrs.get("judged", 1) else ["replica symmetry not judged"]
        held = [*drawing.held_numbers(dataset), *drawing.ansatz_note(dataset), *unjudged]
        axes.set_title("\n".join([f"Phases of {drawing.setting_of(dataset)}", *held]), loc="left", fontsize=10)
        drawn = [name for n, name in enumerate(branches) if n in numbers]
        extra = [Patch(facecolor=_lighter(colours[name]), label=f"{name} is lowest") for name in drawn]
        extra += [
            Patch(facecolor="none", edgecolor=GREY, hatch=marks, label=label) for label, marks, at in broken if at.any()
        ]
        drawing.draw_legend(axes, [*named, *lines, *triple, *extra])
    return figure


def _widened(dataset: xarray.Dataset, second: str) -> xarray.Dataset:
    """A diagram of one row as a band around it, on both of whose edges everything is as on the row."""
    at = float(dataset[second][0])
    sides = [at + sign * _BAND * max(abs(at), 1.0) for sign in (-1, 1)]
    points = dataset.sizes["point"]
    wide = dataset.isel({second: [0, 0], "point": [*range(points)] * 2}).assign_coords({second: sides})
    wide["at"] = ("point", np.repeat(sides, points))
    return wide


def _grid(dataset: xarray.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The values of both parameters."""
    first, second = (column_of(name) for name in json.loads(dataset.attrs["phases"]))
    return dataset[first].values, dataset[second].values


def _regions(dataset: xarray.Dataset, numbers: np.ndarray, wide: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The lowest branch on a fine grid: rows are cut where their boundaries are, and cuts go straight from a row to the
    next where both have the same branches in the same order; else the nearer row counts."""
    x, y = _grid(dataset)
    rows = [_cuts(dataset, numbers[r], x, at) for r, at in enumerate(y)]
    found = np.empty((len(high), len(wide)), int)
    for n, at in enumerate(high):
        upper = int(np.clip(np.searchsorted(y, at), 1, len(y) - 1))
        share = (at - y[upper - 1]) / (y[upper] - y[upper - 1])
        (names, cuts), (others, above) = rows[upper - 1], rows[upper]
        if names == others:
            cuts = _between(dataset, (y[upper - 1], y[upper]), (cuts, above), share)
        elif share > 0.5:
            names, cuts = others, above
        found[n] = np.array(names)[np.searchsorted(cuts, wide)]
    return found


def _between(
    dataset: xarray.Dataset, ends: tuple[float, float], cuts: tuple[np.ndarray, np.ndarray], share: float
) -> np.ndarray:
    """Cuts at a share of the way from row to row: straight, but for the one next to a point where boundaries meet."""
    found = (1 - share) * cuts[0] + share * cuts[1]
    for value, at, _ in _meetings(dataset) if len(found) else ():
        there = (at - ends[0]) / (ends[1] - ends[0])
        if 0 < there < 1:
            k = int(np.abs((1 - there) * cuts[0] + there * cuts[1] - value).argmin())
            found[k] = np.interp(share, (0, there, 1), (cuts[0][k], value, cuts[1][k]))
    return np.maximum.accumulate(found)


def _cuts(dataset: xarray.Dataset, numbers: np.ndarray, x: np.ndarray, at: float) -> tuple[list[int], np.ndarray]:
    """The lowest branches along a row, and where one follows the other: at a boundary, else half way."""
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


def _where(
    through: np.ndarray, dataset: xarray.Dataset, regions: np.ndarray, wide: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Return whether the lowest branch has a verdict, which the nearest point of the grid with one gives."""
    x, y = _grid(dataset)
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


def _series(dataset: xarray.Dataset) -> list[tuple[str, str, np.ndarray]]:
    """Kind, branches and points (N, 4: value, error, at, whether bracketed) of every line; where a row has several of
    one kind, the first ones make a line, then the second ones."""
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


def _draw_boundaries(axes: Axes, dataset: xarray.Dataset, colours: dict[str, str]) -> list[Line2D]:
    """Lines through located boundaries, with their error bars; returns what stands for them in the legend."""
    handles: dict[tuple[str, str], Line2D] = {}
    for kind, between, points in _series(dataset):
        if kind not in _KINDS:
            continue
        style, marker = _KINDS[kind]
        value, error, at, _ = points.T
        look: dict[str, Any] = {
            "color": "black" if kind == CROSSING else colours.get(between, GREY), "marker": marker, "markersize": 3.5,
        }  # fmt: skip
        axes.plot(*_through(dataset, kind, between, points), style, color=look["color"], zorder=3)
        axes.errorbar(value, at, xerr=error, linestyle="none", capsize=2, zorder=4, **look)
        handles[kind, between] = Line2D([], [], linestyle=style, label=boundary_name(kind, (between,)), **look)
    return list(handles.values())


def _meetings(dataset: xarray.Dataset) -> list[tuple[float, float, list[list[str]]]]:
    """Place and second parameter of the points that are located and not doubted, and the lines that may meet there."""
    if not dataset.sizes.get("triple"):
        return []
    columns = (dataset[f"triple_{n}"].values.tolist() for n in ("value", "at", "lines", "located"))
    return [
        (value, at, json.loads(lines))
        for value, at, lines, located in zip(*columns, strict=True)
        if located not in (BRACKETED, UNCONFIRMED)
    ]


def _through(dataset: xarray.Dataset, kind: str, between: str, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A line through its points and those where it meets others: on the way from row to row an end, and a crossing
    where it is on one of the rows only."""
    y = np.sort(_grid(dataset)[1])
    line = {float(at): float(value) for value, _, at, _ in points}
    for value, at, lines in _meetings(dataset):
        upper = int(np.clip(np.searchsorted(y, at), 1, len(y) - 1))
        beside = sum(float(row) in line for row in y[upper - 1 : upper + 1])
        if [kind, between] in lines and (beside == 1 or (beside == 2 and kind == SPINODAL)):
            line[at] = value
    heights = np.array(sorted(line))
    return np.array([line[at] for at in heights]), heights


def _draw_triple_points(axes: Axes, dataset: xarray.Dataset) -> list[Line2D]:
    """Where boundaries meet, with half widths, and what stands for them in the legend; grey where not confirmed."""
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


def _name_regions(axes: Axes, dataset: xarray.Dataset) -> list[Patch]:
    """A letter for every phase where a row is widest in it, and what the letters stand for in the legend."""
    x, y = _grid(dataset)
    widest: dict[str, tuple[float, float, float]] = {}  # share of the width, less at the frame, and the place
    for r, at in enumerate(y):
        inner = 1.0 if 0 < r < len(y) - 1 else _AT_FRAME
        for name, left, right in _stretches(dataset, r, x):
            share = inner * (right - left) / np.ptp(x)
            if share > widest.get(name, (0.0, 0.0, 0.0))[0]:
                widest[name] = share, (left + right) / 2, float(at)
    margin = _MARGIN * np.ptp(y)
    named = []
    phases = map(str, dict.fromkeys(dataset["phase"].values.ravel()))
    for letter, name in zip(ascii_uppercase, phases, strict=False):
        share, value, at = widest[name]
        if share >= _NAMED:
            inside = float(np.clip(at, y[0] + margin, y[-1] - margin))
            text = axes.text(value, inside, letter, ha="center", va="center", fontsize=11, weight="bold")
            text.set_path_effects([patheffects.withStroke(linewidth=3, foreground="white")])
        named.append(Patch(facecolor="none", edgecolor="none", label=f"{letter}: {name}"))
    return named


def _stretches(dataset: xarray.Dataset, r: int, x: np.ndarray) -> Iterator[tuple[str, float, float]]:
    """The phases along a row with their ends: at boundaries, else half way."""
    names, at = dataset["phase"].values[r].tolist(), float(dataset[dataset["phase"].dims[0]].values[r])
    here = dataset["value"].values[(dataset["at"].values == at) & np.isin(dataset["kind"].values, (CROSSING, SPINODAL))]
    left, begun = float(x[0]), 0
    for n in range(1, len(names) + 1):
        if n < len(names) and names[n] == names[begun]:
            continue
        if n == len(names):
            yield names[begun], left, float(x[-1])
            return
        within = here[(here >= x[n - 1]) & (here <= x[n])]
        first, last = (within.min(), within.max()) if len(within) else ((x[n - 1] + x[n]) / 2,) * 2
        yield names[begun], left, float(first)
        left, begun = float(last), n


def _lighter(colour: str) -> tuple[float, float, float]:
    red, green, blue = (value + _LIGHT * (1 - value) for value in to_rgb(colour))
    return red, green, blue
