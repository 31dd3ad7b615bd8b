"""Two steps of breaking from one: states with y on both sides of its y, then the maximum of the energy in both y."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from ...base.errors import DomainError, TimeLimitError
from ...base.options import AlgorithmOptions
from ...saddle_point.iteration import Status
from .newton import Equations, NewtonResult, iterate_damped
from .refinement import breaking_map_of, find_states_near, refine_solution
from .rules import rules_for
from .solution import BrokenSolution
from .state import BrokenState
from .state_map import BreakingMap

_APART = (1.3, 1.15)  # factors by which the first two y are smaller and larger than that of one step, in turn


@dataclass(frozen=True)
class SecondStepOptions(AlgorithmOptions):
    """Options of the search for a second step of replica symmetry breaking.

    Attributes:
        damped_steps: damped steps before Newton's method at the first two y.
        max_iterations: Newton steps in both y.
        max_step: largest of these in log y.
        min_step: least step, relative to the tolerance of residuals, before the states count as lost.
    """

    damped_steps: int = 12
    max_iterations: int = 30
    max_step: float = 0.5
    min_step: float = 0.02


def add_second_step(once: BrokenSolution, accuracy: float = 1e-4) -> BrokenSolution:
    """Return the solution with two steps of breaking that starts from one step; that step with the reason if none.

    Args:
        once: the solution with one step.
        accuracy: required error bar of overlaps, relative to their blocks.

    Raises:
        InputError: a model for which it is not implemented.
    """
    if once.state is None or not once.success:
        return once
    breaking_map = breaking_map_of(once.symmetric, rules_for(once.problem)[0])
    try:
        initial = _find_initial_states(breaking_map, once.state, once.rates[0])
        if initial is None:
            return replace(once, found="no second step found: states that start apart come together")
        found = _maximise_energy(breaking_map, initial)
        if isinstance(found, str):
            return replace(once, status=Status.MAX_ITERATIONS, found=found)
        twice = refine_solution(once.symmetric, found, False, accuracy, once=once)
    except TimeLimitError:
        return replace(once, status=Status.TIME_LIMIT, found="the time limit ended the search for a second step")
    if twice is None:
        return replace(once, status=Status.LEFT_DOMAIN, found="the second step left its domain")
    return twice


def _find_initial_states(breaking_map: BreakingMap, once: BrokenState, y: float) -> NewtonResult | None:
    """Return states of two steps with the y of one step between theirs; None where there are none.

    With one y for both steps Delta may be divided between them arbitrarily, with two of them it may not.
    """
    both = BrokenState(once.between, np.concatenate([once.distances / 2] * 2))
    for factor in _APART:
        rates = y * np.array([1 / factor, factor])
        with suppress(DomainError, np.linalg.LinAlgError):
            state = iterate_damped(breaking_map, both, rates, SecondStepOptions.current().damped_steps)
            if found := find_states_near(breaking_map, state, rates, _residual_tolerance(breaking_map)):
                return found
    return None


def _residual_tolerance(breaking_map: BreakingMap) -> float:
    """Return the tolerance of residuals during the search: the change by the second step is small."""
    return breaking_map.rule.final_residual


def _maximise_energy(breaking_map: BreakingMap, found: NewtonResult) -> NewtonResult | str:
    """Return the states at the maximum of the energy -Phi in both y; a message if they were lost.

    Newton's method in log y, with the states solved for at every y: in all unknowns at once it may converge to states
    of one step only.
    """
    tolerance, options = _residual_tolerance(breaking_map), SecondStepOptions.current()
    for _ in range(options.max_iterations):
        equations = Equations.at_state(breaking_map, found.state, found.rates, True)
        z = equations.unknowns_of(found.state, found.rates)
        gap, answer = equations.evaluate(found.state, found.rates)
        _, units = equations.scales(found.state, answer)
        if np.max(np.abs(gap) / units) < tolerance:
            return found
        matrix, n = equations.jacobian(z, found.state, found.rates, gap, answer), len(equations.directions)
        own = matrix[:n, :n]
        follows = -np.linalg.solve(own, matrix[:n, n:])  # of the states with log y
        curvature = matrix[n:, n:] + matrix[n:, :n] @ follows
        bend, directions = np.linalg.eigh((curvature + curvature.T) / 2)
        step = -directions @ (directions.T @ gap[n:] / np.abs(bend))
        step *= min(1.0, options.max_step / float(np.abs(step).max()))
        following = None
        while following is None and np.abs(step).max() > options.min_step * tolerance:
            there = equations.state_of(z + np.append(follows @ step, step), found.state, found.rates)
            following = find_states_near(breaking_map, *there, tolerance, matrix=own)
            step /= 2
        if following is None:
            break
        found = following
    lost_at = " and ".join(f"{y:.4g}" for y in found.rates)
    return f"states of two steps were lost near y = {lost_at}, before the complexities vanished"
