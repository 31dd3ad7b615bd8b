"""Averages with replica symmetry broken over the channel, from what rules sum over one assignment of labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ..channel.exchange import Reduction
from ..channel.fields import overlaps_of
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.reduced import ReducedProblem, integrated
from .rule import Labels, back, moments_by_context


@dataclass(frozen=True)
class TiltedAverages:
    """Averages over omega_0, Y and noise, with K levels of omega around it.

    Attributes:
        moments: (K + 1, C, row), the generated MOMENTS with <g> in place of g and omega_0 of omega; in the others
            <g g^T> of one level after the other, down to g itself, stands where the first has <g><g>^T.
        free: E[f_1], and <f_k> of the levels within, (K,); moreau, loss: E[<M>] and E[<loss(X_prox)>].
        bistable: probability, tilted, that a second minimum was seen.
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
    """The state that averages are taken at: q_0, V, m and theta, Delta of every level from omega_0 inwards,
    (K, C, s, s), and their Parisi parameters y, (K,)."""

    overlaps: Overlaps
    distances: np.ndarray
    rates: np.ndarray

    def of_part(self, part: Problem) -> TiltedState:
        """Return the state of the problem that averages are taken of."""
        if not isinstance(part, ReducedProblem):
            return self
        distances = part.combinations.squared(self.distances)
        return replace(self, overlaps=overlaps_of(part, self.overlaps), distances=distances)


class LabelSums(NamedTuple):
    """Sums over omega_0, Y and noise given one assignment of labels, D = L s fields.

    Attributes:
        known: the generated MOMENTS by their names, (L, ...), except "g*g.T"; products: that, of the levels from
            outside in, (K + 1, L, s, s).
        totals: E[f_1], <f_k> within, E[<M>], E[<loss>], probability of a second minimum, mass, drift where it is known.
        squares: of G~ and G, axes a, b, e, f of G_ab G_ef, (D, D, D, D); empty where they were not asked for.
        reduction: what the sums stand for a part of.
    """

    known: dict[str, np.ndarray]
    products: np.ndarray
    totals: np.ndarray
    squares: tuple[np.ndarray, ...]
    reduction: Reduction = Reduction(())

    def row(self, problem: Problem, level: int) -> np.ndarray:
        """Return the token rows of one level, averaged over the exchanges."""
        channel = problem.solver.channel
        known = {**self.known, "g*g.T": self.products[level]}
        row = np.zeros((problem.tokens, channel.ROW))
        for text, shape, at in channel.MOMENTS:
            row[:, at : at + int(np.prod(shape))] = known[text].reshape(problem.tokens, -1)
        return self.reduction.moments(row.ravel(), channel.ROW, channel.MOMENTS)

    def square(self, problem: Problem, number: int) -> np.ndarray:
        """Return one of the squares in the order of `JacobianAverages.square`, averaged over the exchanges."""
        split = self.squares[number].reshape([problem.tokens, problem.student_rank] * 4)  # G_(la)(rb) G_(me)(nf)
        return self.reduction.square(np.einsum("larblerf->lraebf", split))


def tilted_averages_by(
    sums: Callable[[Problem, TiltedState, Labels, bool], LabelSums], problem: Problem, state: TiltedState, slopes: bool
) -> TiltedAverages:
    """Return averages at a state.

    Args:
        sums: of the problem that averages are taken of, at its state, given an assignment of labels.
        slopes: whether squares of slopes are asked for.
    """
    part = integrated(problem)
    there = state.of_part(part)
    found = [sums(part, there, labels, slopes) for labels, _ in part.label_choices]
    totals = np.zeros_like(found[0].totals)
    for (_, probability), each in zip(part.label_choices, found, strict=True):
        totals += probability * each.totals
    levels, row = len(state.rates), part.solver.channel.ROW
    moments = np.stack(
        [moments_by_context(part, [each.row(part, k) for each in found], row) for k in range(levels + 1)]
    )
    squares = tuple(np.stack([each.square(part, k) for each in found])[None] for k in range(2 if slopes else 0))
    if isinstance(part, ReducedProblem):
        moments = back(part, state.overlaps, moments)
        squares = tuple(map(part.combinations.square, squares))
    moreau, loss, bistable, mass, *drift = map(float, totals[levels:])
    return TiltedAverages(moments, totals[:levels], moreau, loss, bistable, squares, mass, *drift)
