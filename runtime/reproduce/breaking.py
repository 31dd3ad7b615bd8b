"""By how much are replica symmetric numbers off? One step of breaking beside them, in the base case.

Both branches are followed down in alpha at omega = 0.3, replica symmetric and with one step of breaking, their
crossing is located under both, and the positional branch is followed at other omega for a map. What is finished is
kept, a branch at an omega being one step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..branches.branch import Curve
from ..breaking.curve import BrokenCurve, curve
from ..breaking.solution import BrokenSolution
from ..breaking.solve import broken, solve
from ..errors import NotConvergedError
from ..progress import say
from ..solving.solution import Solution
from ..thresholds.crossing import crossing
from .run import BRANCHES, SHOWN_OMEGA, Plan, Run

BREAKING = "rsb"
GRIDS: dict[str, tuple[float, ...]] = {
    "semantic": (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    "positional": (0.5, 1.0, 1.5, 2.0),
}
MAP_ALPHAS = (0.5, 1.0, 1.5, 2.0)
MAP_OMEGAS = (0.3, 0.2, 0.1, 0.4)
TIMED = (("positional", 2.0), ("semantic", 0.8))
ACCURACY, SYMMETRIC_ACCURACY = 3e-3, 1e-4  # of the overlaps; replica symmetry beside costs little
REFINE_END = 2  # bisections where the semantic branch ends
BRACKET = (1.1, 1.4)  # of the crossing
CROSSING_ACCURACY = 2e-3


class BreakingRun(Run):
    """Both branches, their crossing, the map and times."""

    draws = (BREAKING,)
    page, data = "rsb", "breaking"

    def __init__(self, out: Path, figures: tuple[str, ...]) -> None:
        super().__init__(out, figures)
        self.results.update(curves={}, map={}, times=[])

    def plan(self) -> Plan:
        """The branches at omega = 0.3, their crossing, the positional branch at the omega of the map, times."""
        plan: Plan = [
            (f"one step of breaking on the {name} branch", 20 * len(GRIDS[name]), partial(self._curve, name))
            for name in BRANCHES
        ]
        plan.append(("locating alpha_c with one step of breaking", 120, self._crossing))
        plan += [
            (f"one step of breaking at omega = {omega:g}", 20 * len(MAP_ALPHAS), partial(self._row, omega))
            for omega in MAP_OMEGAS
        ]
        plan += [(f"timing the {name} branch at alpha = {alpha:g}", 45, partial(self._time, name, alpha))
                 for name, alpha in TIMED]  # fmt: skip
        return plan

    def _curve(self, name: str) -> None:
        self.results["curves"][name] = self._followed(name, SHOWN_OMEGA, GRIDS[name], REFINE_END)

    def _row(self, omega: float) -> None:
        """The positional branch; what is known of omega = 0.3 is not solved again."""
        if omega == SHOWN_OMEGA and set(MAP_ALPHAS) <= set(GRIDS["positional"]):
            self.results["map"][f"{omega:g}"] = self.results["curves"]["positional"]
        else:
            self.results["map"][f"{omega:g}"] = self._followed("positional", omega, MAP_ALPHAS, 0)

    def _followed(self, name: str, omega: float, alphas: Sequence[float], refine_end: int) -> dict[str, Any]:
        at = self.base.with_(omega=omega)

        def work() -> dict[str, Any]:
            kinds: dict[str, Any] = {}
            for kind, rsb, accuracy, point in (
                ("symmetric", 0, SYMMETRIC_ACCURACY, symmetric_point),
                ("broken", 1, ACCURACY, broken_point),
            ):
                clock = _Clock()
                found = curve(at, rsb=rsb, start=name, values=alphas, accuracy=accuracy, refine_end=refine_end,
                              on_point=clock)  # fmt: skip
                kinds[kind] = told(found, point, clock)
            return kinds

        settings = {"omega": omega, "alphas": alphas, "accuracy": [ACCURACY, SYMMETRIC_ACCURACY], "end": refine_end}
        return self.step(f"rsb_{name}_{omega:g}", settings, work)

    def _crossing(self) -> None:
        def work() -> dict[str, Any]:
            try:
                found = crossing(self.base, between=(BRANCHES[0], BRANCHES[1]), bracket=BRACKET,
                                 accuracy=CROSSING_ACCURACY, rsb=1)  # fmt: skip
            except NotConvergedError as error:
                return {"broken": None, "sentence": str(error)}
            return {
                "symmetric": found.evidence["symmetric"],
                "broken": {"value": found.value, "error": found.error, "status": found.status},
                "evidence": found.evidence,
                "verdict": found.rs_verdict,
                "sentence": "",
            }

        settings = {"bracket": BRACKET, "accuracy": CROSSING_ACCURACY}
        self.results["crossing"] = self.step("rsb_crossing", settings, work)

    def _time(self, name: str, alpha: float) -> None:
        """Seconds of both from a named start, code being compiled and loaded: solved once before at half the effort."""
        at = self.base.with_(alpha=alpha)

        def work() -> dict[str, Any]:
            solve(at, name, accuracy=10 * ACCURACY)
            clock = _Clock()
            symmetric = solve(at, name, accuracy=ACCURACY)
            clock(symmetric)
            found = broken(symmetric, accuracy=ACCURACY)
            clock(found)
            seconds = clock.seconds
            return {"branch": name, **broken_point(found), "seconds": seconds[1], "symmetric_seconds": seconds[0]}

        self.results["times"].append(self.step(f"rsb_time_{name}_{alpha:g}", {"accuracy": ACCURACY}, work))

    def is_complete(self) -> bool:
        """Whether every solution was reached to its accuracy, and the crossing."""
        curves = [*self.results["curves"].values(), *self.results["map"].values()]
        points = [point for one in curves for kind in one.values() for point in kind["points"]]
        reached = self.results["crossing"]["broken"] is not None
        return (
            reached
            and self.results["crossing"]["broken"]["status"] == "converged"
            and all(point["status"] == "converged" for point in points)
        )


class _Clock:
    """Called with one solution after another: seconds that each took."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.by_value: dict[float, float] = {}
        self._last = time.monotonic()

    def __call__(self, solution: Solution | BrokenSolution) -> None:
        now = time.monotonic()
        self.seconds.append(now - self._last)
        self.by_value[solution.problem.alpha] = now - self._last
        self._last = now
        say(f"  {solution.branch} at alpha = {solution.problem.alpha:g}: {self.seconds[-1]:.0f} s")


def told(found: Curve | BrokenCurve, point: Callable[[Any], dict[str, Any]], clock: _Clock) -> dict[str, Any]:
    """What is kept of a branch: its points with their seconds, and where it ends."""
    points = [{**point(s), "seconds": clock.by_value.get(s.problem.alpha)} for s in found.solutions]
    return {"points": points, "ends": [list(end) if end else None for end in found.ends], "words": found.end_text()}


def symmetric_point(solution: Solution) -> dict[str, Any]:
    """What is kept of a replica symmetric solution; overlaps of the first token, which the others mirror."""
    return {"alpha": solution.problem.alpha, "status": solution.status.value, **_observed(solution)}


def broken_point(solution: BrokenSolution) -> dict[str, Any]:
    """What is kept of one step of breaking."""
    state, widths, stability = solution.state, solution.state_half_widths, solution.stability
    point = {
        "alpha": solution.problem.alpha,
        "status": solution.status.value,
        "alone": solution.alone,
        "found": solution.found,
        **_observed(solution),
        "parisi": solution.parisi,
        "parisi_error": solution.parisi_error,
        "distance": 0.0 if state is None else float(state.distance[0, 0, 0]),
        "distance_error": 0.0 if widths is None else float(widths.distance[0, 0, 0]),
        "q_between": float((solution.overlaps if state is None else state.between).q[0, 0, 0]),
        "rule": solution.rule.describe(),
    }
    if stability is not None:
        point |= {"clustering": stability.clustering, "clustering_error": stability.clustering_error,
                  "verdict": stability.verdict}  # fmt: skip
    return point


def _observed(solution: Solution | BrokenSolution) -> dict[str, Any]:
    overlaps, widths = solution.overlaps, solution.half_widths
    observed: dict[str, Any] = {}
    for name in ("q", "m", "theta"):
        observed[name] = abs(float(getattr(overlaps, name).ravel()[0]))
        observed[f"{name}_error"] = float(getattr(widths, name).ravel()[0])
    for name in ("training_loss", "test_error"):
        observed[name] = float(getattr(solution, name))
        observed[f"{name}_error"] = float(getattr(solution, f"{name}_error"))
    return observed
