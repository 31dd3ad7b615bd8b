"""Bracketing a zero along a parameter, and its refinement by Newton or secant steps, every value with an error bar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..base.errors import NotConvergedError, TimeLimitError

_SHARE = 0.75  # of the accuracy, that integration may take
_EVALUATIONS = 20  # of a root finder that starts from a bracket
_FIRST = 30.0  # times the accuracy, asked of the first evaluation that the root finder does not take for coarse


@dataclass(frozen=True)
class Evaluation:
    """The compared quantity at one value of the parameter: difference, the parts of its error, its slope if known."""

    value: float
    difference: float
    integration: float
    residual: float
    slope: float | None
    solutions: tuple[Any, ...]

    @property
    def error(self) -> float:
        """Error bar of the difference: both parts added."""
        return self.integration + self.residual

    @property
    def vanishes(self) -> bool:
        """Whether the difference is zero within its error bar."""
        return abs(self.difference) <= self.error


Evaluate = Callable[[float, float | None], Evaluation | None]


def bracket(
    low: float, high: float, solved: bool, evaluate: Evaluate, tick: Callable[[], None]
) -> tuple[Evaluation | None, Evaluation | None, list[Evaluation]]:
    """Return neighbours that differ in sign, and all values seen, down from the high end in growing numbers of steps.

    Ends that are solved already are compared first: they cost nothing. Signs of what vanishes within its error bar on
    both sides, evaluated as finely as that allows, count for nothing.
    """
    seen: dict[float, Evaluation] = {}
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
            seen[value] = found
            pair = _sign_change(seen)
            if pair and all(each.vanishes for each in pair):
                finest = 0.1 * max(abs(each.difference) for each in pair)
                for each in pair:
                    seen[each.value] = evaluate(each.value, finest) or each
                pair = _sign_change(seen, clear=True)
            if pair:
                return (*pair, [seen[v] for v in sorted(seen)])
    return None, None, [seen[v] for v in sorted(seen)]


def _sign_change(seen: dict[float, Evaluation], clear: bool = False) -> tuple[Evaluation, Evaluation] | None:
    """Return neighbours of different signs, `clear` of zero on one side at the least."""
    ordered = [seen[v] for v in sorted(seen)]
    for left, right in pairwise(ordered):
        if left.difference * right.difference <= 0 and not (clear and left.vanishes and right.vanishes):
            return left, right
    return None


@dataclass(frozen=True)
class Root:
    """The end of a root finder.

    Attributes:
        best: the last evaluation; value: of the root, a Newton step from there; error: error bar of that step.
        slope: of the difference; ends: the narrowest interval at whose ends the signs differ.
        out_of_time: whether a time limit ended the search: the error is the distance to the farther end.
    """

    best: Evaluation
    value: float
    error: float
    slope: float
    ends: tuple[float, float]
    out_of_time: bool = False


def root_between(
    left: Evaluation, right: Evaluation, accuracy: float, evaluate: Evaluate, tick: Callable[[], None]
) -> Root:
    """Find the root by Newton or secant steps: first inside the bracket, then as finely as the accuracy asks.

    The finer integration moves the difference, so that coarse signs no longer bound the root then: the outer bracket
    does. The last step is not evaluated: what the slope has changed since the step before says how far it is off.
    """
    low, high = left.value, right.value
    best = min((left, right), key=lambda e: abs(e.difference))
    secant = (right.difference - left.difference) / (right.value - left.value)
    slope, doubt = best.slope or secant, 1.0
    fine, slow = False, 0
    fines: list[Evaluation] = []
    for _ in range(_EVALUATIONS):
        guess = best.value - best.difference / slope
        near = abs(guess - best.value) < 30 * accuracy or abs(best.difference) < best.error
        if not fine and not near:
            if slow > 2:
                guess = (left.value + right.value) / 2
            elif not left.value < guess < right.value:
                chord = (right.difference - left.difference) / (right.value - left.value)
                guess = left.value - left.difference / chord
        guess = min(max(guess, low), high)
        if fine and guess == best.value:
            break  # at an end of the bracket: the slope does not lead to a root
        was_fine, fine = fine, fine or near
        # From coarse losses the root is missed by more than their error: digits of a first step would be in vain.
        asked = _SHARE * accuracy * abs(slope) * (1.0 if was_fine else _FIRST)
        try:
            evaluation = evaluate(guess, asked if fine else None)
        except TimeLimitError:
            value = min(max(best.value - best.difference / slope, left.value), right.value)
            ends = left.value, right.value
            return Root(best, value, max(value - ends[0], ends[1] - value), slope, ends, out_of_time=True)
        tick()
        if evaluation is None:
            raise NotConvergedError(f"a branch was lost at {guess:.6g} while locating the threshold")
        step, change, before = evaluation.value - best.value, evaluation.difference - best.difference, slope
        # Between evaluations of one kind, and where the change is more than their errors.
        if step and was_fine == fine and abs(change) > max(evaluation.error, best.error):
            secant = change / step
        slope = evaluation.slope or secant
        if slope != before:
            doubt = min(1.0, 2 * abs(slope - before) / abs(slope))
        width = right.value - left.value
        if fine:
            fines.append(evaluation)
        elif evaluation.difference * left.difference <= 0:
            right = evaluation
        else:
            left = evaluation
        slow = slow + 1 if right.value - left.value > width / 2 else 0
        best = evaluation
        enough = was_fine or best.error <= _SHARE * accuracy * abs(slope)
        if fine and enough and doubt * abs(best.difference / slope) <= 0.1 * accuracy:
            break
    last = best.difference / slope
    value = min(max(best.value - last, low), high)
    beyond = abs(best.value - last - value)  # the bracket, whose coarse signs may be wrong
    return Root(best, value, doubt * abs(last) + beyond, slope, _ends(fines, left, right))


def _ends(fines: list[Evaluation], left: Evaluation, right: Evaluation) -> tuple[float, float]:
    """Return the narrowest interval with a change of sign among the fine evaluations, else the coarse ends."""
    pair = _sign_change({e.value: e for e in fines})
    return (pair[0].value, pair[1].value) if pair else (left.value, right.value)
