"""Half widths from replicates, and from how much a value changes from rule to rule."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy.special import ndtr, stdtrit

# Half widths from the difference to a finer rule count it so many times: the finer rule has an error of its own.
DIFFERENCE_SAFETY = 1.5
_SLOWEST = 0.9  # convergence from one rule of a family to the next that error bars can allow for


def two_standard_errors(samples: np.ndarray) -> np.ndarray:
    """Half width of the mean of independent replicates, (R, ...) over the first axis.

    Meant to hold the truth as often as two standard errors of a normal variable, 95.45 %. Of R replicates the standard
    error is itself an estimate: Student's t tells the factor (2.18 for 16 of them). And replicates of even averages are
    skewed, since the outermost cells of a Sobol set carry tails that one point each decides: Johnson's correction
    (J. Am. Stat. Assoc. 73 (1978) 536) widens the interval by what their skewness exceeds its own standard error.
    """
    count = len(samples)
    factor = stdtrit(count - 1, ndtr(2.0))
    deviations, spread = samples - samples.mean(axis=0), samples.std(axis=0)
    skewness = np.abs(np.mean((deviations / np.where(spread > 0, spread, 1.0)) ** 3, axis=0))
    clear = np.maximum(skewness - np.sqrt(6 * (count - 2) / ((count + 1) * (count + 3))), 0.0)
    widened = factor + clear * (1 + 2 * factor**2) / (6 * np.sqrt(count))
    return widened * spread / np.sqrt(count - 1)


def difference_factors(fine: np.ndarray, *coarser: np.ndarray) -> tuple[float, float]:
    """What the differences to the next finer and the next coarser rule count for, given relative to one scale.

    If errors fall by a rate r from each rule to the next, the difference to the finer rule is (1 - r) times the error
    and that to the coarser one (1 - r) / r times; if they fall like a power of the number of steps, twice that is left
    where r is close to 1. The largest entries, and the slowest of two steps, tell the rate; the coarser rule guards
    each entry against a chance agreement with the finer one.
    """
    sizes = [float(np.max(np.abs(difference))) for difference in (fine, *coarser)]
    rates = [one / other for one, other in pairwise(sizes) if other > 0]
    rate = min(_SLOWEST, max(rates, default=0.0))
    factor = DIFFERENCE_SAFETY * (1 + rate) / (1 - rate)
    return factor, rate * factor


__all__ = ["DIFFERENCE_SAFETY", "difference_factors", "two_standard_errors"]
