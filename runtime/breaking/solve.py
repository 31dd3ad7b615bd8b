"""From a replica symmetric solution to one step of breaking: states at large y, then where dPhi/dy vanishes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, overload

import numpy as np

from .. import budget
from ..errors import DomainError, InputError, TimeLimitError
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.symmetry import NO_SYMMETRY
from ..progress import step
from ..saddle_point import observables
from ..saddle_point.iteration import Status
from ..saddle_point.starts import branch_of
from ..solving.finishing import DIFFERENCE_SAFETY
from ..solving.solution import Solution
from ..solving.solve import solve as solve_symmetric
from ..stability.assess import radius
from .newton import Equations, Reached, newton, settled
from .rules import TiltedRule, averages, first_rate, ladder, offsets, shift_counts, tolerances
from .solution import BrokenSolution, Splitting, relative_error
from .state import Broken
from .state_map import Answer, BreakingMap, refuse

_FACTOR = 2.0  # from one y to the next
_FEWER, _MORE = 8, 24  # attempts below the first y, and steps to where dPhi/dy changes sign
_SETTLING = 12  # damped steps before Newton's method at the first y
_SHARE = 0.8  # of V that V~ = V + y Delta leaves to y Delta, at the start
_SHORTEST = 0.05  # of such a step, where the states change fast
_LONGER = 1.5  # step after one that led to the states expected
_OFF = 0.25  # in block scales: what is farther from where states are expected is another one
_NEGLIGIBLE = 1e-6  # Delta over q below which there is no breaking
_ROUNDING = 1024 * np.finfo(float).eps


@overload
def solve(
    problem: Problem,
    start: str | Overlaps | Solution = ...,
    *,
    rsb: Literal[0] = ...,
    parisi: float | None = ...,
    accuracy: float = ...,
    integrator: str = ...,
    points: int | None = ...,
    seed: int = ...,
    effort: int = ...,
    time_limit: float | None = ...,
) -> Solution: ...
@overload
def solve(
    problem: Problem,
    start: str | Overlaps | Solution = ...,
    *,
    rsb: Literal[1],
    parisi: float | None = ...,
    accuracy: float = ...,
    integrator: str = ...,
    points: int | None = ...,
    seed: int = ...,
    effort: int = ...,
    time_limit: float | None = ...,
) -> BrokenSolution: ...
@overload
def solve(
    problem: Problem,
    start: str | Overlaps | Solution = ...,
    *,
    rsb: int,
    parisi: float | None = ...,
    accuracy: float = ...,
    integrator: str = ...,
    points: int | None = ...,
    seed: int = ...,
    effort: int = ...,
    time_limit: float | None = ...,
) -> Solution | BrokenSolution: ...


def solve(
    problem: Problem,
    start: str | Overlaps | Solution = "semantic",
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
    """Solve the saddle point from a start, replica symmetric or with one step of breaking.

    Args:
        start: a named start of the model, overlaps, or a solution of a problem nearby (tried first without the damped
            approach).
        rsb: 0 for replica symmetry, 1 for one step of breaking it at zero temperature (docs/theory.md section 18), of a
            loss that reads one student field, or two without corners, and a ridge, given norms or any penalty of one
            column.
        parisi: y in place of the one at which the complexity vanishes, with rsb = 1.
        accuracy: half width asked of every overlap, relative to the size of its block.
        integrator: auto, or a name in `integration.FAMILIES`; points as for `rule_named`. With rsb = 1 of the replica
            symmetric solution that it starts from.
        seed: of the scramblings.
        effort: how many sizes of a rule to climb at the most before reporting the accuracy as not reached.
        time_limit: seconds, after which the best so far is returned with the status TIME_LIMIT; None for no limit.

    Returns:
        A Solution; a BrokenSolution with rsb = 1, which is replica symmetric where no breaking is found. Look at
        `status`: not converging is a status, not an exception.

    Raises:
        InputError: an unknown start or integrator, an accuracy or y that is not positive, or with rsb = 1 a model that
            is out of its reach, in words.
    """
    options: dict[str, Any] = {"accuracy": accuracy, "integrator": integrator, "points": points, "seed": seed,
                               "effort": effort}  # fmt: skip
    if rsb == 0:
        if parisi is not None:
            raise InputError("parisi is the parameter y of one-step breaking: it goes with rsb=1")
        return solve_symmetric(problem, start, time_limit=time_limit, **options)
    checked_steps(rsb, problem)
    if parisi is not None and not 0 < parisi < np.inf:
        raise InputError(f"parisi = {parisi!r} is out of range; allowed is (0, inf)")
    with budget.time_limit(time_limit):
        return broken(solve_symmetric(problem, start, **options), parisi, accuracy)


def checked_steps(rsb: int, problem: Problem) -> None:
    """That this many steps of breaking, one or more, can be solved.

    Raises:
        InputError: they cannot, in words.
    """
    if rsb != 1:
        raise InputError(
            f"rsb = {rsb!r} is out of range; allowed are 0 (replica symmetry) and 1 (one step of breaking)"
        )
    refuse(problem)


@step("one step of replica symmetry breaking")
def broken(symmetric: Solution, parisi: float | None = None, accuracy: float = 1e-4) -> BrokenSolution:
    """One-step breaking that starts from a replica symmetric solution.

    Args:
        parisi: y, or None for that at which dPhi/dy = 0.

    Raises:
        InputError: a model that is out of its reach.
    """
    refuse(symmetric.problem)
    if symmetric.losses is None:
        return _none(symmetric, symmetric.status, "replica symmetry did not converge")
    try:
        return _broken(symmetric, parisi, accuracy)
    except TimeLimitError:
        return _none(symmetric, Status.TIME_LIMIT, "the time limit came first; what is shown is replica symmetric")


def _broken(symmetric: Solution, parisi: float | None, accuracy: float) -> BrokenSolution:
    """`broken`, of a problem within reach and a solution that has converged."""
    coarse = _map(symmetric, ladder(symmetric.problem)[0])
    begun = _begun(coarse, symmetric)
    if begun is None:
        words = "no breaking found: states that start apart come together at every y tried"
        return _none(symmetric, symmetric.status, words)
    found = _lowest(coarse, begun) if parisi is None else _at(coarse, begun, parisi)
    if isinstance(found, str):
        return _none(symmetric, Status.MAX_ITERATIONS, found)
    solution = _polished(symmetric, found, parisi is not None, accuracy)
    return solution or _none(symmetric, Status.LEFT_DOMAIN, "one-step breaking left its domain")


def _map(symmetric: Solution, rule: TiltedRule) -> BreakingMap:
    """For states with the symmetry of a replica symmetric solution."""
    return BreakingMap(symmetric.problem, rule, symmetric.symmetry or NO_SYMMETRY)


def continued(symmetric: Solution, state: Broken, y: float, accuracy: float = 1e-4) -> BrokenSolution | None:
    """The lowest states near those of a neighbouring problem, without a search; None where there are none.

    Args:
        symmetric: a replica symmetric solution of the problem itself, for what stands beside them.

    Raises:
        TimeLimitError: the time limit came before any were found.
    """
    rule = ladder(symmetric.problem)[0]
    rough, _ = tolerances(rule)
    try:
        found = newton(_map(symmetric, rule), state, y, rough, with_y=True)
    except (DomainError, np.linalg.LinAlgError):
        return None
    off = np.abs(found.state.pack() - state.pack()) / found.state.block_scales
    if not found.residual < rough or not _is_broken(found.state) or off.max() > _OFF:
        return None
    return _polished(symmetric, found, False, accuracy)


def _polished(symmetric: Solution, found: Reached, given: bool, accuracy: float) -> BrokenSolution | None:
    """From near a solution to its digits, by rules finer and finer; None where they leave the domain.

    Raises:
        TimeLimitError: before the first of them was done.
    """
    solution: BrokenSolution | None = None
    matrix: np.ndarray | None = None
    for rule in ladder(symmetric.problem):
        finer = _map(symmetric, rule)
        try:
            found = newton(finer, found.state, found.y, tolerances(rule, accuracy)[1], not given, matrix)
            matrix = found.matrix
            reached = _finished(symmetric, finer, found, given, accuracy)
        except DomainError:
            break
        except TimeLimitError:
            if solution is None:
                raise
            return replace(solution, status=Status.TIME_LIMIT)
        if solution is None or reached.relative_error < solution.relative_error:
            solution = reached
        if solution.relative_error <= accuracy:
            break
    return solution


def _none(symmetric: Solution, status: Status, words: str) -> BrokenSolution:
    """Replica symmetry, and why."""
    losses = symmetric.losses
    parts = (losses.data, losses.penalty) if losses else (np.nan, np.nan)
    return BrokenSolution(
        symmetric=symmetric, state=None, status=status, parisi=np.nan, given=False, residual=symmetric.residual,
        evaluations=0, rule=symmetric.rule, errors=np.zeros(0), within_errors=symmetric.errors, parisi_error=np.nan,
        energy=symmetric.training_loss, energy_error=symmetric.training_loss_error, complexity=0.0,
        complexity_error=0.0, parts=parts, test_error=symmetric.test_error, test_error_error=symmetric.test_error_error,
        multipliers=symmetric.multipliers, multipliers_error=symmetric.multipliers_error, stability=None, found=words,
    )  # fmt: skip


def _begun(breaking_map: BreakingMap, symmetric: Solution) -> Reached | None:
    """States at a large y, where they are close to one another, or at smaller ones; None where none are apart.

    At small y solutions even in W break apart into W and -W, whose q_0 is zero: what continues replica symmetry is
    found from above (docs/theory.md section 18).
    """
    overlaps = symmetric.overlaps
    q, V = (float(np.trace(block, axis1=1, axis2=2).max()) for block in (overlaps.q, overlaps.V))
    first = first_rate(breaking_map.rule) * V / q
    rough, _ = tolerances(breaking_map.rule)
    for y in (first / _FACTOR**k for k in range(_FEWER)):
        state = _apart(symmetric, y)
        with suppress(DomainError, np.linalg.LinAlgError):
            earlier = settled(breaking_map, state, y, _SETTLING // 2)
            state = settled(breaking_map, earlier, y, _SETTLING // 2)
            if _comes_together(breaking_map, earlier, state, y):
                continue
            found = newton(breaking_map, state, y, rough)
            if found.residual < rough and _is_broken(found.state):
                return found
    return None


def _apart(symmetric: Solution, y: float) -> Broken:
    """Replica symmetry with a part of V read as y Delta, no more than half of what q leaves beside the teacher."""
    overlaps = symmetric.overlaps
    distance = _SHARE / y * overlaps.V
    inverse = np.linalg.inv(symmetric.problem.law.rho_star)
    room = overlaps.q - overlaps.theta @ inverse @ overlaps.theta.transpose(0, 2, 1)
    share = float(max(np.linalg.eigvals(np.linalg.solve(r, d)).real.max() for r, d in zip(room, distance, strict=True)))
    distance = distance * min(1.0, 0.5 / share)
    return Broken(replace(overlaps, q=overlaps.q - distance, V=overlaps.V - y * distance), distance)


def _comes_together(breaking_map: BreakingMap, earlier: Broken, state: Broken, y: float) -> bool:
    """Whether Delta is on its way to zero: small ones become a Delta + b Delta^(1/2), b > 0 with jumps, and from two of
    them follows where that ends, which Newton's method would approach by halves."""
    sizes, factors = [], []
    for at in (earlier, state):
        now, image = (float(np.trace(one.distance, axis1=1, axis2=2).max()) for one in (at, breaking_map(at, y).image))
        sizes.append(now)
        factors.append(image / now)
    if not (sizes[1] < sizes[0] and factors[1] < 1):
        return False
    b = max(0.0, (factors[1] - factors[0]) / (sizes[1] ** -0.5 - sizes[0] ** -0.5))
    a = factors[1] - b * sizes[1] ** -0.5
    return bool((b / (1 - a)) ** 2 < _NEGLIGIBLE * np.trace(state.within.q, axis1=1, axis2=2).max())


def _is_broken(state: Broken) -> bool:
    sizes = np.trace(state.distance, axis1=1, axis2=2) / np.trace(state.within.q, axis1=1, axis2=2)
    return bool(sizes.max() > _NEGLIGIBLE)


def _along(breaking_map: BreakingMap, found: Reached, factor: float) -> Iterator[Reached]:
    """The same states at y times a factor, times it again, ..., in shorter steps where they change fast; it ends where
    they are lost.

    They are looked for where the last two point to, in q_0, V, m, theta and y Delta: other states, as those whose q_0
    is zero, may be near.
    """
    longest = stride = float(np.log(factor))
    slope = np.zeros(len(found.state.pack()))
    rough, _ = tolerances(breaking_map.rule)
    while abs(stride) > _SHORTEST * abs(longest):
        y = found.y * float(np.exp(stride))
        expected = _with_product(found) + stride * slope
        begun = Broken.unpack(expected, found.state.sizes)
        try:
            begun = replace(begun, distance=begun.distance / y)
            following = newton(breaking_map, begun, y, rough, matrix=found.matrix)
        except (DomainError, np.linalg.LinAlgError):
            stride /= 2
            continue
        count = len(following.state.between.pack())
        off = np.abs(following.state.pack() - expected)[:count] / following.state.block_scales[:count]
        if not following.residual < rough or not _is_broken(following.state) or off.max() > _OFF:
            stride /= 2
            continue
        slope = (_with_product(following) - _with_product(found)) / stride
        found = following
        stride = float(np.sign(longest)) * min(abs(longest), _LONGER * abs(stride))
        yield found


def _with_product(found: Reached) -> np.ndarray:
    """The packed state, y Delta in place of Delta."""
    return replace(found.state, distance=found.y * found.state.distance).pack()


def _at(breaking_map: BreakingMap, found: Reached, y: float) -> Reached | str:
    """The same states at another y, in steps; where they were lost, in words."""
    if abs(np.log(y / found.y)) > np.log(_FACTOR):
        path = _along(breaking_map, found, _FACTOR if y > found.y else 1 / _FACTOR)
        while abs(np.log(y / found.y)) > np.log(_FACTOR):
            following = next(path, None)
            if following is None:
                return f"states were lost near y = {found.y:.4g}, on the way to {y:.4g}"
            found = following
    return newton(breaking_map, found.state, y, tolerances(breaking_map.rule)[0])


def _lowest(breaking_map: BreakingMap, found: Reached) -> Reached | str:
    """Where y dPhi/dy, which increases through zero, does so; else why not, in words."""
    upward = found.answer.slope < 0
    path = _along(breaking_map, found, _FACTOR if upward else 1 / _FACTOR)
    for _ in range(_MORE):
        following = next(path, None)
        if following is None:
            return f"states were lost near y = {found.y:.4g}, before the complexity vanished"
        if (following.answer.slope < 0) != upward:
            ends = sorted((one.y * one.answer.slope, float(np.log(one.y))) for one in (found, following))
            (left, low), (right, high) = ends
            y = float(np.exp(np.interp(0.0, [left, right], [low, high])))
            nearer = min(found, following, key=lambda one: abs(np.log(one.y / y)))
            return newton(breaking_map, nearer.state, y, tolerances(breaking_map.rule)[0])
        found = following
    return (
        f"the complexity did not vanish up to y = {found.y:.4g}"
        if upward
        else (f"the complexity did not vanish down to y = {found.y:.4g}")
    )


def _finished(
    symmetric: Solution, breaking_map: BreakingMap, found: Reached, given: bool, accuracy: float
) -> BrokenSolution:
    """Half widths from a finer and a coarser rule, and what is reported.

    Raises:
        DomainError: another rule leaves the domain.
    """
    problem, rule, state, y, answer = symmetric.problem, breaking_map.rule, found.state, found.y, found.answer
    equations = Equations.around(breaking_map, state, y, not given)
    scales, units = equations.units(state, answer)
    assert found.matrix is not None
    scaled = found.matrix / units[:, None] * scales
    shifts, others, moved = [], [], []
    used = [equations.breaking_map.rule]
    for other in (rule.finer(), rule.coarser()):
        its = Equations.around(replace(breaking_map, rule=other), state, y, not given)
        gap, there = its.values(state, y)
        others.append(there)
        shifts.append(np.linalg.solve(scaled, -gap / units))
        # Where the other rule has the solution: second orders of soft directions, as that of y, are small there.
        moved.append(its.values(*its.state(its.unknowns(state, y) + shifts[-1] * scales, state, y))[1])
        used.append(its.breaking_map.rule)
    known = offsets(symmetric, used, state, y)
    counts = shift_counts(rule, shifts)
    strengths_error = None
    if problem.has_sphere:
        strengths_error = _strengths_error(equations, found, [shift * scales for shift in shifts], others, counts)
    moves = [equations.packed(shift * scales) for shift in shifts]
    within_moves = [Broken.unpack(move, state.sizes).within.pack() for move in moves]
    rest = found.residual + abs(answer.averages.mass - 1)
    widths = np.max([count * np.abs(shift) for count, shift in zip(counts, shifts, strict=True)], axis=0) + rest
    errors = (widths * scales)[: len(equations.directions)] @ np.abs(equations.directions)
    within_errors = np.max([count * np.abs(move) for count, move in zip(counts, within_moves, strict=True)], axis=0)
    within_errors = within_errors + rest * state.within.block_scales
    parisi_error = 0.0 if given else y * float(widths[-1])

    def width_of(values: Sequence[float]) -> float:
        """Of what a rule and the two others make of it."""
        sizes = (count * abs(value - values[0]) for count, value in zip(counts, values[1:], strict=True))
        return max(sizes) + rest**2 * abs(values[0])

    energies = [
        (_energy(one, y) if given else -one.free_entropy) - off
        for one, off in zip((answer, *moved), known, strict=True)
    ]
    complexity = _complexity(answer, y)
    rounding = _ROUNDING * (abs(answer.free_entropy) + problem.alpha * abs(answer.averages.moreau))
    energy_error = width_of(energies) + rounding + (symmetric.training_loss_error if any(known) else 0.0)
    complexity_error = 0.0
    if given:
        complexity_error = width_of([_complexity(one, y) for one in (answer, *moved)]) + abs(y) * rounding
    within = state.within
    test, test_own, nodes = observables.test_error(problem, within)
    test_error = test_own
    if nodes:
        for count, move in zip(counts, moves, strict=True):
            moved_to = Broken.unpack(state.pack() + move, state.sizes).within
            with suppress(DomainError):
                moved_by = abs(observables.average_metric(problem, moved_to, nodes) - test)
                test_error = max(test_error, count * moved_by + test_own)
    status = Status.CONVERGED
    if found.residual > 1e2 * tolerances(rule, accuracy)[1]:
        status = Status.MAX_ITERATIONS
    elif relative_error(state, errors, within_errors) > accuracy:
        status = Status.ACCURACY_NOT_REACHED
    elif not symmetric.success and branch_of(within, within_errors) == symmetric.branch:
        status = symmetric.status
    return BrokenSolution(
        symmetric=symmetric, state=state, status=status, parisi=y, given=given, residual=found.residual,
        evaluations=found.evaluations, rule=rule, errors=errors, within_errors=within_errors,
        parisi_error=parisi_error, energy=energies[0], energy_error=energy_error,
        complexity=complexity if given else 0.0, complexity_error=complexity_error,
        parts=_parts(problem, answer), test_error=test, test_error_error=test_error,
        multipliers=answer.rows.strengths if problem.has_sphere else None, multipliers_error=strengths_error,
        stability=_splitting(breaking_map, state, y, answer),
    )  # fmt: skip


def _complexity(answer: Answer, y: float) -> float:
    return -(y**2) * answer.slope


def _energy(answer: Answer, y: float) -> float:
    return -answer.free_entropy - y * answer.slope


def _parts(problem: Problem, answer: Answer) -> tuple[float, float]:
    """Data and penalty, whose sum is the energy at the saddle point."""
    data = problem.alpha * answer.averages.loss
    return data, 0.0 if problem.has_sphere else answer.rows.penalty()


def _strengths_error(
    equations: Equations,
    found: Reached,
    shifts: Sequence[np.ndarray],
    others: Sequence[Answer],
    counts: Sequence[float],
) -> np.ndarray:
    """Half widths of the multipliers of given norms, (s,): what moves a solution moves them through averages and state.

    The two parts are added, not set off against each other (as in `solving.multipliers`).

    Args:
        shifts: of the unknowns by other rules; others: their answers at the state; counts: what they count for.
    """
    here = found.answer.rows.strengths
    widths, z = np.zeros_like(here), equations.unknowns(found.state, found.y)
    for count, shift, other in zip(counts, shifts, others, strict=True):
        try:
            moved = equations.values(*equations.state(z + shift, found.state, found.y))[1].rows.strengths
        except DomainError:
            return np.full_like(here, np.inf)  # nothing is known
        widths = np.maximum(widths, count * (np.abs(other.rows.strengths - here) + np.abs(moved - here)))
    softening = np.abs(here) + np.abs(found.answer.within.V).max()  # of which they are a difference
    return widths + (_ROUNDING + found.residual + abs(found.answer.averages.mass - 1)) * softening


def _splitting(breaking_map: BreakingMap, state: Broken, y: float, answer: Answer) -> Splitting:
    """Both roots, by a rule and the next finer one."""
    problem, rule = breaking_map.problem, breaking_map.rule
    roots, responses = [], answer.rows.squares()
    for used in (rule, rule.finer()):
        found = averages(problem, state, y, used, slopes=True)
        roots.append([radius(problem, square[0], own) for square, own in zip(found.squares, responses, strict=True)])
        bistable = found.bistable
    (one, two), (one_finer, two_finer) = roots
    safety = DIFFERENCE_SAFETY
    return Splitting(one, safety * abs(one_finer - one), two, safety * abs(two_finer - two), bistable)
