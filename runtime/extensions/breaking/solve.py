"""From a replica symmetric solution to one step of breaking: states at large y, then where dPhi/dy vanishes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

import numpy as np

from ...base import budget
from ...base.errors import DomainError, InputError, TimeLimitError, require_in, require_whole
from ...base.progress import step
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem, check_is_problem
from ...problems.reduced import integrated
from ...saddle_point.domain import without_teacher
from ...saddle_point.iteration import Status
from ...solving.solution import Solution
from ...solving.solve import solve as solve_symmetric
from .deeper import deepened
from .newton import Reached, newton, settled
from .refinement import NEGLIGIBLE, map_of, refined, states_near, unbroken
from .rules import rules_for
from .solution import BrokenSolution
from .state import Broken
from .state_map import BreakingMap, refuse
from .vanishing import lowest_by_samples

_FACTOR = 2.0  # from one y to the next
_FEWER, _ABOVE = 8, 2  # attempts from the first y down, and above it
_MORE = 24  # steps to where dPhi/dy changes sign
_SETTLING = 12  # damped steps before Newton's method at the first y
_SHARE = 0.8  # of V that V~ = V + y Delta leaves to y Delta, at the start
_SHORTEST = 0.05  # of such a step, where the states change fast
_LONGER = 1.5  # step after one that led to the states expected
_FLOOR = 5e-3  # of residuals on the way where kinks that pass places of a coarse grid leave more than is asked
_OFF = 0.25  # in block scales: what is farther from where states are expected is another one

_BESIDE = 3e-3  # accuracy of the replica symmetric solution that energies by samples are told from: its square enters


class Options(TypedDict, total=False):
    """Options of `solve`, whatever the number of steps."""

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
def solve(problem: Problem, start: Start = ..., *, rsb: Literal[0] = ..., **options: Unpack[Options]) -> Solution: ...
@overload
def solve(
    problem: Problem, start: Start = ..., *, rsb: Literal[1, 2], **options: Unpack[Options]
) -> BrokenSolution: ...
@overload
def solve(
    problem: Problem, start: Start = ..., *, rsb: int, **options: Unpack[Options]
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
        start: a named start of the model (`semantic`, else its first, where none is given); overlaps, whose V is found
            from the others where it is not a number (`Overlaps.measured`); a `Simulation`, from the mean of its runs;
            or a solution of a problem nearby (tried first without the damped approach).
        rsb: 0 for replica symmetry, 1 or 2 for steps of breaking it at zero temperature (docs/theory.md section 18), of
            a loss that reads one student field, or several without corners (two steps: no more than two), and a ridge,
            given norms or any penalty of one column, or, with one step, of two.
        parisi: y in place of the one at which the complexity vanishes, with rsb = 1.
        accuracy: half width asked of every overlap, relative to the size of its block.
        integrator: auto, or a name in `integration.FAMILIES`; points as for `rule_named`. With breaking of the replica
            symmetric solution that it starts from.
        seed: of the scramblings.
        effort: how many sizes of a rule to climb at the most before reporting the accuracy as not reached.
        time_limit: seconds, after which the best so far is returned with the status TIME_LIMIT; None for no limit.

    Returns:
        A Solution; with breaking a BrokenSolution, of fewer steps where no more are found. Look at `status`: not
        converging is a status, not an exception.

    Raises:
        InputError: an unknown start or integrator, an accuracy or y that is not positive, or with breaking a model that
            is out of its reach, in words.

    Example:
        >>> solution = sf.solve(sf.problem("ridge_regression", alpha=2), accuracy=1e-8)
        >>> solution.success
        True
    """
    check_is_problem(problem)
    options: dict[str, Any] = {"accuracy": accuracy, "integrator": integrator, "points": points, "seed": seed,
                               "effort": effort}  # fmt: skip
    if rsb != 1 and parisi is not None:
        raise InputError("parisi is the parameter y of one-step breaking: it goes with rsb=1")
    if rsb == 0:
        return solve_symmetric(problem, start, time_limit=time_limit, **options)
    checked_steps(rsb, problem)
    if parisi is not None:
        require_in("parisi", parisi, "(0, inf)")
    with budget.time_limit(time_limit):
        return broken(solve_symmetric(problem, start, **options), parisi, accuracy, rsb)


def checked_steps(rsb: int, problem: Problem, most: int = 2, along: bool = False) -> None:
    """That this many steps of breaking, one or more, can be solved, and along a branch where that is asked.

    Raises:
        InputError: they cannot, in words.
    """
    require_whole("rsb", rsb, 0, most)
    refuse(problem)
    if rsb > 1 and not problem.regulariser.is_quadratic and problem.student_rank > 1:
        raise InputError(
            "two steps of breaking are solved for ridges and given norms, and for other penalties of one column; "
            f"{problem.solver.name} has {problem.student_rank}"
        )
    if (rsb > 1 or along) and rules_for(problem)[0].replicated:
        # Samples do not tell at which Parisi parameter the energy is greatest.
        what = "branches with a step of breaking are followed" if along else "two steps of breaking are solved"
        raise InputError(
            f"{what} for losses of one or two student fields; that of {problem.solver.name} depends on "
            f"{integrated(problem).solver.channel.FIELDS}"
        )


@step("replica symmetry breaking")
def broken(symmetric: Solution, parisi: float | None = None, accuracy: float = 1e-4, steps: int = 1) -> BrokenSolution:
    """Breaking that starts from a replica symmetric solution.

    Args:
        parisi: y of one step, or None for that at which dPhi/dy = 0; steps: 1 or 2.

    Raises:
        InputError: a model that is out of its reach.
    """
    refuse(symmetric.problem)
    if symmetric.losses is None:
        return unbroken(symmetric, symmetric.status, "replica symmetry did not converge")
    try:
        once = _broken(symmetric, parisi, accuracy)
    except TimeLimitError:
        return unbroken(symmetric, Status.TIME_LIMIT, "the time limit came first; what is shown is replica symmetric")
    return once if steps == 1 else deepened(once, accuracy)


def _broken(symmetric: Solution, parisi: float | None, accuracy: float) -> BrokenSolution:
    """`broken`, of a problem within reach and a solution that has converged."""
    rules = rules_for(symmetric.problem)
    coarse = map_of(symmetric, rules[0])
    begun = _begun(coarse, symmetric)
    if begun is None:
        words = "no breaking found: states that start apart come together at every y tried"
        return unbroken(symmetric, symmetric.status, words)
    if coarse.rule.replicated:
        symmetric = _beside(symmetric, accuracy)
    left = unbroken(symmetric, Status.LEFT_DOMAIN, "one-step breaking left its domain")
    if parisi is None and coarse.rule.replicated:
        return lowest_by_samples(symmetric, begun, rules, accuracy) or left
    found = _lowest(coarse, begun) if parisi is None else _at(coarse, begun, parisi)
    if isinstance(found, str):
        return unbroken(symmetric, Status.MAX_ITERATIONS, found)
    return refined(symmetric, found, parisi is not None, accuracy) or left


def _beside(symmetric: Solution, accuracy: float) -> Solution:
    """The replica symmetric solution, its overlaps as fine as energies that are told from its own ask for."""
    if symmetric.relative_error <= _BESIDE:
        return symmetric
    found = solve_symmetric(symmetric.problem, symmetric, accuracy=_BESIDE)
    if found.losses is None or found.branch != symmetric.branch or found.relative_error >= symmetric.relative_error:
        return symmetric
    reached = found.status is Status.ACCURACY_NOT_REACHED and found.relative_error <= accuracy
    return replace(found, start=symmetric.start, status=Status.CONVERGED if reached else found.status)


def continued(
    symmetric: Solution, state: Broken, rates: tuple[float, ...], accuracy: float = 1e-4
) -> BrokenSolution | None:
    """The lowest states near those of a neighbouring problem, without a search; None where there are none.

    Args:
        symmetric: a replica symmetric solution of the problem itself, for what stands beside them.

    Raises:
        TimeLimitError: the time limit came before any were found.
    """
    rule = rules_for(symmetric.problem)[0]
    found = states_near(map_of(symmetric, rule), state, np.array(rates), rule.rough, with_y=True)
    if found is None or np.max(np.abs(found.state.pack() - state.pack()) / found.state.block_scales) > _OFF:
        return None
    return refined(symmetric, found, False, accuracy)


def _begun(breaking_map: BreakingMap, symmetric: Solution) -> Reached | None:
    """States at a large y, where they are close to one another, or at smaller ones; None where none are apart.

    At small y solutions even in W break apart into W and -W, whose q_0 is zero: what continues replica symmetry is
    found from above (docs/theory.md section 18).
    """
    left = without_teacher(symmetric.problem, symmetric.overlaps)
    V, D = (float(np.trace(block, axis1=1, axis2=2).max()) for block in (symmetric.overlaps.V, left))
    first = breaking_map.rule.first_rate * V / D
    rough = breaking_map.rule.rough
    for k in (*range(_FEWER), *range(-1, -_ABOVE - 1, -1)):
        y = first / _FACTOR**k
        state, rates = _apart(symmetric, y), np.array([y])
        with suppress(DomainError, np.linalg.LinAlgError):
            earlier = settled(breaking_map, state, rates, _SETTLING // 2)
            state = settled(breaking_map, earlier, rates, _SETTLING // 2)
            if _comes_together(breaking_map, earlier, state, rates):
                continue
            if found := states_near(breaking_map, state, rates, rough, _FLOOR):
                return found
    return None


def _apart(symmetric: Solution, y: float) -> Broken:
    """Replica symmetry with a part of V read as y Delta, no more than half of what q leaves beside the teacher."""
    overlaps = symmetric.overlaps
    distance = _SHARE / y * overlaps.V
    pairs = zip(without_teacher(symmetric.problem, overlaps), distance, strict=True)
    share = float(max(np.linalg.eigvals(np.linalg.solve(room, d)).real.max() for room, d in pairs))
    distance = distance * min(1.0, 0.5 / share)
    return Broken(replace(overlaps, q=overlaps.q - distance, V=overlaps.V - y * distance), distance[None])


def _comes_together(breaking_map: BreakingMap, earlier: Broken, state: Broken, rates: np.ndarray) -> bool:
    """Whether Delta is on its way to zero: small ones become a Delta + b Delta^(1/2), b > 0 with jumps, and from two of
    them follows where that ends, which Newton's method would approach by halves."""
    sizes, factors = [], []
    for at in (earlier, state):
        both = at, breaking_map(at, rates).image
        now, image = (float(np.trace(one.distance, axis1=1, axis2=2).max()) for one in both)
        sizes.append(now)
        factors.append(image / now)
    if not (sizes[1] < sizes[0] and factors[1] < 1):
        return False
    b = max(0.0, (factors[1] - factors[0]) / (sizes[1] ** -0.5 - sizes[0] ** -0.5))
    a = factors[1] - b * sizes[1] ** -0.5
    return bool((b / (1 - a)) ** 2 < NEGLIGIBLE * np.trace(state.within.q, axis1=1, axis2=2).max())


def _along(breaking_map: BreakingMap, found: Reached, factor: float) -> Iterator[Reached]:
    """The same states at y times a factor, times it again, ..., in shorter steps where they change fast; it ends where
    they are lost.

    They are looked for where the last two point to, in q_0, V, m, theta and y Delta: other states, as those whose q_0
    is zero, may be near.
    """
    longest = stride = float(np.log(factor))
    slope = np.zeros(len(found.state.pack()))
    rough = breaking_map.rule.rough
    while abs(stride) > _SHORTEST * abs(longest):
        rates = found.rates * float(np.exp(stride))
        expected = _with_product(found) + stride * slope
        begun = Broken.unpack(expected, found.state.sizes)
        begun = replace(begun, distances=begun.distances / rates[:, None, None, None])
        following = states_near(breaking_map, begun, rates, rough, _FLOOR, matrix=found.matrix)
        if following is None or _is_off(following, expected):
            stride /= 2
            continue
        slope = (_with_product(following) - _with_product(found)) / stride
        found = following
        stride = float(np.sign(longest)) * min(abs(longest), _LONGER * abs(stride))
        yield found


def _is_off(found: Reached, expected: np.ndarray) -> bool:
    """Return whether states are others than those expected, by q_0, V, m and theta."""
    count = len(found.state.between.pack())
    off = np.abs(found.state.pack() - expected)[:count] / found.state.block_scales[:count]
    return bool(off.max() > _OFF)


def _with_product(found: Reached) -> np.ndarray:
    """The packed state, y Delta in place of Delta."""
    return replace(found.state, distances=found.rates[:, None, None, None] * found.state.distances).pack()


def _at(breaking_map: BreakingMap, found: Reached, y: float) -> Reached | str:
    """The same states at another y, in steps; where they were lost, in words."""
    if abs(np.log(y / found.y)) > np.log(_FACTOR):
        path = _along(breaking_map, found, _FACTOR if y > found.y else 1 / _FACTOR)
        while abs(np.log(y / found.y)) > np.log(_FACTOR):
            following = next(path, None)
            if following is None:
                return f"states were lost near y = {found.y:.4g}, on the way to {y:.4g}"
            found = following
    return newton(breaking_map, found.state, np.array([y]), breaking_map.rule.rough)


def _lowest(breaking_map: BreakingMap, found: Reached) -> Reached | str:
    """Where y dPhi/dy, which increases through zero, does so; else why not, in words."""
    upward = found.slope < 0
    path = _along(breaking_map, found, _FACTOR if upward else 1 / _FACTOR)
    for _ in range(_MORE):
        following = next(path, None)
        if following is None:
            return f"states were lost near y = {found.y:.4g}, before the complexity vanished"
        if (following.slope < 0) != upward:
            ends = sorted((one.y * one.slope, float(np.log(one.y))) for one in (found, following))
            (left, low), (right, high) = ends
            y = float(np.exp(np.interp(0.0, [left, right], [low, high])))
            nearer = min(found, following, key=lambda one: abs(np.log(one.y / y)))
            return newton(breaking_map, nearer.state, np.array([y]), breaking_map.rule.rough)
        found = following
    return f"the complexity did not vanish {'up' if upward else 'down'} to y = {found.y:.4g}"
