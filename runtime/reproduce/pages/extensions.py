"""Table, figure and page of the extensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from matplotlib.axes import Axes

from ...report.plots.drawing import GREY, MARK_STYLES, draw_thresholds, legend_entries_of_stability, start_axis_at_zero
from ...report.tables import loss_difference_curve
from ..extensions import CONTINUOUS, CROSSING, EXTENSIONS, FOLDER, SETTINGS, ExtensionsRun
from ..run import BRANCHES, SHOWN_OMEGA
from .content import Block, Picture, Table, table_cells, words_column, write_page, write_table
from .drawing import (
    ALPHA,
    FAINT_OPACITY,
    OMEGA,
    draw_quantity_along_branch,
    draw_test_error,
    draw_zero_line,
    legend_entries_of_branches,
    legend_entry,
    styled_figure,
)
from .transition import SOURCE, threshold_curve, verdicts_text

_REFERENCE = "positional"  # branch whose training loss is subtracted
_LINE_NAMES = {CROSSING: "α_c: equal training loss", CONTINUOUS: "θ grows out of the positional branch"}
_WORDS = {CROSSING: "equal training loss", CONTINUOUS: "theta grows out of the positional branch"}


def write_report(run: ExtensionsRun) -> None:
    """Write the table, the figure and the report on extensions of the base case; add summaries to `results`."""
    rows = table_rows(run.results)
    write_table(run, "extensions", rows, as_json=True)
    base = {name: run.load_branch_table(name) for name in BRANCHES}
    tables = {name: run.load_tables_of_extension(name) for name in SETTINGS}
    for name, found in run.results["settings"].items():
        found["seen"] = summarise_branches(tables[name])
    draw = {EXTENSIONS: lambda path: plot_extensions(run.results, tables, base, path)}
    write_page(run, build_page(run.results, rows), draw)


def table_rows(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a table row for every transition: alpha, error bar, difference from the base case, and status."""
    base, shown = results["thresholds"]["alpha_c"], f"{SHOWN_OMEGA:g}"
    rows = [
        _table_row_of_transition("base case", CROSSING, omega, base[omega], None) for omega in sorted(base, key=float)
    ]
    for name, setting in SETTINGS.items():
        found = results["settings"][name]
        for omega in sorted(found["alpha_c"], key=float):
            rows.append(
                _table_row_of_transition(
                    setting.title, setting.transition, omega, found["alpha_c"][omega], base.get(omega)
                )
            )
        if "saddles" in found:
            title = f"{setting.title}: semantic and positional saddle"
            rows.append(_table_row_of_transition(title, CROSSING, shown, found["saddles"], base.get(shown)))
    for change, threshold in results["variations"].items():
        rows.append(
            _table_row_of_transition(f"correlated tokens: {change}", CROSSING, shown, threshold, base.get(shown))
        )
    return rows


def _table_row_of_transition(
    title: str, transition: str, omega: str, threshold: Mapping[str, Any], base: Mapping[str, Any] | None
) -> dict[str, Any]:
    value, error = threshold["value"], threshold["error"]
    shift = shift_error = None
    if base is not None and value is not None and base["value"] is not None:
        shift, shift_error = value - base["value"], error + base["error"]
    return {
        "setting": title,
        "transition": transition,
        "omega": float(omega),
        "alpha_c": value,
        "error": error,
        "shift": shift,
        "shift_error": shift_error,
        "status": threshold["status"],
        "rs_verdict": verdicts_text(threshold, " | "),
        "sentence": threshold["sentence"],
    }


def plot_extensions(
    results: Mapping[str, Any],
    tables: Mapping[str, Mapping[str, xarray.Dataset]],
    base: Mapping[str, xarray.Dataset],
    path: Path,
) -> None:
    """Draw a row of panels for each extension: loss differences, test error, transition along omega.

    The base case is drawn faint in the same panels.

    Args:
        results: results of the run by key, see `ReproductionRun.results`.
        tables: tables by name of the extension and of the branch.
        base: tables of the base case by name of the branch.
        path: PNG file to write.
    """
    base_line = threshold_curve("base case", results["thresholds"]["alpha_c"])
    with styled_figure(path, 13.0, 3.1 * len(SETTINGS) + 0.5) as figure:
        panels = figure.subplots(len(SETTINGS), 3, squeeze=False)
        for (losses, errors, line), (name, setting) in zip(panels, SETTINGS.items(), strict=True):
            datasets, found = tables[name], results["settings"][name]["alpha_c"]
            shown = found.get(f"{SHOWN_OMEGA:g}", {"value": None})
            marks = [] if shown["value"] is None else [shown]
            values = [alpha for d in datasets.values() for alpha in d["alpha"].values.tolist()] or [0.0, 1.0]
            values += [mark["value"] for mark in marks]
            low, high = min(values), max(values)
            nearby = {name: dataset.sel(alpha=slice(low, high)) for name, dataset in base.items()}
            for axes in (losses, errors):
                draw_thresholds(axes, marks)
            for branches, faint in ((nearby, True), (datasets, False)):
                _draw_loss_differences(losses, branches, faint)
                for branch, dataset in branches.items():
                    draw_test_error(errors, branch, dataset, faint=faint)
            draw_zero_line(losses)
            losses.set_ylabel(f"training loss per d,\nless the {_REFERENCE}")
            losses.set_title(setting.title, fontweight="bold")
            errors.set_ylabel("test error per token")
            for axes in (losses, errors):
                axes.set_xlim(low - 0.05, high + 0.05)
            _draw_transition_line(line, base_line, color=GREY, alpha=FAINT_OPACITY, linewidth=1.2)
            _draw_transition_line(
                line, threshold_curve(_LINE_NAMES[setting.transition], found), color="black", marker="o", capsize=3
            )
            line.set_ylabel("α of the transition")
            for axes in (errors, line):
                start_axis_at_zero(axes)
            line.legend(loc="upper left")
        for axes, label in zip(panels[-1], (ALPHA, ALPHA, OMEGA), strict=True):
            axes.set_xlabel(label)
        handles = [
            *legend_entries_of_branches(dict.fromkeys(branch for table in tables.values() for branch in table)),
            legend_entry("faint: base case", linewidth=1.2, alpha=FAINT_OPACITY),
            *legend_entries_of_stability(np.zeros(1, bool)),
            legend_entry("transition", "black", linewidth=1.0, linestyle=MARK_STYLES[0]),
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))


def _draw_loss_differences(axes: Axes, datasets: Mapping[str, xarray.Dataset], faint: bool) -> None:
    """Draw the training loss of every branch minus that of the positional branch, where both were found."""
    for name, dataset in datasets.items():
        if name != _REFERENCE and _REFERENCE in datasets:
            at, difference, error = loss_difference_curve(dataset, datasets[_REFERENCE])
            draw_quantity_along_branch(axes, name, dataset, difference, error, at=at, faint=faint)


def _draw_transition_line(axes: Axes, line: Mapping[str, Any], **style: Any) -> None:
    omega, there = np.array(line["omega"]), np.isfinite(line["alpha"])
    axes.errorbar(omega[there], line["alpha"][there], yerr=line["error"][there], label=line["label"], **style)


def summarise_branches(datasets: Mapping[str, xarray.Dataset]) -> dict[str, Any]:
    """Summarise branches along alpha: their stability, and which of them has the lowest training loss where.

    Returns:
        A dict with two entries. `eigenvalues`: by branch, the smallest and largest value of its leading longitudinal
        eigenvalue. `lowest`: by branch, the values of alpha at which its training loss is the lowest, among those at
        which every branch was found; empty if there is only one branch.
    """
    eigenvalues, losses = {}, {}
    for name, dataset in datasets.items():
        largest = dataset["longitudinal_eigenvalue"].values
        eigenvalues[name] = [float(np.nanmin(largest)), float(np.nanmax(largest))] if np.isfinite(largest).any() else []
        losses[name] = dict(zip(dataset["alpha"].values.tolist(), dataset["training_loss"].values, strict=True))
    common = sorted(set.intersection(*[set(found) for found in losses.values()])) if len(losses) > 1 else []
    lowest: dict[str, list[float]] = {name: [] for name in datasets}
    for alpha in common:
        values = {name: found[alpha] for name, found in losses.items()}
        if np.isfinite(list(values.values())).all():
            lowest[min(values, key=lambda name: values[name])].append(alpha)
    return {"eigenvalues": eigenvalues, "lowest": lowest}


def _transition_cell(row: Mapping[str, Any]) -> Any:
    return "none found" if row["alpha_c"] is None else (row["alpha_c"], row["error"])


def build_page(results: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return the report on extensions of the base case as a list of paragraphs, tables and pictures.

    Args:
        results: results of the run by key, see `ReproductionRun.results`.
        rows: rows of the table of solutions, from `table_rows`.
    """
    blocks: list[Block] = [
        "# The transition beyond the base case",
        f"Source: {SOURCE}, appendix E.3. saddleforge {results['version']}. Base case: {results['model']} "
        "with a student of rank 1. Every number is one of the replica-symmetric saddle point with its error bar "
        "in the last digits; shifts are against the base case at the same omega, with the sum of both error bars.",
        Picture(
            EXTENSIONS,
            f"Each row a setting. Left: training loss less that of the positional branch at omega = {SHOWN_OMEGA:g}; "
            "middle: test error; right: the transition. Faint: the base case. Solid: stable; dashed: a longitudinal "
            "eigenvalue or the replicon is at least 1, or not judged. Vertical: the transition, with its error bar.",
        ),
        "## Transitions",
    ]
    head = "setting | omega | alpha_c | shift | what | status | RS verdict of each branch"
    table = table_cells(rows, "setting", "omega", _transition_cell, "shift shift_error",
                  lambda row: _WORDS[row["transition"]],
                  words_column("status"), lambda row: row["rs_verdict"] or None)  # fmt: skip
    blocks.append(Table(head, table))
    blocks += [f"{r['setting']}, omega = {r['omega']:g}: {r['sentence']}." for r in rows if r["alpha_c"] is None]
    for setting in SETTINGS.values():
        others = [w for w in sorted(results["thresholds"]["alpha_c"], key=float) if float(w) not in setting.omegas]
        if others:
            blocks.append(f"{setting.title}: not sought at omega = {', '.join(others)}.")
    blocks.append(f"## Branches at omega = {SHOWN_OMEGA:g}")
    for name, setting in SETTINGS.items():
        outcome = results["settings"][name]
        sentences = [f"{branch['ends']} ({branch['points']} solutions)" for branch in outcome["curves"].values()]
        sentences += [
            f"largest longitudinal eigenvalue of the {branch} branch between {between[0]:.2f} and {between[1]:.2f} "
            "(stable below 1)"
            for branch, between in outcome["seen"]["eigenvalues"].items()
            if between
        ]
        sentences += [
            f"{branch} has the lowest training loss of the branches at alpha = {', '.join(f'{a:g}' for a in alphas)}"
            for branch, alphas in outcome["seen"]["lowest"].items()
            if alphas
        ]
        blocks.append(f"{setting.title}: {'; '.join(sentences)}.")
    return [
        *blocks,
        "## Files",
        f"tables/extensions (.csv, .json): the transitions; tables/{FOLDER}: the branches; extensions.json: all "
        "numbers of this report; steps/: finished steps, used again by the next run.",
    ]
