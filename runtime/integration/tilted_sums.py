"""Averages over the channel with replica symmetry broken, combined from tilted sums given the labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np

from ..channel.exchange import SymmetryReduction
from ..channel.fields import channel_overlaps
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.reduced import ReducedProblem, reduce_to_fields_of_loss
from .estimates import ErrorEstimateOptions
from .rule import Labels, Rule, moments_by_context, moments_of_full_problem


@dataclass(frozen=True)
class TiltedAverages:
    """The averages over omega_0, Y and noise with K levels of replica symmetry breaking.

    Attributes:
        moments: generated MOMENTS with <g> in place of g and omega_0 in place of omega, (K + 1, C, row); row k > 0 has
            the average of the products of level k, down to that of g g^T, in place of <g><g>^T.
        free: E[f_1], and <f_k> of the inner levels, (K,); moreau, loss: E[<M>] and E[<loss(X_prox)>].
        bistable: tilted probability that a second minimum was found.
        squares: E[G (x) G] of G~ = d<g>/domega_0, and E[<G (x) G>] of G = dg/domega where the proximal map is smooth,
            in the layout of `JacobianAverages.square`; empty if not asked for.
        mass: total weight, 1 for an exact rule.
        drift: sum over tokens of E[<z g> - <z> <g>] = E[Tr Delta G~], z = omega - omega_0; None if not computed.
    """

    moments: np.ndarray
    free: np.ndarray
    moreau: float
    loss: float
    bistable: float
    squares: tuple[np.ndarray, ...]
    mass: float
    drift: float | None = None


@dataclass(frozen=True)
class TiltedState:
    """A state with replica symmetry broken, at which tilted averages are taken.

    It consists of q_0, V, m and theta, of Delta of every level from omega_0 inwards, (K, C, s, s), and of the Parisi
    parameters y of these levels, (K,).
    """

    overlaps: Overlaps
    distances: np.ndarray
    rates: np.ndarray

    def state_on_reduced_problem(self, part: Problem) -> TiltedState:
        """Return the state in the fields of the reduced problem, over which averages are taken."""
        if not isinstance(part, ReducedProblem):
            return self
        distances = part.combinations.project_onto_combinations(self.distances)
        return replace(self, overlaps=channel_overlaps(part, self.overlaps), distances=distances)


class SumsGivenLabels(NamedTuple):
    """The tilted sums over omega_0, Y and noise given the labels of all tokens, with D = L s fields.

    Attributes:
        known: generated MOMENTS by name, (L, ...), except "g*g.T"; products: "g*g.T" of all levels from the outermost
            to the innermost, (K + 1, L, s, s).
        totals: E[f_1], <f_k> of inner levels, E[<M>], E[<loss>], probability of a second minimum, mass, drift if known.
        squares: averages of G_ab G_ef for G~ and G, (D, D, D, D); empty if not asked for.
        reduction: token exchanges over whose orbits the sums are to be averaged.
    """

    known: dict[str, np.ndarray]
    products: np.ndarray
    totals: np.ndarray
    squares: tuple[np.ndarray, ...]
    reduction: SymmetryReduction = SymmetryReduction(())

    def token_moments(self, problem: Problem, level: int) -> np.ndarray:
        """Return the moments of all tokens at one level, averaged over the token exchanges.

        Args:
            problem: problem whose fields were integrated over.
            level: number of the level, 0 for the outermost.
        """
        channel = problem.solver.channel
        known = {**self.known, "g*g.T": self.products[level]}
        row = np.zeros((problem.tokens, channel.ROW))
        for text, shape, at in channel.MOMENTS:
            row[:, at : at + int(np.prod(shape))] = known[text].reshape(problem.tokens, -1)
        return self.reduction.average_moments_over_group(row.ravel(), channel.ROW, channel.MOMENTS)

    def average_jacobian_square(self, problem: Problem, number: int) -> np.ndarray:
        """Return an average of G (x) G in the layout of `JacobianAverages.square`, averaged over token exchanges.

        Args:
            problem: problem whose fields were integrated over.
            number: index in `squares`.
        """
        split = self.squares[number].reshape([problem.tokens, problem.student_rank] * 4)  # G_(la)(rb) G_(me)(nf)
        return self.reduction.average_squared_jacobian_over_group(np.einsum("larblerf->lraebf", split))


class TiltedRule(Rule):
    """A rule for averages with replica symmetry broken, one of a family from coarse to fine.

    Attributes:
        errors_cancel: whether energy differences are accurate because errors of energies are nearly equal.
        search_residual, final_residual: residuals of intermediate and final solutions; residual_share: fraction of the
            accuracy that the residual may be. Averages have small steps where a kink passes a node, and larger ones
            where a sample changes its minimum.
        first_rate: first y of the search, in units of V over the part of q that is not due to the teacher.
        step: finite-difference step, in block scales and in log y; max_residual_ratio: ratio of residuals of successive
            Newton steps above which the Jacobian is computed again.
        max_rate: upper bound on the rate of convergence estimated from differences to other rules of the family.
    """

    errors_cancel: ClassVar[bool] = True
    search_residual: ClassVar[float]
    final_residual: ClassVar[float]
    residual_share: ClassVar[float]
    first_rate: ClassVar[float] = 5.0
    step: ClassVar[float] = 1e-6
    max_residual_ratio: ClassVar[float] = 0.3
    max_rate: ClassVar[float] = ErrorEstimateOptions.max_rate

    def tilted_averages(
        self, problem: Problem, overlaps: Overlaps, distances: np.ndarray, rates: np.ndarray, slopes: bool = False
    ) -> TiltedAverages:
        """Return the averages over the channel at a state with replica symmetry broken.

        Args:
            problem: problem whose fields are integrated over.
            overlaps: q_0, V, m, theta.
            distances: Delta of every level, (K, C, s, s), from omega_0 inwards.
            rates: Parisi parameters y, (K,).
            slopes: whether averages of squared Jacobians are asked for.

        Raises:
            DomainError: the overlaps are outside their domain, or Delta is not positive definite.
        """
        part, state = reduce_to_fields_of_loss(problem), TiltedState(overlaps, distances, rates)
        there = state.state_on_reduced_problem(part)
        found = [self._tilted_sums_given_labels(part, there, labels, slopes) for labels, _ in part.label_choices]
        totals = np.zeros_like(found[0].totals)
        for (_, probability), each in zip(part.label_choices, found, strict=True):
            totals += probability * each.totals
        levels, row = len(rates), part.solver.channel.ROW
        moments = np.stack(
            [moments_by_context(part, [each.token_moments(part, k) for each in found], row) for k in range(levels + 1)]
        )
        squares = tuple(
            np.stack([each.average_jacobian_square(part, k) for each in found])[None] for k in range(2 if slopes else 0)
        )
        if isinstance(part, ReducedProblem):
            moments = moments_of_full_problem(part, overlaps, moments)
            squares = tuple(map(part.combinations.mean_token_jacobian_products, squares))
        moreau, loss, bistable, mass, *drift = map(float, totals[levels:])
        return TiltedAverages(moments, totals[:levels], moreau, loss, bistable, squares, mass, *drift)

    def _tilted_sums_given_labels(
        self, problem: Problem, state: TiltedState, labels: Labels, slopes: bool
    ) -> SumsGivenLabels:
        """Return the tilted sums over omega_0, Y and noise given the labels."""
        raise NotImplementedError

    def residual_for_accuracy(self, accuracy: float) -> float:
        """Return the residual asked of the final solution for an accuracy of the overlaps."""
        return max(self.final_residual, self.residual_share * accuracy)

    def with_grids_of_state(self, overlaps: Overlaps, distances: np.ndarray, rates: np.ndarray) -> Self:
        """Return the rule for states near a given state; on the grids of that state if it uses grids.

        Args:
            overlaps: q_0, V, m, theta.
            distances: Delta of every level, (K, C, s, s).
            rates: Parisi parameters y, (K,).
        """
        return self

    def breaking_search_effort(self, cost: float) -> float:
        """Return the effort of the search for one step of breaking, in replica symmetric averages of a given cost."""
        raise NotImplementedError
