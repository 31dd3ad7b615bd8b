"""The report of the main job: every number compared with the published one, with tables and figures.

It depends on the results only: no dates, no paths, no timings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import xarray
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ...base.numbers import format_value_with_error
from ...base.progress import print_message
from ...report.plots import drawing as plots
from ...report.plots.drawing import BLUE, GREEN, GREY, ORANGE, PINK
from ...report.tables import loss_difference_curve, save_dataset_as_netcdf
from ...saddle_point import observables
from ..base_case import OMEGAS
from ..run import BRANCHES, SHOWN_OMEGA
from ..transition import SHORT_NAMES, TransitionRun
from .content import Block, Picture, Table, numeric_columns, write_page, write_table
from .drawing import (
    ALPHA,
    OMEGA,
    branch_colour,
    draw_quantity_along_branch,
    draw_test_error,
    draw_zero_line,
    styled_figure,
)

Marks = Sequence[Mapping[str, Any]]  # vertical lines of a figure, each with `value`, `error` and `label`

SOURCE = "arXiv 2402.03902"
PUBLISHED: dict[str, dict[str, float]] = {
    "alpha_c": {"0.1": 0.7072, "0.3": 1.2410, "0.4": 1.7506},
    "alpha_l": {"0.1": 0.8506, "0.3": 1.4506},
}
PUBLISHED_CROSSING = 1.263  # at omega = 0.3, from the published tables of the two branches
PUBLISHED_BASELINE = 0.00398092 / 2  # published as a sum over the two tokens, at omega = 0.3
LONG_NAMES = {
    "alpha_c": "α_c: semantic and positional branch have equal training loss",
    "alpha_l": "α_l: semantic branch equals the linear baseline",
}


def write_report(run: TransitionRun) -> None:
    """Write the tables, the figures and the report on the transition."""
    results = run.results
    for sentence in results["generated"]["differences"]:
        print_message(f"warning: {sentence}; `saddleforge generate` writes it again")
    results["baseline"] = {f"{w:g}": observables.baseline_error(run.base.with_(omega=w)) for w in sorted(OMEGAS)}
    dataset, frame = threshold_tables(results)
    save_dataset_as_netcdf(dataset, run.out / "tables" / "thresholds.nc")
    write_table(run, "thresholds", frame)
    names = ("omega", "alpha", "error")
    lines = {kind: {name: np.asarray(line[name], float) for name in names} for kind, line in results["lines"].items()}
    write_table(run, "lines", pandas.concat([pandas.DataFrame({"threshold": k, **line}) for k, line in lines.items()]))
    datasets = {name: run.load_branch_table(name) for name in BRANCHES}
    shown = {kind: found[f"{SHOWN_OMEGA:g}"] for kind, found in results["thresholds"].items()}
    marks = {k: [{**r, "label": SHORT_NAMES[k]}] if r["value"] is not None else [] for k, r in shown.items()}
    draw: dict[str, Callable[[Path], Any]] = {
        "overlaps": lambda path: plot_overlaps(datasets, path, marks=marks["alpha_c"]),
        "test_error": lambda path: plot_test_error(datasets, path, marks=marks["alpha_c"] + marks["alpha_l"]),
        "loss_difference": lambda path: plot_loss_difference(datasets, path, marks=marks["alpha_c"]),
        "phase_diagram": lambda path: plot_phase_diagram(phase_diagram_lines(results), path),
    }
    write_page(run, build_page(results, run.figures), draw)


def threshold_tables(results: Mapping[str, Any]) -> tuple[xarray.Dataset, pandas.DataFrame]:
    """Return the table of thresholds along omega as a Dataset and as a DataFrame.

    Its columns are values with error bars, published values, status and stability verdicts.
    """
    thresholds = results["thresholds"]
    omegas = sorted({float(w) for found in thresholds.values() for w in found})
    columns: dict[str, Any] = {"omega": np.array(omegas)}
    for kind, found in thresholds.items():
        missing: dict[str, Any] = {"value": None, "error": None, "status": "", "verdicts": {}}
        rows = [found.get(f"{w:g}", missing) for w in omegas]
        columns[kind], columns[f"{kind}_error"] = numeric_columns(rows, "value", "error")
        columns[f"{kind}_published"] = np.array([PUBLISHED[kind].get(f"{w:g}", np.nan) for w in omegas])
        columns[f"{kind}_status"] = np.array([r["status"] for r in rows], object)
        columns[f"{kind}_rs_verdict"] = np.array([verdicts_text(r, " | ") for r in rows], object)
    frame = pandas.DataFrame(columns)
    dataset = xarray.Dataset({name: ("omega", values) for name, values in columns.items() if name != "omega"})
    attributes = {name: results[name] for name in ("model", "digest", "version")}
    return dataset.assign_coords(omega=columns["omega"]).assign_attrs(attributes, parameter="omega"), frame


def verdicts_text(result: Mapping[str, Any], between: str) -> str:
    """Return the stability verdicts of the branches at a threshold as text.

    Args:
        result: threshold from `threshold_as_dict`.
        between: text that separates the branches.
    """
    return between.join(f"{branch}: {verdict}" for branch, verdict in result["verdicts"].items())


def threshold_curve(label: str, thresholds: Mapping[str, Any]) -> dict[str, Any]:
    """Return a threshold along omega for a figure: a dict with label, omega, alpha and error (NaN if not found).

    Args:
        label: text in the legend.
        thresholds: by omega (as text), threshold from `threshold_as_dict`.
    """
    omegas = sorted(thresholds, key=float)
    alpha, error = numeric_columns([thresholds[omega] for omega in omegas], "value", "error")
    return {"label": label, "omega": [float(omega) for omega in omegas], "alpha": alpha, "error": error}


def phase_diagram_lines(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the thresholds along omega as the argument `lines` of `plot_phase_diagram`."""
    return [
        {
            **threshold_curve(SHORT_NAMES[kind], found),
            "published": [(float(w), value) for w, value in PUBLISHED[kind].items()],
            "line": results["lines"][kind],
        }
        for kind, found in results["thresholds"].items()
    ]


def plot_overlaps(
    datasets: Mapping[str, xarray.Dataset], path: str | Path | None = None, *, marks: Marks = ()
) -> Figure:
    """Draw overlaps of several branches against the parameter (the paper's Fig. 2): panels for theta, |m| and q.

    Args:
        datasets: tables of the branches, by name of the branch.
        path: PNG file to write.
        marks: thresholds to draw as vertical lines: dicts with `value`, `error` and `label`.
    """
    with styled_figure(path, 9.2, 8.0) as figure:
        panels = figure.subplots(3, 1, sharex=True)
        texts = {"theta": "semantic overlap θ", "m": "positional overlap |m|", "q": "self-overlap q"}
        for axes, (name, label) in zip(panels, texts.items(), strict=True):
            for branch, dataset in datasets.items():
                for number, one in enumerate(plots.distinct_overlap_entries(dataset, name)):
                    text = None if number else f"{branch} branch"
                    draw_quantity_along_branch(axes, branch, dataset, one.values, one.errors, label=text)
            axes.axhline(0, color=GREY, linewidth=0.6)
            axes.set_ylabel(label)
            _draw_intervals_of_proximal_jumps(axes, datasets, marks)
        _add_titles_and_legend(panels[0], panels[-1], datasets, "Overlaps", marks)
    return figure


def plot_test_error(
    datasets: Mapping[str, xarray.Dataset], path: str | Path | None = None, *, marks: Marks = ()
) -> Figure:
    """Draw the test error of several branches against alpha, with the linear baseline.

    Args:
        datasets: tables of the branches, by name of the branch.
        path: PNG file to write.
        marks: thresholds to draw as vertical lines: dicts with `value`, `error` and `label`.
    """
    with styled_figure(path, 9.2, 4.6) as figure:
        axes = figure.subplots()
        for branch, dataset in datasets.items():
            draw_test_error(axes, branch, dataset, label=f"{branch} branch")
        spans = {
            name: np.ptp(x) if len(x := plots.parameter_values_along_table(d)) else 0.0 for name, d in datasets.items()
        }
        plots.draw_linear_baseline(axes, datasets[max(spans, key=lambda name: spans[name])])
        plots.start_axis_at_zero(axes)
        axes.set_ylabel("test error per token")
        _draw_intervals_of_proximal_jumps(axes, datasets, marks)
        _add_titles_and_legend(axes, axes, datasets, "Test error", marks)
    return figure


def plot_loss_difference(
    datasets: Mapping[str, xarray.Dataset], path: str | Path | None = None, *, marks: Marks = ()
) -> Figure:
    """Draw the training loss of one branch minus that of another along alpha, where both were found.

    Args:
        datasets: tables of the branches, by name of the branch.
        path: PNG file to write.
        marks: thresholds to draw as vertical lines: dicts with `value`, `error` and `label`.
    """
    first, second = datasets.values()
    values, difference, error = loss_difference_curve(first, second)
    one, other = first.attrs["branch"], second.attrs["branch"]
    with styled_figure(path, 9.2, 4.4) as figure:
        axes = figure.subplots()
        for name, side in ((other, difference > 0), (one, difference < 0)):
            style: dict[str, Any] = {"color": branch_colour(name), "alpha": 0.15, "interpolate": True, "linewidth": 0}
            axes.fill_between(values, 0, difference, where=side, label=f"{name} has the lower training loss", **style)
        axes.errorbar(values, difference, yerr=error, color="black", marker="o", markersize=4, capsize=2)
        draw_zero_line(axes)
        axes.set_xlabel(plots.parameter_axis_label(first.attrs["parameter"]))
        axes.set_ylabel(f"training loss per d:\n{one} minus {other}")
        axes.set_title(f"Difference of training losses, {plots.describe_model_and_omega(first)}")
        plots.draw_thresholds(axes, marks)
        plots.draw_legend(axes, plots.legend_entries_of_thresholds(marks))
    return figure


def plot_phase_diagram(lines: Sequence[Mapping[str, Any]], path: str | Path | None = None) -> Figure:
    """Draw thresholds in alpha against omega, with error bars and published points.

    Args:
        lines: a dict for every threshold: `label`, `omega`, `alpha` and `error` (arrays; NaN where it was not found),
            optionally `published` (pairs of omega and alpha) and `line` (dict with omega, alpha and error of a
            continuous line, drawn with its error bar as a band).
        path: PNG file to write.
    """
    with styled_figure(path, 9.2, 5.0) as figure:
        axes = figure.subplots()
        for line, colour, marker in zip(lines, (BLUE, ORANGE, GREEN, PINK), "os^D", strict=False):
            omega, alpha, error = (np.asarray(line[name], float) for name in ("omega", "alpha", "error"))
            there = np.isfinite(alpha)
            if "line" in line and len(line["line"]["omega"]):
                x, y, width = (np.asarray(line["line"][name], float) for name in ("omega", "alpha", "error"))
                width = np.nan_to_num(width)
                axes.fill_between(x, y - width, y + width, color=colour, alpha=0.25, linewidth=0)
                axes.plot(x, y, color=colour)
            axes.errorbar(omega[there], alpha[there], yerr=error[there], color=colour, marker=marker, capsize=3,
                          linestyle="none" if "line" in line else "-", label=line["label"])  # fmt: skip
            published = np.array(line.get("published", ()), float).reshape(-1, 2)
            if len(published):
                label = f"{line['label'].split(':')[0]} as published"
                axes.plot(*published.T, linestyle="none", marker=marker, markersize=8, markerfacecolor="none",
                          markeredgecolor="black", markeredgewidth=1.2, label=label)  # fmt: skip
        axes.set(xlabel=OMEGA, ylabel=ALPHA, title="Phase diagram")
        plots.start_axis_at_zero(axes)
        plots.draw_legend(axes, [])
    return figure


def _draw_intervals_of_proximal_jumps(axes: Axes, datasets: Mapping[str, xarray.Dataset], marks: Marks) -> None:
    """Mark where the proximal map jumps (a strip for each branch), where the branches end, and the thresholds."""
    for row, (branch, dataset) in enumerate(datasets.items()):
        for left, right in plots.intervals_of_proximal_jumps(dataset):
            foot = 0.022 * row
            axes.axvspan(left, right, foot, foot + 0.018, color=branch_colour(branch), alpha=0.45, linewidth=0)
        plots.draw_branch_ends(axes, dataset, branch_colour(branch))
    plots.draw_thresholds(axes, marks)


def _add_titles_and_legend(
    first: Axes, last: Axes, datasets: Mapping[str, xarray.Dataset], title: str, marks: Marks
) -> None:
    """Add a title, axis labels and one legend to a figure with one colour per branch."""
    one = next(iter(datasets.values()))
    last.set_xlabel(plots.parameter_axis_label(one.attrs["parameter"]))
    first.set_title(f"{title}, {plots.describe_model_and_omega(one)}")
    handles: list[Any] = plots.legend_entries_of_stability(
        np.concatenate([plots.stability_verdicts_of_points(d) for d in datasets.values()])
    )
    handles += [*plots.legend_entries_of_thresholds(marks), *plots.legend_entries_of_branch_ends(datasets.values())]
    if any(plots.intervals_of_proximal_jumps(d) for d in datasets.values()):
        handles.append(Patch(color=GREY, alpha=0.45, label="strip: proximal map jumps, RS not strict"))
    plots.draw_legend(first, handles)


def build_page(results: Mapping[str, Any], figures: Sequence[str]) -> list[Block]:
    """Return the report on the phase transition as a list of paragraphs, tables and pictures.

    Args:
        results: results of the run by key:
            model, digest, version, omega;
            derivation: {equations};
            generated: {differences};
            curves: {name of the branch: {ends, points}};
            thresholds: {"alpha_c" or "alpha_l": {omega: dict from `threshold_as_dict`}};
            coarse: {crossings, baseline};
            baseline: {omega: exact test error of the linear baseline}.
        figures: names of the figures that were drawn.
    """
    return [
        "# Positional and semantic learning in dot-product attention: reproduction",
        f"Source: {SOURCE}, Fig. 2 and 3. Model {results['model']} (digest {results['digest']}), saddleforge "
        f"{results['version']}. Every value is a solution of the replica-symmetric saddle point with its half "
        "width in the last digits, as in 1.2515(3); deviations are (published - ours) / ours.",
        _summary_text(results),
        *_section_on_thresholds(results, figures),
        *_section_on_baseline(results),
        *_section_on_branches(results, figures),
        *_section_on_coarse_rules(results),
        *_section_on_derivation(results),
        "## Files",
        "tables/semantic and tables/positional (.nc, .csv): the branches at omega = 0.3, with errors, stability; "
        "tables/thresholds (.nc, .csv): the thresholds; derivation.txt and derivation.tex: the derivation; "
        "results.json: all numbers of this report; steps/: finished steps, used again by the next run.",
    ]


def _summary_text(results: Mapping[str, Any]) -> str:
    omega = f"{results['omega']:g}"
    sentences = []
    for kind, what in (
        ("alpha_c", "the semantic solution becomes the one of lower training loss"),
        ("alpha_l", "attention on the semantic branch beats the linear baseline"),
    ):
        found, published = results["thresholds"][kind][omega], PUBLISHED[kind].get(omega)
        if found["value"] is not None:
            comparison = published and f" (published {published:.4f}, {percent_deviation(published, found['value'])})"
            sentences.append(f"At omega = {omega} {what} above alpha = {_format_threshold(found)}{comparison or ''}.")
    sentences.append(
        "The RS verdict is given with each threshold: where the proximal map jumps, every digit is one of the "
        "replica-symmetric equations, which are then not the whole truth."
    )
    return " ".join(sentences)


def _section_on_thresholds(results: Mapping[str, Any], figures: Sequence[str]) -> list[Block]:
    blocks: list[Block] = ["## Thresholds"]
    absent: list[Block] = []
    for kind, found in results["thresholds"].items():
        rows = []
        for omega in sorted(found, key=float):
            result, published = found[omega], PUBLISHED[kind].get(omega)
            shown = "-" if published is None else f"{published:.4f}"
            if result["value"] is None:
                rows.append([omega, "none found", shown, None, "see below", verdicts_text(result, "; ") or None])
                absent += _paragraphs_on_absent_threshold(kind, omega, result)
            else:
                status = f"{result['status'].replace('_', ' ')}, {result['error_kind']}"
                rows.append([omega, _format_threshold(result), shown, percent_deviation(published, result["value"]),
                             status, verdicts_text(result, "; ") or None])  # fmt: skip
        head = "omega | ours | published | deviation | status | RS verdict of each branch"
        blocks += [f"### {LONG_NAMES[kind]}", Table(head, rows)]
    blocks.append(
        f"At omega = 0.3 the published tables of the two branches cross at {PUBLISHED_CROSSING}, not at the "
        f"published {PUBLISHED['alpha_c']['0.3']:.4f}."
    )
    caption = "Thresholds against omega: as lines with error bars, located one by one (symbols), published (open)."
    return [*blocks, *absent, *_pictures_with_captions({"phase_diagram": caption}, figures)]


def _pictures_with_captions(captions: Mapping[str, str], figures: Sequence[str]) -> list[Picture]:
    return [Picture(name, caption) for name, caption in captions.items() if name in figures]


def _format_threshold(threshold: Mapping[str, Any]) -> str:
    return format_value_with_error(threshold["value"], threshold["error"])


def _paragraphs_on_absent_threshold(kind: str, omega: str, result: Mapping[str, Any]) -> list[Block]:
    """Return paragraphs and a table on a threshold that was not found: the alpha at which branches were compared."""
    evidence = result["evidence"]
    blocks: list[Block] = [f"No {kind} at omega = {omega}: {result['sentence']}."]
    for branch, lowest in evidence["lowest_alpha_found"].items():
        lost = evidence["highest_alpha_not_found"].get(branch)
        where = "was not found" if lowest is None else f"was found down to alpha = {lowest:.4g}"
        blocks.append(f"The {branch} branch {where}" + ("." if lost is None else f"; it was not found at {lost:.4g}."))
    if evidence["compared"]:
        what = {"alpha_c": "difference of training losses, semantic - positional",
                "alpha_l": "test error - baseline on the semantic branch"}[kind]  # fmt: skip
        rows = [[f"{r['alpha']:.4g}", (r["difference"], r["error"])] for r in evidence["compared"]]
        blocks.append(Table(f"alpha | {what}", rows))
    return blocks


def _section_on_baseline(results: Mapping[str, Any]) -> list[Block]:
    omega = f"{results['omega']:g}"
    exact, planes = results["baseline"][omega], results["coarse"]["baseline"]
    published = "published (sum over two tokens 0.00398092)"
    rows: list[Sequence[Any]] = [
        ["ours", f"{exact:.14f}", None],
        [published, f"{PUBLISHED_BASELINE:.8f}", percent_deviation(PUBLISHED_BASELINE, exact)],
        ["12 points of degree 7", f"{planes:.8f}", percent_deviation(planes, exact)],
    ]
    others = ", ".join(f"{value:.10f} at omega = {w}" for w, value in results["baseline"].items() if w != omega)
    head = f"test error per token at omega = {omega} | value | deviation"
    return ["## Linear positional baseline", Table(head, rows), f"At the other omega: {others}."]


def _section_on_branches(results: Mapping[str, Any], figures: Sequence[str]) -> list[Block]:
    blocks: list[Block] = [f"## Branches at omega = {results['omega']:g}"]
    for found in results["curves"].values():
        ends = found["ends"]
        edges = "" if "ends between" in ends else ": it reaches both edges of the range that was asked for"
        blocks.append(f"{ends[0].upper()}{ends[1:]}{edges} ({found['points']} solutions).")
    captions = {
        "overlaps": "Overlaps of both branches with error bars. Solid: stable; dashed: a longitudinal eigenvalue or "
        "the replicon is at least 1, or the accuracy for a verdict was not reached. Strips at the foot: the "
        "proximal map jumps there.",
        "test_error": "Test error per token of both branches, and the best linear positional layer.",
        "loss_difference": "Difference of training losses; the transition is its zero.",
    }
    return [*blocks, *_pictures_with_captions(captions, figures)]


def _section_on_coarse_rules(results: Mapping[str, Any]) -> list[Block]:
    omega = f"{results['omega']:g}"
    found, ours = results["thresholds"]["alpha_c"][omega], results["thresholds"]["alpha_c"][omega]["value"]
    publications = {"published": PUBLISHED["alpha_c"][omega], "published tables": PUBLISHED_CROSSING}
    crossings = results["coarse"]["crossings"]
    rows: list[Sequence[Any]] = []
    if ours is not None:
        rows.append(["this work", _format_threshold(found), None])
        for (name, value), digits in zip(publications.items(), (4, 3), strict=True):
            rows.append([name, f"{value:.{digits}f}", percent_deviation(value, ours)])
    for row in crossings:
        crossing = f"none: {row['sentence']}" if row["value"] is None else f"{row['value']:.4f}"
        rows.append([row["rule"], crossing, percent_deviation(row["value"], ours)])
    blocks: list[Block] = [
        "## Why the published numbers deviate",
        "The publication integrates with 12 points of degree 7 in each plane and solves the proximal map from one "
        f"start. The same equations solved here with rules as coarse, at omega = {omega}, put the transition at:",
        Table("rule | alpha_c | deviation from ours", rows),
    ]
    values = {row["rule"]: row["value"] for row in crossings if row["value"] is not None}
    if values and ours is not None:
        coarse, published = ([100 * (v / ours - 1) for v in one.values()] for one in (values, publications))
        explains = max(map(abs, coarse)) >= max(map(abs, published))
        blocks.append(
            f"{'A coarse rule is enough to explain' if explains else 'A coarse rule does not explain'} "
            f"deviations of the published size at omega = {omega}: these rules are off by {min(coarse):+.1f} to "
            f"{max(coarse):+.1f} %, the published values by {min(published):+.1f} to {max(published):+.1f} %."
            f"{_sentence_on_single_proximal_start(values)} What is shown is the size of such errors, not the "
            "published digits: these, and their sign, depend on details of the rule that are not reproduced here, such "
            "as the order in which the fields are sampled."
        )
    return blocks


def _sentence_on_single_proximal_start(values: Mapping[str, float]) -> str:
    """Return a sentence on the error made if the proximal map is minimised from one start only, by the same rule."""
    for rule, single in values.items():
        both = values.get(rule.replace("one proximal start", "global proximal map"))
        if "one proximal start" in rule and both is not None:
            moved = abs(single - both)
            how = "not at all" if moved < 5e-5 else "little" if moved < 5e-3 else "too"
            return (
                f" The single proximal start matters {how}: with the same points, one start gives {single:.4f} and "
                f"the global proximal map {both:.4f}."
            )
    return ""


def _section_on_derivation(results: Mapping[str, Any]) -> list[Block]:
    fresh, found = "is what the generator writes today, byte for byte.", "; ".join(results["generated"]["differences"])
    if found:
        fresh = f"is NOT what the generator writes: {found}. `saddleforge generate` writes it again."
    return [
        "## Derivation and generated solver",
        "The saddle-point equations were derived by differentiating the free entropy (derivation.txt, "
        f"derivation.tex): one each for {', '.join(results['derivation']['equations'])}. "
        f"The committed solver {fresh}",
    ]


def percent_deviation(published: float | None, ours: float | None) -> str:
    """Return (published - ours) / ours in percent, with its sign.

    Args:
        published: number of the publication; None if there is none.
        ours: number computed by this package; None if there is none.
    """
    percent = math.nan if published is None or ours is None else 100 * (published - ours) / ours
    return f"{percent:+.2f} %" if math.isfinite(percent) else "-"
