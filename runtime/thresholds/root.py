"""A root finder along a parameter, for functions whose values have error bars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..base.errors import NotConvergedError, TimeLimitError
from ..base.options import AlgorithmOptions


@dataclass(frozen=True)
class RootOptions(AlgorithmOptions):
    """Options of the root finder that locates thresholds.

    Attributes:
        integration_share: fraction of the accuracy that integration errors may take; larger is cheaper, but leaves
            less for the root finder.
        max_evaluations: largest number of evaluations after the root is bracketed.
        first_tolerance: tolerance of the first fine evaluation, relative to that of the later ones.
    """

    integration_share: float = 0.75
    max_evaluations: int = 20
    first_tolerance: float = 30.0


@dataclass(frozen=True)
class DifferenceEvaluation:
    """The difference that vanishes at a threshold (as of two losses) at one parameter value, with its error bar."""

    value: float
    difference: float
    integration: float
    residual: float
    slope: float | None
    solutions: tuple[Any, ...]

    @property
    def error(self) -> float:
        """Return the error bar of the difference that vanishes at the threshold, by integration and by residual."""
        return self.integration + self.residual

    @property
    def is_zero_within_error(self) -> bool:
        """Return whether the difference is zero within its error bar."""
        return abs(self.difference) <= self.error


Evaluate = Callable[[float, float | None], DifferenceEvaluation | None]


def bracket_root_on_grids(
    low: float, high: float, solved: bool, evaluate: Evaluate, tick: Callable[[], None]
) -> tuple[DifferenceEvaluation | None, DifferenceEvaluation | None, list[DifferenceEvaluation]]:
    """Return two neighbouring evaluations that bracket a root (None, None without one), and all evaluations.

    Finer and finer grids are scanned down from the high end. A change of sign does not count if both differences are
    zero within their error bars, evaluated as accurately as possible.

    Args:
        low: lower end of the interval.
        high: upper end of the interval.
        solved: whether both ends are solved already, so that they are compared first.
        evaluate: function of a parameter value and a tolerance (or None) that returns the difference.
        tick: function that reports progress, called after every evaluation.
    """
    evaluations: dict[float, DifferenceEvaluation] = {}
    tried: set[float] = set()
    for count in (1, 4, 8, 16) if solved else (4, 8, 16):
        for value in np.linspace(high, low, count + 1):
            value = float(value)
            if value in tried:
                continue
            tried.add(value)
            found = evaluate(value, None)
            tick()
            if found is None:
                continue
            evaluations[value] = found
            pair = _neighbours_with_sign_change(evaluations)
            if pair and all(each.is_zero_within_error for each in pair):
                finest = 0.1 * max(abs(each.difference) for each in pair)
                for each in pair:
                    evaluations[each.value] = evaluate(each.value, finest) or each
                pair = _neighbours_with_sign_change(evaluations, clear=True)
            if pair:
                return (*pair, [evaluations[v] for v in sorted(evaluations)])
    return None, None, [evaluations[v] for v in sorted(evaluations)]


def _neighbours_with_sign_change(
    known: dict[float, DifferenceEvaluation], clear: bool = False
) -> tuple[DifferenceEvaluation, DifferenceEvaluation] | None:
    """Return two neighbouring evaluations of different signs; if `clear`, not both zero within their error bars."""
    ordered = [known[value] for value in sorted(known)]
    for left, right in pairwise(ordered):
        if left.difference * right.difference <= 0 and not (
            clear and left.is_zero_within_error and right.is_zero_within_error
        ):
            return left, right
    return None


@dataclass(frozen=True)
class LocatedRoot:
    """A root that the root finder located, with its error bar and the narrowest bracket.

    Attributes:
        best: the last evaluation.
        value: the root, a Newton step from that evaluation.
        error: error bar of that step.
        slope: derivative of the difference at the root.
        ends: narrowest interval at whose ends the signs differ.
        out_of_time: whether a time limit ended the search; `error` then reaches to the farther end.
    """

    best: DifferenceEvaluation
    value: float
    error: float
    slope: float
    ends: tuple[float, float]
    out_of_time: bool = False


def find_root_in_bracket(
    left: DifferenceEvaluation,
    right: DifferenceEvaluation,
    accuracy: float,
    evaluate: Evaluate,
    tick: Callable[[], None],
) -> LocatedRoot:
    """Find the root of a difference in a bracket by Newton or secant steps, with coarse integration first.

    Finer integration changes the difference, so that its signs by coarse integration do not bound the root; only the
    ends of the given bracket do. The error of the last step is estimated from the change of the slope.

    Args:
        left: evaluation at one end of the bracket.
        right: evaluation at the other end, of the other sign.
        accuracy: error bar of the root.
        evaluate: function of a parameter value and a tolerance (or None) that returns the difference.
        tick: function that reports progress, called after every evaluation.

    Raises:
        NotConvergedError: a branch is lost inside the bracket.
    """
    options = RootOptions.current()
    low, high = left.value, right.value
    best = min((left, right), key=lambda e: abs(e.difference))
    secant = (right.difference - left.difference) / (right.value - left.value)
    slope, slope_error = best.slope or secant, 1.0
    fine, slow_steps = False, 0
    fine_evaluations: list[DifferenceEvaluation] = []
    for _ in range(options.max_evaluations):
        guess = best.value - best.difference / slope
        near = abs(guess - best.value) < 30 * accuracy or abs(best.difference) < best.error
        if not fine and not near:
            if slow_steps > 2:
                guess = (left.value + right.value) / 2
            elif not left.value < guess < right.value:
                chord = (right.difference - left.difference) / (right.value - left.value)
                guess = left.value - left.difference / chord
        guess = min(max(guess, low), high)
        if fine and guess == best.value:
            break  # at an end of the bracket: the slope does not lead to a root
        was_fine, fine = fine, fine or near
        # A first step from coarse differences misses the root by more than their error: it needs few digits.
        tolerance = options.integration_share * accuracy * abs(slope) * (1.0 if was_fine else options.first_tolerance)
        try:
            evaluation = evaluate(guess, tolerance if fine else None)
        except TimeLimitError:
            value = min(max(best.value - best.difference / slope, left.value), right.value)
            ends = left.value, right.value
            return LocatedRoot(best, value, max(value - ends[0], ends[1] - value), slope, ends, out_of_time=True)
        tick()
        if evaluation is None:
            raise NotConvergedError(
                f"a branch was lost at {guess:.6g} while locating the threshold; try a narrower interval"
            )
        step, change, before = evaluation.value - best.value, evaluation.difference - best.difference, slope
        # A secant needs two evaluations of one kind that differ by more than their errors.
        if step and was_fine == fine and abs(change) > max(evaluation.error, best.error):
            secant = change / step
        slope = evaluation.slope or secant
        if slope != before:
            slope_error = min(1.0, 2 * abs(slope - before) / abs(slope))
        width = right.value - left.value
        if fine:
            fine_evaluations.append(evaluation)
        elif evaluation.difference * left.difference <= 0:
            right = evaluation
        else:
            left = evaluation
        slow_steps = slow_steps + 1 if right.value - left.value > width / 2 else 0
        best = evaluation
        enough = was_fine or best.error <= options.integration_share * accuracy * abs(slope)
        if fine and enough and slope_error * abs(best.difference / slope) <= 0.1 * accuracy:
            break
    last = best.difference / slope
    value = min(max(best.value - last, low), high)
    beyond = abs(best.value - last - value)  # the bracket, whose coarse signs may be wrong
    return LocatedRoot(
        best,
        value,
        slope_error * abs(last) + beyond,
        slope,
        _narrowest_sign_change_interval(fine_evaluations, left, right),
    )


def _narrowest_sign_change_interval(
    fine_evaluations: list[DifferenceEvaluation], left: DifferenceEvaluation, right: DifferenceEvaluation
) -> tuple[float, float]:
    """Return the narrowest interval with a sign change among fine evaluations, otherwise the coarse bracket."""
    pair = _neighbours_with_sign_change({e.value: e for e in fine_evaluations})
    return (pair[0].value, pair[1].value) if pair else (left.value, right.value)
