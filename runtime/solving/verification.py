"""Verify a solution: find it again by a rule of another family.

Two rules count as different where they place their nodes in different variables (proximal points or fields) or by
different formulas; that they read the same symbolic loss is the point.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..base.errors import InputError, NotConvergedError, TimeLimitError
from ..base.progress import step
from ..integration import Rule, other_families, rule_named
from ..problems.problem import Problem
from ..problems.reduced import integrated
from ..saddle_point.iteration import Status
from ..saddle_point.starts import branch_of
from .solution import Solution
from .solve import solve

# Asked of the second rule, relative to the blocks. Its own half width adds to what is verified, which is not finer than
# the first then; with less than a digit it might be on another branch.
_FINEST, _COARSEST = 1e-6, 0.1


def other_family(problem: Problem, rule: Rule) -> str:
    """Return the family by which a solution of a rule is found again: with nodes in X, if those of the rule are not, or
    else one that finds jumps and bends of the proximal map in another way, or else any that is made for such a loss.

    Raises:
        InputError: there is none that is good enough.
    """
    suited = [family for family in other_families(rule) if family.suits(problem)]
    for family in [*(f for f in suited if f.in_x != rule.in_x), *(f for f in suited if f.splits_jumps), *suited]:
        return family.name
    fields = integrated(problem).solver.channel.FIELDS
    raise InputError(f"no second rule for {fields} student fields is as good as Sobol sets; name one")


def verified(
    solution: Solution, integrator: str | None = None, points: int | None = None, seed: int | None = None
) -> Solution:
    """Return the solution with error bars that contain the truth if those of either of two rules do.

    The problem is solved again with a rule of another family. Error bars become max(own, difference + the other's);
    error_kind becomes "verified" where the difference of every number is within the sum of both error bars, so that the
    rules agree. Else the error bars stay estimates, and the wider ones tell by how much the rules differ.

    Args:
        integrator: of the second rule, as for `solve`; default the one of `other_family`.
        points: its size; seed: of its scramblings.

    Raises:
        InputError: the same family twice, no second rule for so many fields, or a solution that is none.
        NotConvergedError: the second rule finds no solution, or another branch.

    Example:
        >>> sf.verified(sf.solve(sf.problem("ridge_regression", alpha=2))).error_kind
        'verified'
    """
    if solution.losses is None:
        raise InputError(f"there is no solution to verify: {solution.status.words}")
    problem = solution.problem
    problem.only_at_zero_temperature("solutions are verified by a second rule")
    integrator = integrator or other_family(problem, solution.rule)
    if integrator == "auto" or rule_named(integrator).name == solution.rule.name:
        raise InputError(f"{integrator}: a rule of another family than {solution.rule.name} is expected")
    chosen: dict[str, Any] = {"integrator": integrator, "points": points, "seed": 1 if seed is None else seed}
    accuracy = float(np.clip(solution.relative_error, _FINEST, _COARSEST))
    with step(f"verifying by {integrator}"):
        other = solve(problem, solution, accuracy=accuracy, **chosen)
    if other.status is Status.TIME_LIMIT:
        raise TimeLimitError(f"the time limit ended the verification by {integrator}")
    if other.losses is None or branch_of(other.overlaps) != branch_of(solution.overlaps):
        raise NotConvergedError(f"{integrator} does not find this solution: {other.status.words}")
    names, strengths = list(solution.observed), solution.multipliers_error is not None

    def numbers(one: Solution) -> list[Any]:
        """Return everything reported, with error bars."""
        found = [
            (one.overlaps.pack(), one.errors),
            (np.array(one.training_loss), np.array(one.training_loss_error)),
            *(tuple(map(np.array, one.observed[name])) for name in names),
        ]
        return [*found, (one.multipliers, one.multipliers_error)] if strengths else found

    agree, widths = True, []
    for (value, width), (second, second_width) in zip(numbers(solution), numbers(other), strict=True):
        difference = np.abs(value - second)
        agree = agree and not bool(np.any(difference > width + second_width))
        widths.append(np.maximum(width, difference + second_width))
    errors, training_loss_error, *further = widths
    multipliers_error = further.pop() if strengths else None
    observed = {name: (solution.observed[name][0], float(w)) for name, w in zip(names, further, strict=True)}
    return replace(
        solution,
        errors=errors,
        training_loss_error=float(training_loss_error),
        observed=observed,
        multipliers_error=multipliers_error,
        error_kind="verified" if agree else "estimated",
    )
