"""Two steps of replica symmetry breaking, found from a solution with one step.

The two Parisi parameters begin around the one of the first step, and end at the maximum of the energy.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from ...base.errors import DomainError, TimeLimitError
from ...base.options import AlgorithmOptions
from ...saddle_point.iteration import Status
from .newton import BrokenSymmetryEquations, NewtonResult, iterate_damped_map
from .refinement import breaking_map_of_solution, find_broken_states, refine_broken_solution
from .rules import quadrature_rules_for_breaking
from .solution import BrokenSolution
from .state import BrokenSymmetryState
from .state_map import BrokenSymmetryMap

_APART = (1.3, 1.15)  # factors by which the first two y are smaller and larger than that of one step, in turn


@dataclass(frozen=True)
class SecondStepOptions(AlgorithmOptions):
    """Options of the search for a second step of replica symmetry breaking.

    Attributes:
        damped_steps: damped iterations before Newton's method at the first pair of Parisi parameters y.
        max_iterations: largest number of Newton steps in both y.
        max_step: largest Newton step in log y.
        min_step: smallest Newton step in log y, relative to the residual tolerance, before the solution counts as lost.
    """

    damped_steps: int = 12
    max_iterations: int = 30
    max_step: float = 0.5
    min_step: float = 0.02


def add_second_step(once: BrokenSolution, accuracy: float = 1e-4) -> BrokenSolution:
    """Return a solution with two steps of replica symmetry breaking, found from one with one step.

    Args:
        once: the solution with one step.
        accuracy: required error bar of overlaps, relative to their blocks.

    Returns:
        The solution with two steps; if none is found, the one with one step and the reason.

    Raises:
        InputError: two steps are not implemented for the model.
    """
    if once.state is None or not once.success:
        return once
    breaking_map = breaking_map_of_solution(once.symmetric, quadrature_rules_for_breaking(once.problem)[0])
    try:
        initial = _find_initial_two_step_states(breaking_map, once.state, once.rates[0])
        if initial is None:
            return replace(once, found="no second step found: states that start at two distances converge to one")
        found = _maximise_energy_in_parisi_parameters(breaking_map, initial)
        if isinstance(found, str):
            return replace(once, status=Status.MAX_ITERATIONS, found=found)
        twice = refine_broken_solution(once.symmetric, found, False, accuracy, once=once)
    except TimeLimitError:
        return replace(once, status=Status.TIME_LIMIT, found="the time limit ended the search for a second step")
    if twice is None:
        return replace(once, status=Status.LEFT_DOMAIN, found="the second step left the domain of the equations")
    return twice


def _find_initial_two_step_states(
    breaking_map: BrokenSymmetryMap, once: BrokenSymmetryState, y: float
) -> NewtonResult | None:
    """Return a first solution with two steps of breaking, started from the solution with one step; None without one.

    Its two Parisi parameters are below and above that of the one step: if both were equal, any division of the overlap
    difference Delta between the steps would solve the equations.
    """
    both = BrokenSymmetryState(once.between, np.concatenate([once.distances / 2] * 2))
    for factor in _APART:
        rates = y * np.array([1 / factor, factor])
        with suppress(DomainError, np.linalg.LinAlgError):
            state = iterate_damped_map(breaking_map, both, rates, SecondStepOptions.current().damped_steps)
            if found := find_broken_states(breaking_map, state, rates, _search_residual_tolerance(breaking_map)):
                return found
    return None


def _search_residual_tolerance(breaking_map: BrokenSymmetryMap) -> float:
    """Return the residual tolerance of the search for a second step, which is small, as this step changes little."""
    return breaking_map.rule.final_residual


def _maximise_energy_in_parisi_parameters(breaking_map: BrokenSymmetryMap, found: NewtonResult) -> NewtonResult | str:
    """Return the solution with two steps at the maximum of the energy in both Parisi parameters y.

    Newton's method runs in log y, and the state is solved for at every y: solving for all unknowns at once may converge
    to a solution with one step. If the solution is lost a message is returned.
    """
    tolerance, options = _search_residual_tolerance(breaking_map), SecondStepOptions.current()
    for _ in range(options.max_iterations):
        equations = BrokenSymmetryEquations.fix_quadrature_grids(breaking_map, found.state, found.rates, True)
        z = equations.unknowns_from_state(found.state, found.rates)
        gap, answer = equations.evaluate_residuals(found.state, found.rates)
        _, units = equations.unknown_and_equation_scales(found.state, answer)
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
            there = equations.state_from_unknowns(z + np.append(follows @ step, step), found.state, found.rates)
            following = find_broken_states(breaking_map, *there, tolerance, matrix=own)
            step /= 2
        if following is None:
            break
        found = following
    lost_at = " and ".join(f"{y:.4g}" for y in found.rates)
    return f"states with two steps of breaking were lost near y = {lost_at}, before the energy was at its maximum"
