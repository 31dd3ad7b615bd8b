"""The base case, which several runs share: the branches at omega = 0.3, and thresholds at every omega."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..base.errors import NotConvergedError
from ..branches.along import Curve
from ..extensions.breaking.curve import curve
from ..problems.overlaps import Overlaps
from ..report.tables import load_dataset, save_dataset
from .alpha_thresholds import extrapolated, guess_from_curves, nearest_overlaps, threshold_near
from .run import BRANCHES, SHOWN_OMEGA, Run, Task, table_files, unpacked
from .steps import STEPS

OMEGAS = (0.3, 0.2, 0.1, 0.0, 0.4)  # in the order in which each starts from those before
GRID = (0.1, 2.5, 25)
CURVE_ACCURACY = 1e-3
CROSSING_ACCURACY = {SHOWN_OMEGA: 3e-4, 0.0: 2e-3}  # both branches are soft at omega = 0
THRESHOLD_ACCURACY = 1e-3  # of the others
SECONDS = {"curve": 20, "alpha_c": 8, "alpha_l": 5, "verdicts": 40}  # of a step, as in a plan


class BaseCaseRun(Run):
    """A run that begins with the base case, all of it or a part."""

    def __init__(self, out: Path, figures: tuple[str, ...]) -> None:
        super().__init__(out, figures)
        self._followed = cache(self._follow)

    def curves(self) -> list[Task]:
        """The branches at omega = 0.3."""
        return [
            Task(f"following the {name} branch at omega = {SHOWN_OMEGA:g}", SECONDS["curve"], f"curve_{name}",
                 self.branch, (name,), ("curves", name), files=[self._branch_file(name)])
            for name in BRANCHES
        ]  # fmt: skip

    def thresholds(self, omegas: Sequence[float] = OMEGAS, **kinds: str) -> list[Task]:
        """Thresholds at every omega.

        Args:
            kinds: alpha_c, alpha_l or both, each with what it is called.
        """
        curves = [f"curve_{name}" for name in BRANCHES]
        return [
            Task(f"locating {kind} ({title}) at omega = {omega:g}", SECONDS[kind], f"{kind}_{omega:g}",
                 self.threshold, (kind, omega), ("thresholds", kind, f"{omega:g}"),
                 [*curves, *(f"{kind}_{earlier:g}" for earlier in omegas[:number])])
            for number, omega in enumerate(omegas)
            for kind, title in kinds.items()
        ]  # fmt: skip

    def verdicts(self) -> list[Task]:
        """Verdicts along the branches, of which thresholds need none, and their tables."""
        return [
            Task(f"judging the {name} branch at omega = {SHOWN_OMEGA:g}", SECONDS["verdicts"], f"verdicts_{name}",
                 self.judged, (name,), after=[f"curve_{name}"], files=table_files(name))
            for name in BRANCHES
        ]  # fmt: skip

    def branch(self, name: str) -> dict[str, Any]:
        """Follow a branch at omega = 0.3."""
        found = self._followed(name)
        save_dataset(found.to_xarray(stability=False), self.out / self._branch_file(name))
        return {"ends": found.end_text(), "points": len(found.solutions)}

    def judged(self, name: str) -> dict[str, Any]:
        """Judge a branch at omega = 0.3 and write its tables."""
        return self.keep_curve(self._followed(name), table_files(name))

    def _follow(self, name: str) -> Curve:
        found = curve(self.base, start=name, alpha=GRID, accuracy=CURVE_ACCURACY, refine_end=2)
        if not found.solutions:
            raise NotConvergedError(f"the {name} branch was not found at omega = {SHOWN_OMEGA:g}")
        return found

    def _branch_file(self, name: str) -> str:
        return f"{STEPS}/{name}.nc"

    def threshold(self, kind: str, omega: float) -> dict[str, Any]:
        """Locate alpha_c or alpha_l at an omega, from the curves or the nearest omega done before."""
        earlier = {float(w): r for w, r in self.results.get("thresholds", {}).get(kind, {}).items()}
        accuracy = CROSSING_ACCURACY.get(omega, THRESHOLD_ACCURACY) if kind == "alpha_c" else THRESHOLD_ACCURACY
        guess, step, seeds = self._guess(kind, omega, earlier)
        return threshold_near(kind, self.base.with_(omega=omega), guess, step, seeds, accuracy)

    def _guess(
        self, kind: str, omega: float, earlier: Mapping[float, Mapping[str, Any]]
    ) -> tuple[float, float, dict[str, Overlaps]]:
        """Where to look, in steps of what width, and overlaps to start from: from the curves, then from neighbours."""
        if not earlier:
            datasets = {name: load_dataset(self.out / self._branch_file(name)) for name in BRANCHES}
            guess = guess_from_curves(kind, datasets)
            return guess, 0.02, {n: nearest_overlaps(self.base, d, guess) for n, d in datasets.items()}
        nearest = min(earlier, key=lambda w: abs(w - omega))
        seeds = {n: unpacked(self.base, u) for n, u in earlier[nearest]["overlaps"].items()}
        points = {w: float(r["value"]) for w, r in earlier.items() if r["value"] is not None}
        return extrapolated(points, omega), 0.08, seeds
