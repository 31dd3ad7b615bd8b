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
from ..integration import Rule, quadrature_families_for_cross_check
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
    """Options of the comparison of a threshold by two families of quadrature rules.

    Attributes:
        change_factor: assumed error of a threshold by the second rule, divided by its change in the last refinement: 3
            if a refinement reduces errors to three quarters. A larger factor makes more comparisons inconclusive.
    """

    change_factor: float = 3.0


@dataclass(frozen=True)
class DifferenceBySecondRule:
    """The difference that vanishes at a threshold, as of two losses, evaluated by a second quadrature rule."""

    rule: Rule
    difference: float
    error: float


def independent_quadrature_rules(problem: Problem, rule: Rule, bistable: float) -> tuple[Rule, ...]:
    """Return the applicable quadrature rules of another family than the given one, from coarse to fine.

    A rule that splits lines at jumps of the proximal map is compared with nodes in proximal space, or else with another
    such rule; any other rule is compared with nodes in the fields. Without an applicable rule the result is empty.

    Args:
        problem: the problem.
        rule: quadrature rule of the solutions.
        bistable: fraction of samples with two minima of the proximal objective, between which the map jumps.
    """
    others = quadrature_families_for_cross_check(rule)
    preferred = [family for family in others if family.in_x == rule.splits_jumps]
    for family in [*preferred, *(family for family in others if family.splits_jumps)]:
        if results := family.quadrature_rules_for_cross_check(problem, bistable):
            return results
    return ()


def evaluate_difference_by_second_rules(
    solutions: Sequence[Solution], difference: Callable[[Rule], tuple[float, float]], tick: Callable[[], None]
) -> Iterator[DifferenceBySecondRule]:
    """Yield the difference that vanishes at a threshold (say of two losses), by finer and finer second rules.

    Second rules are quadrature rules of another family than that of the solutions, which check the threshold.

    Args:
        solutions: solutions at the threshold.
        difference: function of a quadrature rule that returns the difference at these solutions and its error bar.
        tick: function that reports progress, called after every rule.
    """
    bistable = max(s.averages.bistable if s.averages else 0.0 for s in solutions)
    for rule in independent_quadrature_rules(solutions[0].problem, solutions[0].rule, bistable):
        try:
            yield DifferenceBySecondRule(rule, *difference(rule))
        except InputError:
            return
        except DomainError:
            pass  # too coarse to have averages here; finer ones may
        tick()


def solution_by_other_quadrature(solution: Solution, rule: Rule) -> Solution | None:
    """Return the solution by another quadrature rule, after one Newton step; None outside the domain of definition.

    Losses and observables are computed again at the new overlaps. The only error bars are those due to the spread of
    the replicates of the rule, if it has any.

    Args:
        solution: the solution.
        rule: the other quadrature rule.

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
    """A comparison of the threshold by a second quadrature rule with that by the first.

    Attributes:
        value: threshold by the second rule.
        gap: distance to the threshold by the first rule, plus the error bar by the second.
        spread: change in the last refinement of the second rule; nan without one.
        enough: gap up to which the two rules agree.
        rule: description of the finest second rule.
        tried: descriptions of all second rules, with the thresholds by them.
    """

    value: float
    gap: float
    spread: float
    enough: float
    rule: dict[str, Any]
    tried: tuple[dict[str, Any], ...]

    @property
    def is_threshold_confirmed(self) -> bool:
        """Return whether the second rule confirms the threshold: the thresholds by both rules agree."""
        return self.gap <= self.enough

    @property
    def is_inconclusive(self) -> bool:
        """Return whether the check is inconclusive, since the second rule has not converged to within the gap."""
        return not self.is_threshold_confirmed and self.gap <= SecondRuleOptions.current().change_factor * self.spread

    @property
    def verdict(self) -> str:
        """Return the result of the comparison in words: agrees, differs, or too coarse to tell."""
        if self.is_threshold_confirmed:
            return "agrees"
        return "too coarse to tell" if self.is_inconclusive else "differs"

    @property
    def evidence(self) -> dict[str, Any]:
        """Return thresholds by second quadrature rules and a verdict, for `Threshold.evidence["second_rule"]`."""
        own = {"value": self.value, "gap": self.gap, "spread": self.spread, "verdict": self.verdict}
        return {**own, "integrator": self.rule, "tried": list(self.tried)}


def compare_thresholds(
    results: Iterator[DifferenceBySecondRule], value: float, root: Callable[[float], float], enough: float
) -> SecondRuleComparison | None:
    """Compare a threshold with those by finer and finer second rules until they agree; None without a second rule.

    Args:
        results: differences by the second rules, from `evaluate_difference_by_second_rules`.
        value: threshold by the first rule.
        root: function that converts a difference into a threshold.
        enough: distance up to which the thresholds agree.
    """
    tried: list[dict[str, Any]] = []
    last = None
    for result in results:
        other = root(result.difference)
        gap = abs(other - value) + abs(root(result.difference + result.error) - other)
        spread = abs(other - last.value) if last else np.nan
        tried.append({**result.rule.rule_description(), "value": other})
        last = SecondRuleComparison(other, gap, spread, enough, result.rule.rule_description(), tuple(tried))
        if last.is_threshold_confirmed:
            break
    return last


def error_bar_after_independent_check(
    comparison: SecondRuleComparison | None, error: float
) -> tuple[str, float, dict[str, float]]:
    """Return the kind ("estimated" or "verified") and size of a threshold's error bar, and its part due to the check.

    The check locates the threshold again by a second quadrature rule; the third result has the amount by which it
    widens the error bar. An inconclusive check neither verifies the threshold nor widens its error bar.

    Args:
        comparison: comparison with the threshold by the second rule; None if there was none.
        error: error bar of the threshold by the first rule.
    """
    if comparison is None or comparison.is_inconclusive:
        return "estimated", error, {}
    return "verified", max(error, comparison.gap), {"error_second_rule": max(0.0, comparison.gap - error)}
