"""Sensitivities: derivatives of a solution's observables with respect to parameters of the problem.

At a saddle point u = G(u; p), so that x = du/dp solves x = J x + dG/dp, J = dG/du (docs/theory.md (7.8)). The
right-hand side is the slope of G along the line (u + s x, p + s): one difference of the map over common nodes, whatever
the number of overlaps. From x = 0 on, x changes by (I - J)^{-1} times the residual, with an approximate J; the result
does not depend on J. Phi is stationary, so that the training loss needs its explicit dependence on p alone.
"""

from __future__ import annotations

import numpy as np

from ..base.errors import DomainError, InputError, NotConvergedError
from ..base.progress import progress_bar, progress_step
from ..problems.overlaps import Overlaps
from ..saddle_point.observables import observables_without_extra_metrics
from ..solving.solution import Solution
from ..solving.solve import solve_without_branch_check
from .direction import ParameterDirection, parameter_directions
from .sensitivity_results import Sensitivities, Sensitivity
from .tangent import TangentSolver


def sensitivities(solution: Solution, *parameters: str) -> Sensitivities:
    """Return derivatives of overlaps, losses and errors with respect to parameters, along the branch of a solution.

    Args:
        solution: the solution.
        *parameters: names of parameters (alpha included), of which arrays are taken entry by entry; default: all.

    Raises:
        InputError: a parameter is unknown, or the solution is a failed one.
        NotConvergedError: 1 is an eigenvalue of the Jacobian (the branch ends or meets another one here), or the
            saddle-point map cannot be evaluated around the solution.

    Example:
        >>> moved = sf.sensitivities(sf.solve(sf.problem("ridge_regression", alpha=2)), "alpha")
        >>> moved["alpha"].test_error < 0
        True
    """
    if not isinstance(solution, Solution):
        raise InputError(f"derivatives need a solution, as sf.solve(problem) returns, not a {type(solution).__name__}")
    if solution.losses is None:
        raise InputError(f"the solve failed ({solution.status.words}): no solution to differentiate")
    wanted = parameter_directions(solution.problem, *parameters)
    solution.problem.require_zero_temperature("derivatives with respect to parameters are known")
    with progress_bar("sensitivities", len(wanted)) as task:
        found = []
        for direction in wanted:
            found.append(sensitivity(solution, direction))
            task.count_finished_step(f"sensitivity to {direction.parameter_label}")
    return Sensitivities(solution, tuple(found))


def sensitivity(solution: Solution, direction: ParameterDirection) -> Sensitivity:
    """Return the derivatives of a solution with respect to one parameter, or one entry of an array, of its problem.

    If the saddle-point map cannot be differentiated, they are difference quotients of neighbouring solutions.

    Args:
        solution: the solution.
        direction: the parameter or entry.

    Raises:
        NotConvergedError: 1 is an eigenvalue of the Jacobian, or neither method gives a derivative.
    """
    try:
        with progress_step(f"derivatives with respect to {direction.parameter_label}"):
            return TangentSolver.from_solution(solution, direction).sensitivity_with_errors()
    except np.linalg.LinAlgError:
        raise NotConvergedError(
            f"no derivative with respect to {direction.parameter_label}: the branch ends or meets another branch here "
            "(1 is an eigenvalue of the Jacobian)"
        ) from None
    except DomainError as error:
        found = _sensitivity_by_difference_quotient(solution, direction)
        if found is None:
            raise NotConvergedError(f"no derivative with respect to {direction.parameter_label}: {error}") from error
        return found


def _sensitivity_by_difference_quotient(solution: Solution, direction: ParameterDirection) -> Sensitivity | None:
    """Return derivatives from solutions at a larger and a smaller parameter value; None if one is on another branch.

    Error bars are the changes of the derivatives when the step is halved.
    """
    size, _ = direction.difference_step_and_stencil(wide=True)
    slopes = []
    for width in (size, size / 2):
        try:
            problems = [direction.problem_with_shifted_parameter(sign * width) for sign in (1, -1)]
        except InputError:
            return None
        accuracy = min(solution.relative_error, 1e-4)
        ends = [solve_without_branch_check(p, solution, accuracy=accuracy, globalise=False) for p in problems]
        if any(end.losses is None or end.branch != solution.branch for end in ends):
            return None
        names = [each.name for each in observables_without_extra_metrics(solution.problem)]
        packed = np.array(
            [
                [*end.overlaps.pack(), end.training_loss, end.baseline_error, *(end.observed[n][0] for n in names)]
                for end in ends
            ]
        )
        slopes.append((packed[0] - packed[1]) / (2 * width))
    coarse, fine = slopes
    # Errors of the rules are common to both ends, except for a fraction of the change.
    errors = np.abs(fine - coarse) + solution.relative_error * np.abs(fine)
    sizes, count = solution.overlaps.sizes, len(solution.errors)
    pairs = np.column_stack([fine, errors])[count + 2 :]
    return Sensitivity(
        parameter=direction.parameter_label,
        at=direction.parameter_value,
        problem=solution.problem,
        reached=solution.overlaps,
        overlaps=Overlaps.unpack(fine[:count], sizes),
        error_bars=Overlaps.unpack(errors[:count], sizes),
        training_loss=float(fine[count]),
        training_loss_error=float(errors[count]),
        observed={name: (value, error) for name, (value, error) in zip(names, pairs.tolist(), strict=True)},
        baseline_error=float(fine[count + 1]),
        remaining=0.0,
    )
