"""The base case, which several runs share: the branches at omega = 0.3, and thresholds at every omega."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..branches.branch import Curve, curve
from ..errors import NotConvergedError
from ..problems.overlaps import Overlaps
from ..report.tables import load_dataset, save_dataset
from .alpha_thresholds import extrapolated, guess_from_curves, nearest_overlaps, threshold_near
from .run import BRANCHES, SHOWN_OMEGA, Plan, Run, unpacked
from .steps import STEPS

OMEGAS = (0.3, 0.2, 0.1, 0.0, 0.4)  # in the order in which each starts from those before
GRID = (0.1, 2.5, 25)
CURVE_ACCURACY = 1e-3
CROSSING_ACCURACY = {SHOWN_OMEGA: 3e-4, 0.0: 2e-3}  # both branches are soft at omega = 0
THRESHOLD_ACCURACY = 1e-3  # of the others
# Of a step, as in a plan.
SECONDS = {"curve": 20, "alpha_c": 8, "alpha_l": 5, "verdicts": 40}
_CURVE = {"omega": SHOWN_OMEGA, "grid": GRID, "accuracy": CURVE_ACCURACY}


class BaseCaseRun(Run):
    """A run that begins with the base case, all of it or a part."""

    def __init__(self, out: Path, figures: tuple[str, ...]) -> None:
        super().__init__(out, figures)
        self._known: dict[str, Curve] = {}

    def base_plan(self, **kinds: str) -> Plan:
        """The branches at omega = 0.3, and thresholds at every omega.

        Args:
            kinds: alpha_c, alpha_l or both, each with what it is called.
        """
        plan = self.curves_plan()
        for omega in OMEGAS:
            for kind, title in kinds.items():
                sentence = f"locating {kind} ({title}) at omega = {omega:g}"
                plan.append((sentence, SECONDS[kind], partial(self.threshold, kind, omega)))
        return plan

    def curves_plan(self) -> Plan:
        """The branches at omega = 0.3."""
        return [
            (f"following the {name} branch at omega = {SHOWN_OMEGA:g}", SECONDS["curve"], partial(self._curve, name))
            for name in BRANCHES
        ]

    def judged_plan(self) -> Plan:
        """Verdicts along the branches, of which thresholds need none, and their tables."""
        return [
            (f"judging the {name} branch at omega = {SHOWN_OMEGA:g}", SECONDS["verdicts"], partial(self._judged, name))
            for name in BRANCHES
        ]

    def _curve(self, name: str) -> None:
        def work() -> dict[str, Any]:
            found = self._followed(name)
            save_dataset(found.to_xarray(stability=False), self._branch_file(name))
            return {"ends": found.end_text(), "points": len(found.solutions)}

        files = (self._branch_file(name).relative_to(self.out).as_posix(),)
        self.results.setdefault("curves", {})[name] = self.step(f"curve_{name}", _CURVE, work, files=files)

    def _judged(self, name: str) -> None:
        files = (f"tables/{name}.nc", f"tables/{name}.csv")

        def work() -> dict[str, Any]:
            return self.keep_curve(self._followed(name), files)

        self.step(f"verdicts_{name}", _CURVE, work, files=files, after=[f"curve_{name}"])

    def _followed(self, name: str) -> Curve:
        """A branch at omega = 0.3, followed once by a process."""
        if name not in self._known:
            found = curve(self.base, start=name, alpha=GRID, accuracy=CURVE_ACCURACY, refine_end=2)
            if not found.solutions:
                raise NotConvergedError(f"the {name} branch was not found at omega = {SHOWN_OMEGA:g}")
            self._known[name] = found
        return self._known[name]

    def _branch_file(self, name: str) -> Path:
        return self.out / STEPS / f"{name}.nc"

    def threshold(self, kind: str, omega: float) -> None:
        """Locate alpha_c or alpha_l at an omega, from the curves or the nearest omega done before, and keep it."""
        results = self.results.setdefault("thresholds", {}).setdefault(kind, {})
        earlier = {float(w): r for w, r in results.items()}
        accuracy = CROSSING_ACCURACY.get(omega, THRESHOLD_ACCURACY) if kind == "alpha_c" else THRESHOLD_ACCURACY
        after = [f"curve_{name}" for name in BRANCHES] + [f"{kind}_{w:g}" for w in earlier]

        def work() -> dict[str, Any]:
            guess, step, seeds = self._guess(kind, omega, earlier)
            return threshold_near(kind, self.base.with_(omega=omega), guess, step, seeds, accuracy)

        name = f"{kind}_{omega:g}"
        results[f"{omega:g}"] = self.step(name, {"omega": omega, "accuracy": accuracy}, work, after=after)

    def _guess(
        self, kind: str, omega: float, earlier: Mapping[float, Mapping[str, Any]]
    ) -> tuple[float, float, dict[str, Overlaps]]:
        """Where to look, in steps of what width, and overlaps to start from: from the curves, then from neighbours."""
        if not earlier:
            datasets = {name: load_dataset(self._branch_file(name)) for name in BRANCHES}
            guess = guess_from_curves(kind, datasets)
            return guess, 0.02, {n: nearest_overlaps(self.base, d, guess) for n, d in datasets.items()}
        nearest = min(earlier, key=lambda w: abs(w - omega))
        seeds = {n: unpacked(self.base, u) for n, u in earlier[nearest]["overlaps"].items()}
        points = {w: float(r["value"]) for w, r in earlier.items() if r["value"] is not None}
        return extrapolated(points, omega), 0.08, seeds
