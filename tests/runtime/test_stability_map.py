"""The map of the self-overlap loss: what a run keeps, its table, figure and report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from saddleforge.reproduce import stability_map
from saddleforge.reproduce.pages import stability_map as page
from saddleforge.reproduce.pages.stability_map import branch_ends, table_rows
from saddleforge.reproduce.run import Reproduction
from saddleforge.reproduce.stability_map import STABILITY, StabilityRun
from saddleforge.reproduce.transition import FIGURES

pytestmark = pytest.mark.slow


class TwoPoints(StabilityRun):
    """The map at two values of alpha and one omega."""

    alphas, omegas = (1.9, 2.1), (0.3,)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Reproduction, Path]:
    """A small map: semantic free of jumps at both, positional with jumps."""
    out = tmp_path_factory.mktemp("map")
    return TwoPoints(out, (STABILITY,)).run_all_tasks(page.write_report), out


def test_the_winning_branch_is_free_of_jumps_and_the_other_is_not(finished):
    found, out = finished
    rows = json.loads((out / "tables" / "stability.json").read_text())
    assert [(row["branch"], row["alpha"], row["lowest"]) for row in rows] == [
        ("positional", 1.9, False),
        ("positional", 2.1, False),
        ("semantic", 1.9, True),
        ("semantic", 2.1, True),
    ]
    for row in rows:
        if row["branch"] == "semantic":
            assert row["self_overlap_loss"] < 1e-6
        else:
            assert row["self_overlap_loss"] == pytest.approx(0.038, abs=0.012)
            assert row["self_overlap_loss_error"] <= max(1e-3, 0.2 * row["self_overlap_loss"])
    assert found.complete


def test_a_run_leaves_table_figure_and_report(finished):
    found, out = finished
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert {"figures/stability.png", "tables/stability.csv", "stability.md", "stability_map.json"} <= names
    assert found.report.name == "stability.html"
    text = (out / "stability.md").read_text()
    assert "below 0.0001 at 2 of 2 points" in text


def test_a_second_run_computes_nothing(finished):
    found, out = finished
    second = TwoPoints(out, (STABILITY,))
    assert second.run_all_tasks(page.write_report).results == found.results and not second.steps.computed


class Judged:
    """A solution whose self-overlap loss is known better the more lines are drawn."""

    problem = type("Problem", (), {"alpha": 1.0})
    training_loss = training_loss_error = 0.0
    status = type("Status", (), {"value": "converged"})
    overlaps = type("Overlaps", (), {"pack": staticmethod(list)})

    def __init__(self, loss: float, error: float) -> None:
        self.loss, self.error, self.asked = loss, error, []

    def compute_stability(self, spectrum: bool, log2_lines: int) -> Any:
        self.asked.append(log2_lines)
        words = dict.fromkeys(("replicon", "replicon_error", "bistable_fraction", "jump_weight"), 0.0) | {"verdict": ""}
        error = self.error / 2 ** (log2_lines - stability_map.LOG2_LINES)
        return type("Stability", (), words | {"self_overlap_loss": self.loss, "self_overlap_loss_error": error})


@pytest.mark.parametrize(("loss", "error", "times"), [(0.3, 0.05, 1), (4e-3, 9e-4, 1), (4e-3, 1.2e-3, 2)], ids=str)
def test_a_point_that_is_not_known_as_well_as_asked_is_looked_at_again(loss, error, times):
    solution = Judged(loss, error)
    point = stability_map.solution_with_stability_as_dict(solution)
    assert len(solution.asked) == times
    assert point["self_overlap_loss_error"] <= max(1e-3, 0.2 * loss)


def test_ends_are_halfway_between_found_and_missing():
    row = {"points": [], "ends": [[0.7, 0.6], [1.2, 1.3]]}
    assert branch_ends({"semantic": {"0.3": row}, "positional": {"0.3": {"points": [], "ends": [None, None]}}}) == {
        "semantic": [[(0.3, pytest.approx(0.65))], [(0.3, pytest.approx(1.25))]],
        "positional": [[], []],
    }


def test_the_lowest_of_the_branches_found_is_marked():
    def rows(loss: float) -> dict[str, Any]:
        return {"0.3": {"points": [{"alpha": 1.0, "training_loss": loss}], "ends": [None, None]}}

    marked = {row["branch"]: row["lowest"] for row in table_rows({"semantic": rows(0.2), "positional": rows(0.1)})}
    assert marked == {"semantic": False, "positional": True}


def test_the_default_run_does_not_include_the_map():
    assert STABILITY not in FIGURES
