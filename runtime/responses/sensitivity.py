"""How a solution answers to the numbers of its problem: d(any observable)/d(any parameter).

At a saddle point u = G(u; p), so that x = du/dp solves x = J x + dG/dp, J = dG/du (docs/theory.md (7.8)). The
right-hand side is the slope of G along the line (u + s x, p + s): one difference of the map over common nodes, whatever
the number of overlaps. From x = 0 on, x moves by (I - J)^{-1} times what is left, with a rough J; the slope along the
line is what counts. Phi is stationary, so that the training loss needs its explicit dependence on p alone.
"""

from __future__ import annotations

import numpy as np

from ..errors import DomainError, InputError, NotConvergedError
from ..progress import bar, step
from ..solving.solution import Solution
from .answers import Sensitivities, Sensitivity
from .direction import Direction, directions
from .tangent import Tangent


def sensitivities(solution: Solution, *parameters: str) -> Sensitivities:
    """Derivatives of overlaps, losses and errors with respect to parameters, along the solution's branch.

    Args:
        parameters: alpha or names of the model's parameters, arrays entry by entry; without any, all of them.

    Raises:
        InputError: an unknown parameter, or a solution that is none.
        NotConvergedError: 1 is an eigenvalue of the Jacobian (the branch ends or meets another one here), or the map
            cannot be evaluated around the solution.

    Example:
        >>> moved = sf.sensitivities(sf.solve(sf.problem("ridge_regression", alpha=2)), "alpha")
        >>> moved["alpha"].test_error < 0
        True
    """
    if solution.losses is None:
        raise InputError(f"there is no solution to differentiate: {solution.status.words}")
    wanted = directions(solution.problem, *parameters)
    solution.problem.only_at_zero_temperature("derivatives with respect to parameters are known")
    with bar("sensitivities", len(wanted)) as task:
        found = []
        for direction in wanted:
            found.append(sensitivity(solution, direction))
            task.advance(f"sensitivity to {direction.label}")
    return Sensitivities(solution, tuple(found))


def sensitivity(solution: Solution, direction: Direction) -> Sensitivity:
    """Derivatives along one direction (see `sensitivities`)."""
    try:
        with step(f"derivatives with respect to {direction.label}"):
            return Tangent.of(solution, direction).found()
    except np.linalg.LinAlgError:
        raise NotConvergedError(
            f"no derivative with respect to {direction.label}: 1 is an eigenvalue of the Jacobian, the branch ends or "
            "meets another one here"
        ) from None
    except DomainError as error:
        raise NotConvergedError(f"no derivative with respect to {direction.label}: {error}") from error
