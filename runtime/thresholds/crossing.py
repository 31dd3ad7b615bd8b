"""Crossings: values of a parameter at which two branches have equal training loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..base.options import AlgorithmOptions
from ..branches.branch import Branch
from ..branches.branch_map import BranchMap
from ..integration import Rule
from ..integration.estimates import replicate_error_bar
from ..problems.problem import Problem
from ..saddle_point.difference_jacobian import jacobian_by_differences
from ..solving.losses import integrate_training_loss, refine_training_loss
from ..solving.solution import Solution
from ..stability.assess import ROUNDING
from .locate import locate_threshold
from .root import DifferenceEvaluation
from .search import ThresholdSearch, finest_overlap_accuracy
from .threshold import Threshold


@dataclass(frozen=True)
class CrossingOptions(AlgorithmOptions):
    """Options of locating a crossing, at which two branches have equal training loss.

    Attributes:
        slope_step: step of central differences in a parameter, relative to its value, or to 1 if that is larger.
    """

    slope_step: float = 1e-4


def replica_symmetric_crossing(
    problem: Problem,
    parameter: str,
    between: tuple[str, str],
    bracket: tuple[float, float] | None,
    accuracy: float,
    seed: int = 0,
    branches: tuple[Branch, Branch] | None = None,
    verify: bool | None = None,
) -> Threshold:
    """Locate where two replica symmetric branches have equal training loss.

    Args:
        problem: the problem at any value of the parameter.
        parameter: name of the parameter in which the crossing is located.
        between: names of the starts of both branches.
        bracket: interval to search, default [0.1, 2.5] for alpha.
        accuracy: error bar of the crossing.
        seed: seed of the sampled quadrature rules.
        branches: branches whose known solutions are used; new branches by default.
        verify: whether another family of quadrature rules confirms the result; default: if the accuracy is below 1e-6.

    Raises:
        InputError: a start or the parameter is unknown.
        NotConvergedError: the difference of the training losses does not change sign where both branches exist.
    """
    one, other = branches or (Branch(problem, parameter, name, seed=seed) for name in between)
    search = ThresholdSearch("crossing", problem, parameter, tuple(between), bracket, accuracy, verify)

    def _difference_of_training_losses(value: float, tolerance: float | None) -> DifferenceEvaluation | None:
        pair: list[Solution] = []
        for follower in (one, other):
            solution = follower.solution_at_parameter(value)
            if solution is None:
                return None
            pair.append(solution)
        refined = [partial(refine_training_loss_on_branch, follower, value) for follower in (one, other)]
        if tolerance is not None and not refine_both_training_losses(refined, pair, tolerance):
            return None
        slope = (
            training_loss_derivative(pair[0], parameter) - training_loss_derivative(pair[1], parameter)
            if parameter == "alpha"
            else None
        )
        return DifferenceEvaluation(
            value, *training_loss_difference(*pair), sum(s.loss_error_from_residual for s in pair), slope, tuple(pair)
        )

    def _difference_by_other_quadrature(best: DifferenceEvaluation, rule: Rule, _: float) -> tuple[float, float]:
        return training_loss_difference(*(integrate_training_loss(solution, rule) for solution in best.solutions))

    return locate_threshold(search, _difference_of_training_losses, _difference_by_other_quadrature, (one, other))


def training_loss_difference(first: Solution, second: Solution) -> tuple[float, float]:
    """Return the difference of the training losses of two solutions, and its error bar.

    If both have replicates by the same sets of quadrature nodes, the error bar is the spread of the differences, in
    which common noise cancels.

    Args:
        first: a solution.
        second: another solution.
    """
    difference = first.training_loss - second.training_loss
    both = [s.averages.moreau if s.averages is not None else np.zeros(0) for s in (first, second)]
    if len(both[0]) > 1 and len(both[0]) == len(both[1]) and first.problem.alpha == second.problem.alpha:
        sampled = first.problem.alpha * float(replicate_error_bar(both[0] - both[1]))
        return difference, sampled + first.second_order + second.second_order
    rounding = ROUNDING * abs(first.training_loss)
    return difference, first.training_loss_error + second.training_loss_error + rounding


def training_loss_derivative(solution: Solution, parameter: str) -> float:
    """Return the derivative of the training loss of a branch with respect to a parameter.

    In alpha it is the mean minimum of the proximal objective, in other parameters a central difference.

    Args:
        solution: the solution on the branch.
        parameter: name of the parameter.

    Raises:
        DomainError: the parameter can be changed in neither direction (InputError if out of range).
    """
    if parameter == "alpha" and solution.averages is not None:
        return float(solution.averages.moreau.mean())
    value = solution.problem.value_of_parameter(parameter)
    branch = BranchMap.from_solution(solution, (parameter,), (max(abs(value), 1.0),))
    x, step = branch.coordinates_of_state(solution.overlaps.pack()), CrossingOptions.current().slope_step * branch.span

    def training_loss_at_parameters(there: np.ndarray) -> np.ndarray:
        return -np.atleast_1d(branch.free_entropies_by_replicate(x, there, branch.loss_rule).mean())

    return float(jacobian_by_differences(training_loss_at_parameters, np.array([value]), step)[0, 0])


def refine_both_training_losses(
    refined: Sequence[Callable[[Solution, float], Solution | None]], pair: list[Solution], tolerance: float
) -> bool:
    """Refine the training losses of two solutions until the sum of their error bars is below a tolerance.

    The loss with the smaller error bar is refined first; the other one gets the rest of the tolerance.

    Args:
        refined: two functions of a solution and a tolerance that return the solution with a refined training loss.
        pair: list of the two solutions, which are replaced by the refined ones.
        tolerance: tolerance of the sum of both error bars.

    Returns:
        False if a branch is lost, otherwise True.
    """
    left = tolerance / 2
    for k in sorted((0, 1), key=lambda k: pair[k].training_loss_error):
        solution = refined[k](pair[k], left)
        if solution is None:
            return False
        pair[k] = solution
        left = max(tolerance - solution.training_loss_error, tolerance / 2)
    return True


def refine_training_loss_on_branch(
    branch: Branch, value: float, solution: Solution, tolerance: float
) -> Solution | None:
    """Refine the training loss of a solution to a tolerance and return the solution; None if the branch is lost.

    Args:
        branch: the branch.
        value: parameter value.
        solution: solution of the branch at this value.
        tolerance: requested error bar of the training loss.
    """
    wanted = branch.accuracy
    while solution.second_order > tolerance / 2 and wanted > finest_overlap_accuracy(solution):
        wanted /= 3
        finer = branch.solution_at_parameter(value, wanted)
        if finer is None:
            return None
        solution = finer
    return refine_training_loss(solution, tolerance)
