"""Weak recovery: where a solution that knows nothing of the teacher becomes unstable, or one that knows nothing of one
column, others being known (docs/theory.md (13.14))."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from .. import budget
from ..errors import InputError, NotConvergedError
from ..integration.estimates import two_standard_errors
from ..problems.problem import Problem
from ..progress import left
from .averages import Averages
from .sampling import REPLICATES, Preimages
from .state_evolution import Point, State, growth, radius

BRANCH = "branch"
_LOGITS = np.arange(-3.0, 7.1, 0.5)  # of the overlaps at which the growth is looked at on the branch
_STARTED = 24  # points to begin with on a branch
_FIELD_POINTS, _STARTS = 6, 10  # to begin with where columns are known exactly
_NEAR = 3.0  # log of the growth, in accuracies, up to which slopes lead to its zero
_TELLING = 1e-6  # logits apart that slopes are taken of
_GROWTH, _GROWTH_FROM_NOTHING, _MOST_ROUNDS, _MOST_DRAWS = 1.3, 1.5, 12, 16


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
