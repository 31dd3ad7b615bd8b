"""Points of a row that are far from their accuracy: whether their branch is there at all.

Beyond its fold a branch leaves fixed points behind for rules that are too coarse to tell them from solutions, with half
widths that assume one. A branch is therefore walked from its last accurate point toward such points, by arclength, and
is there as far as the walk goes before it turns back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ...base.errors import InputError, NotConvergedError
from ...problems.overlaps import block_scales
from ...saddle_point.iteration import Status
from ..sweeping.line import Record
from .boundaries import BRACKETED, SPINODAL, Boundary, Change, Row

_FAR = 10.0  # accuracies that a half width misses by where it says nothing
_SAME = 1e-6  # of a cell


@dataclass(frozen=True)
class Doubt:
    """Points of a branch behind its last accurate one, up to where it is not found or the row ends.

    Attributes:
        inside: number of the last accurate point; points: numbers of the others, in order from there.
    """

    branch: str
    inside: int
    points: tuple[int, ...]

    @property
    def way(self) -> int:
        """1 where they lie above, else -1."""
        return 1 if self.points[0] > self.inside else -1


def doubts(row: Row) -> Iterator[Doubt]:
    """All of a row; what lies between accurate points is no doubt, and of a branch without any nothing is known."""
    for branch, records in row.records.items():
        doubtful = [_misses_far(row, record) for record in records]
        sure = [n for n in range(len(records)) if row.found(branch, n) and not doubtful[n]]
        if not sure:
            continue
        for inside, way, edge in ((sure[0], -1, -1), (sure[-1], 1, len(records))):
            points = []
            for n in range(inside + way, edge, way):
                if not doubtful[n]:
                    break
                points.append(n)
            if points:
                yield Doubt(branch, inside, tuple(points))


def _misses_far(row: Row, record: Record) -> bool:
    """Whether a point is so far from its accuracy that its half width, which assumes a solution, says nothing."""
    if record["status"] != Status.ACCURACY_NOT_REACHED.value:
        return False
    u = np.array(record["overlaps"], float)
    errors = np.array(record["errors"], float) / block_scales(u, row.problem.sizes)
    return not np.max(errors) <= _FAR * row.accuracy


def decided(row: Row, doubt: Doubt, accuracy: float, seed: int) -> Boundary | None:
    """Where the branch of a doubt ends; None where it does not, as far as its points go, or cannot be followed.

    Where the walk finds nothing further and says no reason, the end is bracketed by its last place and the next point.

    Args:
        accuracy: half width asked for, in the first parameter.
    """
    last = row.values[doubt.points[-1]]
    try:
        event, reached = row.walked_from(doubt.branch, doubt.inside, last, accuracy, seed)
    except (NotConvergedError, InputError):
        return None
    if event is not None:
        return Boundary(SPINODAL, (doubt.branch,), event.value, event.error, row.at, event.status)
    ahead = (row.values[n] for n in doubt.points)
    beyond = next((value for value in ahead if doubt.way * (value - reached) > _SAME * row.cell), None)
    if beyond is None:
        return None
    return Boundary(SPINODAL, (doubt.branch,), (reached + beyond) / 2, abs(beyond - reached) / 2, row.at, BRACKETED)


def without(row: Row, doubt: Doubt, end: Boundary) -> tuple[Row, Change]:
    """A row on which a branch ends where it was found to end, and the change that this is there."""
    kept, gone = doubt.inside, []
    for n in doubt.points:
        if doubt.way * (row.values[n] - end.value) < 0:
            kept = n
        else:
            gone.append(n)
    why = f"the {doubt.branch} branch ends at {row.parameter.rstrip('_')} = {end.value:.6g}"
    records = list(row.records[doubt.branch])
    for n in gone:
        known = {name: value for name, value in records[n].items() if name in ("n", "accuracy", "version")}
        records[n] = {**known, "status": "lost", "reason": why}
    changed = replace(row, records={**row.records, doubt.branch: tuple(records)})
    return changed, Change(SPINODAL, (doubt.branch,), (kept, kept + doubt.way))
