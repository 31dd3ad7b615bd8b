"""Independent checks of a threshold by finer and finer quadrature rules of another family.

`solving.verification` solves a problem again; here other rules are evaluated at the solutions of the first rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.errors import DomainError, InputError
from ..base.options import AlgorithmOptions
from ..integration import Rule, cross_check_families
from ..integration.estimates import replicate_error_bar
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.symmetry import NO_SYMMETRY
from ..solving.local import overlap_shifts_by_replicates
from ..solving.losses import integrate_training_loss
from ..solving.settings import SolveSettings
from ..solving.solution import Solution


@dataclass(frozen=True)
class SecondRuleOptions(AlgorithmOptions):
    """Options of the comparison with a second rule.

    Attributes:
        change_factor: multiple of the last change that bounds the error of the second rule: 3, if errors fall to three
            quarters from one rule to the next. Larger calls more comparisons inconclusive.
    """

    change_factor: float = 3.0


@dataclass(frozen=True)
class SecondRuleResult:
    """The difference that vanishes at a threshold, evaluated by a second quadrature rule."""

    rule: Rule
    difference: float
    error: float


def rules_of_independent_family(problem: Problem, rule: Rule, bistable: float) -> tuple[Rule, ...]:
    """Return quadrature rules of another family that are applicable, coarse to fine; empty without any.

    A rule that splits its lines where the proximal map jumps is compared with nodes in X, or else with another rule
    that splits, any other rule with nodes in the fields.

    Args:
        problem: the problem.
        rule: quadrature rule of the solutions.
        bistable: fraction of the measure on which the proximal map jumps.
    """
    others = cross_check_families(rule)
    preferred = [family for family in others if family.in_x == rule.splits_jumps]
    for family in [*preferred, *(family for family in others if family.splits_jumps)]:
        if results := family.cross_check_rules(problem, bistable):
            return results
    return ()


def differences_by_second_rules(
    solutions: Sequence[Solution], difference: Callable[[Rule], tuple[float, float]], tick: Callable[[], None]
) -> Iterator[SecondRuleResult]:
    """Yield the difference that vanishes at a threshold, by finer and finer rules of another family.

    Args:
        solutions: solutions at the threshold.
        difference: returns the difference by a rule at these solutions, and its error bar.
        tick: function that reports progress, called after every rule.
    """
    bistable = max(s.averages.bistable if s.averages else 0.0 for s in solutions)
    for rule in rules_of_independent_family(solutions[0].problem, solutions[0].rule, bistable):
        try:
            yield SecondRuleResult(rule, *difference(rule))
        except InputError:
            return
        except DomainError:
            pass  # too coarse to have averages here; finer ones may
        tick()


def solution_by_second_rule(solution: Solution, rule: Rule) -> Solution | None:
    """Return the solution by another quadrature rule, to first order; None outside the domain of definition.

    The overlaps change by one Newton step, (I - J)^{-1} (G(u) - u), and everything else is averaged there. `shifts` has
    the spread of the replicates, if any; there are no other error bars.

    Args:
        solution: the solution.
        rule: the other rule.

    Raises:
        InputError: the rule is too large, or not applicable to such a problem.
    """
    problem, u, sizes = solution.problem, solution.overlaps.pack(), solution.overlaps.sizes
    symmetry = solution.symmetry or NO_SYMMETRY
    task = SolveSettings(problem, solution.start, symmetry, solution.relative_error)
    try:
        shifts, _ = overlap_shifts_by_replicates(task, solution.fixed_point, rule)
    except DomainError:
        return None
    shift = shifts.mean(axis=0)
    spread = shifts - shift if rule.replicated else np.zeros((0, len(u)))
    moved = replace(
        solution,
        overlaps=Overlaps.unpack(u + shift, sizes),
        rule=rule,
        errors=replicate_error_bar(spread) if len(spread) else np.zeros(len(u)),
        shifts=spread,
        residual_shift=np.zeros(len(u)),
        second_order=0.0,
    )
    try:
        return integrate_training_loss(moved, rule)
    except DomainError:
        return None


@dataclass(frozen=True)
class SecondRuleComparison:
    """A comparison of the threshold by a second rule with that by the first.

    Attributes:
        value: of the threshold by the second rule; gap: to that by the first, the second's own error bar included.
        spread: change by the last refinement of the second rule; nan without one.
        enough: gap up to which the two agree.
        rule, tried: description of the last rule, and of all, with the values by them.
    """

    value: float
    gap: float
    spread: float
    enough: float
    rule: dict[str, Any]
    tried: tuple[dict[str, Any], ...]

    @property
    def agrees(self) -> bool:
        """Return whether the gap is at most `enough`, so that the second rule confirms the threshold."""
        return self.gap <= self.enough

    @property
    def is_inconclusive(self) -> bool:
        """Return whether the second rule has not converged to within the gap, so that the check is inconclusive."""
        return not self.agrees and self.gap <= SecondRuleOptions.current().change_factor * self.spread

    @property
    def verdict(self) -> str:
        """Return the verdict: agrees, differs, or too coarse to tell."""
        if self.agrees:
            return "agrees"
        return "too coarse to tell" if self.is_inconclusive else "differs"

    @property
    def evidence(self) -> dict[str, Any]:
        """Return the entry `second_rule` of the evidence of a threshold, with every rule that was tried."""
        own = {"value": self.value, "gap": self.gap, "spread": self.spread, "verdict": self.verdict}
        return {**own, "integrator": self.rule, "tried": list(self.tried)}


def compare_thresholds(
    results: Iterator[SecondRuleResult], value: float, root: Callable[[float], float], enough: float
) -> SecondRuleComparison | None:
    """Compare a threshold with those by finer and finer second rules; None without any second rule.

    Args:
        results: differences by the second rules.
        value: value of the threshold by the first rule.
        root: returns the threshold of a difference.
        enough: gap up to which they agree.
    """
    tried: list[dict[str, Any]] = []
    last = None
    for result in results:
        other = root(result.difference)
        gap = abs(other - value) + abs(root(result.difference + result.error) - other)
        spread = abs(other - last.value) if last else np.nan
        tried.append({**result.rule.rule_description(), "value": other})
        last = SecondRuleComparison(other, gap, spread, enough, result.rule.rule_description(), tuple(tried))
        if last.agrees:
            break
    return last


def error_bar_with_second_rule(
    comparison: SecondRuleComparison | None, error: float
) -> tuple[str, float, dict[str, float]]:
    """Return kind of error, error bar, and the part of the error bar due to the second rule.

    An inconclusive comparison neither verifies the threshold nor widens its error bar.

    Args:
        comparison: comparison with the second rule; None without one.
        error: error bar by the first rule.
    """
    if comparison is None or comparison.is_inconclusive:
        return "estimated", error, {}
    return "verified", max(error, comparison.gap), {"error_second_rule": max(0.0, comparison.gap - error)}
