"""By samples: at which y the complexity vanishes, from solutions at given ones.

y dPhi/dy is of the order of what breaking moves the energy by, and little more than its error bar: only solutions that
have one tell its sign, and its rate along y is told by two that lie far apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...base.errors import TimeLimitError
from ...base.numbers import with_error
from ...base.progress import step
from ...integration.tilted_sums import TiltedRule
from ...saddle_point.iteration import Status
from ...solving.solution import Solution
from .newton import Reached
from .refinement import is_broken, refined
from .solution import BrokenSolution, status_of

_LONGEST = float(np.log(2.0))  # step in log y
_APART = 0.25  # in log y, of solutions that tell a rate
_SOLVED = 8  # solutions with one size of sets
_TOLD = 2.0  # error bars, from which a rate is believed


def lowest_by_samples(
    symmetric: Solution, begun: Reached, rules: Sequence[TiltedRule], accuracy: float
) -> BrokenSolution | None:
    """States where the complexity vanishes, error bars with what is left open of y; states at a given y, in words,
    where no y is told. None where the first leave the domain.

    Args:
        begun: states of any y; rules: from coarse to fine.

    Raises:
        TimeLimitError: before the first solution was done.
    """
    known: list[BrokenSolution] = []
    best: BrokenSolution | None = None
    try:
        for rule in rules:
            if not _solved(symmetric, rule, begun if not known else _moved(begun, known), known, accuracy):
                break
            rate = _rate(known)
            if rate is None:
                continue
            found = _where_it_vanishes(known[-1], rate, accuracy)
            if best is None or found.relative_error < best.relative_error:
                best = found
            if best.relative_error <= accuracy:
                break
    except TimeLimitError:
        if not known:
            raise
        return replace(best or _untold(known), status=Status.TIME_LIMIT)
    return best or (_untold(known) if known else None)


def _solved(
    symmetric: Solution, rule: TiltedRule, begun: Reached, known: list[BrokenSolution], accuracy: float
) -> bool:
    """Add to what is known solutions by one rule, the last one where y dPhi/dy is zero within its error bar, two or
    more; whether there are any."""
    before = len(known)
    for _ in range(_SOLVED):
        with step(f"states at y = {begun.y:.4g}"):
            found = refined(symmetric, begun, True, accuracy, [rule])
        if found is None or found.state is None or not is_broken(found.state) or found.status is Status.MAX_ITERATIONS:
            break
        known.append(found)
        rate = _rate(known)
        slope, width = _slope(found)
        if abs(slope) <= width and (rate is not None or len(known) > before + 1):
            break  # told, or not to be told by sets of this size
        begun = _moved(begun, known, _next(known[before:], slope, rate))
    return len(known) > before


def _next(known: list[BrokenSolution], slope: float, rate: _Rate | None) -> float:
    """y to go on with."""
    way = -float(np.sign(slope))
    if rate is None:
        return max((one.parisi for one in known), key=lambda y: way * y) * float(np.exp(way * _LONGEST))
    return known[-1].parisi * float(np.exp(way * min(_LONGEST, abs(slope) / rate.value)))


def _slope(found: BrokenSolution) -> tuple[float, float]:
    """y dPhi/dy at a given y, and its error bar."""
    return -found.complexity / found.parisi, found.complexity_error / found.parisi


def _moved(begun: Reached, known: list[BrokenSolution], y: float | None = None) -> Reached:
    """The nearest states at another y, y Delta held; the last ones where none is named."""
    y = known[-1].parisi if y is None else y
    nearest = min(reversed(known), key=lambda one: abs(np.log(one.parisi / y)))
    assert nearest.state is not None
    state = replace(nearest.state, distances=nearest.state.distances * nearest.parisi / y)
    return replace(begun, state=state, rates=np.array([y]), matrix=None)


class _Rate(NamedTuple):
    """How fast y dPhi/dy grows in log y, the least that it does within error bars, and the solution that tells."""

    value: float
    least: float
    other: BrokenSolution


def _rate(known: list[BrokenSolution]) -> _Rate | None:
    """Near the last solution; None where it is not told from zero."""
    last = known[-1]
    here, width = _slope(last)
    told = []
    for other in known[:-1]:
        apart = float(np.log(other.parisi / last.parisi))
        if abs(apart) < _APART:
            continue
        there, width_there = _slope(other)
        value, error = (there - here) / apart, float(np.hypot(width, width_there)) / abs(apart)
        if value > _TOLD * error:
            told.append(_Rate(value, value - error, other))
    return max(told, key=lambda one: one.least / one.value, default=None)


def _where_it_vanishes(found: BrokenSolution, rate: _Rate, accuracy: float) -> BrokenSolution:
    """Return the states where y dPhi/dy vanishes, from a solution at a given y.

    The zero is no farther from it than error bars leave open.
    """
    other, (slope, width) = rate.other, _slope(found)
    assert found.state is not None and other.state is not None and found.stability is not None
    open_ = (abs(slope) + width) / rate.least
    share = open_ / abs(float(np.log(other.parisi / found.parisi)))
    errors = found.errors + share * np.abs(other.state.pack() - found.state.pack())
    within_errors = found.within_errors + share * np.abs(other.overlaps.pack() - found.overlaps.pack())
    multipliers_error = found.multipliers_error
    if multipliers_error is not None and found.multipliers is not None and other.multipliers is not None:
        multipliers_error = multipliers_error + share * np.abs(other.multipliers - found.multipliers)
    assert isinstance(found.rule, TiltedRule)
    status = status_of(found.symmetric, found.rule, found.residual, found.state, errors, within_errors, accuracy)
    return replace(
        found, status=status, given=False, errors=errors, within_errors=within_errors,
        rate_errors=(found.parisi * float(np.expm1(open_)),), multipliers_error=multipliers_error,
        # -Phi, which is greatest at the zero.
        energy=found.energy + slope + slope**2 / (2 * rate.value),
        own_error=found.own_error + (abs(slope) + width) ** 2 / (2 * rate.least),
        complexity=0.0, complexity_error=0.0,
        observed={
            name: (value, error + share * abs(other.observed[name][0] - value))
            for name, (value, error) in found.observed.items()
        },
    )  # fmt: skip


def _untold(known: list[BrokenSolution]) -> BrokenSolution:
    """States at a given y, where samples do not tell at which y the complexity vanishes."""
    nearest = min(known, key=lambda one: one.relative_error)
    low, high = (end(one.parisi for one in known) for end in (min, max))
    slope = with_error(*_slope(nearest))
    told = f"for y in [{low:.4g}, {high:.4g}] samples do not resolve y dPhi/dy, {slope} at y = {nearest.parisi:.4g}"
    status = Status.ACCURACY_NOT_REACHED if nearest.success else nearest.status
    words = f"where the complexity vanishes is not resolved ({told}): these are states at a given y"
    return replace(nearest, status=status, found=words)
