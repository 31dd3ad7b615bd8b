"""Locating a threshold: bracket a zero along a parameter, refine it, add up its error bar, confirm it by another rule.

The error bar holds the integration error of the quantities compared, their residual and the root finder's, divided by
the slope. Asked for few digits it is estimated by one rule; asked for many, or on demand, a rule of another family
confirms it (`second_rule.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..base.errors import NotConvergedError
from ..base.progress import bar
from ..branches.branch import Branch
from ..integration import Rule
from .root import Evaluate, Evaluation, bracket, root_between
from .search import Search
from .second_rule import agreement, confirmed, opinions
from .threshold import Threshold

Second = Callable[[Evaluation, Rule, float], tuple[float, float]]
"""Difference and integration error at an evaluation by another rule, to a tolerance of the difference."""


def locate(search: Search, evaluate: Evaluate, second: Second, followers: Sequence[Branch]) -> Threshold:
    """Return the threshold at which what is evaluated vanishes.

    Args:
        evaluate: parameter, tolerance -> the difference there, integrated to the tolerance if there is one; None where
            a branch does not exist.
        second: the difference by another rule.
        followers: the branches that are compared.

    Raises:
        NotConvergedError: no sign change, or a branch is lost on the way.
    """
    kind, parameter, accuracy = search.kind, search.parameter, search.accuracy
    low, high = search.interval
    solved = all(end in follower.known for follower in followers for end in (low, high))
    with bar(f"{kind}: bracketing", 24) as task:
        left, right, seen = bracket(low, high, solved, evaluate, task.advance)
        if left is None or right is None:
            raise NotConvergedError(_no_sign_change(kind, parameter, low, high, seen))
        root = root_between(left, right, accuracy, evaluate, task.advance)
        best, slope = root.best, root.slope
        parts = {
            "half_width_integration": best.integration / abs(slope),
            "half_width_residual": best.residual / abs(slope),
            "half_width_root": root.error,
        }
        error = sum(parts.values())
        agreed = None
        if search.verifies and not root.out_of_time:
            task.describe(f"{kind}: verifying")
            enough = max(error, accuracy)
            tolerance = 0.1 * enough * abs(slope)
            others = opinions(best.solutions, lambda rule: second(best, rule, tolerance), task.advance)
            agreed = agreement(others, root.value, lambda difference: best.value - difference / slope, enough)
    error_kind, error, second_part = confirmed(agreed, error)
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
            "integrators": [s.rule.describe() for s in solutions],
            "loss_integrators": [(s.loss_rule or s.rule).describe() for s in solutions],
            "bistable_shares": [s.averages.bistable if s.averages else None for s in solutions],
            "residuals": [s.residual for s in solutions],
            "second_rule": agreed.evidence if agreed else None,
        },
    )


def _no_sign_change(kind: str, parameter: str, low: float, high: float, seen: list[Evaluation]) -> str:
    if not seen:
        return f"{kind}: no value of {parameter} in [{low:g}, {high:g}] was found at which the branches exist"
    first, last = seen[0], seen[-1]
    if all(each.vanishes for each in seen):
        return (
            f"{kind}: both sides are equal within their errors wherever they were compared, at {len(seen)} values of "
            f"{parameter} from {first.value:.4g} to {last.value:.4g} (at {last.value:.4g} they differ by "
            f"{last.difference:.2g}, give or take {last.error:.2g}): nothing passes there"
        )
    if kind.startswith("where"):
        sides = "above" if first.difference > 0 else "below"
        return (
            f"{kind}: no sign change for {parameter} in [{low:g}, {high:g}]; the left side is {sides} the right side, "
            f"by {abs(first.difference):.3g} at {first.value:.4g} and {abs(last.difference):.3g} at {last.value:.4g}; "
            "try another interval, or a value that is reached"
        )
    return (
        f"{kind}: no sign change for {parameter} in [{low:g}, {high:g}]; the branches exist from {first.value:.4g} "
        f"(difference {first.difference:.3g}) to {last.value:.4g} (difference {last.difference:.3g}); "
        f"try another interval"
    )
