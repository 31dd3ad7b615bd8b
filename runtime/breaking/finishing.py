"""From a saddle point with replica symmetry broken to a solution: finer rules, half widths, what is reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..errors import DomainError, TimeLimitError
from ..integration.rule import DIFFERENCE_SAFETY
from ..integration.tilted_samples import Samples
from ..problems.symmetry import NO_SYMMETRY
from ..saddle_point.iteration import Status
from ..solving.finishing import Tested, others_by_name
from ..solving.solution import Solution
from ..stability.assess import radius
from . import sampling
from .newton import Equations, Reached, newton
from .rules import TiltedRule, averages, ladder, offsets, shift_counts, told_beside, tolerances
from .solution import BrokenSolution, Splitting, status_of
from .state import Broken
from .state_map import Answer, BreakingMap

NEGLIGIBLE = 1e-6  # Delta over q below which there is no breaking
_ROUNDING = 1024 * np.finfo(float).eps


def map_of(symmetric: Solution, rule: TiltedRule) -> BreakingMap:
    """For states with the symmetry of a replica symmetric solution."""
    return BreakingMap(symmetric.problem, rule, symmetric.symmetry or NO_SYMMETRY)


def is_broken(state: Broken) -> bool:
    """Whether every Delta can be told from zero."""
    sizes = np.trace(state.distances, axis1=2, axis2=3) / np.trace(state.within.q, axis1=1, axis2=2)
    return bool(sizes.max(axis=1).min() > NEGLIGIBLE)


def unbroken(symmetric: Solution, status: Status, words: str) -> BrokenSolution:
    """Replica symmetry, and why."""
    losses = symmetric.losses
    parts = (losses.data, losses.penalty) if losses else (np.nan, np.nan)
    return BrokenSolution(
        symmetric=symmetric, state=None, status=status, rates=(), given=False, residual=symmetric.residual,
        evaluations=0, rule=symmetric.rule, errors=np.zeros(0), within_errors=symmetric.errors, rate_errors=(),
        energy=symmetric.training_loss, own_error=symmetric.training_loss_error, complexity=0.0, complexity_error=0.0,
        parts=parts, test_error=symmetric.test_error, test_error_error=symmetric.test_error_error,
        other_errors=symmetric.other_errors,
        multipliers=symmetric.multipliers, multipliers_error=symmetric.multipliers_error, stability=None, found=words,
    )  # fmt: skip


def polished(
    symmetric: Solution, found: Reached, given: bool, accuracy: float, rules: Sequence[TiltedRule] = (),
    once: BrokenSolution | None = None,
) -> BrokenSolution | None:  # fmt: skip
    """From near a solution to its digits, by rules finer and finer; None where they leave the domain.

    Args:
        rules: those of the problem where none are named; once: of a second step the first.

    Raises:
        TimeLimitError: before the first of them was done.
    """
    solution: BrokenSolution | None = None
    matrix: np.ndarray | None = None
    for rule in rules or ladder(symmetric.problem):
        finer = map_of(symmetric, rule)
        try:
            found = newton(finer, found.state, found.rates, tolerances(rule, accuracy)[1], not given, matrix)
            matrix = found.matrix
            if isinstance(rule, Samples):
                reached = sampling.finished(symmetric, finer, found, given, accuracy)
            else:
                reached = _finished(symmetric, finer, found, given, accuracy, once)
        except DomainError:
            break
        except TimeLimitError:
            if solution is None:
                raise
            return replace(solution, status=Status.TIME_LIMIT)
        if solution is None or reached.relative_error < solution.relative_error or _refuted(solution, reached):
            solution = reached
        if solution.relative_error <= accuracy:
            break
    return solution


def _refuted(solution: BrokenSolution, finer: BrokenSolution) -> bool:
    """Whether a finer rule has the states where half widths, small by chance, do not reach."""
    assert solution.state is not None and finer.state is not None
    return bool(np.any(np.abs(finer.state.pack() - solution.state.pack()) > solution.errors + _ROUNDING))


def _finished(
    symmetric: Solution, breaking_map: BreakingMap, found: Reached, given: bool, accuracy: float,
    once: BrokenSolution | None,
) -> BrokenSolution:  # fmt: skip
    """Half widths from a finer and a coarser rule, and what is reported.

    Raises:
        DomainError: another rule leaves the domain.
    """
    problem, rule, answer = symmetric.problem, breaking_map.rule, found.answer
    assert not isinstance(rule, Samples)
    state, rates, y = found.state, found.rates, found.y
    equations = Equations.around(breaking_map, state, rates, not given)
    scales, units = equations.units(state, answer)
    assert found.matrix is not None
    scaled = found.matrix / units[:, None] * scales
    shifts, others, moved = [], [], []
    used = [equations.breaking_map]
    for other in (rule.finer(), rule.coarser()):
        its = Equations.around(replace(breaking_map, rule=other), state, rates, not given)
        gap, there = its.values(state, rates)
        others.append(there)
        shifts.append(np.linalg.solve(scaled, -gap / units))
        # Where the other rule has the solution: second orders of soft directions, as that of y, are small there.
        moved.append(its.values(*its.state(its.unknowns(state, rates) + shifts[-1] * scales, state, rates))[1])
        used.append(its.breaking_map)
    known = [0.0] * len(used)
    if told_beside(rule):
        known = _offsets_beside(once, used, state) if once else offsets(symmetric, [one.rule for one in used], state, y)
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
    rate_errors = 0.0 * rates if given else rates * widths[len(equations.directions) :]

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
    complexity_error = 0.0
    if given:
        complexity_error = width_of([_complexity(one, y) for one in (answer, *moved)]) + abs(y) * rounding
    tested = Tested.by_metric(problem, state.within, accuracy)
    tests_error = []
    for test in tested:
        changes = np.array(counts) * np.abs(test.changes(state.within.pack(), within_moves))
        tests_error.append(float(np.nanmax([0.0, *changes])) + test.own)
    status = status_of(symmetric, rule, found.residual, state, errors, within_errors, accuracy)
    return BrokenSolution(
        symmetric=symmetric, state=state, status=status, rates=tuple(map(float, rates)), given=given,
        residual=found.residual, evaluations=found.evaluations, rule=rule, errors=errors, within_errors=within_errors,
        rate_errors=tuple(map(float, rate_errors)), energy=energies[0], own_error=width_of(energies) + rounding,
        complexity=complexity if given else 0.0, complexity_error=complexity_error,
        parts=answer.parts(problem), test_error=tested[0].value, test_error_error=tests_error[0],
        other_errors=others_by_name(tested, tests_error),
        multipliers=answer.rows.strengths if problem.has_sphere else None, multipliers_error=strengths_error,
        stability=_splitting(breaking_map, state, rates, answer), shallower=once,
    )  # fmt: skip


def _offsets_beside(once: BrokenSolution, used: Sequence[BreakingMap], state: Broken) -> list[float]:
    """How far above the energy of one step what maps of two make of it lies, with one y for both and Delta shared out
    between them as in a state of two: as of `offsets`."""
    assert once.state is not None
    traces = np.trace(state.distances, axis1=2, axis2=3).sum(axis=1)
    shares = (traces / traces.sum())[:, None, None, None]
    shared = Broken(once.state.between, shares * once.state.distances)
    rates = np.full(len(shares), once.rates[0])
    return [-one(shared, rates).free_entropy - once.energy for one in used]


def _complexity(answer: Answer, y: float) -> float:
    return -(y**2) * float(answer.slopes[0])


def _energy(answer: Answer, y: float) -> float:
    return -answer.free_entropy - y * float(answer.slopes[0])


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
    widths, z = np.zeros_like(here), equations.unknowns(found.state, found.rates)
    for count, shift, other in zip(counts, shifts, others, strict=True):
        try:
            moved = equations.values(*equations.state(z + shift, found.state, found.rates))[1].rows.strengths
        except DomainError:
            return np.full_like(here, np.inf)  # nothing is known
        widths = np.maximum(widths, count * (np.abs(other.rows.strengths - here) + np.abs(moved - here)))
    softening = np.abs(here) + np.abs(found.answer.hats[-1].V).max()  # of which they are a difference
    return widths + (_ROUNDING + found.residual + abs(found.answer.averages.mass - 1)) * softening


def _splitting(breaking_map: BreakingMap, state: Broken, rates: np.ndarray, answer: Answer) -> Splitting:
    """Both roots, by a rule; half widths from two coarser ones, which are cheap beside the solution.

    Errors of grids oscillate as their nodes pass places where wells begin: one other rule may agree by chance."""
    problem, rule = breaking_map.problem, breaking_map.rule
    assert not isinstance(rule, Samples)
    roots, responses = [], answer.rows.squares()
    for used in (rule.coarser().coarser(), rule.coarser(), rule):
        found = averages(problem, state, rates, used, slopes=True)
        roots.append([radius(problem, square[0], own) for square, own in zip(found.squares, responses, strict=True)])
        bistable = found.bistable
    one, two = roots[-1]
    errors = DIFFERENCE_SAFETY * np.abs(np.array(roots[:-1]) - roots[-1]).max(axis=0)
    return Splitting(one, float(errors[0]), two, float(errors[1]), bistable, len(rates))
