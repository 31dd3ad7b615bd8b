"""State evolution q -> q^ -> q of a Bayes-optimal learner (docs/theory.md (13.6)): solutions along a common overlap,
the linear map around q = 0 (docs/theory.md (13.9), (13.10)), and the limit of perfect recovery.

Unknowns are the overlaps of contexts whose eigenvalues differ; contexts that share them share q. State evolution may be
held to some columns of the teacher, of the others nothing being known.

Close to q = rho* a step of state evolution multiplies what is unknown by (unknown continuous numbers a row) / (alpha
times the continuous numbers seen in a sample without noise), the ratio of two MMSE dimensions (Y. Wu, S. Verdu, IEEE
Trans. Inf. Theory 57 (2011) 4857): perfect recovery is stable below one. Where both numbers are zero it is a solution
only if the information of samples on small changes of the fields is unbounded, as at the edge of a sign.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TypeVar

import numpy as np
from scipy.optimize import brentq

from ...base import budget
from ...base.errors import InputError, NotConvergedError
from ...integration.estimates import two_standard_errors
from ...problems.problem import Problem
from .averages import Averages, change, channel_at, random_coordinates
from .channel import Channel
from .prior import Prior

_STEP = 1e-5  # of a coordinate, in differences
CLOSE, _CLOSE_IF_DEAR = 1e-6, 1e-2  # share of the teacher that is unknown where that limit is looked at
_FARTHER = 16.0  # and how much more elsewhere; between both E g g^T grows by 4 at the edge of a sign, without one not
_GROWS = 2.0
T = TypeVar("T")


@dataclass(frozen=True)
class Point:
    """A solution of state evolution, with the sample complexity at which it is one."""

    share: float
    alpha: float
    q: np.ndarray
    averages: Averages


class State:
    """The map of state evolution of a problem, with rules that settle at a tolerance.

    Args:
        columns: of the teacher, from 0 on, that anything is learned of; None for all.

    Raises:
        InputError: the model has no output channel, or rows that cannot be treated, or no such columns.
    """

    def __init__(self, problem: Problem, columns: Sequence[int] | None = None) -> None:
        self.problem = problem
        self.channel = Channel(problem)
        self.prior = Prior(problem)
        _, self.first, self.which = np.unique(problem.law.gamma.T, axis=0, return_index=True, return_inverse=True)
        self.which = self.which.ravel()
        self.rho = problem.law.rho_star
        t = problem.teacher_rank
        self.columns = tuple(range(t)) if columns is None else tuple(sorted(set(columns)))
        if not self.columns or not set(self.columns) <= set(range(t)):
            raise InputError(
                f"{problem.solver.name} has columns 1 to {t} of the teacher, not "
                f"{', '.join(str(c + 1) for c in self.columns) or 'none'}"
            )
        rows, columns_ = np.triu_indices(t)
        inside = np.isin(rows, self.columns) & np.isin(columns_, self.columns)
        self.triangle = rows[inside], columns_[inside]
        self.outside = rows[~inside], columns_[~inside]

    def pack(self, q: np.ndarray) -> np.ndarray:
        """Upper triangles of the distinct contexts, of the columns that are learned."""
        return self._entries(q, self.triangle)

    def unpack(self, x: np.ndarray) -> np.ndarray:
        """(C, t, t) of `pack`."""
        return self._symmetric(x, self.triangle)

    def _entries(self, q: np.ndarray, places: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return q[self.first][:, places[0], places[1]].ravel()

    def _symmetric(self, x: np.ndarray, places: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        t = self.rho.shape[1]
        blocks = np.zeros((len(self.first), t, t))
        blocks[:, places[0], places[1]] = x.reshape(len(self.first), -1)
        blocks[:, places[1], places[0]] = x.reshape(len(self.first), -1)
        return blocks[self.which]

    @property
    def everything(self) -> np.ndarray:
        """rho*, of the columns that are learned."""
        return self.unpack(self.pack(self.rho))

    def image(self, q: np.ndarray, alpha: float) -> np.ndarray:
        """One step of state evolution."""
        budget.check()
        return self.reached(self.channel.averages(q), alpha)

    def reached(self, averages: Averages, alpha: float) -> np.ndarray:
        """q from averages over the channel, of the columns that are learned."""
        return self.unpack(self.pack(self.prior.overlaps(alpha * averages.outer)))

    def check_held(self, q: np.ndarray, alpha: float) -> None:
        """Whether nothing is learned of the columns that are held at nothing.

        Raises:
            InputError: samples tell of them, so that there is no such solution.
        """
        image = self.prior.overlaps(alpha * self.channel.averages(q).outer)
        told = np.abs(self._entries(image, self.outside)).max(initial=0.0)
        if told > 1e-8 * np.abs(self.rho).max():
            raise InputError(
                f"samples of {self.problem.solver.name} carry information on all columns of the teacher: columns "
                f"{', '.join(str(c + 1) for c in self.columns)} cannot be learned alone"
            )

    def jacobian(self, averages: Averages, alpha: float, outside: bool = False) -> np.ndarray:
        """Derivative of the map in the overlaps that `pack` takes, or in all the others where `outside`.

        Args:
            averages: with their derivative in q.
        """
        places = self.outside if outside else self.triangle
        size = len(self.first) * len(places[0])
        if not size:
            return np.zeros((0, 0))
        assert averages.response is not None
        moved = np.stack([self._symmetric(unit, places) for unit in np.eye(size)])
        answers = alpha * np.einsum("cabdij,kdij->kcab", averages.response, moved)
        images = self.prior.slope(alpha * averages.outer, answers)
        return np.stack([self._entries(image, places) for image in images], axis=1)

    def spread(self, q: np.ndarray, averages: Averages, alpha: float) -> np.ndarray:
        """Two standard errors of a solution, (C, t, t), from the replicates of a sampled rule through (1 - J)^{-1}.

        Args:
            averages: at the solution, with their derivative in q.
        """
        inverse = np.linalg.inv(np.eye(len(self.pack(q))) - self.jacobian(averages, alpha))
        moves = [inverse @ self.pack(self.reached(sample, alpha) - q) for sample in averages.samples]
        return self.unpack(two_standard_errors(np.array(moves)))

    def settle(self, q: np.ndarray, alpha: float, tolerance: float, curved: Averages | None = None) -> float:
        """Refine both rules at q; returns the sum of their last relative changes.

        Args:
            curved: averages with their derivative close to a solution; the channel's rule is then refined until that is
                known to the tolerance, relative to rho*.
        """
        scale = np.abs(self.pack(self.rho)).max()

        def moved(one: Averages, other: Averages) -> float:
            if curved is None:
                return change(one, other)
            gap = self.reached(other, alpha) - self.reached(one, alpha)
            return float(max(self.answer(gap, alpha, curved).max() / scale, abs(other.norm - one.norm)))

        averages, total = self.channel.settle(q, tolerance, moved)
        return total + self.prior.settle(alpha * averages.outer, tolerance)

    def answer(self, gap: np.ndarray, alpha: float, curved: Averages) -> np.ndarray:
        """Most that a solution moves by where the image of q does by a gap, (C, t, t): |(1 - J)^{-1}| |gap|, so that no
        two entries cancel.

        Args:
            curved: averages at the solution, with their derivative in q.
        """
        inverse = np.linalg.inv(np.eye(len(self.pack(gap))) - self.jacobian(curved, alpha))
        return self.unpack(np.abs(inverse) @ np.abs(self.pack(gap)))

    def by_finer_rules(self, evaluate: Callable[[], T]) -> list[T]:
        """Return what a function finds where both rules are finer by a factor on every axis, with a tenth left out of
        what is: for several factors where averages take little, as two rules may agree by chance where the outputs have
        edges between nodes."""
        channel, prior, found = self.channel, self.prior, []
        before = channel.counts, channel.cut, prior.count
        for factor in (1.25,) if channel.dear else (1.25, 1.6):
            channel.counts, prior.count = [int(np.ceil(factor * n)) for n in before[0]], int(factor * before[2])
            channel.cut = before[1].tenth
            try:
                found.append(evaluate())
            finally:
                channel.counts, channel.cut, prior.count = before
        return found

    @cached_property
    def nothing(self) -> np.ndarray:
        """Overlaps before any sample is seen: what the means tell."""
        return self.unpack(self.pack(self.prior.overlaps(np.zeros_like(self.rho))))

    @cached_property
    def uninformative(self) -> bool:
        """Whether samples teach nothing to a learner that knows nothing: q = 0 is a solution at every alpha."""
        if np.abs(self.nothing).max() > 1e-12 * np.abs(self.rho).max():
            return False
        # The average is quadratic in the posterior mean of Y, so that a rough rule tells zero from small.
        cut = self.channel.cut
        averages, _ = self.channel.settle(np.zeros_like(self.rho), 1e-5)
        self.channel.cut = cut
        scale = np.abs(np.linalg.inv(self.rho)).max()
        return bool(np.abs(averages.outer).max() < 1e-9 * scale)

    def share(self, q: np.ndarray) -> float:
        """Mean over distinct contexts of Tr q / Tr rho*, of the columns that are learned: 1 at perfect recovery."""
        whole = self.everything
        return float(np.mean([np.trace(q[c]) / np.trace(whole[c]) for c in self.first]))

    def free_entropy(self, q: np.ndarray, alpha: float, averages: Averages) -> float:
        """Phi at overlaps q with the conjugates that follow from them: log-evidence per d."""
        hats = alpha * averages.outer
        trace = float(np.einsum("cij,cij->", hats, q))
        return -trace / 2 + self.prior.averages(hats)[1] + alpha * averages.log_evidence

    def point(self, share: float, guess: Point | None = None, curved: bool = False) -> Point:
        """The solution whose overlaps have a given share, and the alpha that belongs to it.

        For one unknown this is alpha(q) itself; else Newton in the overlaps and log alpha at fixed share.

        Raises:
            NotConvergedError: Newton fails.
        """
        if self.pack(self.rho).size == 1:
            q = share * self.everything
            averages = self.channel.averages(q, curved)
            return Point(share, self._alpha(q, averages), q, averages)
        q = share * self.everything if guess is None else guess.q * (share / guess.share)
        alpha = 1.0 if guess is None else guess.alpha
        x = np.append(self.pack(q), np.log(alpha))
        for _ in range(30):
            q, alpha = self.unpack(x[:-1]), float(np.exp(x[-1]))
            averages = self.channel.averages(q, curved=True)
            gap = (self.pack(self.reached(averages, alpha)) - x[:-1]) / np.abs(self.pack(self.rho)).max()
            value = np.append(gap, self.share(q) - share)
            if np.abs(value).max() < 1e-12:
                return Point(share, alpha, q, averages)
            x = x - np.linalg.solve(self._gap_slope(alpha, averages), value)
        raise NotConvergedError(f"no solution of state evolution was found at a fraction {share:.6g} of the overlap")

    def _gap_slope(self, alpha: float, averages: Averages) -> np.ndarray:
        """Derivative of the gap of `point` in overlaps and log alpha."""
        hats, scale, size = alpha * averages.outer, np.abs(self.pack(self.rho)).max(), self.pack(self.rho).size
        by_overlaps = (self.jacobian(averages, alpha) - np.eye(size)) / scale
        by_alpha = self.pack(self.prior.slope(hats, hats[None])[0]) / scale
        shares = [self.share(self.unpack(unit)) for unit in np.eye(size)]
        return np.block([[by_overlaps, by_alpha[:, None]], [np.array(shares), 0.0]])

    def _alpha(self, q: np.ndarray, averages: Averages) -> float:
        """The alpha at which one scalar overlap reproduces itself: the prior's inverse over the channel's average."""
        target = float(self.pack(q)[0])

        def excess(log_alpha: float) -> float:
            return float(self.pack(self.prior.overlaps(np.exp(log_alpha) * averages.outer))[0]) - target

        low = high = 0.0
        while excess(low) > 0:
            low -= 2.0
            if low < -40:
                raise NotConvergedError("the overlap asked for is known before any sample is seen")
        while excess(high) < 0:
            high += 2.0
            if high > 40:
                raise NotConvergedError("no sample complexity reaches the overlap asked for")
        return float(np.exp(brentq(excess, low, high, xtol=1e-15, rtol=4 * np.finfo(float).eps)))


def growth(state: State) -> tuple[float, np.ndarray]:
    """Factor by which the leading small overlap grows from q = 0 in a step at alpha = 1, and that overlap, (C, t, t).

    The map is positive, so that it is iterated from rho* until its direction rests.
    """
    averages = state.channel.averages(np.zeros_like(state.rho), curved=True)
    matrix, direction = state.jacobian(averages, 1.0), state.pack(state.everything)
    factor = radius(matrix)
    direction /= np.linalg.norm(direction)
    if factor > 0:
        for _ in range(200):
            direction = (matrix @ direction) / factor + 1e-3 * direction
            direction /= np.linalg.norm(direction)
    return factor, state.unpack(direction)


def radius(matrix: np.ndarray) -> float:
    """Largest modulus of an eigenvalue."""
    return float(np.max(np.abs(np.linalg.eigvals(matrix)))) if matrix.size else 0.0


def observed_dimension(state: State) -> float:
    """Return how many continuous numbers a sample shows without noise of the columns that are learned, nothing being
    known of the others; their mean, where there are more at some observed labels than at others.

    Coordinates that the fields are not made of are noisy: what is observed has a density given the fields.
    """
    channel = state.channel
    (labels, _), *_ = state.problem.label_choices
    places = [i for i, c in enumerate(channel.observed) if not c.continuous]
    choices = product(*(channel.observed[i].values for i in places))
    found = {choice: _dimension_at(state, labels, places, choice) for choice in choices}
    if len(set(found.values())) == 1:
        return float(next(iter(found.values())))
    probabilities = channel.probabilities_of_observed_choices(labels)
    return sum(probability * found[choice] for choice, probability in probabilities.items())


def _dimension_at(state: State, labels: tuple[int, ...], places: list[int], choice: tuple[float, ...]) -> int:
    """Return `observed_dimension` at values of the discrete observed coordinates, which have these places."""
    channel = state.channel
    random = np.random.default_rng(0)
    at = [random_coordinates(group, random)[:1] for group in (channel.module.OBSERVED, channel.module.HIDDEN)]
    at[0][:, places] = choice
    slopes, seen = [], []
    for group, coordinates in enumerate((channel.observed, channel.hidden)):
        for place in (i for i, c in enumerate(coordinates) if c.continuous):
            ends = []
            for step in (_STEP, -_STEP):
                moved = [values.copy() for values in at]
                moved[group][0, place] += step
                ends.append(channel_at(state.problem, labels, *moved)[0][0, 0])
            if (slope := (ends[0] - ends[1]) / (2 * _STEP)).any():
                slopes.append(slope)
                seen.append(group == 0)
    of_fields = np.linalg.inv(np.array(slopes).T)[seen]
    t = state.problem.teacher_rank
    others = [field for field in range(of_fields.shape[1]) if field % t not in state.columns]
    return len(of_fields) - int(np.linalg.matrix_rank(of_fields[:, others], tol=1e-6) if others else 0)


def is_recovered(state: State) -> bool:
    """Return whether perfect recovery is a stable solution of state evolution at the problem's alpha."""
    unknown, known = state.prior.continuous_dimension, observed_dimension(state)
    if unknown or known:
        return bool(state.problem.alpha * known > unknown)
    return is_information_unbounded(state)


def almost_everything(state: State, farther: float = 1.0) -> np.ndarray:
    """Return overlaps that leave a small fraction of the teacher unknown, (C, t, t)."""
    return (1 - farther * (_CLOSE_IF_DEAR if state.channel.dear else CLOSE)) * state.everything


def is_information_unbounded(state: State) -> bool:
    """Return whether E g g^T of the columns that are learned grows without bound towards q = rho*."""
    sizes, counts = [], state.channel.counts
    for farther in (_FARTHER, 1.0):
        averages, _ = state.channel.settle(almost_everything(state, farther), 1e-2)
        sizes.append(float(np.linalg.norm(state.pack(averages.outer))))
    state.channel.counts = counts
    return sizes[1] > _GROWS * sizes[0]


def free_entropy_of_recovery(state: State) -> float:
    """Return Phi at q = rho*: -H(row) + alpha E log P(observed | Y) of rows that take few values, else plus or minus
    infinity, by the count of continuous numbers; NaN where columns are held at nothing."""
    if len(state.columns) < state.problem.teacher_rank:
        return float("nan")
    unknown, known = state.prior.continuous_dimension, observed_dimension(state)
    if unknown or known:
        return float(np.inf if state.problem.alpha * known > unknown else -np.inf)
    return state.problem.alpha * exact_log_evidence(state) - state.prior.entropy


def exact_log_evidence(state: State) -> float:
    """Return E log P(observed | Y): zero for labels without noise."""
    total = 0.0
    for labels, probability in state.problem.label_choices:
        *_, law, likelihood, _ = state.channel.table(labels)
        weights = np.exp(law)
        total += probability * float(np.sum(weights * np.where(weights > 0, likelihood, 0.0)))
    return total
