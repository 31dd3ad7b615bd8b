"""Table, figure and page of one step of breaking beside replica symmetry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...files import write_whole
from ...numbers import with_error
from ...report.contract import dumps
from ..breaking import BREAKING, MAP_ALPHAS, BreakingRun
from ..figures.breaking import plot_breaking
from ..run import BRANCHES, SHOWN_OMEGA
from .blocks import Block, Heading, Paragraph, Picture, Table
from .writing import drawn, write_page, write_rows

# Of a prototype on grids, to about one per cent; theta of replica symmetry beside, left out where it has none.
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


def write(run: BreakingRun) -> None:
    """Table, figure and page."""
    rows, symmetric = table_rows(run.results), symmetric_rows(run.results)
    write_rows(run, "rsb", rows)
    write_whole(run.out / "tables" / "rsb.json", dumps(rows) + "\n")
    crossing = run.results["crossing"]
    crossings = {name: crossing[name] for name in ("symmetric", "broken") if crossing.get(name)}
    crossings["visited"] = crossing.get("evidence", {}).get("visited", [])
    image = drawn(run, BREAKING, lambda path: plot_breaking(rows, symmetric, ends_of(run.results), crossings,
                                                            SHOWN_OMEGA, path))  # fmt: skip
    write_page(run, content(run.results, rows), {BREAKING: image})


def table_rows(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a solution with one step of breaking, replica symmetry beside it where it has the branch."""
    found = {(name, f"{SHOWN_OMEGA:g}"): one for name, one in results["curves"].items()}
    found |= {("positional", omega): one for omega, one in results["map"].items()}
    return [
        _row(name, float(omega), point, {p["alpha"]: p for p in one["symmetric"]["points"]}.get(point["alpha"]))
        for (name, omega), one in sorted(found.items())
        for point in one["broken"]["points"]
    ]


def symmetric_rows(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The replica symmetric solutions at the omega shown."""
    return [
        {"branch": name, **point} for name, one in results["curves"].items() for point in one["symmetric"]["points"]
    ]


def _row(name: str, omega: float, point: Mapping[str, Any], beside: Mapping[str, Any] | None) -> dict[str, Any]:
    row = {"branch": name, "omega": omega, **{key: value for key, value in point.items() if key != "rule"}}
    row["share"] = point["distance"] / point["q"]
    row["share_error"] = (point["distance_error"] + row["share"] * point["q_error"]) / point["q"]
    row["on_map"] = point["alpha"] in MAP_ALPHAS
    row |= dict.fromkeys(("energy_moved", "energy_moved_error", "symmetric_theta", "symmetric_theta_error",
                          "symmetric_seconds"))  # fmt: skip
    if beside is not None:
        row["energy_moved"] = point["training_loss"] - beside["training_loss"]
        row["energy_moved_error"] = point["training_loss_error"] + beside["training_loss_error"]
        row["symmetric_theta"], row["symmetric_theta_error"] = beside["theta"], beside["theta_error"]
        row["symmetric_seconds"] = beside["seconds"]
    return row


def ends_of(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Where a branch ends, as two values of alpha, under no step of breaking and under one."""
    return [
        {"branch": name, "steps": steps, "alpha": end}
        for name, one in results["curves"].items()
        for steps, kind in enumerate(("symmetric", "broken"))
        for end in one[kind]["ends"]
        if end
    ]


def content(results: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    """The report: what is moved, the figure, base cases, ends, crossing, times."""
    moved = [row for row in rows if row["energy_moved"] is not None]
    known = [row for row in moved if row["energy_moved"] > row["energy_moved_error"]]
    blocks: list[Block] = [
        Heading("What one step of replica symmetry breaking moves", 1),
        Paragraph(
            f"{results['model']}, saddleforge {results['version']}. Both branches are solved replica symmetric and "
            "with one step of breaking at zero temperature (docs/theory.md section 18). q_1 is the self-overlap of one "
            "minimiser, Delta = q_1 - q_0 what it has over that of two states, y the Parisi parameter at which the "
            "complexity vanishes. Half widths stand in the last digits."
        ),
        Paragraph(_lowering(moved, known)),
        Picture(
            BREAKING,
            f"All panels but the map at omega = {SHOWN_OMEGA:g}. Solid: one step of breaking; dashed: replica "
            "symmetric; grey: where the semantic branch ends. Below: y; training losses of both branches "
            "compared, vertical where they are equal; the map, with half widths.",
        ),
        Heading("Base cases"),
        *_base_cases(rows),
        Heading("Where the branches end, and where they cross"),
        *_ends(results),
        *_crossing(results["crossing"]),
        Heading("All solutions"),
        _all(rows),
        Heading("Times"),
        *_times(results, rows),
    ]
    return blocks


def _lowering(moved: Sequence[Mapping[str, Any]], known: Sequence[Mapping[str, Any]]) -> str:
    """Whether replica symmetry lies below one step of breaking wherever both were solved."""
    below = [row for row in moved if row["energy_moved"] < -row["energy_moved_error"]]
    words = (
        f"At {len(moved)} points both were solved: one step of breaking has the larger training loss, by more than the "
        f"half widths, at {len(known)}, and the smaller one at {len(below)}."
    )
    if not known:
        return words
    most = max(known, key=lambda row: row["energy_moved"] / row["training_loss"])
    share = most["energy_moved"] / most["training_loss"]
    return (
        f"{words} It is moved most on the {most['branch']} branch at alpha = {most['alpha']:g}, omega = "
        f"{most['omega']:g}: by {_told(most, 'energy_moved')} 1e-7, {share:.1e} of itself."
    )


def _base_cases(rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    lines = []
    for (name, alpha), values in PROTOTYPE.items():
        here = [r for r in rows if (r["branch"], r["alpha"], r["omega"]) == (name, alpha, SHOWN_OMEGA)]
        for row in here:
            for key, shown in _SHOWN.items():
                if key in values:
                    told = f"{values[key] / _UNITS.get(key, 1.0):g}"
                    lines.append([name, f"{alpha:g}", shown, _told(row, key), told])
            if name == "semantic":
                other = values.get("symmetric_theta")
                lines.append([name, f"{alpha:g}", "theta, replica symmetric", _told(row, "symmetric_theta"),
                              "none" if other is None else f"{other:g}"])  # fmt: skip
    head = ("branch", "alpha", "quantity", "here", "prototype (on grids, about 1 %)")
    if not lines:
        return [Paragraph("None of the base cases is on the grids.")]
    return [Table(head, lines)]


def _told(row: Mapping[str, Any], key: str) -> str:
    if row[key] is None:
        return "none"
    unit = _UNITS.get(key, 1.0)
    return with_error(row[key] / unit, row[f"{key}_error"] / unit)


def _ends(results: Mapping[str, Any]) -> list[Block]:
    lines = []
    for one in results["curves"].values():
        lines.append(f"Replica symmetric: {one['symmetric']['words']}.")
        lines.append(f"One step of breaking: {one['broken']['words']}.")
    return [Paragraph(line) for line in lines]


def _crossing(crossing: Mapping[str, Any]) -> list[Block]:
    if crossing["broken"] is None:
        return [Paragraph(f"alpha_c with one step of breaking was not located: {crossing['sentence']}.")]
    one, other = crossing["symmetric"], crossing["broken"]
    shift, error = other["value"] - one["value"], other["error"] + one["error"]
    found = ", ".join(f"{name}: {what}" for name, what in zip(BRANCHES, crossing["evidence"]["found"], strict=True))
    return [
        Paragraph(
            f"The branches have equal training loss at alpha_c = {with_error(one['value'], one['error'])} replica "
            f"symmetric and {with_error(other['value'], other['error'])} with one step of breaking "
            f"({other['status'].replace('_', ' ')}), moved by {with_error(shift, error)}."
        ),
        Paragraph(f"Found at the latter: {found}. Stability: {crossing['verdict']}."),
    ]


def _all(rows: Sequence[Mapping[str, Any]]) -> Table:
    head = ("branch", "omega", "alpha", "loss moved, 1e-7", "q_1", "Delta / q", "theta", "RS theta", "y", "status")
    return Table(
        head,
        [
            [
                row["branch"],
                f"{row['omega']:g}",
                f"{row['alpha']:g}",
                "no RS solution" if row["energy_moved"] is None else _told(row, "energy_moved"),
                _told(row, "q"),
                _told(row, "share") if row["distance"] else "0",
                _told(row, "theta") if row["branch"] == "semantic" else "0",
                _told(row, "symmetric_theta") if row["branch"] == "semantic" else "0",
                _told(row, "parisi") if row["distance"] else "-",
                row["found"] or row["status"].replace("_", " "),
            ]
            for row in rows
        ],
    )


def _times(results: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    lines = [
        [
            one["branch"],
            f"{one['alpha']:g}",
            f"{one['symmetric_seconds']:.1f}",
            f"{one['seconds']:.1f}",
            " to ".join(f"{s:.1f}" for s in _range(rows, one["branch"])) or "-",
        ]
        for one in results["times"]
    ]
    head = ("branch", "alpha", "replica symmetric", "one step, searched for in y", "one step, from a neighbour")
    return [
        Paragraph("Seconds at the accuracy of the curves, code being compiled and loaded; the last column along them."),
        Table(head, lines),
    ]


def _range(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Least and most seconds of a solution along the branch, the one it begins at left out."""
    own = sorted((r for r in rows if r["branch"] == name and r["omega"] == SHOWN_OMEGA), key=lambda r: r["alpha"])
    seconds = [row["seconds"] for row in own[:-1] if row["seconds"] is not None]
    return [min(seconds), max(seconds)] if seconds else []
