"""Error bars of states with broken replica symmetry, and the solution object that contains them.

They follow from a finer and a coarser rule, or from the independent node sets of a sampled rule, as in
`solving.error_bars`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...base import progress
from ...base.errors import DomainError
from ...integration.estimates import convergence_rate_factors, replicate_error_bar
from ...integration.rule import DIFFERENCE_SAFETY
from ...integration.tilted_samples import NestedSobolRule
from ...integration.tilted_sums import TiltedRule
from ...solving.error_bars import ObservableEstimate, estimate_observables
from ...solving.solution import Solution
from ...stability.assess import perron_root_of_replicon_map
from .newton import BreakingEquations, NewtonResult
from .rules import energy_errors_of_rules
from .solution import BreakingStability, BrokenSolution, status_of_states
from .state import BrokenState
from .state_map import BreakingMap, MapEvaluation

ROUNDING = 1024 * np.finfo(float).eps


@progress.progress_step("error bars of broken replica symmetry")
def build_broken_solution(
    symmetric: Solution, breaking_map: BreakingMap, found: NewtonResult, given: bool, accuracy: float,
    once: BrokenSolution | None = None,
) -> BrokenSolution:  # fmt: skip
    """Return the solution object for converged states with broken replica symmetry, with error bars and observables.

    Args:
        symmetric: the replica symmetric solution.
        breaking_map: the map of states with its rule of integration.
        found: result of Newton's method with the states.
        given: whether the Parisi parameter y is fixed by the user.
        accuracy: required error bar of overlaps, relative to their blocks.
        once: solution with one step, if the states have two.

    Raises:
        DomainError: the states of another rule or node set are outside the domain.
    """
    problem, state, rates, answer = symmetric.problem, found.state, found.rates, found.answer
    if isinstance(breaking_map.rule, NestedSobolRule):
        numbers, observable_error_bar = _error_bars_from_node_sets(symmetric, breaking_map, found, given)
    else:
        numbers, observable_error_bar = _error_bars_from_other_rules(symmetric, breaking_map, found, given, once)
    errors, within_errors, residual = numbers["errors"], numbers["within_errors"], found.residual
    return BrokenSolution(
        symmetric=symmetric, state=state, rates=tuple(map(float, rates)), given=given, residual=residual,
        status=status_of_states(symmetric, breaking_map.rule, residual, state, errors, within_errors, accuracy),
        evaluations=found.evaluations, rule=breaking_map.rule, parts=answer.data_and_penalty_energies(problem),
        multipliers=answer.rows.strengths if problem.regulariser.keeps_norms else None,
        stability=_assess_further_breaking(breaking_map, state, rates, answer), shallower=once,
        observed=estimate_observables(problem, state.minimiser_overlaps, accuracy, observable_error_bar), **numbers,
    )  # fmt: skip


Numbers = tuple[dict[str, Any], Callable[[ObservableEstimate], float]]
"""Fields of a solution, and a function that returns the error bar of an observable."""


def _error_bars_from_other_rules(
    symmetric: Solution, breaking_map: BreakingMap, found: NewtonResult, given: bool, once: BrokenSolution | None
) -> Numbers:
    """Return energies and error bars of states from the comparison with a finer and a coarser rule.

    Raises:
        DomainError: the states of another rule are outside the domain.
    """
    problem, rule, answer = symmetric.problem, breaking_map.rule, found.answer
    state, rates, y = found.state, found.rates, found.outermost_parisi_parameter
    equations = BreakingEquations.with_fixed_rule(breaking_map, state, rates, not given)
    scales, units = equations.unknown_and_equation_scales(state, answer)
    assert found.matrix is not None
    scaled = found.matrix / units[:, None] * scales
    shifts, others, moved = [], [], []
    used = [equations.breaking_map]
    for other in (rule.finer_rule(), rule.coarser_rule()):
        its = BreakingEquations.with_fixed_rule(replace(breaking_map, rule=other), state, rates, not given)
        gap, there = its.evaluate_residuals(state, rates)
        others.append(there)
        shifts.append(np.linalg.solve(scaled, -gap / units))
        # At the solution of the other rule: second orders of soft directions, as that of y, are small there.
        moved.append(
            its.evaluate_residuals(
                *its.state_from_unknowns(its.unknowns_from_state(state, rates) + shifts[-1] * scales, state, rates)
            )[1]
        )
        used.append(its.breaking_map)
    known = [0.0] * len(used)
    if rule.errors_cancel:
        known = (
            _two_step_energy_offsets(once, used, state)
            if once
            else energy_errors_of_rules(symmetric, [one.rule for one in used], state, y)
        )
    counts = convergence_rate_factors(*shifts, max_rate=rule.max_rate)
    moves = [equations.packed_state_from_coordinates(shift * scales) for shift in shifts]
    within_moves = [BrokenState.unpack(move, state.overlap_sizes).minimiser_overlaps.pack() for move in moves]
    rest = found.residual + abs(answer.averages.mass - 1)
    widths = np.max([count * np.abs(shift) for count, shift in zip(counts, shifts, strict=True)], axis=0) + rest
    errors = (widths * scales)[: len(equations.directions)] @ np.abs(equations.directions)
    within_errors = np.max([count * np.abs(move) for count, move in zip(counts, within_moves, strict=True)], axis=0)
    within_errors = within_errors + rest * state.minimiser_overlaps.block_scales
    rate_errors = 0.0 * rates if given else rates * widths[len(equations.directions) :]

    def error_bar_of_values(values: Sequence[float]) -> float:
        """Return the error bar of a number from its values by the rule and by the two other rules."""
        sizes = (count * abs(value - values[0]) for count, value in zip(counts, values[1:], strict=True))
        return max(sizes) + rest**2 * abs(values[0])

    energies = [
        (_energy_of_states(one, y) if given else -one.free_entropy) - off
        for one, off in zip((answer, *moved), known, strict=True)
    ]
    rounding = ROUNDING * (abs(answer.free_entropy) + problem.alpha * abs(answer.averages.moreau))
    complexities = [_complexity_of_states(one, y) for one in (answer, *moved)]

    def observable_error_bar(estimate: ObservableEstimate) -> float:
        changes = np.array(counts) * np.abs(estimate.changes_by_shifts(state.minimiser_overlaps.pack(), within_moves))
        return float(np.nanmax([0.0, *changes])) + estimate.own

    return {
        "errors": errors, "within_errors": within_errors, "rate_errors": tuple(map(float, rate_errors)),
        "energy": energies[0], "own_error": error_bar_of_values(energies) + rounding,
        "complexity": complexities[0] if given else 0.0,
        "complexity_error": error_bar_of_values(complexities) + abs(y) * rounding if given else 0.0,
        "multipliers_error": _multiplier_errors_from_other_rules(
            equations, found, [shift * scales for shift in shifts], others, counts
        ),
    }, observable_error_bar  # fmt: skip


def _two_step_energy_offsets(once: BrokenSolution, used: Sequence[BreakingMap], state: BrokenState) -> list[float]:
    """Return the errors of two-step maps for the energy of the one-step solution, as in `energy_errors_of_rules`.

    Both steps have the same y, and Delta is divided between them as in a state of two steps.
    """
    assert once.state is not None
    traces = np.trace(state.distances, axis1=2, axis2=3).sum(axis=1)
    shares = (traces / traces.sum())[:, None, None, None]
    shared = BrokenState(once.state.between, shares * once.state.distances)
    rates = np.full(len(shares), once.rates[0])
    return [-one(shared, rates).free_entropy - once.energy for one in used]


def _complexity_of_states(answer: MapEvaluation, y: float) -> float:
    return -(y**2) * float(answer.slopes[0])


def _energy_of_states(answer: MapEvaluation, y: float) -> float:
    return -answer.free_entropy - y * float(answer.slopes[0])


def _multiplier_errors_from_other_rules(
    equations: BreakingEquations,
    found: NewtonResult,
    shifts: Sequence[np.ndarray],
    others: Sequence[MapEvaluation],
    counts: Sequence[float],
) -> np.ndarray | None:
    """Return the error bars of the multipliers of fixed norms, (s,), from other rules; None if no norms are fixed.

    Changes due to the averages and due to the state are added, so that they cannot compensate each other.

    Args:
        equations: equations of the state.
        found: result of Newton's method.
        shifts: changes of the unknowns by other rules.
        others: map evaluated at the state by other rules.
        counts: factors by which differences are multiplied in error bars.
    """
    if not equations.breaking_map.problem.regulariser.keeps_norms:
        return None
    here = found.answer.rows.strengths
    widths, z = np.zeros_like(here), equations.unknowns_from_state(found.state, found.rates)
    for count, shift, other in zip(counts, shifts, others, strict=True):
        try:
            moved = equations.evaluate_residuals(*equations.state_from_unknowns(z + shift, found.state, found.rates))[
                1
            ].rows.strengths
        except DomainError:
            return np.full_like(here, np.inf)  # nothing is known
        widths = np.maximum(widths, count * (np.abs(other.rows.strengths - here) + np.abs(moved - here)))
    softening = np.abs(here) + np.abs(found.answer.hats[-1].V).max()  # of which they are a difference
    return widths + (ROUNDING + found.residual + abs(found.answer.averages.mass - 1)) * softening


def _error_bars_from_node_sets(
    symmetric: Solution, breaking_map: BreakingMap, found: NewtonResult, given: bool
) -> Numbers:
    """Return energies and error bars of states by a sampled rule, from the residuals of each of its node sets.

    Derivatives, and the effect of twice as many samples per node, are computed with a quarter of the outer nodes.

    Raises:
        DomainError: the states of a node set are outside the domain.
    """
    problem, rule = symmetric.problem, breaking_map.rule
    assert isinstance(rule, NestedSobolRule)
    state, rates, answer, y = found.state, found.rates, found.answer, found.outermost_parisi_parameter
    smaller = rule.with_fewer_points()
    equations = BreakingEquations.with_fixed_rule(replace(breaking_map, rule=smaller), state, rates, with_y=True)
    z, n = equations.unknowns_from_state(state, rates), len(equations.directions)
    gap, few = equations.evaluate_residuals(state, rates)
    matrix = equations.jacobian(z, state, rates, gap, few)
    scales, _ = equations.unknown_and_equation_scales(state, few)
    solved = n if given else n + 1
    inverse = np.linalg.inv(matrix[:solved, :solved])

    def evaluate_map_with_rule(other: NestedSobolRule) -> tuple[np.ndarray, MapEvaluation]:
        return BreakingEquations.with_fixed_rule(
            replace(breaking_map, rule=other), state, rates, with_y=True
        ).evaluate_residuals(state, rates)

    sets = [evaluate_map_with_rule(one) for one in rule.replicates]
    # Rows are nonlinear in the conjugates: the residuals of all sets together are not the mean of those of each.
    whole = equations.equation_residuals(answer, state, rates)
    deeper_gap, deeper = evaluate_map_with_rule(smaller.with_more_samples())
    shifts = np.array([-inverse @ each[:solved] for each, _ in sets])
    deep = -inverse @ (deeper_gap - gap)[:solved]
    rest = abs(answer.averages.mass - 1)
    left = -inverse @ whole[:solved]
    bias = (shifts.mean(axis=0) - left) / len(sets)  # bias of the mean of all sets by the nonlinearity of rows
    others = np.array([left, bias, DIFFERENCE_SAFETY * deep])
    widths = replicate_error_bar(shifts) + np.abs(others).sum(axis=0) + rest * scales[:solved]
    moves = shifts[:, :n] @ equations.directions
    deep_move = deep[:n] @ equations.directions
    withins, further = (
        np.array([BrokenState.unpack(move, state.overlap_sizes).minimiser_overlaps.pack() for move in each])
        for each in (moves, others[:, :n] @ equations.directions)
    )
    within_errors = (
        replicate_error_bar(withins) + np.abs(further).sum(axis=0) + rest * state.minimiser_overlaps.block_scales
    )
    errors = widths[:n] @ np.abs(equations.directions)
    rate_errors = 0.0 * rates if given else rates * widths[n:]

    # y dPhi/dy at the moved states; Phi is stationary in them.
    slope, slopes, deep_slope = 0.0, np.zeros(len(sets)), 0.0
    if given:
        slopes = np.array([each[n] for each, _ in sets]) + shifts @ matrix[n, :n]
        slope = float(whole[n] + matrix[n, :n] @ left)
        deep_slope = float((deeper_gap - gap)[n] + deep @ matrix[n, :n])
    known = _energy_offsets_of_node_sets(symmetric, rule)
    energy = -answer.free_entropy - slope - float(known.mean())
    energies = -problem.alpha * np.array([each.averages.free[0] for _, each in sets]) - slopes - known
    energy_error = float(replicate_error_bar(energies[:, None])[0])
    energy_error += DIFFERENCE_SAFETY * abs(few.free_entropy - deeper.free_entropy - deep_slope)
    complexity_error = float(y * (replicate_error_bar(slopes[:, None])[0] + DIFFERENCE_SAFETY * abs(deep_slope)))
    of_one = [
        *(withins / rule.scramblings),
        BrokenState.unpack(deep_move, state.overlap_sizes).minimiser_overlaps.pack(),
    ]

    def observable_error_bar(estimate: ObservableEstimate) -> float:
        *changes, add_second_step = estimate.changes_by_shifts(state.minimiser_overlaps.pack(), of_one)
        width = float(replicate_error_bar(np.array(changes)[:, None] * rule.scramblings)[0])
        width += DIFFERENCE_SAFETY * abs(float(add_second_step))
        return estimate.own + (width if np.isfinite(width) else np.inf)  # where a set leaves the domain

    return {
        "errors": errors, "within_errors": within_errors, "rate_errors": tuple(map(float, rate_errors)),
        "energy": energy, "own_error": energy_error, "complexity": -y * slope if given else 0.0,
        "complexity_error": complexity_error if given else 0.0,
        "multipliers_error": _multiplier_errors_from_node_sets(equations, found, few, sets, shifts),
    }, observable_error_bar  # fmt: skip


def _energy_offsets_of_node_sets(symmetric: Solution, rule: NestedSobolRule) -> np.ndarray:
    """Return the error of the replica symmetric training loss for every node set of a sampled rule, (R,).

    The energy of states with breaking, which is close to that loss, has nearly the same error.
    """
    problem, overlaps = symmetric.problem, symmetric.overlaps
    own = rule.replica_symmetric_rule().averages(problem, overlaps).moreau
    return np.asarray(problem.alpha * (own - symmetric.rule.averages(problem, overlaps).moreau.mean()))


def _multiplier_errors_from_node_sets(
    equations: BreakingEquations,
    found: NewtonResult,
    few: MapEvaluation,
    sets: list[tuple[np.ndarray, MapEvaluation]],
    shifts: np.ndarray,
) -> np.ndarray | None:
    """Return the error bars of the multipliers of fixed norms, (s,), from node sets; None if no norms are fixed."""
    if not equations.breaking_map.problem.regulariser.keeps_norms:
        return None
    z, here = equations.unknowns_from_state(found.state, found.rates), found.answer.rows.strengths
    moved = []
    for shift, (_, own) in zip(shifts, sets, strict=True):
        step = np.pad(shift, (0, len(z) - len(shift)))  # y is unchanged where it is fixed
        try:
            there = equations.evaluate_residuals(*equations.state_from_unknowns(z + step, found.state, found.rates))[
                1
            ].rows.strengths
        except DomainError:
            return np.full_like(here, np.inf)  # nothing is known
        moved.append(own.rows.strengths - here + there - few.rows.strengths)
    return replicate_error_bar(np.array(moved))


def _assess_further_breaking(
    breaking_map: BreakingMap, state: BrokenState, rates: np.ndarray, answer: MapEvaluation
) -> BreakingStability:
    """Return the stability against further breaking, with error bars from two coarser rules or from node sets.

    Errors of grids oscillate as their nodes pass points where second minima appear: one other rule may agree by chance.
    """
    problem, rule, responses = breaking_map.problem, breaking_map.rule, answer.rows.squares()
    if isinstance(rule, NestedSobolRule):
        used: tuple[TiltedRule, ...] = rule.with_fewer_points().replicates
    else:
        used = rule.coarser_rule().coarser_rule(), rule.coarser_rule(), rule
    found = [each.tilted_averages(problem, state.between, state.distances, rates, slopes=True) for each in used]
    roots = np.array([
        [
            perron_root_of_replicon_map(problem, square[0], own)
            for square, own in zip(each.squares, responses, strict=True)
        ]
        for each in found
    ])  # fmt: skip
    if isinstance(rule, NestedSobolRule):
        best, errors = roots.mean(axis=0), replicate_error_bar(roots)
        bistable = float(np.mean([each.bistable for each in found]))
    else:
        best, errors = roots[-1], DIFFERENCE_SAFETY * np.abs(roots[:-1] - roots[-1]).max(axis=0)
        bistable = found[-1].bistable
    (one, two), (one_error, two_error) = best.tolist(), errors.tolist()
    return BreakingStability(one, one_error, two, two_error, bistable, len(rates))
