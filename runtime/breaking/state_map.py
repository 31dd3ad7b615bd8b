"""The saddle point of one-step breaking at a given Parisi parameter y: u -> G(u), free entropy and its slope in y.

With V~ = V + y Delta and V~^ = V^ - y Delta^ everything reads as without breaking.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .. import budget
from ..errors import InputError
from ..integration.pieces import Pieces
from ..integration.tilted import TiltedAverages, suits, tilted_averages
from ..problems.overlaps import Conjugates
from ..problems.problem import Problem
from ..problems.reduced import integrated
from ..saddle_point.state_map import StateMap
from .rows import Rows, rows_at
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

    Raises:
        InputError: a model whose one-step equations are not solved here.
    """

    problem: Problem
    rule: Pieces

    def __post_init__(self) -> None:
        refuse(self.problem)

    def __call__(self, state: Broken, y: float) -> Answer:
        """What follows from a state.

        Raises:
            DomainError: the state, or what follows from it, is outside the domain.
        """
        budget.check()
        problem, between = self.problem, state.between
        averages = tilted_averages(problem, between, state.distance, y, self.rule)
        symmetric = StateMap(problem, self.rule)
        outer, inner = (symmetric.conjugates(between, moments) for moments in averages.moments)
        # The second set differs in q^ alone; V^ = V~^ + y (q_1^ - q_0^).
        inner = replace(inner, V=outer.V + y * (inner.q - outer.q))
        rows = rows_at(problem, outer, inner, y, self.rule)
        phi, slope = self._free_entropy(state, y, averages, outer, inner, rows)
        return Answer(Broken(rows.between, rows.distance), averages, outer, inner, rows, phi, slope)

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
        InputError: a finite temperature, a loss that reads several student fields, holds overlaps or trained numbers,
            or a penalty of several columns that is neither a ridge nor given norms.
    """
    name = problem.solver.name
    problem.only_at_zero_temperature("one-step breaking is solved")
    if not suits(problem):
        fields = integrated(problem).solver.channel.FIELDS
        raise InputError(
            f"one-step breaking is solved where the loss reads one student field; that of {name} reads {fields}"
        )
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
