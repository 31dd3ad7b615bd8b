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
from ...integration.estimates import error_bar_factors_from_rate, replicate_error_bar
from ...integration.rule import DIFFERENCE_SAFETY
from ...integration.tilted_samples import NestedSobolRule
from ...integration.tilted_sums import TiltedRule
from ...solving.error_bars import ObservableEstimate, estimate_observables
from ...solving.solution import Solution
from ...stability.assess import perron_root_of_replicon_map
from .newton import BrokenSymmetryEquations, NewtonResult
from .rules import energy_errors_of_quadrature_rules
from .solution import BreakingStability, BrokenSolution, status_of_states
from .state import BrokenSymmetryState
from .state_map import BrokenSymmetryMap, MapEvaluation

ROUNDING = 1024 * np.finfo(float).eps


@progress.progress_step("error bars of broken replica symmetry")
def build_broken_solution(
    symmetric: Solution, breaking_map: BrokenSymmetryMap, found: NewtonResult, given: bool, accuracy: float,
    once: BrokenSolution | None = None,
) -> BrokenSolution:  # fmt: skip
    """Return a solution with broken replica symmetry, with error bars and observables, from a converged state.

    Args:
        symmetric: the replica symmetric solution.
        breaking_map: the saddle-point map with its quadrature rule.
        found: result of Newton's method that contains the state.
        given: whether the Parisi parameter is fixed by the user.
        accuracy: required error bar of overlaps, relative to their blocks.
        once: solution with one step of breaking, if the state has two.

    Raises:
        DomainError: the state by another quadrature rule is outside the domain of the overlaps.
    """
    problem, state, rates, answer = symmetric.problem, found.state, found.rates, found.answer
    if isinstance(breaking_map.rule, NestedSobolRule):
        numbers, observable_error_bar = _error_bars_from_sobol_scramblings(symmetric, breaking_map, found, given)
    else:
        numbers, observable_error_bar = _error_bars_by_comparing_quadratures(
            symmetric, breaking_map, found, given, once
        )
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


def _error_bars_by_comparing_quadratures(
    symmetric: Solution, breaking_map: BrokenSymmetryMap, found: NewtonResult, given: bool, once: BrokenSolution | None
) -> Numbers:
    """Return energies and error bars of a state by comparing a finer and a coarser quadrature rule.

    Raises:
        DomainError: the state by another quadrature rule is outside the domain of the overlaps.
    """
    problem, rule, answer = symmetric.problem, breaking_map.rule, found.answer
    state, rates, y = found.state, found.rates, found.outermost_parisi_parameter
    equations = BrokenSymmetryEquations.fix_quadrature_grids(breaking_map, state, rates, not given)
    scales, units = equations.unknown_and_equation_scales(state, answer)
    assert found.matrix is not None
    scaled = found.matrix / units[:, None] * scales
    shifts, others, moved = [], [], []
    used = [equations.breaking_map]
    for other in (rule.finer_rule(), rule.coarser_rule()):
        its = BrokenSymmetryEquations.fix_quadrature_grids(replace(breaking_map, rule=other), state, rates, not given)
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
            _energy_errors_of_two_step_maps(once, used, state)
            if once
            else energy_errors_of_quadrature_rules(symmetric, [one.rule for one in used], state, y)
        )
    counts = error_bar_factors_from_rate(*shifts, max_rate=rule.max_rate)
    moves = [equations.packed_state_from_coordinates(shift * scales) for shift in shifts]
    within_moves = [BrokenSymmetryState.unpack(move, state.overlap_sizes).minimiser_overlaps.pack() for move in moves]
    rest = found.residual + abs(answer.averages.mass - 1)
    widths = np.max([count * np.abs(shift) for count, shift in zip(counts, shifts, strict=True)], axis=0) + rest
    errors = (widths * scales)[: len(equations.directions)] @ np.abs(equations.directions)
    within_errors = np.max([count * np.abs(move) for count, move in zip(counts, within_moves, strict=True)], axis=0)
    within_errors = within_errors + rest * state.minimiser_overlaps.block_scales
    rate_errors = 0.0 * rates if given else rates * widths[len(equations.directions) :]

    def error_bar_of_values(values: Sequence[float]) -> float:
        """Return the error bar of a number from its values by the quadrature rule, a finer and a coarser one."""
        sizes = (count * abs(value - values[0]) for count, value in zip(counts, values[1:], strict=True))
        return max(sizes) + rest**2 * abs(values[0])

    energies = [
        (_energy_of_states(one, y) if given else -one.free_entropy) - off
        for one, off in zip((answer, *moved), known, strict=True)
    ]
    rounding = ROUNDING * (abs(answer.free_entropy) + problem.alpha * abs(answer.averages.moreau))
    complexities = [_complexity_of_states(one, y) for one in (answer, *moved)]

    def observable_error_bar(estimate: ObservableEstimate) -> float:
        changes = np.array(counts) * np.abs(
            estimate.changes_of_observable_by_shifts(state.minimiser_overlaps.pack(), within_moves)
        )
        return float(np.nanmax([0.0, *changes])) + estimate.own

    return {
        "errors": errors, "within_errors": within_errors, "rate_errors": tuple(map(float, rate_errors)),
        "energy": energies[0], "own_error": error_bar_of_values(energies) + rounding,
        "complexity": complexities[0] if given else 0.0,
        "complexity_error": error_bar_of_values(complexities) + abs(y) * rounding if given else 0.0,
        "multipliers_error": _multiplier_errors_by_comparing_quadratures(
            equations, found, [shift * scales for shift in shifts], others, counts
        ),
    }, observable_error_bar  # fmt: skip


def _energy_errors_of_two_step_maps(
    once: BrokenSolution, used: Sequence[BrokenSymmetryMap], state: BrokenSymmetryState
) -> list[float]:
    """Return, for each two-step map, the error of its energy where this is known: at a solution with one step.

    Both steps are given the Parisi parameter of the one step. Its overlap difference Delta is divided between them as
    in the given state with two steps.
    """
    assert once.state is not None
    traces = np.trace(state.distances, axis1=2, axis2=3).sum(axis=1)
    shares = (traces / traces.sum())[:, None, None, None]
    shared = BrokenSymmetryState(once.state.between, shares * once.state.distances)
    rates = np.full(len(shares), once.rates[0])
    return [-one(shared, rates).free_entropy - once.energy for one in used]


def _complexity_of_states(answer: MapEvaluation, y: float) -> float:
    return -(y**2) * float(answer.slopes[0])


def _energy_of_states(answer: MapEvaluation, y: float) -> float:
    return -answer.free_entropy - y * float(answer.slopes[0])


def _multiplier_errors_by_comparing_quadratures(
    equations: BrokenSymmetryEquations,
    found: NewtonResult,
    shifts: Sequence[np.ndarray],
    others: Sequence[MapEvaluation],
    counts: Sequence[float],
) -> np.ndarray | None:
    """Return error bars of the Lagrange multipliers of fixed column norms, (s,), by comparing quadrature rules.

    Changes due to the averages and due to the state are added, so that they cannot compensate each other. Without fixed
    norms None is returned.

    Args:
        equations: equations that the state solves.
        found: result of Newton's method.
        shifts: changes of the unknowns by other quadrature rules.
        others: saddle-point map evaluated at the state by other quadrature rules.
        counts: factors by which the differences from each other rule are multiplied.
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


def _error_bars_from_sobol_scramblings(
    symmetric: Solution, breaking_map: BrokenSymmetryMap, found: NewtonResult, given: bool
) -> Numbers:
    """Return energies and error bars of a state by a sampled rule, from the spread over its Sobol scramblings.

    Derivatives, and the effect of twice as many samples per node, are computed with a quarter of the nodes of
    the outer of the two nested averages.

    Raises:
        DomainError: the state by one of the scramblings is outside the domain of the overlaps.
    """
    problem, rule = symmetric.problem, breaking_map.rule
    assert isinstance(rule, NestedSobolRule)
    state, rates, answer, y = found.state, found.rates, found.answer, found.outermost_parisi_parameter
    smaller = rule.with_fewer_points()
    equations = BrokenSymmetryEquations.fix_quadrature_grids(
        replace(breaking_map, rule=smaller), state, rates, with_y=True
    )
    z, n = equations.unknowns_from_state(state, rates), len(equations.directions)
    gap, few = equations.evaluate_residuals(state, rates)
    matrix = equations.jacobian(z, state, rates, gap, few)
    scales, _ = equations.unknown_and_equation_scales(state, few)
    solved = n if given else n + 1
    inverse = np.linalg.inv(matrix[:solved, :solved])

    def evaluate_map_with_quadrature_rule(other: NestedSobolRule) -> tuple[np.ndarray, MapEvaluation]:
        return BrokenSymmetryEquations.fix_quadrature_grids(
            replace(breaking_map, rule=other), state, rates, with_y=True
        ).evaluate_residuals(state, rates)

    sets = [evaluate_map_with_quadrature_rule(one) for one in rule.replicates]
    # Rows are nonlinear in the conjugates: the residuals of all sets together are not the mean of those of each.
    whole = equations.equation_residuals(answer, state, rates)
    deeper_gap, deeper = evaluate_map_with_quadrature_rule(smaller.with_more_samples())
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
        np.array([BrokenSymmetryState.unpack(move, state.overlap_sizes).minimiser_overlaps.pack() for move in each])
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
    known = _energy_errors_of_sobol_scramblings(symmetric, rule)
    energy = -answer.free_entropy - slope - float(known.mean())
    energies = -problem.alpha * np.array([each.averages.free[0] for _, each in sets]) - slopes - known
    energy_error = float(replicate_error_bar(energies[:, None])[0])
    energy_error += DIFFERENCE_SAFETY * abs(few.free_entropy - deeper.free_entropy - deep_slope)
    complexity_error = float(y * (replicate_error_bar(slopes[:, None])[0] + DIFFERENCE_SAFETY * abs(deep_slope)))
    of_one = [
        *(withins / rule.scramblings),
        BrokenSymmetryState.unpack(deep_move, state.overlap_sizes).minimiser_overlaps.pack(),
    ]

    def observable_error_bar(estimate: ObservableEstimate) -> float:
        *changes, add_second_step = estimate.changes_of_observable_by_shifts(state.minimiser_overlaps.pack(), of_one)
        width = float(replicate_error_bar(np.array(changes)[:, None] * rule.scramblings)[0])
        width += DIFFERENCE_SAFETY * abs(float(add_second_step))
        return estimate.own + (width if np.isfinite(width) else np.inf)  # where a set leaves the domain

    return {
        "errors": errors, "within_errors": within_errors, "rate_errors": tuple(map(float, rate_errors)),
        "energy": energy, "own_error": energy_error, "complexity": -y * slope if given else 0.0,
        "complexity_error": complexity_error if given else 0.0,
        "multipliers_error": _multiplier_errors_from_sobol_scramblings(equations, found, few, sets, shifts),
    }, observable_error_bar  # fmt: skip


def _energy_errors_of_sobol_scramblings(symmetric: Solution, rule: NestedSobolRule) -> np.ndarray:
    """Return the error in the replica symmetric training loss of every Sobol scrambling of a sampled rule.

    The error in the energy with broken replica symmetry, which is close to that loss, is nearly the same.
    """
    problem, overlaps = symmetric.problem, symmetric.overlaps
    own = rule.replica_symmetric_rule().averages(problem, overlaps).moreau
    return np.asarray(problem.alpha * (own - symmetric.rule.averages(problem, overlaps).moreau.mean()))


def _multiplier_errors_from_sobol_scramblings(
    equations: BrokenSymmetryEquations,
    found: NewtonResult,
    few: MapEvaluation,
    sets: list[tuple[np.ndarray, MapEvaluation]],
    shifts: np.ndarray,
) -> np.ndarray | None:
    """Return error bars of the Lagrange multipliers of fixed column norms, (s,), from the spread over scramblings.

    Without fixed norms None is returned.
    """
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
    breaking_map: BrokenSymmetryMap, state: BrokenSymmetryState, rates: np.ndarray, answer: MapEvaluation
) -> BreakingStability:
    """Return the stability of a state against further replica symmetry breaking, with error bars.

    By grids the error bars are changes from two coarser grids, since one alone may agree by chance; by a sampled rule
    they are the spread over its Sobol scramblings.
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
