"""Starting overlaps of a problem, and damped iteration to the neighbourhood of a solution."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from ..base.errors import DomainError, InputError
from ..base.options import AlgorithmOptions
from ..base.progress import progress_step
from ..integration import Rule, SmoothPiecesRule, Sobol
from ..integration.one_field import PANELS
from ..integration.sampled import WARM_PRODUCTS
from ..problems import gauge
from ..problems.overlaps import Overlaps, packed_overlap_slices
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_fields_of_loss
from ..problems.symmetry import StateSymmetry, symmetries_of_state
from ..saddle_point.difference_jacobian import map_jacobian_by_differences
from ..saddle_point.iteration import DEFAULT_DAMPING, FixedPoint, Status, optimal_damping_weight, run_damped_iteration
from ..saddle_point.pseudo_transient import pseudo_transient_continuation
from ..saddle_point.starts import named_starts, overlaps_of_start, solve_response_at_fixed_overlaps
from ..saddle_point.state_map import SaddlePointMap
from .solution import Solution

APPROACH_RULE = Sobol(log2=10, scramblings=4)
# Tried where a start leaves the domain of definition: factors of its weights and of V, and noise added to the weights,
# relative to them. Columns that are all the same mixture of the teacher, or parts of it alone, have degenerate fields;
# jumps of the proximal map may be large compared with small weights, and V^ negative; where V is large, V^ is small,
# perhaps too small for a zero or negative ridge; where V is small, the one-sample objective has one minimum.
_GUESSES = (
    *((1, 1, 0.1), (1, 1, 1), (2, 1 / 4, 0), (4, 1 / 16, 0), (8, 1 / 64, 0)),
    *((1, 1 / 10, 0), (1, 10, 0), (1, 1e-2, 0), (1, 1e2, 0), (1, 1e-4, 0), (1, 1e4, 0)),
)
# Residual at which slopes are first taken, residual at which Newton's method takes over, and iterations of the second
# stage: for sampled sets, and for lines alone, whose averages are exact. Slopes far from a solution may be misleading.
_STAGE_RESIDUALS = {False: ((0.1, 2e-3, 400),), True: ((1.0, 5e-3, 40), (0.1, 2e-3, 400))}


@dataclass(frozen=True)
class ApproachOptions(AlgorithmOptions):
    """Options of the damped iteration that leads from a start to the neighbourhood of a solution.

    Attributes:
        implicit_tolerance: residual at which implicit Euler steps end; smaller leaves less to Newton's method and takes
            longer.
        newton_threshold: residual below which Newton's method takes over even if damped iteration did not converge;
            larger saves failures, but Newton's method may converge to another branch.
    """

    implicit_tolerance: float = 1e-6
    newton_threshold: float = 0.05


def overlaps_of_any_start(problem: Problem, start: str | Overlaps | Solution) -> Overlaps:
    """Return the overlaps of a start, which may be a name, overlaps or a solution; solve for V if it is missing.

    Args:
        problem: the problem to solve.
        start: name of a start, overlaps, or a solution of a problem with the same sizes.

    Raises:
        InputError: `start` is no start, or its overlaps have other sizes or are not finite.
    """
    if not isinstance(start, str | Overlaps | Solution):
        known = ", ".join(named_starts(problem))
        raise InputError(
            f"a start is the name of one of {problem.solver.name} ({known}), overlaps, as sf.Overlaps.measured(q=0.8, "
            f"theta=0.4), or a solution; not {start!r}"
        )
    if isinstance(start, str):
        return overlaps_of_start(problem, start)
    overlaps = start.overlaps if isinstance(start, Solution) else start
    if overlaps.sizes != problem.sizes:
        raise InputError(
            f"the start has overlaps of sizes {overlaps.sizes}, the problem of sizes {problem.sizes}: numbers of "
            "(token, cluster) pairs, student columns, teacher columns and trained numbers (`sf.trained`)"
        )
    if isinstance(start, Solution):
        return overlaps
    for name in ("q", "m", "theta", "phi"):
        if not np.isfinite(getattr(overlaps, name)).all():
            raise InputError(f"overlaps to start from: {name} contains numbers that are not finite")
    measured = bool(np.isfinite(overlaps.V).all())
    return (
        overlaps
        if measured
        else solve_response_at_fixed_overlaps(problem, overlaps, quadrature_rules_of_damped_iteration(problem, 0)[0])
    )


@progress_step("approaching by damped iteration")
def approach_solution_by_damping(
    problem: Problem, overlaps: Overlaps, seed: int, extrapolate: bool = True, is_guess: bool = True
) -> FixedPoint:
    """Return a point in the neighbourhood of a solution, by damped iteration with a coarse quadrature rule.

    Args:
        problem: the problem to solve.
        overlaps: the overlaps to start from.
        seed: seed of the sampled quadrature rules.
        extrapolate: whether to mix in earlier iterates: faster, but it may converge to saddles.
        is_guess: whether to try multiples of the overlaps if these lie outside the domain of definition.
    """
    symmetry = StateSymmetry(None, symmetries_of_state(problem, overlaps), problem.clusters)
    rough, fine = quadrature_rules_of_damped_iteration(problem, seed)
    coarse, one_field = (
        SaddlePointMap(problem, rough, symmetry),
        reduce_to_fields_of_loss(problem).solver.channel.FIELDS == 1,
    )
    guesses = _GUESSES if is_guess else ()
    iterations_done = 0
    for stage in _STAGE_RESIDUALS[fine == rough]:
        point, weight = _damped_iteration_in_two_stages(coarse, overlaps, guesses, stage, extrapolate)
        iterations_done += point.iterations
        if point.status.success:
            break
    if point.status is Status.MAX_ITERATIONS and one_field:
        # Where V changes much, as with a weak ridge, the residual rises at first, and the weight becomes too small.
        point, weight = _damped_iteration_in_two_stages(coarse, point.overlaps, (), stage, extrapolate)
        iterations_done += point.iterations
    if not is_near_solution(point) and one_field:
        relaxed = pseudo_transient_continuation(
            coarse, replace(point, iterations=0), ApproachOptions.current().implicit_tolerance
        )
        iterations_done += relaxed.iterations
        if relaxed.status.success or relaxed.status is Status.LEFT_DOMAIN or relaxed.outside:
            point = relaxed
    if is_near_solution(point) and fine != rough:
        # A soft branch needs the finer set before Newton may take over.
        state_map = SaddlePointMap(problem, fine, symmetry)
        point = run_damped_iteration(
            state_map, point.overlaps, 3e-4, max_iterations=200, weight=weight, extrapolate=extrapolate
        )
        iterations_done += point.iterations
    canonical = gauge.canonical_orbit_representative(
        problem, point.overlaps, gauge.rotation_symmetry_generators(problem)
    )
    return replace(point, u=canonical.pack(), iterations=iterations_done)


def is_near_solution(point: FixedPoint) -> bool:
    """Return whether a point is close enough to a solution for Newton's method."""
    return point.status.success or point.residual < ApproachOptions.current().newton_threshold


def _damped_iteration_in_two_stages(
    coarse: SaddlePointMap,
    overlaps: Overlaps,
    guesses: Sequence[tuple[float, float, float]],
    stage: tuple[float, float, int],
    extrapolate: bool,
) -> tuple[FixedPoint, float]:
    """Run damped iteration in two stages; return its last state and the damping weight of the second stage.

    The first stage ends at a rough residual; the Jacobian there gives the weight of the second. If the start lies
    outside the domain, `guesses` are tried: factors of weights and V, and noise added to q. `stage` has the residuals
    at which the stages end and the largest number of iterations of the second.
    """
    first_residual, second_residual, max_iterations = stage
    point = first = run_damped_iteration(coarse, overlaps, first_residual)
    for weights, response, noise in guesses:
        if point.status is not Status.LEFT_DOMAIN:
            break
        # Sizes of a start are a guess.
        sizes = {"q": weights**2 * overlaps.q, "m": weights * overlaps.m, "theta": weights * overlaps.theta}
        sizes["q"] = sizes["q"] + noise * np.diagonal(sizes["q"], 0, 1, 2).mean() * np.eye(sizes["q"].shape[1])
        point = run_damped_iteration(coarse, replace(overlaps, **sizes, V=response * overlaps.V), first_residual)
    if point.status is Status.LEFT_DOMAIN:
        point = first
        if guesses and point.outside:
            low, high = (f"{end(response for _, response, _ in guesses):g}" for end in (min, max))
            point = replace(
                point, outside=f"{point.outside} (tried with {low} to {high} times the V of the start, too)"
            )
    weight = DEFAULT_DAMPING
    if not point.status.success:
        return point, weight
    with suppress(DomainError, np.linalg.LinAlgError):
        matrix = map_jacobian_by_differences(coarse, point.u, point.sizes, 1e-2, one_sided=True)
        weight = optimal_damping_weight(
            np.linalg.eigvals(coarse.project_jacobian_off_symmetry_orbit(matrix, point.u, point.sizes))
        )
    second = run_damped_iteration(coarse, point.overlaps, second_residual, max_iterations, weight, extrapolate)
    return replace(second, iterations=point.iterations + second.iterations), weight


def quadrature_rules_of_damped_iteration(problem: Problem, seed: int) -> tuple[Rule, Rule]:
    """Return a coarse and a finer quadrature rule for the damped iteration that precedes Newton's method.

    The rules are symmetric under sign changes, so that overlaps that vanish by symmetry are zero to rounding.

    Args:
        problem: the problem to solve.
        seed: seed of the sampled quadrature rules.
    """
    warm = WARM_PRODUCTS[0]
    if problem.inverse_temperature is not None and warm.is_affordable_at_finite_temperature(problem):
        return replace(warm.coarser_rule(), inner=0.75), warm
    if problem.inverse_temperature is None and SmoothPiecesRule.has_no_teacher_nodes(problem):
        return PANELS[0], PANELS[0]
    return replace(APPROACH_RULE, seed=seed), Sobol(12, 4, seed=seed)


def detect_symmetry_of_state(problem: Problem, point: FixedPoint) -> StateSymmetry:
    """Return the symmetry of a state: permutations of tokens and signs that keep it, and overlaps that vanish.

    Args:
        problem: the problem to solve.
        point: last state of a damped iteration by a sign-symmetric quadrature rule, with zeros exact to rounding.
    """
    scales = point.overlaps.block_scales
    frozen = np.abs(point.u) < 1e-11 * scales
    places = packed_overlap_slices(point.sizes)
    for name in ("q", "V", "phi"):
        frozen[places[name]] = False
    return StateSymmetry(frozen, symmetries_of_state(problem, point.overlaps), problem.clusters)
