"""The base case, common to several runs: branches at omega = 0.3, and thresholds in alpha at every omega."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from ..base.errors import NotConvergedError
from ..branches.curve_results import Curve
from ..extensions.breaking.curve import curve
from ..problems.overlaps import Overlaps
from ..report.tables import load_netcdf_dataset, save_dataset_as_netcdf
from .alpha_thresholds import (
    extrapolate_threshold,
    guess_threshold_from_curves,
    locate_threshold_near,
    overlaps_at_nearest_alpha,
)
from .run import BRANCHES, SHOWN_OMEGA, ReproductionRun, RunTask, file_names_of_branch_table, unpack_overlaps
from .steps import STEPS

OMEGAS = (0.3, 0.2, 0.1, 0.0, 0.4)  # each starts from earlier ones
GRID = (0.1, 2.5, 25)
SECONDS = {"curve": 20, "alpha_c": 8, "alpha_l": 5, "verdicts": 40}  # expected duration of a step


class BaseCaseRun(ReproductionRun):
    """A run of `reproduce` that first computes the base case: both branches at omega = 0.3 and thresholds in alpha.

    Attributes:
        curve_accuracy: relative accuracy of the overlaps along the branches.
        threshold_accuracy: largest allowed error bar of thresholds in alpha.
        crossing_accuracy: omega -> largest allowed error bar of alpha_c, where it differs from `threshold_accuracy`.
    """

    curve_accuracy: ClassVar[float] = 1e-3
    threshold_accuracy: ClassVar[float] = 1e-3
    crossing_accuracy: ClassVar[Mapping[float, float]] = {SHOWN_OMEGA: 3e-4, 0.0: 2e-3}

    def __init__(self, out: Path, figures: tuple[str, ...]) -> None:
        super().__init__(out, figures)
        self._followed = cache(self._continue_branch)

    def branch_tasks(self) -> list[RunTask]:
        """Return the tasks that compute each branch of solutions along alpha = n/d, at omega = 0.3."""
        return [
            RunTask(f"following the {name} branch at omega = {SHOWN_OMEGA:g}", SECONDS["curve"], f"curve_{name}",
                 self.follow_branch, (name,), ("curves", name), files=[self._file_name_of_branch(name)])
            for name in BRANCHES
        ]  # fmt: skip

    def threshold_tasks(self, omegas: Sequence[float] = OMEGAS, **kinds: str) -> list[RunTask]:
        """Return the tasks that locate thresholds in alpha = n/d, one for each threshold and value of omega.

        Args:
            omegas: values of omega.
            **kinds: titles of the thresholds to locate, as alpha_c="transition".
        """
        curves = [f"curve_{name}" for name in BRANCHES]
        return [
            RunTask(f"locating {kind} ({title}) at omega = {omega:g}", SECONDS[kind], f"{kind}_{omega:g}",
                 self.locate_threshold, (kind, omega), ("thresholds", kind, f"{omega:g}"),
                 [*curves, *(f"{kind}_{earlier:g}" for earlier in omegas[:number])])
            for number, omega in enumerate(omegas)
            for kind, title in kinds.items()
        ]  # fmt: skip

    def stability_tasks(self) -> list[RunTask]:
        """Return the tasks that test replica symmetry along the branches and write the tables of the branches."""
        return [
            RunTask(f"judging the {name} branch at omega = {SHOWN_OMEGA:g}", SECONDS["verdicts"], f"verdicts_{name}",
                 self.assess_stability_of_branch, (name,), after=[f"curve_{name}"],
                 files=file_names_of_branch_table(name))
            for name in BRANCHES
        ]  # fmt: skip

    def follow_branch(self, name: str) -> dict[str, Any]:
        """Compute a branch of solutions along n/d = alpha at omega = 0.3, and store its table."""
        found = self._followed(name)
        save_dataset_as_netcdf(found.to_xarray(stability=False), self.out / self._file_name_of_branch(name))
        return {"ends": found.end_text(), "points": len(found.solutions)}

    def assess_stability_of_branch(self, name: str) -> dict[str, Any]:
        """Test the stability of the solutions along a branch at omega = 0.3, and write the tables of the branch."""
        return self.write_branch_tables(self._followed(name), file_names_of_branch_table(name))

    def _continue_branch(self, name: str) -> Curve:
        found = curve(self.base, start=name, alpha=GRID, accuracy=self.curve_accuracy, refine_end=2)
        if not found.solutions:
            raise NotConvergedError(
                f"no {name} solution was found at omega = {SHOWN_OMEGA:g} for alpha = {GRID[0]:g} to {GRID[1]:g}"
            )
        return found

    def _file_name_of_branch(self, name: str) -> str:
        return f"{STEPS}/{name}.nc"

    def locate_threshold(self, kind: str, omega: float) -> dict[str, Any]:
        """Locate a threshold in alpha = n/d at one value of omega, and return it as a dict for JSON.

        Args:
            kind: "alpha_c" (equal training losses) or "alpha_l" (test error equal to the linear baseline).
            omega: weight of the positional part of the target.
        """
        earlier = {float(w): r for w, r in self.results.get("thresholds", {}).get(kind, {}).items()}
        accuracy = (
            self.crossing_accuracy.get(omega, self.threshold_accuracy) if kind == "alpha_c" else self.threshold_accuracy
        )
        guess, step, seeds = self._guess_threshold(kind, omega, earlier)
        return locate_threshold_near(kind, self.base.with_(omega=omega), guess, step, seeds, accuracy)

    def _guess_threshold(
        self, kind: str, omega: float, earlier: Mapping[float, Mapping[str, Any]]
    ) -> tuple[float, float, dict[str, Overlaps]]:
        """Return a guess of a threshold in alpha, a first step in alpha, and overlaps from which each branch starts.

        The guess is from thresholds at other omega, or else from the tables of the branches.
        """
        if not earlier:
            datasets = {name: load_netcdf_dataset(self.out / self._file_name_of_branch(name)) for name in BRANCHES}
            guess = guess_threshold_from_curves(kind, datasets)
            return guess, 0.02, {n: overlaps_at_nearest_alpha(self.base, d, guess) for n, d in datasets.items()}
        nearest = min(earlier, key=lambda w: abs(w - omega))
        seeds = {n: unpack_overlaps(self.base, u) for n, u in earlier[nearest]["overlaps"].items()}
        points = {w: float(r["value"]) for w, r in earlier.items() if r["value"] is not None}
        return extrapolate_threshold(points, omega), 0.08, seeds
