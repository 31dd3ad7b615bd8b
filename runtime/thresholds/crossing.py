"""Crossings: where two branches have equal training loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ..branches.branch import Branch
from ..branches.branch_map import BranchMap
from ..integration import Rule
from ..integration.estimates import two_standard_errors
from ..problems.problem import Problem
from ..saddle_point.slopes import differences
from ..solving.losses import refine_losses, with_losses
from ..solving.solution import Solution
from ..stability.assess import ROUNDING
from .locate import locate
from .root import Evaluation
from .search import Search, finest_accuracy
from .threshold import Threshold

_SLOPE_STEP = 1e-4  # of a parameter, in its unit


def symmetric_crossing(
    problem: Problem,
    parameter: str,
    between: tuple[str, str],
    bracket: tuple[float, float] | None,
    accuracy: float,
    seed: int = 0,
    branches: tuple[Branch, Branch] | None = None,
    verify: bool | None = None,
) -> Threshold:
    """Locate where two replica symmetric branches have equal training loss; arguments as for `crossing`.

    Raises:
        InputError: unknown names.
        NotConvergedError: no sign change of the difference where both branches exist.
    """
    one, other = branches or (Branch(problem, parameter, name, seed=seed) for name in between)
    search = Search("crossing", problem, parameter, tuple(between), bracket, accuracy, verify)

    def evaluate(value: float, tolerance: float | None) -> Evaluation | None:
        pair: list[Solution] = []
        for follower in (one, other):
            solution = follower.at(value)
            if solution is None:
                return None
            pair.append(solution)
        refined = [partial(with_loss, follower, value) for follower in (one, other)]
        if tolerance is not None and not refine_both(refined, pair, tolerance):
            return None
        slope = loss_slope(pair[0], parameter) - loss_slope(pair[1], parameter) if parameter == "alpha" else None
        return Evaluation(value, *loss_difference(*pair), sum(s.residual_loss for s in pair), slope, tuple(pair))

    def second(best: Evaluation, rule: Rule, _: float) -> tuple[float, float]:
        return loss_difference(*(with_losses(solution, rule) for solution in best.solutions))

    return locate(search, evaluate, second, (one, other))


def loss_difference(first: Solution, second: Solution) -> tuple[float, float]:
    """Return the training loss of one solution minus that of another, and its error bar.

    Where both come in as many replicates over the same scramblings, the spread of the differences is the error: noise
    that the branches share cancels, and what they do not share adds in squares.
    """
    difference = first.training_loss - second.training_loss
    both = [s.averages.moreau if s.averages is not None else np.zeros(0) for s in (first, second)]
    if len(both[0]) > 1 and len(both[0]) == len(both[1]) and first.problem.alpha == second.problem.alpha:
        sampled = first.problem.alpha * float(two_standard_errors(both[0] - both[1]))
        return difference, sampled + first.second_order + second.second_order
    rounding = ROUNDING * abs(first.training_loss)
    return difference, first.training_loss_error + second.training_loss_error + rounding


def loss_slope(solution: Solution, parameter: str) -> float:
    """Return the derivative of the training loss along a branch: that at fixed overlaps, of which Phi is stationary.

    In alpha it is E[M]; in others a central difference by the rule of the loss.

    Raises:
        DomainError, InputError: the parameter is at the edge of its range on both sides.
    """
    if parameter == "alpha" and solution.averages is not None:
        return float(solution.averages.moreau.mean())
    value = solution.problem.value_of(parameter)
    branch = BranchMap.of(solution, (parameter,), (max(abs(value), 1.0),))
    x, step = branch.coordinates(solution.overlaps.pack()), _SLOPE_STEP * branch.span

    def energy(there: np.ndarray) -> np.ndarray:
        return -np.atleast_1d(branch.free_entropies(x, there, branch.loss_rule).mean())

    return float(differences(energy, np.array([value]), step)[0, 0])


def refine_both(
    refined: Sequence[Callable[[Solution, float], Solution | None]], pair: list[Solution], tolerance: float
) -> bool:
    """Bring the errors of both training losses together below the tolerance, as far as can be had; False where a branch
    is lost.

    The one whose error is smaller goes first: what it leaves of the tolerance is the other one's.

    Args:
        refined: either solution with the error of its loss below a tolerance; pair: is changed.
    """
    left = tolerance / 2
    for k in sorted((0, 1), key=lambda k: pair[k].training_loss_error):
        found = refined[k](pair[k], left)
        if found is None:
            return False
        pair[k] = found
        left = max(tolerance - found.training_loss_error, tolerance / 2)
    return True


def with_loss(branch: Branch, value: float, solution: Solution, tolerance: float) -> Solution | None:
    """Return the branch at a value with the error of its training loss below the tolerance, as far as can be had."""
    wanted = branch.accuracy
    while solution.second_order > tolerance / 2 and wanted > finest_accuracy(solution):
        wanted /= 3
        finer = branch.at(value, wanted)
        if finer is None:
            return None
        solution = finer
    return refine_losses(solution, tolerance)
