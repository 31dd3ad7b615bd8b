"""One step of breaking from a replica symmetric solution: states at large y, continued to the y with dPhi/dy = 0."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

import numpy as np

from ...base import budget
from ...base.errors import DomainError, InputError, TimeLimitError, require_in_interval, require_whole_number
from ...base.options import AlgorithmOptions
from ...base.progress import progress_step
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem, require_problem
from ...problems.reduced import reduce_to_fields_of_loss
from ...saddle_point.domain import conditional_covariance
from ...saddle_point.iteration import Status
from ...solving.solution import Solution
from ...solving.solve import solve as solve_symmetric
from .newton import BreakingNewtonOptions, NewtonResult, iterate_damped_map, solve_states_by_newton
from .refinement import (
    breaking_map_of_solution,
    find_broken_states,
    refine_broken_solution,
    replica_symmetric_result,
)
from .rules import quadrature_rules_for_breaking
from .second_step import add_second_step
from .solution import BrokenSolution
from .state import BrokenSymmetryState
from .state_map import BrokenSymmetryMap, require_breaking_supported
from .zero_complexity import find_zero_complexity_by_samples


@dataclass(frozen=True)
class BreakingOptions(AlgorithmOptions):
    """Options of the search for states with one step of replica symmetry breaking.

    Attributes:
        rate_factor: ratio of successive Parisi parameters y; smaller steps are safer, and more of them are needed.
        attempts_below: number of initial values of y, from the first one downwards, at which states are searched for.
        attempts_above: number of initial values of y above the first one.
        max_rate_steps: largest number of steps in y up to the sign change of dPhi/dy.
        damped_steps: damped steps before Newton's method at the first y.
        distance_fraction: fraction of V = V~ that y Delta takes in the initial state.
        min_step_fraction: shortest step in log y relative to the first one, used where states change fast.
        step_growth: ratio of a step to the previous one if that converged to the expected states.
        residual_floor: residual that is accepted during the continuation, where kinks of a coarse grid limit it.
        max_deviation: distance from the extrapolated state, relative to its blocks, above which a state is rejected.
        symmetric_accuracy: accuracy of the replica symmetric solution to which sampled energies are compared: its
            square enters.
    """

    rate_factor: float = 2.0
    attempts_below: int = 8
    attempts_above: int = 2
    max_rate_steps: int = 24
    damped_steps: int = 12
    distance_fraction: float = 0.8
    min_step_fraction: float = 0.05
    step_growth: float = 1.5
    residual_floor: float = 5e-3
    max_deviation: float = 0.25
    symmetric_accuracy: float = 3e-3


class SolveArguments(TypedDict, total=False):
    """Keyword arguments of `solve` that apply to any number of steps of breaking."""

    parisi: float | None
    accuracy: float
    integrator: str
    points: int | None
    seed: int
    effort: int
    time_limit: float | None


if TYPE_CHECKING:
    from ..simulation.simulation import Simulation

    Start = str | Overlaps | Solution | Simulation


@overload
def solve(
    problem: Problem, start: Start = ..., *, rsb: Literal[0] = ..., **options: Unpack[SolveArguments]
) -> Solution: ...
@overload
def solve(
    problem: Problem, start: Start = ..., *, rsb: Literal[1, 2], **options: Unpack[SolveArguments]
) -> BrokenSolution: ...
@overload
def solve(
    problem: Problem, start: Start = ..., *, rsb: int, **options: Unpack[SolveArguments]
) -> Solution | BrokenSolution: ...


def solve(
    problem: Problem,
    start: Start | None = None,
    *,
    rsb: int = 0,
    parisi: float | None = None,
    accuracy: float = 1e-4,
    integrator: str = "auto",
    points: int | None = None,
    seed: int = 0,
    effort: int = 100,
    time_limit: float | None = None,
) -> Solution | BrokenSolution:
    """Solve the saddle point from a start, replica symmetric or with one or two steps of breaking.

    Args:
        problem: the problem.
        start: a named start of the model (default: informed; semantic with several tokens); overlaps, whose V is
            computed from the others where it is not a number (`Overlaps.measured`); a `Simulation`, from the mean of
            its runs; or a solution of a problem nearby (tried first without damped iterations).
        rsb: 0 for replica symmetry, 1 or 2 for steps of breaking it at zero temperature (docs/theory.md section 18), of
            a loss of one student field, or of several without kinks (two steps: no more than two fields), and a ridge,
            given norms or any penalty of one column, or, with one step, of two.
        parisi: the Parisi parameter y, with rsb = 1; by default the one at which the complexity vanishes.
        accuracy: required error bar of every overlap, relative to the size of its block.
        integrator: `auto` or a name in `integration.FAMILIES`; with breaking, of the replica symmetric solution.
        points: size of the quadrature rule, as for `rule_by_name`.
        seed: seed of the random shifts of sampled quadrature rules.
        effort: number of rule sizes that are tried before the accuracy is reported as not reached.
        time_limit: seconds after which the best solution so far is returned with status TIME_LIMIT; None for no limit.

    Returns:
        A Solution; with breaking a BrokenSolution, of fewer steps where no more are found. Check `status`: a failure to
        converge is a status, not an exception.

    Raises:
        InputError: an unknown start or integrator, an accuracy or y that is not positive, or with breaking a model
            for which it is not implemented.

    Example:
        >>> solution = sf.solve(sf.problem("ridge_regression", alpha=2), accuracy=1e-8)
        >>> solution.success
        True
    """
    require_problem(problem)
    options: dict[str, Any] = {"accuracy": accuracy, "integrator": integrator, "points": points, "seed": seed,
                               "effort": effort}  # fmt: skip
    if rsb != 1 and parisi is not None:
        raise InputError("parisi is the Parisi parameter of one step of replica symmetry breaking; give it with rsb=1")
    if rsb == 0:
        return solve_symmetric(problem, start, time_limit=time_limit, **options)
    check_number_of_breaking_steps(rsb, problem)
    if parisi is not None:
        require_in_interval("parisi", parisi, "(0, inf)")
    with budget.time_limit(time_limit):
        return break_replica_symmetry(solve_symmetric(problem, start, **options), parisi, accuracy, rsb)


def check_number_of_breaking_steps(rsb: int, problem: Problem, most: int = 2, along: bool = False) -> None:
    """Raise InputError if a number of steps of replica symmetry breaking is not implemented for a problem.

    Args:
        rsb: number of steps.
        problem: the problem.
        most: largest number of steps that is allowed.
        along: whether a branch along a parameter is required.

    Raises:
        InputError: the number of steps is not implemented; the message says why.
    """
    require_whole_number("rsb", rsb, 0, most)
    require_breaking_supported(problem)
    if rsb > 1 and not problem.regulariser.is_quadratic and problem.student_rank > 1:
        raise InputError(
            "two steps of replica symmetry breaking are implemented for ridges and fixed norms, and for other "
            f"penalties of one column; {problem.solver.name} has {problem.student_rank} columns"
        )
    if (rsb > 1 or along) and quadrature_rules_for_breaking(problem)[0].replicated:
        # Samples do not resolve the Parisi parameter of the greatest energy.
        feature = "branches and crossings with replica symmetry breaking" if along else "two steps of breaking"
        raise InputError(
            f"{feature} are implemented only for losses of one or two student fields; the loss of "
            f"{problem.solver.name} depends on {reduce_to_fields_of_loss(problem).solver.channel.FIELDS} fields"
        )


@progress_step("replica symmetry breaking")
def break_replica_symmetry(
    symmetric: Solution, parisi: float | None = None, accuracy: float = 1e-4, steps: int = 1
) -> BrokenSolution:
    """Return the solution with broken replica symmetry that is found from a replica symmetric solution.

    Args:
        symmetric: the replica symmetric solution.
        parisi: Parisi parameter of one step of breaking; None for the one at which the complexity is zero.
        accuracy: required error bar of overlaps, relative to their blocks.
        steps: number of steps of breaking, 1 or 2.

    Raises:
        InputError: breaking is not implemented for the model.
    """
    require_breaking_supported(symmetric.problem)
    if symmetric.losses is None:
        return replica_symmetric_result(symmetric, symmetric.status, "the replica symmetric solution did not converge")
    try:
        once = _solve_one_step_breaking(symmetric, parisi, accuracy)
    except TimeLimitError:
        return replica_symmetric_result(
            symmetric, Status.TIME_LIMIT, "the time limit ended the search: this solution is replica symmetric"
        )
    return once if steps == 1 else add_second_step(once, accuracy)


def _solve_one_step_breaking(symmetric: Solution, parisi: float | None, accuracy: float) -> BrokenSolution:
    """Return the solution with one step of breaking from a converged replica symmetric solution."""
    rules = quadrature_rules_for_breaking(symmetric.problem)
    coarse = breaking_map_of_solution(symmetric, rules[0])
    initial = _find_initial_one_step_states(coarse, symmetric)
    if initial is None:
        words = "no breaking found: states that start at a distance become replica symmetric at every y that was tried"
        return replica_symmetric_result(symmetric, symmetric.status, words)
    if coarse.rule.replicated:
        symmetric = _refine_replica_symmetric(symmetric, accuracy)
    left = replica_symmetric_result(
        symmetric, Status.LEFT_DOMAIN, "one step of breaking left the domain of the equations"
    )
    if parisi is None and coarse.rule.replicated:
        return find_zero_complexity_by_samples(symmetric, initial, rules, accuracy) or left
    if parisi is None:
        found = _find_zero_of_complexity(coarse, initial)
    else:
        found = _continue_to_parisi_parameter(coarse, initial, parisi)
    if isinstance(found, str):
        return replica_symmetric_result(symmetric, Status.MAX_ITERATIONS, found)
    return refine_broken_solution(symmetric, found, parisi is not None, accuracy) or left


def _refine_replica_symmetric(symmetric: Solution, accuracy: float) -> Solution:
    """Return the replica symmetric solution, with a loss accurate enough to compare energies of breaking with it."""
    finer = BreakingOptions.current().symmetric_accuracy
    if symmetric.relative_error <= finer:
        return symmetric
    found = solve_symmetric(symmetric.problem, symmetric, accuracy=finer)
    if found.losses is None or found.branch != symmetric.branch or found.relative_error >= symmetric.relative_error:
        return symmetric
    reached = found.status is Status.ACCURACY_NOT_REACHED and found.relative_error <= accuracy
    return replace(found, start=symmetric.start, status=Status.CONVERGED if reached else found.status)


def solve_from_neighbour(
    symmetric: Solution, state: BrokenSymmetryState, rates: tuple[float, ...], accuracy: float = 1e-4
) -> BrokenSolution | None:
    """Return the solution with broken replica symmetry close to the one of a neighbouring problem, or None.

    Args:
        symmetric: replica symmetric solution of the problem itself, with which the result is compared.
        state: state with broken replica symmetry of the neighbouring problem.
        rates: Parisi parameters of this state.
        accuracy: required error bar of overlaps, relative to their blocks.

    Raises:
        TimeLimitError: the time limit ended the search before any solution was found.
    """
    rule = quadrature_rules_for_breaking(symmetric.problem)[0]
    breaking_map = breaking_map_of_solution(symmetric, rule)
    found = find_broken_states(breaking_map, state, np.array(rates), rule.search_residual, with_y=True)
    if found is None:
        return None
    deviations = np.abs(found.state.pack() - state.pack()) / found.state.block_scales
    if np.max(deviations) > BreakingOptions.current().max_deviation:
        return None
    return refine_broken_solution(symmetric, found, False, accuracy)


def _find_initial_one_step_states(breaking_map: BrokenSymmetryMap, symmetric: Solution) -> NewtonResult | None:
    """Return a first solution with one step of breaking, at a large Parisi parameter y if there is one; else None.

    At large y the states are close to each other and continue the replica symmetric solution. At small y solutions even
    in W split into W and -W, with zero overlap between them (docs/theory.md section 18).
    """
    options = BreakingOptions.current()
    left = conditional_covariance(symmetric.problem, symmetric.overlaps)
    V, D = (float(np.trace(block, axis1=1, axis2=2).max()) for block in (symmetric.overlaps.V, left))
    first = breaking_map.rule.first_rate * V / D
    rough = breaking_map.rule.search_residual
    for k in (*range(options.attempts_below), *range(-1, -options.attempts_above - 1, -1)):
        y = first / options.rate_factor**k
        state, rates = _initial_broken_states(symmetric, y), np.array([y])
        with suppress(DomainError, np.linalg.LinAlgError):
            earlier = iterate_damped_map(breaking_map, state, rates, options.damped_steps // 2)
            state = iterate_damped_map(breaking_map, earlier, rates, options.damped_steps // 2)
            if _is_converging_to_symmetry(breaking_map, earlier, state, rates):
                continue
            if found := find_broken_states(breaking_map, state, rates, rough, options.residual_floor):
                return found
    return None


def _initial_broken_states(symmetric: Solution, y: float) -> BrokenSymmetryState:
    """Return an initial state with one step of breaking, whose overlap difference Delta is a fraction of V / y.

    Delta is at most half of q - theta rho*^(-1) theta^T, the part of q that is not due to the teacher.
    """
    overlaps = symmetric.overlaps
    distance = BreakingOptions.current().distance_fraction / y * overlaps.V
    pairs = zip(conditional_covariance(symmetric.problem, overlaps), distance, strict=True)
    share = float(max(np.linalg.eigvals(np.linalg.solve(room, d)).real.max() for room, d in pairs))
    distance = distance * min(1.0, 0.5 / share)
    return BrokenSymmetryState(replace(overlaps, q=overlaps.q - distance, V=overlaps.V - y * distance), distance[None])


def _is_converging_to_symmetry(
    breaking_map: BrokenSymmetryMap, earlier: BrokenSymmetryState, state: BrokenSymmetryState, rates: np.ndarray
) -> bool:
    """Return whether the overlap difference Delta converges to zero, so that the state becomes replica symmetric.

    The saddle-point map takes a small Delta to a Delta + b sqrt(Delta). Two iterates give a and b, and these the limit.
    """
    sizes, factors = [], []
    for at in (earlier, state):
        both = at, breaking_map(at, rates).image
        now, image = (float(np.trace(one.overlap_difference, axis1=1, axis2=2).max()) for one in both)
        sizes.append(now)
        factors.append(image / now)
    if not (sizes[1] < sizes[0] and factors[1] < 1):
        return False
    b = max(0.0, (factors[1] - factors[0]) / (sizes[1] ** -0.5 - sizes[0] ** -0.5))
    a = factors[1] - b * sizes[1] ** -0.5
    return bool(
        (b / (1 - a)) ** 2
        < BreakingNewtonOptions.current().min_distance * np.trace(state.minimiser_overlaps.q, axis1=1, axis2=2).max()
    )


def _continue_in_parisi_parameter(
    breaking_map: BrokenSymmetryMap, found: NewtonResult, factor: float
) -> Iterator[NewtonResult]:
    """Yield solutions at successive Parisi parameters y, with shorter steps where they change fast, until one is lost.

    Every start is extrapolated from the last two solutions, because other solutions may be close.
    """
    options = BreakingOptions.current()
    longest = stride = float(np.log(factor))
    slope = np.zeros(len(found.state.pack()))
    rough = breaking_map.rule.search_residual
    while abs(stride) > options.min_step_fraction * abs(longest):
        rates = found.rates * float(np.exp(stride))
        expected = _pack_state_with_y_times_delta(found) + stride * slope
        initial = BrokenSymmetryState.unpack(expected, found.state.overlap_sizes)
        initial = replace(initial, distances=initial.distances / rates[:, None, None, None])
        following = find_broken_states(breaking_map, initial, rates, rough, options.residual_floor, matrix=found.matrix)
        if following is None or _is_far_from_expected_state(following, expected):
            stride /= 2
            continue
        slope = (_pack_state_with_y_times_delta(following) - _pack_state_with_y_times_delta(found)) / stride
        found = following
        stride = float(np.sign(longest)) * min(abs(longest), options.step_growth * abs(stride))
        yield found


def _is_far_from_expected_state(found: NewtonResult, expected: np.ndarray) -> bool:
    """Return whether the overlaps of a solution differ too much from those of the expected packed state."""
    count = len(found.state.between.pack())
    off = np.abs(found.state.pack() - expected)[:count] / found.state.block_scales[:count]
    return bool(off.max() > BreakingOptions.current().max_deviation)


def _pack_state_with_y_times_delta(found: NewtonResult) -> np.ndarray:
    """Return the packed state with y Delta, the Parisi parameter times the overlap difference, in place of Delta."""
    return replace(found.state, distances=found.rates[:, None, None, None] * found.state.distances).pack()


def _continue_to_parisi_parameter(breaking_map: BrokenSymmetryMap, found: NewtonResult, y: float) -> NewtonResult | str:
    """Return the solution with one step, continued to another Parisi parameter y, or a message if it was lost."""
    factor = BreakingOptions.current().rate_factor
    if abs(np.log(y / found.outermost_parisi_parameter)) > np.log(factor):
        path = _continue_in_parisi_parameter(
            breaking_map, found, factor if y > found.outermost_parisi_parameter else 1 / factor
        )
        while abs(np.log(y / found.outermost_parisi_parameter)) > np.log(factor):
            following = next(path, None)
            if following is None:
                lost_at = found.outermost_parisi_parameter
                return f"states with breaking were lost near y = {lost_at:.4g}, before y = {y:.4g}"
            found = following
    return solve_states_by_newton(breaking_map, found.state, np.array([y]), breaking_map.rule.search_residual)


def _find_zero_of_complexity(breaking_map: BrokenSymmetryMap, found: NewtonResult) -> NewtonResult | str:
    """Return the solution with one step at the Parisi parameter of zero complexity, or a message if it was not found.

    The search goes up or down in y, as y times the derivative of the free entropy in y increases with y.
    """
    upward, options = found.outermost_free_entropy_derivative < 0, BreakingOptions.current()
    path = _continue_in_parisi_parameter(
        breaking_map, found, options.rate_factor if upward else 1 / options.rate_factor
    )
    for _ in range(options.max_rate_steps):
        following = next(path, None)
        if following is None:
            lost_at = found.outermost_parisi_parameter
            return f"states with breaking were lost near y = {lost_at:.4g}, before the complexity was zero"
        if (following.outermost_free_entropy_derivative < 0) != upward:
            ends = sorted(
                (
                    one.outermost_parisi_parameter * one.outermost_free_entropy_derivative,
                    float(np.log(one.outermost_parisi_parameter)),
                )
                for one in (found, following)
            )
            (left, low), (right, high) = ends
            y = float(np.exp(np.interp(0.0, [left, right], [low, high])))
            nearer = min(found, following, key=lambda one: abs(np.log(one.outermost_parisi_parameter / y)))
            return solve_states_by_newton(breaking_map, nearer.state, np.array([y]), breaking_map.rule.search_residual)
        found = following
    last = found.outermost_parisi_parameter
    return f"the complexity does not become zero {'up' if upward else 'down'} to y = {last:.4g}"
