"""Phase diagrams for people and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..base.numbers import aligned, with_error
from ..base.presenting import table, to_json
from ..extensions.planes.boundaries import CROSSING, JUMPS, REPLICON, SPINODAL
from ..extensions.planes.diagram import PhaseDiagram
from ..extensions.planes.meetings import ENDS, TRIPLE
from .contract import clean, problem_json
from .sweeps import verdict_lines


@table.register(PhaseDiagram)
def phases_table(diagram: PhaseDiagram) -> str:
    """The phases with their shares of the grid, every boundary, a row a value of the second parameter, and where they
    meet."""
    first, second = (name.rstrip("_") for name in (diagram.first, diagram.second))
    points = sum(diagram.phases.values())
    text = [
        f"{diagram.problem.solver.name} over {first} and {second}: {points} points in {len(diagram.rows)} rows; "
        f"branches {', '.join(diagram.branches)}"
    ]
    if not diagram.judged:
        text.append("  replica symmetry is not judged (--stability does it)")
    lowest = [(row, n, row.lowest(n)) for row in diagram.rows for n in range(len(row.values))]
    text += verdict_lines(row.records[name][n] for row, n, name in lowest if name)
    text += [f"  {count:5d} points  {phase_name(*phase)}" for phase, count in diagram.phases.items()]
    for (kind, branches), boundaries in diagram.lines().items():
        text.append(f"  {boundary_name(kind, branches)}")
        text += aligned(
            [
                [f"    {second} = {b.at:.4g}", f"{first} = {with_error(b.value, b.error)}", b.status.replace("_", " ")]
                for b in boundaries
            ]
        )
    if diagram.meetings:
        text.append("  triple points")
        where = [(with_error(m.value, m.error), with_error(m.at, m.at_error)) for m in diagram.meetings]
        words = [(meeting_name(m.kind, m.branches), m.status.replace("_", " ")) for m in diagram.meetings]
        met = zip(where, words, strict=True)
        text += aligned([[f"    {first} = {value}", f"{second} = {at}", *told] for (value, at), told in met])
    return "\n".join(text)


def phase_name(lowest: str, others: tuple[str, ...]) -> str:
    """A phase in words."""
    if not lowest:
        return "no branch found"
    return lowest + (f", {' and '.join(others)} there too" if others else "")


def boundary_name(kind: str, branches: tuple[str, ...]) -> str:
    """A boundary in words."""
    both = " and ".join(branches)
    return {
        CROSSING: f"{both} cross",
        SPINODAL: f"end of {both}",
        REPLICON: f"replicon 1 of {both}",
        JUMPS: f"jumps of {both} negligible",
    }[kind]


def meeting_name(kind: str, branches: tuple[str, ...]) -> str:
    """A point where boundaries meet in words."""
    if kind == TRIPLE:
        return f"equal losses of {', '.join(branches[:-1])} and {branches[-1]}"
    if kind == ENDS:
        return f"ends of {' and '.join(branches)}"
    first, *others = branches
    return f"end of {first} where " + (
        f"{' and '.join(others)} cross" if len(others) > 1 else f"{others[0]} crosses it"
    )


@to_json.register(PhaseDiagram)
def phases_json(diagram: PhaseDiagram) -> dict[str, Any]:
    """The object of `phases --json`."""
    return {
        **problem_json(diagram.problem, diagram.first, diagram.second),
        "first": diagram.first.rstrip("_"),
        "second": diagram.second.rstrip("_"),
        "branches": list(diagram.branches),
        "stability": diagram.judged,
        "phases": [
            {"lowest": lowest, "others": list(others), "points": count}
            for (lowest, others), count in diagram.phases.items()
        ],
        "boundaries": [clean(asdict(boundary)) for boundary in diagram.boundaries],
        "triple_points": [clean(asdict(meeting)) for meeting in diagram.meetings],
    }
