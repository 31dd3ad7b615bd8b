"""Table, figure and page of theory compared with finite d."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ...base.numbers import format_value_with_error
from ...extensions.comparison.compare import LOSSES, FiniteSizeExtrapolation, TheoryWithMeasurement
from ...report.plots.drawing import BLUE, BRANCH_COLOURS, GREEN, ORANGE, OVERLAP_STYLES, PINK, RED, start_axis_at_zero
from ...report.plots.simulation import draw_finite_size_scaling, draw_simulation_means
from ..finite_size import (
    FINITE_SIZE,
    FOUND,
    JUDGE_STEPS,
    OVERLAPS,
    POLISHED,
    SCALING_ALPHA,
    SEEDS,
    D,
    FiniteSizeRun,
)
from ..run import BRANCHES, SHOWN_OMEGA
from .content import (
    Block,
    Picture,
    Table,
    counts_column,
    describe_counts,
    numeric_columns,
    rounded_column,
    table_cells,
    words_column,
    write_page,
    write_table,
)
from .drawing import ALPHA, legend_entry, styled_figure

SIGNIFICANT_DEVIATION = 3.0  # standard errors of a significant deviation

Rows = Sequence[Mapping[str, Any]]


def write_report(run: FiniteSizeRun) -> None:
    """Write the table, the figure and the report of a run that compares theory with simulations at finite d."""
    theory = {name: theory_curve(run, name) for name in BRANCHES}
    rows = comparison_rows(run.results["points"], theory)
    write_table(run, "finite_size", rows)
    draw = {FINITE_SIZE: lambda path: plot_finite_size(run.results, theory, path)}
    write_page(run, build_page(run.results, rows), draw)


def theory_curve(run: FiniteSizeRun, name: str) -> dict[str, Any]:
    """Return the theoretical observables along a branch by name; of the overlaps, absolute values of the first token.

    Args:
        run: run in whose output folder the table of the branch is stored.
        name: name of the branch.
    """
    dataset = run.load_branch_table(name)
    found = {key: dataset[key].values for key in ("alpha", "verdict")}
    for key in (*OVERLAPS, *LOSSES):
        values, errors = (dataset[one].values.reshape(len(found["alpha"]), -1)[:, 0] for one in (key, f"{key}_error"))
        found[key], found[f"{key}_error"] = np.abs(values) if key in OVERLAPS else values, errors
    return found


def _index_of_alpha(theory: Mapping[str, Any], alpha: float) -> int | None:
    """Return the index of a value of alpha in the theoretical curve of a branch; None if the curve lacks it."""
    at = np.flatnonzero(np.abs(np.asarray(theory["alpha"]) - alpha) < 1e-9)
    return int(at[0]) if len(at) else None


def comparison_rows(
    points: Mapping[str, Mapping[str, Rows]], theory: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return a table row for every simulated observable: theory, simulation, deviation in combined standard errors.

    Overlaps that vanish in theory are left out, since |m| of a simulation cannot vanish.

    Args:
        points: simulated observables, by search method and branch.
        theory: curves from `theory_curve`, by branch.
    """
    rows = []
    for search, name, row in [(s, n, row) for s, found in points.items() for n, many in found.items() for row in many]:
        branch, at = theory[name], _index_of_alpha(theory[name], row["alpha"])
        for key in (*OVERLAPS, *LOSSES):
            value, width = (np.nan, np.nan) if at is None else (float(branch[k][at]) for k in (key, f"{key}_error"))
            if key in OVERLAPS and value < 1e-6:
                continue
            (simulated,), (standard_error,) = numeric_columns([row], key, f"{key}_error")
            rows.append(
                {
                    "branch": name,
                    "search": search,
                    "alpha": row["alpha"],
                    "observable": key,
                    "runs": row["on_branch"],
                    "of": row["of"],
                    "theory": value,
                    "theory_error": width,
                    "simulation": simulated,
                    "standard_error": standard_error,
                    "deviation": (simulated - value) / float(np.hypot(standard_error, width / 2)),
                    "verdict": "no such solution in theory" if at is None else str(branch["verdict"][at]),
                }
            )
    return rows


def plot_finite_size(results: Mapping[str, Any], theory: Mapping[str, Any], path: Path) -> None:
    """Draw the figure that compares theory with simulations at finite d, in eight panels.

    The panels show overlaps, losses, deviations from theory, the transition, scaling in d, loss differences at several
    omega, random starts, and GAMP.

    Args:
        results: results of the run by key, see `ReproductionRun.results`.
        theory: curves from `theory_curve`, by branch.
        path: PNG file to write.
    """
    # Simulations with standard errors; quantities as columns.
    names = ["alpha", *(key + end for key in (*OVERLAPS, *LOSSES) for end in ("", "_error"))]
    points = {
        search: {
            name: dict(zip(names, numeric_columns([row for row in rows if row["on_branch"] > 1], *names), strict=True))
            for name, rows in found.items()
        }
        for search, found in results["points"].items()
    }
    with styled_figure(path, 13.4, 15.4) as figure:
        panels = figure.subplots(4, 2)
        _draw_overlaps(panels[0, 0], theory, points)
        _draw_losses(panels[0, 1], theory, points)
        _draw_deviations_from_theory(panels[1, 0], theory, points)
        _draw_paired_loss_differences(panels[1, 1], results)
        _draw_scaling_in_d(panels[2, 0], results["scaling"][FOUND]["semantic"])
        _draw_loss_differences_by_omega(panels[2, 1], results["plane"])
        _draw_branches_from_random_starts(panels[3, 0], results["random"])
        _draw_gamp_iterations(panels[3, 1], results["gamp"])


def _draw_overlaps(axes: Axes, theory: Mapping[str, Any], points: Mapping[str, Any]) -> None:
    """Draw overlaps of simulated minima against alpha, with theory as lines; crosses mark minima of L-BFGS alone."""
    for branch, one in theory.items():
        for name, (colour, _, _) in OVERLAP_STYLES.items():
            axes.plot(one["alpha"], one[name], color=colour, linestyle="-" if branch == "semantic" else "--")
    for search in (POLISHED, FOUND):
        for branch, found in points[search].items():
            for name, (colour, marker, _) in OVERLAP_STYLES.items():
                mark, face = marker if search == POLISHED else "x", colour if branch == "positional" else "white"
                _draw_simulated_points(axes, found, name, colour, mark, face)
    axes.set_ylim(top=0.36)  # room for the legend
    axes.set(title=f"overlaps, d = {D}, {SEEDS} seeds", xlabel=ALPHA, ylabel="overlap")
    handles = [legend_entry(label, colour, marker=marker) for colour, marker, label in OVERLAP_STYLES.values()]
    handles += [
        legend_entry("semantic, polished (line: theory)", marker="o", markerfacecolor="white"),
        legend_entry("positional, polished (dashed: theory)", marker="o", linestyle="--"),
        legend_entry("L-BFGS", marker="x", linestyle=""),
    ]
    axes.legend(handles=handles, loc="upper left", ncols=2)


def _draw_simulated_points(
    axes: Axes, found: Mapping[str, Any], name: str, colour: str, marker: str, face: str = "white"
) -> None:
    draw_simulation_means(axes, found["alpha"], found[name], found[f"{name}_error"], colour, marker, face=face)


def _draw_losses(axes: Axes, theory: Mapping[str, Any], points: Mapping[str, Any]) -> None:
    for branch, one in theory.items():
        for name, style in (("training_loss", "-"), ("test_error", ":")):
            axes.plot(one["alpha"], one[name], color=BRANCH_COLOURS[branch], linestyle=style)
    for search, markers in ((POLISHED, "os"), (FOUND, "xx")):
        for branch, found in points[search].items():
            for name, marker in zip(LOSSES, markers, strict=True):
                _draw_simulated_points(axes, found, name, BRANCH_COLOURS[branch], marker)
    title = "training loss (circles), test error (squares, dotted); crosses: L-BFGS"
    axes.set(title=title, xlabel=ALPHA, ylabel="loss per d, error per token")
    start_axis_at_zero(axes)
    axes.legend(handles=[legend_entry(branch, BRANCH_COLOURS[branch], marker="o") for branch in theory], loc="best")


def _draw_deviations_from_theory(axes: Axes, theory: Mapping[str, Any], points: Mapping[str, Any]) -> None:
    """Draw, in percent, how far simulated overlaps and training losses deviate from theory."""
    for branch, overlap in (("semantic", "theta"), ("positional", "m")):
        colour = BRANCH_COLOURS[branch]
        for name, marker, apart in ((overlap, "o", 1), ("training_loss", "s", 2)):
            for search, face, aside in ((FOUND, "white", -0.008), (POLISHED, colour, 0.008)):
                found = points[search][branch]
                places = [_index_of_alpha(theory[branch], alpha) for alpha in found["alpha"]]
                there = np.array([place is not None for place in places], bool)
                unit = np.array([theory[branch][name][place] for place in places if place is not None]) / 100
                x, y, error = (found[one][there] for one in ("alpha", name, f"{name}_error"))
                draw_simulation_means(axes, x + aside * apart, y / unit - 100, error / unit, colour, marker, face=face)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_ylim(-8, 14)
    axes.set(title="less replica symmetric theory, %", xlabel=ALPHA)
    handles = [
        legend_entry("semantic, θ", BRANCH_COLOURS["semantic"], marker="o", linestyle=""),
        legend_entry("positional, m", BRANCH_COLOURS["positional"], marker="o", linestyle=""),
        legend_entry("squares: training loss", marker="s", linestyle=""),
        legend_entry("hollow: L-BFGS", marker="o", linestyle="", markerfacecolor="white"),
        legend_entry("full: polished", marker="o", linestyle=""),
    ]
    axes.legend(handles=handles, loc="upper right", ncols=2)


def _draw_paired_loss_differences(axes: Axes, results: Mapping[str, Any]) -> None:
    """Draw, near the transition, the training loss differences between minima from two starts on the same data."""
    for (search, found), colour in zip(results["transition"].items(), (RED, BLUE), strict=True):
        alpha, mean, error = numeric_columns(found["differences"], "alpha", "mean", "standard_error")
        value, width = found["value"], found["error"]
        label = f"{search}: {format_value_with_error(value, width)}"
        draw_simulation_means(axes, alpha, 1e3 * mean, 1e3 * error, colour, "o", label)
        fine = np.linspace(alpha[0], alpha[-1], 60)
        axes.plot(fine, np.polyval(np.polyfit(alpha, 1e3 * mean, 2), fine), color=colour, linewidth=1.0)
        axes.axvspan(value - width, value + width, color=colour, alpha=0.2, lw=0)
    known = results["thresholds"]["alpha_c"][f"{SHOWN_OMEGA:g}"]["value"]
    axes.axvline(known, color="black", linewidth=1.0, linestyle="--", label="equal loss in theory")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(title=f"training loss, semantic less positional, × 1000, d = {D}", xlabel=ALPHA)
    axes.legend(loc="best")


def _draw_scaling_in_d(axes: Axes, scaled: Mapping[str, Any]) -> None:
    rows = {}
    for name, row in scaled["rows"].items():
        if abs(row["theory"]) >= 1e-6 and not name.endswith("_2"):
            theory = row["theory"], row["theory_error"]
            parts = ("value", "error", "slope", "power", "chi2")
            fit = FiniteSizeExtrapolation(**{part: row[part] for part in parts}, freedom=0)
            means, errors = (np.array(row[part], float) for part in ("means", "errors"))
            every = [
                {name: TheoryWithMeasurement(*theory, mean, error)} for mean, error in zip(means, errors, strict=True)
            ]
            rows[name] = ((TheoryWithMeasurement(*theory, fit.value, fit.error), fit), every)
    draw_finite_size_scaling(axes, scaled["dims"], rows)
    axes.set_title(f"semantic branch, alpha = {SCALING_ALPHA:g}: scaling in d")


def _draw_loss_differences_by_omega(axes: Axes, rows: Rows) -> None:
    """Draw the training loss difference between the two branches against alpha, one colour per omega."""
    omegas = sorted({row["omega"] for row in rows})
    for omega, colour in zip(omegas, (BLUE, GREEN, ORANGE, RED, PINK), strict=False):
        here = sorted((row for row in rows if row["omega"] == omega), key=lambda row: row["alpha"])
        alpha, theory, mean, error = numeric_columns(here, "alpha", "theory", "simulation", "error")
        both, found = np.isfinite(theory), np.isfinite(mean)
        axes.plot(alpha[both], 1e3 * theory[both], color=colour, marker="_", markersize=9)
        errors = 1e3 * np.nan_to_num(error[found])
        draw_simulation_means(axes, alpha[found], 1e3 * mean[found], errors, colour, "o", f"ω = {omega:g}")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(title="training loss, semantic less positional, × 1000", xlabel=f"{ALPHA};  lines where theory has both")
    axes.legend(loc="best")


def _draw_branches_from_random_starts(axes: Axes, rows: Rows) -> None:
    """Draw which fraction of the random starts reaches each branch, one bar per optimiser and alpha."""
    places, bottom = np.arange(len(rows), dtype=float), np.zeros(len(rows))
    for branch, colour in BRANCH_COLOURS.items():
        share = np.array([row["reached"].get(branch, 0) / max(row["runs"], 1) for row in rows])
        axes.bar(places, share, 0.7, bottom=bottom, color=colour, label=branch)
        bottom += share
    axes.set_xticks(places, [f"{row['method']}\nα = {row['alpha']:g}" for row in rows])
    axes.set_ylim(0, 1.18)
    axes.set(title="minima reached from random starts", ylabel="fraction of seeds")
    axes.legend(loc="upper center", ncols=4)
    axes.grid(False, axis="x")


def _draw_gamp_iterations(axes: Axes, gamp: Mapping[str, Any]) -> None:
    """Draw the overlaps of GAMP (means over seeds) and of state evolution against the iteration."""
    for name, (colour, marker, label) in OVERLAP_STYLES.items():
        axes.plot(np.abs(gamp["theory"][name]), color=colour)
        mean, error = gamp["simulation"][name], gamp["simulation"][f"{name}_error"]
        draw_simulation_means(axes, range(len(mean)), mean, error, colour, marker, label)
    axes.set(title=f"GAMP (points) follows state evolution (lines), d = {gamp['d']}", ylabel="overlap",
             xlabel=f"iteration, {gamp['start']} start at α = {gamp['alpha']:g}")  # fmt: skip
    axes.legend(loc="best")


def build_page(results: Mapping[str, Any], rows: Rows) -> list[Block]:
    """Return the report on finite d as a list of paragraphs, tables and pictures.

    Args:
        results: results of the run by key, see `ReproductionRun.results`.
        rows: rows that compare theory and simulations, from `comparison_rows`.
    """
    known = results["thresholds"]["alpha_c"][f"{SHOWN_OMEGA:g}"]
    stable = [r for r in rows if r["verdict"].startswith("RS stable") and np.isfinite(r["deviation"])]
    near = [r for r in stable if abs(r["deviation"]) <= SIGNIFICANT_DEVIATION]
    head = "branch | alpha | search | runs | observable | theory | simulation | deviation | verdict of theory"
    table = table_cells(rows, "branch", "alpha", "search", counts_column("runs"), words_column("observable"),
                  "theory theory_error", "simulation standard_error", rounded_column("deviation", "+.1f"),
                  "verdict")  # fmt: skip
    found = " and ".join(
        f"{format_value_with_error(t['value'], t['error'])} ({s})" for s, t in results["transition"].items()
    )
    blocks: list[Block] = [
        "# Theory meets finite size",
        f"{results['model']}, saddleforge {results['version']}, omega = {SHOWN_OMEGA:g}, d = {D}. Simulations "
        "minimise the risk by L-BFGS on data drawn from the law of the tokens; the overlaps of teacher and "
        "encodings are those of the law exactly, and test errors are exactly those of the overlaps found. Where "
        "minima are polished, samples outside the lowest minimum of their own Moreau objective are moved until none "
        "lowers the risk, and the overlap that vanishes on the branch is constrained to zero. In parentheses: error "
        "bars for theory, one standard error over seeds for simulations, with control variates.",
        f"Equal training loss of the two minima, seed by seed on the same data: alpha_c = {found} at d = {D}; replica "
        f"theory {format_value_with_error(known['value'], known['error'])}. Where theory calls the solution stable, "
        f"{len(near)} of {len(stable)} observables lie within {SIGNIFICANT_DEVIATION:g} standard errors at this d.",
        Picture(
            FINITE_SIZE,
            "Lines are theory, points simulations with one standard error. Below alpha = 0.72 theory has no semantic "
            "solution, while minimisation still finds semantic minima: metastable states that replica symmetry does "
            "not describe.",
        ),
        "## Both branches",
        Table(head, table),
    ]
    for search, name, scaled in [(s, n, one) for s, found in results["scaling"].items() for n, one in found.items()]:
        dims = " | ".join(f"d = {d}" for d in scaled["dims"])
        lines = [
            (
                key.replace("_", " ") if key in LOSSES else key,
                (row["theory"], row["theory_error"]),
                *zip(row["means"], row["errors"], strict=True),
                format_value_with_error(row["value"], row["error"]) + (" 1/d" if row["power"] == 1 else " 1/sqrt(d)"),
                f"{row['deviation']:+.1f}",
            )
            for key, row in scaled["rows"].items()
        ]
        blocks += [
            f"## d to infinity, {name} branch, alpha = {SCALING_ALPHA:g}, {search}",
            f"Verdict of theory: {scaled['verdict']}.",
            Table(f"observable | theory | {dims} | d to infinity | deviation", lines),
        ]
    random = table_cells(
        results["random"], "method", "alpha", counts_column("runs"), lambda row: describe_counts(row["reached"])
    )
    judged = table_cells(results["judged"], "branch", "alpha", "verdict", counts_column("stayed"), "converged",
                   rounded_column("replicon", ".3f"), rounded_column("measured", ".3f"),
                   rounded_column("late_over_q", ".2g"),
                   rounded_column("self_overlap_loss", ".2g", times=2))  # fmt: skip
    return [
        *blocks,
        "## Random starts",
        Table("method | alpha | converged | minima reached", random),
        "## GAMP as a test of stability",
        f"Point-wise convergence (squared relative step below 1e-12 within {JUDGE_STEPS} iterations) is expected "
        "where the proximal map does not jump and the replicon is below 1; where it jumps, iterates are expected "
        "to stay apart by 2 D*, twice the self-overlap loss times q. Measured: the factor by which the squared "
        "distance of two estimates with the same overlaps shrinks, which theory calls the replicon.",
        Table(
            "branch | alpha | verdict | stayed | converged | replicon | measured | late distance / q | 2 D*/q", judged
        ),
    ]
