"""Error bars that two different rules vouch for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .errors import InputError, NotConvergedError
from .integration import Lines, ProxSpace, rule_named
from .problem import Problem
from .solution import Solution, branch_of, solve

_LEAST_ACCURACY = 1e-6  # asked of the second rule


def verified(
    solution: Solution, integrator: str | None = None, points: int | None = None, seed: int | None = None
) -> Solution:
    """The solution with half widths that hold the truth if the error bar of either of two rules does.

    The problem is solved again with a rule of another family. Half widths become max(own, difference + the other's);
    error_kind becomes "verified" where the difference of every number is within the sum of both error bars, so that the
    rules agree. Else the error bars stay estimates, and the wider ones tell by how much the rules differ.

    Args:
        integrator: of the second rule, as for `solve`; default lines where prox-space solved the problem (Sobol sets
            where the loss has kinks, which lines resolve less well), else prox-space, up to two student fields.
        points: its size; seed: of its scramblings.

    Raises:
        InputError: the same family twice, no second rule for so many fields, or a solution that is none.
        NotConvergedError: the second rule finds no solution, or another branch.
    """
    if solution.losses is None:
        raise InputError(f"there is no solution to verify: {solution.status.value.replace('_', ' ')}")
    problem = solution.problem
    integrator = integrator or _second(problem, solution)
    if integrator == "auto" or type(rule_named(integrator)) is type(solution.rule):
        raise InputError(f"{integrator}: a rule of another family than {solution.rule.name} is expected")
    chosen: dict[str, Any] = {"integrator": integrator, "points": points, "seed": 1 if seed is None else seed}
    accuracy = float(np.clip(solution.relative_error, _LEAST_ACCURACY, 0.1))
    other = solve(problem, solution, accuracy=accuracy, **chosen)
    if other.losses is None or branch_of(other.overlaps) != branch_of(solution.overlaps):
        raise NotConvergedError(f"{integrator} does not find this solution: {other.status.value.replace('_', ' ')}")
    pairs = [
        (solution.overlaps.pack(), solution.errors, other.overlaps.pack(), other.errors),
        *(
            tuple(np.array(getattr(s, name + suffix)) for s in (solution, other) for suffix in ("", "_error"))
            for name in ("training_loss", "test_error")
        ),
    ]
    agree, widths = True, []
    for value, width, second, second_width in pairs:
        difference = np.abs(value - second)
        agree = agree and not bool(np.any(difference > width + second_width))
        widths.append(np.maximum(width, difference + second_width))
    return replace(
        solution,
        errors=widths[0],
        training_loss_error=float(widths[1]),
        test_error_error=float(widths[2]),
        error_kind="verified" if agree else "estimated",
    )


def _second(problem: Problem, solution: Solution) -> str:
    channel = problem.solver.channel
    if isinstance(solution.rule, ProxSpace):
        kinks = any(problem.solver.model.kinks(problem.flat)["loss"])
        return "sobol" if kinks or channel.FIELDS > 2 else Lines.name
    if not channel.HAS_PROX_SPACE or channel.FIELDS > 2:
        raise InputError(f"no second rule for {channel.FIELDS} student fields is as good as Sobol sets; name one")
    return ProxSpace.name


__all__ = ["verified"]
