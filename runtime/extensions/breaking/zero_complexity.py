"""Search for the Parisi parameter y at which the complexity is zero, by sampled quadrature.

The complexity is -y times the derivative of the free entropy Phi in log y. This derivative is little larger than its
error bar: its sign is known from solutions with error bars only, and its own slope from two that are far apart in y.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...base.errors import TimeLimitError
from ...base.numbers import format_value_with_error
from ...base.options import AlgorithmOptions
from ...base.progress import progress_step
from ...integration.tilted_sums import TiltedRule
from ...saddle_point.iteration import Status
from ...solving.solution import Solution
from .newton import NewtonResult
from .refinement import is_symmetry_broken, refine_broken_solution
from .solution import BrokenSolution, status_of_states


@dataclass(frozen=True)
class SampledBreakingOptions(AlgorithmOptions):
    """Options of the search for the Parisi parameter y of zero complexity by sampled quadrature.

    Attributes:
        max_rate_factor: largest ratio of successive y.
        min_separation: smallest distance in log y of two solutions from which the curvature of the free entropy is
            estimated.
        max_solutions: largest number of solutions with one quadrature rule.
        significance: number of error bars by which this curvature must exceed zero to be used.
    """

    max_rate_factor: float = 2.0
    min_separation: float = 0.25
    max_solutions: int = 8
    significance: float = 2.0


def find_zero_complexity_by_samples(
    symmetric: Solution, initial: NewtonResult, rules: Sequence[TiltedRule], accuracy: float
) -> BrokenSolution | None:
    """Return the solution with one step of breaking at the Parisi parameter where the complexity is zero.

    The error bars include the uncertainty of the Parisi parameter.

    Args:
        symmetric: the replica symmetric solution.
        initial: result of Newton's method at any Parisi parameter, to start from.
        rules: quadrature rules, from coarse to fine.
        accuracy: required error bar of overlaps, relative to their blocks.

    Returns:
        The solution; one at a fixed Parisi parameter, with a message, if samples do not resolve the zero; None if
        the first solution leaves the domain of the overlaps.

    Raises:
        TimeLimitError: the time limit is reached before the first solution.
    """
    known: list[BrokenSolution] = []
    best: BrokenSolution | None = None
    try:
        for rule in rules:
            if not _append_solutions_near_zero_complexity(
                symmetric,
                rule,
                initial if not known else _move_states_to_parisi_parameter(initial, known),
                known,
                accuracy,
            ):
                break
            rate = _estimate_free_entropy_curvature(known)
            if rate is None:
                continue
            found = _extrapolate_to_zero_complexity(known[-1], rate, accuracy)
            if best is None or found.relative_error < best.relative_error:
                best = found
            if best.relative_error <= accuracy:
                break
    except TimeLimitError:
        if not known:
            raise
        return replace(best or _solution_with_unresolved_complexity_zero(known), status=Status.TIME_LIMIT)
    return best or (_solution_with_unresolved_complexity_zero(known) if known else None)


def _append_solutions_near_zero_complexity(
    symmetric: Solution, rule: TiltedRule, initial: NewtonResult, known: list[BrokenSolution], accuracy: float
) -> bool:
    """Append solutions at successive Parisi parameters, until the complexity is zero within its error bar.

    All are by one quadrature rule. Return whether any solution was found.
    """
    before = len(known)
    for _ in range(SampledBreakingOptions.current().max_solutions):
        with progress_step(f"states at y = {initial.outermost_parisi_parameter:.4g}"):
            found = refine_broken_solution(symmetric, initial, True, accuracy, [rule])
        if (
            found is None
            or found.state is None
            or not is_symmetry_broken(found.state)
            or found.status is Status.MAX_ITERATIONS
        ):
            break
        known.append(found)
        rate = _estimate_free_entropy_curvature(known)
        slope, width = _free_entropy_derivative_in_log_y(found)
        if abs(slope) <= width and (rate is not None or len(known) > before + 1):
            break  # located, or not resolved by sets of this size
        initial = _move_states_to_parisi_parameter(initial, known, _next_parisi_parameter(known[before:], slope, rate))
    return len(known) > before


def _next_parisi_parameter(known: list[BrokenSolution], slope: float, rate: _FreeEntropyCurvature | None) -> float:
    """Return the Parisi parameter of the next solution in the search for zero complexity."""
    direction, longest = -float(np.sign(slope)), float(np.log(SampledBreakingOptions.current().max_rate_factor))
    if rate is None:
        return max((one.parisi for one in known), key=lambda y: direction * y) * float(np.exp(direction * longest))
    return known[-1].parisi * float(np.exp(direction * min(longest, abs(slope) / rate.value)))


def _free_entropy_derivative_in_log_y(found: BrokenSolution) -> tuple[float, float]:
    """Return the derivative of the free entropy in the logarithm of the Parisi parameter, and its error bar."""
    return -found.complexity / found.parisi, found.complexity_error / found.parisi


def _move_states_to_parisi_parameter(
    initial: NewtonResult, known: list[BrokenSolution], y: float | None = None
) -> NewtonResult:
    """Return the start of a search at another Parisi parameter y: the nearest known solution, with y Delta unchanged.

    By default y is that of the last solution.
    """
    y = known[-1].parisi if y is None else y
    nearest = min(reversed(known), key=lambda one: abs(np.log(one.parisi / y)))
    assert nearest.state is not None
    state = replace(nearest.state, distances=nearest.state.distances * nearest.parisi / y)
    return replace(initial, state=state, rates=np.array([y]), matrix=None)


class _FreeEntropyCurvature(NamedTuple):
    """The second derivative of the free entropy in log y, with y the Parisi parameter.

    Attributes:
        value: estimate from two solutions.
        least: lower bound of the estimate within its error bar.
        other: the earlier of the two solutions.
    """

    value: float
    least: float
    other: BrokenSolution


def _estimate_free_entropy_curvature(known: list[BrokenSolution]) -> _FreeEntropyCurvature | None:
    """Return the second derivative of the free entropy in log y near the last solution, y the Parisi parameter.

    None is returned if it is not positive beyond its error bar.
    """
    last, options = known[-1], SampledBreakingOptions.current()
    here, width = _free_entropy_derivative_in_log_y(last)
    rates = []
    for other in known[:-1]:
        apart = float(np.log(other.parisi / last.parisi))
        if abs(apart) < options.min_separation:
            continue
        there, width_there = _free_entropy_derivative_in_log_y(other)
        value, error = (there - here) / apart, float(np.hypot(width, width_there)) / abs(apart)
        if value > options.significance * error:
            rates.append(_FreeEntropyCurvature(value, value - error, other))
    return max(rates, key=lambda one: one.least / one.value, default=None)


def _extrapolate_to_zero_complexity(
    found: BrokenSolution, rate: _FreeEntropyCurvature, accuracy: float
) -> BrokenSolution:
    """Return the solution at zero complexity, extrapolated from one at a Parisi parameter nearby.

    The uncertainty of the Parisi parameter of zero complexity is part of all error bars.
    """
    other, (slope, width) = rate.other, _free_entropy_derivative_in_log_y(found)
    assert found.state is not None and other.state is not None and found.stability is not None
    open_ = (abs(slope) + width) / rate.least
    fraction = open_ / abs(float(np.log(other.parisi / found.parisi)))
    errors = found.errors + fraction * np.abs(other.state.pack() - found.state.pack())
    within_errors = found.within_errors + fraction * np.abs(other.overlaps.pack() - found.overlaps.pack())
    multipliers_error = found.multipliers_error
    if multipliers_error is not None and found.multipliers is not None and other.multipliers is not None:
        multipliers_error = multipliers_error + fraction * np.abs(other.multipliers - found.multipliers)
    assert isinstance(found.rule, TiltedRule)
    status = status_of_states(found.symmetric, found.rule, found.residual, found.state, errors, within_errors, accuracy)
    return replace(
        found, status=status, given=False, errors=errors, within_errors=within_errors,
        rate_errors=(found.parisi * float(np.expm1(open_)),), multipliers_error=multipliers_error,
        # -Phi, which is greatest at the zero.
        energy=found.energy + slope + slope**2 / (2 * rate.value),
        own_error=found.own_error + (abs(slope) + width) ** 2 / (2 * rate.least),
        complexity=0.0, complexity_error=0.0,
        observed={
            name: (value, error + fraction * abs(other.observed[name][0] - value))
            for name, (value, error) in found.observed.items()
        },
    )  # fmt: skip


def _solution_with_unresolved_complexity_zero(known: list[BrokenSolution]) -> BrokenSolution:
    """Return a solution at a fixed Parisi parameter, with a message that samples do not resolve zero complexity."""
    nearest = min(known, key=lambda one: one.relative_error)
    low, high = (end(one.parisi for one in known) for end in (min, max))
    slope = format_value_with_error(*_free_entropy_derivative_in_log_y(nearest))
    status = Status.ACCURACY_NOT_REACHED if nearest.success else nearest.status
    words = (
        f"samples do not resolve where in y = [{low:.4g}, {high:.4g}] the complexity is zero: y dPhi/dy is {slope} at "
        f"y = {nearest.parisi:.4g}, to which this solution belongs; allow larger error bars (--accuracy)"
    )
    return replace(nearest, status=status, found=words)
