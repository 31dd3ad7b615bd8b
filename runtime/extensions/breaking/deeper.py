"""From one step of breaking to two: states on both sides of its y, then where the energy is greatest in both."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from ...base.errors import DomainError, TimeLimitError
from ...saddle_point.iteration import Status
from .newton import Equations, Reached, settled
from .refinement import map_of, refined, states_near
from .rules import rules_for
from .solution import BrokenSolution
from .state import Broken
from .state_map import BreakingMap

_APART = (1.3, 1.15)  # of one step's y the first two are so much smaller and larger
_SETTLING = 12  # damped steps before Newton's method at the first two
_MOST = 30  # steps in both
_LONGEST = 0.5  # of these, in log y
_SHORTEST = 0.02


def deepened(once: BrokenSolution, accuracy: float = 1e-4) -> BrokenSolution:
    """Two steps of breaking that start from one; that one, and why, where there is no second.

    Raises:
        InputError: a model that is out of its reach.
    """
    if once.state is None or not once.success:
        return once
    breaking_map = map_of(once.symmetric, rules_for(once.problem)[0])
    try:
        begun = _begun(breaking_map, once.state, once.rates[0])
        if begun is None:
            return replace(once, found="no second step found: states that start apart come together")
        found = _highest(breaking_map, begun)
        if isinstance(found, str):
            return replace(once, status=Status.MAX_ITERATIONS, found=found)
        twice = refined(once.symmetric, found, False, accuracy, once=once)
    except TimeLimitError:
        return replace(once, status=Status.TIME_LIMIT, found="the time limit ended the search for a second step")
    if twice is None:
        return replace(once, status=Status.LEFT_DOMAIN, found="the second step left its domain")
    return twice


def _begun(breaking_map: BreakingMap, once: Broken, y: float) -> Reached | None:
    """States of two steps, y of one step between theirs; None where there are none.

    With one y for both steps Delta may be shared out between them at will: with two of them it may not."""
    both = Broken(once.between, np.concatenate([once.distances / 2] * 2))
    for factor in _APART:
        rates = y * np.array([1 / factor, factor])
        with suppress(DomainError, np.linalg.LinAlgError):
            state = settled(breaking_map, both, rates, _SETTLING)
            if found := states_near(breaking_map, state, rates, _tolerance(breaking_map)):
                return found
    return None


def _tolerance(breaking_map: BreakingMap) -> float:
    """Residuals asked on the way: what the second step moves is little."""
    return breaking_map.rule.fine


def _highest(breaking_map: BreakingMap, found: Reached) -> Reached | str:
    """Where the energy -Phi is greatest in both y; else where the states were lost, in words.

    Newton's method in log y, the states at every y solved for: of all unknowns at once it may end where a step has no
    states of its own."""
    tolerance = _tolerance(breaking_map)
    for _ in range(_MOST):
        equations = Equations.around(breaking_map, found.state, found.rates, True)
        z = equations.unknowns(found.state, found.rates)
        gap, answer = equations.values(found.state, found.rates)
        _, units = equations.units(found.state, answer)
        if np.max(np.abs(gap) / units) < tolerance:
            return found
        matrix, n = equations.matrix(z, found.state, found.rates, gap, answer), len(equations.directions)
        own = matrix[:n, :n]
        follows = -np.linalg.solve(own, matrix[:n, n:])  # of the states with log y
        curvature = matrix[n:, n:] + matrix[n:, :n] @ follows
        bend, directions = np.linalg.eigh((curvature + curvature.T) / 2)
        step = -directions @ (directions.T @ gap[n:] / np.abs(bend))
        step *= min(1.0, _LONGEST / float(np.abs(step).max()))
        following = None
        while following is None and np.abs(step).max() > _SHORTEST * tolerance:
            there = equations.state(z + np.append(follows @ step, step), found.state, found.rates)
            following = states_near(breaking_map, *there, tolerance, matrix=own)
            step /= 2
        if following is None:
            break
        found = following
    told = " and ".join(f"{y:.4g}" for y in found.rates)
    return f"states of two steps were lost near y = {told}, before the complexities vanished"
