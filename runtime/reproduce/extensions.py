"""The transition beyond the base case: rank-two student, untied query and key, correlated tokens, value matrix.

The settings are those of arXiv 2402.03902, appendix E.3. Each is followed along alpha and compared with the base case,
and its transition is located along omega. A student of rank two has no first-order transition: its positional and
semantic branches are saddles, and one with both overlaps branches off the positional branch (see
`continuous_transition`).
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
from ..thresholds.continuous_transition import continuous_transition
from .alpha_thresholds import (
    absent_threshold_as_dict,
    guess_threshold_from_curves,
    is_threshold_located_or_absent,
    locate_threshold_near,
    overlaps_at_nearest_alpha,
    threshold_as_dict,
)
from .base_case import OMEGAS, BaseCaseRun
from .run import BRANCHES, SHOWN_OMEGA, RunTask, file_names_of_branch_table, unpack_overlaps

EXTENSIONS = "extensions"
FOLDER = "extensions"
CONTINUOUS, CROSSING = "continuous", "crossing"


@dataclass(frozen=True)
class ExtensionSetting:
    """An extension of the base case: another student, teacher, prior of the tokens or attention.

    Attributes:
        parameters: structural sizes and values that differ from the model's defaults.
        grid: values of alpha of the branches at omega = 0.3.
        omegas: values of omega of the transition, each after a neighbouring value.
        overlap_accuracy: relative accuracy of the overlaps along the branches and at the transition.
        accuracy: error bar of the transition in alpha.
        budget: expected duration of a branch and of a transition on two cores, in seconds.
        branches: the branches to follow; with CONTINUOUS the transition is the instability of the positional one
            towards theta, with CROSSING the crossing of the training losses of semantic and positional.
        reached: by name of a start, the branch that its solutions reach if that differs from the start.
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

    def problem_at_omega(self, omega: float, **changes: Any) -> Problem:
        """Return the learning problem of this extension at an omega and alpha = 1.

        Args:
            omega: weight of the positional part of the target.
            **changes: parameters that differ from those of the extension.
        """
        return problem(self.model, omega=omega, **{**self.parameters, **changes})


def cluster_means_along_encodings(share: float) -> list[list[float]]:
    """Return the Gram matrix between cluster means and token encodings, for two tokens and two opposite clusters.

    `share` is the component of the means along the encodings. Rows are (token, cluster) pairs, columns tokens.
    """
    return [[side * share * way for way in (1.0, -1.0)] for _ in range(2) for side in (-1.0, 1.0)]


def cluster_means_along_teacher(share: float) -> list[list[float]]:
    """Return scalar products of cluster means and a rank-one teacher, for two tokens with two opposite clusters."""
    return [[side * share] for _ in range(2) for side in (-1.0, 1.0)]


def standard_deviations_of_clusters(narrow: float, mean: float = 0.25) -> list[float]:
    """Return the standard deviations sigma of two clusters of equal weight with given mean variance, for two tokens.

    Args:
        narrow: standard deviation of the narrower cluster.
        mean: mean of the variances of the two clusters.
    """
    return [narrow, float(np.sqrt(2 * mean - narrow**2))] * 2


NARROW = 0.45  # deviation of the narrower cluster; 0.5 is the base case
EQUAL_LABELS = (0.4, 0.1, 0.1, 0.4)  # the tokens of a sentence come from one cluster with probability 0.8

SETTINGS: dict[str, ExtensionSetting] = {
    "rank_two": ExtensionSetting(
        title="student of rank 2",
        model="dot_product_attention",
        parameters={"student_rank": 2},
        branches=("mixed", *BRANCHES),
        transition=CONTINUOUS,
        grid=(0.7, 0.85, 1.0, 1.25, 1.5, 1.75, 2.0),
        overlap_accuracy=1e-2,
        accuracy=3e-2,
        budget=(75, 75),
    ),
    "untied": ExtensionSetting(
        title="untied query and key",
        model="untied_attention",
        parameters={},
        grid=(1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75, 3.0),
        overlap_accuracy=1e-2,
        accuracy=4e-3,
        budget=(25, 25),
    ),
    "mixture": ExtensionSetting(
        title="correlated tokens: clusters of unequal width",
        model="attention_on_mixture",
        parameters={"sigma": standard_deviations_of_clusters(NARROW), "labels": EQUAL_LABELS},
        grid=(0.75, 1.0, 1.25, 1.5, 1.75, 2.0),
        omegas=(0.3, 0.2, 0.1, 0.4),  # at 0 both branches jump on 13 % of the measure where they would cross
        overlap_accuracy=3e-3,
        accuracy=1e-3,
        budget=(90, 60),
    ),
    "value": ExtensionSetting(
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
    "unequal widths (sigma 0.45 and 0.545, mean rho as before)": {"sigma": standard_deviations_of_clusters(NARROW)},
    "means with a component 0.5 along the encodings": {"along": cluster_means_along_encodings(0.5)},
    "means with a component 0.25 along the teacher (m* = 0.25)": {"taught": cluster_means_along_teacher(0.25)},
    "m* = 0.25 and correlated labels": {"taught": cluster_means_along_teacher(0.25), "labels": EQUAL_LABELS},
}


class ExtensionsRun(BaseCaseRun):
    """The run of `reproduce` about the base case, its four extensions and variations of correlated tokens."""

    draws = (EXTENSIONS,)
    page, data = "extensions", "extensions"

    def __init__(self, out: Path, figures: tuple[str, ...]) -> None:
        super().__init__(out, figures)
        self.results["settings"] = {name: {"curves": {}, "alpha_c": {}} for name in SETTINGS}
        self.results["variations"] = {}

    def planned_tasks(self) -> Iterator[RunTask]:
        """Return the tasks: base case, branches and transitions of each extension, changes of token correlations."""
        yield from self.branch_tasks()
        yield from self.threshold_tasks(alpha_c="base case")
        base = [f"alpha_c_{omega:g}" for omega in OMEGAS]
        for name, setting in SETTINGS.items():
            stem, into, (quick, slow) = f"{FOLDER}_{name}", ("settings", name), setting.budget
            for branch in setting.branches:
                title = f"{setting.title}: following the {branch} branch at omega = {SHOWN_OMEGA:g}"
                yield RunTask(title, quick, f"{stem}_curve_{branch}", self.follow_branch_of_extension, (name, branch),
                           (*into, "curves", branch), files=file_names_of_branch_table(FOLDER, f"{name}_{branch}"),
                           settings=_identity_of_problem(setting.problem_at_omega(SHOWN_OMEGA)))  # fmt: skip
            after = [f"{stem}_curve_{branch}" for branch in setting.branches]
            for number, omega in enumerate(setting.omegas):
                title = f"{setting.title}: locating the transition at omega = {omega:g}"
                earlier = [f"{stem}_{w:g}" for w in setting.omegas[:number]]
                yield RunTask(title, slow, f"{stem}_{omega:g}", self.locate_threshold_of_extension, (name, omega),
                           (*into, "alpha_c", f"{omega:g}"), [*after, *earlier, *base],
                           settings=_identity_of_problem(setting.problem_at_omega(omega)))  # fmt: skip
            if setting.transition == CONTINUOUS:
                title = f"{setting.title}: where its two saddles have equal training loss"
                yield RunTask(title, slow, f"{stem}_saddles", self.locate_loss_crossing_of_saddles, (name,),
                           (*into, "saddles"), after,
                           settings=_identity_of_problem(setting.problem_at_omega(SHOWN_OMEGA)))  # fmt: skip
        for number, change in enumerate(VARIATIONS):
            title, step = f"correlated tokens: {change}", f"{FOLDER}_variation_{number}"
            yield RunTask(title, 60, step, self.locate_transition_of_variation, (change,), ("variations", change),
                       after=[f"alpha_c_{SHOWN_OMEGA:g}"],
                       settings=_identity_of_problem(_problem_of_variation(change)))  # fmt: skip
        yield from self.stability_tasks()

    def are_results_complete(self) -> bool:
        """Return whether every transition was located with the accuracy asked for, or shown to be absent."""
        found = [*self._base_case_thresholds.values(), *self.results["variations"].values()]
        for setting in self.results["settings"].values():
            found += [*setting["alpha_c"].values(), *([setting["saddles"]] if "saddles" in setting else [])]
        return all(is_threshold_located_or_absent(r) for r in found)

    def follow_branch_of_extension(self, name: str, branch: str) -> dict[str, Any]:
        """Follow a branch of an extension (`SETTINGS`) along alpha at omega = 0.3, and write its tables.

        Args:
            name: name of the extension, a key of `SETTINGS`.
            branch: name of the branch.
        """
        setting = SETTINGS[name]
        followed = curve(setting.problem_at_omega(SHOWN_OMEGA), start=branch, over="alpha", values=setting.grid,
                         refine_end=0, accuracy=setting.overlap_accuracy,
                         reached=setting.reached.get(branch))  # fmt: skip
        return self.write_branch_tables(followed, file_names_of_branch_table(FOLDER, f"{name}_{branch}"))

    def load_tables_of_extension(self, name: str) -> dict[str, Any]:
        """Return the stored tables of an extension by name of the branch, for the branches that were found."""
        found = self.results["settings"][name]["curves"]
        return {
            b: self.load_branch_table(f"{FOLDER}/{name}_{b}") for b in SETTINGS[name].branches if found[b]["points"]
        }

    def locate_threshold_of_extension(self, name: str, omega: float) -> dict[str, Any]:
        """Locate the transition in alpha of an extension (`SETTINGS`) at an omega; return it as a dict for JSON.

        Args:
            name: name of the extension, a key of `SETTINGS`.
            omega: weight of the positional part of the target.
        """
        setting, at = SETTINGS[name], SETTINGS[name].problem_at_omega(omega)
        earlier = {float(w): r for w, r in self.results["settings"][name]["alpha_c"].items()}
        guess, seeds = self._guess_threshold_of_extension(name, omega, earlier)
        if setting.transition == CONTINUOUS:
            return locate_instability_of_branch(at, guess, seeds.get("positional"), setting)
        return _locate_crossing_near_guess(setting, at, guess, 0.08 if earlier else 0.04, seeds, setting.reached)

    @property
    def _base_case_thresholds(self) -> dict[str, dict[str, Any]]:
        return self.results["thresholds"]["alpha_c"]

    def _guess_threshold_of_extension(
        self, name: str, omega: float, earlier: Mapping[float, Mapping[str, Any]]
    ) -> tuple[float, dict[str, Overlaps]]:
        """Return a guess of the transition in alpha of an extension, and overlaps by branch from which solutions start.

        The guess is from transitions at neighbouring omega, or else from the tables of the branches.
        """
        setting = SETTINGS[name]
        located_at = {w: r for w, r in earlier.items() if r["value"] is not None}
        if not located_at:
            return self._guess_threshold_from_branch_tables(name, omega)
        near = sorted(located_at, key=lambda w: abs(w - omega))[:2]
        seeds = located_at[near[0]]["overlaps"]
        base = {w: self._base_case_thresholds.get(f"{w:g}", {}).get("value") for w in (omega, *near)}
        guess = float(located_at[near[0]]["value"])
        if all(base.values()):
            # The ratio to the base case varies slowly with omega.
            ratios = [located_at[w]["value"] / base[w] for w in near]
            slope = (ratios[1] - ratios[0]) / (near[1] - near[0]) if len(near) > 1 else 0.0
            guess = base[omega] * (ratios[0] + slope * (omega - near[0]))
        return guess, {b: unpack_overlaps(setting.problem_at_omega(omega), u) for b, u in seeds.items()}

    def _guess_threshold_from_branch_tables(
        self, name: str, omega: float, crossing: bool = False
    ) -> tuple[float, dict[str, Overlaps]]:
        """Guess the alpha of the transition from the tables of the branches; also return overlaps there, by branch."""
        setting, datasets = SETTINGS[name], self.load_tables_of_extension(name)
        guess = guess_threshold_from_curves("alpha_c", datasets) if set(BRANCHES) <= set(datasets) else setting.grid[-1]
        if setting.transition == CONTINUOUS and not crossing:
            guess = setting.grid[0]
        at = setting.problem_at_omega(omega)
        return guess, {b: overlaps_at_nearest_alpha(at, d, guess) for b, d in datasets.items() if b in BRANCHES}

    def locate_loss_crossing_of_saddles(self, name: str) -> dict[str, Any]:
        """Locate the alpha at which the semantic and positional saddle points have equal loss in an extension."""
        guess, seeds = self._guess_threshold_from_branch_tables(name, SHOWN_OMEGA, crossing=True)
        return _locate_crossing_near_guess(
            SETTINGS[name], SETTINGS[name].problem_at_omega(SHOWN_OMEGA), guess, 0.04, seeds
        )

    def locate_transition_of_variation(self, change: str) -> dict[str, Any]:
        """Locate the alpha of the transition with correlated tokens, with one change of `VARIATIONS`; return a dict."""
        at, base = _problem_of_variation(change), self._base_case_thresholds[f"{SHOWN_OMEGA:g}"]
        guess = 1.0 if base["value"] is None else float(base["value"])
        if np.any(at.law.teacher_means):
            # A teacher that overlaps the means gives the semantic branch an overlap with them.
            return _locate_crossing_near_guess(SETTINGS["mixture"], at, guess, 0.08, {}, {"semantic": "mixed"})
        seeds = {
            b: _repeat_overlaps_for_clusters(unpack_overlaps(self.base, u), at.clusters)
            for b, u in base["overlaps"].items()
        }
        return _locate_crossing_near_guess(SETTINGS["mixture"], at, guess, 0.08, seeds)


def _locate_crossing_near_guess(
    setting: ExtensionSetting, at: Problem, guess: float, step: float, seeds: Mapping[str, Overlaps],
    reached: Mapping[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Locate the alpha at which two branches have equal training loss, near a guess; return it as a dict for JSON."""
    accuracy = setting.overlap_accuracy
    return locate_threshold_near(
        "alpha_c", at, guess, step, seeds, setting.accuracy, overlap_accuracy=accuracy, reached=reached or {}
    )


def _problem_of_variation(change: str) -> Problem:
    return problem(SETTINGS["mixture"].model, omega=SHOWN_OMEGA, **VARIATIONS[change])


def _identity_of_problem(at: Problem) -> dict[str, Any]:
    """Return data that identify a learning problem, so that stored results are used only for the same problem.

    These are the model, the digest of its solver, and the parameters.
    """
    values = {name: np.asarray(value).tolist() for name, value in at.parameters.items()}
    return {
        "model": at.solver.name,
        "structure": at.solver.key,
        "solver": at.solver.solver_files_digest,
        "parameters": values,
    }


def _repeat_overlaps_for_clusters(overlaps: Overlaps, clusters: int) -> Overlaps:
    """Return overlaps of a model with clusters: those of a model without, repeated for every cluster of a token."""
    blocks = (overlaps.q, overlaps.V, overlaps.m, overlaps.theta)
    return Overlaps(*(np.repeat(block, clusters, axis=0) for block in blocks))


def locate_instability_of_branch(
    at: Problem, guess: float, start: Overlaps | None, setting: ExtensionSetting
) -> dict[str, Any]:
    """Locate the alpha at which overlap theta with the teacher starts to grow on the positional branch, as a dict.

    Args:
        at: learning problem; alpha is varied.
        guess: value of alpha near which the instability is expected.
        start: overlaps from which the branch starts.
        setting: extension of the base case, which gives the accuracy.
    """
    branch = Branch(at, "alpha", "positional", setting.overlap_accuracy)
    try:
        return threshold_as_dict(
            continuous_transition(branch, near=guess, width=0.1, accuracy=setting.accuracy, start=start)
        )
    except NotConvergedError as error:
        return {**absent_threshold_as_dict("alpha_l", {branch.name: branch}, str(error)), "status": "not_converged"}
