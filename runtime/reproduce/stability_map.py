"""Is the replica-symmetric phase diagram right? The self-overlap loss over (alpha, omega) on both branches.

Each branch is followed down in alpha at every omega, and every solution judged (docs/theory.md (8.23)): where the
proximal map jumps, D* / q is the share of the self-overlap by which two near-minima differ. What is finished is kept, a
branch at an omega being one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from ..extensions.breaking.curve import curve
from ..solving.solution import Solution
from ..stability.self_overlap import ABSOLUTE, RELATIVE
from .run import BRANCHES, SHOWN_OMEGA, Run, Task, unpacked

STABILITY = "stability"
ACCURACY = 5e-3  # of the overlaps
LINES = 9  # log2 of the lines a replicate, for the jump set
KEPT = ("self_overlap_loss", "self_overlap_loss_error", "replicon", "replicon_error", "bistable_share", "jump_weight",
        "verdict")  # fmt: skip


class StabilityRun(Run):
    """Both branches over the plane.

    Attributes:
        alphas, omegas: values of the parameters that span it.
    """

    draws = (STABILITY,)
    page, data = "stability", "stability_map"
    alphas: ClassVar[tuple[float, ...]] = tuple(round(0.1 + 0.12 * n, 10) for n in range(21))  # 0.1 to 2.5
    omegas: ClassVar[tuple[float, ...]] = tuple(round(0.05 * n, 10) for n in range(11))  # 0 to 0.5

    def __init__(self, out: Path, figures: tuple[str, ...]) -> None:
        super().__init__(out, figures)
        self.results["map"] = {name: {} for name in BRANCHES}

    def plan(self) -> Iterator[Task]:
        """A step a branch and omega: from 0.3 down to 0, then up, each from the nearest omega done before."""
        done: list[float] = []
        for omega in sorted(self.omegas, key=lambda w: (w > SHOWN_OMEGA, abs(w - SHOWN_OMEGA))):
            nearest = min(done, key=lambda w: abs(w - omega), default=None)
            for name in BRANCHES:
                yield Task(f"judging the {name} branch at omega = {omega:g}", 24, f"stability_{name}_{omega:g}",
                           self.row, (name, omega, nearest), ("map", name, f"{omega:g}"),
                           [] if nearest is None else [f"stability_{name}_{nearest:g}"])  # fmt: skip
            done.append(omega)

    def row(self, name: str, omega: float, nearest: float | None) -> dict[str, Any]:
        """A branch at an omega, from its solutions at the nearest one."""
        points = [] if nearest is None else self.results["map"][name][f"{nearest:g}"]["points"]
        seeds = {point["alpha"]: unpacked(self.base, point["overlaps"]) for point in points}
        at = self.base.with_(omega=omega)
        found = curve(at, start=name, over="alpha", values=self.alphas, accuracy=ACCURACY, refine_end=2, seeds=seeds)
        return {
            "points": [point_of(s) for s in found.solutions if s.problem.alpha in self.alphas],
            "ends": [list(end) if end else None for end in found.ends],
        }

    def is_complete(self) -> bool:
        """Whether every self-overlap loss is known as well as asked."""
        rows = [row for by_omega in self.results["map"].values() for row in by_omega.values()]
        return all(_is_known(point) for row in rows for point in row["points"])


def _is_known(point: dict[str, Any]) -> bool:
    """Whether a self-overlap loss is known as well as asked."""
    loss, error = point["self_overlap_loss"], point["self_overlap_loss_error"]
    return error is not None and error <= max(ABSOLUTE, RELATIVE * loss)


def point_of(solution: Solution) -> dict[str, Any]:
    """What the map keeps of a solution."""
    for lines in (LINES, LINES + 2):
        stability = solution.judged(spectrum=False, log2_lines=lines)
        judged = {name: getattr(stability, name) for name in KEPT}
        if _is_known(judged):
            break
    return {
        "alpha": solution.problem.alpha,
        "training_loss": solution.training_loss,
        "training_loss_error": solution.training_loss_error,
        "status": solution.status.value,
        **judged,
        "overlaps": solution.overlaps.pack(),
    }
