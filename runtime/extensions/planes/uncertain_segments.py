"""Uncertain segments of a row of a phase diagram: grid points with error bars so large that a branch may not exist.

Beyond a fold, coarse quadrature rules have spurious solutions with large error bars. A branch is therefore continued by
arclength from its last accurate grid point towards such points, and exists up to where the continuation turns back.
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
    """Options that decide at which grid points of a row the existence of a branch is uncertain.

    Attributes:
        error_factor: error bar, in units of the accuracy, above which a grid point is uncertain; with a larger factor
            more solutions by coarse quadrature rules are trusted.
        value_tolerance: distance, in grid cells, within which two values of the first parameter count as the same.
    """

    error_factor: float = 10.0
    value_tolerance: float = 1e-6


@dataclass(frozen=True)
class UncertainBranchSegment:
    """A segment of grid points of a row at which a branch has so large error bars that it may not exist.

    Attributes:
        branch: name of the branch.
        inside: index of the last accurate grid point of the branch, next to the segment.
        points: indices of the inaccurate grid points, in order from there.
    """

    branch: str
    inside: int
    points: tuple[int, ...]

    @property
    def outward_direction(self) -> int:
        """The direction from accurate to inaccurate grid points: 1 for ascending values of the parameter, else -1."""
        return 1 if self.points[0] > self.inside else -1


def find_uncertain_segments(row: DiagramRow) -> Iterator[UncertainBranchSegment]:
    """Yield the runs of grid points of a row, at the ends of branches, where it is uncertain whether a branch exists.

    A branch without any accurate grid point is left out.
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
    """Return whether a solution record has so large error bars that there may be no solution at all."""
    if record["status"] != Status.ACCURACY_NOT_REACHED.value:
        return False
    u = np.array(record["overlaps"], float)
    errors = np.array(record["errors"], float) / block_scales(u, row.problem.sizes)
    return not np.max(errors) <= UncertainSegmentOptions.current().error_factor * row.accuracy


def locate_end_of_uncertain_segment(
    row: DiagramRow, segment: UncertainBranchSegment, accuracy: float, seed: int
) -> Boundary | None:
    """Locate the end of a branch among grid points with too large error bars to tell whether the branch exists there.

    None is returned if the branch does not end there, or cannot be continued.

    If the continuation stops without an event, the end is bracketed by its last value and the next grid point.

    Args:
        row: row that contains the segment.
        segment: uncertain segment.
        accuracy: required error bar of the first parameter.
        seed: seed of sampled quadrature rules.
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
    beyond = next((value for value in ahead if segment.outward_direction * (value - reached) > tolerance), None)
    if beyond is None:
        return None
    return Boundary(SPINODAL, (segment.branch,), (reached + beyond) / 2, abs(beyond - reached) / 2, row.at, BRACKETED)


def remove_points_beyond_branch_end(
    row: DiagramRow, segment: UncertainBranchSegment, end: Boundary
) -> tuple[DiagramRow, BranchChange]:
    """Return the row without the solutions of a branch beyond its located end, and the branch change at this end.

    Args:
        row: the row that contains the segment.
        segment: the uncertain segment of the branch.
        end: the located end of the branch.
    """
    last, removed = segment.inside, []
    for n in segment.points:
        if segment.outward_direction * (row.values[n] - end.value) < 0:
            last = n
        else:
            removed.append(n)
    reason = f"the {segment.branch} branch ends at {row.parameter.rstrip('_')} = {end.value:.6g}"
    records = list(row.records[segment.branch])
    for n in removed:
        known = {name: value for name, value in records[n].items() if name in ("n", "accuracy", "version")}
        records[n] = {**known, "status": "lost", "reason": reason}
    changed = replace(row, records={**row.records, segment.branch: tuple(records)})
    return changed, BranchChange(SPINODAL, (segment.branch,), (last, last + segment.outward_direction))
