"""Table, figure and page of the extensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray

from ...files import write_whole
from ...numbers import with_error
from ...report.contract import dumps
from ..extensions import CROSSING, EXTENSIONS, FOLDER, ONSET, SETTINGS, ExtensionsRun
from ..figures.extensions import plot_extensions
from ..run import BRANCHES, SHOWN_OMEGA
from .blocks import Block, Heading, Paragraph, Picture, Table
from .transition import SOURCE
from .writing import drawn, number_or_nan, write_page, write_rows


def write(run: ExtensionsRun) -> None:
    """Table, figure and page; results gain what the branches of each setting show."""
    rows = table_rows(run.results)
    write_rows(run, "extensions", rows)
    write_whole(run.out / "tables" / "extensions.json", dumps(rows) + "\n")
    base = {name: run.dataset(name) for name in BRANCHES}
    for name, found in run.results["settings"].items():
        found["seen"] = seen(run.branch_tables(name))
    settings = figure_rows(run.results, run.branch_tables)
    image = drawn(run, EXTENSIONS, lambda path: plot_extensions(settings, base, base_line(run.results), path))
    write_page(run, content(run.results), {EXTENSIONS: image})


def table_rows(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a setting or variation and omega: alpha_c, half width, shift against the base case, status."""
    base = results["thresholds"]["alpha_c"]
    rows = [_row("base case", CROSSING, omega, found, None) for omega, found in _ordered(base)]
    for name, setting in SETTINGS.items():
        for omega, found in _ordered(results["settings"][name]["alpha_c"]):
            rows.append(_row(setting.title, setting.transition, omega, found, base.get(omega)))
        if "saddles" in results["settings"][name]:
            omega = f"{SHOWN_OMEGA:g}"
            title = f"{setting.title}: semantic and positional saddle"
            rows.append(_row(title, CROSSING, omega, results["settings"][name]["saddles"], base.get(omega)))
    omega = f"{SHOWN_OMEGA:g}"
    for change, found in results["variations"].items():
        rows.append(_row(f"correlated tokens: {change}", CROSSING, omega, found, base.get(omega)))
    return rows


def _ordered(found: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(found.items(), key=lambda item: float(item[0]))


def _row(
    title: str, transition: str, omega: str, found: Mapping[str, Any], base: Mapping[str, Any] | None
) -> dict[str, Any]:
    value, error = found["value"], found["error"]
    both = base is not None and value is not None and base["value"] is not None
    return {
        "setting": title,
        "transition": transition,
        "omega": float(omega),
        "alpha_c": value,
        "error": error,
        "shift": value - base["value"] if both and base is not None else None,
        "shift_error": error + base["error"] if both and base is not None else None,
        "status": found["status"],
        "rs_verdict": " | ".join(f"{b}: {v}" for b, v in found["verdicts"].items()),
        "sentence": found["sentence"],
    }


def base_line(results: Mapping[str, Any]) -> dict[str, Any]:
    """alpha_c of the base case along omega, as `line_of` gives it."""
    return line_of("base case", results["thresholds"]["alpha_c"])


def line_of(label: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """A transition along omega: label, omega, alpha, error; nan where it was not found."""
    ordered = _ordered(found)
    return {
        "label": label,
        "omega": [float(w) for w, _ in ordered],
        "alpha": [number_or_nan(r["value"]) for _, r in ordered],
        "error": [number_or_nan(r["error"]) for _, r in ordered],
    }


_LINE_NAMES = {CROSSING: "α_c: equal training loss", ONSET: "θ grows out of the positional branch"}


def figure_rows(results: Mapping[str, Any], datasets: Callable[[str], Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a setting, as `figures.extensions.plot_extensions` takes them."""
    rows = []
    for name, setting in SETTINGS.items():
        found = results["settings"][name]["alpha_c"]
        shown = found.get(f"{SHOWN_OMEGA:g}", {"value": None})
        rows.append(
            {
                "title": setting.title,
                "branches": datasets(name),
                "mark": None if shown["value"] is None else (shown["value"], shown["error"]),
                "line": line_of(_LINE_NAMES[setting.transition], found),
            }
        )
    return rows


def seen(datasets: Mapping[str, xarray.Dataset]) -> dict[str, Any]:
    """What the branches of a setting show: range of the largest longitudinal eigenvalue, and where each lies lowest.

    Returns:
        eigenvalues: branch -> [least, greatest] along it; lowest: branch -> values of alpha, of those at which every
        branch was found, where its training loss is the lowest (none where there is nothing to compare).
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


def content(results: Mapping[str, Any]) -> list[Block]:
    """The report as blocks."""
    blocks: list[Block] = [
        Heading("The transition beyond the base case", 1),
        Paragraph(
            f"Source: {SOURCE}, appendix E.3. saddleforge {results['version']}. Base case: {results['model']} "
            "with a student of rank 1. Every number is one of the replica-symmetric saddle point with its half width "
            "in the last digits; shifts are against the base case at the same omega, with the sum of both half widths."
        ),
        Picture(
            EXTENSIONS,
            f"Each row a setting. Left: training loss less that of the positional branch at omega = {SHOWN_OMEGA:g}; "
            "middle: test error; right: the transition. Faint: the base case. Solid: stable; dashed: a longitudinal "
            "eigenvalue or the replicon is at least 1, or not judged. Vertical: the transition, with its half width.",
        ),
        Heading("Transitions"),
    ]
    rows = table_rows(results)
    head = ("setting", "omega", "alpha_c", "shift", "what", "status", "RS verdict of each branch")
    words = {CROSSING: "equal training loss", ONSET: "theta grows out of the positional branch"}
    blocks.append(
        Table(
            head,
            [
                [
                    row["setting"],
                    f"{row['omega']:g}",
                    "none found" if row["alpha_c"] is None else with_error(row["alpha_c"], row["error"]),
                    "-" if row["shift"] is None else with_error(row["shift"], row["shift_error"]),
                    words[row["transition"]],
                    row["status"].replace("_", " "),
                    row["rs_verdict"] or "-",
                ]
                for row in rows
            ],
        )
    )
    for row in rows:
        if row["alpha_c"] is None:
            blocks.append(Paragraph(f"{row['setting']}, omega = {row['omega']:g}: {row['sentence']}."))
    for setting in SETTINGS.values():
        others = [w for w, _ in _ordered(results["thresholds"]["alpha_c"]) if float(w) not in setting.omegas]
        if others:
            blocks.append(Paragraph(f"{setting.title}: not sought at omega = {', '.join(others)}."))
    blocks.append(Heading(f"Branches at omega = {SHOWN_OMEGA:g}"))
    for name, setting in SETTINGS.items():
        found = results["settings"][name]
        sentences = [f"{branch['ends']} ({branch['points']} solutions)" for branch in found["curves"].values()]
        for branch, between in found["seen"]["eigenvalues"].items():
            if between:
                low, high = (f"{value:.2f}" for value in between)
                sentences.append(
                    f"largest longitudinal eigenvalue of the {branch} branch between {low} and {high} (stable below 1)"
                )
        for branch, alphas in found["seen"]["lowest"].items():
            if alphas:
                at = ", ".join(f"{alpha:g}" for alpha in alphas)
                sentences.append(f"{branch} has the lowest training loss of the branches at alpha = {at}")
        blocks.append(Paragraph(f"{setting.title}: {'; '.join(sentences)}."))
    blocks.append(Heading("Files"))
    blocks.append(
        Paragraph(
            f"tables/extensions (.csv, .json): the transitions; tables/{FOLDER}: the branches; extensions.json: all "
            "numbers of this report; steps/: finished steps, used again by the next run."
        )
    )
    return blocks
