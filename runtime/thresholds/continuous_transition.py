"""Continuous transitions: instability thresholds of overlaps that vanish on a branch by symmetry.

On such a branch the map is odd in these overlaps and even in the others, so that its Jacobian has a block of their own
(docs/theory.md (9.3)). Where an eigenvalue of the block passes 1 the branch loses its stability, and a branch with
nonzero overlaps begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import stdtrit

from ..base.errors import DomainError, InputError, NotConvergedError
from ..base.options import AlgorithmOptions
from ..base.progress import progress_bar
from ..branches.branch import Branch
from ..integration import Rule, Sobol
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point.state_map import SaddlePointMap
from ..solving.solution import Solution
from ..solving.solve import solve
from .threshold import Threshold


@dataclass(frozen=True)
class ContinuousTransitionOptions(AlgorithmOptions):
    """Options of locating a continuous transition, at which an eigenvalue of the Jacobian passes 1.

    Attributes:
        steps: two difference steps relative to the scale of the overlap, the second half of the first; they are large,
            since the map by a sampled quadrature rule is not smooth.
        log2_points: log2 of the number of nodes in each independent set; more have less noise and take longer.
    """

    steps: tuple[float, float] = (0.1, 0.05)
    log2_points: int = 14


def largest_eigenvalue_toward_overlap(
    problem: Problem, overlaps: Overlaps, rule: Rule, toward: str, step: float
) -> float:
    """Return the largest real part of the eigenvalues of the Jacobian dG/du toward overlaps that vanish.

    Args:
        problem: the problem.
        overlaps: overlaps of a state at which theta or m vanishes.
        rule: quadrature rule of the channel averages.
        toward: name of the vanishing overlap, "theta" or "m".
        step: step of one-sided differences, relative to the scale of that overlap.

    Raises:
        DomainError: the difference step leaves the domain of definition.
    """
    state_map = SaddlePointMap(problem, rule)
    block = getattr(overlaps, toward)
    q = np.sqrt(np.diagonal(overlaps.q, axis1=1, axis2=2).max())
    size = step * q * (np.sqrt(np.abs(problem.law.rho_star).max()) if toward == "theta" else 1.0)
    columns = []
    for index in np.ndindex(block.shape):
        moved = np.zeros_like(block)
        moved[index] = size
        there = replace(overlaps, **{toward: moved})
        moments = state_map.channel_averages(there).means
        image = Overlaps.unpack(state_map.image_from_channel_averages(there, moments), there.sizes)
        columns.append(getattr(image, toward).ravel() / size)
    return float(np.linalg.eigvals(np.stack(columns, axis=1)).real.max())


def continuous_transition(
    branch: Branch,
    toward: str = "theta",
    *,
    near: float,
    width: float,
    accuracy: float,
    sets: int = 8,
    start: Overlaps | None = None,
) -> Threshold:
    """Locate where a branch becomes unstable toward an overlap that vanishes on it.

    Several independent sets of quadrature nodes give a threshold each. The error bar is that of their mean (95 %,
    Student's t) plus the change when the difference step is halved.

    Args:
        branch: branch on which the overlap vanishes exactly.
        toward: name of the overlap, "theta" or "m".
        near: parameter value to start from; the largest eigenvalue must grow with the parameter.
        width: width of the interval over which the eigenvalue is finally interpolated linearly.
        accuracy: requested error bar of the threshold.
        sets: number of independent sets of quadrature nodes, at least two.
        start: overlaps of the branch at about that value; default: the named start of the branch.

    Raises:
        InputError: the overlap does not vanish on the branch.
        NotConvergedError: the branch, or an eigenvalue 1, was not found.
    """
    options, parameter = ContinuousTransitionOptions.current(), branch.parameter
    points = options.log2_points
    last: dict[int, Solution] = {}

    def _largest_eigenvalues_by_difference_step(value: float, number: int) -> list[float]:
        """Return the largest Jacobian eigenvalue for each difference step, by one set of quadrature nodes."""
        at = branch.problem.with_(**{parameter: value})
        begin = last.get(number) or last.get(0) or start or branch.name
        solution = solve(at, begin, accuracy=0.1, integrator="sobol", points=points, seed=branch.seed + 1 + number)
        if solution.losses is None or solution.branch != (branch.reached or solution.branch):
            raise NotConvergedError(f"the {branch.name} branch was lost at {parameter} = {value:.4g}")
        if np.any(getattr(solution.overlaps, toward)):
            raise InputError(f"{toward} does not vanish on the {branch.name} branch at {parameter} = {value:.4g}")
        last[number] = solution
        try:
            return [
                largest_eigenvalue_toward_overlap(at, solution.overlaps, solution.rule, toward, step)
                for step in options.steps
            ]
        except DomainError as error:
            raise NotConvergedError(f"{parameter} = {value:.4g}: {error}") from error

    with progress_bar(f"continuous transition of {toward}", 2 * sets + 4) as task:
        centre, slope = _find_parameter_of_unit_eigenvalue(
            lambda value: _largest_eigenvalues_by_difference_step(value, 0)[-1], near, width, task.count_finished_step
        )
        ends = np.array([centre - width / 2, centre + width / 2])
        thresholds = []
        for number in range(sets):
            pair = []
            for value in ends:
                pair.append(_largest_eigenvalues_by_difference_step(float(value), number))
                task.count_finished_step()
            below, above = np.array(pair)
            thresholds.append(ends[0] + (1 - below) * width / (above - below))
    values = np.array(thresholds)
    mean = values.mean(axis=0)
    sampling_error = float(stdtrit(sets - 1, 0.975) * values[:, -1].std(ddof=1) / np.sqrt(sets))
    step_error = float(abs(mean[0] - mean[-1]))
    error = sampling_error + step_error
    evidence: dict[str, Any] = {
        "slope": slope,
        "error_integration": sampling_error,
        "error_step": step_error,
        "bracket": ends.tolist(),
        "values": values.tolist(),
        "steps": list(options.steps),
        "integrators": [Sobol(points).rule_description()],
    }
    # The linear interpolation holds within the interval only.
    inside = bool(np.all(np.abs(mean - centre) <= width))
    return Threshold(
        kind=f"continuous transition of {toward}",
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


def _find_parameter_of_unit_eigenvalue(
    eigenvalue: Callable[[float], float], near: float, width: float, tick: Callable[[], None], lowest: float = 0.05
) -> tuple[float, float]:
    """Return the parameter value at which the given eigenvalue is 1, by secant steps, and its derivative there."""
    previous, value = near, eigenvalue(near)
    tick()
    current = max(lowest, near + (2 * width if value < 1 else -2 * width))
    for _ in range(8):
        upcoming = eigenvalue(current)
        tick()
        slope = (upcoming - value) / (current - previous)
        if not slope > 0:
            raise NotConvergedError(
                f"the Jacobian's largest eigenvalue does not grow from {previous:.4g} to {current:.4g}; start elsewhere"
            )
        root = current + (1 - upcoming) / slope
        if abs(root - current) < width / 3:
            return root, slope
        previous, value = current, upcoming
        current = float(np.clip(root, max(lowest, previous - 8 * width), previous + 8 * width))
        if current == previous:
            break
    raise NotConvergedError(
        f"no parameter with largest eigenvalue 1 of the Jacobian was found; at {previous:.4g} it is {value:.4g}"
    )
