"""Phase diagrams as xarray Datasets."""

from __future__ import annotations

import json

import numpy as np
import xarray

from ..planes.diagram import PhaseDiagram
from ..planes.meetings import Meeting
from ..presenting import to_dataset
from ..problems.columns import column_of
from ..sweeping.line import VERDICTS
from .contract import clean, identity_json, parameters_json

_VALUES = ("training_loss", "training_loss_error", "test_error", "test_error_error", "replicon", "replicon_error")


@to_dataset.register(PhaseDiagram)
def phases_dataset(diagram: PhaseDiagram, stability: bool = True) -> xarray.Dataset:
    """Branches along `solution` and both parameters: training_loss, test_error and replicon with half widths, status,
    verdict, replica_symmetry, unstable and longitudinal as of a sweep; `lowest` and `phase` (in words) of every grid
    point.

    Boundaries along `point`: kind, between (the branches), value, error, at and located (their status). The points
    where they meet along `triple`: triple_kind, triple_between (in words), triple_lines (JSON: kind and between of what
    may meet there), triple_value, triple_error, triple_at, triple_at_error and triple_located.
    """
    from .phases import meeting_name, phase_name

    first, second = column_of(diagram.first), column_of(diagram.second)
    axes, rows = ("solution", second, first), diagram.rows
    values = rows[0].values if rows else ()
    shape = (len(diagram.branches), len(rows), len(values))
    numbers = {name: np.full(shape, np.nan) for name in _VALUES}
    words = {name: np.full(shape, "", object) for name in ("status", *VERDICTS)}
    lowest, phase = (np.full(shape[1:], "", object) for _ in range(2))
    for r, row in enumerate(rows):
        for n in range(len(values)):
            found, others = diagram.phase(row, n)
            lowest[r, n], phase[r, n] = found, phase_name(found, others)
            for b, branch in enumerate(diagram.branches):
                record = row.records[branch][n]
                for name, array in numbers.items():
                    array[b, r, n] = record.get(name, np.nan)
                for name, texts in words.items():
                    texts[b, r, n] = record.get(name, "")
    found_lines, points = diagram.boundaries, diagram.meetings
    dataset = xarray.Dataset(
        {
            **{name: (axes, array) for name, array in {**numbers, **words}.items()},
            "lowest": ((second, first), lowest),
            "phase": ((second, first), phase),
            "kind": ("point", np.array([b.kind for b in found_lines], object)),
            "between": ("point", np.array([" and ".join(b.branches) for b in found_lines], object)),
            "value": ("point", np.array([b.value for b in found_lines], float)),
            "error": ("point", np.array([b.error for b in found_lines], float)),
            "at": ("point", np.array([b.at for b in found_lines], float)),
            "located": ("point", np.array([b.status for b in found_lines], object)),
            "triple_kind": ("triple", np.array([m.kind for m in points], object)),
            "triple_between": ("triple", np.array([meeting_name(m.kind, m.branches) for m in points], object)),
            "triple_lines": ("triple", np.array([_lines_of(m) for m in points], object)),
            "triple_value": ("triple", np.array([m.value for m in points], float)),
            "triple_error": ("triple", np.array([m.error for m in points], float)),
            "triple_at": ("triple", np.array([m.at for m in points], float)),
            "triple_at_error": ("triple", np.array([m.at_error for m in points], float)),
            "triple_located": ("triple", np.array([m.status for m in points], object)),
        },
        coords={
            "solution": np.array(diagram.branches, object),
            second: np.array([row.at for row in rows], float),
            first: np.array(values, float),
        },
    )
    names = diagram.first.rstrip("_"), diagram.second.rstrip("_")
    held = {name: value for name, value in parameters_json(diagram.problem).items() if name not in names}
    dataset.attrs = {
        **identity_json(diagram.problem),
        "parameter": names[0],
        "parameters": json.dumps(clean(held), ensure_ascii=False),
        "phases": json.dumps(list(names)),
        "judged": int(diagram.judged),
    }
    return dataset


def _lines_of(meeting: Meeting) -> str:
    return json.dumps([[kind, " and ".join(branches)] for kind, branches in meeting.lines])
