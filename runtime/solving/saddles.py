"""Leave a saddle along the direction in which it is unstable, to the minimum on either side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.errors import DomainError
from ..base.progress import step
from ..integration import Rule, Sobol
from ..problems.overlaps import Overlaps
from ..problems.symmetry import exchanges
from ..saddle_point.slopes import PATIENT, jacobian_by_rule
from ..saddle_point.state_map import StateMap
from .solution import Solution, agree_within_errors

_COARSE, _NOISE = Sobol(9, 4), 0.2  # a rule that most spectra are judged by, and by how much it may miss an eigenvalue
_AMPLITUDES = (0.3, 0.1, 0.03)  # of the step off a saddle, in block scales, the first that leads to another solution


Reach = Callable[..., Solution]
"""`reach` with the caller's rule and seed: a problem, a start and further options to the solution."""


def unstable_direction(solution: Solution) -> np.ndarray | None:
    """Return the packed direction (n,), at most one in block scales, that grows fastest under damped iteration.

    None where every eigenvalue of dG/du has a real part below 1 (docs/theory.md (8.9)), or the slopes are not known.
    """
    problem, u, sizes = solution.problem, solution.overlaps.pack(), solution.overlaps.sizes
    scales = solution.overlaps.block_scales

    def spectrum(rule: Rule, sample: Rule) -> tuple[np.ndarray, np.ndarray]:
        state_map = StateMap(problem, rule)
        matrix = state_map.across(jacobian_by_rule(problem, rule, u, sizes, sample), u, sizes)
        values, vectors = np.linalg.eig(matrix * scales / scales[:, None])
        return values, vectors

    try:
        with step("whether the solution is a saddle"):
            values, vectors = spectrum(_COARSE, _COARSE)
            if abs(values.real.max() - 1) < _NOISE:
                values, vectors = spectrum(solution.rule, PATIENT)
    except (DomainError, np.linalg.LinAlgError):
        return None
    fastest = int(np.argmax(values.real))
    if not values.real[fastest] > 1:
        return None
    along = vectors[:, fastest].real
    return along / np.max(np.abs(along)) * scales


def descended(reach: Reach, saddle: Solution, **options: Any) -> list[Solution]:
    """Return the solutions that damped iteration from both sides of a saddle leads to, none of what is no saddle.

    Args:
        reach: solves from a start, the rule and the seed filled in; options: further ones of it.
    """
    direction = unstable_direction(saddle)
    if direction is None:
        return []
    problem, u, clusters = saddle.problem, saddle.overlaps.pack(), saddle.problem.clusters
    images = [
        e.of_overlaps(Overlaps.unpack(direction, saddle.overlaps.sizes), clusters).pack() for e in exchanges(problem)
    ]
    mirrored = any(np.allclose(image, -direction, atol=1e-6 * np.abs(direction).max()) for image in images)
    found: list[Solution] = []
    for way in (1.0,) if mirrored else (1.0, -1.0):
        for amplitude in _AMPLITUDES:
            there = Overlaps.unpack(u + way * amplitude * direction, saddle.overlaps.sizes)
            with step(f"down from the {saddle.branch} saddle"):
                solution = reach(problem, there, extrapolate=False, **options)
            if solution.losses is not None and not agree_within_errors(solution, saddle):
                found.append(solution)
                break
    return found
