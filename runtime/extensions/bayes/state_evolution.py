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
from ...integration.estimates import replicate_error_bar
from ...problems.problem import Problem
from .averages import ChannelAverages, evaluate_output_channel, random_channel_points, relative_difference_of_averages
from .channel import OutputChannel
from .prior import TeacherRowPrior

CLOSE = 1e-6  # unknown fraction of the teacher at which the limit of perfect recovery is taken
T = TypeVar("T")


@dataclass(frozen=True)
class StateEvolutionOptions(AlgorithmOptions):
    """Options of the map of state evolution and of its limit of perfect recovery.

    Attributes:
        difference_step: step of a coordinate in finite differences.
        expensive_closeness: unknown fraction at which the limit is taken where averages are expensive, in place of
            `CLOSE`.
        distance_ratio: ratio of two unknown fractions at which the information of samples is compared.
        growth_threshold: growth of the information of samples between them above which it counts as unbounded: it is 4
            where a label is the sign of a field, and 1 for smooth outputs.
    """

    difference_step: float = 1e-5
    expensive_closeness: float = 1e-2
    distance_ratio: float = 16.0
    growth_threshold: float = 2.0


@dataclass(frozen=True)
class FixedPoint:
    """A fixed point of state evolution found for a given recovered fraction of the teacher, with its alpha = n/d."""

    fraction: float
    alpha: float
    q: np.ndarray
    averages: ChannelAverages


class StateEvolutionMap:
    """The map of state evolution of a Bayes-optimal problem, by integration rules that are refined to a tolerance.

    One step maps the overlaps q of the posterior mean with the teacher to those after one iteration.

    Args:
        problem: the problem; its alpha is not used.
        columns: indices of the teacher columns, from 0, that are learned; None for all.

    Raises:
        InputError: the model has no output channel, its teacher rows are not supported, or columns do not exist.
    """

    def __init__(self, problem: Problem, columns: Sequence[int] | None = None) -> None:
        self.problem = problem
        self.channel = OutputChannel(problem)
        self.prior = TeacherRowPrior(problem)
        _, self.first, self.which = np.unique(problem.law.gamma.T, axis=0, return_index=True, return_inverse=True)
        self.which = self.which.ravel()
        self.rho = problem.law.rho_star
        t = problem.teacher_rank
        self.columns = tuple(range(t)) if columns is None else tuple(sorted(set(columns)))
        if not self.columns or not set(self.columns) <= set(range(t)):
            raise InputError(
                f"columns = {', '.join(str(c + 1) for c in self.columns) or 'none'}: the teacher of "
                f"{problem.solver.name} has columns 1 to {t}"
            )
        rows, columns_ = np.triu_indices(t)
        inside = np.isin(rows, self.columns) & np.isin(columns_, self.columns)
        self.triangle = rows[inside], columns_[inside]
        self.outside = rows[~inside], columns_[~inside]

    def pack_overlaps(self, q: np.ndarray) -> np.ndarray:
        """Return the overlaps q of the learned columns as a vector: the upper triangle for each distinct matrix."""
        return self._pack_overlap_entries(q, self.triangle)

    def unpack_overlaps(self, x: np.ndarray) -> np.ndarray:
        """Return the overlaps q, ((token, cluster) pairs, t, t), from a vector in the order of `pack_overlaps`."""
        return self._unpack_symmetric_overlaps(x, self.triangle)

    def _pack_overlap_entries(self, q: np.ndarray, places: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return q[self.first][:, places[0], places[1]].ravel()

    def _unpack_symmetric_overlaps(self, x: np.ndarray, places: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        t = self.rho.shape[1]
        blocks = np.zeros((len(self.first), t, t))
        blocks[:, places[0], places[1]] = x.reshape(len(self.first), -1)
        blocks[:, places[1], places[0]] = x.reshape(len(self.first), -1)
        return blocks[self.which]

    @property
    def perfect_recovery_overlaps(self) -> np.ndarray:
        """The overlaps q of perfect recovery: the teacher's with itself, and zero for columns that are not learned."""
        return self.unpack_overlaps(self.pack_overlaps(self.rho))

    def apply_state_evolution(self, q: np.ndarray, alpha: float) -> np.ndarray:
        """Return the overlaps after one step of state evolution.

        Args:
            q: overlaps q, a (t, t) matrix of teacher columns for each (token, cluster) pair.
            alpha: sample complexity.
        """
        budget.check_time_limit()
        return self.overlaps_from_averages(self.channel.channel_averages(q), alpha)

    def overlaps_from_averages(self, averages: ChannelAverages, alpha: float) -> np.ndarray:
        """Return the overlaps q of the learned columns after a step of state evolution with these channel averages.

        Args:
            averages: averages over the channel.
            alpha: sample complexity.
        """
        return self.unpack_overlaps(self.pack_overlaps(self.prior.posterior_overlaps(alpha * averages.outer)))

    def check_excluded_columns_stay_zero(self, q: np.ndarray, alpha: float) -> None:
        """Check that the columns that are not to be learned keep overlap zero under state evolution.

        Args:
            q: overlaps q, a (t, t) matrix of teacher columns for each (token, cluster) pair.
            alpha: sample complexity.

        Raises:
            InputError: samples carry information on these columns, so that their overlap cannot be zero.
        """
        image = self.prior.posterior_overlaps(alpha * self.channel.channel_averages(q).outer)
        change = np.abs(self._pack_overlap_entries(image, self.outside)).max(initial=0.0)
        if change > 1e-8 * np.abs(self.rho).max():
            raise InputError(
                f"samples of {self.problem.solver.name} carry information on all columns of the teacher: columns "
                f"{', '.join(str(c + 1) for c in self.columns)} cannot be learned alone"
            )

    def jacobian(self, averages: ChannelAverages, alpha: float, outside: bool = False) -> np.ndarray:
        """Return the Jacobian of a step of state evolution in the overlaps of the learned columns.

        Its rows and columns are in the order of `pack_overlaps`.

        Args:
            averages: averages over the channel with their derivative in q.
            alpha: sample complexity.
            outside: whether to differentiate the overlaps of all other columns, in these, instead.
        """
        places = self.outside if outside else self.triangle
        size = len(self.first) * len(places[0])
        if not size:
            return np.zeros((0, 0))
        assert averages.response is not None
        moved = np.stack([self._unpack_symmetric_overlaps(unit, places) for unit in np.eye(size)])
        answers = alpha * np.einsum("cabdij,kdij->kcab", averages.response, moved)
        images = self.prior.overlap_changes_from_conjugates(alpha * averages.outer, answers)
        return np.stack([self._pack_overlap_entries(image, places) for image in images], axis=1)

    def sampling_error_bars(self, q: np.ndarray, averages: ChannelAverages, alpha: float) -> np.ndarray:
        """Return the sampling errors of a solution: two standard errors of q over its replicates, by linear response.

        Args:
            q: overlaps q at the solution, shape ((token, cluster) pairs, t, t).
            averages: averages at the solution, with their derivative in q.
            alpha: sample complexity.
        """
        inverse = np.linalg.inv(np.eye(len(self.pack_overlaps(q))) - self.jacobian(averages, alpha))
        moves = [
            inverse @ self.pack_overlaps(self.overlaps_from_averages(sample, alpha) - q) for sample in averages.samples
        ]
        return self.unpack_overlaps(replicate_error_bar(np.array(moves)))

    def refine_quadrature(
        self, q: np.ndarray, alpha: float, tolerance: float, curved: ChannelAverages | None = None
    ) -> float:
        """Refine the integration rules of channel and prior at given overlaps until averages converge.

        The result is the sum of the last relative changes of the averages.

        Args:
            q: overlaps q, a (t, t) matrix of teacher columns for each (token, cluster) pair.
            alpha: sample complexity.
            tolerance: largest allowed change of averages by a finer rule.
            curved: averages with their derivative close to a solution; the rules are then refined until the solution
                changes by less than the tolerance, relative to full overlap.
        """
        scale = np.abs(self.pack_overlaps(self.rho)).max()

        def solution_change_between_averages(one: ChannelAverages, other: ChannelAverages) -> float:
            """Return the relative difference of two averages, or the change of the solution due to it.

            Args:
                one: averages by a rule.
                other: averages by a finer rule.
            """
            if curved is None:
                return relative_difference_of_averages(one, other)
            gap = self.overlaps_from_averages(other, alpha) - self.overlaps_from_averages(one, alpha)
            return float(
                max(self.bound_on_solution_change(gap, alpha, curved).max() / scale, abs(other.norm - one.norm))
            )

        averages, total = self.channel.refine_quadrature(q, tolerance, solution_change_between_averages)
        return total + self.prior.refine_quadrature(alpha * averages.outer, tolerance)

    def bound_on_solution_change(self, gap: np.ndarray, alpha: float, curved: ChannelAverages) -> np.ndarray:
        """Return a bound on the change of a fixed point q when the map of state evolution changes slightly.

        Args:
            gap: change of the overlaps to which q is mapped, shape ((token, cluster) pairs, t, t).
            alpha: sample complexity.
            curved: averages at the fixed point, with their derivative in q.
        """
        inverse = np.linalg.inv(np.eye(len(self.pack_overlaps(gap))) - self.jacobian(curved, alpha))
        return self.unpack_overlaps(np.abs(inverse) @ np.abs(self.pack_overlaps(gap)))

    def evaluate_with_finer_rules(self, evaluate: Callable[[], T]) -> list[T]:
        """Return the values of a function for finer quadrature rules of channel and prior, to check its accuracy.

        Where averages are cheap two factors of refinement are used, as rules may agree by chance where outputs jump
        between nodes.
        """
        channel, prior, found = self.channel, self.prior, []
        before = channel.counts, channel.cut, prior.count
        for factor in (1.25,) if channel.has_expensive_averages else (1.25, 1.6):
            channel.counts, prior.count = [int(np.ceil(factor * n)) for n in before[0]], int(factor * before[2])
            channel.cut = before[1].tenfold_stricter_truncation
            try:
                found.append(evaluate())
            finally:
                channel.counts, channel.cut, prior.count = before
        return found

    @cached_property
    def overlaps_without_samples(self) -> np.ndarray:
        """The overlaps q of a learner without samples, to which only the cluster means are known."""
        return self.unpack_overlaps(self.pack_overlaps(self.prior.posterior_overlaps(np.zeros_like(self.rho))))

    @cached_property
    def has_zero_overlap_solution(self) -> bool:
        """Whether overlap q = 0 is a fixed point at every alpha: there, samples carry no information."""
        if np.abs(self.overlaps_without_samples).max() > 1e-12 * np.abs(self.rho).max():
            return False
        # The average is quadratic in the posterior mean of Y, so that a rough rule distinguishes zero from small.
        cut = self.channel.cut
        averages, _ = self.channel.refine_quadrature(np.zeros_like(self.rho), 1e-5)
        self.channel.cut = cut
        scale = np.abs(np.linalg.inv(self.rho)).max()
        return bool(np.abs(averages.outer).max() < 1e-9 * scale)

    def recovered_overlap_fraction(self, q: np.ndarray) -> float:
        """Return the trace of the overlaps q relative to that at perfect recovery, averaged over distinct matrices."""
        whole = self.perfect_recovery_overlaps
        return float(np.mean([np.trace(q[c]) / np.trace(whole[c]) for c in self.first]))

    def free_entropy(self, q: np.ndarray, alpha: float, averages: ChannelAverages) -> float:
        """Return the free entropy at overlaps q and their conjugates: the log-evidence per d, in nats.

        Args:
            q: overlaps q, a (t, t) matrix of teacher columns for each (token, cluster) pair.
            alpha: sample complexity.
            averages: averages over the channel at q.
        """
        hats = alpha * averages.outer
        trace = float(np.einsum("cij,cij->", hats, q))
        return -trace / 2 + self.prior.overlaps_and_log_partition(hats)[1] + alpha * averages.log_evidence

    def solve_at_overlap(self, fraction: float, guess: FixedPoint | None = None, curved: bool = False) -> FixedPoint:
        """Return the fixed point at which a given fraction of the full overlap is recovered, with its alpha.

        For a single overlap alpha follows directly; otherwise Newton's method solves for the overlaps and log alpha.

        Args:
            fraction: trace of q relative to that at perfect recovery.
            guess: a fixed point nearby.
            curved: whether to compute the derivative of the averages as well.

        Raises:
            NotConvergedError: Newton's method fails.
        """
        if self.pack_overlaps(self.rho).size == 1:
            q = fraction * self.perfect_recovery_overlaps
            averages = self.channel.channel_averages(q, curved)
            return FixedPoint(fraction, self._sample_complexity_of_overlap(q, averages), q, averages)
        q = fraction * self.perfect_recovery_overlaps if guess is None else guess.q * (fraction / guess.fraction)
        alpha = 1.0 if guess is None else guess.alpha
        x, scale = np.append(self.pack_overlaps(q), np.log(alpha)), np.abs(self.pack_overlaps(self.rho)).max()
        for _ in range(30):
            q, alpha = self.unpack_overlaps(x[:-1]), float(np.exp(x[-1]))
            averages = self.channel.channel_averages(q, curved=True)
            gap = (self.pack_overlaps(self.overlaps_from_averages(averages, alpha)) - x[:-1]) / scale
            value = np.append(gap, self.recovered_overlap_fraction(q) - fraction)
            if np.abs(value).max() < 1e-12:
                return FixedPoint(fraction, alpha, q, averages)
            x = x - np.linalg.solve(self._jacobian_at_overlap_fraction(alpha, averages), value)
        raise NotConvergedError(
            f"Newton's method found no fixed point of the state evolution of {self.problem.solver.name} with "
            f"an overlap q of {fraction:.6g} times the teacher's own (1: perfect recovery)"
        )

    def _jacobian_at_overlap_fraction(self, alpha: float, averages: ChannelAverages) -> np.ndarray:
        """Return the Jacobian, in q and log alpha, of the equations of a fixed point with given recovered fraction."""
        hats, full = alpha * averages.outer, self.pack_overlaps(self.rho)
        scale, size = np.abs(full).max(), full.size
        by_overlaps = (self.jacobian(averages, alpha) - np.eye(size)) / scale
        by_alpha = self.pack_overlaps(self.prior.overlap_changes_from_conjugates(hats, hats[None])[0]) / scale
        shares = [self.recovered_overlap_fraction(self.unpack_overlaps(unit)) for unit in np.eye(size)]
        return np.block([[by_overlaps, by_alpha[:, None]], [np.array(shares), 0.0]])

    def _sample_complexity_of_overlap(self, q: np.ndarray, averages: ChannelAverages) -> float:
        """Return the alpha at which an overlap q is a fixed point of state evolution, for a model with one overlap."""
        target = float(self.pack_overlaps(q)[0])

        def excess_over_target_overlap(log_alpha: float) -> float:
            return (
                float(self.pack_overlaps(self.prior.posterior_overlaps(np.exp(log_alpha) * averages.outer))[0]) - target
            )

        low = high = 0.0
        while excess_over_target_overlap(low) > 0:
            low -= 2.0
            if low < -40:
                raise NotConvergedError(
                    f"no alpha leads to the overlap q = {target:.4g}: without any samples it is larger already"
                )
        while excess_over_target_overlap(high) < 0:
            high += 2.0
            if high > 40:
                raise NotConvergedError(
                    f"no alpha up to {np.exp(high - 2):.1e} leads to an overlap as large as q = {target:.4g}"
                )
        return float(np.exp(brentq(excess_over_target_overlap, low, high, xtol=1e-15, rtol=4 * np.finfo(float).eps)))


def leading_growth_mode_at_zero_overlap(state: StateEvolutionMap) -> tuple[float, np.ndarray]:
    """Return the largest growth factor of a small overlap in a step of state evolution at alpha = 1, and its mode.

    The mode is the overlap q that grows by this factor, shape ((token, cluster) pairs, t, t), found by power iteration.
    """
    averages = state.channel.channel_averages(np.zeros_like(state.rho), curved=True)
    matrix, direction = state.jacobian(averages, 1.0), state.pack_overlaps(state.perfect_recovery_overlaps)
    factor = spectral_radius(matrix)
    direction /= np.linalg.norm(direction)
    if factor > 0:
        for _ in range(200):
            direction = (matrix @ direction) / factor + 1e-3 * direction
            direction /= np.linalg.norm(direction)
    return factor, state.unpack_overlaps(direction)


def spectral_radius(matrix: np.ndarray) -> float:
    """Return the spectral radius of a matrix: the largest modulus of its eigenvalues."""
    return float(np.max(np.abs(np.linalg.eigvals(matrix)))) if matrix.size else 0.0


def count_noiseless_numbers_per_sample(state: StateEvolutionMap) -> float:
    """Return the number of continuous quantities that a sample reveals without noise about the learned columns.

    The other columns of the teacher are unknown. If the number depends on the observed labels, the mean is returned.
    """
    channel = state.channel
    (labels, _), *_ = state.problem.label_probabilities
    places = [i for i, c in enumerate(channel.observed) if not c.is_continuous]
    choices = product(*(channel.observed[i].values for i in places))
    found = {choice: _count_noiseless_numbers_given_labels(state, labels, places, choice) for choice in choices}
    if len(set(found.values())) == 1:
        return float(next(iter(found.values())))
    probabilities = channel.probabilities_of_discrete_observations(labels)
    return sum(probability * found[choice] for choice, probability in probabilities.items())


def _count_noiseless_numbers_given_labels(
    state: StateEvolutionMap, labels: tuple[int, ...], places: list[int], choice: tuple[float, ...]
) -> int:
    """Return how many continuous quantities a sample reveals without noise, given its discrete observed coordinates.

    The latter are the values `choice` of the discrete observed coordinates, whose indices are `places`.
    """
    step_size = StateEvolutionOptions.current().difference_step
    channel = state.channel
    random = np.random.default_rng(0)
    at = [random_channel_points(group, random)[:1] for group in (channel.module.OBSERVED, channel.module.HIDDEN)]
    at[0][:, places] = choice
    slopes, seen = [], []
    for group, coordinates in enumerate((channel.observed, channel.hidden)):
        for place in (i for i, c in enumerate(coordinates) if c.is_continuous):
            ends = []
            for step in (step_size, -step_size):
                moved = [values.copy() for values in at]
                moved[group][0, place] += step
                ends.append(evaluate_output_channel(state.problem, labels, *moved)[0][0, 0])
            if (slope := (ends[0] - ends[1]) / (2 * step_size)).any():
                slopes.append(slope)
                seen.append(group == 0)
    of_fields = np.linalg.inv(np.array(slopes).T)[seen]
    t = state.problem.teacher_rank
    others = [field for field in range(of_fields.shape[1]) if field % t not in state.columns]
    return len(of_fields) - int(np.linalg.matrix_rank(of_fields[:, others], tol=1e-6) if others else 0)


def is_perfect_recovery_stable(state: StateEvolutionMap) -> bool:
    """Return whether perfect recovery is a stable solution of state evolution at the problem's alpha."""
    unknown, known = state.prior.information_dimension, count_noiseless_numbers_per_sample(state)
    if unknown or known:
        return bool(state.problem.alpha * known > unknown)
    return is_information_unbounded_at_recovery(state)


def overlaps_near_perfect_recovery(state: StateEvolutionMap, farther: float = 1.0) -> np.ndarray:
    """Return overlaps q close to perfect recovery, at which its limit is taken, shape ((token, cluster) pairs, t, t).

    Args:
        state: the map of state evolution.
        farther: factor by which a larger fraction of the teacher than by default remains unknown.
    """
    close = StateEvolutionOptions.current().expensive_closeness if state.channel.has_expensive_averages else CLOSE
    return (1 - farther * close) * state.perfect_recovery_overlaps


def is_information_unbounded_at_recovery(state: StateEvolutionMap) -> bool:
    """Return whether the information of a sample on small errors of the estimate diverges at perfect recovery."""
    sizes, counts, options = [], state.channel.counts, StateEvolutionOptions.current()
    for farther in (options.distance_ratio, 1.0):
        averages, _ = state.channel.refine_quadrature(overlaps_near_perfect_recovery(state, farther), 1e-2)
        sizes.append(float(np.linalg.norm(state.pack_overlaps(averages.outer))))
    state.channel.counts = counts
    return sizes[1] > options.growth_threshold * sizes[0]


def free_entropy_of_perfect_recovery(state: StateEvolutionMap) -> float:
    """Return the free entropy of perfect recovery: alpha times the mean log-likelihood minus the entropy of a row.

    It is plus or minus infinity where the teacher's rows are continuous or samples reveal continuous numbers without
    noise, and NaN if a column is not learned.
    """
    if len(state.columns) < state.problem.teacher_rank:
        return float("nan")
    unknown, known = state.prior.information_dimension, count_noiseless_numbers_per_sample(state)
    if unknown or known:
        return float(np.inf if state.problem.alpha * known > unknown else -np.inf)
    return state.problem.alpha * mean_log_likelihood_given_fields(state) - state.prior.row_entropy


def mean_log_likelihood_given_fields(state: StateEvolutionMap) -> float:
    """Return the mean log-likelihood of a sample given the teacher's fields, in nats; zero for noiseless labels."""
    total = 0.0
    for labels, probability in state.problem.label_probabilities:
        *_, law, likelihood, _ = state.channel.relevant_nodes(labels)
        weights = np.exp(law)
        total += probability * float(np.sum(weights * np.where(weights > 0, likelihood, 0.0)))
    return total
