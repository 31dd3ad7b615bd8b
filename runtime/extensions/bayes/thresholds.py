"""Thresholds of Bayes-optimal inference in alpha: weak recovery, algorithmic and information-theoretic.

See docs/theory.md section 13. Along a second parameter a threshold is one number for each value, so that a line of them
has no folds: each is located on its own, one after another.
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
from ...base.errors import InputError, NotConvergedError, require_in, require_known
from ...base.interrupts import keep_partial_results
from ...base.numbers import format_with_error
from ...base.options import AlgorithmOptions
from ...base.presenting import DatasetResult, Result
from ...base.progress import progress_bar, progress_step, report_remaining
from ...integration.estimates import two_standard_errors
from ...problems.problem import Problem
from .averages import Averages
from .sampling import REPLICATES, Preimages
from .state_evolution import (
    CLOSE,
    Point,
    State,
    exact_log_evidence,
    growth_from_zero,
    is_information_unbounded,
    observed_dimension,
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
        max_refinements: refinements of the rules for an error bar below the accuracy.
        max_newton_steps: Newton steps to a crossing of free entropies.
        branch_start_points: points of every axis at the beginning of a branch.
        field_points: points of a field at the beginning where columns are known exactly.
        lattice_starts: points across the lattice of Newton starts there.
        growth_tolerance: logarithm of the growth factor, in units of the accuracy, from which the last secant step
            is extrapolated.
        min_secant_step: least distance of two logits whose difference gives a slope.
        refinement_factor: ratio of the points of an axis after and before a refinement.
        cheap_refinement_factor: the same for q = 0, where averages are cheap.
        max_rounds: rounds of refinements of all axes.
        max_log2_draws: binary logarithm of the most draws of a replicate.
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
class BayesThreshold(Result):
    """A sample complexity at which Bayes-optimal inference changes.

    Attributes:
        kind: "weak_recovery", "algorithmic" or "information_theoretic".
        value, error: alpha and its error bar, of integration and root-finding.
        evidence: numbers that support it.

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
class BayesLine(Result, DatasetResult):
    """A threshold of Bayes-optimal inference along a parameter.

    Attributes:
        kind: of the threshold; over, over_values: the parameter and its values, (N,).
        values, errors: alpha and its error bar, (N,); NaN where there is no threshold, or not to the accuracy.
        evidence: numbers that support each value, or `reason`, why there is none.
        of, given: the column of the threshold, from 1 on, or None, and the known overlaps of others, as of
            `bayes_threshold`.
        ending: the reason why it ends before the last value; empty if it does not.
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
        """Whether there is a threshold at every value."""
        return not self.ending and bool(np.isfinite(self.values).all())

    @property
    def title(self) -> str:
        """The kind of threshold, its column and the known ones, in words."""
        words = f"{self.kind.replace('_', ' ')}"
        if self.of is not None:
            words += f" of column {self.of}"
        known = [
            f"column {column} on its branch" if value == "branch" else f"{float(value):g} of column {column} known"
            for column, value in sorted(self.given.items())
        ]
        return ", ".join([words, *known])

    def to_xarray(self) -> xarray.Dataset:
        """Return a dataset of value, error and over along `point`, as of a critical line."""
        return presenting.to_dataset(self)

    def plot(self, path: str | Path | None = None, *, overlay: tuple[BayesLine, ...] = ()) -> Figure:
        """Return a figure of the line.

        Args:
            path: file to write, or None.
            overlay: other lines in the same figure.
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
        of: the column of the teacher, from 1 on, whose weak recovery alone is located.
        given: known overlaps of other columns: column -> fraction of the teacher's, or "branch".

    Raises:
        InputError: the model has no output channel, an unknown kind, or one that has no meaning for the model.
        NotConvergedError: there is no such threshold, or integrals cannot be taken to the accuracy.

    Example:
        >>> found = sf.bayes_threshold(sf.problem("phase_retrieval"), "weak_recovery")
        >>> round(found.value, 9)
        0.5
    """
    require_known("threshold", kind, KINDS)
    require_in("accuracy", accuracy, "[1e-12, 1)")
    if of is not None or given:
        if kind != "weak_recovery" or of is None:
            raise InputError("of and given go with kind = 'weak_recovery', and given with of")
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
    """Return a threshold in alpha of Bayes-optimal inference along another parameter.

    Args:
        problem: the problem.
        kind: as of `bayes_threshold`.
        over: the parameter, its first and last value, and how many; or the parameter and its values.
        accuracy: as of `bayes_threshold`.
        of: as of `bayes_threshold`.
        given: as of `bayes_threshold`.

    Raises:
        InputError: as `bayes_threshold`, or an unknown parameter, or alpha.

    Example:
        >>> line = sf.bayes_line(sf.problem("tempered_attention"), "weak_recovery", over=("beta", 0.5, 1, 2))
        >>> line.values.round(6)
        array([0.166667, 0.166667])
    """
    name, *points = over
    if name == "alpha":
        raise InputError("the threshold is in alpha; follow it in another parameter")
    problem.value_of(name)
    where = np.asarray(points[0], float) if len(points) == 1 else np.linspace(*points)
    problems = [problem.with_(**{name: float(value)}) for value in where]
    rows: list[tuple[float, float, dict[str, Any]]] = []
    with keep_partial_results() as early, progress_bar(f"{kind.replace('_', ' ')} along {name}", len(where)) as task:
        for value, at in zip(where, problems, strict=True):
            try:
                found = bayes_threshold(at, kind, accuracy=accuracy, of=of, given=given)
                rows.append((found.value, found.error, found.evidence))
                task.advance(f"{name} = {value:.4g}: alpha = {format_with_error(found.value, found.error)}")
            except NotConvergedError as error:
                rows.append((np.nan, np.nan, {"reason": str(error)}))
                task.advance(f"{name} = {value:.4g}: {error}")
    values, errors = (np.array([row[i] for row in rows]) for i in (0, 1))
    evidence, reached = tuple(row[2] for row in rows), where[: len(rows)]
    return BayesLine(
        problem, kind, name, reached, values, errors, evidence, of, dict(given or {}), early.reason, early.interrupted
    )


def weak_recovery_threshold(
    problem: Problem, accuracy: float = 1e-9, of: int | None = None, given: Mapping[int, float | str] | None = None
) -> BayesThreshold:
    """Return the alpha at which q = 0 becomes unstable, or the zero overlap of one column.

    Args:
        problem: the problem.
        accuracy: required error bar, relative.
        of: the column, from 1 on, or None for all.
        given: known overlaps of the other columns, as of `bayes_threshold`.

    Raises:
        InputError: q = 0 is no solution, because outputs or means carry information at any alpha.
        NotConvergedError: q = 0 is stable at every alpha.
    """
    evidence: dict[str, Any] = {}
    if of is not None:
        found = column_recovery(problem, of, given or {}, accuracy)
        known = {column: float(found.q[0, column - 1, column - 1]) for column in sorted(given or {})}
        evidence = {"column": of, **{f"overlap_of_column_{column}": overlap for column, overlap in known.items()}}
    elif (state := State(problem)).is_uninformative:
        found = recovery_from_zero(state, accuracy)
    else:
        raise InputError(
            f"{problem.solver.name} has no weak-recovery threshold: its outputs, or the means, carry information "
            "on the teacher at any alpha"
        )
    evidence |= {"growth_of_q_per_alpha": found.growth, "points": found.points}
    return BayesThreshold(problem, "weak_recovery", found.alpha, max(found.error, _ROUNDING * found.alpha), evidence)


def algorithmic_threshold(problem: Problem, accuracy: float = 1e-9) -> BayesThreshold:
    """Return the last alpha at which state evolution from zero information stops below perfect recovery.

    Every solution is a point of the curve alpha(s), s = Tr q / Tr rho*; state evolution from s = 0 stops at the first
    s where alpha(s) reaches alpha, so that the threshold is the largest maximum of the curve inside (0, 1), or weak
    recovery where the curve falls from s = 0 on.

    Args:
        problem: the problem.
        accuracy: required error bar, relative.

    Raises:
        NotConvergedError: the curve only rises: no fold, the overlap grows continuously.
    """
    state = State(problem)
    points = _scan_curve(state)
    if state.is_uninformative and _jumps_at_weak_recovery(state, points):
        onset = weak_recovery_threshold(problem, accuracy)
        return replace(onset, kind="algorithmic", evidence={**onset.evidence, "jump": "from q = 0, at weak recovery"})
    found, change = _locate_fold(state, points, accuracy)
    return BayesThreshold(
        problem,
        "algorithmic",
        found.alpha,
        max(change, _ROUNDING) * found.alpha,
        {"share_of_overlap_at_the_fold": found.fraction, "points": state.channel.counts},
    )


def _jumps_at_weak_recovery(state: State, points: list[Point]) -> bool:
    """Return whether alpha(s) falls from s = 0 on and has no higher fold: the overlap jumps at weak recovery."""
    alphas = np.array([point.alpha for point in points])
    tops, _ = find_peaks(alphas)
    least = alphas.min() * (1 + 10 * _scan_rule(state)[1])
    return bool(alphas[0] > max(least, alphas[1], *alphas[tops]))


def _scan_rule(state: State) -> tuple[np.ndarray, float]:
    return _FINE_SCAN if state.channel.module.FIELDS == 1 else _COARSE_SCAN


def _scan_curve(state: State, farther: bool = False) -> list[Point]:
    """Return rough points of alpha(s) from the overlap of the means on, if `farther` up to almost perfect recovery."""
    points: list[Point] = []
    logits, rough = _scan_rule(state)
    least = state.overlap_fraction(state.prior_overlaps)
    before = state.channel.counts, state.prior.count
    for logit in [*logits, *(_FARTHER if farther and logits is _FINE_SCAN[0] else ())]:
        # Beyond the highest fold nothing coexists.
        if logit > logits[-1] and (not points or points[-1].alpha >= max(p.alpha for p in points)):
            break
        fraction = least + (1 - least) / (1 + np.exp(-logit))
        try:
            guess = points[-1] if points else None
            q = fraction * state.rho if guess is None else guess.q * (fraction / guess.fraction)
            state.refine_rule(q, 1.0 if guess is None else guess.alpha, rough)
            points.append(state.solve_at_fraction(float(fraction), guess))
        except (NotConvergedError, np.linalg.LinAlgError):
            if points:
                break
    state.channel.counts, state.prior.count = before  # smaller overlaps need coarser rules only
    return points


def _locate_fold(state: State, points: list[Point], accuracy: float) -> tuple[Point, float]:
    """Return the largest fold of alpha(s) and the relative error bar of its alpha, twice the change by finer rules.

    Raises:
        NotConvergedError: there is none, or it is not known to the accuracy.
    """
    problem = state.problem
    alphas = np.array([p.alpha for p in points])
    inner = [i for i in range(1, len(points) - 1) if alphas[i] >= alphas[i - 1] and alphas[i] >= alphas[i + 1]]
    inner = [i for i in inner if alphas[i] > alphas[i:].min() * (1 + 10 * _scan_rule(state)[1])]
    if not inner:
        raise NotConvergedError(
            f"state evolution of {problem.solver.name} has no fold in alpha: from zero information the overlap grows "
            f"continuously with the sample complexity, up to {points[-1].fraction:.3g} of the teacher's at alpha = "
            f"{points[-1].alpha:.4g}, the last that was tried"
        )
    place = max(inner, key=lambda i: alphas[i])
    tolerance = accuracy / 8
    for end in (points[place - 1], points[place + 1]):
        state.refine_rule(end.q, end.alpha, tolerance)
    fold = points[place]

    def locate(tolerance: float) -> tuple[float, Callable[[], float]]:
        nonlocal fold
        rough = _locate_extremum(state, points, place, -1.0)
        state.refine_rule(rough.q, rough.alpha, tolerance)
        fold = state.solve_at_fraction(rough.fraction, rough)
        return fold.alpha, lambda: state.solve_at_fraction(fold.fraction, fold).alpha

    _, error = _refine_to_accuracy(state, locate, accuracy)
    return fold, error


def _refine_to_accuracy(
    state: State, locate: Callable[[float], tuple[float, Callable[[], float]]], accuracy: float
) -> tuple[float, float]:
    """Refine the rules until alpha is known to the accuracy; return it and its relative error bar.

    The error bar is twice the change by finer rules.

    Args:
        state: the map of state evolution.
        locate: returns, for a tolerance of the rules, alpha and a function that locates it again by the current rules.
        accuracy: required error bar, relative.

    Raises:
        NotConvergedError: it is not known to the accuracy.
    """
    tolerance = accuracy / 8
    for _ in range(BayesThresholdOptions.current().max_refinements):
        alpha, again = locate(tolerance)
        error = max(2 * abs(finer - alpha) / alpha for finer in state.evaluate_with_finer_rules(again))
        if error <= accuracy:
            return alpha, error
        tolerance *= 0.3 * accuracy / error
    raise NotConvergedError(f"alpha = {alpha:.8g} is known to {error * alpha:.1e}; ask for a larger --accuracy")


def _locate_extremum(state: State, points: list[Point], place: int, sign: float) -> Point:
    """Return the minimum of alpha(s) between the neighbours of a point, or its maximum for the sign -1."""
    bounds = points[place - 1].fraction, points[place + 1].fraction
    best = minimize_scalar(
        lambda fraction: sign * state.solve_at_fraction(fraction, points[place]).alpha,
        bounds=bounds, method="bounded", options={"xatol": 1e-9},
    )  # fmt: skip
    return state.solve_at_fraction(float(best.x), points[place])


def information_theoretic_threshold(problem: Problem, accuracy: float = 1e-9) -> BayesThreshold:
    """Return the last alpha at which the solution of largest free entropy changes.

    All solutions that coexist are compared: no information where that is one, the rising parts of alpha(s), and perfect
    recovery of rows that take few values, -H(row) + alpha E log P(observed | Y). Where continuous numbers are seen
    without noise the free entropy of perfect recovery is infinite, and changes sign where they outnumber the unknowns.

    Args:
        problem: the problem.
        accuracy: required error bar, relative.

    Raises:
        NotConvergedError: there is no such alpha, as where no solutions coexist.
    """
    state = State(problem)
    unknown, known = state.prior.continuous_dimension, observed_dimension(state)
    if known > 0:
        counted = f"{unknown:g} unknown continuous numbers a row, {known:g} seen in a sample"
        error = 0.0 if float(known).is_integer() else _ROUNDING * unknown / known
        return BayesThreshold(problem, "information_theoretic", unknown / known, error, {"counted": counted})
    transitions = _find_transitions(state, _coexisting_branches(state))
    if not transitions:
        message = (
            f"state evolution of {problem.solver.name} has no fold in alpha at which solutions begin to coexist, in "
            "the range searched: the solution of largest free entropy never jumps"
        )
        never = (
            "; rows are continuous and no continuous number is seen without noise, so that perfect recovery is never "
            "reached at finite alpha"
        )
        raise NotConvergedError(message + never if unknown > 0 else message)
    alpha, less, more = transitions[-1]

    def locate(tolerance: float) -> tuple[float, Callable[[], float]]:
        nonlocal alpha
        for solutions in (less, more):
            if solutions.points:
                state.refine_rule(solutions.nearest_point(alpha).q, alpha, tolerance)
        alpha = _locate_crossing(less, more, alpha)
        return alpha, lambda: _locate_crossing(less, more, alpha)

    alpha, error = _refine_to_accuracy(state, locate, accuracy)
    (q, free_entropy, _), (more_q, *_) = less.evaluate(alpha), more.evaluate(alpha)
    evidence = {
        "shares_of_overlap": [state.overlap_fraction(q), state.overlap_fraction(more_q)],
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
    """A branch of solutions at ascending alpha that may coexist with others.

    Attributes:
        low, high: alpha between which they exist.
        points: points of a rising part of alpha(s), in ascending order; overlaps beyond the first and last are those of
            these. Empty at perfect recovery.
    """

    state: State
    low: float
    high: float
    points: tuple[Point, ...] = ()

    def evaluate(self, alpha: float) -> tuple[np.ndarray, float, float]:
        """Return overlaps, free entropy and its slope in alpha, E log Z_out."""
        state = self.state
        if not self.points:
            evidence = exact_log_evidence(state)
            return state.rho, alpha * evidence - state.prior.entropy, evidence
        q = self._overlaps_at(alpha)
        averages = state.channel.averages(q)
        return q, state.free_entropy(q, alpha, averages), averages.log_evidence

    def nearest_point(self, alpha: float) -> Point:
        """Return the point whose alpha is nearest."""
        return min(self.points, key=lambda point: abs(point.alpha - alpha))

    def _overlaps_at(self, alpha: float) -> np.ndarray:
        after = int(np.searchsorted([point.alpha for point in self.points], alpha))
        if not 0 < after < len(self.points):
            return self.points[min(after, len(self.points) - 1)].q
        guess = self.nearest_point(alpha)

        def excess(fraction: float) -> float:
            return float(np.log(self.state.solve_at_fraction(fraction, guess).alpha / alpha))

        # One point more on both sides, as these are by a rough rule.
        ends = [self.points[i].fraction for i in (max(after - 2, 0), min(after + 1, len(self.points) - 1))]
        if not excess(ends[0]) < 0 < excess(ends[1]):
            raise NotConvergedError(
                f"the solution of {self.state.problem.solver.name} at alpha = {alpha:.6g} is not found again by a "
                "finer rule; ask for a smaller --accuracy"
            )
        # The free entropy is stationary in the overlaps.
        return self.state.solve_at_fraction(float(brentq(excess, *ends, xtol=1e-10, rtol=1e-10)), guess).q

    @cached_property
    def _interpolation_knots(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The values of alpha, free entropy and its slope at the points."""
        if not self.points:
            _, free_entropy, slope = self.evaluate(1.0)
            return np.ones(1), np.array([free_entropy]), np.array([slope])
        values = [self.state.free_entropy(p.q, p.alpha, p.averages) for p in self.points]
        return (
            np.array([p.alpha for p in self.points]), np.array(values),
            np.array([p.averages.log_evidence for p in self.points]),
        )  # fmt: skip

    def interpolate_free_entropy(self, alpha: float) -> float:
        """Return the free entropy by interpolation between the points."""
        alphas, values, slopes = self._interpolation_knots
        if alphas[0] < alpha < alphas[-1]:
            return float(CubicHermiteSpline(alphas, values, slopes)(alpha))
        end = 0 if alpha <= alphas[0] else -1
        return float(values[end] + (alpha - alphas[end]) * slopes[end])


def _coexisting_branches(state: State) -> list[_SolutionBranch]:
    """Return the branches of solutions that may have the largest free entropy, smaller overlaps first."""
    discrete = not state.prior.continuous_dimension
    unbounded = discrete and is_information_unbounded(state)
    points = _scan_curve(state, not unbounded)
    alphas, rough = np.log([point.alpha for point in points]), _scan_rule(state)[1]
    folds = {}
    for sign in (1.0, -1.0):
        for place in find_peaks(-sign * alphas, prominence=10 * rough)[0]:
            for end in (points[place - 1], points[place + 1]):
                state.refine_rule(end.q, end.alpha, rough)
            folds[int(place)] = _locate_extremum(state, points, place, sign)
    found = []
    if state.is_uninformative:
        averages = state.channel.averages(state.prior_overlaps)
        found.append(_SolutionBranch(state, 0.0, points[0].alpha, (Point(0.0, 0.0, state.prior_overlaps, averages),)))
    for first, last in pairwise([0, *sorted(folds), len(points) - 1]):
        ends = folds.get(first, points[first]), folds.get(last, points[last])
        if ends[0].alpha >= ends[1].alpha:
            continue
        inner = [p for p in points[first : last + 1] if ends[0].fraction < p.fraction < ends[1].fraction]
        rising = [ends[0]]
        for point in [*inner, ends[1]]:
            if rising[-1].alpha < point.alpha <= ends[1].alpha:
                rising.append(point)
        starts = first == 0 and not state.is_uninformative
        # The unknown fraction of rows that take few values beyond the last point is negligible.
        goes_on = last == len(points) - 1 and discrete and not unbounded and 1 - points[-1].fraction < 2 * CLOSE
        found.append(
            _SolutionBranch(
                state, 0.0 if starts else ends[0].alpha, np.inf if goes_on else ends[1].alpha, tuple(rising)
            )
        )
    return [*found, _SolutionBranch(state, 0.0, np.inf)] if unbounded else found


def _find_transitions(
    state: State, found: list[_SolutionBranch]
) -> list[tuple[float, _SolutionBranch, _SolutionBranch]]:
    """Return rough ascending alpha at which the branch of largest free entropy changes, and both branches."""
    transitions = []
    for less, more in combinations(found, 2):
        low, high = max(less.low, more.low), min(less.high, more.high)
        if not low < high < np.inf:
            continue

        def excess(alpha: float, less: _SolutionBranch = less, more: _SolutionBranch = more) -> float:
            """Return the difference of the free entropies.

            Args:
                alpha: sample complexity.
                less: the branch of smaller overlaps.
                more: that of larger ones.
            """
            return more.interpolate_free_entropy(alpha) - less.interpolate_free_entropy(alpha)

        if not excess(low) < 0 < excess(high):
            continue
        alpha = float(brentq(excess, low, high))
        others = [one.interpolate_free_entropy(alpha) for one in found if one.low < alpha < one.high]
        if max(others) <= more.interpolate_free_entropy(alpha) + 10 * _scan_rule(state)[1] * alpha:
            transitions.append((alpha, less, more))
    return sorted(transitions, key=lambda transition: transition[0])


def _locate_crossing(less: _SolutionBranch, more: _SolutionBranch, alpha: float) -> float:
    """Return the alpha at which two free entropies are equal, by Newton's method.

    Raises:
        NotConvergedError: they do not cross where both solutions exist.
    """
    for _ in range(BayesThresholdOptions.current().max_newton_steps):
        (_, one, slope), (_, other, more_slope) = less.evaluate(alpha), more.evaluate(alpha)
        step = (other - one) / (more_slope - slope)
        alpha -= step
        if not max(less.low, more.low) < alpha < min(less.high, more.high):
            break
        if abs(step) < 1e-13 * alpha:
            return alpha
    raise NotConvergedError(
        f"the free entropies of two solutions of {less.state.problem.solver.name} do not cross where both exist"
    )


@dataclass(frozen=True)
class RecoveryThreshold:
    """A weak-recovery threshold, of one column or of all.

    Attributes:
        alpha, error: the threshold and its error bar; growth: growth factor of the overlap in a step, per alpha.
        q: overlaps of the other columns there, (C, t, t); points: of the rule.
    """

    alpha: float
    error: float
    growth: float
    q: np.ndarray
    points: list[int]


@dataclass
class _GrowthSearch:
    """A search for the threshold at which the growth factor of a small overlap is one.

    Attributes:
        locate: returns alpha, the growth factor per alpha, and the overlaps there.
        counts: points of the rule, refined in place.
        near: overlaps at which rules are chosen; None where nothing is sampled.
        first: axis of the rule that is refined first, 1 where omega is zero; is_cheap: whether averages are cheap.
    """

    state: State
    locate: Callable[[], tuple[float, float, np.ndarray]]
    counts: list[int]
    near: np.ndarray | None
    first: int = 0
    is_cheap: bool = False


def column_recovery(problem: Problem, of: int, given: Mapping[int, float | str], accuracy: float) -> RecoveryThreshold:
    """Return the alpha at which the overlap of one column with the teacher begins to grow.

    Args:
        problem: the problem.
        of: the column, from 1 on.
        given: column -> its overlap as a fraction of the teacher's, fixed, in [0, 1], or "branch": the overlap learned
            from the same samples. If one is known exactly all others must be.
        accuracy: required error bar, relative.

    Raises:
        InputError: unknown columns, fractions out of range, or a column with information at any alpha.
        NotConvergedError: the column is not learned on the branch, or the rule would grow too large.
    """
    t, rho = problem.teacher_rank, problem.law.rho_star
    if not {of, *given} <= set(range(1, t + 1)) or of in given:
        raise InputError(
            f"of = {of}, given = {sorted(given)}: columns of the teacher are 1 to {t}, and `of` is not among the given"
        )
    shares = {column - 1: value for column, value in given.items() if value != BRANCH}
    for column, fraction in shares.items():
        if isinstance(fraction, str) or not 0 <= fraction <= 1:
            raise InputError(f"column {column + 1} = {fraction!r} is out of range; allowed is [0, 1] or {BRANCH!r}")
    if shares and len(shares) != len(given) and any(shares.values()):
        raise InputError(f"columns are given as shares or as {BRANCH!r}; do not mix both")
    others = [column for column in range(t) if column != of - 1]
    if np.abs(rho[:, of - 1][:, others]).max(initial=0.0) > 0:
        raise InputError("columns of the teacher that are correlated are not learned one by one")
    if 1 in shares.values():
        if [shares.get(column) for column in others] != [1] * len(others):
            raise InputError("a column is given as known exactly (share 1): give all others but `of` in this way, too")
        return _refine_threshold(_search_with_exact_columns(problem, of - 1, others), accuracy)
    if len(shares) == len(given):
        q = np.zeros_like(rho)
        for column, fraction in shares.items():
            q[:, column, column] = float(fraction) * rho[:, column, column]
        return _refine_threshold(_search_with_known_overlaps(problem, of - 1, others, q), accuracy)
    branch = _ColumnBranch(
        problem, of - 1, sorted(column - 1 for column in given if column - 1 not in shares), accuracy
    )
    return _refine_threshold(
        _GrowthSearch(branch.state, branch.locate, branch.state.channel.counts, branch.near), accuracy
    )


def recovery_from_zero(state: State, accuracy: float) -> RecoveryThreshold:
    """Return the alpha at which q = 0 becomes unstable: one over the largest eigenvalue of linear state evolution.

    Args:
        state: the map of state evolution.
        accuracy: required error bar, relative.

    Raises:
        NotConvergedError: it never does.
    """

    def locate() -> tuple[float, float, np.ndarray]:
        budget.check_time_limit()
        factor, direction = growth_from_zero(state)
        if factor < 1e-12:
            raise NotConvergedError(
                f"q = 0 is a stable solution of {state.problem.solver.name} at every sample complexity"
            )
        return 1 / factor, factor, direction

    nothing = np.zeros_like(state.rho)
    return _refine_threshold(_GrowthSearch(state, locate, state.channel.counts, nothing, 1, is_cheap=True), accuracy)


def _column_growth_factor(state: State, of: int, averages: Averages, alpha: float) -> float:
    """Return the largest growth factor in a step of overlaps of the column with itself."""
    matrix = state.jacobian(averages, alpha, outside=True)
    own = [i for i, (a, b) in enumerate(zip(*state.outside, strict=True)) if a == b == of]
    size = len(state.outside[0])
    places = [context * size + i for context in range(len(state.first)) for i in own]
    return spectral_radius(matrix[np.ix_(places, places)])


def _threshold_from_growth(state: State, of: int, averages: Averages) -> tuple[float, float]:
    """Return the alpha at which the growth factor of the column is one, and the factor at alpha = 1."""
    # At zero overlap the posterior covariance of a column is its prior one, whatever the overlaps of independent ones.
    factor = _column_growth_factor(state, of, replace(averages, outer=np.zeros_like(averages.outer)), 1.0)
    if factor < 1e-12:
        raise NotConvergedError(f"nothing is learned of column {of + 1} at any sample complexity")
    return 1 / factor, factor


def _check_zero_is_solution(state: State, of: int, averages: Averages) -> None:
    """Check that zero overlap of a column is a solution.

    Raises:
        InputError: samples carry information on the column at any alpha.
    """
    information = np.abs(averages.outer[:, of, of]).max()
    if information > 1e-8 * np.abs(np.linalg.inv(state.rho)).max():
        raise InputError(
            f"column {of + 1} of {state.problem.solver.name} has no weak-recovery threshold: samples carry information "
            "on it at any alpha"
        )


def _search_with_known_overlaps(problem: Problem, of: int, others: list[int], q: np.ndarray) -> _GrowthSearch:
    """Return the search with fixed overlaps of the other columns: one evaluation."""
    state = State(problem, others or None)
    if not others:
        raise InputError("the teacher has a single column; leave of and given out")
    _check_zero_is_solution(state, of, state.channel.averages(np.zeros_like(q)))

    def locate() -> tuple[float, float, np.ndarray]:
        budget.check_time_limit()
        return *_threshold_from_growth(state, of, state.channel.averages(q, curved=True)), q

    return _GrowthSearch(state, locate, state.channel.counts, q)


def _search_with_exact_columns(problem: Problem, of: int, others: list[int]) -> _GrowthSearch:
    """Return the search with all other columns known exactly: one evaluation, refined in field points and starts."""
    state = State(problem, others)
    rule = Preimages(problem, of, even=len(state.channel.sign_symmetric_columns) == problem.teacher_rank)
    options = BayesThresholdOptions.current()
    counts = [options.field_points, options.lattice_starts]

    def locate() -> tuple[float, float, np.ndarray]:
        rule.points, rule.starts = counts[0] + counts[0] % 2, counts[1]
        averages = rule.averages()
        _check_zero_is_solution(state, of, averages)
        return *_threshold_from_growth(state, of, averages), state.full_overlaps

    return _GrowthSearch(state, locate, counts, None)


class _ColumnBranch:
    """A branch on which the other columns are learned from the same samples, with the growth factor of one column."""

    def __init__(self, problem: Problem, of: int, known: list[int], accuracy: float) -> None:
        options = BayesThresholdOptions.current()
        self.state, self.of, self.near_enough = State(problem, known), of, options.growth_tolerance * accuracy
        self.near = self.state.full_overlaps / 2
        self.place: tuple[float, np.ndarray] | None = None
        self.guess: Point | None = None
        self.state.channel.counts = [options.branch_start_points] * len(self.state.channel.counts)
        self.state.channel.truncate_sums(accuracy)

    def _evaluate(self, logit: float) -> np.ndarray:
        """Return the log growth factor at the point of the branch with this overlap, alpha, and all overlaps."""
        budget.check_time_limit()
        self.guess = point = self.state.solve_at_fraction(float(1 / (1 + np.exp(-logit))), self.guess, curved=True)
        factor = _column_growth_factor(self.state, self.of, point.averages, point.alpha)
        return np.array([np.log(factor), point.alpha, *point.q.ravel()])

    def locate(self) -> tuple[float, float, np.ndarray]:
        """Return alpha, growth factor and overlaps at the threshold, by the secant method.

        It starts from a change of sign along the branch, or from the last threshold if the rule has changed.
        """
        if self.place is None:
            low, high = self._bracket_threshold()
            below, above = self._evaluate(low), self._evaluate(high)
            slopes = (above - below) / (high - low)
        else:
            high, slopes = self.place
            above = self._evaluate(high)
        for _ in range(30):
            step = -above[0] / slopes[0]
            if abs(above[0]) < self.near_enough:
                self.place = high, slopes
                _, alpha, *q = above + slopes * step
                return float(alpha), float(np.exp(above[0]) / above[1]), np.reshape(q, self.near.shape)
            low, below, high = high, above, high + float(np.clip(step, -1, 1))
            above = self._evaluate(high)
            if abs(high - low) > BayesThresholdOptions.current().min_secant_step:
                slopes = (above - below) / (high - low)
        raise NotConvergedError("the growth on the branch has no zero where it was looked for")

    def _bracket_threshold(self) -> tuple[float, float]:
        for logit in map(float, _LOGITS):
            report_remaining(f"growth of column {self.of + 1} where the others know {1 / (1 + np.exp(-logit)):.3f}")
            if self._evaluate(logit)[0] > 0:
                return logit - (_LOGITS[1] - _LOGITS[0]), logit
        raise NotConvergedError(
            f"column {self.of + 1} of {self.state.problem.solver.name} is not learned on the branch of the others, as "
            "far as that was followed"
        )


def _refine_threshold(place: _GrowthSearch, accuracy: float) -> RecoveryThreshold:
    """Refine axes one after another until the threshold has converged to the accuracy."""
    channel, counts, options = place.state.channel, place.counts, BayesThresholdOptions.current()
    if place.near is not None and channel.is_sampled(place.near):
        return _threshold_by_replicates(place, place.near, accuracy)
    if place.first:  # averages are cheap
        accuracy /= 4
    factor = options.cheap_refinement_factor if place.is_cheap else options.refinement_factor
    lost = 0.0 if place.first else channel.cut.lost_fraction  # of omega
    alpha, growth, q = place.locate()
    for _ in range(options.max_rounds):
        error = 0.0
        for axis in range(place.first, len(counts)):
            before = list(counts)
            counts[axis] = int(np.ceil(before[axis] * factor))
            finer = place.locate()
            moved = abs(finer[0] - alpha)
            error += moved
            report_remaining(f"alpha {finer[0]:.8g} at {counts} points, moved by {moved:.1e}")
            rests = moved < accuracy * alpha / (4 * len(before))
            if rests:
                counts[:] = before
            if not rests or place.first:  # at q = 0 the value of the finest rule is used
                alpha, growth, q = finer
        if error < accuracy * alpha:
            return RecoveryThreshold(alpha, error + lost * alpha, growth, q, counts[place.first :])
    raise NotConvergedError(f"alpha = {alpha:.8g} moves by {error:.1e} still; ask for a larger --accuracy")


def _threshold_by_replicates(place: _GrowthSearch, near: np.ndarray, accuracy: float) -> RecoveryThreshold:
    """Return the mean of the thresholds of replicates, with as many draws as the accuracy needs."""
    planted = place.state.channel.planted
    planted.refine_rule(near, max(accuracy, 1e-4))
    while True:
        found = []
        for seed in range(REPLICATES):
            planted.seeds = (seed,)
            found.append(place.locate())
        planted.seeds = tuple(range(REPLICATES))
        alphas = np.array([alpha for alpha, _, _ in found])
        alpha, error = float(alphas.mean()), float(two_standard_errors(alphas))
        if error < accuracy * alpha:
            growth = float(np.mean([factor for _, factor, _ in found]))
            return RecoveryThreshold(alpha, error, growth, found[0][2], [2**planted.log2] * REPLICATES)
        if planted.log2 >= BayesThresholdOptions.current().max_log2_draws:
            raise NotConvergedError(
                f"alpha = {alpha:.6g} is known to {error:.1e} from 2^{planted.log2} draws a replicate; ask for a "
                "larger --accuracy"
            )
        planted.log2 += 1
