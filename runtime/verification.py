"""A second opinion: rules of another family than the one that solved a problem, to verify a threshold by.

Two rules count as different where they place their nodes in different variables (proximal points or fields) or by
different formulas; that they read the same symbolic loss is the point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import InputError
from .integration import GaussHermite, Lines, ProxSpace, Rule, Sobol, SparseGrid
from .problem import Problem
from .solution import Solution
from .stability import NEGLIGIBLE_JUMPS

COARSE = 3.0
AUTOMATIC_BELOW = 1e-6  # accuracies from here on are verified unless told otherwise
_LINES = (48, 72, 108, 140)
_PRODUCT = (24, 36, 54, 80, 120, 180)
_LEVELS = (4, 5, 6, 7, 8)
_GRIDS = (ProxSpace(64, 32), ProxSpace(88, 44), ProxSpace(120, 60))
_MOST_PRODUCT = 3e6
_MOST_LINES = 3e6


@dataclass(frozen=True)
class Opinion:
    """What a second rule makes of the compared difference, and the half width of that where it has one of its own."""

    rule: Rule
    difference: float
    error: float


def other_rules(problem: Problem, rule: Rule, bistable: float) -> list[Rule]:
    """Rules of another family that suit the problem, coarse to fine; empty where none does.

    Where the proximal map jumps: lines split there, else Sobol sets. Where it does not: a product of Gauss-Hermite
    rules in few dimensions, lines (equidistant nodes) in some, a sparse grid in many.
    """
    dimension, fields = problem.dimension, problem.solver.channel.FIELDS
    lines: list[Rule] = [Lines(n) for n in _LINES if fields <= 2 and n ** (dimension - 1) <= _MOST_LINES]
    if isinstance(rule, Lines):
        return [*_GRIDS] if problem.solver.channel.HAS_PROX_SPACE and fields <= 2 else []
    if bistable > NEGLIGIBLE_JUMPS:
        return lines or ([] if isinstance(rule, Sobol) else [Sobol(13), Sobol(15)])
    product: list[Rule] = [GaussHermite(n) for n in _PRODUCT if n**dimension <= _MOST_PRODUCT]
    if dimension <= 3 and not isinstance(rule, GaussHermite):
        return product
    return lines or ([] if isinstance(rule, SparseGrid) else [SparseGrid(level) for level in _LEVELS])


def opinions(
    solutions: Sequence[Solution], difference: Callable[[Rule], tuple[float, float]], tick: Callable[[], None]
) -> Iterator[Opinion]:
    """The compared difference by ever finer rules of another family, as far as they go.

    Args:
        solutions: at the threshold; one family serves all of them.
        difference: rule -> compared difference by it at the same solutions, and its half width.
    """
    bistable = max(s.averages.bistable if s.averages else 0.0 for s in solutions)
    for rule in other_rules(solutions[0].problem, solutions[0].rule, bistable):
        try:
            yield Opinion(rule, *difference(rule))
        except InputError:
            return
        tick()


@dataclass(frozen=True)
class Agreement:
    """How far the threshold by a second rule is from that by the first.

    Attributes:
        value: of the threshold by the second rule; gap: to that by the first, the second's own half width included.
        spread: what the last refinement of the second rule changed; nan where it was asked once.
        enough: gap up to which the two agree.
    """

    value: float
    gap: float
    spread: float
    enough: float
    rule: dict[str, Any]
    tried: tuple[dict[str, Any], ...]

    @property
    def agrees(self) -> bool:
        return self.gap <= self.enough

    @property
    def too_coarse(self) -> bool:
        """Whether the second rule itself still moves by as much as the two differ, so that it cannot tell."""
        return not self.agrees and self.gap <= COARSE * self.spread

    @property
    def words(self) -> str:
        if self.agrees:
            return "agrees"
        return "too coarse to tell" if self.too_coarse else "differs"

    def to_json(self) -> dict[str, Any]:
        own = {"value": self.value, "gap": self.gap, "spread": self.spread, "verdict": self.words}
        return {**own, "integrator": self.rule, "tried": list(self.tried)}


def agreement(
    found: Iterator[Opinion], value: float, root: Callable[[float], float], enough: float
) -> Agreement | None:
    """The opinion of the finest rule asked: finer ones are asked until the gap is `enough`. None without any.

    Args:
        value: of the threshold by the first rule.
        root: compared difference -> threshold.
    """
    tried: list[dict[str, Any]] = []
    last = None
    for opinion in found:
        other = root(opinion.difference)
        gap = abs(other - value) + abs(root(opinion.difference + opinion.error) - other)
        spread = abs(other - last.value) if last else np.nan
        tried.append({**opinion.rule.describe(), "value": other})
        last = Agreement(other, gap, spread, enough, opinion.rule.describe(), tuple(tried))
        if last.agrees:
            break
    return last


__all__ = ["AUTOMATIC_BELOW", "Agreement", "Opinion", "agreement", "opinions", "other_rules"]
