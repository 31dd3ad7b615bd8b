"""The start of a problem, and damped iteration from there to the neighbourhood of a solution."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from ..base.errors import DomainError, InputError
from ..base.progress import step
from ..integration import Pieces, Rule, Sobol
from ..integration.pieces import PANELS
from ..integration.sampled import WARM_PRODUCTS
from ..problems import gauge
from ..problems.overlaps import Overlaps, places_of
from ..problems.problem import Problem
from ..problems.reduced import integrated
from ..problems.symmetry import Symmetry, of_state
from ..saddle_point.iteration import CAUTIOUS, FixedPoint, Status, best_weight, damped
from ..saddle_point.relaxation import relax
from ..saddle_point.slopes import jacobian
from ..saddle_point.starts import start_overlaps, with_response
from ..saddle_point.state_map import StateMap
from .solution import Solution

APPROACH_RULE = Sobol(log2=8, scramblings=4)
# Where a start leaves the domain: factors of its weights and of V, and noise added to the weights as a fraction of
# theirs, that are tried instead. Columns that are all the same mixture of the teacher, or made of it alone, leave the
# fields degenerate; what the proximal map jumps over may be large compared with small weights, and V^ negative; where V
# is large V^ is small, perhaps too small for a ridge that is none or negative; where V is small, there is one minimum.
_GUESSES = (
    *((1, 1, 0.1), (1, 1, 1), (2, 1 / 4, 0), (4, 1 / 16, 0), (8, 1 / 64, 0)),
    *((1, 1 / 10, 0), (1, 10, 0), (1, 1e-2, 0), (1, 1e2, 0), (1, 1e-4, 0), (1, 1e4, 0)),
)
# Residual at which slopes are first taken, that at which Newton's method takes over, and iterations on the way: on
# sampled sets, and on lines alone, whose averages are exact. Slopes far from a solution may say little of those nearby.
_PACES = {False: ((0.1, 2e-3, 400),), True: ((1.0, 5e-3, 40), (0.1, 2e-3, 400))}
_RELAXED = 1e-6  # residual, in relative coordinates, of an approach by implicit steps
_NEAR = 0.05  # residual of an approach that did not converge from which Newton's method may still take over


def starting_overlaps(problem: Problem, start: str | Overlaps | Solution) -> Overlaps:
    """Return the overlaps of a start, with V by its own equation where it was not measured.

    Raises:
        InputError: what is no start, overlaps of another structure, or one that is not finite.
    """
    if not isinstance(start, str | Overlaps | Solution):
        known = ", ".join(problem.solver.model.STARTS)
        raise InputError(
            f"a start is the name of one of {problem.solver.name} ({known}), overlaps, as sf.Overlaps.measured(q=0.8, "
            f"theta=0.4), or a solution; not {start!r}"
        )
    if isinstance(start, str):
        return start_overlaps(problem, start)
    overlaps = start.overlaps if isinstance(start, Solution) else start
    if overlaps.sizes != problem.sizes:
        what = "the solution to start from has" if isinstance(start, Solution) else "overlaps to start from have"
        raise InputError(f"{what} (contexts, s, t, trained numbers) = {overlaps.sizes}; {problem.sizes} is expected")
    if isinstance(start, Solution):
        return overlaps
    for name in ("q", "m", "theta", "phi"):
        if not np.isfinite(getattr(overlaps, name)).all():
            raise InputError(f"overlaps to start from: {name} contains numbers that are not finite")
    measured = bool(np.isfinite(overlaps.V).all())
    return overlaps if measured else with_response(problem, overlaps, approach_rules(problem, 0)[0])


@step("approaching by damped iteration")
def approach(
    problem: Problem, overlaps: Overlaps, seed: int, extrapolate: bool = True, is_guess: bool = True
) -> FixedPoint:
    """Return a point in the neighbourhood of a solution, by damped iteration with a coarse global rule.

    Args:
        extrapolate: as of `damped`.
        is_guess: whether overlaps of other sizes are tried where these leave the domain.
    """
    symmetry = Symmetry(None, of_state(problem, overlaps), problem.clusters)
    rough, fine = approach_rules(problem, seed)
    coarse, one_field = StateMap(problem, rough, symmetry), integrated(problem).solver.channel.FIELDS == 1
    guesses = _GUESSES if is_guess else ()
    visited = 0
    for pace in _PACES[fine == rough]:
        point, weight = _damped_in_two_stages(coarse, overlaps, guesses, pace, extrapolate)
        visited += point.iterations
        if point.status.success:
            break
    if point.status is Status.MAX_ITERATIONS and one_field:
        # Where V has far to go, as with a weak ridge, the residual rises on the way: weights lowered there are too low.
        point, weight = _damped_in_two_stages(coarse, point.overlaps, (), pace, extrapolate)
        visited += point.iterations
    if not is_near(point) and one_field:
        relaxed = relax(coarse, replace(point, iterations=0), _RELAXED)
        visited += relaxed.iterations
        if relaxed.status.success or relaxed.status is Status.LEFT_DOMAIN or relaxed.outside:
            point = relaxed
    if is_near(point) and fine != rough:
        # A soft branch needs the finer set before Newton may take over.
        state_map = StateMap(problem, fine, symmetry)
        point = damped(state_map, point.overlaps, 3e-4, max_iterations=200, weight=weight, extrapolate=extrapolate)
        visited += point.iterations
    canonical = gauge.canonical(problem, point.overlaps, gauge.generators(problem))
    return replace(point, u=canonical.pack(), iterations=visited)


def is_near(point: FixedPoint) -> bool:
    """Return whether Newton's method may take over."""
    return point.status.success or point.residual < _NEAR


def _damped_in_two_stages(
    coarse: StateMap,
    overlaps: Overlaps,
    guesses: Sequence[tuple[float, float, float]],
    pace: tuple[float, float, int],
    extrapolate: bool,
) -> tuple[FixedPoint, float]:
    """Return where damped iteration leads: to a residual, at which slopes give the weight for the way to a smaller one;
    and that weight.

    Args:
        guesses: see `_GUESSES`, in turn where the start leaves the domain.
        pace: both residuals, and iterations with that weight; extrapolate: whether to mix them, as of `damped`.
    """
    roughly, nearly, most = pace
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
        matrix = jacobian(coarse, point.u, point.sizes, 1e-2, one_sided=True)
        weight = best_weight(np.linalg.eigvals(coarse.across(matrix, point.u, point.sizes)))
    found = damped(coarse, point.overlaps, nearly, most, weight, extrapolate)
    return replace(found, iterations=point.iterations + found.iterations), weight


def approach_rules(problem: Problem, seed: int) -> tuple[Rule, Rule]:
    """Return a coarse rule and a finer one, both even, from which zeros by symmetry are read off."""
    warm = WARM_PRODUCTS[0]
    if problem.inverse_temperature is not None and warm.is_affordable_at_temperature(problem):
        return replace(warm.coarser(), inner=0.75), warm
    if problem.inverse_temperature is None and Pieces.takes_lines_alone(problem):
        return PANELS[0], PANELS[0]
    return replace(APPROACH_RULE, seed=seed), Sobol(10, 4, seed=seed)


def symmetry_of(problem: Problem, point: FixedPoint) -> Symmetry:
    """Return the exchanges that leave the state as it is, and the components of m and theta that are zero to rounding
    under the sign-symmetric coarse rule."""
    scales = point.overlaps.block_scales
    frozen = np.abs(point.u) < 1e-11 * scales
    places = places_of(point.sizes)
    for name in ("q", "V", "phi"):
        frozen[places[name]] = False
    return Symmetry(frozen, of_state(problem, point.overlaps), problem.clusters)
