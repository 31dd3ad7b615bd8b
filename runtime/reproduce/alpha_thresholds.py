"""Thresholds in alpha, located near a guess, as plain numbers and words; or the evidence that none exists.

A threshold starts from the stored overlaps of a neighbouring one, so that its digits do not depend on when the
neighbour was computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import xarray

from ..base.errors import NotConvergedError
from ..branches.branch import Branch
from ..extensions.breaking.crossing import crossing
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..report import tables
from ..solving.solution import Solution
from ..thresholds.along_branch import condition_threshold
from ..thresholds.crossing import training_loss_difference
from ..thresholds.threshold import Threshold
from .run import BRANCHES

GAIN_CONDITION = "test_error = baseline_error"  # of the semantic branch: alpha_l
# Accuracy of the overlaps on which a threshold is located. Phi is stationary: 1e-3 costs 1e-6 of the loss. The test
# error is not, and is solved again more accurately if its error bar requires it.
OVERLAP_ACCURACY = 1e-3


def locate_threshold_near(
    kind: str,
    at: Problem,
    guess: float,
    step: float,
    seeds: Mapping[str, Overlaps],
    accuracy: float,
    *,
    overlap_accuracy: float = OVERLAP_ACCURACY,
    reached: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Locate a threshold in alpha near a guess; return it, or the evidence that none exists, as a dict for JSON.

    Args:
        kind: alpha_c (equal training loss) or alpha_l (test error of the semantic branch equal to the baseline).
        at: learning problem; alpha is varied, the other parameters are kept.
        guess: value of alpha near which the threshold is expected.
        step: first step in alpha of the search for an interval that contains the threshold.
        seeds: by name of the branch, overlaps near the guess from which its solutions start.
        accuracy: largest allowed error bar of the threshold in alpha.
        overlap_accuracy: relative accuracy of the overlaps on which the threshold is located.
        reached: by name of a start, the branch that its solutions reach if that differs from the start.
    """
    followers = start_branches_near_alpha(kind, at, guess + step / 2, seeds, overlap_accuracy, reached)
    bracket = bracket_threshold(kind, followers, guess + step / 2, step)
    if isinstance(bracket, str):
        return absent_threshold_as_dict(kind, followers, bracket)
    try:
        return threshold_as_dict(locate_threshold_in_bracket(kind, at, followers, bracket, accuracy))
    except NotConvergedError as error:
        return {**absent_threshold_as_dict(kind, followers, str(error)), "status": "not_converged"}


def start_branches_near_alpha(
    kind: str,
    at: Problem,
    value: float,
    seeds: Mapping[str, Overlaps],
    accuracy: float = OVERLAP_ACCURACY,
    reached: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Branch]:
    """Return, by name, the branches whose losses or errors a threshold compares, started near a value of alpha.

    Args:
        kind: "alpha_c" (equal training losses) or "alpha_l" (test error equal to the linear baseline).
        at: learning problem; alpha is varied, the other parameters are kept.
        value: value of alpha at which the branches are solved first.
        seeds: by name of the branch, overlaps from which its first solution starts.
        accuracy: relative accuracy of the overlaps.
        reached: by name of a start, the branch that its solutions reach if that differs from the start.
    """
    names = BRANCHES if kind == "alpha_c" else BRANCHES[:1]
    followers = {n: Branch(at, "alpha", n, accuracy, reached=reached.get(n)) for n in names}
    for name, follower in followers.items():
        if name in seeds:
            follower.solve_from_overlaps(value, seeds[name])
    return followers


def bracket_threshold(
    kind: str, followers: Mapping[str, Branch], first: float, step: float, lowest: float = 0.1, highest: float = 4.0
) -> tuple[float, float] | str:
    """Return an interval of alpha that contains the threshold, or a sentence that says why none was found.

    The residual of the threshold condition is negative above the threshold. Solutions at small alpha are costly and may
    not exist: the search goes down only from a negative residual, and stops soon after a branch has ended.

    Args:
        kind: "alpha_c" (equal training losses) or "alpha_l" (test error equal to the linear baseline).
        followers: by name of the branch, the `Branch` that solves at any alpha.
        first: value of alpha at which the search starts.
        step: first step of the search in alpha.
        lowest: smallest alpha of the search.
        highest: largest alpha of the search.
    """

    def residual_at_alpha(alpha: float) -> float | None:
        found = [follower.solution_at_parameter(alpha) for follower in followers.values()]
        solutions = [solution for solution in found if solution is not None]
        return residual_of_threshold_condition(kind, solutions)["difference"] if len(solutions) == len(found) else None

    above, value = first, residual_at_alpha(first)
    below: tuple[float, float] | None = None
    while value is None or value > 0:
        if value is not None:
            below = (above, value)
        above, step = above + step, 1.5 * step
        if above > highest:
            return f"no value of alpha up to {highest:g} was found above which the difference is negative"
        value = residual_at_alpha(above)
    missing: float | None = None
    while below is None:
        alpha = above - step if missing is None else (above + missing) / 2
        if alpha < lowest or (missing is not None and above - missing < 0.01):
            end = "" if missing is None else f"; at {missing:.4g} the branches were not found together"
            return f"the difference stays negative down to alpha = {above:.4g}{end}"
        lower = residual_at_alpha(alpha)
        if lower is None:
            missing = alpha
        elif lower > 0:
            below = (alpha, lower)
        else:
            above, value = alpha, lower
            if missing is None:
                step *= 1.5
    # The search goes down in steps of a quarter: the first one should end a little below the root of the chord.
    root = above - value * (above - below[0]) / (value - below[1])
    second = max(below[0], root - 0.15 * (above - below[0]))
    return above - 4 * (above - second), above


def locate_threshold_in_bracket(
    kind: str, at: Problem, followers: Mapping[str, Branch], bracket: tuple[float, float], accuracy: float
) -> Threshold:
    """Locate the threshold inside an interval of alpha.

    Args:
        kind: "alpha_c" (equal training losses) or "alpha_l" (test error equal to the linear baseline).
        at: learning problem; alpha is varied, the other parameters are kept.
        followers: by name of the branch, the `Branch` that solves at any alpha.
        bracket: interval of alpha that contains the threshold.
        accuracy: largest allowed error bar of the threshold in alpha.

    Raises:
        NotConvergedError: the residual of the condition has no sign change where the branches exist.
    """
    if kind == "alpha_c":
        pair = (followers[BRANCHES[0]], followers[BRANCHES[1]])
        return crossing(at, "alpha", between=BRANCHES, bracket=bracket, accuracy=accuracy, branches=pair)
    (branch,) = followers.values()
    return condition_threshold(at, GAIN_CONDITION, on=branch.name, bracket=bracket, accuracy=accuracy, branch=branch)


def threshold_as_dict(threshold: Threshold) -> dict[str, Any]:
    """Return a threshold as a dict for JSON: value, error bar, evidence, verdicts, overlaps (from `Overlaps.pack`)."""
    pairs = list(zip(threshold.branches, threshold.solutions, strict=True))
    return {
        **{name: getattr(threshold, name) for name in ("value", "error", "error_kind", "status")},
        "verdicts": {name: s.stability.verdict if s.stability else "not known" for name, s in pairs},
        "bistable_fractions": {name: s.averages.bistable if s.averages else None for name, s in pairs},
        "evidence": threshold.evidence,
        "overlaps": {name: s.overlaps.pack() for name, s in pairs},
        "sentence": "",
    }


def absent_threshold_as_dict(kind: str, followers: Mapping[str, Branch], sentence: str) -> dict[str, Any]:
    """Return a threshold that was not found as a dict for JSON, with the evidence of its absence.

    Args:
        kind: "alpha_c" (equal training losses) or "alpha_l" (test error equal to the linear baseline).
        followers: by name of the branch, the `Branch` that solves at any alpha.
        sentence: reason why the threshold was not found.
    """
    known = [follower.known for follower in followers.values()]
    common = sorted(set(known[0]).intersection(*known[1:]))
    rows = [{"alpha": alpha, **residual_of_threshold_condition(kind, [k[alpha] for k in known])} for alpha in common]
    lost = {n: max([a for a in f.failed if a not in f.known], default=None) for n, f in followers.items()}
    lowest = {n: min(f.known, default=None) for n, f in followers.items()}
    nearest = {n: f.known[min(f.known)].overlaps.pack() for n, f in followers.items() if f.known}
    return {
        **dict.fromkeys(("value", "error", "error_kind")),
        "status": "absent",
        "verdicts": {},
        "bistable_fractions": {},
        "evidence": {"compared": rows, "lowest_alpha_found": lowest, "highest_alpha_not_found": lost},
        "overlaps": nearest,
        "sentence": sentence,
    }


def is_threshold_located_or_absent(result: Mapping[str, Any]) -> bool:
    """Return whether a threshold in alpha was located with the accuracy asked for, or shown to be absent."""
    return result["status"] in ("converged", "absent")


def residual_of_threshold_condition(kind: str, solutions: Sequence[Solution]) -> dict[str, float]:
    """Return the quantity that vanishes at a threshold, with its error bar.

    For alpha_c: the difference of the two training losses. For alpha_l: test error minus error of the linear baseline.

    Args:
        kind: "alpha_c" (equal training losses) or "alpha_l" (test error equal to the linear baseline).
        solutions: one solution of every compared branch, at the same alpha.
    """
    if kind == "alpha_c":
        difference, error = training_loss_difference(*solutions)
        return {"difference": difference, "error": error}
    (one,) = solutions
    return {"difference": one.test_error - one.baseline_error, "error": one.test_error_error}


def overlaps_at_nearest_alpha(at: Problem, dataset: xarray.Dataset, alpha: float) -> Overlaps:
    """Return the overlaps in the table of a branch at the alpha nearest to a given value.

    Args:
        at: learning problem; alpha is varied, the other parameters are kept.
        dataset: table of the branch along alpha.
        alpha: value of alpha; the nearest one in the table is taken.
    """
    row = dataset.sel(alpha=alpha, method="nearest")
    s, t = at.student_rank, at.teacher_rank
    shapes = {"q": (s, s), "V": (s, s), "m": (s,), "theta": (s, t)}
    return Overlaps(**{name: row[name].values.reshape(at.contexts, *shape) for name, shape in shapes.items()})


def guess_threshold_from_curves(kind: str, datasets: Mapping[str, xarray.Dataset]) -> float:
    """Guess a threshold in alpha from the tables of the branches: by linear interpolation, else their largest alpha.

    Args:
        kind: "alpha_c" (equal training losses) or "alpha_l" (test error equal to the linear baseline).
        datasets: tables of the branches along alpha, by name of the branch.
    """
    semantic = datasets["semantic"]
    if kind == "alpha_c":
        alpha, difference, _ = tables.loss_difference_curve(semantic, datasets["positional"])
    else:
        alpha, difference = semantic["alpha"].values, (semantic["test_error"] - semantic["baseline_error"]).values
    changes = np.nonzero(difference[:-1] * difference[1:] <= 0)[0]
    if not len(changes):
        return float(alpha[-1])
    i = changes[-1]
    return float(alpha[i] - difference[i] * (alpha[i + 1] - alpha[i]) / (difference[i + 1] - difference[i]))


def extrapolate_threshold(points: Mapping[float, float], omega: float) -> float:
    """Extrapolate a threshold in alpha from some values of omega to another; the result is clipped to [0.3, 2.5].

    The logarithm of alpha is a polynomial in omega through the nearest three or two thresholds, or a line of slope 2.5
    through a single one.

    Args:
        points: known thresholds in alpha by omega.
        omega: value of omega to extrapolate to.
    """
    near = sorted(points, key=lambda w: abs(w - omega))[:3]
    if not near:
        return 1.0
    if len(near) == 1:
        logarithm = np.log(points[near[0]]) + 2.5 * (omega - near[0])
    else:
        logarithm = np.polyval(np.polyfit(near, [np.log(points[w]) for w in near], len(near) - 1), omega)
    return float(np.clip(np.exp(logarithm), 0.3, 2.5))
