"""Phase diagrams as xarray Datasets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray

from ..base.presenting import to_dataset
from ..extensions.planes.boundaries import Boundary
from ..extensions.planes.codim2_points import Codim2Point
from ..extensions.planes.diagram import PhaseDiagram
from ..extensions.sweeping.line import VERDICTS
from ..problems.columns import OBSERVED, add_error_bar_columns, table_column_name
from .phases import describe_codim2_point, describe_phase
from .tables import build_dataset, dataset_attributes

_COLUMNS = (*add_error_bar_columns((*OBSERVED, "replicon")), "status", *VERDICTS)


@to_dataset.register_renderer_of_class(PhaseDiagram)
def phase_diagram_dataset(diagram: PhaseDiagram, stability: bool = True) -> xarray.Dataset:
    """Return a phase diagram as an xarray Dataset: branches on the grid, boundaries, and codimension-2 points.

    Of branches, along `solution` and both parameters:
        training_loss, test_error and replicon, with error bars as NAME_error;
        status, verdict, replica_symmetry, unstable and longitudinal, as in a sweep.
    Of grid points: `lowest` (branch of lowest training loss) and `phase` (in words).
    Of boundaries, along `point`: kind, between (branches), value and error of the first parameter, at (second
    parameter), located (status).
    Of codimension-2 points, along `triple`: the same as triple_NAME, triple_at_error, and triple_lines (JSON: kind and
    branches of the boundaries that may meet there).

    Args:
        diagram: phase diagram in two parameters.
        stability: ignored, since stability was assessed when the diagram was computed.
    """
    first, second = table_column_name(diagram.first), table_column_name(diagram.second)
    rows, branches = diagram.rows, diagram.branches
    values = np.array(rows[0].values if rows else (), float)
    lead = {"solution": np.array(branches, object), second: np.array([row.at for row in rows], float), first: values}
    grid = list(np.ndindex(len(rows), len(values)))
    records = (((b, r, n), rows[r].records[name][n]) for b, name in enumerate(branches) for r, n in grid)
    dataset = build_dataset(lead, [], _COLUMNS, records)
    phases = np.full((2, len(rows), len(values)), "", object)
    for r, n in grid:
        lowest, others = diagram.phase(rows[r], n)
        phases[:, r, n] = lowest, describe_phase(lowest, others)
    codim2_points = [describe_codim2_point(m.kind, m.branches) for m in diagram.codim2_points]
    dataset = dataset.assign(
        dict(zip(("lowest", "phase"), (((second, first), each) for each in phases), strict=True))
        | _boundary_location_columns(
            "point", "", diagram.boundaries, [" and ".join(b.branches) for b in diagram.boundaries]
        )
        | _boundary_location_columns("triple", "triple_", diagram.codim2_points, codim2_points)
        | {
            "triple_at_error": ("triple", np.array([m.at_error for m in diagram.codim2_points], float)),
            "triple_lines": (
                "triple",
                np.array([_boundaries_meeting_at_point_json(m) for m in diagram.codim2_points], object),
            ),
        }
    )
    names = diagram.first.rstrip("_"), diagram.second.rstrip("_")
    dataset.attrs = {
        **dataset_attributes(diagram.problem, names[0], *names),
        "phases": json.dumps(list(names)),
        "judged": int(diagram.judged),
    }
    return dataset


def _boundary_location_columns(
    axis: str, prefix: str, found: Sequence[Boundary] | Sequence[Codim2Point], between: Sequence[str]
) -> dict[str, Any]:
    """Return table columns common to boundaries and codimension-2 points: kind, branches, parameter values, status."""
    columns = {name: np.array([getattr(each, name) for each in found], float) for name in ("value", "error", "at")}
    words = {"kind": [each.kind for each in found], "between": between, "located": [each.status for each in found]}
    columns |= {name: np.array(each, object) for name, each in words.items()}
    return {prefix + name: (axis, values) for name, values in columns.items()}


def _boundaries_meeting_at_point_json(point: Codim2Point) -> str:
    return json.dumps([[kind, " and ".join(branches)] for kind, branches in point.boundaries_that_may_meet])
