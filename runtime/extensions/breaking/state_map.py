"""The saddle point with replica symmetry broken, at given Parisi parameters y: u -> G(u), free entropy and its slopes.

With V~ = V + y Delta and V~^ = V^ - y Delta^, level by level, everything reads as without breaking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...base import budget
from ...base.errors import InputError
from ...integration.tilted_sums import TiltedAverages, TiltedRule
from ...problems.overlaps import Conjugates, Overlaps, packed_length, triangle
from ...problems.problem import Problem
from ...problems.symmetry import NO_SYMMETRY, Symmetry
from ...saddle_point.state_map import conjugates_of
from .rows import Rows, rows_at
from .rules import rules_for
from .state import Broken


@dataclass(frozen=True)
class Answer:
    """What follows from a state at given y.

    Attributes:
        image: the next state; averages: at the state.
        hats: conjugates, from V~^ and q_0^ inwards to V^ and q_K^, (K + 1).
        rows: what rows of W make of the conjugates.
        free_entropy: Phi(y), extremal where the state is the saddle point; slopes: its derivatives in y, others held,
            (K,).
    """

    image: Broken
    averages: TiltedAverages
    hats: tuple[Conjugates, ...]
    rows: Rows
    free_entropy: float
    slopes: np.ndarray

    def parts(self, problem: Problem) -> tuple[float, float]:
        """Data and penalty, whose sum is the energy at the saddle point."""
        penalty = 0.0 if problem.regulariser.keeps_norms else self.rows.penalty()
        return problem.alpha * self.averages.loss, penalty


@dataclass(frozen=True)
class BreakingMap:
    """u -> G(u) of a problem by a rule, at Parisi parameters y (K,), from the outermost level inwards.

    Attributes:
        symmetry: of the states that are looked for.

    Raises:
        InputError: a model whose equations with replica symmetry broken are not solved here.
    """

    problem: Problem
    rule: TiltedRule
    symmetry: Symmetry = NO_SYMMETRY

    def __post_init__(self) -> None:
        refuse(self.problem)

    def __call__(self, state: Broken, rates: np.ndarray) -> Answer:
        """What follows from a state.

        Raises:
            DomainError: the state, or what follows from it, is outside the domain.
        """
        budget.check()
        problem, between = self.problem, state.between
        found = self.rule.tilted_averages(problem, between, state.distances, rates)
        outer, *within = (conjugates_of(problem, between, moments) for moments in found.moments)
        # The others differ from the first in q^ alone; V_(k+1)^ = V_k^ + y_k (q_k^ - q_(k-1)^).
        hats = [outer]
        for y, inner in zip(rates, within, strict=True):
            hats.append(replace(inner, V=hats[-1].V + y * (inner.q - hats[-1].q)))
        rows = rows_at(problem, hats, rates, self.rule)
        phi, slopes = self._free_entropy(state, rates, found, hats, rows)
        return Answer(Broken(rows.between, rows.distances), found, tuple(hats), rows, phi, slopes)

    def around(self, state: Broken, rates: np.ndarray) -> BreakingMap:
        """The same map for looking around a state."""
        return replace(self, rule=self.rule.framed(state.between, state.distances, rates))

    def directions(self, state: Broken) -> np.ndarray:
        """Directions (k, n) of packed states that span those of the same symmetry, entries 0 and +-1."""
        from scipy.linalg import block_diag  # slow to load

        sizes = state.sizes
        count = packed_length(sizes)
        of_overlaps = self.symmetry.directions(sizes, count)
        numbered = Overlaps.unpack(np.arange(1.0, count + 1), sizes)
        rows, columns = triangle(sizes[1])
        places = numbered.q[:, rows, columns].ravel().astype(int) - 1  # of q among the overlaps
        along = of_overlaps[np.abs(of_overlaps[:, places]).sum(axis=1) > 0][:, places]
        return np.asarray(block_diag(of_overlaps, *[along] * len(state.distances)))

    def _free_entropy(
        self, state: Broken, rates: np.ndarray, averages: TiltedAverages, hats: Sequence[Conjugates], rows: Rows
    ) -> tuple[float, np.ndarray]:
        """Phi(y) and dPhi/dy with everything else held, (18.8) and (18.19)."""
        between, outer, alpha = state.between, hats[0], self.problem.alpha
        variances = state.variances(rates)
        trace = float(np.sum(outer.V * between.q) - np.sum(outer.q * variances[0])) / 2
        trace -= float(np.sum(outer.m * between.m) + np.sum(outer.theta * between.theta))
        gaps = -np.diff([float(np.sum(hat.V * V)) for hat, V in zip(hats, variances, strict=True)]) / (2 * rates)
        free = np.append(averages.free, -averages.moreau)
        phi = trace + float(gaps.sum()) + rows.free + alpha * float(free[0])
        moved = [
            float(np.sum((y * inner.q - inner.V) * distance)) / 2
            for y, inner, distance in zip(rates, hats[1:], state.distances, strict=True)
        ]
        slopes = rows.slopes + (alpha * np.diff(free) - gaps - moved) / rates
        if averages.drift is not None:
            # What docs/theory.md (18.34) says of V~^: (18.15) would bring most of the noise of the slope.
            stein = float(np.sum(outer.V * state.distance))
            slopes = slopes - (alpha * averages.drift + stein) / (2 * rates)
        return phi, slopes


def refuse(problem: Problem) -> None:
    """
    Raises:
        InputError: a finite temperature, a loss that bends in several student fields, holds overlaps or trained
            numbers, or a penalty of more than two columns that is neither a ridge nor given norms.
    """
    name = problem.solver.name
    problem.only_at_zero_temperature("one-step breaking is solved")
    rules_for(problem)
    if not problem.regulariser.is_quadratic and problem.student_rank > 2:
        raise InputError(
            "one-step breaking is solved for ridges and given norms, and for other penalties of one column or two; "
            f"{name} has {problem.student_rank}"
        )
    if problem.solver.model.HOLDS_Q or problem.trained:
        raise InputError(
            f"one-step breaking is solved for losses of the fields alone; that of {name} contains overlaps or trained "
            "numbers"
        )
