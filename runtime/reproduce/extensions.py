"""The transition beyond the base case (arXiv 2402.03902, appendix E.3): rank-two student, untied query and key,
correlated tokens, value matrix.

Each setting is followed along alpha beside the base case, its transition located along omega. A student of rank two
has no first-order transition: its positional and semantic branches are saddles, and one with both overlaps grows out of
the positional branch (see `onset`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import NotConvergedError
from ..branches.branch import Branch
from ..extensions.breaking.curve import curve
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem, problem
from ..thresholds.onset import onset
from .alpha_thresholds import (
    absent_result,
    guess_from_curves,
    is_settled,
    nearest_overlaps,
    threshold_near,
    threshold_result,
)
from .base_case import OMEGAS, BaseCaseRun
from .run import BRANCHES, SHOWN_OMEGA, Task, table_files, unpacked

EXTENSIONS = "extensions"
FOLDER = "extensions"
ONSET, CROSSING = "onset", "crossing"


@dataclass(frozen=True)
class Setting:
    """One way to leave the base case.

    Attributes:
        parameters: structural sizes and values that differ from the model's defaults.
        grid: values of alpha of the branches at omega = 0.3; omegas: those of the transition, each after its neighbour.
        overlap_accuracy: of the overlaps along the branches, and where the transition is located.
        accuracy: half width asked of the transition in alpha.
        budget: seconds that a branch and a transition may take on two cores.
        branches: those followed; with ONSET the transition is where theta grows out of the positional one, with
            CROSSING where semantic and positional have equal training loss.
        reached: what the solutions of a branch go by where that is not its name (see `Branch`).
    """

    title: str
    model: str
    parameters: Mapping[str, Any]
    grid: Sequence[float]
    overlap_accuracy: float
    accuracy: float
    budget: tuple[int, int]
    omegas: Sequence[float] = OMEGAS
    branches: Sequence[str] = BRANCHES
    transition: str = CROSSING
    reached: Mapping[str, str] = field(default_factory=dict)

    def problem(self, omega: float, **changes: Any) -> Problem:
        """The setting at an omega (and alpha = 1), with further changes of parameters."""
        return problem(self.model, omega=omega, **{**self.parameters, **changes})


def along_encodings(share: float) -> list[list[float]]:
    """means . encodings of two tokens and two clusters whose opposite means have this component along the encodings."""
    return [[side * share * way for way in (1.0, -1.0)] for _ in range(2) for side in (-1.0, 1.0)]


def along_teacher(share: float) -> list[list[float]]:
    """means . teacher of two tokens and two clusters with opposite means, for a teacher of rank one."""
    return [[side * share] for _ in range(2) for side in (-1.0, 1.0)]


def widths_of_clusters(narrow: float, mean: float = 0.25) -> list[float]:
    """Deviations of two tokens and two clusters of equal weight; rho averages to `mean` over the clusters."""
    return [narrow, float(np.sqrt(2 * mean - narrow**2))] * 2


NARROW = 0.45  # deviation of the narrower cluster; 0.5 is the base case
EQUAL_LABELS = (0.4, 0.1, 0.1, 0.4)  # the tokens of a sentence come from one cluster with probability 0.8

SETTINGS: dict[str, Setting] = {
    "rank_two": Setting(
        title="student of rank 2",
        model="dot_product_attention",
        parameters={"student_rank": 2},
        branches=("mixed", *BRANCHES),
        transition=ONSET,
        grid=(0.7, 0.85, 1.0, 1.25, 1.5, 1.75, 2.0),
        overlap_accuracy=1e-2,
        accuracy=3e-2,
        budget=(75, 75),
    ),
    "untied": Setting(
        title="untied query and key",
        model="untied_attention",
        parameters={},
        grid=(1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75, 3.0),
        overlap_accuracy=1e-2,
        accuracy=4e-3,
        budget=(25, 25),
    ),
    "mixture": Setting(
        title="correlated tokens: clusters of unequal width",
        model="attention_on_mixture",
        parameters={"sigma": widths_of_clusters(NARROW), "labels": EQUAL_LABELS},
        grid=(0.75, 1.0, 1.25, 1.5, 1.75, 2.0),
        omegas=(0.3, 0.2, 0.1, 0.4),  # at 0 both branches jump on 13 % of the measure where they would cross
        overlap_accuracy=3e-3,
        accuracy=1e-3,
        budget=(90, 60),
    ),
    "value": Setting(
        title="value matrix",
        model="value_attention",
        parameters={},
        reached={"positional": "mixed"},  # its value column follows the teacher
        grid=(2.0, 2.25, 2.5, 2.75),
        overlap_accuracy=2e-2,
        accuracy=5e-2,
        budget=(120, 240),
    ),
}

# What moves the transition of correlated tokens at omega = 0.3: one change at a time from the base case.
VARIATIONS: dict[str, dict[str, Any]] = {
    "correlated labels": {"labels": EQUAL_LABELS},
    "unequal widths (sigma 0.45 and 0.545, mean rho as before)": {"sigma": widths_of_clusters(NARROW)},
    "means with a share 0.5 along the encodings": {"along": along_encodings(0.5)},
    "means with a share 0.25 along the teacher (m* = 0.25)": {"taught": along_teacher(0.25)},
    "m* = 0.25 and correlated labels": {"taught": along_teacher(0.25), "labels": EQUAL_LABELS},
}


class ExtensionsRun(BaseCaseRun):
    """The base case, the four settings and the variations of correlated tokens."""

    draws = (EXTENSIONS,)
    page, data = "extensions", "extensions"

    def __init__(self, out: Path, figures: tuple[str, ...]) -> None:
        super().__init__(out, figures)
        self.results["settings"] = {name: {"curves": {}, "alpha_c": {}} for name in SETTINGS}
        self.results["variations"] = {}

    def plan(self) -> Iterator[Task]:
        """The base case, then branches and transitions setting by setting, then the variations of correlated tokens."""
        yield from self.curves()
        yield from self.thresholds(alpha_c="base case")
        base = [f"alpha_c_{omega:g}" for omega in OMEGAS]
        for name, setting in SETTINGS.items():
            stem, into, (quick, slow) = f"{FOLDER}_{name}", ("settings", name), setting.budget
            for branch in setting.branches:
                title = f"{setting.title}: following the {branch} branch at omega = {SHOWN_OMEGA:g}"
                yield Task(title, quick, f"{stem}_curve_{branch}", self.setting_curve, (name, branch),
                           (*into, "curves", branch), files=table_files(FOLDER, f"{name}_{branch}"),
                           settings=_identity(setting.problem(SHOWN_OMEGA)))  # fmt: skip
            after = [f"{stem}_curve_{branch}" for branch in setting.branches]
            for number, omega in enumerate(setting.omegas):
                title = f"{setting.title}: locating the transition at omega = {omega:g}"
                earlier = [f"{stem}_{w:g}" for w in setting.omegas[:number]]
                yield Task(title, slow, f"{stem}_{omega:g}", self.setting_threshold, (name, omega),
                           (*into, "alpha_c", f"{omega:g}"), [*after, *earlier, *base],
                           settings=_identity(setting.problem(omega)))  # fmt: skip
            if setting.transition == ONSET:
                title = f"{setting.title}: where its two saddles have equal training loss"
                yield Task(title, slow, f"{stem}_saddles", self.saddles, (name,), (*into, "saddles"), after,
                           settings=_identity(setting.problem(SHOWN_OMEGA)))  # fmt: skip
        for number, change in enumerate(VARIATIONS):
            title, step = f"correlated tokens: {change}", f"{FOLDER}_variation_{number}"
            yield Task(title, 60, step, self.variation, (change,), ("variations", change),
                       [f"alpha_c_{SHOWN_OMEGA:g}"], settings=_identity(_varied(change)))  # fmt: skip
        yield from self.verdicts()

    def is_complete(self) -> bool:
        """Whether every transition was located to its accuracy, or has no sign change to be found."""
        found = [*self._base.values(), *self.results["variations"].values()]
        for setting in self.results["settings"].values():
            found += [*setting["alpha_c"].values(), *([setting["saddles"]] if "saddles" in setting else [])]
        return all(is_settled(r) for r in found)

    def setting_curve(self, name: str, branch: str) -> dict[str, Any]:
        """Follow a branch of a setting, and write its tables."""
        setting = SETTINGS[name]
        followed = curve(setting.problem(SHOWN_OMEGA), start=branch, over="alpha", values=setting.grid, refine_end=0,
                         accuracy=setting.overlap_accuracy, reached=setting.reached.get(branch))  # fmt: skip
        return self.keep_curve(followed, table_files(FOLDER, f"{name}_{branch}"))

    def branch_tables(self, name: str) -> dict[str, Any]:
        """Branch -> table of a setting, those of the branches that were found at all."""
        found = self.results["settings"][name]["curves"]
        return {b: self.dataset(f"{FOLDER}/{name}_{b}") for b in SETTINGS[name].branches if found[b]["points"]}

    def setting_threshold(self, name: str, omega: float) -> dict[str, Any]:
        """Locate the transition of a setting at an omega."""
        setting, at = SETTINGS[name], SETTINGS[name].problem(omega)
        earlier = {float(w): r for w, r in self.results["settings"][name]["alpha_c"].items()}
        guess, seeds = self._setting_guess(name, omega, earlier)
        if setting.transition == ONSET:
            return onset_result(at, guess, seeds.get("positional"), setting)
        return _crossing_near(setting, at, guess, 0.08 if earlier else 0.04, seeds, setting.reached)

    @property
    def _base(self) -> dict[str, dict[str, Any]]:
        return self.results["thresholds"]["alpha_c"]

    def _setting_guess(
        self, name: str, omega: float, earlier: Mapping[float, Mapping[str, Any]]
    ) -> tuple[float, dict[str, Overlaps]]:
        """Where to look and what to start from: the curves, then a neighbour, moved as the base case moves."""
        setting = SETTINGS[name]
        located_at = {w: r for w, r in earlier.items() if r["value"] is not None}
        if not located_at:
            return self._guess_along(name, omega)
        near = sorted(located_at, key=lambda w: abs(w - omega))[:2]
        seeds = located_at[near[0]]["overlaps"]
        base = {w: self._base.get(f"{w:g}", {}).get("value") for w in (omega, *near)}
        guess = float(located_at[near[0]]["value"])
        if all(base.values()):
            # The ratio to the base case varies slowly with omega.
            ratios = [located_at[w]["value"] / base[w] for w in near]
            slope = (ratios[1] - ratios[0]) / (near[1] - near[0]) if len(near) > 1 else 0.0
            guess = base[omega] * (ratios[0] + slope * (omega - near[0]))
        return guess, {b: unpacked(setting.problem(omega), u) for b, u in seeds.items()}

    def _guess_along(self, name: str, omega: float, crossing: bool = False) -> tuple[float, dict[str, Overlaps]]:
        """The same from the curves alone, of a crossing also where the transition is none."""
        setting, datasets = SETTINGS[name], self.branch_tables(name)
        guess = guess_from_curves("alpha_c", datasets) if set(BRANCHES) <= set(datasets) else setting.grid[-1]
        if setting.transition == ONSET and not crossing:
            guess = setting.grid[0]
        at = setting.problem(omega)
        return guess, {b: nearest_overlaps(at, d, guess) for b, d in datasets.items() if b in BRANCHES}

    def saddles(self, name: str) -> dict[str, Any]:
        """Where the semantic and positional saddles of a setting have equal training loss."""
        guess, seeds = self._guess_along(name, SHOWN_OMEGA, crossing=True)
        return _crossing_near(SETTINGS[name], SETTINGS[name].problem(SHOWN_OMEGA), guess, 0.04, seeds)

    def variation(self, change: str) -> dict[str, Any]:
        """The transition of correlated tokens with one change, from that of the base case."""
        at, base = _varied(change), self._base[f"{SHOWN_OMEGA:g}"]
        guess = 1.0 if base["value"] is None else float(base["value"])
        if np.any(at.law.teacher_means):
            # A teacher that overlaps the means gives the semantic branch an overlap with them.
            return _crossing_near(SETTINGS["mixture"], at, guess, 0.08, {}, {"semantic": "mixed"})
        seeds = {b: _per_cluster(unpacked(self.base, u), at.clusters) for b, u in base["overlaps"].items()}
        return _crossing_near(SETTINGS["mixture"], at, guess, 0.08, seeds)


def _crossing_near(
    setting: Setting, at: Problem, guess: float, step: float, seeds: Mapping[str, Overlaps],
    reached: Mapping[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """alpha_c to the accuracy of a setting."""
    accuracy = setting.overlap_accuracy
    return threshold_near(
        "alpha_c", at, guess, step, seeds, setting.accuracy, overlap_accuracy=accuracy, reached=reached or {}
    )


def _varied(change: str) -> Problem:
    return problem(SETTINGS["mixture"].model, omega=SHOWN_OMEGA, **VARIATIONS[change])


def _identity(at: Problem) -> dict[str, Any]:
    """What decides the digits of a problem beyond the sources of this package."""
    values = {name: np.asarray(value).tolist() for name, value in at.parameters.items()}
    return {"model": at.solver.name, "structure": at.solver.key, "solver": at.solver.files_digest, "parameters": values}


def _per_cluster(overlaps: Overlaps, clusters: int) -> Overlaps:
    """The overlaps of tokens without clusters, the same in every cluster."""
    blocks = (overlaps.q, overlaps.V, overlaps.m, overlaps.theta)
    return Overlaps(*(np.repeat(block, clusters, axis=0) for block in blocks))


def onset_result(at: Problem, guess: float, start: Overlaps | None, setting: Setting) -> dict[str, Any]:
    """Where theta begins to grow on the positional branch, as `threshold_near` gives a threshold."""
    branch = Branch(at, "alpha", "positional", setting.overlap_accuracy)
    try:
        return threshold_result(onset(branch, near=guess, width=0.1, accuracy=setting.accuracy, start=start))
    except NotConvergedError as error:
        return {**absent_result("alpha_l", {branch.name: branch}, str(error)), "status": "not_converged"}
