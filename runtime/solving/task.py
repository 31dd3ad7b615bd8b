"""The settings of a solve, passed on between its steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..integration import Rule
from ..problems.problem import Problem
from ..problems.symmetry import Symmetry
from ..saddle_point.state_map import StateMap


@dataclass(frozen=True)
class Task:
    """A problem, the branch, and how well it is to be solved.

    Attributes:
        start: name of the start, which names the branch; symmetry: what the iterates keep.
        accuracy: error bar of the overlaps asked, in block scales.
        seed: of sampled rules; effort: how many sizes of each family may be tried.
        told: what was tried and why, in that order; shared by tasks that are made of this one.
    """

    problem: Problem
    start: str
    symmetry: Symmetry
    accuracy: float
    seed: int = 0
    effort: int = 100
    told: list[str] = field(default_factory=list, compare=False, repr=False)

    def tell(self, text: str) -> None:
        """Keep what is tried, and why (`Solution.explanation`)."""
        if not self.told or self.told[-1] != text:
            self.told.append(text)

    def map_by(self, rule: Rule) -> StateMap:
        """Return G by a rule, keeping the symmetry."""
        return StateMap(self.problem, rule, self.symmetry)
