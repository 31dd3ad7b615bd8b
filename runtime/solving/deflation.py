"""Find solutions that no named start leads to, by deflation: Newton's method with the known ones divided out.

F(u) = G(u) - u is multiplied by prod_i (1 / |u - u_i|^2 + 1), which keeps all other zeros and removes the known u_i
(Farrell, Birkisson and Funke, SIAM J. Sci. Comput. 37, A2026, 2015). Saddles are found as readily as minima.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..base.errors import DomainError
from ..base.options import AlgorithmOptions
from ..base.progress import progress_bar
from ..channel.search import choose_proximal_search
from ..integration.rule import Rule
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.symmetry import NO_SYMMETRY, StateSymmetry, symmetries_of_problem, symmetries_of_state
from ..saddle_point.difference_jacobian import map_jacobian_by_differences, quadrature_rule_and_difference_steps
from ..saddle_point.iteration import FixedPoint, Status
from ..saddle_point.starts import named_starts, overlaps_of_start
from ..saddle_point.state_map import SaddlePointMap, relative_residual
from .error_bars import solution_with_error_bars
from .settings import SolveSettings
from .solution import Solution
from .solve import solve_without_branch_check


@dataclass(frozen=True)
class DeflationOptions(AlgorithmOptions):
    """Options of deflated Newton iterations, which converge to solutions other than the known ones.

    Attributes:
        max_iterations: largest number of iterations of one attempt; more find solutions farther away.
        tolerance: residual of a deflated zero, which Newton's method without deflation then refines.
        max_step: longest step, relative to the sizes of q, V, m, ...; shorter steps are safer and take longer.
        start_spread: standard deviation of random starts around known solutions, relative to the sizes of q, V, m, ...
    """

    max_iterations: int = 25
    tolerance: float = 1e-6
    max_step: float = 0.4
    start_spread: float = 0.5


def find_solutions_by_deflation(
    problem: Problem, known: Sequence[Solution], attempts: int, *, accuracy: float = 1e-4, seed: int = 0
) -> list[Solution]:
    """Return new solutions, found by deflation, that are not images of known ones under symmetries.

    Attempts start from the named starts, then from random states around the known solutions.

    Args:
        problem: the problem to solve.
        known: known solutions of the problem; the quadrature rule of the first is used. If empty, nothing is returned.
        attempts: number of starts that are tried.
        accuracy: error bar of the overlaps, relative to the size of their block (q, V, m, ...).
        seed: seed of the random states.
    """
    if not known:
        return []
    all_known = list(known)
    new: list[Solution] = []
    generator = np.random.default_rng(seed)
    starts = [overlaps_of_start(problem, name).pack() for name in named_starts(problem)]
    with progress_bar("deflation", attempts) as task:
        for attempt in range(attempts):
            u = starts[attempt] if attempt < len(starts) else _random_start_near_solution(problem, known, generator)
            task.count_finished_step(f"deflation, attempt {attempt + 1}: {len(new)} new")
            state = _run_deflated_newton(problem, known[0].rule, u, all_known)
            solution = None if state is None else _refine_deflated_zero(problem, known[0].rule, state, accuracy)
            if solution is not None and not any(solutions_agree_up_to_symmetry(solution, other) for other in all_known):
                all_known.append(solution)
                new.append(solution)
    return new


def overlaps_and_symmetry_images(solution: Solution) -> list[np.ndarray]:
    """Return the packed overlaps of a solution and their images under the symmetries of the problem."""
    own = solution.overlaps
    clusters = solution.problem.clusters
    return [own.pack(), *(e.permute_overlaps(own, clusters).pack() for e in symmetries_of_problem(solution.problem))]


def solutions_agree_up_to_symmetry(one: Solution, other: Solution) -> bool:
    """Return whether two solutions agree within their error bars, up to a symmetry of the problem.

    Args:
        one: a solution.
        other: another one to compare with.
    """
    scales = one.overlaps.block_scales
    tolerance = 3 * (one.errors + other.errors) + 1e-5 * scales
    u = one.overlaps.pack()
    return any(bool(np.all(np.abs(u - image) <= tolerance)) for image in overlaps_and_symmetry_images(other))


def _random_start_near_solution(
    problem: Problem, known: Sequence[Solution], generator: np.random.Generator
) -> np.ndarray:
    base, spread = known[int(generator.integers(len(known)))].overlaps, DeflationOptions.current().start_spread
    u = base.pack() + spread * base.block_scales * generator.standard_normal(len(base.pack()))
    state = Overlaps.unpack(u, problem.sizes)
    # q and V are to stay positive definite.
    return Overlaps(
        _make_positive_definite(state.q), _make_positive_definite(state.V), state.m, state.theta, state.phi
    ).pack()


def _make_positive_definite(blocks: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(blocks)
    return np.einsum("cab,cb,ceb->cae", vectors, np.maximum(np.abs(values), 0.05 * np.abs(values).max()), vectors)


def _run_deflated_newton(problem: Problem, rule: Rule, u: np.ndarray, known: Sequence[Solution]) -> FixedPoint | None:
    """Return a zero of the deflated saddle-point equations by Newton's method; None if it fails."""
    options, sizes = DeflationOptions.current(), problem.sizes
    zeros = np.array([image for solution in known for image in overlaps_and_symmetry_images(solution)])
    for iteration in range(options.max_iterations):
        try:
            overlaps = Overlaps.unpack(u, sizes)
            coarse, steps, one_sided = quadrature_rule_and_difference_steps(problem, rule, overlaps)
            state_map = SaddlePointMap(problem, coarse)
            image = state_map(u, sizes)
            residual = relative_residual(image, u, sizes)
            matrix = map_jacobian_by_differences(state_map, u, sizes, steps, one_sided)
            step = state_map.newton_correction(matrix, u, image - u, sizes)
        except (DomainError, np.linalg.LinAlgError):
            return None
        if not np.isfinite(residual):
            return None
        if residual < options.tolerance:
            return FixedPoint(u, sizes, residual, Status.CONVERGED, iteration, matrix)
        scales = overlaps.block_scales
        apart = (u - zeros) / scales
        squares = np.sum(apart**2, axis=1)
        if squares.min() < 1e-12:
            return None
        slope = np.sum((-2 * apart.T / squares**2) / (1 / squares + 1), axis=1) / scales
        step = step / (1 - slope @ step)
        step *= min(1.0, options.max_step / max(float(np.max(np.abs(step) / scales)), 1e-300))
        u = _take_step_within_domain(problem, u, step)
    return None


def _take_step_within_domain(problem: Problem, u: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Return the state after a step, halved at most eight times until q and V are positive definite."""
    for _ in range(8):
        there = Overlaps.unpack(u + step, problem.sizes)
        least = min(float(np.linalg.eigvalsh(block).min()) for block in (there.q, there.V))
        if least > 0:
            return u + step
        step = step / 2
    return u + step


def _refine_deflated_zero(problem: Problem, rule: Rule, point: FixedPoint, accuracy: float) -> Solution | None:
    """Refine a zero found by deflation to the accuracy and return the solution; None if that fails."""
    scales = point.overlaps.block_scales
    u = np.where(np.abs(point.u) < 1e-6 * scales, 0.0, point.u)
    overlaps = Overlaps.unpack(u, point.sizes)
    problem = choose_proximal_search(problem, overlaps)
    symmetry = StateSymmetry(None, symmetries_of_state(problem, overlaps), problem.clusters)
    start = FixedPoint(
        symmetry.project_onto_invariant_states(u, point.sizes), point.sizes, point.residual, Status.CONVERGED, 0, None
    )
    task = SolveSettings(problem, "deflation", symmetry if symmetry.exchanges else NO_SYMMETRY, accuracy)
    rough = solution_with_error_bars(task, start, rule)
    if rough.losses is None:
        return None
    solution = solve_without_branch_check(problem, rough, accuracy=accuracy)
    return solution if solution.losses is not None else None
