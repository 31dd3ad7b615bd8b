"""Phase diagrams as text and JSON of the command `phases`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..base.numbers import align_text_columns, format_value_with_error
from ..base.presenting import table, to_json
from ..extensions.planes.boundaries import CROSSING, JUMPS, REPLICON, SPINODAL
from ..extensions.planes.codim2_points import ENDS, TRIPLE
from ..extensions.planes.diagram import PhaseDiagram
from .contract import problem_json, to_plain_json
from .sweeps import lines_with_stability_counts


@table.register_renderer_of_class(PhaseDiagram)
def phase_diagram_table(diagram: PhaseDiagram) -> str:
    """Return a phase diagram as text.

    Lists the phases with their fractions of the grid, every boundary (one row per value of the second parameter), and
    codimension-2 points.
    """
    first, second = (name.rstrip("_") for name in (diagram.first, diagram.second))
    points = sum(diagram.phases.values())
    text = [
        f"{diagram.problem.solver.name} over {first} and {second}: {points} points in {len(diagram.rows)} rows; "
        f"branches {', '.join(diagram.branches)}"
    ]
    if not diagram.judged:
        text.append("  replica symmetry is not judged (--stability does it)")
    lowest_loss_branch = [(row, n, row.lowest_loss_branch(n)) for row in diagram.rows for n in range(len(row.values))]
    text += lines_with_stability_counts(row.records[name][n] for row, n, name in lowest_loss_branch if name)
    text += [f"  {count:5d} points  {describe_phase(*phase)}" for phase, count in diagram.phases.items()]
    for (kind, branches), boundaries in diagram.lines().items():
        text.append(f"  {describe_boundary(kind, branches)}")
        text += align_text_columns(
            [
                [
                    f"    {second} = {b.at:.4g}",
                    f"{first} = {format_value_with_error(b.value, b.error)}",
                    b.status.replace("_", " "),
                ]
                for b in boundaries
            ]
        )
    if diagram.codim2_points:
        text.append("  triple points")
        where = [
            (format_value_with_error(m.value, m.error), format_value_with_error(m.at, m.at_error))
            for m in diagram.codim2_points
        ]
        words = [(describe_codim2_point(m.kind, m.branches), m.status.replace("_", " ")) for m in diagram.codim2_points]
        met = zip(where, words, strict=True)
        text += align_text_columns(
            [[f"    {first} = {value}", f"{second} = {at}", *description] for (value, at), description in met]
        )
    return "\n".join(text)


def describe_phase(lowest_loss_branch: str, others: tuple[str, ...]) -> str:
    """Describe a phase in words: its branch of lowest training loss, and the other branches that exist in it.

    Args:
        lowest_loss_branch: the branch of lowest training loss; empty if none was found.
        others: other branches that exist in the phase.
    """
    if not lowest_loss_branch:
        return "no branch found"
    return lowest_loss_branch + (f", {' and '.join(others)} there too" if others else "")


def describe_boundary(kind: str, branches: tuple[str, ...]) -> str:
    """Describe a boundary of a phase diagram in words.

    Args:
        kind: CROSSING (equal losses), SPINODAL (end of a branch), REPLICON (instability) or JUMPS (proximal map jumps).
        branches: names of the branches that cross, end or become unstable there.
    """
    both = " and ".join(branches)
    return {
        CROSSING: f"{both} cross",
        SPINODAL: f"end of {both}",
        REPLICON: f"replicon 1 of {both}",
        JUMPS: f"jumps of {both} negligible",
    }[kind]


def describe_codim2_point(kind: str, branches: tuple[str, ...]) -> str:
    """Describe a codimension-2 point of a phase diagram in words.

    Args:
        kind: TRIPLE (three equal losses), ENDS (two branches end), or the kind "a branch ends on a crossing".
        branches: names of the branches that cross or end there.
    """
    if kind == TRIPLE:
        return f"equal losses of {', '.join(branches[:-1])} and {branches[-1]}"
    if kind == ENDS:
        return f"ends of {' and '.join(branches)}"
    first, *others = branches
    return f"end of {first} where " + (
        f"{' and '.join(others)} cross" if len(others) > 1 else f"{others[0]} crosses it"
    )


@to_json.register_renderer_of_class(PhaseDiagram)
def phase_diagram_json(diagram: PhaseDiagram) -> dict[str, Any]:
    """Return a phase diagram as the dict that `phases --json` prints."""
    return {
        **problem_json(diagram.problem, diagram.first, diagram.second),
        "first": diagram.first.rstrip("_"),
        "second": diagram.second.rstrip("_"),
        "branches": list(diagram.branches),
        "stability": diagram.judged,
        "phases": [
            {"lowest": lowest_loss_branch, "others": list(others), "points": count}
            for (lowest_loss_branch, others), count in diagram.phases.items()
        ],
        "boundaries": [to_plain_json(asdict(boundary)) for boundary in diagram.boundaries],
        "triple_points": [to_plain_json(asdict(point)) for point in diagram.codim2_points],
    }
