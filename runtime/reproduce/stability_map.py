"""The validity of the replica symmetric phase diagram: self-overlap loss over (alpha, omega) on both branches.

Each branch is followed down in alpha at every omega, and the stability of every solution is assessed (docs/theory.md
(8.23)): where the proximal map jumps, D* / q is the fraction of the self-overlap by which two near-minima differ. A
step of the run is a branch at an omega.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from ..extensions.breaking.curve import curve
from ..solving.solution import Solution
from ..stability.self_overlap import ABSOLUTE, RELATIVE
from .run import BRANCHES, SHOWN_OMEGA, ReproductionRun, RunTask, unpack_overlaps

STABILITY = "stability"
LOG2_LINES = 9  # logarithm to base 2 of the lines per replicate, for the jump set
STORED_QUANTITIES = ("self_overlap_loss", "self_overlap_loss_error", "replicon", "replicon_error", "bistable_fraction",
        "jump_weight", "verdict")  # fmt: skip


class StabilityRun(ReproductionRun):
    """The run of `reproduce` that maps the stability of both branches over the plane of alpha and omega.

    Attributes:
        alphas: values of alpha of the map.
        omegas: values of omega of the map.
        accuracy: relative accuracy of the overlaps.
    """

    draws = (STABILITY,)
    page, data = "stability", "stability_map"
    alphas: ClassVar[tuple[float, ...]] = tuple(round(0.1 + 0.12 * n, 10) for n in range(21))  # 0.1 to 2.5
    omegas: ClassVar[tuple[float, ...]] = tuple(round(0.05 * n, 10) for n in range(11))  # 0 to 0.5
    accuracy: ClassVar[float] = 5e-3

    def __init__(self, out: Path, figures: tuple[str, ...]) -> None:
        super().__init__(out, figures)
        self.results["map"] = {name: {} for name in BRANCHES}

    def planned_tasks(self) -> Iterator[RunTask]:
        """Return a task per branch and omega; its solutions start from those at the nearest omega computed before."""
        done: list[float] = []
        for omega in sorted(self.omegas, key=lambda w: (w > SHOWN_OMEGA, abs(w - SHOWN_OMEGA))):
            nearest = min(done, key=lambda w: abs(w - omega), default=None)
            for name in BRANCHES:
                yield RunTask(f"judging the {name} branch at omega = {omega:g}", 24, f"stability_{name}_{omega:g}",
                           self.assess_stability_at_omega, (name, omega, nearest), ("map", name, f"{omega:g}"),
                           [] if nearest is None else [f"stability_{name}_{nearest:g}"])  # fmt: skip
            done.append(omega)

    def assess_stability_at_omega(self, name: str, omega: float, nearest: float | None) -> dict[str, Any]:
        """Compute a branch along alpha at an omega, and assess the stability of its solutions.

        Args:
            name: name of the branch.
            omega: weight of the positional part of the target.
            nearest: nearest omega that has been computed, from whose solutions these start; None: there is none.
        """
        points = [] if nearest is None else self.results["map"][name][f"{nearest:g}"]["points"]
        seeds = {point["alpha"]: unpack_overlaps(self.base, point["overlaps"]) for point in points}
        at = self.base.with_(omega=omega)
        found = curve(
            at, start=name, over="alpha", values=self.alphas, accuracy=self.accuracy, refine_end=2, seeds=seeds
        )
        return {
            "points": [solution_with_stability_as_dict(s) for s in found.solutions if s.problem.alpha in self.alphas],
            "ends": [list(end) if end else None for end in found.ends],
        }

    def are_results_complete(self) -> bool:
        """Return whether every self-overlap loss D*/q of the map has the accuracy that was asked for."""
        rows = [row for by_omega in self.results["map"].values() for row in by_omega.values()]
        return all(_has_accurate_self_overlap_loss(point) for row in rows for point in row["points"])


def _has_accurate_self_overlap_loss(point: dict[str, Any]) -> bool:
    """Return whether the error bar of the self-overlap loss D*/q of a solution is small enough."""
    loss, error = point["self_overlap_loss"], point["self_overlap_loss_error"]
    return error is not None and error <= max(ABSOLUTE, RELATIVE * loss)


def solution_with_stability_as_dict(solution: Solution) -> dict[str, Any]:
    """Test the stability of a solution against replica symmetry breaking; return both as a dict for JSON."""
    for lines in (LOG2_LINES, LOG2_LINES + 2):
        stability = solution.compute_stability(spectrum=False, log2_lines=lines)
        quantities = {name: getattr(stability, name) for name in STORED_QUANTITIES}
        if _has_accurate_self_overlap_loss(quantities):
            break
    return {
        "alpha": solution.problem.alpha,
        "training_loss": solution.training_loss,
        "training_loss_error": solution.training_loss_error,
        "status": solution.status.value,
        **quantities,
        "overlaps": solution.overlaps.pack(),
    }
