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
from .error_bars import ROUNDING, finish
from .newton import Reached, newton
from .rules import rules_for
from .solution import BrokenSolution
from .state import Broken
from .state_map import BreakingMap

NEGLIGIBLE = 1e-6  # Delta over q below which there is no breaking


def map_of(symmetric: Solution, rule: TiltedRule) -> BreakingMap:
    """Return the map for states with the symmetry of a replica symmetric solution."""
    return BreakingMap(symmetric.problem, rule, symmetric.symmetry or NO_SYMMETRY)


def is_broken(state: Broken) -> bool:
    """Return whether every Delta can be told from zero."""
    sizes = np.trace(state.distances, axis1=2, axis2=3) / np.trace(state.within.q, axis1=1, axis2=2)
    return bool(sizes.max(axis=1).min() > NEGLIGIBLE)


def states_near(
    breaking_map: BreakingMap, state: Broken, rates: np.ndarray, tolerance: float, accepted: float = 0.0,
    with_y: bool = False, matrix: np.ndarray | None = None,
) -> Reached | None:  # fmt: skip
    """Return the states with broken replica symmetry that Newton's method leads to; None where there are none.

    Args:
        accepted: residual that will do where it is above the tolerance; the rest as of `newton`.
    """
    try:
        found = newton(breaking_map, state, rates, tolerance, with_y, matrix)
    except (DomainError, np.linalg.LinAlgError):
        return None
    return found if found.residual < max(tolerance, accepted) and is_broken(found.state) else None


def unbroken(symmetric: Solution, status: Status, words: str) -> BrokenSolution:
    """Return replica symmetry in place of states with blocks, and why."""
    losses = symmetric.losses
    return BrokenSolution(
        symmetric=symmetric, status=status, residual=symmetric.residual, rule=symmetric.rule,
        within_errors=symmetric.errors, energy=symmetric.training_loss, own_error=symmetric.training_loss_error,
        parts=(losses.data, losses.penalty) if losses else (np.nan, np.nan), observed=symmetric.observed,
        multipliers=symmetric.multipliers, multipliers_error=symmetric.multipliers_error, found=words,
    )  # fmt: skip


def refined(
    symmetric: Solution, found: Reached, given: bool, accuracy: float, rules: Sequence[TiltedRule] = (),
    once: BrokenSolution | None = None,
) -> BrokenSolution | None:  # fmt: skip
    """Return the solution near states, by rules finer and finer until its error bars are what was asked; None where
    they leave the domain.

    Args:
        rules: those of the problem where none are named; once: of a second step the first.

    Raises:
        TimeLimitError: before the first of them was done.
    """
    solution: BrokenSolution | None = None
    matrix: np.ndarray | None = None
    for rule in rules or rules_for(symmetric.problem):
        finer = map_of(symmetric, rule)
        try:
            found = newton(finer, found.state, found.rates, rule.last_residual(accuracy), not given, matrix)
            matrix = found.matrix
            reached = finish(symmetric, finer, found, given, accuracy, once)
        except DomainError:
            break
        except TimeLimitError:
            if solution is None:
                raise
            return replace(solution, status=Status.TIME_LIMIT)
        if solution is None or reached.relative_error < solution.relative_error or _is_refuted(solution, reached):
            solution = reached
        if solution.relative_error <= accuracy:
            break
    return solution


def _is_refuted(solution: BrokenSolution, finer: BrokenSolution) -> bool:
    """Return whether a finer rule has the states where error bars, small by chance, do not reach."""
    assert solution.state is not None and finer.state is not None
    return bool(np.any(np.abs(finer.state.pack() - solution.state.pack()) > solution.errors + ROUNDING))
