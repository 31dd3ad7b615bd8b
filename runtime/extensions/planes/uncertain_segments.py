"""Uncertain segments of a row: grid points with very large error bars, at which the branch may not exist.

Beyond a fold coarse quadrature rules have spurious fixed points, with error bars that assume a solution. A branch is
therefore continued by arclength from its last accurate point toward such points, and exists as far as the
continuation goes before it turns back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ...base.errors import InputError, NotConvergedError
from ...base.options import AlgorithmOptions
from ...problems.overlaps import block_scales
from ...saddle_point.iteration import Status
from ..sweeping.line import Record
from .boundaries import BRACKETED, SPINODAL, Boundary, BranchChange, DiagramRow


@dataclass(frozen=True)
class UncertainSegmentOptions(AlgorithmOptions):
    """Options that decide which points of a row are uncertain.

    Attributes:
        error_factor: accuracies above which an error bar, which assumes a solution, means nothing; larger trusts more
            points of coarse quadrature rules.
        value_tolerance: distance, in cells, within which two values of the first parameter are the same.
    """

    error_factor: float = 10.0
    value_tolerance: float = 1e-6


@dataclass(frozen=True)
class UncertainBranchSegment:
    """A segment of inaccurate grid points of a branch, beyond its last accurate one.

    Attributes:
        inside: index of the last accurate point; points: indices of the inaccurate points, in order from there.
    """

    branch: str
    inside: int
    points: tuple[int, ...]

    @property
    def search_direction(self) -> int:
        """The direction from the accurate point to the inaccurate ones: 1 for ascending parameter, else -1."""
        return 1 if self.points[0] > self.inside else -1


def find_uncertain_segments(row: DiagramRow) -> Iterator[UncertainBranchSegment]:
    """Yield the uncertain segments of a row.

    Points between accurate ones are not uncertain, and a branch without accurate points has no segment.
    """
    for branch, records in row.records.items():
        uncertain = [_has_meaningless_error_bar(row, record) for record in records]
        accurate = [n for n in range(len(records)) if row.has_branch(branch, n) and not uncertain[n]]
        if not accurate:
            continue
        for inside, direction, edge in ((accurate[0], -1, -1), (accurate[-1], 1, len(records))):
            points = []
            for n in range(inside + direction, edge, direction):
                if not uncertain[n]:
                    break
                points.append(n)
            if points:
                yield UncertainBranchSegment(branch, inside, tuple(points))


def _has_meaningless_error_bar(row: DiagramRow, record: Record) -> bool:
    """Return whether a record's error bar is so large that there may be no solution at all."""
    if record["status"] != Status.ACCURACY_NOT_REACHED.value:
        return False
    u = np.array(record["overlaps"], float)
    errors = np.array(record["errors"], float) / block_scales(u, row.problem.sizes)
    return not np.max(errors) <= UncertainSegmentOptions.current().error_factor * row.accuracy


def locate_end_of_uncertain_segment(
    row: DiagramRow, segment: UncertainBranchSegment, accuracy: float, seed: int
) -> Boundary | None:
    """Locate the end of a branch in an uncertain segment; None if it does not end, or cannot be continued.

    If the continuation stops without an event, the end is bracketed by its last value and the next point.

    Args:
        row: row that contains the segment.
        segment: uncertain segment.
        accuracy: error bar asked for, in the first parameter.
        seed: seed of sampled rules.
    """
    last = row.values[segment.points[-1]]
    try:
        event, reached = row.continue_branch_from_point(segment.branch, segment.inside, last, accuracy, seed)
    except (NotConvergedError, InputError):
        return None
    if event is not None:
        return Boundary(SPINODAL, (segment.branch,), event.value, event.error, row.at, event.status)
    ahead = (row.values[n] for n in segment.points)
    tolerance = UncertainSegmentOptions.current().value_tolerance * row.grid_spacing
    beyond = next((value for value in ahead if segment.search_direction * (value - reached) > tolerance), None)
    if beyond is None:
        return None
    return Boundary(SPINODAL, (segment.branch,), (reached + beyond) / 2, abs(beyond - reached) / 2, row.at, BRACKETED)


def remove_points_beyond_branch_end(
    row: DiagramRow, segment: UncertainBranchSegment, end: Boundary
) -> tuple[DiagramRow, BranchChange]:
    """Return the row without the records of a branch beyond its located end, and the change at this end.

    Args:
        row: the row of the segment.
        segment: the uncertain segment.
        end: the located end of its branch.
    """
    last, removed = segment.inside, []
    for n in segment.points:
        if segment.search_direction * (row.values[n] - end.value) < 0:
            last = n
        else:
            removed.append(n)
    reason = f"the {segment.branch} branch ends at {row.parameter.rstrip('_')} = {end.value:.6g}"
    records = list(row.records[segment.branch])
    for n in removed:
        known = {name: value for name, value in records[n].items() if name in ("n", "accuracy", "version")}
        records[n] = {**known, "status": "lost", "reason": reason}
    changed = replace(row, records={**row.records, segment.branch: tuple(records)})
    return changed, BranchChange(SPINODAL, (segment.branch,), (last, last + segment.search_direction))
