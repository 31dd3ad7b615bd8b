"""Location of a threshold: bracket a zero along a parameter, refine it, add up its error bar, confirm it.

The error bar is the sum of the errors of integration, residual and root finder, divided by the slope. For few digits it
is estimated by one rule; for many, or on demand, a rule of another family confirms it (`independent_check.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..base.errors import NotConvergedError
from ..base.progress import progress_bar
from ..branches.branch import Branch
from ..integration import Rule
from .independent_check import (
    compare_thresholds,
    error_bar_after_independent_check,
    evaluate_difference_by_second_rules,
)
from .root import DifferenceEvaluation, Evaluate, bracket_root_on_grids, find_root_in_bracket
from .search import ThresholdSearch
from .threshold import Threshold

SecondRule = Callable[[DifferenceEvaluation, Rule, float], tuple[float, float]]
"""Returns difference and integration error at an evaluation, by another rule, to a tolerance of the difference."""


def locate_threshold(
    search: ThresholdSearch, evaluate: Evaluate, second: SecondRule, followers: Sequence[Branch]
) -> Threshold:
    """Return the `Threshold`: the parameter value at which a difference, such as of two training losses, vanishes.

    Args:
        search: kind of the threshold, interval and accuracy.
        evaluate: function of a parameter value and a tolerance (or None) that returns the difference; None where a
            branch does not exist.
        second: function that returns the difference by another quadrature rule.
        followers: branches whose solutions the difference depends on.

    Raises:
        NotConvergedError: the difference does not change sign, or a branch is lost inside the interval.
    """
    kind, parameter, accuracy = search.kind, search.parameter, search.accuracy
    low, high = search.search_interval_ends
    solved = all(end in follower.known for follower in followers for end in (low, high))
    with progress_bar(f"{kind}: bracketing", 24) as task:
        left, right, seen = bracket_root_on_grids(low, high, solved, evaluate, task.count_finished_step)
        if left is None or right is None:
            raise NotConvergedError(_no_sign_change_message(kind, parameter, low, high, seen))
        root = find_root_in_bracket(left, right, accuracy, evaluate, task.count_finished_step)
        best, slope = root.best, root.slope
        parts = {
            "error_integration": best.integration / abs(slope),
            "error_residual": best.residual / abs(slope),
            "error_root": root.error,
        }
        error = sum(parts.values())
        agreed = None
        if search.requires_independent_check and not root.out_of_time:
            task.set_description(f"{kind}: verifying")
            enough = max(error, accuracy)
            tolerance = 0.1 * enough * abs(slope)
            others = evaluate_difference_by_second_rules(
                best.solutions, lambda rule: second(best, rule, tolerance), task.count_finished_step
            )
            agreed = compare_thresholds(others, root.value, lambda difference: best.value - difference / slope, enough)
    error_kind, error, second_part = error_bar_after_independent_check(agreed, error)
    solutions = best.solutions
    return Threshold(
        kind=kind,
        parameter=parameter,
        value=root.value,
        error=error,
        error_kind=error_kind,
        status="converged" if error <= accuracy else "time_limit" if root.out_of_time else "accuracy_not_reached",
        branches=search.branches,
        problem=search.problem,
        solutions=solutions,
        evidence={
            "slope": slope,
            "evaluated_at": best.value,
            "difference": best.difference,
            **parts,
            **second_part,
            "bracket": list(root.ends),
            "integrators": [s.rule.rule_description() for s in solutions],
            "loss_integrators": [(s.loss_rule or s.rule).rule_description() for s in solutions],
            "bistable_fractions": [s.averages.bistable if s.averages else None for s in solutions],
            "residuals": [s.residual for s in solutions],
            "second_rule": agreed.evidence if agreed else None,
        },
    )


def _no_sign_change_message(
    kind: str, parameter: str, low: float, high: float, seen: list[DifferenceEvaluation]
) -> str:
    if not seen:
        return f"{kind}: no value of {parameter} in [{low:g}, {high:g}] was found at which the branches exist"
    first, last = seen[0], seen[-1]
    if all(each.is_zero_within_error for each in seen):
        return (
            f"{kind}: both sides are equal within their errors wherever they were compared, at {len(seen)} values of "
            f"{parameter} from {first.value:.4g} to {last.value:.4g} (at {last.value:.4g} they differ by "
            f"{last.difference:.2g}, give or take {last.error:.2g}), so that no threshold can be located"
        )
    if kind.startswith("where"):
        sides = "above" if first.difference > 0 else "below"
        return (
            f"{kind}: no sign change for {parameter} in [{low:g}, {high:g}]; the left side is {sides} the right side, "
            f"by {abs(first.difference):.3g} at {first.value:.4g} and {abs(last.difference):.3g} at {last.value:.4g}; "
            "try another interval, or another value in the condition"
        )
    return (
        f"{kind}: no sign change for {parameter} in [{low:g}, {high:g}]; the branches exist from {first.value:.4g} "
        f"(difference {first.difference:.3g}) to {last.value:.4g} (difference {last.difference:.3g}); "
        f"try another interval"
    )
