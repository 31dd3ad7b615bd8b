"""Refinement of states with broken replica symmetry near a saddle point, by finer and finer rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...base.errors import DomainError, TimeLimitError
from ...integration.tilted_sums import TiltedRule
from ...problems.symmetry import NO_SYMMETRY
from ...saddle_point.iteration import Status
from ...solving.solution import Solution
from .error_bars import ROUNDING, build_solution
from .newton import BreakingNewtonOptions, NewtonResult, solve_newton
from .rules import rules_for
from .solution import BrokenSolution
from .state import BrokenState
from .state_map import BreakingMap


def breaking_map_of(symmetric: Solution, rule: TiltedRule) -> BreakingMap:
    """Return the map for states with the symmetry of a replica symmetric solution.

    Args:
        symmetric: the replica symmetric solution.
        rule: rule of integration.
    """
    return BreakingMap(symmetric.problem, rule, symmetric.symmetry or NO_SYMMETRY)


def is_broken(state: BrokenState) -> bool:
    """Return whether every Delta differs from zero."""
    sizes = np.trace(state.distances, axis1=2, axis2=3) / np.trace(state.within.q, axis1=1, axis2=2)
    return bool(sizes.max(axis=1).min() > BreakingNewtonOptions.current().min_distance)


def find_states_near(
    breaking_map: BreakingMap, state: BrokenState, rates: np.ndarray, tolerance: float, accepted: float = 0.0,
    with_y: bool = False, matrix: np.ndarray | None = None,
) -> NewtonResult | None:  # fmt: skip
    """Return the states with broken replica symmetry to which Newton's method converges; None where there are none.

    Args:
        breaking_map: the map of states.
        state: the start.
        rates: y of every level, (K,).
        tolerance: of the residual.
        accepted: residual that is accepted if it is above the tolerance.
        with_y: whether y is solved for as well.
        matrix: Jacobian of the same equations nearby.
    """
    try:
        found = solve_newton(breaking_map, state, rates, tolerance, with_y, matrix)
    except (DomainError, np.linalg.LinAlgError):
        return None
    return found if found.residual < max(tolerance, accepted) and is_broken(found.state) else None


def symmetric_result(symmetric: Solution, status: Status, words: str) -> BrokenSolution:
    """Return a result without breaking: the replica symmetric solution, a status and the reason.

    Args:
        symmetric: the replica symmetric solution.
        status: of the result.
        words: the reason.
    """
    losses = symmetric.losses
    return BrokenSolution(
        symmetric=symmetric, status=status, residual=symmetric.residual, rule=symmetric.rule,
        within_errors=symmetric.errors, energy=symmetric.training_loss, own_error=symmetric.training_loss_error,
        parts=(losses.data, losses.penalty) if losses else (np.nan, np.nan), observed=symmetric.observed,
        multipliers=symmetric.multipliers, multipliers_error=symmetric.multipliers_error, found=words,
    )  # fmt: skip


def refine_solution(
    symmetric: Solution, found: NewtonResult, given: bool, accuracy: float, rules: Sequence[TiltedRule] = (),
    once: BrokenSolution | None = None,
) -> BrokenSolution | None:  # fmt: skip
    """Return the solution near states, by finer and finer rules until its error bars are below the accuracy.

    Args:
        symmetric: the replica symmetric solution.
        found: the states.
        given: whether y is fixed.
        accuracy: required error bar of overlaps, relative to their blocks.
        rules: rules of integration; by default those of the problem.
        once: of a second step the solution with one step.

    Returns:
        None where the states leave the domain.

    Raises:
        TimeLimitError: the time limit came before the first rule was done.
    """
    solution: BrokenSolution | None = None
    matrix: np.ndarray | None = None
    for rule in rules or rules_for(symmetric.problem):
        finer = breaking_map_of(symmetric, rule)
        try:
            tolerance = rule.residual_for_accuracy(accuracy)
            found = solve_newton(finer, found.state, found.rates, tolerance, not given, matrix)
            matrix = found.matrix
            reached = build_solution(symmetric, finer, found, given, accuracy, once)
        except DomainError:
            break
        except TimeLimitError:
            if solution is None:
                raise
            return replace(solution, status=Status.TIME_LIMIT)
        if solution is None or reached.relative_error < solution.relative_error or _is_inconsistent(solution, reached):
            solution = reached
        if solution.relative_error <= accuracy:
            break
    return solution


def _is_inconsistent(solution: BrokenSolution, finer: BrokenSolution) -> bool:
    """Return whether the states by a finer rule are outside the error bars, which were small by chance."""
    assert solution.state is not None and finer.state is not None
    return bool(np.any(np.abs(finer.state.pack() - solution.state.pack()) > solution.errors + ROUNDING))
