"""A second opinion on a threshold: what is compared there, by ever finer rules of another family.

Where `solving.verification` solves a problem again, other rules here look at the solutions that there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.errors import DomainError, InputError
from ..integration import Rule, other_families
from ..integration.estimates import two_standard_errors
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.symmetry import NO_SYMMETRY
from ..solving.local import replicate_shifts
from ..solving.losses import with_losses
from ..solving.solution import Solution
from ..solving.task import Task

# Of errors that fall to three quarters from one rule to the next, so many times the last change are left.
_LEFT_OF_CHANGE = 3.0


@dataclass(frozen=True)
class Opinion:
    """The compared difference by a second rule, with the error bar of its own where it has one."""

    rule: Rule
    difference: float
    error: float


def other_rules(problem: Problem, rule: Rule, bistable: float) -> tuple[Rule, ...]:
    """Return rules of another family that suit the problem, coarse to fine; empty where none does.

    A rule that splits its lines where the proximal map jumps is compared with nodes in X, or where there are none with
    another that does, any other with nodes in the fields: which of these, the families say of themselves
    (`Rule.opinions`).
    """
    others = other_families(rule)
    preferred = [family for family in others if family.in_x == rule.splits_jumps]
    for family in [*preferred, *(family for family in others if family.splits_jumps)]:
        if found := family.opinions(problem, bistable):
            return found
    return ()


def opinions(
    solutions: Sequence[Solution], difference: Callable[[Rule], tuple[float, float]], tick: Callable[[], None]
) -> Iterator[Opinion]:
    """Yield the compared difference by ever finer rules of another family, as far as they go.

    Args:
        solutions: at the threshold; one family serves all of them.
        difference: rule -> compared difference by it at the same solutions, and its error bar.
    """
    bistable = max(s.averages.bistable if s.averages else 0.0 for s in solutions)
    for rule in other_rules(solutions[0].problem, solutions[0].rule, bistable):
        try:
            yield Opinion(rule, *difference(rule))
        except InputError:
            return
        except DomainError:
            pass  # too coarse to have averages here; finer ones may
        tick()


def by_rule(solution: Solution, rule: Rule) -> Solution | None:
    """Return a solution as another rule has it; None where its averages leave the domain.

    The overlaps move by one Newton step, (I - J)^{-1} (G(u) - u), and everything else is averaged there. `shifts` holds
    the spread of the replicates, if any; no other error bar is known.

    Raises:
        InputError: the rule is too large, or not made for such a problem.
    """
    problem, u, sizes = solution.problem, solution.overlaps.pack(), solution.overlaps.sizes
    symmetry = solution.symmetry or NO_SYMMETRY
    task = Task(problem, solution.start, symmetry, solution.relative_error)
    try:
        shifts, _ = replicate_shifts(task, solution.fixed_point, rule)
    except DomainError:
        return None
    shift = shifts.mean(axis=0)
    spread = shifts - shift if rule.replicated else np.zeros((0, len(u)))
    moved = replace(
        solution,
        overlaps=Overlaps.unpack(u + shift, sizes),
        rule=rule,
        errors=two_standard_errors(spread) if len(spread) else np.zeros(len(u)),
        shifts=spread,
        residual_shift=np.zeros(len(u)),
        second_order=0.0,
    )
    try:
        return with_losses(moved, rule)
    except DomainError:
        return None


@dataclass(frozen=True)
class Agreement:
    """How far the threshold by a second rule is from that by the first.

    Attributes:
        value: of the threshold by the second rule; gap: to that by the first, the second's own error bar included.
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
        """Whether the gap is at most `enough`, so that the second rule confirms the threshold."""
        return self.gap <= self.enough

    @property
    def too_coarse(self) -> bool:
        """Whether the second rule itself still moves by as much as the two differ, so that it cannot tell."""
        return not self.agrees and self.gap <= _LEFT_OF_CHANGE * self.spread

    @property
    def words(self) -> str:
        """Verdict: agrees, differs, or too coarse to tell."""
        if self.agrees:
            return "agrees"
        return "too coarse to tell" if self.too_coarse else "differs"

    @property
    def evidence(self) -> dict[str, Any]:
        """The entry `second_rule` of a threshold's evidence, with every rule that was tried."""
        own = {"value": self.value, "gap": self.gap, "spread": self.spread, "verdict": self.words}
        return {**own, "integrator": self.rule, "tried": list(self.tried)}


def agreement(
    found: Iterator[Opinion], value: float, root: Callable[[float], float], enough: float
) -> Agreement | None:
    """Compare a threshold with those by ever finer rules, until the gap is `enough`; None without any rule.

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


def confirmed(agreed: Agreement | None, error: float) -> tuple[str, float, dict[str, float]]:
    """Return kind of error, error bar and its part from the second rule, once a second rule was asked (or none: None).

    A rule that is too coarse to tell neither verifies nor widens.

    Args:
        error: error bar by the first rule.
    """
    if agreed is None or agreed.too_coarse:
        return "estimated", error, {}
    return "verified", max(error, agreed.gap), {"half_width_second_rule": max(0.0, agreed.gap - error)}
