"""Phase diagrams as xarray Datasets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray

from ..base.presenting import to_dataset
from ..extensions.planes.boundaries import Boundary
from ..extensions.planes.diagram import PhaseDiagram
from ..extensions.planes.meetings import Meeting
from ..extensions.sweeping.line import VERDICTS
from ..problems.columns import OBSERVED, column_of, with_errors
from .phases import meeting_name, phase_name
from .tables import filled_table, table_attributes

_COLUMNS = (*with_errors((*OBSERVED, "replicon")), "status", *VERDICTS)


@to_dataset.register(PhaseDiagram)
def phases_dataset(diagram: PhaseDiagram, stability: bool = True) -> xarray.Dataset:
    """Branches along `solution` and both parameters: training_loss, test_error and replicon with half widths, status,
    verdict, replica_symmetry, unstable and longitudinal as of a sweep; `lowest` and `phase` (in words) of every grid
    point.

    Boundaries along `point`: kind, between (the branches), value, error, at and located (their status). The points
    where they meet along `triple`: triple_kind, triple_between (in words), triple_lines (JSON: kind and between of what
    may meet there), triple_value, triple_error, triple_at, triple_at_error and triple_located.
    """
    first, second = column_of(diagram.first), column_of(diagram.second)
    rows, branches = diagram.rows, diagram.branches
    values = np.array(rows[0].values if rows else (), float)
    lead = {"solution": np.array(branches, object), second: np.array([row.at for row in rows], float), first: values}
    grid = list(np.ndindex(len(rows), len(values)))
    records = (((b, r, n), rows[r].records[name][n]) for b, name in enumerate(branches) for r, n in grid)
    dataset = filled_table(lead, [], _COLUMNS, records)
    phases = np.full((2, len(rows), len(values)), "", object)
    for r, n in grid:
        lowest, others = diagram.phase(rows[r], n)
        phases[:, r, n] = lowest, phase_name(lowest, others)
    meetings = [meeting_name(m.kind, m.branches) for m in diagram.meetings]
    dataset = dataset.assign(
        dict(zip(("lowest", "phase"), (((second, first), each) for each in phases), strict=True))
        | _located("point", "", diagram.boundaries, [" and ".join(b.branches) for b in diagram.boundaries])
        | _located("triple", "triple_", diagram.meetings, meetings)
        | {
            "triple_at_error": ("triple", np.array([m.at_error for m in diagram.meetings], float)),
            "triple_lines": ("triple", np.array([_lines_of(m) for m in diagram.meetings], object)),
        }
    )
    names = diagram.first.rstrip("_"), diagram.second.rstrip("_")
    dataset.attrs = {
        **table_attributes(diagram.problem, names[0], *names),
        "phases": json.dumps(list(names)),
        "judged": int(diagram.judged),
    }
    return dataset


def _located(
    axis: str, prefix: str, found: Sequence[Boundary] | Sequence[Meeting], between: Sequence[str]
) -> dict[str, Any]:
    """Return the columns that boundaries and codimension-2 points have in common: kind, branches, place, status."""
    columns = {name: np.array([getattr(each, name) for each in found], float) for name in ("value", "error", "at")}
    words = {"kind": [each.kind for each in found], "between": between, "located": [each.status for each in found]}
    columns |= {name: np.array(each, object) for name, each in words.items()}
    return {prefix + name: (axis, values) for name, values in columns.items()}


def _lines_of(meeting: Meeting) -> str:
    return json.dumps([[kind, " and ".join(branches)] for kind, branches in meeting.lines])
