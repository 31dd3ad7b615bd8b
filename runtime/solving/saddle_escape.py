"""Descent from a saddle along its unstable direction to the minima on both sides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.errors import DomainError
from ..base.options import AlgorithmOptions
from ..base.progress import progress_step
from ..integration import Rule, Sobol
from ..problems.overlaps import Overlaps
from ..problems.symmetry import symmetries_of_problem
from ..saddle_point.difference_jacobian import FINE_NODES, map_jacobian_by_quadrature_rule
from ..saddle_point.state_map import SaddlePointMap
from .solution import Solution, solutions_agree_within_errors

_COARSE = Sobol(11, 4)  # the rule of most spectra


@dataclass(frozen=True)
class SaddleEscapeOptions(AlgorithmOptions):
    """Options of recognising a saddle and of descending from it.

    Attributes:
        eigenvalue_error: distance from 1 below which an eigenvalue is recomputed by a finer quadrature rule.
        amplitudes: lengths of the step off a saddle, relative to the sizes of q, V, m, ..., that are tried in turn.
    """

    eigenvalue_error: float = 0.2
    amplitudes: tuple[float, ...] = (0.3, 0.1, 0.03)


StartSolver = Callable[..., Solution]
"""A function like `solve_without_branch_check` with fixed quadrature rule and seed: problem, start -> solution."""


def unstable_direction(solution: Solution) -> np.ndarray | None:
    """Return the direction, in packed overlaps, that grows fastest under damped iteration; None if none grows.

    None grows if every eigenvalue of dG/du has a real part below 1 (docs/theory.md (8.9)). Also None if the Jacobian is
    unknown.
    """
    problem, u, sizes = solution.problem, solution.overlaps.pack(), solution.overlaps.sizes
    scales = solution.overlaps.block_scales

    def _jacobian_spectrum(rule: Rule, sample: Rule) -> tuple[np.ndarray, np.ndarray]:
        state_map = SaddlePointMap(problem, rule)
        matrix = state_map.project_jacobian_off_symmetry_orbit(
            map_jacobian_by_quadrature_rule(problem, rule, u, sizes, sample), u, sizes
        )
        values, vectors = np.linalg.eig(matrix * scales / scales[:, None])
        return values, vectors

    try:
        with progress_step("whether the solution is a saddle"):
            values, vectors = _jacobian_spectrum(_COARSE, _COARSE)
            if abs(values.real.max() - 1) < SaddleEscapeOptions.current().eigenvalue_error:
                values, vectors = _jacobian_spectrum(solution.rule, FINE_NODES)
    except (DomainError, np.linalg.LinAlgError):
        return None
    fastest = int(np.argmax(values.real))
    if not values.real[fastest] > 1:
        return None
    direction = vectors[:, fastest].real
    return direction / np.max(np.abs(direction)) * scales


def descend_from_saddle(solver: StartSolver, saddle: Solution, **options: Any) -> list[Solution]:
    """Return the solutions to which damped iteration converges from both sides of a saddle.

    Args:
        solver: solves from a start, with the caller's rule and seed.
        saddle: a solution; nothing is returned if it has no unstable direction.
        **options: further options of `solve_without_branch_check`.
    """
    direction = unstable_direction(saddle)
    if direction is None:
        return []
    problem, u, clusters = saddle.problem, saddle.overlaps.pack(), saddle.problem.clusters
    images = [
        e.permute_overlaps(Overlaps.unpack(direction, saddle.overlaps.sizes), clusters).pack()
        for e in symmetries_of_problem(problem)
    ]
    mirrored = any(np.allclose(image, -direction, atol=1e-6 * np.abs(direction).max()) for image in images)
    found: list[Solution] = []
    for sign in (1.0,) if mirrored else (1.0, -1.0):
        for amplitude in SaddleEscapeOptions.current().amplitudes:
            there = Overlaps.unpack(u + sign * amplitude * direction, saddle.overlaps.sizes)
            with progress_step(f"down from the {saddle.branch} saddle"):
                solution = solver(problem, there, extrapolate=False, **options)
            if solution.losses is not None and not solutions_agree_within_errors(solution, saddle):
                found.append(solution)
                break
    return found
