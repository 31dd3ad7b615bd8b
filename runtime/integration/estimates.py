"""Half widths from replicates, and from how much a value changes from rule to rule."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from scipy.special import ndtr, stdtrit

from . import Averages, GaussHermite, ProxSpace, Rule, SparseGrid
from .rule import NEGLIGIBLE_JUMPS

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


# Where the proximal map jumps a grid's error falls like its step cubed, with changing sign: the difference to a coarser
# grid, scaled down by this, guards against a chance agreement with the finer one.
COARSER_SHARE = 0.35
STEP_ROUNDING = 1e-12  # of differences, in block scales
_MASS_ROUNDING = 1e-12  # of the total weight of a grid, what lies beyond its box included


def mass_share(own: Averages, *others: Averages) -> float:
    """What differences between grids in X count for at the least, by the one integral that is known: the total weight.

    Kinks of the loss leave steps in the weight |det(I + V H)|, so that it converges as slowly, and as irregularly, as
    the averages do: what it is off by, relative to how much it differs between the rules, cannot agree by chance.
    """
    missing = max(abs(own.mass - 1) - _MASS_ROUNDING, 0.0)
    return DIFFERENCE_SAFETY * missing / max(*(abs(other.mass - own.mass) for other in others), _MASS_ROUNDING)


def loss_error(rule: Rule, known: Sequence[Averages]) -> float:
    """Half width of E[M] by a rule, from how it changed with the last ones: averages of the finest, its own, first."""
    steps = [abs(float(one.moreau[0] - other.moreau[0])) for one, other in pairwise(known)]
    bistable = known[1].bistable
    if isinstance(rule, GaussHermite | SparseGrid) and bistable > NEGLIGIBLE_JUMPS:
        return DIFFERENCE_SAFETY * max(steps)
    # The finer rule is the one used: the difference counts as that to a coarser one does.
    rated = difference_factors(*(np.array(step) for step in steps))[1] * steps[0]
    if not isinstance(rule, ProxSpace):
        return rated
    # Of the order of the share that sees the jumps at the most, as for the overlaps.
    chance = min(COARSER_SHARE * steps[1], bistable * abs(float(known[1].moreau[0])))
    if bistable > NEGLIGIBLE_JUMPS:
        return max(steps[0], chance)
    return max(rated, chance, 0.0 if bistable > 0 else mass_share(*known) * steps[0])
