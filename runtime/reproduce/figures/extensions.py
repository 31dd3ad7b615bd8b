"""Figure of the extensions, each setting beside the base case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...problems.columns import column_of
from ...report.plots.drawing import (
    BRANCH_COLOURS,
    GREY,
    MARK_STYLES,
    STYLE,
    draw_line,
    draw_marks,
    from_zero,
    parameter_label,
    parameter_values,
    save_figure,
    style_handles,
    verdicts_of,
)
from ...report.tables import loss_difference_along

_FAINT = 0.4


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
            span = _span_of(datasets)
            if row["mark"] is not None:
                value, half_width = row["mark"]
                span = (min(span[0], value), max(span[1], value))
                for axes in (losses, errors):
                    draw_marks(axes, [{"value": value, "error": half_width}])
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
            *style_handles(np.zeros(1, bool)),
            Line2D([], [], color="black", linewidth=1.0, linestyle=MARK_STYLES[0], label="transition"),
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    if path is not None:
        save_figure(figure, path)
    return figure


def _draw_differences(
    axes: Axes, datasets: Mapping[str, xarray.Dataset], reference: str, *, faint: bool = False
) -> None:
    """Training loss of every other branch less that of the reference, where both were found."""
    if reference not in datasets:
        return
    for name, dataset in datasets.items():
        if name == reference:
            continue
        values, difference, error = loss_difference_along(dataset, datasets[reference])
        verdicts = dict(zip(parameter_values(dataset).tolist(), verdicts_of(dataset), strict=True))
        here = np.array([verdicts[value] for value in values.tolist()], object)
        _draw_either(axes, values, difference, error, here, BRANCH_COLOURS.get(name, GREY), faint)


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


def _span_of(datasets: Mapping[str, xarray.Dataset]) -> tuple[float, float]:
    """Smallest interval that holds the points of all tables."""
    values = np.concatenate([parameter_values(d) for d in datasets.values()] or [np.array([0.0, 1.0])])
    return float(values.min()), float(values.max())


def _within(dataset: xarray.Dataset, span: tuple[float, float]) -> xarray.Dataset:
    """The rows of a table whose parameter lies in an interval."""
    inside = (parameter_values(dataset) >= span[0]) & (parameter_values(dataset) <= span[1])
    return dataset.isel({column_of(dataset.attrs["parameter"]): inside})


def _draw_branch_error(axes: Axes, name: str, dataset: xarray.Dataset, *, faint: bool = False) -> None:
    """The test error of a branch in its colour."""
    error = dataset["test_error_error"].values
    colour = BRANCH_COLOURS.get(name, GREY)
    _draw_either(
        axes, parameter_values(dataset), dataset["test_error"].values, error, verdicts_of(dataset), colour, faint
    )


def _draw_either(
    axes: Axes, x: np.ndarray, y: np.ndarray, error: np.ndarray, verdicts: np.ndarray, colour: str, faint: bool
) -> None:
    """A line with its half widths, or a faint one without, as of another setting behind it."""
    if faint:
        axes.plot(x, y, color=colour, linewidth=1.2, alpha=_FAINT, zorder=1)
    else:
        draw_line(axes, x, y, error, verdicts, colour, "o", None)
