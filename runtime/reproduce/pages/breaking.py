"""Table, figure and page of one step of symmetry breaking compared with replica symmetry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...base.numbers import format_value_with_error
from ...report.plots.drawing import BRANCH_COLOURS, GREY
from ..breaking import BREAKING, MAP_ALPHAS, BreakingRun
from ..run import BRANCHES, SHOWN_OMEGA
from .content import Block, Picture, Table, numeric_columns, write_page, write_table
from .drawing import (
    ALPHA,
    OMEGA,
    branch_colour,
    draw_zero_line,
    legend_entries_of_branches,
    legend_entry,
    styled_figure,
    values_on_grid,
)

# Values of a prototype on grids, to about one per cent; theta of replica symmetry is left out where it has none.
PROTOTYPE: dict[tuple[str, float], dict[str, float]] = {
    ("positional", 2.0): {"q": 0.05094, "m": 0.25852, "energy_moved": 2.0e-7, "distance": 6.0e-4, "parisi": 875},
    ("positional", 1.0): {"q": 0.04334, "m": 0.24860, "energy_moved": 3.0e-7, "distance": 8.8e-4, "parisi": 999},
    ("semantic", 0.9): {"theta": 0.0827, "symmetric_theta": 0.0803},
    ("semantic", 0.8): {"theta": 0.0686, "symmetric_theta": 0.0573},
    ("semantic", 0.6): {"theta": 0.0362},
}
_SHOWN = {"q": "q_1", "m": "|m|", "theta": "theta", "energy_moved": "training loss moved, 1e-7", "distance": "Delta",
          "parisi": "y"}  # fmt: skip
_UNITS = {"energy_moved": 1e-7}
_SYMMETRIC_COLUMNS = (
    "energy_moved",
    "energy_moved_error",
    "symmetric_theta",
    "symmetric_theta_error",
    "symmetric_seconds",
)

Rows = Sequence[Mapping[str, Any]]


def write_report(run: BreakingRun) -> None:
    """Write the table, the figure and the report of a run on symmetry breaking."""
    rows = table_rows(run.results)
    write_table(run, "rsb", rows, as_json=True)
    write_page(
        run, build_page(run.results, rows), {BREAKING: lambda path: plot_symmetry_breaking(run.results, rows, path)}
    )


def table_rows(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a table row for each solution with one step of breaking, and its replica symmetric one if found."""
    found = {(name, f"{SHOWN_OMEGA:g}"): one for name, one in results["curves"].items()}
    found |= {("positional", omega): one for omega, one in results["map"].items()}
    return [
        _table_row_of_solution(
            name, float(omega), point, {p["alpha"]: p for p in one["symmetric"]["points"]}.get(point["alpha"])
        )
        for (name, omega), one in sorted(found.items())
        for point in one["broken"]["points"]
    ]


def _table_row_of_solution(
    name: str, omega: float, point: Mapping[str, Any], symmetric: Mapping[str, Any] | None
) -> dict[str, Any]:
    row = {"branch": name, "omega": omega, **{key: value for key, value in point.items() if key != "rule"}}
    row["share"] = point["distance"] / point["q"]
    row["share_error"] = (point["distance_error"] + row["share"] * point["q_error"]) / point["q"]
    row["on_map"] = point["alpha"] in MAP_ALPHAS
    row |= dict.fromkeys(_SYMMETRIC_COLUMNS)
    if symmetric is not None:
        moved = point["training_loss"] - symmetric["training_loss"]
        error = point["training_loss_error"] + symmetric["training_loss_error"]
        known = moved, error, symmetric["theta"], symmetric["theta_error"], symmetric["seconds"]
        row |= dict(zip(_SYMMETRIC_COLUMNS, known, strict=True))
    return row


def branch_ends(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return, as dicts, the intervals of alpha in which the branches end, with 0 and with 1 step of breaking."""
    return [
        {"branch": name, "steps": steps, "alpha": end}
        for name, one in results["curves"].items()
        for steps, kind in enumerate(("symmetric", "broken"))
        for end in one[kind]["ends"]
        if end
    ]


def plot_symmetry_breaking(results: Mapping[str, Any], rows: Rows, path: Path) -> None:
    """Draw the figure that compares replica symmetry with one step of replica symmetry breaking.

    Four panels show energy change, overlap between states, theta and Parisi parameter y along alpha. The others show
    the loss crossing of the branches, and a map of the energy change over (omega, alpha).

    Args:
        results: results of the run by key, see `ReproductionRun.results`.
        rows: rows of the table of solutions, from `table_rows`.
        path: PNG file to write.
    """
    here = [row for row in rows if row["omega"] == SHOWN_OMEGA]
    symmetric = {name: one["symmetric"]["points"] for name, one in results["curves"].items()}
    broken = {name: [row for row in here if row["branch"] == name] for name in BRANCH_COLOURS}
    names = [name for name, own in broken.items() if own]
    with styled_figure(path, 13.0, 7.4) as figure:
        (moved, share, theta), (parisi, crossing, plane) = figure.subplots(2, 3)
        for name in sorted(names):
            _draw_quantity_along_alpha(moved, name, broken[name], "energy_moved")
            _draw_quantity_along_alpha(share, name, broken[name], "share")
            _draw_quantity_along_alpha(parisi, name, [row for row in broken[name] if row["distance"] > 0], "parisi")
        _draw_quantity_along_alpha(theta, "semantic", broken["semantic"], "theta", marker="o")
        _draw_quantity_along_alpha(theta, "semantic", symmetric.get("semantic", []), "theta", marker="s",
                                   linestyle="--", markerfacecolor="white")  # fmt: skip
        for end in branch_ends(results):
            if end["branch"] == "semantic":
                theta.axvspan(*sorted(end["alpha"]), color=GREY, alpha=0.25 if end["steps"] else 0.12, linewidth=0)
        labels = {moved: "training loss per d, moved\nby one step of breaking", share: "Δ / q, between states",
                  theta: "θ of the semantic branch", parisi: "Parisi parameter y"}  # fmt: skip
        for axes, label in labels.items():
            axes.set(xlabel=ALPHA, ylabel=label)
        for axes in (moved, parisi):
            axes.set_yscale("log")
        for axes in (theta, share):
            axes.set_ylim(bottom=0)
        _draw_loss_crossing(crossing, broken, symmetric, results["crossing"])
        _draw_energy_change_map(figure, plane, [row for row in rows if row["branch"] == "positional" and row["on_map"]])
        handles = [
            *legend_entries_of_branches(names),
            legend_entry("one step of breaking"),
            legend_entry("replica symmetric", linestyle="--"),
            legend_entry("end of the branch (fainter: replica symmetric)", linewidth=6, alpha=0.25),
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))


def _draw_quantity_along_alpha(axes: Axes, branch: str, rows: Rows, name: str, marker: str = "o", **style: Any) -> None:
    """Draw a quantity of a branch along alpha with its error bars."""
    alpha, values, errors = numeric_columns(rows, "alpha", name, f"{name}_error")
    axes.errorbar(alpha, values, yerr=errors, color=branch_colour(branch), marker=marker, capsize=3, **style)


def _draw_loss_crossing(
    axes: Axes, broken: Mapping[str, Rows], symmetric: Mapping[str, Rows], crossing: Mapping[str, Any]
) -> None:
    """Draw the difference of the training losses of both branches and its zeros, with and without breaking."""
    for branches, style, kind in ((symmetric, "--", "symmetric"), (broken, "-", "broken")):
        one, other = ({row["alpha"]: row for row in branches.get(name, ())} for name in BRANCHES)
        points = [
            (a, one[a]["training_loss"] - other[a]["training_loss"],
             one[a]["training_loss_error"] + other[a]["training_loss_error"]) for a in sorted(set(one) & set(other))
        ]  # fmt: skip
        if kind == "broken":
            points = sorted([*points, *map(tuple, crossing.get("evidence", {}).get("visited", ()))])
        if points:
            alpha, difference, error = zip(*points, strict=True)
            axes.errorbar(alpha, difference, yerr=error, color="black", linestyle=style, marker="o", capsize=3)
        if located := crossing.get(kind):
            value, error = located["value"], located["error"]
            axes.axvline(value, color="black", linewidth=1.0, linestyle=style)
            axes.axvspan(value - error, value + error, color="black", alpha=0.15, linewidth=0)
    draw_zero_line(axes)
    axes.set(xlabel=ALPHA, ylabel="training loss per d,\nsemantic less positional")


def _draw_energy_change_map(figure: Figure, axes: Axes, rows: Rows) -> None:
    """Draw a map of the change in energy by symmetry breaking on the positional branch, one square per solution."""
    known = [row for row in rows if row["energy_moved"] is not None]
    if not known:
        axes.set_title("positional branch: nothing found")
        return
    omegas, alphas = (sorted({row[name] for row in rows}) for name in ("omega", "alpha"))
    unit = _UNITS["energy_moved"]
    moved, errors = (column / unit for column in numeric_columns(known, "energy_moved", "energy_moved_error"))
    values = values_on_grid(known, moved, alphas, omegas)
    colours = colormaps["viridis_r"].with_extremes(bad="white")
    mesh = axes.pcolormesh(range(len(omegas)), range(len(alphas)), values, cmap=colours, shading="nearest")
    for row, value, error in zip(known, moved, errors, strict=True):
        place = omegas.index(row["omega"]), alphas.index(row["alpha"])
        colour = "white" if value > (moved.min() + moved.max()) / 2 else "black"
        axes.text(*place, f"{value:.3g} ± {error:.1g}", ha="center", va="center", fontsize=8, color=colour)
    axes.set_xticks(range(len(omegas)), [f"{omega:g}" for omega in omegas])
    axes.set_yticks(range(len(alphas)), [f"{alpha:g}" for alpha in alphas])
    axes.grid(False)
    axes.set(xlabel=OMEGA.split("  ")[0], ylabel=ALPHA, title="positional branch")
    figure.colorbar(mesh, ax=axes, pad=0.02).set_label("training loss moved, in units of 1e-7")


def build_page(results: Mapping[str, Any], rows: Rows) -> list[Block]:
    """Return the report on symmetry breaking as a list of paragraphs, tables and pictures.

    Args:
        results: results of the run by key, see `ReproductionRun.results`.
        rows: rows of the table of solutions, from `table_rows`.
    """
    return [
        "# What one step of replica symmetry breaking moves",
        f"{results['model']}, saddleforge {results['version']}. Both branches are solved replica symmetric and "
        "with one step of breaking at zero temperature (docs/theory.md section 18). q_1 is the self-overlap of one "
        "minimiser, Delta = q_1 - q_0 what it has over that of two states, y the Parisi parameter at which the "
        "complexity vanishes. Half widths stand in the last digits.",
        _sentence_on_energy_change(rows),
        Picture(
            BREAKING,
            f"All panels but the map at omega = {SHOWN_OMEGA:g}. Solid: one step of breaking; dashed: replica "
            "symmetric; grey: where the semantic branch ends. Below: y; training losses of both branches "
            "compared, vertical where they are equal; the map, with error bars.",
        ),
        "## Base cases",
        _table_of_base_cases(rows),
        "## Where the branches end, and where they cross",
        *(
            f"{kind}: {one[name]['words']}."
            for one in results["curves"].values()
            for name, kind in (("symmetric", "Replica symmetric"), ("broken", "One step of breaking"))
        ),
        *_paragraphs_on_crossing(results["crossing"]),
        "## All solutions",
        _all_solutions_table(rows),
        "## Times",
        "Seconds at the accuracy of the curves, code being compiled and loaded; the last column along them.",
        _timings_table(results, rows),
    ]


def _sentence_on_energy_change(rows: Rows) -> str:
    """Return sentences that compare the energies without and with one step of replica symmetry breaking."""
    moved = [row for row in rows if row["energy_moved"] is not None]
    known = [row for row in moved if row["energy_moved"] > row["energy_moved_error"]]
    below = [row for row in moved if row["energy_moved"] < -row["energy_moved_error"]]
    words = (
        f"At {len(moved)} points both were solved: one step of breaking has the larger training loss, by more than the "
        f"error bars, at {len(known)}, and the smaller one at {len(below)}."
    )
    if not known:
        return words
    most = max(known, key=lambda row: row["energy_moved"] / row["training_loss"])
    share = most["energy_moved"] / most["training_loss"]
    return (
        f"{words} It is moved most on the {most['branch']} branch at alpha = {most['alpha']:g}, omega = "
        f"{most['omega']:g}: by {_format_quantity(most, 'energy_moved')} 1e-7, {share:.1e} of itself."
    )


def _format_quantity(row: Mapping[str, Any], key: str, missing: str = "none") -> str:
    unit = _UNITS.get(key, 1.0)
    return missing if row[key] is None else format_value_with_error(row[key] / unit, row[f"{key}_error"] / unit)


def _table_of_base_cases(rows: Rows) -> Block:
    lines = []
    here = {(row["branch"], row["alpha"]): row for row in rows if row["omega"] == SHOWN_OMEGA}
    for (name, alpha), values in PROTOTYPE.items():
        if (row := here.get((name, alpha))) is None:
            continue
        names = {key: shown for key, shown in _SHOWN.items() if key in values}
        if name == "semantic":
            names["symmetric_theta"] = "theta, replica symmetric"
        for key, shown in names.items():
            reference = f"{values[key] / _UNITS.get(key, 1.0):g}" if key in values else "none"
            lines.append([name, alpha, shown, _format_quantity(row, key), reference])
    if not lines:
        return "None of the base cases is on the grids."
    return Table("branch | alpha | quantity | here | prototype (on grids, about 1 %)", lines)


def _paragraphs_on_crossing(crossing: Mapping[str, Any]) -> list[Block]:
    if crossing["broken"] is None:
        return [f"alpha_c with one step of breaking was not located: {crossing['sentence']}."]
    one, other = crossing["symmetric"], crossing["broken"]
    shift, error = other["value"] - one["value"], other["error"] + one["error"]
    found = ", ".join(f"{name}: {what}" for name, what in zip(BRANCHES, crossing["evidence"]["found"], strict=True))
    return [
        f"The branches have equal training loss at alpha_c = {format_value_with_error(one['value'], one['error'])} "
        f"replica symmetric and {format_value_with_error(other['value'], other['error'])} with one step of breaking "
        f"({other['status'].replace('_', ' ')}), moved by {format_value_with_error(shift, error)}.",
        f"Found at the latter: {found}. Stability: {crossing['verdict']}.",
    ]


def _all_solutions_table(rows: Rows) -> Table:
    head = "branch | omega | alpha | loss moved, 1e-7 | q_1 | Delta / q | theta | RS theta | y | status"
    return Table(
        head,
        [
            (
                row["branch"],
                row["omega"],
                row["alpha"],
                _format_quantity(row, "energy_moved", "no RS solution"),
                _format_quantity(row, "q"),
                _format_quantity(row, "share") if row["distance"] else 0,
                _format_quantity(row, "theta") if row["branch"] == "semantic" else 0,
                _format_quantity(row, "symmetric_theta") if row["branch"] == "semantic" else 0,
                _format_quantity(row, "parisi") if row["distance"] else None,
                row["found"] or row["status"].replace("_", " "),
            )
            for row in rows
        ],
    )


def _timings_table(results: Mapping[str, Any], rows: Rows) -> Table:
    lines = []
    for one in results["times"]:
        own = [row for row in rows if row["branch"] == one["branch"] and row["omega"] == SHOWN_OMEGA]
        # Without the first solution of the branch.
        along = [r["seconds"] for r in sorted(own, key=lambda r: r["alpha"])[:-1] if r["seconds"] is not None]
        span = f"{min(along):.1f} to {max(along):.1f}" if along else None
        seconds = f"{one['symmetric_seconds']:.1f}", f"{one['seconds']:.1f}"
        lines.append([one["branch"], one["alpha"], *seconds, span])
    head = "branch | alpha | replica symmetric | one step, searched for in y | one step, from a neighbour"
    return Table(head, lines)
