"""From a saddle point with replica symmetry broken, by samples, to a solution: half widths from replicates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .. import progress
from ..errors import DomainError
from ..integration.estimates import two_standard_errors
from ..integration.rule import DIFFERENCE_SAFETY
from ..integration.tilted_samples import Samples
from ..solving.finishing import Tested, others_by_name
from ..solving.solution import Solution
from ..stability.assess import radius
from .newton import Equations, Reached
from .rules import averages
from .solution import BrokenSolution, Splitting, status_of
from .state import Broken
from .state_map import Answer, BreakingMap


@progress.step("error bars of broken replica symmetry")
def finished(
    symmetric: Solution, breaking_map: BreakingMap, found: Reached, given: bool, accuracy: float
) -> BrokenSolution:
    """What is reported of states found by samples: every set of nodes moves them by what it says of the equations.

    Derivatives, and what twice as many samples a node would change, are taken of a quarter of the outer nodes.

    Raises:
        DomainError: a set leaves the domain.
    """
    problem, rule = symmetric.problem, breaking_map.rule
    assert isinstance(rule, Samples)
    state, rates, answer, y = found.state, found.rates, found.answer, found.y
    smaller = rule.smaller()
    equations = Equations.around(replace(breaking_map, rule=smaller), state, rates, with_y=True)
    z, n = equations.unknowns(state, rates), len(equations.directions)
    gap, few = equations.values(state, rates)
    matrix = equations.matrix(z, state, rates, gap, few)
    scales, _ = equations.units(state, few)
    solved = n if given else n + 1
    inverse = np.linalg.inv(matrix[:solved, :solved])

    def by(other: Samples) -> tuple[np.ndarray, Answer]:
        return Equations.around(replace(breaking_map, rule=other), state, rates, with_y=True).values(state, rates)

    sets = [by(rule.replicate(k)) for k in range(rule.scramblings)]
    # Rows bend with what they are given: what all sets make is not the mean of what each of them makes.
    whole = equations.gap(answer, state, rates)
    deeper_gap, deeper = by(smaller.deeper())
    shifts = np.array([-inverse @ each[:solved] for each, _ in sets])
    deep = -inverse @ (deeper_gap - gap)[:solved]
    rest = abs(answer.averages.mass - 1)
    left = -inverse @ whole[:solved]
    bent = (shifts.mean(axis=0) - left) / len(sets)  # what rows bend the mean of all sets by
    others = np.array([left, bent, DIFFERENCE_SAFETY * deep])
    widths = two_standard_errors(shifts) + np.abs(others).sum(axis=0) + rest * scales[:solved]
    moves = shifts[:, :n] @ equations.directions
    deep_move = deep[:n] @ equations.directions
    withins, further = (
        np.array([Broken.unpack(move, state.sizes).within.pack() for move in each])
        for each in (moves, others[:, :n] @ equations.directions)
    )
    within_errors = two_standard_errors(withins) + np.abs(further).sum(axis=0) + rest * state.within.block_scales
    errors = widths[:n] @ np.abs(equations.directions)
    rate_errors = 0.0 * rates if given else rates * widths[n:]

    # y dPhi/dy once the states have moved; Phi does not change with them.
    slope, slopes, deep_slope = 0.0, np.zeros(len(sets)), 0.0
    if given:
        slopes = np.array([each[n] for each, _ in sets]) + shifts @ matrix[n, :n]
        slope = float(whole[n] + matrix[n, :n] @ left)
        deep_slope = float((deeper_gap - gap)[n] + deep @ matrix[n, :n])
    known = _beside(symmetric, rule)
    energy = -answer.free_entropy - slope - float(known.mean())
    energies = -problem.alpha * np.array([each.averages.free[0] for _, each in sets]) - slopes - known
    energy_error = float(two_standard_errors(energies[:, None])[0])
    energy_error += DIFFERENCE_SAFETY * abs(few.free_entropy - deeper.free_entropy - deep_slope)
    complexity_error = float(y * (two_standard_errors(slopes[:, None])[0] + DIFFERENCE_SAFETY * abs(deep_slope)))

    tested = Tested.by_metric(problem, state.within, accuracy)
    of_one = [*(withins / rule.scramblings), Broken.unpack(deep_move, state.sizes).within.pack()]
    tests_error = []
    for test in tested:
        width = 0.0
        if test.rule is not None:
            *changes, deepened = test.changes(state.within.pack(), of_one)
            width = float(two_standard_errors(np.array(changes)[:, None] * rule.scramblings)[0])
            width += DIFFERENCE_SAFETY * abs(float(deepened))
            width = width if np.isfinite(width) else np.inf  # where a set leaves the domain
        tests_error.append(test.own + width)
    status = status_of(symmetric, rule, found.residual, state, errors, within_errors, accuracy)
    return BrokenSolution(
        symmetric=symmetric, state=state, status=status, rates=tuple(map(float, rates)), given=given,
        residual=found.residual, evaluations=found.evaluations, rule=rule, errors=errors, within_errors=within_errors,
        rate_errors=tuple(map(float, rate_errors)), energy=energy, own_error=energy_error,
        complexity=-y * slope if given else 0.0, complexity_error=complexity_error if given else 0.0,
        parts=answer.parts(problem), test_error=tested[0].value, test_error_error=tests_error[0],
        other_errors=others_by_name(tested, tests_error),
        multipliers=answer.rows.strengths if problem.has_sphere else None,
        multipliers_error=_strengths_error(equations, found, few, sets, shifts) if problem.has_sphere else None,
        stability=_splitting(breaking_map, state, rates, smaller, answer),
    )  # fmt: skip


def _beside(symmetric: Solution, rule: Samples) -> np.ndarray:
    """How far above the training loss of replica symmetry every set of nodes puts it, (R,): states with blocks, which
    are close to it, are off by nearly the same."""
    problem, overlaps = symmetric.problem, symmetric.overlaps
    own = rule.beside().averages(problem, overlaps).moreau
    return np.asarray(problem.alpha * (own - symmetric.rule.averages(problem, overlaps).moreau.mean()))


def _strengths_error(
    equations: Equations, found: Reached, few: Answer, sets: list[tuple[np.ndarray, Answer]], shifts: np.ndarray
) -> np.ndarray:
    """Half widths of the multipliers of given norms, (s,): sets of nodes move them through averages and state."""
    z, here = equations.unknowns(found.state, found.rates), found.answer.rows.strengths
    moved = []
    for shift, (_, own) in zip(shifts, sets, strict=True):
        step = np.pad(shift, (0, len(z) - len(shift)))  # y stays where it is given
        try:
            there = equations.values(*equations.state(z + step, found.state, found.rates))[1].rows.strengths
        except DomainError:
            return np.full_like(here, np.inf)  # nothing is known
        moved.append(own.rows.strengths - here + there - few.rows.strengths)
    return two_standard_errors(np.array(moved))


def _splitting(breaking_map: BreakingMap, state: Broken, rates: np.ndarray, rule: Samples, answer: Answer) -> Splitting:
    """Both roots, from averages over all sets of a rule; half widths from those of one set each."""
    problem, responses = breaking_map.problem, answer.rows.squares()

    def roots(other: Samples) -> tuple[list[float], float]:
        found = averages(problem, state, rates, other, slopes=True)
        pairs = zip(found.squares, responses, strict=True)
        return [radius(problem, square[0], own) for square, own in pairs], found.bistable

    each = [roots(rule.replicate(k)) for k in range(rule.scramblings)]
    values = np.array([found for found, _ in each])
    (one, two), widths = values.mean(axis=0), two_standard_errors(values)
    bistable = float(np.mean([found for _, found in each]))
    return Splitting(float(one), float(widths[0]), float(two), float(widths[1]), bistable, len(rates))
