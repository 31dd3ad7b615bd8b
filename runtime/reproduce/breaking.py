"""By how much are replica symmetric numbers off? One step of breaking beside them, in the base case.

Both branches are followed down in alpha at omega = 0.3, replica symmetric and with one step of breaking, their
crossing is located under both, and the positional branch is followed at other omega for a map. What is finished is
kept, a branch at an omega being one step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..base.errors import NotConvergedError
from ..base.progress import say
from ..branches.along import Curve
from ..extensions.breaking.crossing import crossing
from ..extensions.breaking.curve import BrokenCurve, curve
from ..extensions.breaking.solution import BrokenSolution
from ..extensions.breaking.solve import broken, solve
from ..solving.solution import Solution
from .run import BRANCHES, SHOWN_OMEGA, Run, Task

BREAKING = "rsb"
GRIDS: dict[str, tuple[float, ...]] = {
    "semantic": (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    "positional": (0.5, 1.0, 1.5, 2.0),
}
MAP_ALPHAS = GRIDS["positional"]
MAP_OMEGAS = (0.3, 0.2, 0.1, 0.4)
TIMED = (("positional", 2.0), ("semantic", 0.8))
ACCURACY, SYMMETRIC_ACCURACY = 3e-3, 1e-4  # of the overlaps; replica symmetry beside costs little
REFINE_END = 2  # bisections where the semantic branch ends at omega = 0.3
BRACKET = (1.1, 1.4)  # of the crossing
CROSSING_ACCURACY = 2e-3


class BreakingRun(Run):
    """Both branches, their crossing, the map and times."""

    draws = (BREAKING,)
    page, data = "rsb", "breaking"

    def __init__(self, out: Path, figures: tuple[str, ...]) -> None:
        super().__init__(out, figures)
        self.results.update(curves={}, map={}, times=[])

    def plan(self) -> Iterator[Task]:
        """The branches at omega = 0.3, their crossing, the positional branch at the omega of the map, times."""
        for name in BRANCHES:
            yield self._branch(f"on the {name} branch", name, SHOWN_OMEGA, ("curves", name))
        title = "locating alpha_c with one step of breaking"
        yield Task(title, 120, "rsb_crossing", self.crossing, into=("crossing",))
        for omega in MAP_OMEGAS:  # that shown is kept from before
            yield self._branch(f"at omega = {omega:g}", "positional", omega, ("map", f"{omega:g}"))
        for name, alpha in TIMED:
            title, step = f"timing the {name} branch at alpha = {alpha:g}", f"rsb_time_{name}_{alpha:g}"
            yield Task(title, 45, step, self.timed, (name, alpha), ("times",))

    def _branch(self, which: str, name: str, omega: float, into: tuple[str, str]) -> Task:
        title, seconds = f"one step of breaking {which}", 20 * len(GRIDS[name])
        return Task(title, seconds, f"rsb_{name}_{omega:g}", self.branch, (name, omega), into)

    def branch(self, name: str, omega: float) -> dict[str, Any]:
        """A branch at an omega, replica symmetric and with one step of breaking."""
        at, kinds = self.base.with_(omega=omega), {}
        refined = REFINE_END if omega == SHOWN_OMEGA else 0
        for kind, rsb, accuracy, point in (
            ("symmetric", 0, SYMMETRIC_ACCURACY, symmetric_point),
            ("broken", 1, ACCURACY, broken_point),
        ):
            clock = _Clock()
            found = curve(at, rsb=rsb, start=name, values=GRIDS[name], accuracy=accuracy, refine_end=refined,
                          on_point=clock)  # fmt: skip
            kinds[kind] = kept_of(found, point, clock)
        return kinds

    def crossing(self) -> dict[str, Any]:
        """alpha_c with one step of breaking, and what is known of it."""
        try:
            found = crossing(self.base, between=BRANCHES, bracket=BRACKET, accuracy=CROSSING_ACCURACY, rsb=1)
        except NotConvergedError as error:
            return {"broken": None, "sentence": str(error)}
        return {
            "symmetric": found.evidence["symmetric"],
            "broken": {"value": found.value, "error": found.error, "status": found.status},
            "evidence": found.evidence,
            "verdict": found.rs_verdict,
            "sentence": "",
        }

    def timed(self, name: str, alpha: float) -> dict[str, Any]:
        """Seconds of both from a named start, code being compiled and loaded: solved once before at half the effort."""
        at = self.base.with_(alpha=alpha)
        solve(at, name, accuracy=10 * ACCURACY)
        clock = _Clock()
        symmetric = solve(at, name, accuracy=ACCURACY)
        seconds = clock(symmetric)
        found = broken(symmetric, accuracy=ACCURACY)
        return {"branch": name, **broken_point(found), "seconds": clock(found), "symmetric_seconds": seconds}

    def is_complete(self) -> bool:
        """Whether every solution was reached to its accuracy, and the crossing."""
        curves = [*self.results["curves"].values(), *self.results["map"].values()]
        points = [point for one in curves for kind in one.values() for point in kind["points"]]
        found = [self.results["crossing"]["broken"] or {"status": "not_converged"}, *points]
        return all(one["status"] == "converged" for one in found)


class _Clock:
    """Called with one solution after another: seconds that each took, by its alpha."""

    def __init__(self) -> None:
        self.seconds: dict[float, float] = {}
        self._last = time.monotonic()

    def __call__(self, solution: Solution | BrokenSolution) -> float:
        alpha, now = solution.problem.alpha, time.monotonic()
        taken = self.seconds[alpha] = now - self._last
        self._last = now
        say(f"  {solution.branch} at alpha = {alpha:g}: {taken:.0f} s")
        return taken


def kept_of(found: Curve | BrokenCurve, point: Callable[[Any], dict[str, Any]], clock: _Clock) -> dict[str, Any]:
    """What is kept of a branch: its points with their seconds, and where it ends."""
    points = [{**point(s), "seconds": clock.seconds.get(s.problem.alpha)} for s in found.solutions]
    return {"points": points, "ends": [list(end) if end else None for end in found.ends], "words": found.end_text()}


def symmetric_point(solution: Solution | BrokenSolution) -> dict[str, Any]:
    """What is kept of a replica symmetric solution; overlaps of the first token, which the others mirror."""
    point: dict[str, Any] = {"alpha": solution.problem.alpha, "status": solution.status.value}
    for name in ("q", "m", "theta"):
        point[name] = abs(float(getattr(solution.overlaps, name).ravel()[0]))
        point[f"{name}_error"] = float(getattr(solution.half_widths, name).ravel()[0])
    for name in ("training_loss", "training_loss_error", "test_error", "test_error_error"):
        point[name] = float(getattr(solution, name))
    return point


def broken_point(solution: BrokenSolution) -> dict[str, Any]:
    """What is kept of one step of breaking."""
    state, widths, stability = solution.state, solution.state_half_widths, solution.stability
    point = {
        **symmetric_point(solution),
        "alone": solution.alone,
        "found": solution.found,
        "parisi": solution.parisi,
        "parisi_error": solution.parisi_error,
        "distance": 0.0 if state is None else float(state.distance[0, 0, 0]),
        "distance_error": 0.0 if widths is None else float(widths.distance[0, 0, 0]),
        "q_between": float((solution.overlaps if state is None else state.between).q[0, 0, 0]),
        "rule": solution.rule.describe(),
    }
    if stability is not None:
        names = ("clustering", "clustering_error", "verdict")
        point |= {name: getattr(stability, name) for name in names}
    return point
