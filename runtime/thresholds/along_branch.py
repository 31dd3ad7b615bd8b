"""Thresholds along a branch: values at which an equation between observables holds, or the replicon passes 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..base.errors import InputError, NotConvergedError
from ..base.options import AlgorithmOptions
from ..branches.branch import Branch
from ..integration import Rule
from ..integration.rule import NEGLIGIBLE_JUMPS
from ..problems.problem import Problem
from ..solving.solution import Solution
from .conditions import Condition, parse_condition
from .independent_check import solution_by_other_quadrature
from .locate import locate_threshold
from .root import DifferenceEvaluation
from .search import ThresholdSearch, finest_overlap_accuracy
from .threshold import Threshold


@dataclass(frozen=True)
class AlmeidaThoulessOptions(AlgorithmOptions):
    """Options of locating the de Almeida-Thouless threshold.

    Attributes:
        max_distance: largest distance of the replicon from 1 at the threshold; above it, jumps of the proximal map
            caused the change of stability.
    """

    max_distance: float = 0.01


def condition_threshold(
    problem: Problem,
    condition: str,
    parameter: str = "alpha",
    *,
    on: str,
    bracket: tuple[float, float] | None = None,
    accuracy: float = 1e-3,
    seed: int = 0,
    branch: Branch | None = None,
    verify: bool | None = None,
) -> Threshold:
    """Locate the parameter value at which a condition on a branch holds, for example `test_error = 0.4`.

    Args:
        problem: the problem at any value of the parameter.
        condition: two expressions joined by =, of names of quantities and parameters, numbers and + - * / **.
        parameter: name of the parameter in which the threshold is located.
        on: name of the start of the branch.
        bracket: interval to search, default [0.1, 2.5] for alpha.
        accuracy: error bar of the threshold.
        seed: seed of the sampled quadrature rules.
        branch: branch whose known solutions are used; a new branch by default.
        verify: whether another family of quadrature rules confirms the result; default: if the accuracy is below 1e-6.

    Raises:
        InputError: the condition cannot be parsed.
        NotConvergedError: the difference of the condition's sides changes no sign, or the branch is lost.
    """
    parsed = parse_condition(condition, problem)
    search = ThresholdSearch(f"where {condition}", problem, parameter, (on,), bracket, accuracy, verify)
    return _locate_condition_along_branch(search, parsed, branch or Branch(problem, parameter, on, seed=seed))


def almeida_thouless(
    problem: Problem,
    parameter: str = "alpha",
    *,
    on: str,
    bracket: tuple[float, float] | None = None,
    accuracy: float = 1e-3,
    seed: int = 0,
    branch: Branch | None = None,
    verify: bool | None = None,
) -> Threshold:
    """Locate the de Almeida-Thouless threshold of a branch, at which the replicon passes 1.

    If the proximal map jumps, replica symmetry is unstable whatever the replicon is (docs/theory.md (9.4)). If jumps
    cause the change of stability, not the replicon, NotConvergedError is raised.

    Args:
        problem: the problem at any value of the parameter.
        parameter: name of the parameter in which the threshold is located.
        on: name of the start of the branch.
        bracket: interval to search, default [0.1, 2.5] for alpha.
        accuracy: error bar of the threshold.
        seed: seed of the sampled quadrature rules.
        branch: branch whose known solutions are used; a new branch by default.
        verify: whether another family of quadrature rules confirms the result; default: if the accuracy is below 1e-6.

    Raises:
        NotConvergedError: the replicon does not pass 1 on the branch, or the proximal map jumps at the threshold.

    Example:
        >>> problem = sf.problem("tukey_regression", Delta=1)
        >>> found = sf.almeida_thouless(problem, on="informed", bracket=(5, 14), accuracy=1e-2)
        >>> round(found.value, 3)
        7.298
    """
    jumping: set[float] = set()

    def count_jumps_as_unstable(found: DifferenceEvaluation) -> DifferenceEvaluation:
        if not _has_proximal_jumps(found.solutions[0]):
            return found
        jumping.add(found.value)
        return replace(found, difference=max(found.difference, 1.0))

    search = ThresholdSearch("at", problem, parameter, (on,), bracket, accuracy, verify)
    follower = branch or Branch(problem, parameter, on, seed=seed)
    found = _locate_condition_along_branch(
        search, parse_condition("replicon = 1", problem), follower, count_jumps_as_unstable
    )
    ends = found.evidence["bracket"]
    limit = AlmeidaThoulessOptions.current().max_distance
    if _has_proximal_jumps(found.solutions[0]) or (jumping and abs(found.evidence["difference"]) > limit):
        raise NotConvergedError(
            f"no de Almeida-Thouless threshold: replica symmetry is lost between {parameter} = {ends[0]:.6g} and "
            f"{ends[1]:.6g} through jumps of the proximal map, not where the replicon passes 1"
        )
    return found


def _has_proximal_jumps(solution: Solution) -> bool:
    return solution.averages is not None and solution.averages.bistable > NEGLIGIBLE_JUMPS


def _locate_condition_along_branch(
    search: ThresholdSearch,
    condition: Condition,
    follower: Branch,
    adjust: Callable[[DifferenceEvaluation], DifferenceEvaluation] = lambda found: found,
) -> Threshold:
    """Locate the parameter value at which a condition holds along a branch, with overlaps as accurate as required.

    `adjust` is a function that is applied to every evaluation of the condition.
    """
    wanted = follower.accuracy

    def _difference_of_condition_sides(value: float, tolerance: float | None) -> DifferenceEvaluation | None:
        nonlocal wanted
        solution = follower.solution_at_parameter(value, None if tolerance is None else wanted)
        if solution is None:
            return None
        found = condition.evaluate_condition_at_solution(solution, tolerance or np.inf)
        while tolerance is not None and not found.error <= tolerance and wanted > finest_overlap_accuracy(solution):
            factor = max(0.3 * tolerance / found.error, 1e-6)
            wanted = max(finest_overlap_accuracy(solution), min(wanted, solution.relative_error) * min(1 / 3, factor))
            finer = follower.solution_at_parameter(value, wanted)
            if finer is None:
                break
            has_stalled = finer.relative_error > 0.7 * solution.relative_error
            solution = finer
            found = condition.evaluate_condition_at_solution(solution, tolerance)
            if has_stalled:
                break
        return adjust(DifferenceEvaluation(value, found.value, found.integration, found.residual, None, (solution,)))

    def _difference_by_other_quadrature(
        best: DifferenceEvaluation, rule: Rule, tolerance: float
    ) -> tuple[float, float]:
        moved = solution_by_other_quadrature(best.solutions[0], rule)
        if moved is None:
            raise InputError(
                "the threshold cannot be verified: the second quadrature rule leads to overlaps outside their domain"
            )
        found = condition.evaluate_condition_at_solution(moved, tolerance, equidistant=True)
        return found.value, found.integration

    return locate_threshold(search, _difference_of_condition_sides, _difference_by_other_quadrature, (follower,))
