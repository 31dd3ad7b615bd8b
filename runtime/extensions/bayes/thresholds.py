"""Where a Bayes-optimal learner begins to learn, where an algorithm does, and where the posterior jumps (docs/theory.md
section 13), along a second parameter, too.

Such a threshold is one number for each value of the parameter, so that a line of them cannot turn back: each is located
on its own, one after another.
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
from ...base.interrupts import keeping_results
from ...base.numbers import with_error
from ...base.presenting import Recorded, Result
from ...base.progress import bar, left, step
from ...integration.estimates import two_standard_errors
from ...problems.problem import Problem
from .averages import Averages
from .sampling import REPLICATES, Preimages
from .state_evolution import (
    CLOSE,
    Point,
    State,
    exact_log_evidence,
    growth,
    is_information_unbounded,
    observed_dimension,
    radius,
)

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

KINDS = ("weak_recovery", "algorithmic", "information_theoretic")
_ROUNDING = 2e-12  # of a threshold, relative: sums over up to a million products of exponentials
# Logits of the shares at which alpha(s) is looked at, and how accurately: for integrals of one field, and of more.
_FINE_SCAN = (np.linspace(-7.0, 7.0, 57), 1e-5)
_COARSE_SCAN = (np.linspace(-5.0, 5.0, 21), 1e-4)
_FARTHER = np.linspace(7.0, -np.log(CLOSE), 7)[1:]  # logits beyond a fine scan, while folds may coexist with more
_MOST_REFINED, _MOST_STEPS = 6, 30
BRANCH = "branch"
_LOGITS = np.arange(-3.0, 7.1, 0.5)  # of the overlaps at which the growth is looked at on the branch
_STARTED = 24  # points to begin with on a branch
_FIELD_POINTS, _STARTS = 6, 10  # to begin with where columns are known exactly
_NEAR = 3.0  # log of the growth, in accuracies, up to which slopes lead to its zero
_TELLING = 1e-6  # logits apart that slopes are taken of
_GROWTH, _GROWTH_FROM_NOTHING, _MOST_ROUNDS, _MOST_DRAWS = 1.3, 1.5, 12, 16


@dataclass(frozen=True)
class BayesThreshold(Result):
    """A sample complexity at which Bayes-optimal inference changes.

    Attributes:
        kind: one of KINDS; value, error: alpha and its half width, of integration and root-finding; evidence: how.

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
class BayesLine(Result, Recorded):
    """A threshold of Bayes-optimal inference along a parameter.

    Attributes:
        kind: of the threshold; over, over_values: the parameter and its values, (N,).
        values, errors: alpha and its half width, (N,); NaN where there is no threshold, or not to the accuracy.
        evidence: what each value rests on, or `reason`, why there is none.
        of, given: the column that is asked for, from 1 on, or None, and what is known of others, as of
            `bayes_threshold`.
        ending: why it ends before the last value, in words; empty where it does not.
        interrupted: by the user; what was finished is here.

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
        """The threshold in words."""
        words = f"{self.kind.replace('_', ' ')}"
        if self.of is not None:
            words += f" of column {self.of}"
        known = [
            f"column {column} on its branch" if share == "branch" else f"{float(share):g} of column {column} known"
            for column, share in sorted(self.given.items())
        ]
        return ", ".join([words, *known])

    def to_xarray(self) -> xarray.Dataset:
        """value, error and over along `point`, as of a critical line."""
        return presenting.to_dataset(self)

    def plot(self, path: str | Path | None = None, *, beside: tuple[BayesLine, ...] = ()) -> Figure:
        """A picture, with other lines in it."""
        return presenting.plot(self, path, beside=[line.to_xarray() for line in beside])


@step("a threshold of Bayes-optimal inference")
def bayes_threshold(
    problem: Problem,
    kind: str,
    *,
    accuracy: float = 1e-9,
    of: int | None = None,
    given: Mapping[int, float | str] | None = None,
) -> BayesThreshold:
    """A threshold in alpha of Bayes-optimal inference; the problem's own alpha does not matter.

    Args:
        kind: "weak_recovery", "algorithmic" or "information_theoretic".
        accuracy: half width asked for, relative to the threshold.
        of: weak recovery of this column of the teacher alone, from 1 on.
        given: what is known of other columns meanwhile, column -> share of the teacher's overlap, or "branch".

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
        return weak_recovery(problem, accuracy, of, given or {})
    functions = {
        "weak_recovery": weak_recovery,
        "algorithmic": algorithmic,
        "information_theoretic": information_theoretic,
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
    """A threshold in alpha of Bayes-optimal inference along another parameter.

    Args:
        kind, accuracy, of, given: as of `bayes_threshold`.
        over: the parameter, its first and last value, and how many; or the parameter and its values.

    Raises:
        InputError: as `bayes_threshold`, or a parameter that is none, or alpha.

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
    with keeping_results() as early, bar(f"{kind.replace('_', ' ')} along {name}", len(where)) as task:
        for value, at in zip(where, problems, strict=True):
            try:
                found = bayes_threshold(at, kind, accuracy=accuracy, of=of, given=given)
                rows.append((found.value, found.error, found.evidence))
                task.advance(f"{name} = {value:.4g}: alpha = {with_error(found.value, found.error)}")
            except NotConvergedError as error:
                rows.append((np.nan, np.nan, {"reason": str(error)}))
                task.advance(f"{name} = {value:.4g}: {error}")
    values, errors = (np.array([row[i] for row in rows]) for i in (0, 1))
    evidence, reached = tuple(row[2] for row in rows), where[: len(rows)]
    return BayesLine(
        problem, kind, name, reached, values, errors, evidence, of, dict(given or {}), early.reason, early.interrupted
    )


def weak_recovery(
    problem: Problem, accuracy: float = 1e-9, of: int | None = None, given: Mapping[int, float | str] | None = None
) -> BayesThreshold:
    """alpha at which q = 0 becomes unstable, or the overlap of a column, others being known as `given` says.

    Raises:
        InputError: q = 0 is no solution, because outputs or means tell of the teacher at any alpha.
        NotConvergedError: q = 0 is stable at every alpha.
    """
    evidence: dict[str, Any] = {}
    if of is not None:
        found = recovery(problem, of, given or {}, accuracy)
        known = {column: float(found.q[0, column - 1, column - 1]) for column in sorted(given or {})}
        evidence = {"column": of, **{f"overlap_of_column_{column}": overlap for column, overlap in known.items()}}
    elif (state := State(problem)).uninformative:
        found = recovery_from_nothing(state, accuracy)
    else:
        raise InputError(
            f"{problem.solver.name} has no weak-recovery threshold: its outputs, or the means, carry information "
            "on the teacher at any alpha"
        )
    evidence |= {"growth_of_q_per_alpha": found.growth, "points": found.points}
    return BayesThreshold(problem, "weak_recovery", found.alpha, max(found.error, _ROUNDING * found.alpha), evidence)


def algorithmic(problem: Problem, accuracy: float = 1e-9) -> BayesThreshold:
    """The last alpha at which state evolution from zero information stops below perfect recovery.

    Every solution is a point of the curve alpha(s), s = Tr q / Tr rho*; state evolution from s = 0 stops at the first
    s where alpha(s) reaches alpha, so that the threshold is the largest maximum of the curve inside (0, 1), or weak
    recovery where the curve falls from s = 0 on.

    Raises:
        NotConvergedError: the curve only rises: no fold, the overlap grows continuously.
    """
    state = State(problem)
    points = _scan(state)
    if state.uninformative and _jumps_at_once(state, points):
        onset = weak_recovery(problem, accuracy)
        return replace(onset, kind="algorithmic", evidence={**onset.evidence, "jump": "from q = 0, at weak recovery"})
    found, change = _fold(state, points, accuracy)
    return BayesThreshold(
        problem,
        "algorithmic",
        found.alpha,
        max(change, _ROUNDING) * found.alpha,
        {"share_of_overlap_at_the_fold": found.share, "points": state.channel.counts},
    )


def _jumps_at_once(state: State, points: list[Point]) -> bool:
    """Return whether alpha(s) falls from s = 0 on and has no fold that is higher."""
    alphas = np.array([point.alpha for point in points])
    tops, _ = find_peaks(alphas)
    least = alphas.min() * (1 + 10 * _scan_rule(state)[1])
    return bool(alphas[0] > max(least, alphas[1], *alphas[tops]))


def _scan_rule(state: State) -> tuple[np.ndarray, float]:
    return _FINE_SCAN if state.channel.module.FIELDS == 1 else _COARSE_SCAN


def _scan(state: State, farther: bool = False) -> list[Point]:
    """Points of alpha(s), rough, from what the means tell on; where asked for up to almost everything."""
    points: list[Point] = []
    logits, rough = _scan_rule(state)
    least = state.share(state.nothing)
    before = state.channel.counts, state.prior.count
    for logit in [*logits, *(_FARTHER if farther and logits is _FINE_SCAN[0] else ())]:
        # Beyond the highest fold nothing coexists.
        if logit > logits[-1] and (not points or points[-1].alpha >= max(p.alpha for p in points)):
            break
        share = least + (1 - least) / (1 + np.exp(-logit))
        try:
            guess = points[-1] if points else None
            q = share * state.rho if guess is None else guess.q * (share / guess.share)
            state.settle(q, 1.0 if guess is None else guess.alpha, rough)
            points.append(state.point(float(share), guess))
        except (NotConvergedError, np.linalg.LinAlgError):
            if points:
                break
    state.channel.counts, state.prior.count = before  # where less is known coarser rules do
    return points


def _fold(state: State, points: list[Point], accuracy: float) -> tuple[Point, float]:
    """The largest fold of alpha(s), refined, and the relative half width of its alpha: twice what a finer rule moves it
    by.

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
            f"continuously with the sample complexity, up to {points[-1].share:.3g} of the teacher's at alpha = "
            f"{points[-1].alpha:.4g}, the last that was tried"
        )
    place = max(inner, key=lambda i: alphas[i])
    tolerance = accuracy / 8
    for end in (points[place - 1], points[place + 1]):
        state.settle(end.q, end.alpha, tolerance)
    fold = points[place]

    def locate(tolerance: float) -> tuple[float, Callable[[], float]]:
        nonlocal fold
        rough = _refined_fold(state, points, place, -1.0)
        state.settle(rough.q, rough.alpha, tolerance)
        fold = state.point(rough.share, rough)
        return fold.alpha, lambda: state.point(fold.share, fold).alpha

    _, error = _to_accuracy(state, locate, accuracy)
    return fold, error


def _to_accuracy(
    state: State, locate: Callable[[float], tuple[float, Callable[[], float]]], accuracy: float
) -> tuple[float, float]:
    """Return alpha and its relative half width: twice what finer rules move it by, refined until that is as asked.

    Args:
        locate: from a tolerance of the rules alpha, and a function that finds it again by other rules.

    Raises:
        NotConvergedError: it is not known to the accuracy.
    """
    tolerance = accuracy / 8
    for _ in range(_MOST_REFINED):
        alpha, again = locate(tolerance)
        error = max(2 * abs(finer - alpha) / alpha for finer in state.by_finer_rules(again))
        if error <= accuracy:
            return alpha, error
        tolerance *= 0.3 * accuracy / error
    raise NotConvergedError(f"alpha = {alpha:.8g} is known to {error * alpha:.1e}; ask for a larger --accuracy")


def _refined_fold(state: State, points: list[Point], place: int, sign: float) -> Point:
    """Where alpha(s) is least between the neighbours of a point, or largest where the sign is -1."""
    bounds = points[place - 1].share, points[place + 1].share
    best = minimize_scalar(
        lambda share: sign * state.point(share, points[place]).alpha,
        bounds=bounds, method="bounded", options={"xatol": 1e-9},
    )  # fmt: skip
    return state.point(float(best.x), points[place])


def information_theoretic(problem: Problem, accuracy: float = 1e-9) -> BayesThreshold:
    """Return the last alpha at which the solution of largest free entropy changes.

    All solutions that coexist are compared: no information where that is one, the rising parts of alpha(s), and perfect
    recovery of rows that take few values, -H(row) + alpha E log P(observed | Y). Where continuous numbers are seen
    without noise the free entropy of perfect recovery is infinite, and changes sign where they outnumber the unknowns.

    Raises:
        NotConvergedError: there is no such alpha, as where no solutions coexist.
    """
    state = State(problem)
    unknown, known = state.prior.continuous_dimension, observed_dimension(state)
    if known > 0:
        counted = f"{unknown:g} unknown continuous numbers a row, {known:g} seen in a sample"
        error = 0.0 if float(known).is_integer() else _ROUNDING * unknown / known
        return BayesThreshold(problem, "information_theoretic", unknown / known, error, {"counted": counted})
    transitions = _transitions(state, _coexisting(state))
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
                state.settle(solutions.nearest(alpha).q, alpha, tolerance)
        alpha = _crossing(less, more, alpha)
        return alpha, lambda: _crossing(less, more, alpha)

    alpha, error = _to_accuracy(state, locate, accuracy)
    (q, free_entropy, _), (more_q, *_) = less.at(alpha), more.at(alpha)
    evidence = {
        "shares_of_overlap": [state.share(q), state.share(more_q)],
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
class _Solutions:
    """Solutions at ascending alpha that may coexist with others.

    Attributes:
        low, high: alpha between which they exist. points: of a rising part of alpha(s), in ascending order; overlaps
            beyond the first and last of them are theirs. Empty at perfect recovery.
    """

    state: State
    low: float
    high: float
    points: tuple[Point, ...] = ()

    def at(self, alpha: float) -> tuple[np.ndarray, float, float]:
        """Return overlaps, free entropy and its slope in alpha, E log Z_out."""
        state = self.state
        if not self.points:
            evidence = exact_log_evidence(state)
            return state.rho, alpha * evidence - state.prior.entropy, evidence
        q = self._overlaps(alpha)
        averages = state.channel.averages(q)
        return q, state.free_entropy(q, alpha, averages), averages.log_evidence

    def nearest(self, alpha: float) -> Point:
        """Return the point whose alpha is nearest."""
        return min(self.points, key=lambda point: abs(point.alpha - alpha))

    def _overlaps(self, alpha: float) -> np.ndarray:
        after = int(np.searchsorted([point.alpha for point in self.points], alpha))
        if not 0 < after < len(self.points):
            return self.points[min(after, len(self.points) - 1)].q
        guess = self.nearest(alpha)

        def excess(share: float) -> float:
            return float(np.log(self.state.point(share, guess).alpha / alpha))

        # One point more on both sides: these are of a rough rule.
        ends = [self.points[i].share for i in (max(after - 2, 0), min(after + 1, len(self.points) - 1))]
        if not excess(ends[0]) < 0 < excess(ends[1]):
            raise NotConvergedError(
                f"the solution of {self.state.problem.solver.name} at alpha = {alpha:.6g} is not found again by a "
                "finer rule; ask for a smaller --accuracy"
            )
        # The free entropy is stationary in the overlaps.
        return self.state.point(float(brentq(excess, *ends, xtol=1e-10, rtol=1e-10)), guess).q

    @cached_property
    def _knots(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return alpha, free entropy and its slope at the points."""
        if not self.points:
            _, free_entropy, slope = self.at(1.0)
            return np.ones(1), np.array([free_entropy]), np.array([slope])
        values = [self.state.free_entropy(p.q, p.alpha, p.averages) for p in self.points]
        return (
            np.array([p.alpha for p in self.points]), np.array(values),
            np.array([p.averages.log_evidence for p in self.points]),
        )  # fmt: skip

    def roughly(self, alpha: float) -> float:
        """Return the free entropy by interpolation between the points."""
        alphas, values, slopes = self._knots
        if alphas[0] < alpha < alphas[-1]:
            return float(CubicHermiteSpline(alphas, values, slopes)(alpha))
        end = 0 if alpha <= alphas[0] else -1
        return float(values[end] + (alpha - alphas[end]) * slopes[end])


def _coexisting(state: State) -> list[_Solutions]:
    """Return the solutions that may have the largest free entropy, those that know less first."""
    discrete = not state.prior.continuous_dimension
    unbounded = discrete and is_information_unbounded(state)
    points = _scan(state, not unbounded)
    alphas, rough = np.log([point.alpha for point in points]), _scan_rule(state)[1]
    folds = {}
    for sign in (1.0, -1.0):
        for place in find_peaks(-sign * alphas, prominence=10 * rough)[0]:
            for end in (points[place - 1], points[place + 1]):
                state.settle(end.q, end.alpha, rough)
            folds[int(place)] = _refined_fold(state, points, place, sign)
    found = []
    if state.uninformative:
        averages = state.channel.averages(state.nothing)
        found.append(_Solutions(state, 0.0, points[0].alpha, (Point(0.0, 0.0, state.nothing, averages),)))
    for first, last in pairwise([0, *sorted(folds), len(points) - 1]):
        ends = folds.get(first, points[first]), folds.get(last, points[last])
        if ends[0].alpha >= ends[1].alpha:
            continue
        inner = [p for p in points[first : last + 1] if ends[0].share < p.share < ends[1].share]
        rising = [ends[0]]
        for point in [*inner, ends[1]]:
            if rising[-1].alpha < point.alpha <= ends[1].alpha:
                rising.append(point)
        starts = first == 0 and not state.uninformative
        # What is left unknown of rows that take few values beyond the last point is too little to matter.
        goes_on = last == len(points) - 1 and discrete and not unbounded and 1 - points[-1].share < 2 * CLOSE
        found.append(
            _Solutions(state, 0.0 if starts else ends[0].alpha, np.inf if goes_on else ends[1].alpha, tuple(rising))
        )
    return [*found, _Solutions(state, 0.0, np.inf)] if unbounded else found


def _transitions(state: State, found: list[_Solutions]) -> list[tuple[float, _Solutions, _Solutions]]:
    """Return alpha, roughly, at which the largest free entropy passes from one to another, in ascending order."""
    transitions = []
    for less, more in combinations(found, 2):
        low, high = max(less.low, more.low), min(less.high, more.high)
        if not low < high < np.inf:
            continue

        def excess(alpha: float, less: _Solutions = less, more: _Solutions = more) -> float:
            return more.roughly(alpha) - less.roughly(alpha)

        if not excess(low) < 0 < excess(high):
            continue
        alpha = float(brentq(excess, low, high))
        others = [one.roughly(alpha) for one in found if one.low < alpha < one.high]
        if max(others) <= more.roughly(alpha) + 10 * _scan_rule(state)[1] * alpha:
            transitions.append((alpha, less, more))
    return sorted(transitions, key=lambda transition: transition[0])


def _crossing(less: _Solutions, more: _Solutions, alpha: float) -> float:
    """Return alpha at which two free entropies are the same, by Newton's method.

    Raises:
        NotConvergedError: they do not cross where both solutions exist.
    """
    for _ in range(_MOST_STEPS):
        (_, one, slope), (_, other, more_slope) = less.at(alpha), more.at(alpha)
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
class Recovery:
    """Where a column begins to be learned.

    Attributes:
        alpha, error: with its half width; growth: of the column's overlap in a step, per alpha.
        q: what is known there, (C, t, t); points: of the rule.
    """

    alpha: float
    error: float
    growth: float
    q: np.ndarray
    points: list[int]


@dataclass
class _Place:
    """Where the growth of what is unknown is looked at.

    Attributes:
        find: returns alpha, the growth in a step per alpha, and what is known there.
        counts: points of the rule, refined in place.
        near: overlaps at which rules are chosen; None where nothing is drawn.
        first: axis of the rule that is refined first, 1 where omega is zero; factor: by which axes are refined.
    """

    state: State
    find: Callable[[], tuple[float, float, np.ndarray]]
    counts: list[int]
    near: np.ndarray | None
    first: int = 0
    factor: float = _GROWTH


def recovery(problem: Problem, of: int, given: Mapping[int, float | str], accuracy: float) -> Recovery:
    """alpha at which the overlap of column `of`, from 1 on, with the teacher begins to grow.

    Args:
        given: column -> its overlap as a share of the teacher's, held there by other means, in [0, 1], or "branch": as
            far as it is learned from the same samples. If one is known exactly all others must be.
        accuracy: half width asked for, relative.

    Raises:
        InputError: columns that are not there, shares out of range, or a column that is told at any alpha.
        NotConvergedError: the column is not learned on the branch, or the rule would grow too large.
    """
    t, rho = problem.teacher_rank, problem.law.rho_star
    if not {of, *given} <= set(range(1, t + 1)) or of in given:
        raise InputError(
            f"of = {of}, given = {sorted(given)}: columns of the teacher are 1 to {t}, and `of` is not among the given"
        )
    shares = {column - 1: value for column, value in given.items() if value != BRANCH}
    for column, share in shares.items():
        if isinstance(share, str) or not 0 <= share <= 1:
            raise InputError(f"column {column + 1} = {share!r} is out of range; allowed is [0, 1] or {BRANCH!r}")
    if shares and len(shares) != len(given) and any(shares.values()):
        raise InputError(f"columns are given as shares or as {BRANCH!r}; do not mix both")
    others = [column for column in range(t) if column != of - 1]
    if np.abs(rho[:, of - 1][:, others]).max(initial=0.0) > 0:
        raise InputError("columns of the teacher that are correlated are not learned one by one")
    if 1 in shares.values():
        if [shares.get(column) for column in others] != [1] * len(others):
            raise InputError("a column is given as known exactly (share 1): give all others but `of` in this way, too")
        return _refined(_known_exactly(problem, of - 1, others), accuracy)
    if len(shares) == len(given):
        q = np.zeros_like(rho)
        for column, share in shares.items():
            q[:, column, column] = float(share) * rho[:, column, column]
        return _refined(_known(problem, of - 1, others, q), accuracy)
    branch = _Branch(problem, of - 1, sorted(column - 1 for column in given if column - 1 not in shares), accuracy)
    return _refined(_Place(branch.state, branch.find, branch.state.channel.counts, branch.near), accuracy)


def recovery_from_nothing(state: State, accuracy: float) -> Recovery:
    """alpha at which q = 0 becomes unstable: one over the largest eigenvalue of the linear state evolution there.

    Raises:
        NotConvergedError: it never does.
    """

    def find() -> tuple[float, float, np.ndarray]:
        budget.check()
        factor, direction = growth(state)
        if factor < 1e-12:
            raise NotConvergedError(
                f"q = 0 is a stable solution of {state.problem.solver.name} at every sample complexity"
            )
        return 1 / factor, factor, direction

    nothing = np.zeros_like(state.rho)
    return _refined(_Place(state, find, state.channel.counts, nothing, 1, _GROWTH_FROM_NOTHING), accuracy)


def _growth(state: State, of: int, averages: Averages, alpha: float) -> float:
    """Largest growth in a step of overlaps of the column with itself."""
    matrix = state.jacobian(averages, alpha, outside=True)
    own = [i for i, (a, b) in enumerate(zip(*state.outside, strict=True)) if a == b == of]
    size = len(state.outside[0])
    places = [context * size + i for context in range(len(state.first)) for i in own]
    return radius(matrix[np.ix_(places, places)])


def _found(state: State, of: int, averages: Averages) -> tuple[float, float]:
    """alpha at which the growth of the column is one, and that at alpha = 1."""
    # Of a column that nothing is known of the row's covariance is its own, whatever is known of independent ones.
    factor = _growth(state, of, replace(averages, outer=np.zeros_like(averages.outer)), 1.0)
    if factor < 1e-12:
        raise NotConvergedError(f"nothing is learned of column {of + 1} at any sample complexity")
    return 1 / factor, factor


def _check_untold(state: State, of: int, averages: Averages) -> None:
    """Whether samples tell nothing of a column that nothing is known of.

    Raises:
        InputError: they do.
    """
    told = np.abs(averages.outer[:, of, of]).max()
    if told > 1e-8 * np.abs(np.linalg.inv(state.rho)).max():
        raise InputError(
            f"column {of + 1} of {state.problem.solver.name} has no weak-recovery threshold: samples carry information "
            "on it at any alpha"
        )


def _known(problem: Problem, of: int, others: list[int], q: np.ndarray) -> _Place:
    """Overlaps given by other means: one evaluation."""
    state = State(problem, others or None)
    if not others:
        raise InputError("the teacher has a single column; leave of and given out")
    _check_untold(state, of, state.channel.averages(np.zeros_like(q)))

    def find() -> tuple[float, float, np.ndarray]:
        budget.check()
        return *_found(state, of, state.channel.averages(q, curved=True)), q

    return _Place(state, find, state.channel.counts, q)


def _known_exactly(problem: Problem, of: int, others: list[int]) -> _Place:
    """The other columns known exactly: one evaluation, by points of a field and starts across hidden coordinates."""
    state = State(problem, others)
    rule = Preimages(problem, of, even=len(state.channel.kept_by_signs) == problem.teacher_rank)
    counts = [_FIELD_POINTS, _STARTS]

    def find() -> tuple[float, float, np.ndarray]:
        rule.points, rule.starts = counts[0] + counts[0] % 2, counts[1]
        averages = rule.averages()
        _check_untold(state, of, averages)
        return *_found(state, of, averages), state.everything

    return _Place(state, find, counts, None)


class _Branch:
    """Overlaps on the branch on which the others are learned from the same samples."""

    def __init__(self, problem: Problem, of: int, known: list[int], accuracy: float) -> None:
        self.state, self.of, self.near_enough = State(problem, known), of, _NEAR * accuracy
        self.near = self.state.everything / 2
        self.place: tuple[float, np.ndarray] | None = None
        self.guess: Point | None = None
        self.state.channel.counts = [_STARTED] * len(self.state.channel.counts)
        self.state.channel.leave_out(accuracy)

    def _at(self, logit: float) -> np.ndarray:
        """log of the growth at the point of the branch with this overlap, alpha, and all overlaps."""
        budget.check()
        self.guess = point = self.state.point(float(1 / (1 + np.exp(-logit))), self.guess, curved=True)
        factor = _growth(self.state, self.of, point.averages, point.alpha)
        return np.array([np.log(factor), point.alpha, *point.q.ravel()])

    def find(self) -> tuple[float, float, np.ndarray]:
        """By the secant rule from where a look along the branch finds a change of sign; for another rule from the last
        place."""
        if self.place is None:
            low, high = self._bracket()
            below, above = self._at(low), self._at(high)
            slopes = (above - below) / (high - low)
        else:
            high, slopes = self.place
            above = self._at(high)
        for _ in range(30):
            step = -above[0] / slopes[0]
            if abs(above[0]) < self.near_enough:
                self.place = high, slopes
                _, alpha, *q = above + slopes * step
                return float(alpha), float(np.exp(above[0]) / above[1]), np.reshape(q, self.near.shape)
            low, below, high = high, above, high + float(np.clip(step, -1, 1))
            above = self._at(high)
            if abs(high - low) > _TELLING:
                slopes = (above - below) / (high - low)
        raise NotConvergedError("the growth on the branch has no zero where it was looked for")

    def _bracket(self) -> tuple[float, float]:
        for logit in map(float, _LOGITS):
            left(f"growth of column {self.of + 1} where the others know {1 / (1 + np.exp(-logit)):.3f}")
            if self._at(logit)[0] > 0:
                return logit - (_LOGITS[1] - _LOGITS[0]), logit
        raise NotConvergedError(
            f"column {self.of + 1} of {self.state.problem.solver.name} is not learned on the branch of the others, as "
            "far as that was followed"
        )


def _refined(place: _Place, accuracy: float) -> Recovery:
    """Axes are refined one after another until the threshold rests."""
    channel, counts = place.state.channel, place.counts
    if place.near is not None and channel.is_sampled(place.near):
        return _drawn(place, place.near, accuracy)
    if place.first:  # averages are cheap
        accuracy /= 4
    lost = 0.0 if place.first else channel.cut.share  # of omega
    alpha, growth, q = place.find()
    for _ in range(_MOST_ROUNDS):
        error = 0.0
        for axis in range(place.first, len(counts)):
            before = list(counts)
            counts[axis] = int(np.ceil(before[axis] * place.factor))
            finer = place.find()
            moved = abs(finer[0] - alpha)
            error += moved
            left(f"alpha {finer[0]:.8g} at {counts} points, moved by {moved:.1e}")
            rests = moved < accuracy * alpha / (4 * len(before))
            if rests:
                counts[:] = before
            if not rests or place.first:  # from nothing the value of the finest rule is kept
                alpha, growth, q = finer
        if error < accuracy * alpha:
            return Recovery(alpha, error + lost * alpha, growth, q, counts[place.first :])
    raise NotConvergedError(f"alpha = {alpha:.8g} moves by {error:.1e} still; ask for a larger --accuracy")


def _drawn(place: _Place, near: np.ndarray, accuracy: float) -> Recovery:
    """By replicates: the threshold of each."""
    planted = place.state.channel.planted
    planted.settle(near, max(accuracy, 1e-4))
    while True:
        found = []
        for seed in range(REPLICATES):
            planted.seeds = (seed,)
            found.append(place.find())
        planted.seeds = tuple(range(REPLICATES))
        alphas = np.array([alpha for alpha, _, _ in found])
        alpha, error = float(alphas.mean()), float(two_standard_errors(alphas))
        if error < accuracy * alpha:
            growth = float(np.mean([factor for _, factor, _ in found]))
            return Recovery(alpha, error, growth, found[0][2], [2**planted.log2] * REPLICATES)
        if planted.log2 >= _MOST_DRAWS:
            raise NotConvergedError(
                f"alpha = {alpha:.6g} is known to {error:.1e} from 2^{planted.log2} draws a replicate; ask for a "
                "larger --accuracy"
            )
        planted.log2 += 1
