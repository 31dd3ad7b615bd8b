"""How a solution answers to the numbers of its problem: d(any observable)/d(any parameter).

At a saddle point u = G(u; p), so that x = du/dp solves x = J x + dG/dp, J = dG/du (docs/theory.md (7.8)). The
right-hand side is the slope of G along the line (u + s x, p + s): one difference of the map over common nodes, whatever
the number of overlaps. From x = 0 on, x moves by (I - J)^{-1} times what is left, with a rough J; the slope along the
line is what counts. Phi is stationary, so that the training loss needs its explicit dependence on p alone.
"""

from __future__ import annotations

import numpy as np

from ..base.errors import DomainError, InputError, NotConvergedError
from ..base.progress import bar, step
from ..problems.overlaps import Overlaps
from ..saddle_point.observables import first_observables
from ..solving.solution import Solution
from ..solving.solve import reach
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
    if not isinstance(solution, Solution):
        raise InputError(f"a Solution is expected, not {type(solution).__name__}: sf.solve(problem), or one of a list")
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
    """Derivatives along one direction (see `sensitivities`): from solutions next to this one where the map's slope is
    not to be had."""
    try:
        with step(f"derivatives with respect to {direction.label}"):
            return Tangent.of(solution, direction).found()
    except np.linalg.LinAlgError:
        raise NotConvergedError(
            f"no derivative with respect to {direction.label}: 1 is an eigenvalue of the Jacobian, the branch ends or "
            "meets another one here"
        ) from None
    except DomainError as error:
        found = _from_neighbours(solution, direction)
        if found is None:
            raise NotConvergedError(f"no derivative with respect to {direction.label}: {error}") from error
        return found


def _from_neighbours(solution: Solution, direction: Direction) -> Sensitivity | None:
    """Derivatives as differences of solutions on both sides, their uncertainty what half the step changes; None where
    one of these is not on the branch."""
    size, _ = direction.differences(wide=True)
    slopes = []
    for width in (size, size / 2):
        try:
            problems = [direction.moved(way * width) for way in (1, -1)]
        except InputError:
            return None
        ends = [reach(p, solution, accuracy=min(solution.relative_error, 1e-4), afar=False) for p in problems]
        if any(end.losses is None or end.branch != solution.branch for end in ends):
            return None
        names = [each.name for each in first_observables(solution.problem)]
        packed = np.array(
            [
                [*end.overlaps.pack(), end.training_loss, end.baseline_error, *(end.observed[n][0] for n in names)]
                for end in ends
            ]
        )
        slopes.append((packed[0] - packed[1]) / (2 * width))
    coarse, fine = slopes
    # What the rules leave uncertain moves both ends alike, but for a share of the change.
    errors = np.abs(fine - coarse) + solution.relative_error * np.abs(fine)
    sizes, count = solution.overlaps.sizes, len(solution.errors)
    pairs = np.column_stack([fine, errors])[count + 2 :]
    return Sensitivity(
        parameter=direction.label,
        at=direction.value,
        problem=solution.problem,
        reached=solution.overlaps,
        overlaps=Overlaps.unpack(fine[:count], sizes),
        half_widths=Overlaps.unpack(errors[:count], sizes),
        training_loss=float(fine[count]),
        training_loss_error=float(errors[count]),
        observed={name: (value, error) for name, (value, error) in zip(names, pairs.tolist(), strict=True)},
        baseline_error=float(fine[count + 1]),
        remaining=0.0,
    )
