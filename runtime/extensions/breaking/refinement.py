"""Refinement of states with broken replica symmetry near a saddle point, by increasingly fine quadrature rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...base.errors import DomainError, TimeLimitError
from ...integration.tilted_sums import TiltedRule
from ...problems.symmetry import NO_SYMMETRY
from ...saddle_point.iteration import Status
from ...solving.solution import Solution
from .error_bars import ROUNDING, build_broken_solution
from .newton import BreakingNewtonOptions, NewtonResult, solve_states_by_newton
from .rules import quadrature_rules_for_breaking
from .solution import BrokenSolution
from .state import BrokenSymmetryState
from .state_map import BrokenSymmetryMap


def breaking_map_of_solution(symmetric: Solution, rule: TiltedRule) -> BrokenSymmetryMap:
    """Return the saddle-point map with broken replica symmetry, for states with the symmetry of a given solution.

    Args:
        symmetric: the replica symmetric solution.
        rule: quadrature rule for averages over the channel.
    """
    return BrokenSymmetryMap(symmetric.problem, rule, symmetric.symmetry or NO_SYMMETRY)


def is_symmetry_broken(state: BrokenSymmetryState) -> bool:
    """Return whether replica symmetry is broken at every level of a state: no overlap difference Delta is zero."""
    sizes = np.trace(state.distances, axis1=2, axis2=3) / np.trace(state.minimiser_overlaps.q, axis1=1, axis2=2)
    return bool(sizes.max(axis=1).min() > BreakingNewtonOptions.current().min_distance)


def find_broken_states(
    breaking_map: BrokenSymmetryMap, state: BrokenSymmetryState, rates: np.ndarray, tolerance: float,
    accepted: float = 0.0, with_y: bool = False, matrix: np.ndarray | None = None,
) -> NewtonResult | None:  # fmt: skip
    """Return a solution with broken replica symmetry to which Newton's method converges, or None.

    Args:
        breaking_map: the saddle-point map.
        state: initial state.
        rates: Parisi parameter of every level, (levels,).
        tolerance: required residual.
        accepted: residual that is accepted although it is above the tolerance.
        with_y: whether the Parisi parameters are unknowns as well.
        matrix: Jacobian of the same equations nearby; None to compute it.
    """
    try:
        found = solve_states_by_newton(breaking_map, state, rates, tolerance, with_y, matrix)
    except (DomainError, np.linalg.LinAlgError):
        return None
    return found if found.residual < max(tolerance, accepted) and is_symmetry_broken(found.state) else None


def replica_symmetric_result(symmetric: Solution, status: Status, words: str) -> BrokenSolution:
    """Return the result of a search that found no replica symmetry breaking: the replica symmetric solution.

    Args:
        symmetric: the replica symmetric solution.
        status: status of the result.
        words: reason why no replica symmetry breaking was found, in words.
    """
    losses = symmetric.losses
    return BrokenSolution(
        symmetric=symmetric, status=status, residual=symmetric.residual, rule=symmetric.rule,
        within_errors=symmetric.errors, energy=symmetric.training_loss, own_error=symmetric.training_loss_error,
        parts=(losses.data, losses.penalty) if losses else (np.nan, np.nan), observed=symmetric.observed,
        multipliers=symmetric.multipliers, multipliers_error=symmetric.multipliers_error, found=words,
    )  # fmt: skip


def refine_broken_solution(
    symmetric: Solution, found: NewtonResult, given: bool, accuracy: float, rules: Sequence[TiltedRule] = (),
    once: BrokenSolution | None = None,
) -> BrokenSolution | None:  # fmt: skip
    """Return the solution with broken replica symmetry, refined until its error bars are below the accuracy.

    The saddle point is solved again by finer and finer quadrature rules.

    Args:
        symmetric: the replica symmetric solution.
        found: result of Newton's method to start from.
        given: whether the Parisi parameter is fixed by the user.
        accuracy: required error bar of overlaps, relative to their blocks.
        rules: quadrature rules from coarse to fine; by default those of the problem.
        once: solution with one step of breaking, if two steps are solved for.

    Returns:
        The solution, or None where Newton's method leaves the domain of the overlaps.

    Raises:
        TimeLimitError: the time limit is reached before the first quadrature rule has finished.
    """
    solution: BrokenSolution | None = None
    matrix: np.ndarray | None = None
    for rule in rules or quadrature_rules_for_breaking(symmetric.problem):
        finer = breaking_map_of_solution(symmetric, rule)
        try:
            tolerance = rule.residual_for_accuracy(accuracy)
            found = solve_states_by_newton(finer, found.state, found.rates, tolerance, not given, matrix)
            matrix = found.matrix
            reached = build_broken_solution(symmetric, finer, found, given, accuracy, once)
        except DomainError:
            break
        except TimeLimitError:
            if solution is None:
                raise
            return replace(solution, status=Status.TIME_LIMIT)
        if (
            solution is None
            or reached.relative_error < solution.relative_error
            or _is_state_outside_error_bars(solution, reached)
        ):
            solution = reached
        if solution.relative_error <= accuracy:
            break
    return solution


def _is_state_outside_error_bars(solution: BrokenSolution, finer: BrokenSolution) -> bool:
    """Return whether the state by a finer quadrature rule lies outside the error bars of a solution.

    If so, the error bars are too small, by chance: a finer rule should not change the state by more than they say.
    """
    assert solution.state is not None and finer.state is not None
    return bool(np.any(np.abs(finer.state.pack() - solution.state.pack()) > solution.errors + ROUNDING))
