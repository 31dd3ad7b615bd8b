"""Solutions beyond those that named starts lead to: Newton's method with the known ones divided out.

F(u) = G(u) - u is multiplied by prod_i (1 / |u - u_i|^2 + 1), which keeps all other zeros and removes the known u_i
(Farrell, Birkisson and Funke, SIAM J. Sci. Comput. 37, A2026, 2015). Saddles are found as readily as minima.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..base.errors import DomainError
from ..base.progress import bar
from ..channel.search import searched
from ..integration.rule import Rule
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.symmetry import NO_SYMMETRY, Symmetry, exchanges, of_state
from ..saddle_point.iteration import FixedPoint, Status
from ..saddle_point.slopes import jacobian, slope_settings
from ..saddle_point.starts import start_overlaps
from ..saddle_point.state_map import StateMap, residual_of
from .error_bars import finish_point
from .solution import Solution
from .solve import reach
from .task import Task

_ITERATIONS = 25
_FOUND = 1e-6  # residual of a deflated zero; Newton's method with its own symmetry goes on from there
_LONGEST = 0.4  # step, in units of the block scales
_SPREAD = 0.5  # of random beginnings around known solutions


def deflated(
    problem: Problem, known: Sequence[Solution], attempts: int, *, accuracy: float = 1e-4, seed: int = 0
) -> list[Solution]:
    """Solutions other than the known ones and their mirror images, from that many beginnings.

    Beginnings are the named starts, then random states around the known solutions.

    Args:
        known: solutions of this problem; the rule of the first integrates. Without any nothing is found.
    """
    if not known:
        return []
    solutions = list(known)
    new: list[Solution] = []
    generator = np.random.default_rng(seed)
    beginnings = [start_overlaps(problem, name).pack() for name in problem.solver.model.STARTS]
    with bar("deflation", attempts) as task:
        for attempt in range(attempts):
            u = beginnings[attempt] if attempt < len(beginnings) else _random(problem, known, generator)
            task.advance(f"deflation, attempt {attempt + 1}: {len(new)} new")
            state = _newton(problem, known[0].rule, u, solutions)
            solution = None if state is None else _settled(problem, known[0].rule, state, accuracy)
            if solution is not None and not any(same_orbit(solution, other) for other in solutions):
                solutions.append(solution)
                new.append(solution)
    return new


def images(solution: Solution) -> list[np.ndarray]:
    """The packed overlaps and their images under the symmetries of the problem."""
    own = solution.overlaps
    clusters = solution.problem.clusters
    return [own.pack(), *(e.of_overlaps(own, clusters).pack() for e in exchanges(solution.problem))]


def same_orbit(one: Solution, other: Solution) -> bool:
    """Whether two solutions agree within their errors up to a symmetry of the problem."""
    scales = one.overlaps.block_scales
    tolerance = 3 * (one.errors + other.errors) + 1e-5 * scales
    u = one.overlaps.pack()
    return any(bool(np.all(np.abs(u - image) <= tolerance)) for image in images(other))


def _random(problem: Problem, known: Sequence[Solution], generator: np.random.Generator) -> np.ndarray:
    base = known[int(generator.integers(len(known)))].overlaps
    u = base.pack() + _SPREAD * base.block_scales * generator.standard_normal(len(base.pack()))
    state = Overlaps.unpack(u, problem.sizes)
    # q and V are to stay positive definite.
    return Overlaps(_positive(state.q), _positive(state.V), state.m, state.theta, state.phi).pack()


def _positive(blocks: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(blocks)
    return np.einsum("cab,cb,ceb->cae", vectors, np.maximum(np.abs(values), 0.05 * np.abs(values).max()), vectors)


def _newton(problem: Problem, rule: Rule, u: np.ndarray, known: Sequence[Solution]) -> FixedPoint | None:
    """A zero of the deflated equations, or None."""
    sizes = problem.sizes
    zeros = np.array([image for solution in known for image in images(solution)])
    for iteration in range(_ITERATIONS):
        try:
            overlaps = Overlaps.unpack(u, sizes)
            coarse, steps, one_sided = slope_settings(problem, rule, overlaps)
            state_map = StateMap(problem, coarse)
            image = state_map(u, sizes)
            residual = residual_of(image, u, sizes)
            matrix = jacobian(state_map, u, sizes, steps, one_sided)
            step = state_map.correction(matrix, u, image - u, sizes)
        except (DomainError, np.linalg.LinAlgError):
            return None
        if not np.isfinite(residual):
            return None
        if residual < _FOUND:
            return FixedPoint(u, sizes, residual, Status.CONVERGED, iteration, matrix)
        scales = overlaps.block_scales
        apart = (u - zeros) / scales
        squares = np.sum(apart**2, axis=1)
        if squares.min() < 1e-12:
            return None
        slope = np.sum((-2 * apart.T / squares**2) / (1 / squares + 1), axis=1) / scales
        step = step / (1 - slope @ step)
        step *= min(1.0, _LONGEST / max(float(np.max(np.abs(step) / scales)), 1e-300))
        u = _inside(problem, u, step)
    return None


def _inside(problem: Problem, u: np.ndarray, step: np.ndarray) -> np.ndarray:
    """The state after a step, which is halved until q and V stay positive definite, eight times at the most."""
    for _ in range(8):
        there = Overlaps.unpack(u + step, problem.sizes)
        least = min(float(np.linalg.eigvalsh(block).min()) for block in (there.q, there.V))
        if least > 0:
            return u + step
        step = step / 2
    return u + step


def _settled(problem: Problem, rule: Rule, point: FixedPoint, accuracy: float) -> Solution | None:
    """The zero as a solution to the accuracy asked for, with the symmetry that it has."""
    scales = point.overlaps.block_scales
    u = np.where(np.abs(point.u) < 1e-6 * scales, 0.0, point.u)
    overlaps = Overlaps.unpack(u, point.sizes)
    problem = searched(problem, overlaps)
    symmetry = Symmetry(None, of_state(problem, overlaps), problem.clusters)
    start = FixedPoint(symmetry.project(u, point.sizes), point.sizes, point.residual, Status.CONVERGED, 0, None)
    task = Task(problem, "deflation", symmetry if symmetry.exchanges else NO_SYMMETRY, accuracy)
    rough = finish_point(task, start, rule)
    if rough.losses is None:
        return None
    settled = reach(problem, rough, accuracy=accuracy)
    return settled if settled.losses is not None else None
