"""Solving a problem from a start: approach, rule, errors of everything reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from .. import budget
from ..channel.search import searched
from ..errors import DomainError, InputError, TimeLimitError, require_in
from ..integration import FAMILIES, Lines, Pieces, ProxSpace, Rule, Sobol, rule_named
from ..integration.pieces import PANELS
from ..integration.sampled import WARM_PRODUCTS
from ..problems import gauge
from ..problems.overlaps import Overlaps, places_of
from ..problems.problem import Problem
from ..problems.reduced import integrated
from ..problems.symmetry import NO_SYMMETRY, Symmetry, of_state
from ..progress import say, step
from ..saddle_point.iteration import CAUTIOUS, FixedPoint, Status, best_weight, damped
from ..saddle_point.relaxation import relax
from ..saddle_point.slopes import jacobian
from ..saddle_point.starts import as_start, default_start, start_overlaps, with_response
from ..saddle_point.state_map import StateMap
from .ahead import compiling
from .climbing import APPROACH_RULE, climb_samples, newton_at, solve_auto
from .collapse import at_rest
from .finishing import failed_solution, far_off, finish_point
from .retrying import has_left, retried
from .solution import Solution, has_lost
from .task import Task

# Where a start leaves the domain: factors of its weights and of V, and noise beside the weights as a share of theirs,
# that are tried instead. Columns that are all the same mixture of the teacher, or made of it alone, leave the fields
# degenerate; what the proximal map jumps over may be large beside small weights, and V^ negative; where V is large V^
# is small, and may not hold against a ridge that is none or negative; where V is small, there is one minimum.
_GUESSES = (
    *((1, 1, 0.1), (1, 1, 1), (2, 1 / 4, 0), (4, 1 / 16, 0), (8, 1 / 64, 0)),
    *((1, 1 / 10, 0), (1, 10, 0), (1, 1e-2, 0), (1, 1e2, 0), (1, 1e-4, 0), (1, 1e4, 0)),
)
# Of q: below it weights have no digits, however many are asked for.
_VANISHED = 1e-24
# Residual at which slopes are first taken, that at which Newton's method takes over, and iterations on the way: on
# sampled sets, and on lines alone, whose averages are exact. Slopes far from a solution may say little of those nearby.
_PACES = {False: ((0.1, 2e-3, 400),), True: ((1.0, 5e-3, 40), (0.1, 2e-3, 400))}
_RELAXED = 1e-6  # residual, in relative coordinates, of an approach by implicit steps
_NEAR = 0.05  # residual of an approach that did not settle from which Newton's method may still take over


def solve(
    problem: Problem,
    start: Any = None,
    *,
    accuracy: float = 1e-4,
    integrator: str = "auto",
    points: int | None = None,
    seed: int = 0,
    effort: int = 100,
    time_limit: float | None = None,
) -> Solution:
    """Solve the saddle point from a start.

    Args:
        start: a named start of the model; overlaps, whose V is found from the others where it is not a number, as of
            weights that were measured (`Overlaps.measured`); a `Simulation`, from the mean overlaps of the kind of
            minimum that most of its runs ended in; or a solution of a problem nearby (tried first without the damped
            approach).
        accuracy: half width asked of every overlap, relative to the size of its block.
        integrator: auto, or a name in `integration.FAMILIES`; points as for `rule_named`.
        seed: of the scramblings.
        effort: how many sizes of a rule to climb at the most before reporting the accuracy as not reached.
        time_limit: seconds after which the best so far is returned, with the status TIME_LIMIT.

    Returns:
        A Solution; look at `status`. Not converging is a status, not an exception; so is ENDED_ELSEWHERE, a solution
        without an overlap that the start holds: what it is after the start was tried again by way of easier problems
        (`retried`).

    Raises:
        InputError: an unknown start or integrator, what is no start, or an accuracy that is not positive.
    """
    chosen: dict[str, Any] = {"integrator": integrator, "points": points, "seed": seed, "effort": effort}
    start = as_start(default_start(problem) if start is None else start)
    with budget.time_limit(time_limit):
        found = reach(problem, start, accuracy=accuracy, **chosen)
        lost = found.success and has_lost(problem, start, found)
        again, words = None, ""
        if not isinstance(start, Solution) and (lost or (found.losses is None and has_left(problem, start, found))):
            by_rule = partial(reach, integrator=integrator, points=points, seed=seed)

            def holds(other: Solution) -> bool:
                return not has_lost(other.problem, start, other)

            with suppress(TimeLimitError):
                again, words = retried(by_rule, problem, start, found, holds, accuracy=accuracy, effort=effort)
    if again is not None:
        return replace(again, tried=(*again.tried, f"the start left its branch at first: {words}"))
    status = Status.ENDED_ELSEWHERE if lost else found.status
    far = far_off(problem, found.overlaps) if found.losses is None and status is Status.MAX_ITERATIONS else ""
    words = words or found.outside
    return replace(found, status=status, outside=words if far in words else "; ".join(filter(None, (words, far))))


def reach(
    problem: Problem,
    start: str | Overlaps | Solution = "semantic",
    *,
    accuracy: float = 1e-4,
    integrator: str = "auto",
    points: int | None = None,
    seed: int = 0,
    effort: int = 100,
    alone: bool = True,
    afar: bool = True,
    extrapolate: bool = True,
) -> Solution:
    """As `solve`, for those who tell branches apart themselves: whatever solution a start leads to has converged.

    Args:
        alone: whether there is no other start to try: else one that extrapolation leads nowhere is given up.
        afar: whether a solution from which Newton's method leads nowhere is approached with damping.
        extrapolate: whether the approach mixes earlier iterates: faster, but it leads to saddles, too.
    """
    require_in("accuracy", accuracy, "(0, 1)")
    way = _way(problem, integrator, points, seed)
    _ = problem.alpha  # is there before anything is compiled
    if not isinstance(start, str | Overlaps | Solution):
        known = ", ".join(problem.solver.model.STARTS)
        raise InputError(
            f"a start is the name of one of {problem.solver.name} ({known}), overlaps, as sf.Overlaps.measured(q=0.8, "
            f"theta=0.4), or a solution; not {start!r}"
        )
    name = start if isinstance(start, str) else (start.start if isinstance(start, Solution) else "given")
    begun = start_overlaps(problem, start) if isinstance(start, str) else start
    if isinstance(begun, Overlaps):
        begun = _checked(problem, begun)
    with step(f"solving from the start {name}"), budget.offers() as best:
        task = Task(problem, name, NO_SYMMETRY, accuracy, seed, effort)
        try:
            return _reached(task, begun, way, alone, afar, extrapolate)
        except TimeLimitError as error:
            ended = error
            try:
                with budget.overtime():
                    if best[0] is not None:
                        found: Solution = best[0]()
                        return found if found.success else replace(found, status=Status.TIME_LIMIT)
            except TimeLimitError as late:  # half widths take longer than that
                ended = late
            overlaps = begun.overlaps if isinstance(begun, Solution) else begun
            nowhere = FixedPoint(overlaps.pack(), overlaps.sizes, np.nan, Status.TIME_LIMIT, 0, None)
            point = ended.point if isinstance(ended.point, FixedPoint) else nowhere
            return failed_solution(task, replace(point, status=Status.TIME_LIMIT), APPROACH_RULE)


def _checked(problem: Problem, overlaps: Overlaps) -> Overlaps:
    """Overlaps to start from, with V by its own equation where it was not measured.

    Raises:
        InputError: they are of another structure, or an overlap is not finite.
    """
    if overlaps.sizes != problem.sizes:
        raise InputError(
            f"overlaps to start from have (contexts, s, t, trained numbers) = {overlaps.sizes}; {problem.sizes} is "
            "expected"
        )
    for name in ("q", "m", "theta", "phi"):
        if not np.isfinite(getattr(overlaps, name)).all():
            raise InputError(f"overlaps to start from: {name} contains numbers that are not finite")
    return (
        overlaps if np.isfinite(overlaps.V).all() else with_response(problem, overlaps, _approach_rules(problem, 0)[0])
    )


Way = Callable[[Task, FixedPoint, Solution | None], Solution]
"""From near a solution to its digits; the solution of a neighbouring problem, where there is one, tells which rule."""


def _way(problem: Problem, integrator: str, points: int | None, seed: int) -> Way:
    """Climbing where no rule, or no size of Sobol sets, is named; the one rule else."""
    if integrator == "auto" and points is not None:
        *others, last = FAMILIES
        raise InputError(f"points = {points} goes with integrator {', '.join(others)} or {last}; auto picks its own")
    if integrator == "auto":
        return solve_auto
    rule = rule_named(integrator, points, seed)
    if isinstance(rule, Sobol) and points is None:
        return lambda task, point, near: climb_samples(task, point)
    if isinstance(rule, ProxSpace | Lines | Pieces):
        problem.only_at_zero_temperature(f"the rule {rule.name} integrates")
    return lambda task, point, near: finish_point(task, newton_at(task, rule, point), rule)


def _reached(task: Task, start: Overlaps | Solution, way: Way, alone: bool, afar: bool, extrapolate: bool) -> Solution:
    """Where a start leads; `alone`, `afar` and `extrapolate` as of `reach`.

    Raises:
        TimeLimitError: the time ended; a finished level, if any, has been offered.
    """
    overlaps = start.overlaps if isinstance(start, Solution) else start
    with compiling(task.problem, overlaps, _is_new(task.problem)):
        return _led(task, start, way, alone, afar, extrapolate)


def _led(task: Task, start: Overlaps | Solution, way: Way, alone: bool, afar: bool, extrapolate: bool) -> Solution:
    """`_reached`, whoever compiles."""
    problem = task.problem
    if isinstance(start, Solution):
        if start.overlaps.sizes != problem.sizes:
            raise InputError(
                f"the solution to start from has (contexts, s, t, trained numbers) = {start.overlaps.sizes}; "
                f"{problem.sizes} is expected"
            )
        if start.symmetry is not None:
            problem = searched(problem, start.overlaps)
            task = replace(task, problem=problem)
            u, sizes = start.overlaps.pack(), start.overlaps.sizes
            symmetry = replace(start.symmetry, exchanges=of_state(problem, start.overlaps))
            known = start.jacobian if symmetry == start.symmetry else None
            point = FixedPoint(u, sizes, start.residual, Status.CONVERGED, 0, known, start.drift)
            near = way(replace(task, symmetry=symmetry), point, start)
            if near.losses is not None or not afar:
                return near
    found = _from_afar(task, start, way, extrapolate)
    failed = found.losses is None and found.status in (Status.LEFT_DOMAIN, Status.MAX_ITERATIONS)
    if alone and extrapolate and failed:
        # Along a soft direction a residual is small far from the solution, and extrapolation is soon there.
        found = _from_afar(task, start, way, False)
    return found


def _from_afar(task: Task, start: Overlaps | Solution, way: Way, extrapolate: bool) -> Solution:
    """Where a start leads by a damped approach.

    Raises:
        TimeLimitError: as of `_reached`.
    """
    problem, seed = task.problem, task.seed
    approach = _approach(problem, start, seed, extrapolate)
    if not _is_near(approach):
        return _collapsed_or(failed_solution(task, approach, APPROACH_RULE), approach, seed)
    thorough = searched(problem, approach.overlaps)
    if thorough.search != problem.search:
        # The quick search missed minima: what it led to solves another map.
        again = _approach(thorough, approach.overlaps, seed, extrapolate)
        approach = replace(again, iterations=approach.iterations + again.iterations)
        task = replace(task, problem=thorough)
        if not _is_near(approach):
            return _collapsed_or(failed_solution(task, approach, APPROACH_RULE), approach, seed)
    task = replace(task, problem=thorough, symmetry=_symmetry_of(thorough, approach))
    solution = way(task, approach, None)
    if solution.losses is None:
        return _collapsed_or(solution, approach, seed)
    if not solution.success and np.abs(solution.overlaps.q).max() < _VANISHED:
        trivial = _collapsed_or(failed_solution(task, approach, APPROACH_RULE), approach, seed)
        return trivial if trivial.status is Status.COLLAPSED else solution
    return solution


def _is_near(approach: FixedPoint) -> bool:
    """Whether Newton's method may take over."""
    return approach.status.success or approach.residual < _NEAR


def _collapsed_or(failed: Solution, approach: FixedPoint, seed: int) -> Solution:
    """W = 0 where that is what the approach falls into; what failed else."""
    rules = _approach_rules(failed.problem, seed)
    rest = at_rest(failed.problem, approach.overlaps, *rules)
    if rest is None:
        return failed
    overlaps, errors = rest
    return replace(failed, overlaps=overlaps, errors=errors, status=Status.COLLAPSED, outside="")


_announced: set[str] = set()


def _is_new(problem: Problem) -> bool:
    """Whether Numba is about to compile a solver for the first time on this machine, which is said."""
    part = "channel" if problem.inverse_temperature is None else "thermal"
    solver = integrated(problem).solver
    key = f"{solver.folder} {part}"
    if key in _announced:
        return False
    _announced.add(key)
    if solver.compiled_before(part):
        return False
    say(f"compiling the solver of {problem.solver.name} (once on this machine, up to half a minute)")
    return True


@step("approaching by damped iteration")
def _approach(problem: Problem, start: Overlaps | Solution, seed: int, extrapolate: bool = True) -> FixedPoint:
    """From the start to the neighbourhood of a solution, by damped iteration with a coarse global rule.

    Args:
        extrapolate: as of `damped`.
    """
    overlaps = start.overlaps if isinstance(start, Solution) else start
    symmetry = Symmetry(None, of_state(problem, overlaps), problem.clusters)
    rules = _approach_rules(problem, seed)
    coarse = StateMap(problem, rules[0], symmetry)
    guesses = () if isinstance(start, Solution) else _GUESSES
    visited = 0
    for roughly, nearly, most in _PACES[rules[1] == rules[0]]:
        point, weight = _settled(coarse, overlaps, guesses, roughly, nearly, most, extrapolate)
        visited += point.iterations
        if point.status.success:
            break
    if point.status is Status.MAX_ITERATIONS and integrated(problem).solver.channel.FIELDS == 1:
        # Where V has far to go, as with a weak ridge, the residual rises on the way: weights lowered there are too low.
        point, weight = _settled(coarse, point.overlaps, (), roughly, nearly, most, extrapolate)
        visited += point.iterations
    if not _is_near(point) and integrated(problem).solver.channel.FIELDS == 1:
        relaxed = relax(coarse, point.moved(point.u, iterations=0), _RELAXED)
        visited += relaxed.iterations
        if relaxed.status.success or relaxed.status is Status.LEFT_DOMAIN or relaxed.outside:
            point = relaxed
    if _is_near(point) and rules[1] != rules[0]:
        # A soft branch needs the finer set before Newton may take over.
        fine = StateMap(problem, rules[1], symmetry)
        point = damped(fine, point.overlaps, 3e-4, max_iterations=200, weight=weight, extrapolate=extrapolate)
        visited += point.iterations
    canonical = gauge.canonical(problem, point.overlaps, gauge.generators(problem))
    return point.moved(canonical.pack(), iterations=visited)


def _settled(
    coarse: StateMap,
    overlaps: Overlaps,
    guesses: Sequence[tuple[float, float, float]],
    roughly: float,
    nearly: float,
    most: int,
    extrapolate: bool,
) -> tuple[FixedPoint, float]:
    """Damped iteration to a residual, at which slopes tell the weight for the way to a smaller one; and that weight.

    Args:
        guesses: see `_GUESSES`, in turn where the start leaves the domain.
        most: iterations with that weight; extrapolate: whether to mix them, as of `damped`.
    """
    point = first = damped(coarse, overlaps, roughly)
    for weights, response, noise in guesses:
        if point.status is not Status.LEFT_DOMAIN:
            break
        # Sizes of a start are a guess.
        sizes = {"q": weights**2 * overlaps.q, "m": weights * overlaps.m, "theta": weights * overlaps.theta}
        sizes["q"] = sizes["q"] + noise * np.diagonal(sizes["q"], 0, 1, 2).mean() * np.eye(sizes["q"].shape[1])
        point = damped(coarse, replace(overlaps, **sizes, V=response * overlaps.V), roughly)
    if point.status is Status.LEFT_DOMAIN:
        point = first
        if guesses and point.outside:
            low, high = (f"{end(response for _, response, _ in guesses):g}" for end in (min, max))
            point = replace(
                point, outside=f"{point.outside} (tried with {low} to {high} times the V of the start, too)"
            )
    weight = CAUTIOUS
    if not point.status.success:
        return point, weight
    with suppress(DomainError, np.linalg.LinAlgError):
        matrix = jacobian(coarse, point.u, point.sizes, 1e-2, one_sided=True, image=point.image)
        weight = best_weight(np.linalg.eigvals(coarse.across(matrix, point.u, point.sizes)))
    found = damped(coarse, point.overlaps, nearly, most, weight, point.image, extrapolate)
    return replace(found, iterations=point.iterations + found.iterations), weight


def _approach_rules(problem: Problem, seed: int) -> tuple[Rule, Rule]:
    """A coarse rule and a finer one, both even, from which zeros by symmetry are read off."""
    warm = WARM_PRODUCTS[0]
    if problem.inverse_temperature is not None and warm.is_affordable_at_temperature(problem):
        return replace(warm.coarser(), inner=0.75), warm
    if problem.inverse_temperature is None and Pieces.takes_lines_alone(problem):
        return PANELS[0], PANELS[0]
    return replace(APPROACH_RULE, seed=seed), Sobol(10, 4, seed=seed)


def _symmetry_of(problem: Problem, point: FixedPoint) -> Symmetry:
    """Exchanges that leave the state as it is, and components of m and theta that are zero to rounding under the
    sign-symmetric coarse rule."""
    scales = point.overlaps.block_scales
    frozen = np.abs(point.u) < 1e-11 * scales
    places = places_of(point.sizes)
    for name in ("q", "V", "phi"):
        frozen[places[name]] = False
    return Symmetry(frozen, of_state(problem, point.overlaps), problem.clusters)
