"""What is asked of a solve, handed from one to the next of those who share it."""

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
        accuracy: half width of the overlaps asked, in block scales.
        seed: of sampled rules; effort: how many sizes of each family may be tried.
        told: what was tried and why, in the order in which it was; shared by those whom it is handed to.
    """

    problem: Problem
    start: str
    symmetry: Symmetry
    accuracy: float
    seed: int = 0
    effort: int = 100
    told: list[str] = field(default_factory=list, compare=False, repr=False)

    def tell(self, text: str) -> None:
        """Keep what is tried, and why, for who asks (`Solution.explanation`)."""
        if not self.told or self.told[-1] != text:
            self.told.append(text)

    def map_by(self, rule: Rule) -> StateMap:
        """G by a rule, keeping the symmetry."""
        return StateMap(self.problem, rule, self.symmetry)
