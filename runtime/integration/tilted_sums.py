"""Averages over the channel with replica symmetry broken, combined from tilted sums given the labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np

from ..channel.exchange import SymmetryReduction
from ..channel.fields import overlaps_of_loss_fields
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.reduced import ReducedProblem, reduce_to_fields_of_loss
from .estimates import ErrorEstimateOptions
from .rule import Labels, Rule, moments_by_token_and_cluster, moments_of_full_problem


@dataclass(frozen=True)
class TiltedAverages:
    """The channel averages with replica symmetry broken at one or more levels.

    E is the average over teacher fields, noise and the field omega_0 common to all states; <.> is the average over
    the student field omega of the states, tilted by exp(-y M) with Moreau envelope M and Parisi parameter y.

    Attributes:
        moments: moments of the channel with <g> in place of g and omega_0 in place of omega, shape (levels + 1, (token,
            cluster) pairs, moments). The levels differ in the average of g g^T only: from <g><g>^T to <g g^T>.
        free: average of (1/y) log E exp(-y M) of every level, the outermost first.
        moreau: average of the Moreau envelope.
        loss: average of the loss at the proximal point.
        bistable: probability that a second minimum was found.
        squares: mean squares of the Jacobians d<g>/domega_0 and dg/domega, in the layout of `JacobianAverages.square`;
            empty if not requested.
        mass: total weight of the nodes, 1 for an exact rule.
        drift: sum over tokens of E[<z g> - <z> <g>], z = omega - omega_0; None if not computed.
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
class BrokenSymmetryState:
    """The order parameters with replica symmetry broken.

    Attributes:
        overlaps: overlaps q_0 (of different states), V, m, theta.
        distances: differences Delta of overlaps of successive levels, shape (levels, (token, cluster) pairs, s, s).
        rates: Parisi parameter y of each level, the outermost first.
    """

    overlaps: Overlaps
    distances: np.ndarray
    rates: np.ndarray

    def state_on_reduced_problem(self, part: Problem) -> BrokenSymmetryState:
        """Return the order parameters of the reduced problem: of the fields that the loss depends on."""
        if not isinstance(part, ReducedProblem):
            return self
        distances = part.combinations.project_onto_combinations(self.distances)
        return replace(self, overlaps=overlaps_of_loss_fields(part, self.overlaps), distances=distances)


class TiltedSumsGivenLabels(NamedTuple):
    """The channel averages with replica symmetry broken for one assignment of labels, with one entry per token.

    Attributes:
        known: moments by name except "g*g.T", each with tokens along the first axis.
        products: average of g g^T at each level from the outermost to the innermost, shape (levels + 1, L, s, s).
        totals: averages that belong to no single token: `free` to `drift` of `TiltedAverages`, without `squares`.
        squares: mean squares of the Jacobians d<g>/domega_0 and dg/domega, shape (L s, L s, L s, L s) each; empty if
            not requested.
        reduction: symmetry group over which the sums are still to be averaged.
    """

    known: dict[str, np.ndarray]
    products: np.ndarray
    totals: np.ndarray
    squares: tuple[np.ndarray, ...]
    reduction: SymmetryReduction = SymmetryReduction(())

    def token_moments(self, problem: Problem, level: int) -> np.ndarray:
        """Return the channel moments of all tokens at one level of symmetry breaking, averaged over `reduction`.

        Args:
            problem: problem whose fields were integrated over.
            level: number of the level of replica symmetry breaking, 0 for the outermost.
        """
        channel = problem.solver.channel
        known = {**self.known, "g*g.T": self.products[level]}
        row = np.zeros((problem.tokens, channel.ROW))
        for text, shape, at in channel.MOMENTS:
            row[:, at : at + int(np.prod(shape))] = known[text].reshape(problem.tokens, -1)
        return self.reduction.average_moments_over_group(row.ravel(), channel.ROW, channel.MOMENTS)

    def average_jacobian_square(self, problem: Problem, number: int) -> np.ndarray:
        """Return a mean product of Jacobians of all pairs of tokens, averaged over the symmetries of the channel.

        Args:
            problem: problem whose fields were integrated over.
            number: index in `squares`: 0 for d<g>/domega_0, 1 for dg/domega.
        """
        split = self.squares[number].reshape([problem.tokens, problem.student_rank] * 4)  # G_(la)(rb) G_(me)(nf)
        return self.reduction.average_squared_jacobian_over_group(np.einsum("larblerf->lraebf", split))


class TiltedRule(Rule):
    """An integration rule for averages with replica symmetry broken, one of a family from coarse to fine.

    Attributes:
        errors_cancel: whether energy differences are accurate because errors of energies are nearly equal.
        search_residual: residual of intermediate solutions.
        final_residual: residual of the final solution.
        residual_share: fraction of the requested accuracy that the final residual may be.
        first_rate: first Parisi parameter of the search, in units of V over the part of q not due to the teacher.
        step: finite-difference step, relative to the scale of each overlap matrix, and of log y.
        max_residual_ratio: ratio of residuals of successive Newton steps above which the Jacobian is recomputed.
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
        """Return the channel averages at given order parameters with replica symmetry broken.

        Args:
            problem: problem whose fields are integrated over.
            overlaps: overlaps q_0 (of different states), V, m, theta.
            distances: differences Delta of overlaps of successive levels, the outermost first, shape (levels, (token,
                cluster) pairs, s, s).
            rates: Parisi parameter y of each level.
            slopes: whether averages of squared Jacobians are requested.

        Raises:
            DomainError: the overlaps are outside their domain, or Delta is not positive definite.
        """
        part, state = reduce_to_fields_of_loss(problem), BrokenSymmetryState(overlaps, distances, rates)
        there = state.state_on_reduced_problem(part)
        found = [self._tilted_sums_given_labels(part, there, labels, slopes) for labels, _ in part.label_probabilities]
        totals = np.zeros_like(found[0].totals)
        for (_, probability), each in zip(part.label_probabilities, found, strict=True):
            totals += probability * each.totals
        levels, row = len(rates), part.solver.channel.ROW
        moments = np.stack(
            [
                moments_by_token_and_cluster(part, [each.token_moments(part, k) for each in found], row)
                for k in range(levels + 1)
            ]
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
        self, problem: Problem, state: BrokenSymmetryState, labels: Labels, slopes: bool
    ) -> TiltedSumsGivenLabels:
        """Return the channel averages with replica symmetry broken, for one assignment of labels."""
        raise NotImplementedError

    def residual_for_accuracy(self, accuracy: float) -> float:
        """Return the residual that the final solution must reach for a given accuracy of the overlaps."""
        return max(self.final_residual, self.residual_share * accuracy)

    def with_grids_of_state(self, overlaps: Overlaps, distances: np.ndarray, rates: np.ndarray) -> Self:
        """Return the rule with the grids of a given state for all states nearby; the same rule if it has no grids.

        Args:
            overlaps: overlaps q_0 (of different states), V, m, theta.
            distances: differences Delta of overlaps of successive levels, shape (levels, (token, cluster) pairs, s, s).
            rates: Parisi parameter y of each level.
        """
        return self

    def cost_of_symmetry_breaking_search(self, cost: float) -> float:
        """Return the cost of a search for one-step symmetry breaking, in evaluations of replica symmetric averages.

        Args:
            cost: cost of such an evaluation, see `Rule.evaluation_cost`.
        """
        raise NotImplementedError
