"""One step of breaking compared with replica symmetry: a run's results, table, figure and page, from made-up curves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import saddleforge as sf
from saddleforge.base.errors import NotConvergedError
from saddleforge.branches.curve_results import Curve
from saddleforge.extensions.breaking.curve import BrokenCurve
from saddleforge.reproduce import breaking
from saddleforge.reproduce.breaking import (
    BREAKING,
    BreakingRun,
    broken_symmetry_solution_as_dict,
    symmetric_solution_as_dict,
)
from saddleforge.reproduce.pages import breaking as page
from saddleforge.reproduce.pages.breaking import branch_ends, table_rows
from saddleforge.reproduce.run import Reproduction, RunTask
from saddleforge.reproduce.transition import FIGURES


def observed(alpha: float, loss: float, theta: float) -> dict[str, Any]:
    """Return the record of a solution whose error bars are all 1e-9."""
    point = {"alpha": alpha, "status": "converged", "seconds": 2.0, "q": 0.05, "m": 0.25, "theta": theta,
             "training_loss": loss, "test_error": 0.004}  # fmt: skip
    return point | {f"{name}_error": 1e-9 for name in ("q", "m", "theta", "training_loss", "test_error")}


def made(alphas: tuple[float, ...], missing: float, theta: float) -> dict[str, Any]:
    """A branch on both levels: one step moves the loss by 2e-7 and goes on below `missing`, where symmetry ends."""
    extra = {"alone": False, "found": "", "parisi": 800.0, "parisi_error": 8.0, "distance": 6e-4,
             "distance_error": 1e-5, "q_between": 0.0494, "rule": {}}  # fmt: skip
    broken = [observed(alpha, 2e-3 * alpha + 2e-7, theta) | extra for alpha in alphas]
    symmetric = [observed(alpha, 2e-3 * alpha, theta) for alpha in alphas if alpha > missing]
    end = [missing, missing + 0.05] if missing else None
    return {
        "broken": {"points": broken, "ends": [None, None], "words": "found"},
        "symmetric": {"points": symmetric, "ends": [end, None], "words": "found"},
    }


@pytest.fixture
def results() -> dict[str, Any]:
    """Both branches, the map at two omega, a crossing."""
    positional, semantic = made((1.0, 2.0), 0.0, 0.0), made((0.6, 0.9), 0.7, 0.08)
    return {
        "curves": {"semantic": semantic, "positional": positional},
        "map": {"0.3": positional, "0.1": made((1.0,), 0.0, 0.0)},
        "crossing": {
            "symmetric": {"value": 1.2515, "error": 3e-4},
            "broken": {"value": 1.2535, "error": 5e-4, "status": "converged"},
            "evidence": {"found": ["no breaking found", "one step of breaking"], "visited": [[1.25, -3e-7, 1e-8]]},
            "verdict": "type I stable",
            "sentence": "",
        },
        "times": [
            {"branch": "positional", "alpha": 2.0, "seconds": 30.0, "symmetric_seconds": 3.0, "status": "converged"}
        ],
    }


def drawn(results: dict[str, Any], out: Path) -> Reproduction:
    """The job on made-up results."""

    class Filled(BreakingRun):
        def planned_tasks(self) -> list[RunTask]:
            self.results.update(results)
            return []

    return Filled(out, (BREAKING,)).run_all_tasks(page.write_report)


def test_broken_solutions_are_compared_with_replica_symmetric_ones_if_they_exist(results):
    rows = table_rows(results)
    assert [(row["branch"], row["omega"], row["alpha"]) for row in rows] == [
        ("positional", 0.1, 1.0), ("positional", 0.3, 1.0), ("positional", 0.3, 2.0),
        ("semantic", 0.3, 0.6), ("semantic", 0.3, 0.9),
    ]  # fmt: skip
    alone = rows[3]
    assert alone["energy_moved"] is None and alone["symmetric_theta"] is None
    assert rows[4]["energy_moved"] == pytest.approx(2e-7) and rows[4]["energy_moved_error"] == pytest.approx(2e-9)
    assert rows[1]["share"] == pytest.approx(0.012)
    assert branch_ends(results) == [{"branch": "semantic", "steps": 0, "alpha": [0.7, 0.75]}]


def test_a_run_leaves_table_figure_and_page(results, tmp_path):
    found = drawn(results, tmp_path)
    assert found.complete and found.report.name == "rsb.html"
    text = (tmp_path / "rsb.md").read_text()
    assert "larger training loss, by more than the error bars, at 4, and the smaller one at 0" in text
    assert "| positional | 2 | y | 800(8) | 875 |" in text
    assert "| semantic | 0.6 | theta, replica symmetric | none | none |" in text
    assert "moved by 0.0020(8)" in text
    assert "semantic: no breaking found, positional: one step of breaking" in text
    assert "| positional | 2 | 3.0 | 30.0 | 2.0 to 2.0 |" in text
    assert (tmp_path / "figures" / "rsb.png").stat().st_size > 10_000
    assert len(json.loads((tmp_path / "tables" / "rsb.json").read_text())) == 5


def test_a_crossing_that_is_not_located_is_reported_and_not_complete(results, tmp_path):
    results["crossing"] = {"broken": None, "sentence": "crossing: no sign change"}
    assert not drawn(results, tmp_path).complete
    assert "was not located: crossing: no sign change." in (tmp_path / "rsb.md").read_text()


def test_points_hold_what_the_solutions_do():
    """Of a regression whose symmetry is broken."""
    found = sf.solve(sf.problem("tukey_regression", alpha=2.0, width=0.5), rsb=1, accuracy=1e-3)
    point, symmetric_point = broken_symmetry_solution_as_dict(found), symmetric_solution_as_dict(found.symmetric)
    assert point["distance"] == found.state.overlap_difference.item() and point["q"] == found.overlaps.q.item()
    assert point["training_loss"] - symmetric_point["training_loss"] == pytest.approx(found.energy_moved[0])
    assert point["q_between"] + point["distance"] == pytest.approx(point["q"])
    assert point["parisi_error"] == found.parisi_error and not point["alone"]


def test_a_second_run_computes_nothing(tmp_path, monkeypatch):
    asked: list[float] = []

    def followed(at: Any, *, rsb: int, start: str, **_: Any) -> Curve | BrokenCurve:
        asked.append(at.value_of_parameter("omega"))
        return (BrokenCurve if rsb else Curve)("alpha", start, (), (None, None))

    def unlocated(*_: Any, **__: Any) -> None:
        raise NotConvergedError("crossing: nothing to cross")

    monkeypatch.setattr(breaking, "curve", followed)
    monkeypatch.setattr(breaking, "crossing", unlocated)

    class Untimed(BreakingRun):
        def planned_tasks(self) -> list[RunTask]:
            return [task for task in super().planned_tasks() if task.into != ("times",)]

    first, second = (Untimed(tmp_path, (BREAKING,)) for _ in range(2))
    found = first.run_all_tasks(page.write_report)
    branches = len(breaking.GRIDS) + len(breaking.MAP_OMEGAS) - 1
    assert len(first.steps.computed) == branches + 1 and len(asked) == 2 * branches
    assert second.run_all_tasks(page.write_report).results == found.results and not second.steps.computed


def test_the_default_run_does_not_include_it():
    assert BREAKING not in FIGURES
