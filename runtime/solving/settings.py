"""The settings of one solve, shared by its steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..integration import Rule
from ..problems.problem import Problem
from ..problems.symmetry import StateSymmetry
from ..saddle_point.state_map import SaddlePointMap


@dataclass(frozen=True)
class SolveSettings:
    """The settings of one solve: the problem, the branch, the accuracy and the effort.

    Attributes:
        start: name of the start, which names the branch; symmetry: the symmetry that iterates keep.
        accuracy: error bar of the overlaps to reach, in block scales.
        seed: seed of sampled rules; effort: how many sizes of each family may be tried.
        attempts: sentences on the rules tried and why, in order; shared by tasks that are made from this one.
    """

    problem: Problem
    start: str
    symmetry: StateSymmetry
    accuracy: float
    seed: int = 0
    effort: int = 100
    attempts: list[str] = field(default_factory=list, compare=False, repr=False)

    def record_rule_attempt(self, text: str) -> None:
        """Record a sentence on a quadrature rule that is tried, for `Solution.explanation`."""
        if not self.attempts or self.attempts[-1] != text:
            self.attempts.append(text)

    def state_map_of_rule(self, rule: Rule) -> SaddlePointMap:
        """Return the saddle-point map integrated by a quadrature rule, with the symmetry of the solve."""
        return SaddlePointMap(self.problem, rule, self.symmetry)
