"""Weak recovery of one column of the teacher while others are known: where a solution that knows nothing of it becomes
unstable (docs/theory.md (13.14))."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from .. import budget
from ..errors import InputError, NotConvergedError
from ..integration.estimates import two_standard_errors
from ..problems.problem import Problem
from ..progress import left
from .averages import Averages
from .linear import growth, onset, radius
from .planted import REPLICATES
from .preimages import Preimages
from .state import Point, State

BRANCH = "branch"
_LOGITS = np.arange(-3.0, 7.1, 0.5)  # of the overlaps at which the growth is looked at on the branch
_STARTED = 24  # points to begin with on a branch
_FIELD_POINTS, _STARTS = 6, 10  # to begin with where columns are known exactly
_NEAR = 3.0  # log of the growth, in accuracies, up to which slopes lead to its zero
_TELLING = 1e-6  # logits apart that slopes are taken of
_GROWTH, _MOST_ROUNDS, _MOST_DRAWS = 1.3, 12, 16


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
    t = problem.teacher_rank
    named = {of, *given}
    if not named <= set(range(1, t + 1)) or of in given:
        raise InputError(
            f"of = {of}, given = {sorted(given)}: columns of the teacher are 1 to {t}, and `of` is not among the given"
        )
    known = sorted(column - 1 for column, value in given.items() if value == BRANCH or value != 0)
    shares = {column - 1: value for column, value in given.items() if value != BRANCH}
    for column, share in shares.items():
        if isinstance(share, str) or not 0 <= share <= 1:
            raise InputError(f"column {column + 1} = {share!r} is out of range; allowed is [0, 1] or {BRANCH!r}")
    if shares and len(shares) != len(given) and any(shares.values()):
        raise InputError(f"columns are given as shares or as {BRANCH!r}; do not mix both")
    rho = problem.law.rho_star
    others = [column for column in range(t) if column != of - 1]
    if np.abs(rho[:, of - 1][:, others]).max(initial=0.0) > 0:
        raise InputError("columns of the teacher that are correlated are not learned one by one")
    if 1 in shares.values():
        if [shares.get(column) for column in others] != [1] * len(others):
            raise InputError("a column is given as known exactly (share 1): give all others but `of` in this way, too")
        return _refined(_Exact(problem, of - 1), accuracy)
    if not known:
        return _refined(_Fixed(problem, of - 1, np.zeros_like(rho)), accuracy)
    if len(shares) == len(given):
        q = np.zeros_like(rho)
        for column, share in shares.items():
            q[:, column, column] = float(share) * rho[:, column, column]
        return _refined(_Fixed(problem, of - 1, q), accuracy)
    return _refined(_Branch(problem, of - 1, known, accuracy), accuracy)


def _growth(state: State, of: int, averages: Averages, alpha: float) -> float:
    """Largest growth in a step of overlaps of the column with itself."""
    matrix = state.jacobian(averages, alpha, outside=True)
    own = [i for i, (a, b) in enumerate(zip(*state.outside, strict=True)) if a == b == of]
    size = len(state.outside[0])
    places = [context * size + i for context in range(len(state.first)) for i in own]
    return radius(matrix[np.ix_(places, places)])


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


def _inverse(factor: float, of: int) -> float:
    """alpha at which a growth per alpha is one."""
    if factor < 1e-12:
        raise NotConvergedError(f"nothing is learned of column {of + 1} at any sample complexity")
    return 1 / factor


class _Fixed:
    """Overlaps given by other means: one evaluation.

    Attributes:
        near: overlaps at which rules are chosen, here and on a branch.
    """

    def __init__(self, problem: Problem, of: int, q: np.ndarray) -> None:
        others = [column for column in range(problem.teacher_rank) if column != of]
        self.state, self.of, self.near = State(problem, others or None), of, q
        if not others:
            raise InputError("the teacher has a single column; leave of and given out")
        _check_untold(self.state, of, self.state.channel.averages(np.zeros_like(q)))

    def find(self) -> tuple[float, float, np.ndarray]:
        budget.check()
        averages = self.state.channel.averages(self.near, curved=True)
        # Of a column that nothing is known of the row's covariance is its own, whatever is known of independent ones.
        averages = replace(averages, outer=np.zeros_like(self.near))
        factor = _growth(self.state, self.of, averages, 1.0)
        return _inverse(factor, self.of), factor, self.near

    @property
    def counts(self) -> list[int]:
        """Points of the rule."""
        return self.state.channel.counts


class _Nothing:
    """Nothing known of any column.

    Attributes:
        near: overlaps at which rules are chosen.
    """

    def __init__(self, state: State) -> None:
        self.state, self.near = state, np.zeros_like(state.rho)

    def find(self) -> tuple[float, float, np.ndarray]:
        budget.check()
        factor, direction = growth(self.state)
        return onset(self.state, factor), factor, direction


class _Exact:
    """The other columns known exactly: one evaluation.

    Attributes:
        counts: of the rule, points of a field and starts across the hidden coordinates.
    """

    def __init__(self, problem: Problem, of: int) -> None:
        others = [column for column in range(problem.teacher_rank) if column != of]
        self.state, self.of = State(problem, others), of
        even = len(self.state.channel.kept_by_signs) == problem.teacher_rank
        self.rule = Preimages(problem, of, even)
        self.counts = [_FIELD_POINTS, _STARTS]

    def find(self) -> tuple[float, float, np.ndarray]:
        self.rule.points, self.rule.starts = self.counts[0] + self.counts[0] % 2, self.counts[1]
        averages = self.rule.averages()
        _check_untold(self.state, self.of, averages)
        averages = replace(averages, outer=np.zeros_like(averages.outer))
        factor = _growth(self.state, self.of, averages, 1.0)
        return _inverse(factor, self.of), factor, self.state.everything


class _Branch:
    """Overlaps on the branch on which the others are learned from the same samples."""

    def __init__(self, problem: Problem, of: int, known: list[int], accuracy: float) -> None:
        self.state, self.of, self.near_enough = State(problem, known), of, _NEAR * accuracy
        self.near = self.state.everything / 2
        self.place: tuple[float, tuple[float, float, np.ndarray]] | None = None
        self.guess: Point | None = None
        self.counts = self.state.channel.counts
        self.counts[:] = [_STARTED] * len(self.counts)
        self.state.channel.leave_out(accuracy)

    def _excess(self, logit: float) -> tuple[float, Point, float]:
        """log of the growth at the point of the branch with this overlap."""
        budget.check()
        point = self.state.point(float(1 / (1 + np.exp(-logit))), self.guess, curved=True)
        factor = _growth(self.state, self.of, point.averages, point.alpha)
        self.guess = point
        return float(np.log(factor)), point, factor

    def find(self) -> tuple[float, float, np.ndarray]:
        """By the secant rule from where a look along the branch finds a change of sign; for another rule from the last
        place."""
        if self.place is None:
            low, high = self._bracket()
            below, above = self._excess(low), self._excess(high)
            slopes = self._slopes(low, below, high, above)
        else:
            high, slopes = self.place
            above = self._excess(high)
        for _ in range(30):
            slope, alpha_slope, q_slope = slopes
            step = -above[0] / slope
            if abs(above[0]) < self.near_enough:
                break
            low, below, high = high, above, high + float(np.clip(step, -1, 1))
            above = self._excess(high)
            if abs(high - low) > _TELLING:
                slopes = self._slopes(low, below, high, above)
        else:
            raise NotConvergedError("the growth on the branch has no zero where it was looked for")
        self.place = (high, slopes)
        return above[1].alpha + alpha_slope * step, above[2] / above[1].alpha, above[1].q + q_slope * step

    @staticmethod
    def _slopes(
        low: float, below: tuple[float, Point, float], high: float, above: tuple[float, Point, float]
    ) -> tuple[float, float, np.ndarray]:
        """Of the logarithm of the growth, alpha and q between two places."""
        run = high - low
        return (
            (above[0] - below[0]) / run,
            (above[1].alpha - below[1].alpha) / run,
            (above[1].q - below[1].q) / run,
        )

    def _bracket(self) -> tuple[float, float]:
        last = None
        for logit in _LOGITS:
            left(f"growth of column {self.of + 1} where the others know {1 / (1 + np.exp(-logit)):.3f}")
            value = self._excess(float(logit))[0]
            if value > 0:
                if last is None:
                    return float(logit) - 0.5, float(logit)
                return last, float(logit)
            last = float(logit)
        raise NotConvergedError(
            f"column {self.of + 1} of {self.state.problem.solver.name} is not learned on the branch of the others, as "
            "far as that was followed"
        )


def _refined(place: _Fixed | _Exact | _Branch, accuracy: float) -> Recovery:
    """Axes are refined one after another until the threshold rests."""
    if not isinstance(place, _Exact) and place.state.channel.is_sampled(place.near):
        return _drawn(place, accuracy)
    counts = place.counts
    alpha, growth, q = place.find()
    for _ in range(_MOST_ROUNDS):
        error = 0.0
        for axis in range(len(counts)):
            before = list(counts)
            counts[axis] = int(np.ceil(before[axis] * _GROWTH))
            finer = place.find()
            moved = abs(finer[0] - alpha)
            error += moved
            left(f"alpha {finer[0]:.8g} at {counts} points, moved by {moved:.1e}")
            if moved < accuracy * alpha / (4 * len(before)):
                counts[:] = before
            else:
                alpha, growth, q = finer
        if error < accuracy * alpha:
            return Recovery(alpha, error + place.state.channel.cut.share * alpha, growth, q, list(counts))
    raise NotConvergedError(f"alpha = {alpha:.8g} moves by {error:.1e} still; ask for a larger --accuracy")


def drawn_from_nothing(state: State, accuracy: float) -> Recovery:
    """alpha at which q = 0 becomes unstable, where averages are drawn there, too."""
    return _drawn(_Nothing(state), accuracy)


def _drawn(place: _Fixed | _Branch | _Nothing, accuracy: float) -> Recovery:
    """By replicates: the threshold of each."""
    planted = place.state.channel.planted
    planted.settle(place.near, max(accuracy, 1e-4))
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
