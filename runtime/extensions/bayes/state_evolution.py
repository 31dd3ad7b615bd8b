"""State evolution q -> q^ -> q of a Bayes-optimal learner (docs/theory.md (13.6)).

Solutions at a given overlap, the linear map around q = 0 (docs/theory.md (13.9), (13.10)), and the limit of perfect
recovery.

Unknowns are the overlaps of contexts whose eigenvalues differ; contexts that share them share q. State evolution may be
restricted to some columns of the teacher, the others having overlap zero.

Close to q = rho* a step of state evolution multiplies the unknown part by (unknown continuous numbers a row) / (alpha
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
from ...base.options import AlgorithmOptions
from ...integration.estimates import two_standard_errors
from ...problems.problem import Problem
from .averages import Averages, evaluate_channel, relative_difference, sample_coordinates
from .channel import Channel
from .prior import Prior

CLOSE = 1e-6  # unknown fraction of the teacher at which the limit of perfect recovery is taken
T = TypeVar("T")


@dataclass(frozen=True)
class StateEvolutionOptions(AlgorithmOptions):
    """Options of the map of state evolution and of its limit of perfect recovery.

    Attributes:
        difference_step: step of a coordinate in differences.
        expensive_closeness: unknown fraction at which the limit is taken where averages are expensive; `CLOSE` else.
        distance_ratio: ratio of two unknown fractions at which the information of samples is compared.
        growth_threshold: growth of E g g^T between them above which it is unbounded: it is 4 at the edge of a sign, 1
            without one.
    """

    difference_step: float = 1e-5
    expensive_closeness: float = 1e-2
    distance_ratio: float = 16.0
    growth_threshold: float = 2.0


@dataclass(frozen=True)
class Point:
    """A solution of state evolution at a fraction of the full overlap, with its sample complexity alpha."""

    fraction: float
    alpha: float
    q: np.ndarray
    averages: Averages


class State:
    """The map of state evolution of a problem, with rules of integration that are refined to a tolerance.

    Args:
        problem: the problem; its alpha is not used.
        columns: the columns of the teacher, from 0 on, that are learned; None for all.

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
        """Return the upper triangles of the distinct contexts, of the columns that are learned."""
        return self._pack_entries(q, self.triangle)

    def unpack(self, x: np.ndarray) -> np.ndarray:
        """Return overlaps, (C, t, t), from `pack`."""
        return self._unpack_symmetric(x, self.triangle)

    def _pack_entries(self, q: np.ndarray, places: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return q[self.first][:, places[0], places[1]].ravel()

    def _unpack_symmetric(self, x: np.ndarray, places: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        t = self.rho.shape[1]
        blocks = np.zeros((len(self.first), t, t))
        blocks[:, places[0], places[1]] = x.reshape(len(self.first), -1)
        blocks[:, places[1], places[0]] = x.reshape(len(self.first), -1)
        return blocks[self.which]

    @property
    def full_overlaps(self) -> np.ndarray:
        """The overlaps of perfect recovery: rho* of the columns that are learned, (C, t, t)."""
        return self.unpack(self.pack(self.rho))

    def apply_map(self, q: np.ndarray, alpha: float) -> np.ndarray:
        """Return the overlaps after one step of state evolution.

        Args:
            q: overlaps, (C, t, t).
            alpha: sample complexity.
        """
        budget.check_time_limit()
        return self.overlaps_from(self.channel.averages(q), alpha)

    def overlaps_from(self, averages: Averages, alpha: float) -> np.ndarray:
        """Return the overlaps that follow from averages over the channel, of the columns that are learned.

        Args:
            averages: averages over the channel.
            alpha: sample complexity.
        """
        return self.unpack(self.pack(self.prior.overlaps(alpha * averages.outer)))

    def check_excluded_columns(self, q: np.ndarray, alpha: float) -> None:
        """Check that columns with overlap zero keep it.

        Args:
            q: overlaps, (C, t, t).
            alpha: sample complexity.

        Raises:
            InputError: samples carry information on them, so that there is no such solution.
        """
        image = self.prior.overlaps(alpha * self.channel.averages(q).outer)
        change = np.abs(self._pack_entries(image, self.outside)).max(initial=0.0)
        if change > 1e-8 * np.abs(self.rho).max():
            raise InputError(
                f"samples of {self.problem.solver.name} carry information on all columns of the teacher: columns "
                f"{', '.join(str(c + 1) for c in self.columns)} cannot be learned alone"
            )

    def jacobian(self, averages: Averages, alpha: float, outside: bool = False) -> np.ndarray:
        """Return the Jacobian of the map with respect to the overlaps of `pack`.

        Args:
            averages: averages with their derivative in q.
            alpha: sample complexity.
            outside: with respect to all other overlaps instead.
        """
        places = self.outside if outside else self.triangle
        size = len(self.first) * len(places[0])
        if not size:
            return np.zeros((0, 0))
        assert averages.response is not None
        moved = np.stack([self._unpack_symmetric(unit, places) for unit in np.eye(size)])
        answers = alpha * np.einsum("cabdij,kdij->kcab", averages.response, moved)
        images = self.prior.overlap_changes(alpha * averages.outer, answers)
        return np.stack([self._pack_entries(image, places) for image in images], axis=1)

    def sampling_errors(self, q: np.ndarray, averages: Averages, alpha: float) -> np.ndarray:
        """Return two standard errors of a solution, (C, t, t), from replicates of a sampled rule and (1 - J)^{-1}.

        Args:
            q: the solution, (C, t, t).
            averages: averages at the solution, with their derivative in q.
            alpha: sample complexity.
        """
        inverse = np.linalg.inv(np.eye(len(self.pack(q))) - self.jacobian(averages, alpha))
        moves = [inverse @ self.pack(self.overlaps_from(sample, alpha) - q) for sample in averages.samples]
        return self.unpack(two_standard_errors(np.array(moves)))

    def refine_rule(self, q: np.ndarray, alpha: float, tolerance: float, curved: Averages | None = None) -> float:
        """Refine the rules of channel and prior at q; return the sum of their last relative changes.

        Args:
            q: overlaps, (C, t, t).
            alpha: sample complexity.
            tolerance: the largest change of averages by a finer rule.
            curved: averages with their derivative close to a solution; the channel's rule is then refined until the
                solution changes by less than the tolerance, relative to rho*.
        """
        scale = np.abs(self.pack(self.rho)).max()

        def difference(one: Averages, other: Averages) -> float:
            """Return the difference of two averages, as the change of the solution where it is close.

            Args:
                one: averages by a rule.
                other: averages by a finer one.
            """
            if curved is None:
                return relative_difference(one, other)
            gap = self.overlaps_from(other, alpha) - self.overlaps_from(one, alpha)
            return float(max(self.max_response(gap, alpha, curved).max() / scale, abs(other.norm - one.norm)))

        averages, total = self.channel.refine_rule(q, tolerance, difference)
        return total + self.prior.refine_rule(alpha * averages.outer, tolerance)

    def max_response(self, gap: np.ndarray, alpha: float, curved: Averages) -> np.ndarray:
        """Return the largest change of a solution by a change of the map, (C, t, t): |(1 - J)^{-1}| |gap|.

        Args:
            gap: change of the image of q, (C, t, t).
            alpha: sample complexity.
            curved: averages at the solution, with their derivative in q.
        """
        inverse = np.linalg.inv(np.eye(len(self.pack(gap))) - self.jacobian(curved, alpha))
        return self.unpack(np.abs(inverse) @ np.abs(self.pack(gap)))

    def evaluate_with_finer_rules(self, evaluate: Callable[[], T]) -> list[T]:
        """Return the values of a function with both rules finer by a factor on every axis, and a tenth of truncation.

        There are several factors where averages are cheap, as two rules may agree by chance where the outputs have
        edges between nodes.
        """
        channel, prior, found = self.channel, self.prior, []
        before = channel.counts, channel.cut, prior.count
        for factor in (1.25,) if channel.is_expensive else (1.25, 1.6):
            channel.counts, prior.count = [int(np.ceil(factor * n)) for n in before[0]], int(factor * before[2])
            channel.cut = before[1].reduced_tenfold
            try:
                found.append(evaluate())
            finally:
                channel.counts, channel.cut, prior.count = before
        return found

    @cached_property
    def prior_overlaps(self) -> np.ndarray:
        """The overlaps without samples, due to the means of the tokens, (C, t, t)."""
        return self.unpack(self.pack(self.prior.overlaps(np.zeros_like(self.rho))))

    @cached_property
    def is_uninformative(self) -> bool:
        """Whether q = 0 is a solution at every alpha: samples carry no information to first order."""
        if np.abs(self.prior_overlaps).max() > 1e-12 * np.abs(self.rho).max():
            return False
        # The average is quadratic in the posterior mean of Y, so that a rough rule distinguishes zero from small.
        cut = self.channel.cut
        averages, _ = self.channel.refine_rule(np.zeros_like(self.rho), 1e-5)
        self.channel.cut = cut
        scale = np.abs(np.linalg.inv(self.rho)).max()
        return bool(np.abs(averages.outer).max() < 1e-9 * scale)

    def overlap_fraction(self, q: np.ndarray) -> float:
        """Return the mean over distinct contexts of Tr q / Tr rho*, of the learned columns: 1 at perfect recovery."""
        whole = self.full_overlaps
        return float(np.mean([np.trace(q[c]) / np.trace(whole[c]) for c in self.first]))

    def free_entropy(self, q: np.ndarray, alpha: float, averages: Averages) -> float:
        """Return Phi at overlaps q with the conjugates that follow from them: log-evidence per d, in nats.

        Args:
            q: overlaps, (C, t, t).
            alpha: sample complexity.
            averages: averages over the channel at q.
        """
        hats = alpha * averages.outer
        trace = float(np.einsum("cij,cij->", hats, q))
        return -trace / 2 + self.prior.averages(hats)[1] + alpha * averages.log_evidence

    def solve_at_fraction(self, fraction: float, guess: Point | None = None, curved: bool = False) -> Point:
        """Return the solution whose overlaps are a given fraction of the full ones, and its alpha.

        For one unknown this is alpha(q) itself; else Newton in the overlaps and log alpha at a fixed fraction.

        Args:
            fraction: the fraction Tr q / Tr rho*.
            guess: a solution nearby.
            curved: whether to compute the derivative of the averages, too.

        Raises:
            NotConvergedError: Newton fails.
        """
        if self.pack(self.rho).size == 1:
            q = fraction * self.full_overlaps
            averages = self.channel.averages(q, curved)
            return Point(fraction, self._solve_alpha(q, averages), q, averages)
        q = fraction * self.full_overlaps if guess is None else guess.q * (fraction / guess.fraction)
        alpha = 1.0 if guess is None else guess.alpha
        x = np.append(self.pack(q), np.log(alpha))
        for _ in range(30):
            q, alpha = self.unpack(x[:-1]), float(np.exp(x[-1]))
            averages = self.channel.averages(q, curved=True)
            gap = (self.pack(self.overlaps_from(averages, alpha)) - x[:-1]) / np.abs(self.pack(self.rho)).max()
            value = np.append(gap, self.overlap_fraction(q) - fraction)
            if np.abs(value).max() < 1e-12:
                return Point(fraction, alpha, q, averages)
            x = x - np.linalg.solve(self._fraction_jacobian(alpha, averages), value)
        raise NotConvergedError(f"no solution of state evolution was found at a fraction {fraction:.6g} of the overlap")

    def _fraction_jacobian(self, alpha: float, averages: Averages) -> np.ndarray:
        """Return the Jacobian of the equations of `solve_at_fraction` in overlaps and log alpha."""
        hats, scale, size = alpha * averages.outer, np.abs(self.pack(self.rho)).max(), self.pack(self.rho).size
        by_overlaps = (self.jacobian(averages, alpha) - np.eye(size)) / scale
        by_alpha = self.pack(self.prior.overlap_changes(hats, hats[None])[0]) / scale
        shares = [self.overlap_fraction(self.unpack(unit)) for unit in np.eye(size)]
        return np.block([[by_overlaps, by_alpha[:, None]], [np.array(shares), 0.0]])

    def _solve_alpha(self, q: np.ndarray, averages: Averages) -> float:
        """Return the alpha at which a scalar overlap is a fixed point: prior's inverse over channel's average."""
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


def growth_from_zero(state: State) -> tuple[float, np.ndarray]:
    """Return the growth factor of the leading small overlap in a step from q = 0 at alpha = 1, and that overlap.

    The map is positive, so that it is iterated from rho* until its direction has converged.
    """
    averages = state.channel.averages(np.zeros_like(state.rho), curved=True)
    matrix, direction = state.jacobian(averages, 1.0), state.pack(state.full_overlaps)
    factor = spectral_radius(matrix)
    direction /= np.linalg.norm(direction)
    if factor > 0:
        for _ in range(200):
            direction = (matrix @ direction) / factor + 1e-3 * direction
            direction /= np.linalg.norm(direction)
    return factor, state.unpack(direction)


def spectral_radius(matrix: np.ndarray) -> float:
    """Return the spectral radius: the largest modulus of an eigenvalue."""
    return float(np.max(np.abs(np.linalg.eigvals(matrix)))) if matrix.size else 0.0


def observed_dimension(state: State) -> float:
    """Return how many continuous numbers a sample shows without noise of the columns that are learned.

    The other columns are unknown. If the number depends on the observed labels the mean is returned. Coordinates that
    are no functions of the fields are noisy: they have a density given the fields.
    """
    channel = state.channel
    (labels, _), *_ = state.problem.label_choices
    places = [i for i, c in enumerate(channel.observed) if not c.is_continuous]
    choices = product(*(channel.observed[i].values for i in places))
    found = {choice: _observed_dimension_at(state, labels, places, choice) for choice in choices}
    if len(set(found.values())) == 1:
        return float(next(iter(found.values())))
    probabilities = channel.probabilities_of_observed_choices(labels)
    return sum(probability * found[choice] for choice, probability in probabilities.items())


def _observed_dimension_at(state: State, labels: tuple[int, ...], places: list[int], choice: tuple[float, ...]) -> int:
    """Return `observed_dimension` at values of the discrete observed coordinates, which have these places."""
    step_size = StateEvolutionOptions.current().difference_step
    channel = state.channel
    random = np.random.default_rng(0)
    at = [sample_coordinates(group, random)[:1] for group in (channel.module.OBSERVED, channel.module.HIDDEN)]
    at[0][:, places] = choice
    slopes, seen = [], []
    for group, coordinates in enumerate((channel.observed, channel.hidden)):
        for place in (i for i, c in enumerate(coordinates) if c.is_continuous):
            ends = []
            for step in (step_size, -step_size):
                moved = [values.copy() for values in at]
                moved[group][0, place] += step
                ends.append(evaluate_channel(state.problem, labels, *moved)[0][0, 0])
            if (slope := (ends[0] - ends[1]) / (2 * step_size)).any():
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


def near_full_overlaps(state: State, farther: float = 1.0) -> np.ndarray:
    """Return overlaps close to perfect recovery, (C, t, t).

    Args:
        state: the map of state evolution.
        farther: factor of the fraction of the teacher that stays unknown.
    """
    close = StateEvolutionOptions.current().expensive_closeness if state.channel.is_expensive else CLOSE
    return (1 - farther * close) * state.full_overlaps


def is_information_unbounded(state: State) -> bool:
    """Return whether E g g^T of the columns that are learned grows without bound towards q = rho*."""
    sizes, counts, options = [], state.channel.counts, StateEvolutionOptions.current()
    for farther in (options.distance_ratio, 1.0):
        averages, _ = state.channel.refine_rule(near_full_overlaps(state, farther), 1e-2)
        sizes.append(float(np.linalg.norm(state.pack(averages.outer))))
    state.channel.counts = counts
    return sizes[1] > options.growth_threshold * sizes[0]


def free_entropy_of_recovery(state: State) -> float:
    """Return Phi at q = rho*: -H(row) + alpha E log P(observed | Y) of rows that take few values.

    It is plus or minus infinity for other rows, by the count of continuous numbers; NaN if a column is not learned.
    """
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
        *_, law, likelihood, _ = state.channel.relevant_nodes(labels)
        weights = np.exp(law)
        total += probability * float(np.sum(weights * np.where(weights > 0, likelihood, 0.0)))
    return total
