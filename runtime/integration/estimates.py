"""Error bars from replicates, and from how much a value changes from rule to rule."""

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
from .rule import DIFFERENCE_SAFETY, Averages, Rule, largest_bistable_fraction

STEP_ROUNDING = 1e-12  # of differences, in units of the quantity


@dataclass(frozen=True)
class ErrorEstimateOptions(AlgorithmOptions):
    """Options of error bars from differences between rules.

    Attributes:
        max_finer_rules: finer rules that are evaluated while the differences grow with them; more find kinks that all
            coarse rules miss.
        max_rate: of convergence from rule to rule, from 0 (fast) to 1, that error bars allow for; larger is safer where
            errors fall slowly, and gives larger error bars.
    """

    max_finer_rules: int = 3
    max_rate: float = 0.9


def two_standard_errors(samples: np.ndarray) -> np.ndarray:
    """Return the error bar of the mean of independent replicates, (R, ...) over the first axis.

    Its coverage is meant to be that of two standard errors of a normal variable, 95.45 %. With R replicates the
    standard error is itself an estimate: Student's t gives the factor (2.18 for 16 of them). And replicates of even
    averages are skewed, since the outermost cells of a Sobol set represent tails by one point each: Johnson's
    correction (J. Am. Stat. Assoc. 73 (1978) 536) widens the interval by the excess of their skewness over its own
    standard error.
    """
    from scipy.special import ndtr, stdtrit

    count = len(samples)
    factor = stdtrit(count - 1, ndtr(2.0))
    deviations, spread = samples - samples.mean(axis=0), samples.std(axis=0)
    skewness = np.abs(np.mean((deviations / np.where(spread > 0, spread, 1.0)) ** 3, axis=0))
    clear = np.maximum(skewness - np.sqrt(6 * (count - 2) / ((count + 1) * (count + 3))), 0.0)
    widened = factor + clear * (1 + 2 * factor**2) / (6 * np.sqrt(count))
    return widened * spread / np.sqrt(count - 1)


def difference_factors(fine: np.ndarray, *coarser: np.ndarray, max_rate: float | None = None) -> tuple[float, float]:
    """Return the factors of the differences to the next finer and the next coarser rule in an error bar.

    If errors fall by a rate r from each rule to the next, the difference to the finer rule is (1 - r) times the error
    and that to the coarser one (1 - r) / r times; if they fall like a power of the number of steps, twice that is left
    where r is close to 1. The largest entries, and the slowest of two steps, give the rate; the coarser rule guards
    each entry against a chance agreement with the finer one.

    Args:
        fine: differences to the finer rule, relative to one scale.
        coarser: the same to coarser ones.
        max_rate: upper bound on the estimated rate, less where errors scatter once they are small; None for that of
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
    """A comparison of quantities by one set of rules with those by other rules.

    Attributes:
        differences: one array a quantity, theirs less those of the rules in use, in units in which an error of the
            averages of size e is of the order of e.
        averages: one a rule.
    """

    differences: tuple[np.ndarray, ...]
    averages: tuple[Averages, ...]


def compare_rules(
    rules: Sequence[Rule],
    own: Sequence[Averages],
    evaluate: Callable[[RuleChange], RuleComparison],
    derivative: bool = False,
    finer: RuleComparison | None = None,
) -> list[tuple[RuleComparison, tuple[float, ...]]]:
    """Return comparisons with other rules of the same families, and the factors of their differences in error bars.

    The error bar of a quantity is the largest of |difference| times its factor.

    Args:
        rules: in use together, most often one.
        own: their averages.
        evaluate: evaluates the rules that replace them.
        derivative: as of `Rule.least_difference_weights`.
        finer: comparison with the next finer rules, where that is known.

    Raises:
        DomainError: the finer rules' averages leave the domain of the equations.
    """
    known = [finer or evaluate(lambda rule: rule.finer_rule())]
    for number in range(max(len(rule.comparison_rules()) for rule in rules)):
        with suppress(DomainError):  # too coarse for the law of the fields
            known.append(evaluate(partial(_comparison_rule, number=number)))
    bistable = largest_bistable_fraction((*own, *(each for other in known for each in other.averages)))
    steps = [other.differences for other in known]
    if all(rule.is_nonadaptive and rule.has_rate(bistable) for rule in rules):
        known[0], steps = _extend_while_growing(evaluate, known)
        known = known[: len(steps)]
    counts = []
    for quantity in range(len(known[0].differences)):
        each_rule = [
            difference_weights(
                rule,
                [step[quantity] for step in steps],
                [own[n], *(other.averages[n] for other in known)],
                derivative,
            )
            for n, rule in enumerate(rules)
        ]
        counts.append([max(count) for count in zip(*each_rule, strict=True)])
    return list(zip(known, zip(*counts, strict=True), strict=True))


def error_bar(known: Sequence[tuple[RuleComparison, tuple[float, ...]]], quantity: int) -> np.ndarray:
    """Return the error bar of one quantity of `compare_rules`, in its units.

    Args:
        known: comparisons and their factors, from `compare_rules`.
        quantity: its number.
    """
    return np.max([counts[quantity] * np.abs(other.differences[quantity]) for other, counts in known], axis=0)


def difference_weights(
    rule: Rule, steps: Sequence[np.ndarray], averages: Sequence[Averages], derivative: bool
) -> list[float]:
    """Return the factors of the differences to the finer rule and to others in an error bar.

    Args:
        rule: rule in use.
        steps: as of `Rule.least_difference_weights`.
        averages: as of `Rule.least_difference_weights`.
        derivative: as of `Rule.least_difference_weights`.
    """
    bistable = largest_bistable_fraction(averages)
    rated = difference_factors(*steps) if rule.has_rate(bistable) else (DIFFERENCE_SAFETY,)
    least = rule.least_difference_weights(steps, averages, derivative)
    return [max(pair) for pair in zip_longest(rated[: len(steps)], least, fillvalue=0.0)]


def finest_rule_error(rule: Rule, steps: Sequence[np.ndarray], averages: Sequence[Averages]) -> float:
    """Return the error bar of the value by the finest of a sequence of rules.

    Args:
        rule: the finest one.
        steps: from each rule of the sequence to the next finer one, the last step first.
        averages: the finest's first.
    """
    least = rule.least_difference_weights(steps, averages, False)
    return rule_sequence_error(steps, least, rule.has_rate(largest_bistable_fraction(averages)))


def rule_sequence_error(steps: Sequence[np.ndarray], least: Sequence[float], has_rate: bool = True) -> float:
    """Return the error bar of the value by the finest of a sequence of rules, from steps and known least factors.

    Args:
        steps: from each rule of the sequence to the next finer one, the last step first.
        least: least factors of the steps.
        has_rate: whether the steps show a rate.
    """
    # The finer rule is the one used: the difference counts as that to a coarser one does.
    counted = difference_factors(*steps)[1] if has_rate else 1.0
    sizes = [float(np.max(np.abs(step))) for step in steps]
    # Errors that oscillate agree by chance: the step before, reduced by the rate over two steps, counts, too.
    steady = sizes[1] * math.sqrt(sizes[0] / sizes[2]) if len(sizes) > 2 and sizes[2] > 0 else 0.0
    return max(counted * sizes[0], steady, *(count * size for count, size in zip(least, sizes, strict=True)))


def _extend_while_growing(
    evaluate: Callable[[RuleChange], RuleComparison], known: Sequence[RuleComparison]
) -> tuple[RuleComparison, list[tuple[np.ndarray, ...]]]:
    """Return the difference to a finer rule, and the steps that give the rate.

    Rules that are all too coarse to resolve a kink agree, and differ the more the finer they are: finer ones are
    evaluated as long as the steps of the first quantity from one to the next grow.

    Args:
        evaluate: evaluates the rules that replace those in use.
        known: comparisons with the finer rules, then with the coarser ones.
    """
    steps = [other.differences for other in known]
    fine, times = known[0], 1
    for _ in range(ErrorEstimateOptions.current().max_finer_rules):
        last, before = (float(np.max(np.abs(step[0]))) for step in steps[:2]) if len(steps) > 1 else (0.0, 0.0)
        if last <= max(before, STEP_ROUNDING):
            break
        times += 1
        try:
            further = evaluate(partial(_refine_repeatedly, times=times))
        except (InputError, DomainError):  # too large, or beyond
            break
        ahead = zip(further.differences, fine.differences, strict=True)
        steps = [tuple(there - here for there, here in ahead), steps[0]]
        fine = further
    return fine, steps


def _comparison_rule(rule: Rule, number: int) -> Rule:
    others = rule.comparison_rules()
    return others[min(number, len(others) - 1)]


def _refine_repeatedly(rule: Rule, times: int) -> Rule:
    for _ in range(times):
        rule = rule.finer_rule()
    return rule
