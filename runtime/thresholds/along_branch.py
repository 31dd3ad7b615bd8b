"""Conditions along a branch: where an equation between its observables holds, or its replicon passes 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..base.errors import InputError, NotConvergedError
from ..branches.branch import Branch
from ..integration import Rule
from ..integration.rule import NEGLIGIBLE_JUMPS
from ..problems.problem import Problem
from ..solving.solution import Solution
from .conditions import Condition, parse_condition
from .locate import locate
from .root import Evaluation
from .search import Search, finest_accuracy
from .second_rule import by_rule
from .threshold import Threshold

_PASSAGE = 0.01  # a replicon farther from 1 than this at the end has not passed through it


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
    """Locate where a condition on a branch's observables holds, as `test_error = baseline_error`.

    Args:
        condition: two expressions joined by =, in names of quantities and parameters, numbers and + - * / **.
        on: the branch.
        verify: as for `crossing`.

    Raises:
        InputError: the condition cannot be read.
        NotConvergedError: no sign change on the branch.
    """
    parsed = parse_condition(condition, problem)
    search = Search(f"where {condition}", problem, parameter, (on,), bracket, accuracy, verify)
    return _locate_condition(search, parsed, branch or Branch(problem, parameter, on, seed=seed))


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
    """Locate where the replicon passes 1 on a branch (de Almeida and Thouless) and the proximal map is continuous.

    Where the map jumps, replica symmetry is unstable whatever the replicon from derivatives is (docs/theory.md (9.4)):
    such values count as unstable, and a change that comes with jumps rather than with the replicon is refused.

    Args:
        on: the branch; the others as for `where`.

    Raises:
        NotConvergedError: no passage through 1 on the branch, or the proximal map jumps at what was found.

    Example:
        >>> problem = sf.problem("tukey_regression", Delta=1)
        >>> found = sf.almeida_thouless(problem, on="semantic", bracket=(5, 14), accuracy=1e-2)
        >>> round(found.value, 3)
        7.298
    """
    jumping: set[float] = set()

    def unstable_where_it_jumps(found: Evaluation) -> Evaluation:
        if not _jumps(found.solutions[0]):
            return found
        jumping.add(found.value)
        return replace(found, difference=max(found.difference, 1.0))

    search = Search("at", problem, parameter, (on,), bracket, accuracy, verify)
    follower = branch or Branch(problem, parameter, on, seed=seed)
    found = _locate_condition(search, parse_condition("replicon = 1", problem), follower, unstable_where_it_jumps)
    ends = found.evidence["bracket"]
    if _jumps(found.solutions[0]) or (jumping and abs(found.evidence["difference"]) > _PASSAGE):
        raise NotConvergedError(
            f"at: replica symmetry is lost between {parameter} = {ends[0]:.6g} and {ends[1]:.6g} through jumps of the "
            "proximal map, not through the replicon, which means nothing where the map jumps"
        )
    return found


def _jumps(solution: Solution) -> bool:
    return solution.averages is not None and solution.averages.bistable > NEGLIGIBLE_JUMPS


def _locate_condition(
    search: Search,
    condition: Condition,
    follower: Branch,
    judge: Callable[[Evaluation], Evaluation] = lambda found: found,
) -> Threshold:
    """Locate where a condition holds along a branch, its overlaps solved to what a tolerance asks for.

    Args:
        judge: changes what was evaluated.
    """
    wanted = follower.accuracy

    def evaluate(value: float, tolerance: float | None) -> Evaluation | None:
        nonlocal wanted
        solution = follower.at(value, None if tolerance is None else wanted)
        if solution is None:
            return None
        found = condition.judge(solution, tolerance or np.inf)
        while tolerance is not None and not found.error <= tolerance and wanted > finest_accuracy(solution):
            share = max(0.3 * tolerance / found.error, 1e-6)
            wanted = max(finest_accuracy(solution), min(wanted, solution.relative_error) * min(1 / 3, share))
            finer = follower.at(value, wanted)
            if finer is None:
                break
            stuck = finer.relative_error > 0.7 * solution.relative_error
            solution = finer
            found = condition.judge(solution, tolerance)
            if stuck:
                break
        return judge(Evaluation(value, found.value, found.integration, found.residual, None, (solution,)))

    def second(best: Evaluation, rule: Rule, tolerance: float) -> tuple[float, float]:
        moved = by_rule(best.solutions[0], rule)
        if moved is None:
            raise InputError("the second rule leaves the domain of the overlaps")
        found = condition.judge(moved, tolerance, equidistant=True)
        return found.value, found.integration

    return locate(search, evaluate, second, (follower,))
