"""The settings of one solve, shared by its steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..integration import Rule
from ..problems.problem import Problem
from ..problems.symmetry import StateSymmetry
from ..saddle_point.state_map import SaddlePointMap


@dataclass(frozen=True)
class SolveSettings:
    """The settings of one solve: problem, branch, accuracy and effort.

    Attributes:
        start: name of the start, which is also the name of the branch.
        symmetry: symmetry that is imposed on all iterates.
        accuracy: error bar of the overlaps that is requested, relative to the size of their block (q, V, m, ...).
        seed: seed of the sampled quadrature rules.
        effort: largest number of sizes that are tried in each family of quadrature rules.
        attempts: sentences that say which quadrature rules were tried and why, in order.
    """

    problem: Problem
    start: str
    symmetry: StateSymmetry
    accuracy: float
    seed: int = 0
    effort: int = 100
    attempts: list[str] = field(default_factory=list, compare=False, repr=False)

    def record_quadrature_attempt(self, text: str) -> None:
        """Store a sentence that says which quadrature rule is tried and why, for `Solution.explanation`."""
        if not self.attempts or self.attempts[-1] != text:
            self.attempts.append(text)

    def state_map_by_quadrature_rule(self, rule: Rule) -> SaddlePointMap:
        """Return the saddle-point map by a quadrature rule, with the symmetry of the solve."""
        return SaddlePointMap(self.problem, rule, self.symmetry)
