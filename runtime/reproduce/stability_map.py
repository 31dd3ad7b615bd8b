"""Is the replica-symmetric phase diagram right? The self-overlap loss over (alpha, omega) on both branches.

Each branch is followed down in alpha at every omega, and every solution judged (docs/theory.md (8.23)): where the
proximal map jumps, D* / q is the share of the self-overlap by which two near-minima differ. What is finished is kept, a
branch at an omega being one step.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from ..branches.branch import curve
from ..solving.solution import Solution
from ..stability.self_overlap import ABSOLUTE, RELATIVE
from .run import BRANCHES, SHOWN_OMEGA, Plan, Run, unpacked

STABILITY = "stability"
ALPHAS = tuple(round(0.1 + 0.12 * n, 10) for n in range(21))  # 0.1 to 2.5
OMEGAS = tuple(round(0.05 * n, 10) for n in range(11))  # 0 to 0.5
ACCURACY = 5e-3  # of the overlaps
LINES = 9  # log2 of the lines a replicate, for the jump set


class StabilityRun(Run):
    """Both branches over the plane."""

    draws = (STABILITY,)
    page, data = "stability", "stability_map"

    def __init__(self, out: Path, figures: tuple[str, ...]) -> None:
        super().__init__(out, figures)
        self.results["map"] = {name: {} for name in BRANCHES}

    def plan(self) -> Plan:
        """A step a branch and omega: from 0.3 down to 0, then up, each from the nearest omega done before."""
        return [
            (f"judging the {name} branch at omega = {omega:g}", 24, partial(self._row, name, omega))
            for omega in sorted(OMEGAS, key=lambda w: (w > SHOWN_OMEGA, abs(w - SHOWN_OMEGA)))
            for name in BRANCHES
        ]

    def _row(self, name: str, omega: float) -> None:
        rows = self.results["map"][name]
        nearest = min(rows, key=lambda text: abs(float(text) - omega), default=None)
        beside = rows[nearest] if nearest else {"points": []}

        def work() -> dict[str, Any]:
            at = self.base.with_(omega=omega)
            seeds = {p["alpha"]: unpacked(self.base, p["overlaps"]) for p in beside["points"]}
            found = curve(at, start=name, over="alpha", values=ALPHAS, accuracy=ACCURACY, refine_end=2, seeds=seeds)
            return {
                "points": [point_of(s) for s in found.solutions if s.problem.alpha in ALPHAS],
                "ends": [list(end) if end else None for end in found.ends],
            }

        settings = {"alphas": ALPHAS, "accuracy": ACCURACY, "lines": LINES, "asked": [ABSOLUTE, RELATIVE]}
        step = f"stability_{name}_{omega:g}"
        after = [f"stability_{name}_{nearest}"] if nearest else []
        rows[f"{omega:g}"] = self.step(step, {"omega": omega, **settings}, work, after=after)

    def is_complete(self) -> bool:
        """Whether every self-overlap loss is known as well as asked."""
        return all(
            point["self_overlap_loss_error"] is not None
            and _met(point["self_overlap_loss"], point["self_overlap_loss_error"])
            for rows in self.results["map"].values()
            for row in rows.values()
            for point in row["points"]
        )


def _met(loss: float, error: float) -> bool:
    """Whether a self-overlap loss is known as well as asked."""
    return error <= max(ABSOLUTE, RELATIVE * loss)


def point_of(solution: Solution) -> dict[str, Any]:
    """What the map keeps of a solution."""
    stability = solution.judged(spectrum=False, log2_lines=LINES)
    if stability is not None and not _met(stability.self_overlap_loss, stability.self_overlap_loss_error):
        stability = solution.judged(spectrum=False, log2_lines=LINES + 2)
    assert stability is not None
    return {
        "alpha": solution.problem.alpha,
        "training_loss": solution.training_loss,
        "training_loss_error": solution.training_loss_error,
        "status": solution.status.value,
        "self_overlap_loss": stability.self_overlap_loss,
        "self_overlap_loss_error": stability.self_overlap_loss_error,
        "replicon": stability.replicon,
        "replicon_error": stability.replicon_error,
        "bistable_share": stability.bistable_share,
        "jump_weight": stability.jump_weight,
        "verdict": stability.verdict,
        "overlaps": solution.overlaps.pack(),
    }
