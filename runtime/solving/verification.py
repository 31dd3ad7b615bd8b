"""Verification of a solution: the problem is solved again by a quadrature rule of another family.

Two rules count as different where they place their nodes in different variables (proximal points or fields) or by
different formulas; both evaluate the same symbolic loss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.errors import InputError, NotConvergedError, TimeLimitError
from ..base.options import AlgorithmOptions
from ..base.progress import progress_step
from ..integration import Rule, quadrature_families_for_cross_check, rule_by_name
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_fields_of_loss
from ..saddle_point.iteration import Status
from ..saddle_point.starts import name_branch
from .solution import Solution
from .solve import solve


@dataclass(frozen=True)
class VerificationOptions(AlgorithmOptions):
    """Bounds of the accuracy to which a second quadrature rule solves when it verifies a solution.

    Attributes:
        finest: smallest error bar requested of the second rule; smaller verifies smaller error bars and takes longer.
        coarsest: largest error bar requested; above a tenth the second rule might find another branch.
    """

    finest: float = 1e-6
    coarsest: float = 0.1


def independent_quadrature_family(problem: Problem, rule: Rule) -> str:
    """Return the name of a family of quadrature rules that checks a solution independently.

    It has nodes in proximal space if those of the given rule are not, otherwise it treats jumps and kinks of the
    proximal map in another way, otherwise it is any other applicable family.

    Args:
        problem: the problem that was solved.
        rule: quadrature rule by which the problem was solved.

    Raises:
        InputError: no other family is applicable.
    """
    suited = [family for family in quadrature_families_for_cross_check(rule) if family.is_applicable(problem)]
    for family in [*(f for f in suited if f.in_x != rule.in_x), *(f for f in suited if f.splits_jumps), *suited]:
        return family.name
    fields = reduce_to_fields_of_loss(problem).solver.channel.FIELDS
    raise InputError(f"no other rule is as accurate as Sobol sets for {fields} student fields; give one as integrator")


def verified(
    solution: Solution, integrator: str | None = None, points: int | None = None, seed: int | None = None
) -> Solution:
    """Return the solution with its error bars checked by solving again with another quadrature rule.

    The problem is solved again with a rule of another family. Error bars become max(own, difference + the other's);
    error_kind becomes "verified" where the difference of every number is within the sum of both error bars, so that the
    rules agree. Otherwise the error bars stay estimates, wide enough to contain the difference.

    Args:
        solution: the solution to verify.
        integrator: family of the second quadrature rule, as for `solve`; default: `independent_quadrature_family`.
        points: size of the second rule, for example its number of nodes.
        seed: seed of the second rule, if it is a sampled one.

    Raises:
        InputError: the second rule is of the same family, there is none for so many fields, or the solution has failed.
        NotConvergedError: the second rule finds no solution, or another branch.

    Example:
        >>> sf.verified(sf.solve(sf.problem("ridge_regression", alpha=2))).error_kind
        'verified'
    """
    if solution.losses is None:
        raise InputError(f"the solve failed ({solution.status.words}): no solution to verify")
    problem = solution.problem
    problem.require_zero_temperature("solutions are verified by a second rule")
    integrator = integrator or independent_quadrature_family(problem, solution.rule)
    if integrator == "auto" or rule_by_name(integrator).name == solution.rule.name:
        raise InputError(f"integrator {integrator}: a rule of another family than {solution.rule.name} is expected")
    chosen: dict[str, Any] = {"integrator": integrator, "points": points, "seed": 1 if seed is None else seed}
    options = VerificationOptions.current()
    accuracy = float(np.clip(solution.relative_error, options.finest, options.coarsest))
    with progress_step(f"verifying by {integrator}"):
        other = solve(problem, solution, accuracy=accuracy, **chosen)
    if other.status is Status.TIME_LIMIT:
        raise TimeLimitError(f"the time limit ended the verification by {integrator}")
    if other.losses is None or name_branch(problem, other.overlaps) != name_branch(problem, solution.overlaps):
        raise NotConvergedError(
            f"the second quadrature rule, {integrator}, does not find this solution: {other.status.words}"
        )
    names, strengths = list(solution.observed), solution.multipliers_error is not None

    def reported_numbers_with_errors(one: Solution) -> list[Any]:
        """Return all numbers that are reported about a solution, each with its error bar."""
        numbers = [
            (one.overlaps.pack(), one.errors),
            (np.array(one.training_loss), np.array(one.training_loss_error)),
            *(tuple(map(np.array, one.observed[name])) for name in names),
        ]
        return [*numbers, (one.multipliers, one.multipliers_error)] if strengths else numbers

    agree, widths = True, []
    for (value, width), (second, second_width) in zip(
        reported_numbers_with_errors(solution), reported_numbers_with_errors(other), strict=True
    ):
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
