"""Events on a branch: folds, pitchforks and instabilities, located as solutions of extended systems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.errors import DOMAIN_ERRORS, NotConvergedError
from ..base.options import AlgorithmOptions
from ..base.progress import progress_bar
from ..branches.branch_map import BranchMap, orthogonal_complement, smallest_symmetry_sector
from ..branches.continuation import CurvePoint, correct_predicted_point
from ..branches.equations import BranchEquations, SingularJacobianEquations, branching_coefficient
from ..integration.estimates import (
    RuleChange,
    RuleComparison,
    compare_rules,
    error_bar_from_comparisons,
    replicate_error_bar,
)
from ..integration.rule import DIFFERENCE_SAFETY, Rule
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_fields_of_loss
from ..saddle_point.iteration import FixedPoint, Status
from ..solving.error_bars import solution_with_error_bars
from ..solving.settings import SolveSettings
from ..solving.solution import Solution
from ..solving.strategies import finer_quadrature_rules
from ..stability.assess import describe_eigenmodes
from ..thresholds.independent_check import (
    compare_thresholds,
    error_bar_after_independent_check,
    evaluate_difference_by_second_rules,
)
from ..thresholds.threshold import Threshold

FOLD, PITCHFORK = "fold", "pitchfork"


@dataclass(frozen=True)
class EventOptions(AlgorithmOptions):
    """Options of locating a bifurcation by its extended system (saddle-point equations and event equation).

    Attributes:
        min_span: smallest unit in which steps of a parameter are measured.
        max_refinements: largest number of evaluations that refine the root after Newton's method has converged.
        residual_share: fraction of the accuracy at which refinement stops; smaller leaves more of the error bar to
            integration errors, and takes longer.
    """

    min_span: float = 0.1
    max_refinements: int = 4
    residual_share: float = 0.1


@dataclass(frozen=True)
class SolvedContinuationPoint:
    """A continuation point with its solution.

    Attributes:
        odd: eigenvalues of dG/du in directions that break the symmetry.
    """

    point: CurvePoint
    solution: Solution
    value: float
    odd: np.ndarray


@dataclass(frozen=True)
class DetectedEvent:
    """A bifurcation detected between two continuation points, not yet located.

    Attributes:
        kind: spinodal or instability.
        merges: whether the branch ends there in a more symmetric branch.
        near: estimate of the parameter value at the bifurcation.
        between: parameter values of the two continuation points.
        equations: extended system of the bifurcation.
        z: guess of the unknowns of the extended system.
    """

    kind: str
    near: float
    equations: SingularJacobianEquations
    z: np.ndarray
    merges: bool
    between: tuple[float, float]


def solution_from_branch_unknowns(
    branch: BranchMap, z: np.ndarray, matrix: np.ndarray, residual: float, name: str, accuracy: float
) -> Solution:
    """Return the solution at a continuation point, with the observables and error bars that `solve` would give.

    Args:
        branch: the branch.
        z: unknowns: coordinates of the branch, then the parameters.
        matrix: Jacobian of the branch's equations at z, relative to the sizes of q, V, m, ...
        residual: residual of these equations.
        name: name of the branch.
        accuracy: error bar of the overlaps, relative to the size of their block (q, V, m, ...).
    """
    k = branch.dimension_of_invariant_states
    x, values = z[:k], z[k:]
    units = branch.coordinate_units(x)
    small = matrix[:k, :k] * units[:, None] + np.eye(k)
    jacobian = branch.basis.T @ small @ (branch.basis / branch.norms[:, None])
    point = FixedPoint(branch.state_from_coordinates(x), branch.sizes, residual, Status.CONVERGED, 0, jacobian)
    task = SolveSettings(branch.problem_at_parameters(values), name, branch.symmetry, accuracy)
    return solution_with_error_bars(task, point, branch.rule)


def locate_event(
    detected: DetectedEvent, name: str, accuracy: float, overlap_accuracy: float, verify: bool = False
) -> Threshold:
    """Return the threshold at a detected bifurcation, by solving its extended system to the accuracy.

    Args:
        detected: the detected event.
        name: name of the branch.
        accuracy: error bar of the parameter.
        overlap_accuracy: error bar of the overlaps, relative to the size of their block (q, V, m, ...).
        verify: whether a quadrature rule of another family confirms the result.

    Raises:
        NotConvergedError: Newton's method does not converge.
    """
    equations, branch = detected.equations, detected.equations.branch
    fold = detected.kind == "spinodal" and not detected.merges
    z = detected.z
    while True:
        z, matrix, residual = solve_extended_system(equations, z, branch.rule, overlap_accuracy)
        z, residual, root = refine_root_of_extended_system(equations, z, matrix, accuracy)
        matrix_branch = matrix[: branch.dimension_of_invariant_states]
        solution = solution_from_branch_unknowns(branch, z, matrix_branch, residual, name, overlap_accuracy)
        bistable = solution.averages.bistable if solution.averages is not None else 0.0
        integration = max(
            integration_error_bars_of_unknowns(equations, z, matrix)[-1],
            _parameter_shift_by_finer_rules(equations, z, matrix),
        )
        if fold and not branch.rule.replicated:
            root += equations.fold_parameter_error(z, matrix)
        elif not fold:
            root += float(np.abs(np.linalg.inv(matrix)[-1, -1])) * equations.event_equation_error(z)
        error = float(integration) + root
        finer = finer_quadrature_rules(branch.problem, branch.rule)
        if error <= accuracy or not finer:
            break
        branch.rule = finer[0]
    evidence: dict[str, Any] = {
        "branching": None
        if fold
        else branching_coefficient(equations, z, branch.rule.newton_tolerance(overlap_accuracy)),
        "type": PITCHFORK if detected.merges else FOLD if detected.kind == "spinodal" else "instability",
        "toward": describe_overlap_direction(equations.null_direction(z), branch, z),
        "error_integration": float(integration),
        "error_root": root,
        "bracket": sorted(detected.between),
        "integrators": [branch.rule.rule_description()],
        "residuals": [residual],
        "bistable_fractions": [bistable],
        "slopes": sorted(branch.slopes_by),
    }
    agreed = None
    if verify:
        own = equations.replicate_residuals(z).mean(axis=0)

        def parameter_shift_by_quadrature_rule(rule: Rule) -> tuple[float, float]:
            gap = equations.replicate_residuals(z, lambda _: rule).mean(axis=0) - own
            return -float(np.linalg.solve(matrix, gap)[-1]), 0.0

        value = float(z[-1])
        enough = max(error, accuracy / 2)
        with progress_bar(f"{detected.kind}: verifying", None) as task:
            agreed = compare_thresholds(
                evaluate_difference_by_second_rules(
                    [solution], parameter_shift_by_quadrature_rule, task.count_finished_step
                ),
                value,
                lambda shift: value + shift,
                enough,
            )
    error_kind, error, second_part = error_bar_after_independent_check(agreed, error)
    evidence |= {**second_part, "second_rule": agreed.evidence if agreed else None}
    return Threshold(
        kind=detected.kind,
        parameter=branch.parameters[0],
        value=float(z[-1]),
        error=error,
        error_kind=error_kind,
        status="converged" if error <= accuracy else "accuracy_not_reached",
        branches=(name,),
        problem=branch.problem,
        solutions=(solution,),
        evidence=evidence,
    )


def extended_system_of_event(
    event: Threshold, parameters: Sequence[str], span: Sequence[float], others: Sequence[float] = ()
) -> tuple[SingularJacobianEquations, np.ndarray]:
    """Return the extended system of a located spinodal or instability, and its unknowns at the event.

    Args:
        event: the event.
        parameters: names of the parameters that are unknowns, that of the event first.
        span: unit of each parameter.
        others: values of the parameters after the first.
    """
    (solution,) = event.solutions
    branch = BranchMap.from_solution(solution, parameters, span)
    z = np.concatenate([branch.coordinates_of_state(solution.overlaps.pack()), [event.value, *others]])
    if event.evidence["type"] == FOLD:
        return SingularJacobianEquations(branch, branch.basis / np.sqrt(branch.norms)[:, None]), z
    whole = SingularJacobianEquations(branch, orthogonal_complement(branch.basis))
    whole.update_bordering_vectors(z)
    return SingularJacobianEquations(branch, smallest_symmetry_sector(whole.null_direction(z), branch)), z


def relocate_event_for_nearby_problem(
    event: Threshold, problem: Problem, accuracy: float, overlap_accuracy: float
) -> Threshold:
    """Return an event of a neighbouring problem, by Newton's method from a located event.

    Args:
        event: the located event.
        problem: the neighbouring problem.
        accuracy: error bar of the parameter.
        overlap_accuracy: error bar of the overlaps, relative to the size of their block (q, V, m, ...).

    Raises:
        NotConvergedError: no event is found, or one with another null direction or sign of the branching coefficient.
    """
    (name,), (solution,) = event.branches, event.solutions
    moved = replace(problem.with_(**{event.parameter: event.value}), search=solution.problem.search)
    there = replace(event, solutions=(replace(solution, problem=moved),))
    try:
        span = max(abs(event.value), EventOptions.current().min_span)
        equations, z = extended_system_of_event(there, (event.parameter,), (span,))
        low, high = event.evidence["bracket"]
        merges = event.evidence["type"] == PITCHFORK
        detected = DetectedEvent(event.kind, event.value, equations, z, merges, (low, high))
        found = locate_event(detected, name, accuracy, overlap_accuracy)
    except (*DOMAIN_ERRORS, np.linalg.LinAlgError) as error:
        raise NotConvergedError(f"the {event.kind} was not found again: {error}") from error
    before, after = (one.evidence["branching"] for one in (event, found))
    if found.evidence["toward"] != event.evidence["toward"] or (before is not None and not before * after > 0):
        raise NotConvergedError(
            f"the {event.kind} near {event.parameter} = {event.value:.4g} is another event at this accuracy; "
            "ask for smaller error bars (accuracy)"
        )
    return found


def solve_extended_system(
    equations: SingularJacobianEquations, z: np.ndarray, rule: Rule, accuracy: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Solve an extended system by Newton's method; return its unknowns, Jacobian and residual.

    Args:
        equations: the extended system.
        z: guess of the unknowns.
        rule: quadrature rule of the branch, which sets the tolerance.
        accuracy: error bar of the overlaps, relative to the size of their block (q, V, m, ...).

    Raises:
        NotConvergedError: Newton's method does not converge.
    """
    tolerance = rule.newton_tolerance(accuracy)
    free = np.zeros(len(z))
    for _ in range(3):
        equations.update_bordering_vectors(z)
        found = correct_predicted_point(
            equations, z, equations.residual_jacobian(z), free, max(tolerance, 1e-10), most=20
        )
        if found is not None:
            z, matrix, residual, _ = found
            return z, matrix, residual
        # The guess is too far away: a run to a coarse tolerance comes first.
        rough = correct_predicted_point(equations, z, equations.residual_jacobian(z), free, 1e-2, most=20)
        if rough is None:
            break
        z = rough[0]
    raise NotConvergedError("Newton's method on saddle-point equations and event condition does not converge")


def refine_root_of_extended_system(
    equations: SingularJacobianEquations, z: np.ndarray, matrix: np.ndarray, accuracy: float
) -> tuple[np.ndarray, float, float]:
    """Refine the root of an extended system; return unknowns, residual, and the error of the parameter due to it.

    At a fold the parameter is stationary along the branch, so that errors of the event equation change it to second
    order only (`SingularJacobianEquations.fold_parameter_error`).

    Args:
        equations: the extended system.
        z: unknowns after Newton's method.
        matrix: square Jacobian at these unknowns.
        accuracy: error bar of the parameter.
    """
    options = EventOptions.current()
    weights = np.abs(np.linalg.inv(matrix)[-1])
    best: tuple[np.ndarray, float, float] | None = None
    for _ in range(options.max_refinements):
        values = equations.residual_of_equations(z)
        left = float(weights @ np.abs(values))
        if best is not None and not left < best[2]:
            break
        best = z, float(np.max(np.abs(values))), left
        if left <= options.residual_share * accuracy:
            break
        z = z - np.linalg.solve(matrix, values)
    assert best is not None
    return best


def integration_error_bars_of_unknowns(equations: BranchEquations, z: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return the integration errors of all unknowns, from other quadrature rules or from replicates of the rule.

    Args:
        equations: extended system of the event.
        z: unknowns of these equations.
        matrix: square Jacobian at z.

    Raises:
        DomainError: by finer quadrature rules the unknowns leave the domain of the equations.
    """
    here = equations.replicate_residuals(z)
    if len(here) > 1:
        return replicate_error_bar(np.linalg.solve(matrix, here.T).T)
    units = equations.units_of_unknowns(z)[: len(matrix)]

    def _compare_with_changed_quadrature(change: RuleChange) -> RuleComparison:
        gap = (equations.replicate_residuals(z, change) - here).mean(axis=0)
        return RuleComparison((np.linalg.solve(matrix, gap) / units,), equations.channel_averages(z, change))

    return units * error_bar_from_comparisons(
        compare_rules(
            equations.quadrature_rules_of_branches,
            equations.channel_averages(z),
            _compare_with_changed_quadrature,
            equations.depend_on_slopes,
        ),
        0,
    )


def _parameter_shift_by_finer_rules(equations: BranchEquations, z: np.ndarray, matrix: np.ndarray) -> float:
    """Return the integration error of an event's parameter by a rule two sizes finer, for a loss of one field.

    A rule one size finer may miss the same kink of the averages. The result is 0 for more fields or sampled rules, and
    if the finer rule leaves the domain of definition.
    """
    (branch,) = equations.branches
    if branch.rule.replicated or reduce_to_fields_of_loss(branch.problem).solver.channel.FIELDS > 1:
        return 0.0
    try:
        gap = equations.replicate_residuals(
            z, lambda rule: rule.finer_rule().finer_rule()
        ) - equations.replicate_residuals(z)
    except DOMAIN_ERRORS:
        return 0.0
    return DIFFERENCE_SAFETY * abs(float(np.linalg.solve(matrix, gap.mean(axis=0))[-1]))


def describe_overlap_direction(direction: np.ndarray, branch: BranchMap, z: np.ndarray) -> str:
    """Return a direction of the overlaps in words, for example "toward theta, tokens alike".

    Args:
        direction: a change of the packed overlaps, relative to the sizes of q, V, m, ...
        branch: the branch.
        z: unknowns: coordinates of the branch, then the parameters.
    """
    overlaps = branch.overlaps_from_coordinates(z[: branch.dimension_of_invariant_states])
    scales = overlaps.block_scales
    matrix = np.outer(direction * scales, direction / scales)
    return describe_eigenmodes(matrix, overlaps)[1][0]
