"""The error of replica symmetry in the base case, from one step of symmetry breaking.

Both branches are followed down in alpha at omega = 0.3, replica symmetric and with one step of breaking. Their crossing
is located in either case, and the positional branch is followed at other omega for a map. A step of the run is a branch
at one omega.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from ..base.errors import NotConvergedError
from ..base.progress import print_message
from ..branches.curve_results import Curve
from ..extensions.breaking.crossing import crossing
from ..extensions.breaking.curve import BrokenCurve, curve
from ..extensions.breaking.solution import BrokenSolution
from ..extensions.breaking.solve import break_replica_symmetry, solve
from ..solving.solution import Solution
from .run import BRANCHES, SHOWN_OMEGA, ReproductionRun, RunTask

BREAKING = "rsb"
GRIDS: dict[str, tuple[float, ...]] = {
    "semantic": (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    "positional": (0.5, 1.0, 1.5, 2.0),
}
MAP_ALPHAS = GRIDS["positional"]
MAP_OMEGAS = (0.3, 0.2, 0.1, 0.4)
TIMED = (("positional", 2.0), ("semantic", 0.8))
ACCURACY, SYMMETRIC_ACCURACY = 3e-3, 1e-4  # of the overlaps; replica symmetry costs little
BRACKET = (1.1, 1.4)  # of the crossing


class BreakingRun(ReproductionRun):
    """The run that compares replica symmetry with one step of symmetry breaking (1RSB) in the base case.

    Computes both branches, their crossing, a map of the positional branch over (alpha, omega), and timings.

    Attributes:
        end_bisections: number of bisections that locate the end of a branch at omega = 0.3.
        crossing_accuracy: largest allowed error bar of alpha_c with one step of symmetry breaking.
    """

    draws = (BREAKING,)
    page, data = "rsb", "breaking"
    end_bisections: ClassVar[int] = 2
    crossing_accuracy: ClassVar[float] = 2e-3

    def __init__(self, out: Path, figures: tuple[str, ...]) -> None:
        super().__init__(out, figures)
        self.results.update(curves={}, map={}, times=[])

    def planned_tasks(self) -> Iterator[RunTask]:
        """Return the tasks: branches at omega = 0.3, their crossing, the positional branch at other omega, timings."""
        for name in BRANCHES:
            yield self._run_task_for_branch(f"on the {name} branch", name, SHOWN_OMEGA, ("curves", name))
        title = "locating alpha_c with one step of breaking"
        yield RunTask(title, 120, "rsb_crossing", self.locate_loss_crossing, into=("crossing",))
        for omega in MAP_OMEGAS:  # the shown omega is computed already
            yield self._run_task_for_branch(f"at omega = {omega:g}", "positional", omega, ("map", f"{omega:g}"))
        for name, alpha in TIMED:
            title, step = f"timing the {name} branch at alpha = {alpha:g}", f"rsb_time_{name}_{alpha:g}"
            yield RunTask(title, 45, step, self.measure_solution_times, (name, alpha), ("times",))

    def _run_task_for_branch(self, which: str, name: str, omega: float, into: tuple[str, str]) -> RunTask:
        title, seconds = f"one step of breaking {which}", 20 * len(GRIDS[name])
        return RunTask(
            title, seconds, f"rsb_{name}_{omega:g}", self.compute_branch_with_symmetry_breaking, (name, omega), into
        )

    def compute_branch_with_symmetry_breaking(self, name: str, omega: float) -> dict[str, Any]:
        """Compute a branch along alpha twice: replica symmetric, and with one step of replica symmetry breaking.

        Args:
            name: name of the branch.
            omega: weight of the positional part of the target.
        """
        at, kinds = self.base.with_(omega=omega), {}
        refined = self.end_bisections if omega == SHOWN_OMEGA else 0
        for kind, rsb, accuracy, point in (
            ("symmetric", 0, SYMMETRIC_ACCURACY, symmetric_solution_as_dict),
            ("broken", 1, ACCURACY, broken_symmetry_solution_as_dict),
        ):
            clock = _SolutionTimer()
            found = curve(at, rsb=rsb, start=name, values=GRIDS[name], accuracy=accuracy, refine_end=refined,
                          on_point=clock)  # fmt: skip
            kinds[kind] = branch_as_dict(found, point, clock)
        return kinds

    def locate_loss_crossing(self) -> dict[str, Any]:
        """Locate the alpha at which two branches have equal loss, with one step of replica symmetry breaking."""
        try:
            found = crossing(self.base, between=BRANCHES, bracket=BRACKET, accuracy=self.crossing_accuracy, rsb=1)
        except NotConvergedError as error:
            return {"broken": None, "sentence": str(error)}
        return {
            "symmetric": found.evidence["symmetric"],
            "broken": {"value": found.value, "error": found.error, "status": found.status},
            "evidence": found.evidence,
            "verdict": found.rs_verdict,
            "sentence": "",
        }

    def measure_solution_times(self, name: str, alpha: float) -> dict[str, Any]:
        """Measure the times, without compilation, of a replica symmetric solution and of one with a step of breaking.

        Args:
            name: name of the branch.
            alpha: number of samples per dimension, n/d.
        """
        at = self.base.with_(alpha=alpha)
        solve(at, name, accuracy=10 * ACCURACY)
        clock = _SolutionTimer()
        symmetric = solve(at, name, accuracy=ACCURACY)
        seconds = clock(symmetric)
        found = break_replica_symmetry(symmetric, accuracy=ACCURACY)
        return {
            "branch": name,
            **broken_symmetry_solution_as_dict(found),
            "seconds": clock(found),
            "symmetric_seconds": seconds,
        }

    def are_results_complete(self) -> bool:
        """Return whether all solutions and the crossing of the losses have the accuracy that was asked for."""
        curves = [*self.results["curves"].values(), *self.results["map"].values()]
        points = [point for one in curves for kind in one.values() for point in kind["points"]]
        found = [self.results["crossing"]["broken"] or {"status": "not_converged"}, *points]
        return all(one["status"] == "converged" for one in found)


class _SolutionTimer:
    """A callback after every solution of a branch; it records, by alpha, how many seconds the solution took."""

    def __init__(self) -> None:
        self.seconds: dict[float, float] = {}
        self._last = time.monotonic()

    def __call__(self, solution: Solution | BrokenSolution) -> float:
        alpha, now = solution.problem.alpha, time.monotonic()
        taken = self.seconds[alpha] = now - self._last
        self._last = now
        print_message(f"  {solution.branch} branch at alpha = {alpha:g}: solved in {taken:.0f} s")
        return taken


def branch_as_dict(
    found: Curve | BrokenCurve, point: Callable[[Any], dict[str, Any]], clock: _SolutionTimer
) -> dict[str, Any]:
    """Return a branch as a dict for JSON: its solutions with the time that each took, and the ends of the branch.

    Args:
        found: solutions along the branch.
        point: function that converts a solution to a dict.
        clock: timer that was called after every solution.
    """
    points = [{**point(s), "seconds": clock.seconds.get(s.problem.alpha)} for s in found.solutions]
    return {"points": points, "ends": [list(end) if end else None for end in found.ends], "words": found.end_text()}


def symmetric_solution_as_dict(solution: Solution | BrokenSolution) -> dict[str, Any]:
    """Return a replica symmetric solution as a dict for JSON, with the overlaps of the first token only."""
    point: dict[str, Any] = {"alpha": solution.problem.alpha, "status": solution.status.value}
    for name in ("q", "m", "theta"):
        point[name] = abs(float(getattr(solution.overlaps, name).ravel()[0]))
        point[f"{name}_error"] = float(getattr(solution.error_bars, name).ravel()[0])
    for name in ("training_loss", "training_loss_error", "test_error", "test_error_error"):
        point[name] = float(getattr(solution, name))
    return point


def broken_symmetry_solution_as_dict(solution: BrokenSolution) -> dict[str, Any]:
    """Return a solution with one step of symmetry breaking as a dict for JSON, with overlaps of the first token."""
    state, widths, stability = solution.state, solution.state_error_bars, solution.stability
    point = {
        **symmetric_solution_as_dict(solution),
        "alone": solution.alone,
        "found": solution.found,
        "parisi": solution.parisi,
        "parisi_error": solution.parisi_error,
        "distance": 0.0 if state is None else float(state.overlap_difference[0, 0, 0]),
        "distance_error": 0.0 if widths is None else float(widths.overlap_difference[0, 0, 0]),
        "q_between": float((solution.overlaps if state is None else state.between).q[0, 0, 0]),
        "rule": solution.rule.rule_description(),
    }
    if stability is not None:
        names = ("clustering", "clustering_error", "verdict")
        point |= {name: getattr(stability, name) for name in names}
    return point
