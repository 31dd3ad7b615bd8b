"""Figures of tables: overlaps and errors along a parameter, two branches beside each other, and the phase diagram.

Figures are built without pyplot, so that nothing global is left behind. Colours are those of Okabe and Ito, which stay
apart for colour-blind readers. Lines are solid where the solution is stable (every longitudinal eigenvalue and the
replicon below 1), dashed where it is not or was not judged; shading marks where the proximal map jumps, so that replica
symmetry fails in the strict sense (docs/theory.md section 8).

m is drawn as |m| where the sign of W is free, since W and -W then are the same state (attention), and with its sign
where the loss fixes it (classification of a mixture); neither m nor theta where it is 0 by construction, without means
and encodings or without a teacher in the loss. An axis of losses begins at 0 unless something on it is negative.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any
from urllib.parse import quote

import numpy as np
import xarray
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from .errors import InputError
from .files import check_writable, write_whole
from .naming import OVERLAPS, column_of
from .presenting import plot
from .stability import NEGLIGIBLE_JUMPS, NEGLIGIBLE_LOSS
from .tables import loss_difference

BLUE, ORANGE, GREEN, PINK, SKY, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#555555"
BRANCH_COLOURS = {"semantic": BLUE, "positional": RED, "mixed": GREEN, "uninformed": GREY}
OVERLAP_STYLES = {"m": (RED, "o", "|m|"), "theta": (BLUE, "s", "θ"), "q": (GREEN, "^", "q")}
LOSS_STYLES = {"training_loss": (ORANGE, "o"), "test_error": (PINK, "s")}
_SYMBOLS = {"alpha": "α", "omega": "ω", "sigma": "σ", "lambda": "λ"}
STYLE: Any = {
    "font.size": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
}
_PER_INCH = 130


def parameter_label(parameter: str) -> str:
    """Axis label of a parameter, with what it means where that is known."""
    name = parameter.rstrip("_")
    meaning = {"alpha": "samples per dimension", "omega": "weight of the positional part of the target"}.get(name)
    return _SYMBOLS.get(name, name) + (f"  ({meaning})" if meaning else "")


def save_figure(figure: Figure, path: str | Path, source: str | None = None) -> None:
    """Write PNG, PDF or SVG by the name's ending, whole or not at all; the same figure gives the same bytes.

    Args:
        source: the table it was drawn from, for `is_drawn_from`.

    Raises:
        InputError: the file cannot be written, or its name ends otherwise.
    """
    path = check_writable(Path(path))
    kind = format_of(path)
    mark = {_DESCRIPTIONS[kind]: _mark(source)} if source is not None else {}
    stream = io.BytesIO()
    with rc_context({"svg.hashsalt": "saddleforge"}):
        figure.savefig(stream, format=kind, dpi=_PER_INCH, metadata={_CHANGING[kind]: None, **mark})
    write_whole(path, stream.getvalue())


def format_of(path: Path) -> str:
    """png, pdf or svg, by the ending of a file's name.

    Raises:
        InputError: another ending, or none.
    """
    kind = path.suffix.removeprefix(".")
    if kind not in _DESCRIPTIONS:
        raise InputError(f"cannot write {path}: a name that ends in .png, .pdf or .svg is expected")
    return kind


def is_drawn_from(path: Path, source: str) -> bool:
    """Whether a file is a picture that `save_figure` drew from a table."""
    try:
        return _mark(source).encode() in path.read_bytes()
    except OSError:
        return False


def _mark(source: str) -> str:
    return f"drawn by saddleforge from [{quote(source)}]"


# Of each format: where the table is named, and what would tell two runs apart.
_DESCRIPTIONS = {"png": "Description", "pdf": "Subject", "svg": "Description"}
_CHANGING = {"png": "Software", "pdf": "CreationDate", "svg": "Date"}


@plot.register(xarray.Dataset)
def plot_dataset(dataset: xarray.Dataset, path: str | Path | None = None) -> Figure:
    """Overlaps m, theta and q above, training loss and test error below each with an axis of its own, with error bars,
    along the parameter; of a tuned curve, the best value of what was tuned as well.

    Args:
        dataset: from `tables.curve_dataset`, or loaded.
        path: where to write it, as PNG, PDF or SVG; default, nowhere.

    Raises:
        InputError: the table is not that of a branch.
    """
    if any(name not in dataset for name in OVERLAPS):
        raise InputError(f"the table of {dataset.attrs['model']} holds no branch: it has no overlaps to draw")
    below = _observables(dataset)
    with rc_context(STYLE):
        figure = Figure(figsize=(9.2, 4.2 + 1.9 * len(below)), layout="constrained")
        upper, *lower = figure.subplots(1 + len(below), 1, sharex=True, height_ratios=(3.4, *[1.6] * len(below)))
        held = _held(dataset)
        upper.set_title(_title(dataset), loc="left", pad=8 + 11 * len(held))
        upper.text(0, 1.02, "\n".join(held), transform=upper.transAxes, fontsize=8, color=GREY)
        x, stable = _values(dataset), stable_points(dataset)
        for name in OVERLAP_STYLES:
            _draw_block(upper, dataset, name)
        upper.axhline(0, color=GREY, linewidth=0.6)
        upper.set_ylabel("overlap")
        for axes, (name, (colour, marker, label)) in zip(lower, below.items(), strict=True):
            _draw_line(axes, x, dataset[name].values, dataset[f"{name}_error"].values, stable, colour, marker, label)
            if name == "test_error":
                _draw_baseline(axes, dataset)
            axes.set_ylabel(_broken(label))
            from_zero(axes)
        (upper, *lower)[-1].set_xlabel(parameter_label(dataset.attrs["parameter"]))
        jumps = jump_intervals(dataset)
        marks = [
            {**event, "label": f"{event['type'] if event['kind'] == 'spinodal' else event['kind']}"}
            for event in json.loads(dataset.attrs.get("events", "[]"))
        ]
        for axes in (upper, *lower):
            _draw_marks(axes, marks)
            for left, right in jumps:
                axes.axvspan(left, right, color=GREY, alpha=0.10, linewidth=0, zorder=0)
            _draw_ends(axes, dataset, GREY)
        extra = _style_handles(stable) + _mark_handles(marks) + _end_handles([dataset])
        if jumps:
            extra.append(Patch(color=GREY, alpha=0.2, label="proximal map jumps: RS not strict"))
        _legend(upper, extra)
        for axes in lower:
            if len(axes.get_legend_handles_labels()[1]) > 1:  # one line is named by the axis
                _legend(axes, [])
    if path is not None:
        save_figure(figure, path)
    return figure


def _observables(dataset: xarray.Dataset) -> dict[str, tuple[str, str, str]]:
    """Name -> colour, marker and label of what is drawn below the overlaps: all that the table knows."""
    loss = dataset["training_loss"].attrs.get("long_name", "training loss per d")  # or the free energy
    found = {"training_loss": (*LOSS_STYLES["training_loss"], loss)}
    found["test_error"] = (*LOSS_STYLES["test_error"], "test error")
    if "tuned" in dataset.attrs:
        name = dataset.attrs["tuned"]
        found[f"best_{name}"] = (SKY, "D", f"best {_SYMBOLS.get(name, name)}")
    return {name: style for name, style in found.items() if np.isfinite(dataset[name].values).any()}


def _broken(label: str) -> str:
    """A label of a low panel's axis, on two lines where it is long."""
    return label.replace(" per ", "\nper ")


def from_zero(axes: Axes) -> None:
    """Let an axis of losses begin at 0, unless something drawn on it is negative."""
    low, high = axes.dataLim.intervaly
    if low >= 0 and 0 < high < np.inf:
        axes.set_ylim(0, 1.07 * high)  # whole marks, also where all values are much the same


def plot_overlaps(
    datasets: Mapping[str, xarray.Dataset], path: str | Path | None = None, *, marks: Sequence[Mapping[str, Any]] = ()
) -> Figure:
    """Overlaps of several branches against the parameter (the paper's Fig. 2): theta, |m| and q below each other.

    Args:
        datasets: branch name -> table.
        marks: vertical lines, each with `value`, `error` and `label`.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(9.2, 8.0), layout="constrained")
        panels = figure.subplots(3, 1, sharex=True)
        texts = {"theta": "semantic overlap θ", "m": "positional overlap |m|", "q": "self-overlap q"}
        for axes, (name, label) in zip(panels, texts.items(), strict=True):
            for branch, dataset in datasets.items():
                colour = BRANCH_COLOURS.get(branch, GREY)
                for number, one in enumerate(distinct_entries(dataset, name)):
                    text = f"{branch} branch" if number == 0 else None
                    _draw_line(
                        axes, _values(dataset), one.values, one.errors, stable_points(dataset), colour, "o", text
                    )
            axes.axhline(0, color=GREY, linewidth=0.6)
            axes.set_ylabel(label)
            _draw_strips(axes, datasets)
            _draw_marks(axes, marks)
        _finish_branches(panels[0], panels[-1], datasets, "Overlaps", marks)
    if path is not None:
        save_figure(figure, path)
    return figure


def plot_test_error(
    datasets: Mapping[str, xarray.Dataset], path: str | Path | None = None, *, marks: Sequence[Mapping[str, Any]] = ()
) -> Figure:
    """Test error of several branches against the parameter, with the linear baseline."""
    with rc_context(STYLE):
        figure = Figure(figsize=(9.2, 4.6), layout="constrained")
        axes = figure.subplots()
        for branch, dataset in datasets.items():
            _draw_line(
                axes,
                _values(dataset),
                dataset["test_error"].values,
                dataset["test_error_error"].values,
                stable_points(dataset),
                BRANCH_COLOURS.get(branch, GREY),
                "o",
                f"{branch} branch",
            )
        _draw_baseline(axes, max(datasets.values(), key=lambda d: np.ptp(_values(d)) if len(_values(d)) else 0.0))
        from_zero(axes)
        axes.set_ylabel("test error per token")
        _draw_strips(axes, datasets)
        _draw_marks(axes, marks)
        _finish_branches(axes, axes, datasets, "Test error", marks)
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
        _draw_marks(axes, marks)
        axes.set_title(f"Difference of training losses, {_setting(one)}", loc="left")
        _legend(axes, _mark_handles(marks))
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
        _legend(axes, [])
    if path is not None:
        save_figure(figure, path)
    return figure


def plot_critical_line(dataset: xarray.Dataset, path: str | Path | None = None) -> Figure:
    """An event along a second parameter, with its half width as a band and points of codimension 2 marked.

    Args:
        dataset: from `tables.line_dataset`, or loaded.
    """
    over, parameter = dataset.attrs["over"], dataset.attrs["parameter"]
    with rc_context(STYLE):
        figure = Figure(figsize=(9.2, 5.0), layout="constrained")
        axes = figure.subplots()
        second, value, error = (dataset[name].values for name in ("over", "value", "error"))
        known = np.nan_to_num(error)
        axes.fill_between(second, value - known, value + known, color=BLUE, alpha=0.25, linewidth=0, label="half width")
        axes.plot(second, value, color=BLUE, marker="o", markersize=3, label=dataset.attrs["kind"])
        for special in json.loads(dataset.attrs["special"]):
            axes.plot(special["over"], special["value"], "*", color=RED, markersize=12, label=special["kind"])
        axes.set_xlabel(parameter_label(over))
        axes.set_ylabel(parameter_label(parameter))
        axes.set_title(f"{dataset.attrs['kind'].capitalize()} of {dataset.attrs['branches']}", loc="left")
        _legend(axes, [])
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
            span = _span(datasets)
            if row["mark"] is not None:
                value, half_width = row["mark"]
                span = (min(span[0], value), max(span[1], value))
                for axes in (losses, errors):
                    _draw_marks(axes, [{"value": value, "error": half_width}])
            nearby = {name: _within(dataset, span) for name, dataset in base.items()}
            _draw_differences(losses, nearby, reference, faint=True)
            _draw_differences(losses, datasets, reference)
            losses.axhline(0, color=GREY, linewidth=0.8)
            losses.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
            losses.set_ylabel(f"training loss per d,\nless the {reference}")
            losses.set_title(row["title"], loc="left", fontweight="bold")
            for name, dataset in nearby.items():
                _draw_branch_error(errors, name, dataset, faint=True)
            for name, dataset in datasets.items():
                _draw_branch_error(errors, name, dataset)
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
            Line2D([], [], color=GREY, linewidth=1.2, alpha=_FAINT, label="faint: base case"),
            *_style_handles(np.zeros(1, bool)),
            Line2D([], [], color="black", linewidth=1.0, linestyle=_MARK_STYLES[0], label="transition"),
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    if path is not None:
        save_figure(figure, path)
    return figure


_FAINT = 0.4


def _span(datasets: Mapping[str, xarray.Dataset]) -> tuple[float, float]:
    """Smallest interval that holds the points of all tables."""
    values = np.concatenate([_values(d) for d in datasets.values()] or [np.array([0.0, 1.0])])
    return float(values.min()), float(values.max())


def _within(dataset: xarray.Dataset, span: tuple[float, float]) -> xarray.Dataset:
    """The rows of a table whose parameter lies in an interval."""
    inside = (_values(dataset) >= span[0]) & (_values(dataset) <= span[1])
    return dataset.isel({column_of(dataset.attrs["parameter"]): inside})


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
        stable = np.isin(values, _values(dataset)[stable_points(dataset)])
        _draw_either(axes, values, difference, error, stable, BRANCH_COLOURS.get(name, GREY), faint)


def _draw_branch_error(axes: Axes, name: str, dataset: xarray.Dataset, *, faint: bool = False) -> None:
    error = dataset["test_error_error"].values
    colour = BRANCH_COLOURS.get(name, GREY)
    _draw_either(axes, _values(dataset), dataset["test_error"].values, error, stable_points(dataset), colour, faint)


def _draw_either(
    axes: Axes, x: np.ndarray, y: np.ndarray, error: np.ndarray, stable: np.ndarray, colour: str, faint: bool
) -> None:
    if faint:
        axes.plot(x, y, color=colour, linewidth=1.2, alpha=_FAINT, zorder=1)
    else:
        _draw_line(axes, x, y, error, stable, colour, "o", None)


def _draw_transition(axes: Axes, line: Mapping[str, Any], *, faint: bool = False) -> None:
    omega, alpha, error = (np.asarray(line[name], float) for name in ("omega", "alpha", "error"))
    there = np.isfinite(alpha)
    axes.errorbar(
        omega[there],
        alpha[there],
        yerr=error[there],
        color=GREY if faint else "black",
        alpha=_FAINT if faint else 1.0,
        linewidth=1.2 if faint else 1.6,
        marker=None if faint else "o",
        capsize=0 if faint else 3,
        label=line["label"],
    )


def stable_points(dataset: xarray.Dataset) -> np.ndarray:
    """Where nothing but jumps speaks against the solution: eigenvalues and, within its error, replicon below 1.

    Points that were not judged count as unstable, unless the table holds no judgement at all.
    """
    replicon, eigenvalue = dataset["replicon"].values, dataset["longitudinal_eigenvalue"].values
    if not np.isfinite(replicon).any():
        return np.ones(replicon.shape, bool)
    return (replicon - np.nan_to_num(dataset["replicon_error"].values) < 1) & (eigenvalue < 1)


def jump_intervals(dataset: xarray.Dataset) -> list[tuple[float, float]]:
    """Intervals of the parameter, half way to the neighbours, in which the proximal map jumps; they do not overlap,
    though the parameter may go back and forth."""
    values = _values(dataset)
    if not len(values):
        return []
    edges = np.concatenate([values[:1], (values[1:] + values[:-1]) / 2, values[-1:]])
    intervals: list[tuple[float, float]] = []
    jumping = dataset["bistable_share"].values > NEGLIGIBLE_JUMPS
    spans = np.sort(np.column_stack([edges[:-1], edges[1:]])[jumping], axis=1)
    for left, right in spans[np.argsort(spans[:, 0])]:
        if intervals and left <= intervals[-1][1]:
            intervals[-1] = (intervals[-1][0], max(intervals[-1][1], float(right)))
        else:
            intervals.append((float(left), float(right)))
    return intervals


def _values(dataset: xarray.Dataset) -> np.ndarray:
    return dataset[column_of(dataset.attrs["parameter"])].values


@dataclass(frozen=True)
class Entry:
    """An entry of an overlap along a curve, and those that agree with it.

    Attributes:
        values, errors: of the first, (N,); |m| where the sign is free.
        indices: (token, cluster, column, ...) of all of them, from 0.
        label: which they are, in words.
    """

    values: np.ndarray
    errors: np.ndarray
    indices: tuple[tuple[int, ...], ...]
    label: str


def distinct_entries(dataset: xarray.Dataset, name: str) -> list[Entry]:
    """The entries of an overlap that a curve has, those that agree all along it once.

    An entry is drawn once for the tokens and clusters in which it is the same within the half widths; of q, whose upper
    triangle says all, and of m and theta, several entries once where they are the same in the same tokens and clusters.
    """
    block, errors = drawn_block(dataset, name), dataset[f"{name}_error"].values
    tolerance = 1e-6 * np.nanmax(np.abs(block), initial=0.0)

    def agree(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        apart = np.abs(along(block, one) - along(block, other))
        known = np.nan_to_num(along(errors, one)) + np.nan_to_num(along(errors, other))
        return bool(np.all((apart <= tolerance + known) | np.isnan(apart)))

    groups: list[list[tuple[int, ...]]] = []
    for entry in entries_of(block.shape[3:], name):
        own: list[list[tuple[int, ...]]] = []
        for context in present_contexts(dataset, name):
            index = (*context, *entry)
            group = next((one for one in own if agree(one[0], index)), None)
            own.append([index]) if group is None else group.append(index)
        for new in own:
            same = [index[:2] for index in new]
            group = next((g for g in groups if contexts_of(g) == same and agree(g[0], new[0])), None)
            groups.append(new) if group is None else group.extend(new)
    symbol = symbol_of(dataset, name)
    return [
        Entry(
            along(block, group[0]),
            along(errors, group[0]),
            tuple(group),
            entry_label(symbol, group, block.shape[1:]),
        )
        for group in groups
    ]


def along(block: np.ndarray, index: tuple[int, ...]) -> np.ndarray:
    """An entry of an overlap at every point, (N,)."""
    return block.reshape(len(block), -1)[:, np.ravel_multi_index(index, block.shape[1:])]


def drawn_block(dataset: xarray.Dataset, name: str) -> np.ndarray:
    """The values of an overlap as they are drawn: |m| where the sign of W is free."""
    values = dataset[name].values
    return np.abs(values) if symbol_of(dataset, name).startswith("|") else values


def symbol_of(dataset: xarray.Dataset, name: str) -> str:
    """m, |m| where the sign of W is free (or a table does not tell), θ or q."""
    return "m" if name == "m" and dataset["m"].attrs.get("sign") == "fixed" else OVERLAP_STYLES[name][2]


def entries_of(shape: Sequence[int], name: str) -> list[tuple[int, ...]]:
    """(column, ...) of the independent entries of an overlap: of q, the upper triangle."""
    return [index for index in np.ndindex(*shape) if name != "q" or index[0] <= index[1]]


def present_contexts(dataset: xarray.Dataset, name: str) -> list[tuple[int, ...]]:
    """(token, cluster) in which an overlap is not 0 by construction."""
    shape = dataset[name].sizes["token"], dataset[name].sizes["cluster"]
    known = np.atleast_1d(dataset[name].attrs.get("present", np.ones(shape, int)))
    return [index for index, there in np.ndenumerate(known.reshape(shape)) if there]


def contexts_of(group: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The tokens and clusters of a group of entries, each once."""
    return list(dict.fromkeys(index[:2] for index in group))


def entry_label(symbol: str, group: Sequence[tuple[int, ...]], shape: Sequence[int]) -> str:
    """Which entries a line stands for, as in 'q', 'θ, token 2' or 'q₁₁ = q₂₂, tokens 1-3'.

    Args:
        group: (token, cluster, column, ...) of each, the same tokens and clusters for all.
        shape: of the overlap, (tokens, clusters, columns, ...).
    """
    entries = list(dict.fromkeys(index[2:] for index in group))
    parts = [_entries_text(symbol, entries, shape[2:])]
    contexts, several = contexts_of(group), any(size > 1 for size in shape[2:])
    if shape[0] * shape[1] == 1 or (len(contexts) == shape[0] * shape[1] and not several):
        return parts[0]
    tokens, clusters = (sorted({context[axis] for context in contexts}) for axis in (0, 1))
    if len(contexts) < len(tokens) * len(clusters):
        named = [f"token {token + 1} cluster {cluster + 1}" for token, cluster in contexts]
        return ", ".join([*parts, " and ".join(named)])
    for axis, numbers, size in (("token", tokens, shape[0]), ("cluster", clusters, shape[1])):
        if size > 1:
            parts.append(f"{axis}{'s' if len(numbers) > 1 else ''} {_numbers_text(numbers)}")
    return ", ".join(parts)


def _entries_text(symbol: str, entries: Sequence[tuple[int, ...]], shape: Sequence[int]) -> str:
    if all(size == 1 for size in shape):
        return symbol
    size = shape[0]
    if len(shape) == 2 and size == shape[1] > 2:
        diagonal = [entry for entry in entries if entry[0] == entry[1]]
        others = size * (size - 1) // (2 if symbol == "q" else 1)
        if len(entries) == len(diagonal) == size:
            return f"{symbol}_aa for all a"
        if not diagonal and len(entries) == others:
            return f"{symbol}_ab for all a ≠ b"
    bare, bar = (symbol[1:-1], "|") if symbol.startswith("|") else (symbol, "")
    return " = ".join(f"{bar}{bare}{_subscript(entry)}{bar}" for entry in entries)


def _subscript(entry: Sequence[int]) -> str:
    numbers = [str(i + 1) for i in entry]
    return ("" if all(len(n) == 1 for n in numbers) else ",").join(numbers).translate(_SUBSCRIPTS)


_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def _numbers_text(numbers: Sequence[int]) -> str:
    """1-3 for a stretch, else 1, 3."""
    first, last = numbers[0] + 1, numbers[-1] + 1
    if len(numbers) > 2 and last - first == len(numbers) - 1:
        return f"{first}-{last}"
    return ", ".join(str(n + 1) for n in numbers)


def _draw_block(axes: Axes, dataset: xarray.Dataset, name: str) -> None:
    colour, marker, _ = OVERLAP_STYLES[name]
    for number, one in enumerate(distinct_entries(dataset, name)):
        shade = shade_of(colour, number)
        x, stable = _values(dataset), stable_points(dataset)
        _draw_line(axes, x, one.values, one.errors, stable, shade, marker, one.label, hollow=number > 0)


def shade_of(colour: str, number: int) -> str:
    """The colour of the first, second, ... entry of an overlap: darker, then lighter ones."""
    toward, share = (("black", 0.0), ("black", 0.45), ("white", 0.45), ("black", 0.75), ("white", 0.65))[number % 5]
    red, green, blue = ((1 - share) * a + share * b for a, b in zip(to_rgb(colour), to_rgb(toward), strict=True))
    return to_hex((red, green, blue))


def _draw_line(
    axes: Axes,
    x: np.ndarray,
    y: np.ndarray,
    error: np.ndarray,
    stable: np.ndarray,
    colour: str,
    marker: str,
    label: str | None,
    *,
    hollow: bool = False,
) -> None:
    """Points with error bars, joined by a line that is solid between stable points and dashed elsewhere."""
    face = "white" if hollow else colour
    axes.errorbar(
        x,
        y,
        yerr=np.nan_to_num(error),
        color=colour,
        marker=marker,
        markerfacecolor=face,
        linestyle="none",
        capsize=2,
        elinewidth=1,
    )
    for left in range(len(x) - 1):
        solid = stable[left] and stable[left + 1]
        axes.plot(x[left : left + 2], y[left : left + 2], color=colour, linestyle="-" if solid else "--", zorder=1.9)
    if label:
        axes.plot([], [], color=colour, marker=marker, markerfacecolor=face, label=label)


def _draw_baseline(axes: Axes, dataset: xarray.Dataset) -> None:
    baseline = dataset["baseline_error"].values
    if np.isfinite(baseline).any():
        axes.plot(_values(dataset), baseline, color="black", linestyle=":", label="linear baseline")


def _draw_ends(axes: Axes, dataset: xarray.Dataset, colour: str) -> None:
    """A dotted vertical line in the middle of the interval in which the branch ends."""
    for side in ("end_below", "end_above"):
        end = json.loads(dataset.attrs.get(side, "[]"))
        if end:
            axes.axvline(sum(end) / 2, color=colour, linestyle=(0, (1, 2)), linewidth=1.1)


def _end_handles(datasets: Iterable[xarray.Dataset]) -> list[Line2D]:
    if not any(d.attrs.get(side, "[]") != "[]" for d in datasets for side in ("end_below", "end_above")):
        return []
    return [Line2D([], [], color=GREY, linestyle=(0, (1, 2)), linewidth=1.1, label="branch ends")]


def _draw_strips(axes: Axes, datasets: Mapping[str, xarray.Dataset]) -> None:
    """A thin strip a branch at the foot of the panel, where its proximal map jumps; and a line where it ends."""
    for row, (branch, dataset) in enumerate(datasets.items()):
        colour = BRANCH_COLOURS.get(branch, GREY)
        for left, right in jump_intervals(dataset):
            axes.axvspan(left, right, 0.022 * row, 0.022 * row + 0.018, color=colour, alpha=0.45, linewidth=0)
        _draw_ends(axes, dataset, colour)


def _draw_marks(axes: Axes, marks: Sequence[Mapping[str, Any]]) -> None:
    for mark, style in zip(marks, _MARK_STYLES, strict=False):
        axes.axvline(mark["value"], color="black", linewidth=1.0, linestyle=style)
        if mark.get("error"):
            axes.axvspan(
                mark["value"] - mark["error"], mark["value"] + mark["error"], color="black", alpha=0.15, linewidth=0
            )


_MARK_STYLES: tuple[Any, ...] = ("-.", (0, (6, 2)), (0, (3, 1, 1, 1, 1, 1)))


def _mark_handles(marks: Sequence[Mapping[str, Any]]) -> list[Line2D]:
    return [
        Line2D([], [], color="black", linewidth=1.0, linestyle=style, label=mark["label"])
        for mark, style in zip(marks, _MARK_STYLES, strict=False)
    ]


def _style_handles(stable: np.ndarray) -> list[Any]:
    if stable.all():
        return []
    return [
        Line2D([], [], color=GREY, linestyle="-", label="stable"),
        Line2D([], [], color=GREY, linestyle="--", label="unstable, or not judged"),
    ]


def _finish_branches(
    first: Axes, last: Axes, datasets: Mapping[str, xarray.Dataset], title: str, marks: Sequence[Mapping[str, Any]]
) -> None:
    """Title, labels and one legend for figures with a colour a branch."""
    one = next(iter(datasets.values()))
    last.set_xlabel(parameter_label(one.attrs["parameter"]))
    first.set_title(f"{title}, {_setting(one)}", loc="left")
    handles: list[Any] = _style_handles(np.concatenate([stable_points(d) for d in datasets.values()]))
    handles += _mark_handles(marks)
    handles += _end_handles(datasets.values())
    if any(jump_intervals(d) for d in datasets.values()):
        handles.append(Patch(color=GREY, alpha=0.45, label="strip: proximal map jumps, RS not strict"))
    _legend(first, handles)


def _legend(axes: Axes, extra: Sequence[Any]) -> None:
    handles, _ = axes.get_legend_handles_labels()
    if handles or extra:
        axes.legend(handles=[*handles, *extra], loc="center left", bbox_to_anchor=(1.01, 0.5))


def _setting(dataset: xarray.Dataset) -> str:
    """The model and the parameters that are single numbers, in words."""
    parameters = json.loads(dataset.attrs["parameters"])
    named = {"omega": parameters.get("omega")} if "omega" in parameters else {}
    numbers = ", ".join(f"{_SYMBOLS.get(n, n)} = {v:g}" for n, v in named.items() if isinstance(v, int | float))
    name = dataset.attrs["model"].replace("_", " ")
    return f"{name}, {numbers}" if numbers else name


def _held(dataset: xarray.Dataset) -> list[str]:
    """The parameters that are single numbers, beside those of `_setting` and sizes of 1, in short lines."""
    shown = []
    for name, value in json.loads(dataset.attrs["parameters"]).items():
        if isinstance(value, list) and value and all(entry == value[0] for entry in value):
            value = value[0]  # a ridge on every column, say
        if name == "omega" or not isinstance(value, int | float) or (name in _SIZES and value == 1):
            continue
        shown.append(f"{_SYMBOLS.get(name, name.replace('_', ' '))} = {value:g}")
    return wrap(",  ".join(shown), 110)


_SIZES = ("tokens", "student_rank", "teacher_rank", "clusters")


def _title(dataset: xarray.Dataset) -> str:
    return f"{dataset.attrs['branch'].capitalize()} branch, {_setting(dataset)}"


__all__ = [
    "along",
    "distinct_entries",
    "drawn_block",
    "entries_of",
    "entry_label",
    "format_of",
    "from_zero",
    "is_drawn_from",
    "plot_critical_line",
    "plot_dataset",
    "plot_extensions",
    "plot_loss_difference",
    "plot_overlaps",
    "plot_phase_diagram",
    "plot_test_error",
    "present_contexts",
    "save_figure",
    "shade_of",
    "symbol_of",
]
