"""Half widths from replicates, and from how much a value changes from rule to rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, zip_longest

import numpy as np

from ..base.errors import DomainError, InputError
from .rule import DIFFERENCE_SAFETY, Averages, Rule, bistable_share

_BEYOND = 3  # finer rules to ask at the most where the differences grow with them
STEP_ROUNDING = 1e-12  # of differences, in units of the quantity
SLOWEST = 0.9  # convergence from one rule of a family to the next that error bars can allow for


def two_standard_errors(samples: np.ndarray) -> np.ndarray:
    """Half width of the mean of independent replicates, (R, ...) over the first axis.

    Meant to hold the truth as often as two standard errors of a normal variable, 95.45 %. Of R replicates the standard
    error is itself an estimate: Student's t tells the factor (2.18 for 16 of them). And replicates of even averages are
    skewed, since the outermost cells of a Sobol set carry tails that one point each decides: Johnson's correction
    (J. Am. Stat. Assoc. 73 (1978) 536) widens the interval by what their skewness exceeds its own standard error.
    """
    from scipy.special import ndtr, stdtrit

    count = len(samples)
    factor = stdtrit(count - 1, ndtr(2.0))
    deviations, spread = samples - samples.mean(axis=0), samples.std(axis=0)
    skewness = np.abs(np.mean((deviations / np.where(spread > 0, spread, 1.0)) ** 3, axis=0))
    clear = np.maximum(skewness - np.sqrt(6 * (count - 2) / ((count + 1) * (count + 3))), 0.0)
    widened = factor + clear * (1 + 2 * factor**2) / (6 * np.sqrt(count))
    return widened * spread / np.sqrt(count - 1)


def difference_factors(fine: np.ndarray, *coarser: np.ndarray, slowest: float = SLOWEST) -> tuple[float, float]:
    """What the differences to the next finer and the next coarser rule count for, given relative to one scale.

    If errors fall by a rate r from each rule to the next, the difference to the finer rule is (1 - r) times the error
    and that to the coarser one (1 - r) / r times; if they fall like a power of the number of steps, twice that is left
    where r is close to 1. The largest entries, and the slowest of two steps, tell the rate; the coarser rule guards
    each entry against a chance agreement with the finer one.

    Args:
        slowest: rate that is believed, less where errors scatter once they are small.
    """
    sizes = [float(np.max(np.abs(difference))) for difference in (fine, *coarser)]
    rates = [one / other for one, other in pairwise(sizes) if other > 0]
    rate = min(slowest, max(rates, default=0.0))
    factor = DIFFERENCE_SAFETY * (1 + rate) / (1 - rate)
    return factor, rate * factor


Change = Callable[[Rule], Rule]
"""What rule to take in place of the one in use."""


@dataclass(frozen=True)
class Comparison:
    """What other rules say of quantities that one set of rules has given.

    Attributes:
        differences: one array a quantity, theirs less those of the rules in use, in units in which an error of the
            averages of size e is of the order of e.
        averages: one a rule.
    """

    differences: tuple[np.ndarray, ...]
    averages: tuple[Averages, ...]


def compared(
    rules: Sequence[Rule],
    own: Sequence[Averages],
    ask: Callable[[Change], Comparison],
    derivative: bool = False,
    finer: Comparison | None = None,
) -> list[tuple[Comparison, tuple[float, ...]]]:
    """What rules of the same families say, and what their differences count for in half widths, a quantity each.

    The half width of a quantity is the largest of |difference| times what it counts for.

    Args:
        rules: in use together, most often one; own: their averages.
        ask: what the rules say that are taken in their place.
        derivative: as of `Rule.least_counts`; finer: what the next finer rules say, where that is known.

    Raises:
        DomainError: the finer rules' averages leave the domain of the equations.
    """
    known = [finer or ask(lambda rule: rule.finer())]
    for number in range(max(len(rule.compared_with()) for rule in rules)):
        with suppress(DomainError):  # too coarse for the law of the fields
            known.append(ask(partial(_compared_with, number=number)))
    bistable = bistable_share((*own, *(each for other in known for each in other.averages)))
    steps = [other.differences for other in known]
    if all(rule.blind and rule.has_rate(bistable) for rule in rules):
        known[0], steps = _beyond_growth(ask, known)
        known = known[: len(steps)]
    counts = []
    for quantity in range(len(known[0].differences)):
        each_rule = [
            difference_counts(
                rule,
                [step[quantity] for step in steps],
                [own[n], *(other.averages[n] for other in known)],
                derivative,
            )
            for n, rule in enumerate(rules)
        ]
        counts.append([max(count) for count in zip(*each_rule, strict=True)])
    return list(zip(known, zip(*counts, strict=True), strict=True))


def half_width(known: Sequence[tuple[Comparison, tuple[float, ...]]], quantity: int) -> np.ndarray:
    """Of one quantity of `compared`, in its units."""
    return np.max([counts[quantity] * np.abs(other.differences[quantity]) for other, counts in known], axis=0)


def difference_counts(
    rule: Rule, steps: Sequence[np.ndarray], averages: Sequence[Averages], derivative: bool
) -> list[float]:
    """What differences to the finer rule and to others count for; arguments as of `Rule.least_counts`."""
    bistable = bistable_share(averages)
    rated = difference_factors(*steps) if rule.has_rate(bistable) else (DIFFERENCE_SAFETY,)
    least = rule.least_counts(steps, averages, derivative)
    return [max(pair) for pair in zip_longest(rated[: len(steps)], least, fillvalue=0.0)]


def finest_half_width(rule: Rule, steps: Sequence[np.ndarray], averages: Sequence[Averages]) -> float:
    """Half width of what the finest of a ladder of rules gives.

    Args:
        steps: from each rule of the ladder to the next finer one, the last step first; averages: the finest's first.
    """
    least = rule.least_counts(steps, averages, False)
    return ladder_half_width(steps, least, rule.has_rate(bistable_share(averages)))


def ladder_half_width(steps: Sequence[np.ndarray], least: Sequence[float], has_rate: bool = True) -> float:
    """As `finest_half_width`, where what the steps count for at the least, and whether they show a rate, is known."""
    # The finer rule is the one used: the difference counts as that to a coarser one does.
    counted = difference_factors(*steps)[1] if has_rate else 1.0
    sizes = [float(np.max(np.abs(step))) for step in steps]
    # Errors that oscillate agree by chance: what the rate over two steps leaves of the step before counts, too.
    steady = sizes[1] * math.sqrt(sizes[0] / sizes[2]) if len(sizes) > 2 and sizes[2] > 0 else 0.0
    return max(counted * sizes[0], steady, *(count * size for count, size in zip(least, sizes, strict=True)))


def _beyond_growth(
    ask: Callable[[Change], Comparison], known: Sequence[Comparison]
) -> tuple[Comparison, list[tuple[np.ndarray, ...]]]:
    """The difference to a finer rule, and the steps that tell the rate.

    Rules that are all too coarse to see a kink agree, and differ the more the finer they are: finer ones are asked for
    as long as the steps of the first quantity from one to the next grow.

    Args:
        known: what the finer rules say, then the coarser ones.
    """
    steps = [other.differences for other in known]
    fine, times = known[0], 1
    for _ in range(_BEYOND):
        last, before = (float(np.max(np.abs(step[0]))) for step in steps[:2]) if len(steps) > 1 else (0.0, 0.0)
        if last <= max(before, STEP_ROUNDING):
            break
        times += 1
        try:
            further = ask(partial(_finer, times=times))
        except (InputError, DomainError):  # too large, or beyond
            break
        ahead = zip(further.differences, fine.differences, strict=True)
        steps = [tuple(there - here for there, here in ahead), steps[0]]
        fine = further
    return fine, steps


def _compared_with(rule: Rule, number: int) -> Rule:
    others = rule.compared_with()
    return others[min(number, len(others) - 1)]


def _finer(rule: Rule, times: int) -> Rule:
    for _ in range(times):
        rule = rule.finer()
    return rule
