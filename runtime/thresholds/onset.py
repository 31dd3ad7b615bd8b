"""Continuous transitions: overlaps that vanish on a branch by symmetry begin to grow.

On such a branch the map is odd in these overlaps and even in the others, so that its Jacobian has a block of their own
(docs/theory.md (9.3)). Where an eigenvalue of the block passes 1 the branch loses its stability, and one on which these
overlaps do not vanish begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import stdtrit

from ..base.errors import DomainError, InputError, NotConvergedError
from ..base.progress import bar
from ..branches.branch import Branch
from ..integration import Rule, Sobol
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point.state_map import StateMap
from ..solving.solution import Solution
from ..solving.solve import solve
from .threshold import Threshold

# Relative to the scale of the block: the slope of a sampled map, which jumps where a node swaps, asks for wide steps.
STEPS = (0.1, 0.05)
LOG2_POINTS = 12


def growth(problem: Problem, overlaps: Overlaps, rule: Rule, toward: str, step: float) -> float:
    """Return the largest real part of the eigenvalues of dG_toward / dtoward at overlaps where this block vanishes.

    Args:
        toward: "theta" or "m".
        step: of the differences from zero, relative to the scale of the block. G is odd: one side says it all.

    Raises:
        DomainError: the step leaves the domain.
    """
    state_map = StateMap(problem, rule)
    block = getattr(overlaps, toward)
    q = np.sqrt(np.diagonal(overlaps.q, axis1=1, axis2=2).max())
    size = step * q * (np.sqrt(np.abs(problem.law.rho_star).max()) if toward == "theta" else 1.0)
    columns = []
    for index in np.ndindex(block.shape):
        moved = np.zeros_like(block)
        moved[index] = size
        there = replace(overlaps, **{toward: moved})
        moments = state_map.averages(there).means
        image = Overlaps.unpack(state_map.image(there, moments), there.sizes)
        columns.append(getattr(image, toward).ravel() / size)
    return float(np.linalg.eigvals(np.stack(columns, axis=1)).real.max())


def onset(
    branch: Branch,
    toward: str = "theta",
    *,
    near: float,
    width: float,
    accuracy: float,
    sets: int = 8,
    start: Overlaps | None = None,
) -> Threshold:
    """Locate the value of a branch's parameter at which overlaps that vanish on it begin to grow.

    Every one of several independent sets of nodes gives its own solutions, eigenvalues and threshold; the error bar is
    that of their mean (95 %, Student's t), plus what halving the step of the differences changes.

    Args:
        branch: on it the block must vanish exactly.
        near: where to begin; the eigenvalue must grow with the parameter.
        width: of the interval over which the eigenvalue is taken to be a straight line, at the end.
        sets: number of independent sets of nodes, at least two.
        start: overlaps of the branch near there; default, the branch's named start.

    Raises:
        InputError: the overlaps do not vanish on the branch.
        NotConvergedError: the branch, or the passage through 1, was not found.
    """
    parameter = branch.parameter
    last: dict[int, Solution] = {}

    def eigenvalues(value: float, number: int) -> list[float]:
        """One a step, at the solution for this set of nodes."""
        at = branch.problem.with_(**{parameter: value})
        begin = last.get(number) or last.get(0) or start or branch.name
        solution = solve(at, begin, accuracy=0.1, integrator="sobol", points=LOG2_POINTS, seed=branch.seed + 1 + number)
        if solution.losses is None or solution.branch != (branch.reached or solution.branch):
            raise NotConvergedError(f"the {branch.name} branch was lost at {parameter} = {value:.4g}")
        if np.any(getattr(solution.overlaps, toward)):
            raise InputError(f"{toward} does not vanish on the {branch.name} branch at {parameter} = {value:.4g}")
        last[number] = solution
        try:
            return [growth(at, solution.overlaps, solution.rule, toward, step) for step in STEPS]
        except DomainError as error:
            raise NotConvergedError(f"{parameter} = {value:.4g}: {error}") from error

    with bar(f"onset of {toward}", 2 * sets + 4) as task:
        centre, slope = _approach(lambda value: eigenvalues(value, 0)[-1], near, width, task.advance)
        ends = np.array([centre - width / 2, centre + width / 2])
        onsets = []
        for number in range(sets):
            pair = []
            for value in ends:
                pair.append(eigenvalues(float(value), number))
                task.advance()
            below, above = np.array(pair)
            onsets.append(ends[0] + (1 - below) * width / (above - below))
    values = np.array(onsets)
    mean = values.mean(axis=0)
    spread = float(stdtrit(sets - 1, 0.975) * values[:, -1].std(ddof=1) / np.sqrt(sets))
    stepping = float(abs(mean[0] - mean[-1]))
    error = spread + stepping
    evidence: dict[str, Any] = {
        "slope": slope,
        "half_width_integration": spread,
        "half_width_step": stepping,
        "bracket": ends.tolist(),
        "values": values.tolist(),
        "steps": list(STEPS),
        "integrators": [Sobol(LOG2_POINTS).describe()],
    }
    # A straight line outside the interval is none.
    inside = bool(np.all(np.abs(mean - centre) <= width))
    return Threshold(
        kind=f"onset of {toward}",
        parameter=parameter,
        value=float(mean[-1]),
        error=error,
        error_kind="estimated",
        status="converged" if inside and error <= accuracy else "accuracy_not_reached",
        branches=(branch.name,),
        problem=branch.problem,
        solutions=(last[sets - 1],),
        evidence=evidence,
    )


def _approach(
    eigenvalue: Callable[[float], float], near: float, width: float, tick: Callable[[], None], lowest: float = 0.05
) -> tuple[float, float]:
    """Return the passage through 1, by secant steps until it is within a third of the width, and the slope."""
    one, value = near, eigenvalue(near)
    tick()
    other = max(lowest, near + (2 * width if value < 1 else -2 * width))
    for _ in range(8):
        following = eigenvalue(other)
        tick()
        slope = (following - value) / (other - one)
        if not slope > 0:
            raise NotConvergedError(f"the eigenvalue does not grow between {one:.4g} and {other:.4g}")
        root = other + (1 - following) / slope
        if abs(root - other) < width / 3:
            return root, slope
        one, value = other, following
        other = float(np.clip(root, max(lowest, one - 8 * width), one + 8 * width))
        if other == one:
            break
    raise NotConvergedError(f"no eigenvalue 1 was found; at {one:.4g} it is {value:.4g}")
