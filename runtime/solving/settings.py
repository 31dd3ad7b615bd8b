"""The settings of a solve, passed on between its steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..integration import Rule
from ..problems.problem import Problem
from ..problems.symmetry import Symmetry
from ..saddle_point.state_map import StateMap


@dataclass(frozen=True)
class SolveTask:
    """The settings of one solve: the problem, the branch, the accuracy and the effort.

    Attributes:
        start: name of the start, which names the branch; symmetry: the symmetry that iterates keep.
        accuracy: error bar of the overlaps to reach, in block scales.
        seed: of sampled rules; effort: how many sizes of each family may be tried.
        attempts: sentences on the rules tried and why, in order; shared by tasks that are made from this one.
    """

    problem: Problem
    start: str
    symmetry: Symmetry
    accuracy: float
    seed: int = 0
    effort: int = 100
    attempts: list[str] = field(default_factory=list, compare=False, repr=False)

    def record(self, text: str) -> None:
        """Record a sentence on a rule that is tried and why (`Solution.explanation`)."""
        if not self.attempts or self.attempts[-1] != text:
            self.attempts.append(text)

    def state_map_by(self, rule: Rule) -> StateMap:
        """Return the map G integrated by a rule, with the symmetry kept."""
        return StateMap(self.problem, rule, self.symmetry)
