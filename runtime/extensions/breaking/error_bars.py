"""Error bars of states with replica symmetry broken, and the solution that reports them.

They follow from a finer and a coarser rule, or from the sets of nodes of a rule of samples, as in `solving.error_bars`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...base import progress
from ...base.errors import DomainError
from ...integration.estimates import difference_factors, two_standard_errors
from ...integration.rule import DIFFERENCE_SAFETY
from ...integration.tilted_samples import Samples
from ...integration.tilted_sums import TiltedRule
from ...solving.error_bars import ObservableEstimate, estimate_observables
from ...solving.solution import Solution
from ...stability.assess import replicon_root
from .newton import Equations, NewtonResult
from .rules import energy_offsets
from .solution import BreakingStability, BrokenSolution, status_of
from .state import BrokenState
from .state_map import BreakingMap, MapEvaluation

ROUNDING = 1024 * np.finfo(float).eps


@progress.progress_step("error bars of broken replica symmetry")
def build_solution(
    symmetric: Solution, breaking_map: BreakingMap, found: NewtonResult, given: bool, accuracy: float,
    once: BrokenSolution | None = None,
) -> BrokenSolution:  # fmt: skip
    """Return the solution at converged states, with error bars and observables.

    Args:
        symmetric: the replica symmetric solution.
        breaking_map: the map of states with its rule of integration.
        found: the states.
        given: whether y is fixed.
        accuracy: required error bar of overlaps, relative to their blocks.
        once: of a second step the solution with one step.

    Raises:
        DomainError: another rule, or a set of nodes, leaves the domain.
    """
    problem, state, rates, answer = symmetric.problem, found.state, found.rates, found.answer
    if isinstance(breaking_map.rule, Samples):
        numbers, error_bar = _estimate_by_sets(symmetric, breaking_map, found, given)
    else:
        numbers, error_bar = _estimate_by_other_rules(symmetric, breaking_map, found, given, once)
    errors, within_errors, residual = numbers["errors"], numbers["within_errors"], found.residual
    return BrokenSolution(
        symmetric=symmetric, state=state, rates=tuple(map(float, rates)), given=given, residual=residual,
        status=status_of(symmetric, breaking_map.rule, residual, state, errors, within_errors, accuracy),
        evaluations=found.evaluations, rule=breaking_map.rule, parts=answer.energy_parts(problem),
        multipliers=answer.rows.strengths if problem.regulariser.keeps_norms else None,
        stability=_assess_further_breaking(breaking_map, state, rates, answer), shallower=once,
        observed=estimate_observables(problem, state.within, accuracy, error_bar), **numbers,
    )  # fmt: skip


Numbers = tuple[dict[str, Any], Callable[[ObservableEstimate], float]]
"""Fields of a solution, and a function that returns the error bar of an observable."""


def _estimate_by_other_rules(
    symmetric: Solution, breaking_map: BreakingMap, found: NewtonResult, given: bool, once: BrokenSolution | None
) -> Numbers:
    """Return energies and error bars from a finer and a coarser rule.

    Raises:
        DomainError: another rule leaves the domain.
    """
    problem, rule, answer = symmetric.problem, breaking_map.rule, found.answer
    state, rates, y = found.state, found.rates, found.outer_rate
    equations = Equations.at_state(breaking_map, state, rates, not given)
    scales, units = equations.scales(state, answer)
    assert found.matrix is not None
    scaled = found.matrix / units[:, None] * scales
    shifts, others, moved = [], [], []
    used = [equations.breaking_map]
    for other in (rule.finer_rule(), rule.coarser_rule()):
        its = Equations.at_state(replace(breaking_map, rule=other), state, rates, not given)
        gap, there = its.evaluate(state, rates)
        others.append(there)
        shifts.append(np.linalg.solve(scaled, -gap / units))
        # At the solution of the other rule: second orders of soft directions, as that of y, are small there.
        moved.append(its.evaluate(*its.state_of(its.unknowns_of(state, rates) + shifts[-1] * scales, state, rates))[1])
        used.append(its.breaking_map)
    known = [0.0] * len(used)
    if rule.errors_cancel:
        known = (
            _two_step_offsets(once, used, state)
            if once
            else energy_offsets(symmetric, [one.rule for one in used], state, y)
        )
    counts = difference_factors(*shifts, max_rate=rule.max_rate)
    moves = [equations.packed_state(shift * scales) for shift in shifts]
    within_moves = [BrokenState.unpack(move, state.sizes).within.pack() for move in moves]
    rest = found.residual + abs(answer.averages.mass - 1)
    widths = np.max([count * np.abs(shift) for count, shift in zip(counts, shifts, strict=True)], axis=0) + rest
    errors = (widths * scales)[: len(equations.directions)] @ np.abs(equations.directions)
    within_errors = np.max([count * np.abs(move) for count, move in zip(counts, within_moves, strict=True)], axis=0)
    within_errors = within_errors + rest * state.within.block_scales
    rate_errors = 0.0 * rates if given else rates * widths[len(equations.directions) :]

    def error_of(values: Sequence[float]) -> float:
        """Return the error bar of a number from its values by the rule and the two others."""
        sizes = (count * abs(value - values[0]) for count, value in zip(counts, values[1:], strict=True))
        return max(sizes) + rest**2 * abs(values[0])

    energies = [
        (_energy(one, y) if given else -one.free_entropy) - off
        for one, off in zip((answer, *moved), known, strict=True)
    ]
    rounding = ROUNDING * (abs(answer.free_entropy) + problem.alpha * abs(answer.averages.moreau))
    complexities = [_complexity(one, y) for one in (answer, *moved)]

    def error_bar(estimate: ObservableEstimate) -> float:
        changes = np.array(counts) * np.abs(estimate.changes(state.within.pack(), within_moves))
        return float(np.nanmax([0.0, *changes])) + estimate.own

    return {
        "errors": errors, "within_errors": within_errors, "rate_errors": tuple(map(float, rate_errors)),
        "energy": energies[0], "own_error": error_of(energies) + rounding,
        "complexity": complexities[0] if given else 0.0,
        "complexity_error": error_of(complexities) + abs(y) * rounding if given else 0.0,
        "multipliers_error": _multiplier_errors_by_rules(
            equations, found, [shift * scales for shift in shifts], others, counts
        ),
    }, error_bar  # fmt: skip


def _two_step_offsets(once: BrokenSolution, used: Sequence[BreakingMap], state: BrokenState) -> list[float]:
    """Return the errors of maps of two steps for the energy of one, as in `energy_offsets`.

    Both steps have the same y, and Delta is divided between them as in a state of two steps.
    """
    assert once.state is not None
    traces = np.trace(state.distances, axis1=2, axis2=3).sum(axis=1)
    shares = (traces / traces.sum())[:, None, None, None]
    shared = BrokenState(once.state.between, shares * once.state.distances)
    rates = np.full(len(shares), once.rates[0])
    return [-one(shared, rates).free_entropy - once.energy for one in used]


def _complexity(answer: MapEvaluation, y: float) -> float:
    return -(y**2) * float(answer.slopes[0])


def _energy(answer: MapEvaluation, y: float) -> float:
    return -answer.free_entropy - y * float(answer.slopes[0])


def _multiplier_errors_by_rules(
    equations: Equations,
    found: NewtonResult,
    shifts: Sequence[np.ndarray],
    others: Sequence[MapEvaluation],
    counts: Sequence[float],
) -> np.ndarray | None:
    """Return the error bars of the multipliers of given norms, (s,); None without given norms.

    Changes by averages and by the state are added, and do not compensate (as in `solving.error_bars`).

    Args:
        equations: the equations of the state.
        found: the state.
        shifts: of the unknowns by other rules.
        others: the map by other rules, evaluated at the state.
        counts: factors of the differences in error bars.
    """
    if not equations.breaking_map.problem.regulariser.keeps_norms:
        return None
    here = found.answer.rows.strengths
    widths, z = np.zeros_like(here), equations.unknowns_of(found.state, found.rates)
    for count, shift, other in zip(counts, shifts, others, strict=True):
        try:
            moved = equations.evaluate(*equations.state_of(z + shift, found.state, found.rates))[1].rows.strengths
        except DomainError:
            return np.full_like(here, np.inf)  # nothing is known
        widths = np.maximum(widths, count * (np.abs(other.rows.strengths - here) + np.abs(moved - here)))
    softening = np.abs(here) + np.abs(found.answer.hats[-1].V).max()  # of which they are a difference
    return widths + (ROUNDING + found.residual + abs(found.answer.averages.mass - 1)) * softening


def _estimate_by_sets(symmetric: Solution, breaking_map: BreakingMap, found: NewtonResult, given: bool) -> Numbers:
    """Return energies and error bars by samples: states change by the residuals that every set of nodes has.

    Derivatives, and the effect of twice as many samples a node, are taken with a quarter of the outer nodes.

    Raises:
        DomainError: a set leaves the domain.
    """
    problem, rule = symmetric.problem, breaking_map.rule
    assert isinstance(rule, Samples)
    state, rates, answer, y = found.state, found.rates, found.answer, found.outer_rate
    smaller = rule.with_fewer_points()
    equations = Equations.at_state(replace(breaking_map, rule=smaller), state, rates, with_y=True)
    z, n = equations.unknowns_of(state, rates), len(equations.directions)
    gap, few = equations.evaluate(state, rates)
    matrix = equations.jacobian(z, state, rates, gap, few)
    scales, _ = equations.scales(state, few)
    solved = n if given else n + 1
    inverse = np.linalg.inv(matrix[:solved, :solved])

    def evaluate_with(other: Samples) -> tuple[np.ndarray, MapEvaluation]:
        return Equations.at_state(replace(breaking_map, rule=other), state, rates, with_y=True).evaluate(state, rates)

    sets = [evaluate_with(one) for one in rule.replicates]
    # Rows are nonlinear in the conjugates: the residuals of all sets together are not the mean of those of each.
    whole = equations.residuals(answer, state, rates)
    deeper_gap, deeper = evaluate_with(smaller.with_more_samples())
    shifts = np.array([-inverse @ each[:solved] for each, _ in sets])
    deep = -inverse @ (deeper_gap - gap)[:solved]
    rest = abs(answer.averages.mass - 1)
    left = -inverse @ whole[:solved]
    bias = (shifts.mean(axis=0) - left) / len(sets)  # bias of the mean of all sets by the nonlinearity of rows
    others = np.array([left, bias, DIFFERENCE_SAFETY * deep])
    widths = two_standard_errors(shifts) + np.abs(others).sum(axis=0) + rest * scales[:solved]
    moves = shifts[:, :n] @ equations.directions
    deep_move = deep[:n] @ equations.directions
    withins, further = (
        np.array([BrokenState.unpack(move, state.sizes).within.pack() for move in each])
        for each in (moves, others[:, :n] @ equations.directions)
    )
    within_errors = two_standard_errors(withins) + np.abs(further).sum(axis=0) + rest * state.within.block_scales
    errors = widths[:n] @ np.abs(equations.directions)
    rate_errors = 0.0 * rates if given else rates * widths[n:]

    # y dPhi/dy at the moved states; Phi is stationary in them.
    slope, slopes, deep_slope = 0.0, np.zeros(len(sets)), 0.0
    if given:
        slopes = np.array([each[n] for each, _ in sets]) + shifts @ matrix[n, :n]
        slope = float(whole[n] + matrix[n, :n] @ left)
        deep_slope = float((deeper_gap - gap)[n] + deep @ matrix[n, :n])
    known = _offsets_of_sets(symmetric, rule)
    energy = -answer.free_entropy - slope - float(known.mean())
    energies = -problem.alpha * np.array([each.averages.free[0] for _, each in sets]) - slopes - known
    energy_error = float(two_standard_errors(energies[:, None])[0])
    energy_error += DIFFERENCE_SAFETY * abs(few.free_entropy - deeper.free_entropy - deep_slope)
    complexity_error = float(y * (two_standard_errors(slopes[:, None])[0] + DIFFERENCE_SAFETY * abs(deep_slope)))
    of_one = [*(withins / rule.scramblings), BrokenState.unpack(deep_move, state.sizes).within.pack()]

    def error_bar(estimate: ObservableEstimate) -> float:
        *changes, add_second_step = estimate.changes(state.within.pack(), of_one)
        width = float(two_standard_errors(np.array(changes)[:, None] * rule.scramblings)[0])
        width += DIFFERENCE_SAFETY * abs(float(add_second_step))
        return estimate.own + (width if np.isfinite(width) else np.inf)  # where a set leaves the domain

    return {
        "errors": errors, "within_errors": within_errors, "rate_errors": tuple(map(float, rate_errors)),
        "energy": energy, "own_error": energy_error, "complexity": -y * slope if given else 0.0,
        "complexity_error": complexity_error if given else 0.0,
        "multipliers_error": _multiplier_errors_by_sets(equations, found, few, sets, shifts),
    }, error_bar  # fmt: skip


def _offsets_of_sets(symmetric: Solution, rule: Samples) -> np.ndarray:
    """Return the error of every set of nodes for the replica symmetric training loss, (R,).

    The energy of states with breaking, which are close to it, has nearly the same error.
    """
    problem, overlaps = symmetric.problem, symmetric.overlaps
    own = rule.without_breaking().averages(problem, overlaps).moreau
    return np.asarray(problem.alpha * (own - symmetric.rule.averages(problem, overlaps).moreau.mean()))


def _multiplier_errors_by_sets(
    equations: Equations,
    found: NewtonResult,
    few: MapEvaluation,
    sets: list[tuple[np.ndarray, MapEvaluation]],
    shifts: np.ndarray,
) -> np.ndarray | None:
    """Return the error bars of the multipliers of given norms, (s,), from sets of nodes; None without given norms."""
    if not equations.breaking_map.problem.regulariser.keeps_norms:
        return None
    z, here = equations.unknowns_of(found.state, found.rates), found.answer.rows.strengths
    moved = []
    for shift, (_, own) in zip(shifts, sets, strict=True):
        step = np.pad(shift, (0, len(z) - len(shift)))  # y is unchanged where it is fixed
        try:
            there = equations.evaluate(*equations.state_of(z + step, found.state, found.rates))[1].rows.strengths
        except DomainError:
            return np.full_like(here, np.inf)  # nothing is known
        moved.append(own.rows.strengths - here + there - few.rows.strengths)
    return two_standard_errors(np.array(moved))


def _assess_further_breaking(
    breaking_map: BreakingMap, state: BrokenState, rates: np.ndarray, answer: MapEvaluation
) -> BreakingStability:
    """Return the stability against further breaking, with error bars from two coarser rules or from sets of nodes.

    Errors of grids oscillate as their nodes pass points where second minima appear: one other rule may agree by chance.
    """
    problem, rule, responses = breaking_map.problem, breaking_map.rule, answer.rows.squares()
    if isinstance(rule, Samples):
        used: tuple[TiltedRule, ...] = rule.with_fewer_points().replicates
    else:
        used = rule.coarser_rule().coarser_rule(), rule.coarser_rule(), rule
    found = [each.tilted_averages(problem, state.between, state.distances, rates, slopes=True) for each in used]
    roots = np.array([
        [replicon_root(problem, square[0], own) for square, own in zip(each.squares, responses, strict=True)]
        for each in found
    ])  # fmt: skip
    if isinstance(rule, Samples):
        best, errors = roots.mean(axis=0), two_standard_errors(roots)
        bistable = float(np.mean([each.bistable for each in found]))
    else:
        best, errors = roots[-1], DIFFERENCE_SAFETY * np.abs(roots[:-1] - roots[-1]).max(axis=0)
        bistable = found[-1].bistable
    (one, two), (one_error, two_error) = best.tolist(), errors.tolist()
    return BreakingStability(one, one_error, two, two_error, bistable, len(rates))
