"""The saddle point of one-step breaking at a given Parisi parameter y: u -> G(u), free entropy and its slope in y.

With V~ = V + y Delta and V~^ = V^ - y Delta^ everything reads as without breaking.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .. import budget
from ..errors import InputError
from ..integration.tilted import TiltedAverages
from ..problems.overlaps import Conjugates, Overlaps, packed_length, triangle
from ..problems.problem import Problem
from ..problems.symmetry import NO_SYMMETRY, Symmetry
from ..saddle_point.state_map import conjugates_of
from .rows import Rows, rows_at
from .rules import TiltedRule, averages, framed, ladder, of_rows
from .state import Broken


@dataclass(frozen=True)
class Answer:
    """What follows from a state at one y.

    Attributes:
        image: the next state; averages: at the state.
        between: conjugates with V~^ and q_0^; within: with V^ and q_1^.
        rows: what rows of W make of them.
        free_entropy: Phi(y), extremal where the state is the saddle point; slope: its derivative in y, others held.
    """

    image: Broken
    averages: TiltedAverages
    between: Conjugates
    within: Conjugates
    rows: Rows
    free_entropy: float
    slope: float


@dataclass(frozen=True)
class BreakingMap:
    """u -> G(u) of a problem by a rule, at the Parisi parameter y.

    Attributes:
        symmetry: of the states that are looked for.

    Raises:
        InputError: a model whose one-step equations are not solved here.
    """

    problem: Problem
    rule: TiltedRule
    symmetry: Symmetry = NO_SYMMETRY

    def __post_init__(self) -> None:
        refuse(self.problem)

    def __call__(self, state: Broken, y: float) -> Answer:
        """What follows from a state.

        Raises:
            DomainError: the state, or what follows from it, is outside the domain.
        """
        budget.check()
        problem, between = self.problem, state.between
        found = averages(problem, state, y, self.rule)
        outer, inner = (conjugates_of(problem, between, moments) for moments in found.moments)
        # The second set differs in q^ alone; V^ = V~^ + y (q_1^ - q_0^).
        inner = replace(inner, V=outer.V + y * (inner.q - outer.q))
        rows = rows_at(problem, outer, inner, y, of_rows(self.rule))
        phi, slope = self._free_entropy(state, y, found, outer, inner, rows)
        return Answer(Broken(rows.between, rows.distance), found, outer, inner, rows, phi, slope)

    def around(self, state: Broken, y: float) -> BreakingMap:
        """The same map for looking around a state."""
        return replace(self, rule=framed(self.rule, state, y))

    def directions(self, state: Broken) -> np.ndarray:
        """Directions (k, n) of packed states that span those of the same symmetry, entries 0 and +-1."""
        sizes = state.sizes
        count = packed_length(sizes)
        of_overlaps = self.symmetry.directions(sizes, count)
        numbered = Overlaps.unpack(np.arange(1.0, count + 1), sizes)
        rows, columns = triangle(sizes[1])
        places = numbered.q[:, rows, columns].ravel().astype(int) - 1  # of q among the overlaps
        along = of_overlaps[np.abs(of_overlaps[:, places]).sum(axis=1) > 0][:, places]
        out = np.zeros((len(of_overlaps) + len(along), count + len(places)))
        out[: len(of_overlaps), :count], out[len(of_overlaps) :, count:] = of_overlaps, along
        return out

    def _free_entropy(
        self, state: Broken, y: float, averages: TiltedAverages, outer: Conjugates, inner: Conjugates, rows: Rows
    ) -> tuple[float, float]:
        """Phi(y) and dPhi/dy with everything else held, (18.8) and (18.19)."""
        between, distance = state.between, state.distance
        mixed = between.V + y * distance  # V~
        trace = float(np.sum(outer.V * between.q) - np.sum(outer.q * mixed)) / 2
        trace -= float(np.sum(outer.m * between.m) + np.sum(outer.theta * between.theta))
        gap = float(np.sum(outer.V * mixed) - np.sum(inner.V * between.V))
        alpha = self.problem.alpha
        phi = trace + gap / (2 * y) + rows.free + alpha * averages.free
        slope = -gap / (2 * y * y) + rows.slope - alpha / y * (averages.moreau + averages.free)
        slope -= float(np.sum((y * inner.q - inner.V) * distance)) / (2 * y)
        return phi, slope


def refuse(problem: Problem) -> None:
    """
    Raises:
        InputError: a finite temperature, a loss that reads more than two student fields, holds overlaps or trained
            numbers, or a penalty of several columns that is neither a ridge nor given norms.
    """
    name = problem.solver.name
    problem.only_at_zero_temperature("one-step breaking is solved")
    ladder(problem)
    if not problem.has_ridge and problem.student_rank > 1:
        raise InputError(
            "one-step breaking is solved for ridges and given norms, and for other penalties of one column; "
            f"{name} has {problem.student_rank}"
        )
    if problem.solver.model.HOLDS_Q or problem.trained:
        raise InputError(
            f"one-step breaking is solved for losses of the fields alone; that of {name} holds overlaps or trained "
            "numbers"
        )
