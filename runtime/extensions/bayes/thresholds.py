"""Thresholds of Bayes-optimal inference in alpha: weak recovery, algorithmic and information-theoretic.

See docs/theory.md section 13. Along a second parameter a threshold is one number for each value of this parameter,
so that it has no folds, and every value is located on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.interpolate import CubicHermiteSpline
from scipy.optimize import brentq, minimize_scalar
from scipy.signal import find_peaks

from ...base import budget, presenting
from ...base.errors import InputError, NotConvergedError, require_in_interval, require_known_name
from ...base.interrupts import keep_partial_results
from ...base.numbers import format_value_with_error
from ...base.options import AlgorithmOptions
from ...base.presenting import DatasetResult, PresentableResult
from ...base.progress import progress_bar, progress_step, report_remaining_work
from ...integration.estimates import replicate_error_bar
from ...problems.problem import Problem
from .averages import ChannelAverages
from .sampling import REPLICATES, UnknownColumnRule
from .state_evolution import (
    CLOSE,
    FixedPoint,
    StateEvolutionMap,
    count_noiseless_numbers_per_sample,
    is_information_unbounded_at_recovery,
    leading_growth_mode_at_zero_overlap,
    mean_log_likelihood_given_fields,
    spectral_radius,
)

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

KINDS = ("weak_recovery", "algorithmic", "information_theoretic")
_ROUNDING = 2e-12  # of a threshold, relative: sums over up to a million products of exponentials
# Logits of the fractions s at which alpha(s) is scanned, and the tolerance: for integrals of one field, and of more.
_FINE_SCAN = (np.linspace(-7.0, 7.0, 57), 1e-5)
_COARSE_SCAN = (np.linspace(-5.0, 5.0, 21), 1e-4)
_FARTHER = np.linspace(7.0, -np.log(CLOSE), 7)[1:]  # logits beyond a fine scan, while folds may coexist with more
BRANCH = "branch"
_LOGITS = np.arange(-3.0, 7.1, 0.5)  # of the overlaps at which the growth factor is evaluated along the branch


@dataclass(frozen=True)
class BayesThresholdOptions(AlgorithmOptions):
    """Options of the search for thresholds of Bayes-optimal inference.

    Attributes:
        max_refinements: largest number of rule refinements by which the error bar is brought below the accuracy.
        max_newton_steps: largest number of Newton steps to a crossing of free entropies.
        branch_start_points: initial points of every axis on a branch.
        field_points: initial points of a field where columns are known exactly.
        lattice_starts: initial points across the lattice of Newton starts where columns are known exactly.
        growth_tolerance: logarithm of the growth factor, in units of the accuracy, from which the last secant step
            is extrapolated.
        min_secant_step: smallest difference of two logits from which a secant is computed.
        refinement_factor: ratio of the points of an axis after and before a refinement.
        cheap_refinement_factor: the same ratio at q = 0, where averages are cheap.
        max_rounds: largest number of refinement rounds over all axes.
        max_log2_draws: binary logarithm of the largest number of draws in a replicate.
    """

    max_refinements: int = 6
    max_newton_steps: int = 30
    branch_start_points: int = 24
    field_points: int = 6
    lattice_starts: int = 10
    growth_tolerance: float = 3.0
    min_secant_step: float = 1e-6
    refinement_factor: float = 1.3
    cheap_refinement_factor: float = 1.5
    max_rounds: int = 12
    max_log2_draws: int = 16


@dataclass(frozen=True)
class BayesThreshold(PresentableResult):
    """A sample complexity alpha at which Bayes-optimal inference changes.

    Attributes:
        kind: "weak_recovery", "algorithmic" or "information_theoretic".
        value: alpha at the threshold.
        error: error bar of alpha, of integration and root-finding.
        evidence: numbers that support the threshold, by name.

    Example:
        >>> found = sf.bayes_threshold(sf.problem("phase_retrieval"), "weak_recovery")
        >>> found.kind, found.error < 1e-9
        ('weak_recovery', True)
    """

    problem: Problem
    kind: str
    value: float
    error: float
    evidence: dict[str, Any]


@dataclass(frozen=True)
class BayesLine(PresentableResult, DatasetResult):
    """A threshold of Bayes-optimal inference as a function of a second parameter.

    Attributes:
        kind: kind of the threshold, see `BayesThreshold`.
        over: name of the second parameter.
        over_values: values of the second parameter.
        values: alpha at each value of it; NaN where there is no threshold or the accuracy was not reached.
        errors: error bars of alpha at each value.
        evidence: numbers that support each value, or the key `reason` with the reason why there is none.
        of: column of the teacher whose threshold it is, from 1, or None for all.
        given: known overlaps of other columns: column -> fraction of the teacher's overlap, or "branch".
        ending: reason why the line ends before the last value; empty if it does not.
        interrupted: whether the user interrupted it; finished values are kept.

    Example:
        >>> line = sf.bayes_line(sf.problem("tempered_attention"), "weak_recovery", over=("beta", 0.5, 1, 2))
        >>> line.over_values, line.success
        (array([0.5, 1. ]), True)
    """

    problem: Problem
    kind: str
    over: str
    over_values: np.ndarray
    values: np.ndarray
    errors: np.ndarray
    evidence: tuple[dict[str, Any], ...]
    of: int | None
    given: Mapping[int, float | str]
    ending: str = ""
    interrupted: bool = False

    @property
    def success(self) -> bool:
        """Whether a threshold was found at every value of the parameter."""
        return not self.ending and bool(np.isfinite(self.values).all())

    @property
    def title(self) -> str:
        """The title of figures and tables: the kind of threshold, the teacher column it is for, and known columns."""
        words = f"{self.kind.replace('_', ' ')}"
        if self.of is not None:
            words += f" of column {self.of}"
        known = [
            f"column {column} on its branch" if value == "branch" else f"{float(value):g} of column {column} known"
            for column, value in sorted(self.given.items())
        ]
        return ", ".join([words, *known])

    def to_xarray(self) -> xarray.Dataset:
        """Return a dataset with the threshold, its error bar and the second parameter along the dimension `point`."""
        return presenting.to_dataset(self)

    def plot(self, path: str | Path | None = None, *, overlay: tuple[BayesLine, ...] = ()) -> Figure:
        """Return a figure of the threshold as a function of the second parameter.

        Args:
            path: file to write, or None for no file.
            overlay: other lines to draw in the same figure.
        """
        return presenting.plot(self, path, overlay=[line.to_xarray() for line in overlay])


@progress_step("a threshold of Bayes-optimal inference")
def bayes_threshold(
    problem: Problem,
    kind: str,
    *,
    accuracy: float = 1e-9,
    of: int | None = None,
    given: Mapping[int, float | str] | None = None,
) -> BayesThreshold:
    """Return a threshold in alpha of Bayes-optimal inference; the problem's own alpha is not used.

    Args:
        problem: the problem.
        kind: "weak_recovery", "algorithmic" or "information_theoretic".
        accuracy: required error bar, relative to the threshold.
        of: column of the teacher, from 1, whose weak recovery is located; None for all columns together.
        given: known overlaps of other columns: column -> fraction of the teacher's overlap, or "branch".

    Raises:
        InputError: the model has no output channel, an unknown kind, or one that has no meaning for the model.
        NotConvergedError: there is no such threshold, or integrals cannot be taken to the accuracy.

    Example:
        >>> found = sf.bayes_threshold(sf.problem("phase_retrieval"), "weak_recovery")
        >>> round(found.value, 9)
        0.5
    """
    require_known_name("threshold", kind, KINDS)
    require_in_interval("accuracy", accuracy, "[1e-12, 1)")
    if of is not None or given:
        if kind != "weak_recovery" or of is None:
            raise InputError("`of` and `given` apply only to kind = 'weak_recovery', and `given` needs `of`")
        return weak_recovery_threshold(problem, accuracy, of, given or {})
    functions = {
        "weak_recovery": weak_recovery_threshold,
        "algorithmic": algorithmic_threshold,
        "information_theoretic": information_theoretic_threshold,
    }
    return functions[kind](problem, accuracy)


def bayes_line(
    problem: Problem,
    kind: str,
    *,
    over: tuple[str, float, float, int] | tuple[str, Sequence[float] | np.ndarray],
    accuracy: float = 1e-9,
    of: int | None = None,
    given: Mapping[int, float | str] | None = None,
) -> BayesLine:
    """Return a threshold in alpha of Bayes-optimal inference at each of several values of a second parameter.

    Args:
        problem: the problem.
        kind: "weak_recovery", "algorithmic" or "information_theoretic".
        over: name of the second parameter with its first value, last value and number of values; or name and values.
        accuracy: required error bar, relative to the threshold.
        of: column of the teacher, from 1, whose weak recovery is located; None for all columns together.
        given: known overlaps of other columns: column -> fraction of the teacher's overlap, or "branch".

    Raises:
        InputError: the second parameter is unknown or is alpha, or the kind has no meaning for the model.

    Example:
        >>> line = sf.bayes_line(sf.problem("tempered_attention"), "weak_recovery", over=("beta", 0.5, 1, 2))
        >>> line.values.round(6)
        array([0.166667, 0.166667])
    """
    name, *points = over
    if name == "alpha":
        raise InputError("over = alpha: the threshold is itself a value of alpha; choose another parameter")
    problem.value_of_parameter(name)
    where = np.asarray(points[0], float) if len(points) == 1 else np.linspace(*points)
    problems = [problem.with_(**{name: float(value)}) for value in where]
    rows: list[tuple[float, float, dict[str, Any]]] = []
    with keep_partial_results() as early, progress_bar(f"{kind.replace('_', ' ')} along {name}", len(where)) as task:
        for value, at in zip(where, problems, strict=True):
            try:
                found = bayes_threshold(at, kind, accuracy=accuracy, of=of, given=given)
                rows.append((found.value, found.error, found.evidence))
                task.count_finished_step(
                    f"{name} = {value:.4g}: alpha = {format_value_with_error(found.value, found.error)}"
                )
            except NotConvergedError as error:
                rows.append((np.nan, np.nan, {"reason": str(error)}))
                task.count_finished_step(f"{name} = {value:.4g}: {error}")
    values, errors = (np.array([row[i] for row in rows]) for i in (0, 1))
    evidence, reached = tuple(row[2] for row in rows), where[: len(rows)]
    return BayesLine(
        problem, kind, name, reached, values, errors, evidence, of, dict(given or {}), early.reason, early.interrupted
    )


def weak_recovery_threshold(
    problem: Problem, accuracy: float = 1e-9, of: int | None = None, given: Mapping[int, float | str] | None = None
) -> BayesThreshold:
    """Return the weak-recovery threshold: the alpha at which overlap zero with the teacher becomes unstable.

    Args:
        problem: the problem.
        accuracy: required error bar, relative to the threshold.
        of: column of the teacher, from 1, whose overlap is tested; None for all.
        given: known overlaps of other columns: column -> fraction of the teacher's overlap, or "branch".

    Raises:
        InputError: q = 0 is not a solution because outputs or means carry information at any alpha.
        NotConvergedError: q = 0 is stable at every alpha.
    """
    evidence: dict[str, Any] = {}
    if of is not None:
        found = column_recovery_threshold(problem, of, given or {}, accuracy)
        known = {column: float(found.q[0, column - 1, column - 1]) for column in sorted(given or {})}
        evidence = {"column": of, **{f"overlap_of_column_{column}": overlap for column, overlap in known.items()}}
    elif (state := StateEvolutionMap(problem)).has_zero_overlap_solution:
        found = instability_threshold_of_zero_overlap(state, accuracy)
    else:
        raise InputError(
            f"{problem.solver.name} has no weak-recovery threshold: its outputs or the cluster means carry information "
            "on the teacher at any alpha"
        )
    evidence |= {"growth_of_q_per_alpha": found.growth, "points": found.points}
    return BayesThreshold(problem, "weak_recovery", found.alpha, max(found.error, _ROUNDING * found.alpha), evidence)


def algorithmic_threshold(problem: Problem, accuracy: float = 1e-9) -> BayesThreshold:
    """Return the largest alpha at which state evolution without initial information stops below perfect recovery.

    Every fixed point is a point of the curve alpha(s), s the recovered fraction of the full overlap. State evolution
    from s = 0 stops at the first s where alpha(s) reaches alpha. The threshold is therefore the largest maximum of the
    curve inside (0, 1), or weak recovery where the curve falls from s = 0 on.

    Args:
        problem: the problem.
        accuracy: required error bar, relative to the threshold.

    Raises:
        NotConvergedError: the curve has no fold, so that the overlap grows continuously.
    """
    state = StateEvolutionMap(problem)
    points = _scan_alpha_of_overlap(state)
    if state.has_zero_overlap_solution and _has_jump_at_weak_recovery(state, points):
        threshold = weak_recovery_threshold(problem, accuracy)
        return replace(
            threshold, kind="algorithmic", evidence={**threshold.evidence, "jump": "from q = 0, at weak recovery"}
        )
    found, change = _locate_last_fold(state, points, accuracy)
    return BayesThreshold(
        problem,
        "algorithmic",
        found.alpha,
        max(change, _ROUNDING) * found.alpha,
        {"share_of_overlap_at_the_fold": found.fraction, "points": state.channel.counts},
    )


def _has_jump_at_weak_recovery(state: StateEvolutionMap, points: list[FixedPoint]) -> bool:
    """Return whether the overlap jumps at weak recovery: alpha decreases along fixed points near zero overlap."""
    alphas = np.array([point.alpha for point in points])
    tops, _ = find_peaks(alphas)
    least = alphas.min() * (1 + 10 * _overlap_logits_and_tolerance(state)[1])
    return bool(alphas[0] > max(least, alphas[1], *alphas[tops]))


def _overlap_logits_and_tolerance(state: StateEvolutionMap) -> tuple[np.ndarray, float]:
    return _FINE_SCAN if state.channel.module.FIELDS == 1 else _COARSE_SCAN


def _scan_alpha_of_overlap(state: StateEvolutionMap, farther: bool = False) -> list[FixedPoint]:
    """Return approximate fixed points of state evolution, each with its alpha, at increasing recovered fractions.

    The first has slightly more than the overlap without samples; with `farther` they extend almost to perfect recovery.
    """
    points: list[FixedPoint] = []
    logits, rough = _overlap_logits_and_tolerance(state)
    least = state.recovered_overlap_fraction(state.overlaps_without_samples)
    before = state.channel.counts, state.prior.count
    for logit in [*logits, *(_FARTHER if farther and logits is _FINE_SCAN[0] else ())]:
        # Beyond the highest fold nothing coexists.
        if logit > logits[-1] and (not points or points[-1].alpha >= max(p.alpha for p in points)):
            break
        fraction = least + (1 - least) / (1 + np.exp(-logit))
        try:
            guess = points[-1] if points else None
            q = fraction * state.rho if guess is None else guess.q * (fraction / guess.fraction)
            state.refine_quadrature(q, 1.0 if guess is None else guess.alpha, rough)
            points.append(state.solve_at_overlap(float(fraction), guess))
        except (NotConvergedError, np.linalg.LinAlgError):
            if points:
                break
    state.channel.counts, state.prior.count = before  # smaller overlaps need coarser rules only
    return points


def _locate_last_fold(state: StateEvolutionMap, points: list[FixedPoint], accuracy: float) -> tuple[FixedPoint, float]:
    """Return the fixed point at which alpha, as a function of the overlap, has its largest maximum (a fold).

    The second result is the relative error bar of this alpha.

    Raises:
        NotConvergedError: there is no fold, or its error bar exceeds the accuracy.
    """
    problem = state.problem
    alphas = np.array([p.alpha for p in points])
    inner = [i for i in range(1, len(points) - 1) if alphas[i] >= alphas[i - 1] and alphas[i] >= alphas[i + 1]]
    inner = [i for i in inner if alphas[i] > alphas[i:].min() * (1 + 10 * _overlap_logits_and_tolerance(state)[1])]
    if not inner:
        raise NotConvergedError(
            f"{problem.solver.name} has no algorithmic threshold: from zero information the overlap grows continuously "
            f"with alpha, up to {points[-1].fraction:.3g} of the teacher's at alpha = {points[-1].alpha:.4g}, the "
            "largest alpha that was tried"
        )
    place = max(inner, key=lambda i: alphas[i])
    tolerance = accuracy / 8
    for end in (points[place - 1], points[place + 1]):
        state.refine_quadrature(end.q, end.alpha, tolerance)
    fold = points[place]

    def locate_threshold(tolerance: float) -> tuple[float, Callable[[], float]]:
        nonlocal fold
        rough = _locate_alpha_extremum(state, points, place, -1.0)
        state.refine_quadrature(rough.q, rough.alpha, tolerance)
        fold = state.solve_at_overlap(rough.fraction, rough)
        return fold.alpha, lambda: state.solve_at_overlap(fold.fraction, fold).alpha

    _, error = _refine_alpha_to_accuracy(state, locate_threshold, accuracy)
    return fold, error


def _refine_alpha_to_accuracy(
    state: StateEvolutionMap, locate_threshold: Callable[[float], tuple[float, Callable[[], float]]], accuracy: float
) -> tuple[float, float]:
    """Return a threshold alpha and its relative error bar, refining the integration rules to the required accuracy.

    The error bar is twice the change by finer rules.

    Args:
        state: the map of state evolution.
        locate_threshold: function of the rules' tolerance that returns alpha, and a function that recomputes alpha.
        accuracy: required error bar, relative to alpha.

    Raises:
        NotConvergedError: the error bar remains above the accuracy.
    """
    tolerance = accuracy / 8
    for _ in range(BayesThresholdOptions.current().max_refinements):
        alpha, again = locate_threshold(tolerance)
        error = max(2 * abs(finer - alpha) / alpha for finer in state.evaluate_with_finer_rules(again))
        if error <= accuracy:
            return alpha, error
        tolerance *= 0.3 * accuracy / error
    raise NotConvergedError(
        f"the threshold alpha = {alpha:.8g} has an error bar of {error * alpha:.1e} after all refinements; "
        "allow larger error bars (--accuracy)"
    )


def _locate_alpha_extremum(state: StateEvolutionMap, points: list[FixedPoint], place: int, sign: float) -> FixedPoint:
    """Return the fixed point of least (sign 1) or largest alpha (sign -1) between the two neighbours of a point."""
    bounds = points[place - 1].fraction, points[place + 1].fraction
    best = minimize_scalar(
        lambda fraction: sign * state.solve_at_overlap(fraction, points[place]).alpha,
        bounds=bounds, method="bounded", options={"xatol": 1e-9},
    )  # fmt: skip
    return state.solve_at_overlap(float(best.x), points[place])


def information_theoretic_threshold(problem: Problem, accuracy: float = 1e-9) -> BayesThreshold:
    """Return the largest alpha at which the Bayes-optimal solution, that of largest free entropy, changes.

    All fixed points of state evolution that coexist are compared: overlap zero, those on which alpha rises with the
    overlap, and perfect recovery of teacher rows with few values. Where samples reveal continuous numbers without
    noise, the threshold is the alpha at which these are as many as the unknowns.

    Args:
        problem: the problem.
        accuracy: required error bar, relative to the threshold.

    Raises:
        NotConvergedError: there is no such alpha, for instance because no solutions coexist.
    """
    state = StateEvolutionMap(problem)
    unknown, known = state.prior.information_dimension, count_noiseless_numbers_per_sample(state)
    if known > 0:
        counted = f"{unknown:g} unknown continuous numbers a row, {known:g} seen in a sample"
        error = 0.0 if float(known).is_integer() else _ROUNDING * unknown / known
        return BayesThreshold(problem, "information_theoretic", unknown / known, error, {"counted": counted})
    transitions = _find_first_order_transitions(state, _coexisting_solution_branches(state))
    if not transitions:
        never_perfect = (
            ". Teacher rows are continuous and all observed numbers are noisy, so that perfect recovery is never "
            "reached at finite alpha"
        )
        raise NotConvergedError(
            f"{problem.solver.name} has no information-theoretic threshold: state evolution has no fold in the range "
            "of alpha that was searched, so that the solution of largest free entropy never "
            f"jumps{never_perfect if unknown > 0 else ''}"
        )
    alpha, less, more = transitions[-1]

    def locate_threshold(tolerance: float) -> tuple[float, Callable[[], float]]:
        nonlocal alpha
        for solutions in (less, more):
            if solutions.points:
                state.refine_quadrature(solutions.nearest_point_in_alpha(alpha).q, alpha, tolerance)
        alpha = _locate_free_entropy_crossing(less, more, alpha)
        return alpha, lambda: _locate_free_entropy_crossing(less, more, alpha)

    alpha, error = _refine_alpha_to_accuracy(state, locate_threshold, accuracy)
    (q, free_entropy, _), (more_q, *_) = less.overlaps_and_free_entropy(alpha), more.overlaps_and_free_entropy(alpha)
    evidence = {
        "shares_of_overlap": [state.recovered_overlap_fraction(q), state.recovered_overlap_fraction(more_q)],
        "free_entropy": float(free_entropy),
        "coexist_from": max(less.low, more.low),
        "coexist_to": min(less.high, more.high),
    }
    if len(transitions) > 1:
        evidence["transitions_at_smaller_alpha"] = [round(place, 5) for place, *_ in transitions[:-1]]
    return BayesThreshold(
        problem, "information_theoretic", float(alpha), float(max(error, _ROUNDING) * alpha), evidence
    )


@dataclass(frozen=True)
class _SolutionBranch:
    """A branch of fixed points of state evolution, ordered by alpha; several branches may exist at the same alpha.

    Attributes:
        low: smallest alpha of the branch.
        high: largest alpha of the branch.
        points: fixed points in ascending alpha and overlap, beyond which overlaps are constant; empty for perfect
            recovery.
    """

    state: StateEvolutionMap
    low: float
    high: float
    points: tuple[FixedPoint, ...] = ()

    def overlaps_and_free_entropy(self, alpha: float) -> tuple[np.ndarray, float, float]:
        """Return the overlaps q, the free entropy and its derivative in alpha at a fixed point of the branch."""
        state = self.state
        if not self.points:
            evidence = mean_log_likelihood_given_fields(state)
            return state.rho, alpha * evidence - state.prior.row_entropy, evidence
        q = self._overlaps_at_alpha(alpha)
        averages = state.channel.channel_averages(q)
        return q, state.free_entropy(q, alpha, averages), averages.log_evidence

    def nearest_point_in_alpha(self, alpha: float) -> FixedPoint:
        """Return the fixed point of the branch whose alpha is nearest to a given alpha."""
        return min(self.points, key=lambda point: abs(point.alpha - alpha))

    def _overlaps_at_alpha(self, alpha: float) -> np.ndarray:
        after = int(np.searchsorted([point.alpha for point in self.points], alpha))
        if not 0 < after < len(self.points):
            return self.points[min(after, len(self.points) - 1)].q
        guess = self.nearest_point_in_alpha(alpha)

        def log_ratio_to_given_alpha(fraction: float) -> float:
            return float(np.log(self.state.solve_at_overlap(fraction, guess).alpha / alpha))

        # One point more on both sides, as these are by a rough rule.
        ends = [self.points[i].fraction for i in (max(after - 2, 0), min(after + 1, len(self.points) - 1))]
        if not log_ratio_to_given_alpha(ends[0]) < 0 < log_ratio_to_given_alpha(ends[1]):
            raise NotConvergedError(
                f"a finer integration rule does not find the solution of {self.state.problem.solver.name} at alpha = "
                f"{alpha:.6g} again; ask for smaller error bars (--accuracy)"
            )
        # The free entropy is stationary in the overlaps.
        return self.state.solve_at_overlap(
            float(brentq(log_ratio_to_given_alpha, *ends, xtol=1e-10, rtol=1e-10)), guess
        ).q

    @cached_property
    def _free_entropy_at_points(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The alpha, the free entropy and its derivative in alpha at each computed fixed point of the branch."""
        if not self.points:
            _, free_entropy, slope = self.overlaps_and_free_entropy(1.0)
            return np.ones(1), np.array([free_entropy]), np.array([slope])
        values = [self.state.free_entropy(p.q, p.alpha, p.averages) for p in self.points]
        return (
            np.array([p.alpha for p in self.points]), np.array(values),
            np.array([p.averages.log_evidence for p in self.points]),
        )  # fmt: skip

    def interpolate_free_entropy(self, alpha: float) -> float:
        """Return the free entropy at an alpha by interpolation between the fixed points of the branch."""
        alphas, values, slopes = self._free_entropy_at_points
        if alphas[0] < alpha < alphas[-1]:
            return float(CubicHermiteSpline(alphas, values, slopes)(alpha))
        end = 0 if alpha <= alphas[0] else -1
        return float(values[end] + (alpha - alphas[end]) * slopes[end])


def _coexisting_solution_branches(state: StateEvolutionMap) -> list[_SolutionBranch]:
    """Return the branches of fixed points that may be the Bayes-optimal one, in ascending order of overlap."""
    discrete = not state.prior.information_dimension
    unbounded = discrete and is_information_unbounded_at_recovery(state)
    points = _scan_alpha_of_overlap(state, not unbounded)
    alphas, rough = np.log([point.alpha for point in points]), _overlap_logits_and_tolerance(state)[1]
    folds = {}
    for sign in (1.0, -1.0):
        for place in find_peaks(-sign * alphas, prominence=10 * rough)[0]:
            for end in (points[place - 1], points[place + 1]):
                state.refine_quadrature(end.q, end.alpha, rough)
            folds[int(place)] = _locate_alpha_extremum(state, points, place, sign)
    found = []
    if state.has_zero_overlap_solution:
        averages = state.channel.channel_averages(state.overlaps_without_samples)
        found.append(
            _SolutionBranch(
                state, 0.0, points[0].alpha, (FixedPoint(0.0, 0.0, state.overlaps_without_samples, averages),)
            )
        )
    for first, last in pairwise([0, *sorted(folds), len(points) - 1]):
        ends = folds.get(first, points[first]), folds.get(last, points[last])
        if ends[0].alpha >= ends[1].alpha:
            continue
        inner = [p for p in points[first : last + 1] if ends[0].fraction < p.fraction < ends[1].fraction]
        rising = [ends[0]]
        for point in [*inner, ends[1]]:
            if rising[-1].alpha < point.alpha <= ends[1].alpha:
                rising.append(point)
        starts = first == 0 and not state.has_zero_overlap_solution
        # The unknown fraction of rows that take few values beyond the last point is negligible.
        goes_on = last == len(points) - 1 and discrete and not unbounded and 1 - points[-1].fraction < 2 * CLOSE
        found.append(
            _SolutionBranch(
                state, 0.0 if starts else ends[0].alpha, np.inf if goes_on else ends[1].alpha, tuple(rising)
            )
        )
    return [*found, _SolutionBranch(state, 0.0, np.inf)] if unbounded else found


def _find_first_order_transitions(
    state: StateEvolutionMap, found: list[_SolutionBranch]
) -> list[tuple[float, _SolutionBranch, _SolutionBranch]]:
    """Return approximate alphas at which the Bayes-optimal branch changes, ascending, each with the two branches.

    There the branch with the largest free entropy changes from the first of them to the second.
    """
    transitions = []
    for less, more in combinations(found, 2):
        low, high = max(less.low, more.low), min(less.high, more.high)
        if not low < high < np.inf:
            continue

        def free_entropy_difference(alpha: float, less: _SolutionBranch = less, more: _SolutionBranch = more) -> float:
            """Return the free entropy of one branch of fixed points minus that of another at an alpha.

            Args:
                alpha: sample complexity.
                less: branch with the smaller overlaps.
                more: branch with the larger overlaps.
            """
            return more.interpolate_free_entropy(alpha) - less.interpolate_free_entropy(alpha)

        if not free_entropy_difference(low) < 0 < free_entropy_difference(high):
            continue
        alpha = float(brentq(free_entropy_difference, low, high))
        others = [one.interpolate_free_entropy(alpha) for one in found if one.low < alpha < one.high]
        if max(others) <= more.interpolate_free_entropy(alpha) + 10 * _overlap_logits_and_tolerance(state)[1] * alpha:
            transitions.append((alpha, less, more))
    return sorted(transitions, key=lambda transition: transition[0])


def _locate_free_entropy_crossing(less: _SolutionBranch, more: _SolutionBranch, alpha: float) -> float:
    """Return the alpha at which the free entropies of two branches are equal, by Newton's method.

    Raises:
        NotConvergedError: the free entropies do not cross where both solutions exist.
    """
    for _ in range(BayesThresholdOptions.current().max_newton_steps):
        (_, one, slope), (_, other, more_slope) = (
            less.overlaps_and_free_entropy(alpha),
            more.overlaps_and_free_entropy(alpha),
        )
        step = (other - one) / (more_slope - slope)
        alpha -= step
        if not max(less.low, more.low) < alpha < min(less.high, more.high):
            break
        if abs(step) < 1e-13 * alpha:
            return alpha
    raise NotConvergedError(
        f"the free entropies of two branches of {less.state.problem.solver.name} do not cross where both exist; ask "
        "for smaller error bars (--accuracy)"
    )


@dataclass(frozen=True)
class WeakRecoveryThreshold:
    """A weak-recovery threshold of one column of the teacher or of all columns.

    Attributes:
        alpha: alpha at the threshold.
        error: error bar of alpha.
        growth: growth factor of a small overlap in a step of state evolution, divided by alpha.
        q: overlaps q of the other columns at the threshold, shape ((token, cluster) pairs, t, t).
        points: numbers of points of the integration rule, by axis.
    """

    alpha: float
    error: float
    growth: float
    q: np.ndarray
    points: list[int]


@dataclass
class _GrowthThresholdSearch:
    """A search for the alpha at which a small overlap neither grows nor decays in a step of state evolution.

    Attributes:
        locate_threshold: function that returns alpha, the growth factor divided by alpha, and the overlaps q.
        counts: numbers of points of the integration rule, by axis; refined in place.
        near: overlaps q at which rules are chosen; None where nothing is sampled.
        first: index of the first axis that is refined: 1 at zero overlap, where posterior means are zero.
        is_cheap: whether averages are cheap to compute.
    """

    state: StateEvolutionMap
    locate_threshold: Callable[[], tuple[float, float, np.ndarray]]
    counts: list[int]
    near: np.ndarray | None
    first: int = 0
    is_cheap: bool = False


def column_recovery_threshold(
    problem: Problem, of: int, given: Mapping[int, float | str], accuracy: float
) -> WeakRecoveryThreshold:
    """Return the weak-recovery threshold of one teacher column: the alpha from which on its overlap grows.

    Args:
        problem: the problem.
        of: column of the teacher, from 1.
        given: column -> known overlap as a fraction of the teacher's, in [0, 1], or "branch": the overlap learned from
            the same samples. If one column is known exactly, all others must be.
        accuracy: required error bar, relative to the threshold.

    Raises:
        InputError: columns are unknown, fractions are out of range, or samples inform on the column at any alpha.
        NotConvergedError: the column is not learned on the branch, or the rule would become too large.
    """
    t, rho = problem.teacher_rank, problem.law.rho_star
    if not {of, *given} <= set(range(1, t + 1)) or of in given:
        raise InputError(
            f"of = {of}, given = {sorted(given)}: the teacher has columns 1 to {t}, and `given` must not contain `of`"
        )
    shares = {column - 1: value for column, value in given.items() if value != BRANCH}
    for column, fraction in shares.items():
        if isinstance(fraction, str) or not 0 <= fraction <= 1:
            raise InputError(f"given: {fraction!r} of column {column + 1} is neither a number in [0, 1] nor {BRANCH!r}")
    if shares and len(shares) != len(given) and any(shares.values()):
        raise InputError(
            f"given: known columns are either all fractions of the teacher's overlap or all {BRANCH!r}, not both"
        )
    others = [column for column in range(t) if column != of - 1]
    if np.abs(rho[:, of - 1][:, others]).max(initial=0.0) > 0:
        raise InputError(
            f"of = {of}: this column of the teacher is correlated with others, so that it has no threshold of its own"
        )
    if 1 in shares.values():
        if [shares.get(column) for column in others] != [1] * len(others):
            raise InputError(
                "given: one column is known exactly (fraction 1), so that all others except `of` must be, too; give "
                "each of them the fraction 1"
            )
        return _refine_growth_threshold(_growth_search_with_exact_columns(problem, of - 1, others), accuracy)
    if len(shares) == len(given):
        q = np.zeros_like(rho)
        for column, fraction in shares.items():
            q[:, column, column] = float(fraction) * rho[:, column, column]
        return _refine_growth_threshold(_growth_search_with_known_overlaps(problem, of - 1, others, q), accuracy)
    branch = _LearnedColumnsBranch(
        problem, of - 1, sorted(column - 1 for column in given if column - 1 not in shares), accuracy
    )
    return _refine_growth_threshold(
        _GrowthThresholdSearch(branch.state, branch.locate_threshold, branch.state.channel.counts, branch.near),
        accuracy,
    )


def instability_threshold_of_zero_overlap(state: StateEvolutionMap, accuracy: float) -> WeakRecoveryThreshold:
    """Return the alpha at which overlap zero becomes unstable under state evolution.

    Args:
        state: the map of state evolution.
        accuracy: required error bar, relative to the threshold.

    Raises:
        NotConvergedError: q = 0 is stable at every alpha.
    """

    def locate_threshold() -> tuple[float, float, np.ndarray]:
        budget.check_time_limit()
        factor, direction = leading_growth_mode_at_zero_overlap(state)
        if factor < 1e-12:
            raise NotConvergedError(
                f"{state.problem.solver.name} has no weak-recovery threshold: q = 0 is stable at every alpha"
            )
        return 1 / factor, factor, direction

    nothing = np.zeros_like(state.rho)
    return _refine_growth_threshold(
        _GrowthThresholdSearch(state, locate_threshold, state.channel.counts, nothing, 1, is_cheap=True), accuracy
    )


def _column_overlap_growth(state: StateEvolutionMap, of: int, averages: ChannelAverages, alpha: float) -> float:
    """Return the largest factor by which a small overlap of one teacher column grows in a step of state evolution."""
    matrix = state.jacobian(averages, alpha, outside=True)
    own = [i for i, (a, b) in enumerate(zip(*state.outside, strict=True)) if a == b == of]
    size = len(state.outside[0])
    places = [context * size + i for context in range(len(state.first)) for i in own]
    return spectral_radius(matrix[np.ix_(places, places)])


def _threshold_from_growth_factor(state: StateEvolutionMap, of: int, averages: ChannelAverages) -> tuple[float, float]:
    """Return the alpha of weak recovery of one column, and its overlap's growth factor per step at alpha = 1."""
    # At zero overlap the posterior covariance of a column is its prior one, whatever the overlaps of independent ones.
    factor = _column_overlap_growth(state, of, replace(averages, outer=np.zeros_like(averages.outer)), 1.0)
    if factor < 1e-12:
        raise NotConvergedError(
            f"column {of + 1} of the teacher has no weak-recovery threshold: nothing is learned of it at any alpha"
        )
    return 1 / factor, factor


def _check_zero_overlap_is_solution(state: StateEvolutionMap, of: int, averages: ChannelAverages) -> None:
    """Check that zero overlap of one teacher column is a fixed point of state evolution.

    Raises:
        InputError: samples carry information on the column at any alpha.
    """
    information = np.abs(averages.outer[:, of, of]).max()
    if information > 1e-8 * np.abs(np.linalg.inv(state.rho)).max():
        raise InputError(
            f"column {of + 1} of {state.problem.solver.name} has no weak-recovery threshold: samples carry information "
            "on it at any alpha"
        )


def _growth_search_with_known_overlaps(
    problem: Problem, of: int, others: list[int], q: np.ndarray
) -> _GrowthThresholdSearch:
    """Return the search for the alpha of weak recovery of one column, at given overlaps q of the other columns."""
    state = StateEvolutionMap(problem, others or None)
    if not others:
        raise InputError(f"the teacher of {problem.solver.name} has a single column; omit `of` and `given`")
    _check_zero_overlap_is_solution(state, of, state.channel.channel_averages(np.zeros_like(q)))

    def locate_threshold() -> tuple[float, float, np.ndarray]:
        budget.check_time_limit()
        return *_threshold_from_growth_factor(state, of, state.channel.channel_averages(q, curved=True)), q

    return _GrowthThresholdSearch(state, locate_threshold, state.channel.counts, q)


def _growth_search_with_exact_columns(problem: Problem, of: int, others: list[int]) -> _GrowthThresholdSearch:
    """Return the search for the alpha of weak recovery of one column, all other columns being known exactly."""
    state = StateEvolutionMap(problem, others)
    even = len(state.channel.sign_symmetric_teacher_columns) == problem.teacher_rank
    rule = UnknownColumnRule(problem, of, even)
    options = BayesThresholdOptions.current()
    counts = [options.field_points, options.lattice_starts]

    def locate_threshold() -> tuple[float, float, np.ndarray]:
        rule.points, rule.starts = counts[0] + counts[0] % 2, counts[1]
        averages = rule.averages_of_unknown_column()
        _check_zero_overlap_is_solution(state, of, averages)
        return *_threshold_from_growth_factor(state, of, averages), state.perfect_recovery_overlaps

    return _GrowthThresholdSearch(state, locate_threshold, counts, None)


class _LearnedColumnsBranch:
    """A branch of fixed points with other columns learned, along which one more column is tested for weak recovery."""

    def __init__(self, problem: Problem, of: int, known: list[int], accuracy: float) -> None:
        options = BayesThresholdOptions.current()
        self.state, self.of = StateEvolutionMap(problem, known), of
        self.near_enough = options.growth_tolerance * accuracy
        self.near = self.state.perfect_recovery_overlaps / 2
        self.place: tuple[float, np.ndarray] | None = None
        self.guess: FixedPoint | None = None
        self.state.channel.counts = [options.branch_start_points] * len(self.state.channel.counts)
        self.state.channel.truncate_sums_to_accuracy(accuracy)

    def _evaluate_growth_factor(self, logit: float) -> np.ndarray:
        """Return log growth factor of a small overlap of the column, alpha and q at a fixed point, in one vector.

        The fixed point has the given logit of the recovered fraction of the learned columns.
        """
        budget.check_time_limit()
        self.guess = point = self.state.solve_at_overlap(float(1 / (1 + np.exp(-logit))), self.guess, curved=True)
        factor = _column_overlap_growth(self.state, self.of, point.averages, point.alpha)
        return np.array([np.log(factor), point.alpha, *point.q.ravel()])

    def locate_threshold(self) -> tuple[float, float, np.ndarray]:
        """Return alpha, growth factor over alpha, and overlaps q where a small overlap starts to grow (secant method).

        It starts from a sign change along the branch, or from the last threshold if the rule was refined.
        """
        if self.place is None:
            low, high = self._bracket_growth_threshold()
            below, above = self._evaluate_growth_factor(low), self._evaluate_growth_factor(high)
            slopes = (above - below) / (high - low)
        else:
            high, slopes = self.place
            above = self._evaluate_growth_factor(high)
        for _ in range(30):
            step = -above[0] / slopes[0]
            if abs(above[0]) < self.near_enough:
                self.place = high, slopes
                _, alpha, *q = above + slopes * step
                return float(alpha), float(np.exp(above[0]) / above[1]), np.reshape(q, self.near.shape)
            low, below, high = high, above, high + float(np.clip(step, -1, 1))
            above = self._evaluate_growth_factor(high)
            if abs(high - low) > BayesThresholdOptions.current().min_secant_step:
                slopes = (above - below) / (high - low)
        raise NotConvergedError(
            f"the secant method found no weak-recovery threshold of column {self.of + 1} of "
            f"{self.state.problem.solver.name} while the others follow their branch; give their overlaps as fractions"
        )

    def _bracket_growth_threshold(self) -> tuple[float, float]:
        for logit in map(float, _LOGITS):
            report_remaining_work(f"growth of column {self.of + 1} at overlap fraction {1 / (1 + np.exp(-logit)):.3f}")
            if self._evaluate_growth_factor(logit)[0] > 0:
                return logit - (_LOGITS[1] - _LOGITS[0]), logit
        raise NotConvergedError(
            f"column {self.of + 1} of {self.state.problem.solver.name} has no weak-recovery threshold while the other "
            "columns follow their branch: its overlap grows at none of their overlaps that were tried"
        )


def _refine_growth_threshold(place: _GrowthThresholdSearch, accuracy: float) -> WeakRecoveryThreshold:
    """Return a weak-recovery threshold after refining each axis of the integration rule until it has converged."""
    channel, counts, options = place.state.channel, place.counts, BayesThresholdOptions.current()
    if place.near is not None and channel.is_averaged_by_sampling(place.near):
        return _mean_replicate_threshold(place, place.near, accuracy)
    if place.first:  # averages are cheap
        accuracy /= 4
    factor = options.cheap_refinement_factor if place.is_cheap else options.refinement_factor
    lost = 0.0 if place.first else channel.cut.lost_fraction  # of omega
    alpha, growth, q = place.locate_threshold()
    for _ in range(options.max_rounds):
        error = 0.0
        for axis in range(place.first, len(counts)):
            before = list(counts)
            counts[axis] = int(np.ceil(before[axis] * factor))
            finer = place.locate_threshold()
            moved = abs(finer[0] - alpha)
            error += moved
            report_remaining_work(f"alpha = {finer[0]:.8g} at {counts} points, changed by {moved:.1e}")
            rests = moved < accuracy * alpha / (4 * len(before))
            if rests:
                counts[:] = before
            if not rests or place.first:  # at q = 0 the value of the finest rule is used
                alpha, growth, q = finer
        if error < accuracy * alpha:
            return WeakRecoveryThreshold(alpha, error + lost * alpha, growth, q, counts[place.first :])
    raise NotConvergedError(
        f"the threshold alpha = {alpha:.8g} still changes by {error:.1e} with finer rules; allow larger error bars"
    )


def _mean_replicate_threshold(
    place: _GrowthThresholdSearch, near: np.ndarray, accuracy: float
) -> WeakRecoveryThreshold:
    """Return the weak-recovery threshold averaged over independent random replicates of a rule that samples fields.

    Samples are added until its error bar is below the required accuracy.
    """
    planted = place.state.channel.planted
    planted.refine_quadrature(near, max(accuracy, 1e-4))
    while True:
        found = []
        for seed in range(REPLICATES):
            planted.seeds = (seed,)
            found.append(place.locate_threshold())
        planted.seeds = tuple(range(REPLICATES))
        alphas = np.array([alpha for alpha, _, _ in found])
        alpha, error = float(alphas.mean()), float(replicate_error_bar(alphas))
        if error < accuracy * alpha:
            growth = float(np.mean([factor for _, factor, _ in found]))
            return WeakRecoveryThreshold(alpha, error, growth, found[0][2], [2**planted.log2] * REPLICATES)
        if planted.log2 >= BayesThresholdOptions.current().max_log2_draws:
            raise NotConvergedError(
                f"the threshold alpha = {alpha:.6g} has an error bar of {error:.1e} with 2^{planted.log2} draws per "
                "replicate; allow larger error bars (--accuracy)"
            )
        planted.log2 += 1
