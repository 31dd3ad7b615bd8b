"""Points of a phase diagram that were reached without the accuracy: branches are there as far as they can be walked."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

import saddleforge as sf
from saddleforge.base.errors import NotConvergedError
from saddleforge.extensions.planes.boundaries import BRACKETED, BranchChange, DiagramRow
from saddleforge.extensions.planes.uncertain_segments import (
    UncertainBranchSegment,
    find_uncertain_segments,
    locate_end_of_uncertain_segment,
    remove_points_beyond_branch_end,
)

VALUES = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
ROUGH, SURE, GONE = "accuracy_not_reached", "converged", "lost"


@dataclass(frozen=True)
class Walked(DiagramRow):
    """A row whose branch is followed as far as a value, and ends there if it is a fold."""

    reached: float | None = None
    fold: bool = False

    def continue_branch_from_point(self, name, inside, goal, accuracy, seed):
        if self.reached is None:
            raise NotConvergedError("no definite tangent")
        fold = SimpleNamespace(value=self.reached, error=1e-6, status="converged")
        return fold if self.fold else None, self.reached


def row_of(*statuses, error=0.1):
    def record(n, status):
        found = {} if status == GONE else {"overlaps": [0.7, 2.0, 0.0, 0.8], "training_loss": 1.0}
        found |= {"errors": [0.0, 0.0, 0.0, error]} if found else {}
        return {"n": n, "accuracy": 1e-3, "status": status, **found}

    base = sf.problem("phase_retrieval", alpha=1.0)
    records = {"semantic": tuple(record(n, status) for n, status in enumerate(statuses))}
    return Walked(base, "alpha", "lambda_", 0.1, VALUES, records)


@pytest.mark.parametrize(
    "statuses, expected",
    [
        ((GONE, ROUGH, ROUGH, SURE, ROUGH, SURE), [UncertainBranchSegment("semantic", 3, (2, 1))]),
        ((SURE, ROUGH, GONE, GONE, ROUGH, GONE), [UncertainBranchSegment("semantic", 0, (1,))]),
        ((ROUGH,) * 6, []),
        ((SURE,) * 3 + (GONE,) * 3, []),
    ],
)
def test_the_uncertain_segment_lies_between_the_last_accurate_point_and_the_end(statuses, expected):
    assert list(find_uncertain_segments(row_of(*statuses))) == expected


def test_a_point_that_barely_misses_the_accuracy_is_certain():
    assert not list(find_uncertain_segments(row_of(SURE, SURE, SURE, SURE, ROUGH, ROUGH, error=5e-3)))


@pytest.mark.parametrize("fold, left", [(3.3, 3), (2.6, 2), (1.5, 1)])
def test_a_branch_ends_at_its_fold_whatever_a_coarse_rule_finds_beyond(fold, left):
    row = row_of(GONE, ROUGH, ROUGH, SURE, SURE, SURE)
    (segment,) = find_uncertain_segments(row)
    end = locate_end_of_uncertain_segment(replace(row, reached=fold, fold=True), segment, 1e-3, 0)
    changed, change = remove_points_beyond_branch_end(row, segment, end)
    assert end.value == fold and change == BranchChange("spinodal", ("semantic",), (left, left - 1))
    assert [changed.has_branch("semantic", n) for n in range(6)] == [n >= left for n in range(6)]
    assert change in changed.branch_changes()
    if left > 1:
        assert f"the semantic branch ends at alpha = {fold}" in changed.records["semantic"][1]["reason"]


def test_a_segment_reached_by_continuation_is_certain_else_its_end_is_bracketed():
    row = row_of(SURE, SURE, ROUGH, ROUGH, GONE, GONE)
    (segment,) = find_uncertain_segments(row)
    assert locate_end_of_uncertain_segment(replace(row, reached=4.0), segment, 1e-3, 0) is None
    end = locate_end_of_uncertain_segment(replace(row, reached=3.2), segment, 1e-3, 0)
    assert (end.value, end.status) == (pytest.approx(3.6), BRACKETED) and end.error == pytest.approx(0.4)
    changed, change = remove_points_beyond_branch_end(row, segment, end)
    assert change.ends == (2, 3) and not changed.has_branch("semantic", 3)
    assert locate_end_of_uncertain_segment(row, segment, 1e-3, 0) is None


@pytest.mark.slow
def test_phase_retrieval_knows_its_teacher_down_to_the_fold_and_not_below(agree):
    """Below, coarse grids have fixed points with the teacher's overlap that miss the accuracy by two orders."""
    chosen = {"starts": ["semantic"], "points": (4, 2), "refinements": 0, "processes": 1}
    diagram = sf.phases("phase_retrieval", over={"alpha": (1.2, 1.65), "lambda": (0.1, 0.11)}, **chosen)
    (end,) = (b for b in diagram.boundaries if b.kind == "spinodal" and b.at == 0.1)
    assert end.status == "converged"
    agree((end.value, end.error), (1.3304, 1e-4), "error bars")  # docs/numbers.md
    alone = sf.spinodal(sf.problem("phase_retrieval"), on="semantic", bracket=(1.3, 1.5))
    agree((end.value, end.error), (alone.value, alone.error), "error bars")
    losses = diagram.to_xarray()["training_loss"].sel(solution="informed", **{"lambda": 0.1})
    assert np.isfinite(losses.values).tolist() == [False, True, True, True]
