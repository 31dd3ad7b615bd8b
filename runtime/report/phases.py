"""Phase diagrams for people and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .._version import __version__
from ..numbers import aligned, with_error
from ..planes.diagram import PhaseDiagram
from ..presenting import table, to_json
from .contract import clean, parameters_json


@table.register(PhaseDiagram)
def phases_table(diagram: PhaseDiagram) -> str:
    """The phases with their shares of the grid, then every boundary, a row a value of the second parameter."""
    first, second = (name.rstrip("_") for name in (diagram.first, diagram.second))
    points = sum(diagram.phases.values())
    text = [
        f"{diagram.problem.solver.name} over {first} and {second}: {points} points in {len(diagram.rows)} rows; "
        f"branches {', '.join(diagram.branches)}"
    ]
    text += [f"  {count:5d} points  {phase_name(*phase)}" for phase, count in diagram.phases.items()]
    for (kind, branches), boundaries in diagram.lines().items():
        text.append(f"  {boundary_name(kind, branches)}")
        rows = [
            [f"    {second} = {b.at:.4g}", f"{first} = {with_error(b.value, b.error)}", b.status.replace("_", " ")]
            for b in boundaries
        ]
        text += aligned(rows)
    return "\n".join(text)


def phase_name(lowest: str, others: tuple[str, ...]) -> str:
    """A phase in words."""
    if not lowest:
        return "no branch found"
    return lowest + (f", {' and '.join(others)} there too" if others else "")


def boundary_name(kind: str, branches: tuple[str, ...]) -> str:
    """A boundary in words."""
    both = " and ".join(branches)
    return {"crossing": f"{both} cross", "spinodal": f"end of {both}", "replicon": f"replicon 1 of {both}"}[kind]


@to_json.register(PhaseDiagram)
def phases_json(diagram: PhaseDiagram) -> dict[str, Any]:
    """The object of `phases --json`."""
    swept = {diagram.first.rstrip("_"), diagram.second.rstrip("_")}
    held = {name: value for name, value in parameters_json(diagram.problem).items() if name not in swept}
    return {
        "model": diagram.problem.solver.name,
        "version": __version__,
        "digest": diagram.problem.solver.digest,
        "parameters": clean(held),
        "first": diagram.first.rstrip("_"),
        "second": diagram.second.rstrip("_"),
        "branches": list(diagram.branches),
        "phases": [
            {"lowest": lowest, "others": list(others), "points": count}
            for (lowest, others), count in diagram.phases.items()
        ],
        "boundaries": [clean(asdict(boundary)) for boundary in diagram.boundaries],
    }
