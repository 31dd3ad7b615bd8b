"""Where a Bayes-optimal learner begins to learn, where an algorithm does, and where the posterior jumps (docs/theory.md
section 13)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from .. import budget, presenting
from ..errors import InputError, NotConvergedError
from ..problems.problem import Problem
from ..progress import step
from .linear import growth, onset
from .recovery import drawn_from_nothing, recovery
from .state import Point, State

KINDS = ("weak_recovery", "algorithmic", "information_theoretic")
_ROUNDING = 2e-12  # of a threshold, relative: sums over up to a million products of exponentials
# Logits of the shares at which alpha(s) is looked at, and how accurately: for integrals of one field, and of more.
_FINE_SCAN = (np.linspace(-7.0, 7.0, 57), 1e-5)
_COARSE_SCAN = (np.linspace(-5.0, 5.0, 21), 1e-4)


@dataclass(frozen=True)
class BayesThreshold:
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

    def table(self) -> str:
        """One line and what it rests on."""
        return presenting.table(self)

    def to_json(self) -> dict[str, Any]:
        """The object that --json prints."""
        return presenting.to_json(self)


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
    if kind not in KINDS:
        raise InputError(f"no threshold {kind!r}; known are {', '.join(KINDS)}")
    if not 1e-12 <= accuracy < 1:
        raise InputError(f"accuracy = {accuracy!r} is out of range; allowed is [1e-12, 1)")
    if of is not None or given:
        if kind != "weak_recovery" or of is None:
            raise InputError("of and given say which column's weak recovery is asked for")
        return column_recovery(problem, of, given or {}, accuracy)
    functions = {
        "weak_recovery": weak_recovery,
        "algorithmic": algorithmic,
        "information_theoretic": information_theoretic,
    }
    return functions[kind](problem, accuracy)


def weak_recovery(problem: Problem, accuracy: float = 1e-9) -> BayesThreshold:
    """alpha at which q = 0 becomes unstable: one over the largest eigenvalue of the linear state evolution there.

    Raises:
        InputError: q = 0 is no solution, because outputs or means tell of the teacher at any alpha.
        NotConvergedError: q = 0 is stable at every alpha.
    """
    state = State(problem)
    if not state.uninformative:
        raise InputError(
            f"{problem.solver.name} has no weak-recovery threshold: its outputs, or the means, tell of the teacher at "
            "any sample complexity"
        )
    if state.channel.is_sampled(np.zeros_like(state.rho)):
        drawn = drawn_from_nothing(state, accuracy)
        evidence = {"growth_of_q_per_alpha": drawn.growth, "points": drawn.points}
        error = max(drawn.error, _ROUNDING * drawn.alpha)
        return BayesThreshold(problem, "weak_recovery", drawn.alpha, error, evidence)
    counts = list(state.channel.counts)
    current = growth(state)[0]
    error = np.inf
    while error > accuracy * current / 4:
        budget.check()
        error = 0.0
        for axis in range(1, len(counts)):
            before = state.channel.counts[axis]
            state.channel.counts[axis] = int(np.ceil(before * 1.5))
            finer = growth(state)[0]
            error += abs(finer - current)
            if abs(finer - current) < accuracy * current / (16 * len(counts)):
                state.channel.counts[axis] = before
            current = finer
    value = onset(state, current)
    return BayesThreshold(
        problem,
        "weak_recovery",
        value,
        max(value**2 * error, _ROUNDING * value),
        {"growth_of_q_per_alpha": current, "points": state.channel.counts[1:]},
    )


def column_recovery(problem: Problem, of: int, given: Mapping[int, float | str], accuracy: float) -> BayesThreshold:
    """Weak recovery of one column, others being known as `given` says (`recovery`)."""
    found = recovery(problem, of, given, accuracy)
    known = {f"overlap_of_column_{column}": float(found.q[0, column - 1, column - 1]) for column in sorted(given)}
    evidence = {"column": of, **known, "growth_of_q_per_alpha": found.growth, "points": found.points}
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
    if state.uninformative and points[0].alpha > max(p.alpha for p in points[1:]):
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


def _scan_rule(state: State) -> tuple[np.ndarray, float]:
    return _FINE_SCAN if state.channel.module.FIELDS == 1 else _COARSE_SCAN


def _scan(state: State) -> list[Point]:
    """Points of alpha(s), rough."""
    points: list[Point] = []
    logits, rough = _scan_rule(state)
    for share in 1 / (1 + np.exp(-logits)):
        try:
            guess = points[-1] if points else None
            q = share * state.rho if guess is None else guess.q * (share / guess.share)
            state.settle(q, 1.0 if guess is None else guess.alpha, rough)
            points.append(state.point(float(share), guess))
        except (NotConvergedError, np.linalg.LinAlgError):
            if points:
                break
    return points


def _fold(state: State, points: list[Point], accuracy: float) -> tuple[Point, float]:
    """The largest fold of alpha(s), refined, and the relative half width of its alpha."""
    problem = state.problem
    alphas = np.array([p.alpha for p in points])
    inner = [i for i in range(1, len(points) - 1) if alphas[i] >= alphas[i - 1] and alphas[i] >= alphas[i + 1]]
    inner = [i for i in inner if alphas[i] > alphas[i:].min() * (1 + 10 * _scan_rule(state)[1])]
    if not inner:
        raise NotConvergedError(
            f"state evolution of {problem.solver.name} has no fold in alpha: from zero information the overlap grows "
            f"continuously with the sample complexity, up to {points[-1].share:.3g} of the teacher's at alpha = "
            f"{points[-1].alpha:.4g}, as far as was looked"
        )
    place = max(inner, key=lambda i: alphas[i])
    for end in (points[place - 1], points[place + 1]):
        state.settle(end.q, end.alpha, accuracy / 8)
    point = _refined_fold(state, points, place, -1.0)
    change = state.settle(point.q, point.alpha, accuracy / 8)
    finer = state.point(point.share, point)
    return finer, change + abs(finer.alpha - point.alpha) / finer.alpha


def _refined_fold(state: State, points: list[Point], place: int, sign: float) -> Point:
    """Where alpha(s) is least between the neighbours of a point, or largest where the sign is -1."""
    bounds = points[place - 1].share, points[place + 1].share
    best = minimize_scalar(
        lambda share: sign * state.point(share, points[place]).alpha,
        bounds=bounds, method="bounded", options={"xatol": 1e-9},
    )  # fmt: skip
    return state.point(float(best.x), points[place])


def information_theoretic(problem: Problem, accuracy: float = 1e-9) -> BayesThreshold:
    """alpha from which perfect recovery has the larger free entropy than the solution reached from no information.

    Rows and outputs that take few values: the free entropy of perfect recovery is that of the exact solution,
    -H(row) + alpha E log P(observed | Y), and the two are equated. Continuous ones, without noise: it is infinite, and
    changes sign where samples outnumber the unknowns. With noise there is none, and of two solutions that coexist the
    one that knows more is preferred from there on.

    Raises:
        NotConvergedError: there is no such alpha, as where no solutions coexist.
    """
    state = State(problem)
    unknown, known = state.prior.continuous_dimension, observed_dimension(state)
    if known is None:
        return _between_solutions(state, accuracy)
    if known > 0:
        value = float(unknown / known)
        return BayesThreshold(
            problem,
            "information_theoretic",
            value,
            0.0,
            {"counted": f"{unknown:g} unknown continuous numbers a row, {known:g} seen in a sample"},
        )
    if unknown > 0:
        raise NotConvergedError(
            f"rows of {problem.solver.name} are continuous and what is observed takes few values: perfect recovery is "
            "never reached at finite alpha"
        )
    fold, _ = _fold(state, _scan(state), min(accuracy, 1e-8))
    evidence = exact_log_evidence(state)

    def excess(share: float) -> float:
        point = state.point(share, fold)
        return state.free_entropy(point.q, point.alpha, point.averages) + state.prior.entropy - point.alpha * evidence

    low = fold.share
    while excess(low) < 0:
        low *= 0.9
        if low < 1e-6:
            raise NotConvergedError("perfect recovery is preferred at any sample complexity")
    share = _root(excess, low, fold.share)
    point = state.point(share, fold)
    change = state.settle(point.q, point.alpha, accuracy / 8)
    again = state.point(_root(excess, share * (1 - 1e-4), min(share * (1 + 1e-4), fold.share)), fold)
    return BayesThreshold(
        problem,
        "information_theoretic",
        again.alpha,
        max(change + abs(again.alpha - point.alpha) / again.alpha, _ROUNDING) * again.alpha,
        {"share_of_overlap": again.share, "free_entropy": state.free_entropy(again.q, again.alpha, again.averages)},
    )


def _between_solutions(state: State, accuracy: float) -> BayesThreshold:
    """alpha at which the solutions on both sides of the last fold of alpha(s) have the same free entropy."""
    points = _scan(state)
    top, _ = _fold(state, points, accuracy)
    behind = [p for p in points if p.share > top.share]
    place = int(np.argmin([p.alpha for p in behind]))
    if not 0 < place < len(behind) - 1:
        raise NotConvergedError("the solution that knows more was not followed to where it begins")
    bottom = _refined_fold(state, behind, place, 1.0)
    before = [p for p in points if p.share < top.share]

    def at(alpha: float, low: float, high: float, guess: Point) -> Point:
        share = brentq(lambda s: np.log(state.point(s, guess).alpha / alpha), low, high, xtol=1e-13, rtol=1e-13)
        return state.point(float(share), guess)

    def both(alpha: float) -> tuple[Point, Point]:
        return at(alpha, low, top.share, top), at(alpha, bottom.share, high, bottom)

    def excess(alpha: float) -> float:
        less, more = both(alpha)
        return state.free_entropy(more.q, alpha, more.averages) - state.free_entropy(less.q, alpha, less.averages)

    reached = min(top.alpha, behind[-1].alpha)
    first = max(bottom.alpha, before[0].alpha)
    low, high = before[0].share, behind[-1].share
    ends = first + 1e-6 * (reached - first), reached - 1e-6 * (reached - first)
    alpha = _root(excess, *ends)
    change = sum(state.settle(point.q, alpha, accuracy / 8) for point in both(alpha))
    alpha = _root(excess, *ends)
    less, more = both(alpha)
    with state.finer():
        finer = _root(excess, *ends)
    return BayesThreshold(
        state.problem,
        "information_theoretic",
        finer,
        2 * abs(finer - alpha) + max(change, _ROUNDING) * alpha,
        {"shares_of_overlap": [less.share, more.share], "coexist_from": bottom.alpha, "coexist_to": top.alpha},
    )


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    if function(low) * function(high) > 0:
        raise NotConvergedError("the free entropies do not cross before the uninformed solution ends")
    return float(brentq(function, low, high, xtol=1e-13, rtol=1e-14))


def observed_dimension(state: State) -> float | None:
    """Continuous numbers that a sample tells without noise; None where there is noise in some of them.

    Without noise everything hidden is discrete given the teacher and the fields are a change of coordinates.
    """
    channel = state.channel
    continuous = [c for c in channel.every if c.continuous]
    if len(continuous) > channel.module.FIELDS:
        return None
    return float(sum(c.continuous for c in channel.observed))


def free_entropy_of_recovery(state: State) -> float:
    """Phi at q = rho*: -H(row) + alpha E log P(observed | Y) where both take few values, else plus or minus infinity,
    by the count of continuous numbers; NaN with noise in the outputs."""
    unknown, known = state.prior.continuous_dimension, observed_dimension(state)
    if known is None:
        return float("nan")
    if unknown == known == 0:
        return state.problem.alpha * exact_log_evidence(state) - state.prior.entropy
    return float(np.inf if state.problem.alpha * known > unknown else -np.inf)


def exact_log_evidence(state: State) -> float:
    """E log P(observed | Y), what is observed being discrete: zero for labels without noise."""
    total = 0.0
    for labels, probability in state.problem.label_choices:
        *_, law, likelihood, _ = state.channel.table(labels)
        weights = np.exp(law)
        total += probability * float(np.sum(np.where(weights > 0, weights * likelihood, 0.0)))
    return total
