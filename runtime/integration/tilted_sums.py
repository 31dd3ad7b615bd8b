"""Averages with replica symmetry broken over the channel, from the sums of rules over one assignment of labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np

from ..channel.exchange import Reduction
from ..channel.fields import channel_overlaps
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.reduced import ReducedProblem, reduce_to_loss
from .estimates import ErrorEstimateOptions
from .rule import Labels, Rule, moments_by_context, moments_of_full_problem


@dataclass(frozen=True)
class TiltedAverages:
    """A set of averages over omega_0, Y and noise, with K levels of omega around it.

    Attributes:
        moments: (K + 1, C, row), the generated MOMENTS with <g> in place of g and omega_0 of omega; in the others
            <g g^T> of one level after the other, down to g itself, takes the place of <g><g>^T of the first.
        free: E[f_1], and <f_k> of the levels within, (K,); moreau, loss: E[<M>] and E[<loss(X_prox)>].
        bistable: probability, tilted, that a second minimum was found.
        squares: E[G (x) G] of G~ = d<g>/domega_0, and E[<G (x) G>] of G = dg/domega where the proximal map is smooth,
            as of `JacobianAverages.square`; empty where they were not asked for.
        mass: total weight, 1 for an exact rule.
        drift: sum over tokens of E[<z g> - <z> <g>] = E[Tr Delta G~], z = omega - omega_0; None where it is not known.
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
    """A state that averages are taken at.

    It has q_0, V, m and theta, Delta of every level from omega_0 inwards, (K, C, s, s), and their Parisi parameters y,
    (K,).
    """

    overlaps: Overlaps
    distances: np.ndarray
    rates: np.ndarray

    def on_reduced_problem(self, part: Problem) -> TiltedState:
        """Return the state of the problem that averages are taken of."""
        if not isinstance(part, ReducedProblem):
            return self
        distances = part.combinations.project_blocks(self.distances)
        return replace(self, overlaps=channel_overlaps(part, self.overlaps), distances=distances)


class LabelSums(NamedTuple):
    """A set of sums over omega_0, Y and noise given one assignment of labels, D = L s fields.

    Attributes:
        known: the generated MOMENTS by their names, (L, ...), except "g*g.T"; products: that, of the levels from
            outside in, (K + 1, L, s, s).
        totals: E[f_1], <f_k> within, E[<M>], E[<loss>], probability of a second minimum, mass, drift where it is known.
        squares: of G~ and G, axes a, b, e, f of G_ab G_ef, (D, D, D, D); empty where they were not asked for.
        reduction: exchanges over whose orbits the sums are to be averaged.
    """

    known: dict[str, np.ndarray]
    products: np.ndarray
    totals: np.ndarray
    squares: tuple[np.ndarray, ...]
    reduction: Reduction = Reduction(())

    def token_rows(self, problem: Problem, level: int) -> np.ndarray:
        """Return the token rows of one level, averaged over the exchanges.

        Args:
            problem: problem that was integrated over.
            level: 0 for the outermost.
        """
        channel = problem.solver.channel
        known = {**self.known, "g*g.T": self.products[level]}
        row = np.zeros((problem.tokens, channel.ROW))
        for text, shape, at in channel.MOMENTS:
            row[:, at : at + int(np.prod(shape))] = known[text].reshape(problem.tokens, -1)
        return self.reduction.average_moments(row.ravel(), channel.ROW, channel.MOMENTS)

    def average_square(self, problem: Problem, number: int) -> np.ndarray:
        """Return one of the squares in the order of `JacobianAverages.square`, averaged over the exchanges.

        Args:
            problem: problem that was integrated over.
            number: place in `squares`.
        """
        split = self.squares[number].reshape([problem.tokens, problem.student_rank] * 4)  # G_(la)(rb) G_(me)(nf)
        return self.reduction.average_square(np.einsum("larblerf->lraebf", split))


class TiltedRule(Rule):
    """A rule for averages with replica symmetry broken, one of a family from coarse to fine.

    Attributes:
        errors_cancel: whether energy differences are accurate, as errors of energies are nearly the same.
        search_residual, final_residual: residuals on the way and at the end; residual_share: of the accuracy that a
            residual may take. A kink that passes a node leaves a step, a sample that changes its minimum a larger one.
        first_rate: y at which states are searched for, in units of V over the part of q not due to the teacher.
        step: of differences, in block scales and in log y; max_residual_ratio: factor on the residual in a step of
            Newton's method, above which differences are taken again.
        max_rate: upper bound on the rate estimated from differences to other rules of the family.
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
        """Return the averages at a state with replica symmetry broken.

        Args:
            problem: problem whose fields are integrated over.
            overlaps: q_0, V, m, theta.
            distances: Delta of every level, (K, C, s, s), from omega_0 inwards.
            rates: Parisi parameters y, (K,).
            slopes: whether squares of slopes are asked for.

        Raises:
            DomainError: outside the domain of the overlaps, or Delta is not positive definite.
        """
        part, state = reduce_to_loss(problem), TiltedState(overlaps, distances, rates)
        there = state.on_reduced_problem(part)
        found = [self._tilted_sums(part, there, labels, slopes) for labels, _ in part.label_choices]
        totals = np.zeros_like(found[0].totals)
        for (_, probability), each in zip(part.label_choices, found, strict=True):
            totals += probability * each.totals
        levels, row = len(rates), part.solver.channel.ROW
        moments = np.stack(
            [moments_by_context(part, [each.token_rows(part, k) for each in found], row) for k in range(levels + 1)]
        )
        squares = tuple(
            np.stack([each.average_square(part, k) for each in found])[None] for k in range(2 if slopes else 0)
        )
        if isinstance(part, ReducedProblem):
            moments = moments_of_full_problem(part, overlaps, moments)
            squares = tuple(map(part.combinations.curvature_squares, squares))
        moreau, loss, bistable, mass, *drift = map(float, totals[levels:])
        return TiltedAverages(moments, totals[:levels], moreau, loss, bistable, squares, mass, *drift)

    def _tilted_sums(self, problem: Problem, state: TiltedState, labels: Labels, slopes: bool) -> LabelSums:
        """Return the sums over one assignment of labels."""
        raise NotImplementedError

    def residual_for_accuracy(self, accuracy: float) -> float:
        """Return the residual asked at the end."""
        return max(self.final_residual, self.residual_share * accuracy)

    def with_grids_of(self, overlaps: Overlaps, distances: np.ndarray, rates: np.ndarray) -> Self:
        """Return the rule for the neighbourhood of a state.

        Args:
            overlaps: q_0, V, m, theta.
            distances: Delta of every level, (K, C, s, s).
            rates: Parisi parameters y, (K,).
        """
        return self

    def search_effort(self, cost: float) -> float:
        """Return the effort of the search for one step of breaking, in replica symmetric averages of a given cost."""
        raise NotImplementedError
