"""Error bars of quadrature: from independent replicates, and from differences between rules of several sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, zip_longest

import numpy as np

from ..base.errors import DomainError, InputError
from ..base.options import AlgorithmOptions
from .rule import DIFFERENCE_SAFETY, Rule, SaddlePointAverages, largest_bistable_fraction

STEP_ROUNDING = 1e-12  # rounding error of a difference, in units of the quantity


@dataclass(frozen=True)
class ErrorEstimateOptions(AlgorithmOptions):
    """Options of error bars from differences between rules.

    Attributes:
        max_finer_rules: largest number of finer rules evaluated while differences grow; more of them find kinks that
            all coarse rules miss.
        max_rate: slowest rate of convergence from rule to rule that error bars allow for, from 0 (fast) to 1; larger
            values are safer where errors fall slowly, and give larger error bars.
    """

    max_finer_rules: int = 3
    max_rate: float = 0.9


def replicate_error_bar(samples: np.ndarray) -> np.ndarray:
    """Return the error bar of the mean of independent replicates, which run along the first axis.

    The coverage is that of two standard errors of a normal variable, 95.45 %. Since the standard error is an estimate,
    Student's t gives the factor (2.18 for 16 replicates). For skewed replicates Johnson's correction (J. Am. Stat.
    Assoc. 73 (1978) 536) widens the interval by the excess of the skewness over its standard error.
    """
    from scipy.special import ndtr, stdtrit

    count = len(samples)
    factor = stdtrit(count - 1, ndtr(2.0))
    deviations, spread = samples - samples.mean(axis=0), samples.std(axis=0)
    skewness = np.abs(np.mean((deviations / np.where(spread > 0, spread, 1.0)) ** 3, axis=0))
    clear = np.maximum(skewness - np.sqrt(6 * (count - 2) / ((count + 1) * (count + 3))), 0.0)
    widened = factor + clear * (1 + 2 * factor**2) / (6 * np.sqrt(count))
    return widened * spread / np.sqrt(count - 1)


def error_bar_factors_from_rate(
    fine: np.ndarray, *coarser: np.ndarray, max_rate: float | None = None
) -> tuple[float, float]:
    """Return the factors by which an error bar multiplies the differences to the next finer and coarser rule.

    The rate r by which errors fall from rule to rule is estimated from the largest entries of successive differences
    (the slower of two rates counts). The factors are 1.5 (1 + r) / (1 - r) for the finer rule, and r times as large for
    the coarser one, which guards against a chance agreement with the finer rule.

    Args:
        fine: differences to the finer rule, relative to one scale.
        coarser: differences to coarser rules, relative to the same scale.
        max_rate: upper bound on the estimated rate, smaller where small errors scatter; None for the default of
            `ErrorEstimateOptions`.
    """
    sizes = [float(np.max(np.abs(difference))) for difference in (fine, *coarser)]
    rates = [one / other for one, other in pairwise(sizes) if other > 0]
    rate = min(ErrorEstimateOptions.current().max_rate if max_rate is None else max_rate, max(rates, default=0.0))
    factor = DIFFERENCE_SAFETY * (1 + rate) / (1 - rate)
    return factor, rate * factor


RuleChange = Callable[[Rule], Rule]
"""A function from the rule in use to another one in its place."""


@dataclass(frozen=True)
class RuleComparison:
    """A comparison of quantities computed by the rules in use with the same quantities computed by other rules.

    Attributes:
        differences: one array per quantity: its value by the other rules minus its value by the rules in use, scaled so
            that it is of the order of the difference of the averages.
        averages: averages by each of the other rules.
    """

    differences: tuple[np.ndarray, ...]
    averages: tuple[SaddlePointAverages, ...]


def compare_rules(
    rules: Sequence[Rule],
    own: Sequence[SaddlePointAverages],
    evaluate: Callable[[RuleChange], RuleComparison],
    derivative: bool = False,
    finer: RuleComparison | None = None,
) -> list[tuple[RuleComparison, tuple[float, ...]]]:
    """Compare the rules in use with finer and coarser ones; return each comparison with its error-bar factors.

    The error bar of a quantity is the largest product of |difference| and its factor.

    Args:
        rules: rules in use, most often one.
        own: averages by these rules.
        evaluate: function from a change of rule (such as `finer_rule`) to the comparison with the changed rules.
        derivative: whether quantities contain derivatives of the averages, see `Rule.smallest_error_bar_factors`.
        finer: comparison with the next finer rules, if already computed.

    Raises:
        DomainError: averages by the finer rules are outside the domain of the equations.
    """
    known = [finer or evaluate(lambda rule: rule.finer_rule())]
    for number in range(max(len(rule.comparison_rules()) for rule in rules)):
        with suppress(DomainError):  # too coarse for the law of the fields
            known.append(evaluate(partial(_comparison_rule, number=number)))
    bistable = largest_bistable_fraction((*own, *(each for other in known for each in other.averages)))
    steps = [other.differences for other in known]
    if all(rule.is_nonadaptive and rule.has_convergence_rate(bistable) for rule in rules):
        known[0], steps = _add_finer_rules_while_differences_grow(evaluate, known)
        known = known[: len(steps)]
    counts = []
    for quantity in range(len(known[0].differences)):
        each_rule = [
            error_bar_factors_of_rule(
                rule,
                [step[quantity] for step in steps],
                [own[n], *(other.averages[n] for other in known)],
                derivative,
            )
            for n, rule in enumerate(rules)
        ]
        counts.append([max(count) for count in zip(*each_rule, strict=True)])
    return list(zip(known, zip(*counts, strict=True), strict=True))


def error_bar_from_comparisons(known: Sequence[tuple[RuleComparison, tuple[float, ...]]], quantity: int) -> np.ndarray:
    """Return the error bar of one quantity from its differences between rules.

    Args:
        known: comparisons and their factors, from `compare_rules`.
        quantity: index of the quantity in the comparisons.
    """
    return np.max([counts[quantity] * np.abs(other.differences[quantity]) for other, counts in known], axis=0)


def error_bar_factors_of_rule(
    rule: Rule, steps: Sequence[np.ndarray], averages: Sequence[SaddlePointAverages], derivative: bool
) -> list[float]:
    """Return the factors by which the error bar of one rule multiplies its differences to other rules.

    Args:
        rule: rule in use.
        steps: differences of a quantity between this rule and the others, see `Rule.smallest_error_bar_factors`.
        averages: averages by the rule in use, then by the other rules.
        derivative: whether the quantity contains derivatives of the averages.
    """
    bistable = largest_bistable_fraction(averages)
    rated = error_bar_factors_from_rate(*steps) if rule.has_convergence_rate(bistable) else (DIFFERENCE_SAFETY,)
    least = rule.smallest_error_bar_factors(steps, averages, derivative)
    return [max(pair) for pair in zip_longest(rated[: len(steps)], least, fillvalue=0.0)]


def error_bar_of_finest_rule(rule: Rule, steps: Sequence[np.ndarray], averages: Sequence[SaddlePointAverages]) -> float:
    """Return the error bar of an average by the finest of a sequence of rules, from the differences between them.

    Args:
        rule: finest rule.
        steps: differences between successive rules of the sequence, the last difference first.
        averages: averages by these rules, the finest first.
    """
    least = rule.smallest_error_bar_factors(steps, averages, False)
    return error_bar_of_rule_sequence(steps, least, rule.has_convergence_rate(largest_bistable_fraction(averages)))


def error_bar_of_rule_sequence(
    steps: Sequence[np.ndarray], least: Sequence[float], has_convergence_rate: bool = True
) -> float:
    """Return the error bar of a value by the finest of a sequence of rules, from differences between the rules.

    Args:
        steps: differences between successive rules of the sequence, the last difference first.
        least: lower bounds on the factors by which the error bar multiplies these differences.
        has_convergence_rate: whether errors fall by a constant factor from rule to rule.
    """
    # The finer rule is the one used: the difference counts as that to a coarser one does.
    counted = error_bar_factors_from_rate(*steps)[1] if has_convergence_rate else 1.0
    sizes = [float(np.max(np.abs(step))) for step in steps]
    # Errors that oscillate agree by chance: the step before, reduced by the rate over two steps, counts, too.
    steady = sizes[1] * math.sqrt(sizes[0] / sizes[2]) if len(sizes) > 2 and sizes[2] > 0 else 0.0
    return max(counted * sizes[0], steady, *(count * size for count, size in zip(least, sizes, strict=True)))


def _add_finer_rules_while_differences_grow(
    evaluate: Callable[[RuleChange], RuleComparison], known: Sequence[RuleComparison]
) -> tuple[RuleComparison, list[tuple[np.ndarray, ...]]]:
    """Evaluate finer rules while the differences between successive rules grow.

    Rules that are too coarse to resolve a kink agree with each other by chance, and differ the more the finer they are.

    Args:
        evaluate: function from a change of rule (such as `finer_rule`) to the comparison with the changed rules.
        known: comparisons with the finer rules, then with the coarser ones.

    Returns:
        comparison with the finest rules, differences between successive rules (the last difference first).
    """
    steps = [other.differences for other in known]
    fine, times = known[0], 1
    for _ in range(ErrorEstimateOptions.current().max_finer_rules):
        last, before = (float(np.max(np.abs(step[0]))) for step in steps[:2]) if len(steps) > 1 else (0.0, 0.0)
        if last <= max(before, STEP_ROUNDING):
            break
        times += 1
        try:
            further = evaluate(partial(_refine_rule_repeatedly, times=times))
        except (InputError, DomainError):  # too large, or beyond
            break
        ahead = zip(further.differences, fine.differences, strict=True)
        steps = [tuple(there - here for there, here in ahead), steps[0]]
        fine = further
    return fine, steps


def _comparison_rule(rule: Rule, number: int) -> Rule:
    others = rule.comparison_rules()
    return others[min(number, len(others) - 1)]


def _refine_rule_repeatedly(rule: Rule, times: int) -> Rule:
    for _ in range(times):
        rule = rule.finer_rule()
    return rule
