"""What a rule returns, and the interface it answers to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..problems.overlaps import Overlaps
from ..problems.problem import Problem


@dataclass(frozen=True)
class Averages:
    """Raw channel averages of the saddle point, one set a replicate (R = 1 for deterministic rules).

    Attributes:
        moments: (R, C, row), E_c[.] of the generated MOMENTS, label probabilities included.
        moreau, loss: E[M] and E[loss(X_prox)], (R,).
        bistable: probability that a second minimum was seen (prox-space: weight of the saddles).
        gap: E[gap to the second minimum; it exists] (nan where the rule does not see it).
        unconverged: share of nodes whose proximal iteration did not converge.
        mass: total weight, 1 for an exact rule.
    """

    moments: np.ndarray
    moreau: np.ndarray
    loss: np.ndarray
    bistable: float
    gap: float
    unconverged: float
    mass: float


@dataclass(frozen=True)
class JacobianAverages:
    """E[G_ll] (labels, L, s, s) and E[G_ll' (x) G_ll'] (labels, L, L, s, s, s, s), a replicate in front.

    G = dg/domega where the proximal map is smooth (docs/theory.md (8.1)); one entry a label assignment, unweighted.
    """

    slope: np.ndarray
    square: np.ndarray


class Rule(Protocol):
    """An integration rule for the channel."""

    @property
    def name(self) -> str:
        """What the family goes by: `integrator` of `solve`, `rule` in the JSON contract."""
        ...

    def describe(self) -> dict[str, Any]:
        """rule, points, seed for the JSON contract."""
        ...

    def averages(self, problem: Problem, overlaps: Overlaps) -> Averages:
        """Channel averages at the overlaps; raises DomainError outside their domain."""
        ...

    def jacobians(self, problem: Problem, overlaps: Overlaps) -> JacobianAverages:
        """Averages of the field's Jacobian, for the replicon."""
        ...

    def moment_tangents(self, problem: Problem, overlaps: Overlaps, jumps: bool = False) -> np.ndarray:
        """Derivatives of the channel averages in the packed overlaps, (C, row, n), by printed formulas.

        They hold where the loss holds neither q nor trained numbers.

        Args:
            jumps: whether to count what jumps of the proximal map add; rules in X alone can.
        """
        ...

    def finer(self) -> Rule:
        """The next rule of the same family, to judge this one by."""
        ...

    def coarser(self) -> Rule:
        """The one before, to see how fast the family converges."""
        ...


NEGLIGIBLE_JUMPS = 1e-6  # of the measure: below, nothing is asked about jumps
