"""Events on a followed branch: where a derivative is singular, and of which kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.errors import OUTSIDE, NotConvergedError
from ..base.progress import bar
from ..branches.branch_map import BranchMap, complement, sector_of
from ..branches.continuation import Place, correct
from ..branches.equations import BranchEquations, SingularEquations, branching
from ..integration.estimates import Change, Comparison, compared, half_width, two_standard_errors
from ..integration.rule import DIFFERENCE_SAFETY, Rule
from ..problems.problem import Problem
from ..problems.reduced import integrated
from ..saddle_point.iteration import FixedPoint, Status
from ..solving.error_bars import finish_point
from ..solving.solution import Solution
from ..solving.strategies import finer_rules
from ..solving.task import Task
from ..stability.assess import modes_of
from ..thresholds.second_rule import agreement, confirmed, opinions
from ..thresholds.threshold import Threshold

FOLD, PITCHFORK = "fold", "pitchfork"
_SMALLEST_SPAN = 0.1  # of a parameter
_POLISHING = 4  # evaluations after Newton's method has ended at the most
_SETTLED = 0.1  # of the accuracy asked of a parameter, that the equations may leave of it


@dataclass(frozen=True)
class Station:
    """A place of the walk with its solution; `odd`: eigenvalues of dG/du across the invariant states."""

    place: Place
    solution: Solution
    value: float
    odd: np.ndarray


@dataclass(frozen=True)
class Passage:
    """An event between two stations, before it is located.

    Attributes:
        kind: spinodal or instability; merges: whether the branch ends there in a more symmetric one.
        equations, z: extended system and where to begin.
    """

    kind: str
    near: float
    equations: SingularEquations
    z: np.ndarray
    merges: bool
    between: tuple[float, float]


def solution_at(
    branch: BranchMap, z: np.ndarray, matrix: np.ndarray, residual: float, name: str, accuracy: float
) -> Solution:
    """Observables and errors at a place: what `solve` returns.

    Args:
        matrix: slopes of the branch's equations there, (k, k + 1), in units of the block scales; residual: what is
            left of them.
    """
    k = branch.size
    x, values = z[:k], z[k:]
    units = branch.units(x)
    small = matrix[:k, :k] * units[:, None] + np.eye(k)
    jacobian = branch.basis.T @ small @ (branch.basis / branch.norms[:, None])
    point = FixedPoint(branch.state(x), branch.sizes, residual, Status.CONVERGED, 0, jacobian)
    return finish_point(Task(branch.problem_at(values), name, branch.symmetry, accuracy), point, branch.rule)


def located_event(
    passage: Passage, name: str, accuracy: float, overlap_accuracy: float, verify: bool = False
) -> Threshold:
    """Solve an extended system at the rule of its branch, and at finer ones until the half width is as asked.

    Args:
        name: of the branch; accuracy: half width asked of the parameter; overlap_accuracy: of the overlaps.
        verify: confirm it by a rule of another family: how far that would move it.

    Raises:
        NotConvergedError: Newton's method does not converge.
    """
    equations, branch = passage.equations, passage.equations.branch
    fold = passage.kind == "spinodal" and not passage.merges
    z = passage.z
    while True:
        z, matrix, residual = solved(equations, z, branch.rule, overlap_accuracy)
        z, residual, root = polished(equations, z, matrix, accuracy)
        matrix_branch = matrix[: branch.size]
        solution = solution_at(branch, z, matrix_branch, residual, name, overlap_accuracy)
        bistable = solution.averages.bistable if solution.averages is not None else 0.0
        integration = max(integration_shift(equations, z, matrix)[-1], _further(equations, z, matrix))
        if fold and not branch.rule.replicated:
            root += equations.beyond_first_order(z, matrix)
        elif not fold:
            root += float(np.abs(np.linalg.inv(matrix)[-1, -1])) * equations.mark_error(z)
        error = float(integration) + root
        finer = finer_rules(branch.problem, branch.rule)
        if error <= accuracy or not finer:
            break
        branch.rule = finer[0]
    evidence: dict[str, Any] = {
        "branching": None if fold else branching(equations, z, branch.rule.tolerance(overlap_accuracy)),
        "type": PITCHFORK if passage.merges else FOLD if passage.kind == "spinodal" else "instability",
        "toward": words_of(equations.null_direction(z), branch, z),
        "half_width_integration": float(integration),
        "half_width_root": root,
        "bracket": sorted(passage.between),
        "integrators": [branch.rule.describe()],
        "residuals": [residual],
        "bistable_shares": [bistable],
        "slopes": sorted(branch.slopes_by),
    }
    agreed = None
    if verify:
        own = equations.replicates(z).mean(axis=0)

        def moved(rule: Rule) -> tuple[float, float]:
            gap = equations.replicates(z, lambda _: rule).mean(axis=0) - own
            return -float(np.linalg.solve(matrix, gap)[-1]), 0.0

        value = float(z[-1])
        enough = max(error, accuracy / 2)
        with bar(f"{passage.kind}: verifying", None) as task:
            agreed = agreement(opinions([solution], moved, task.advance), value, lambda shift: value + shift, enough)
    error_kind, error, second_part = confirmed(agreed, error)
    evidence |= {**second_part, "second_rule": agreed.evidence if agreed else None}
    return Threshold(
        kind=passage.kind,
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


def extended(
    event: Threshold, parameters: Sequence[str], span: Sequence[float], others: Sequence[float] = ()
) -> tuple[SingularEquations, np.ndarray]:
    """The system that a located spinodal or instability solves, and its unknowns there.

    Args:
        parameters: that are free, its own first; others: values of those after it; span: as of `BranchMap`.
    """
    (solution,) = event.solutions
    branch = BranchMap.of(solution, parameters, span)
    z = np.concatenate([branch.coordinates(solution.overlaps.pack()), [event.value, *others]])
    if event.evidence["type"] == FOLD:
        return SingularEquations(branch, branch.basis / np.sqrt(branch.norms)[:, None]), z
    whole = SingularEquations(branch, complement(branch.basis))
    whole.border(z)
    return SingularEquations(branch, sector_of(whole.null_direction(z), branch)), z


def located_again(event: Threshold, problem: Problem, accuracy: float, overlap_accuracy: float) -> Threshold:
    """An event of a problem nearby, by Newton's method from where it was.

    Args:
        accuracy, overlap_accuracy: as of `located_event`.

    Raises:
        NotConvergedError: it is not found, or what is found leads elsewhere or continues on the other side.
    """
    (name,), (solution,) = event.branches, event.solutions
    moved = replace(problem.with_(**{event.parameter: event.value}), search=solution.problem.search)
    there = replace(event, solutions=(replace(solution, problem=moved),))
    try:
        equations, z = extended(there, (event.parameter,), (max(abs(event.value), _SMALLEST_SPAN),))
        low, high = event.evidence["bracket"]
        merges = event.evidence["type"] == PITCHFORK
        passage = Passage(event.kind, event.value, equations, z, merges, (low, high))
        found = located_event(passage, name, accuracy, overlap_accuracy)
    except (*OUTSIDE, np.linalg.LinAlgError) as error:
        raise NotConvergedError(f"the {event.kind} leaves the domain: {error}") from error
    before, after = (one.evidence["branching"] for one in (event, found))
    if found.evidence["toward"] != event.evidence["toward"] or (before is not None and not before * after > 0):
        raise NotConvergedError(
            f"the {event.kind} near {event.parameter} = {event.value:.4g} is another event at this accuracy"
        )
    return found


def solved(
    equations: SingularEquations, z: np.ndarray, rule: Rule, accuracy: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Newton's method on the extended system: unknowns, slopes, residual.

    Raises:
        NotConvergedError: it does not converge.
    """
    tolerance = rule.tolerance(accuracy)
    free = np.zeros(len(z))
    for _ in range(3):
        equations.border(z)
        found = correct(equations, z, equations.slopes(z), free, max(tolerance, 1e-10), most=20)
        if found is not None:
            z, matrix, residual, _ = found
            return z, matrix, residual
        # A start too far away for one Newton run: halve the way by a coarse run first.
        rough = correct(equations, z, equations.slopes(z), free, 1e-2, most=20)
        if rough is None:
            break
        z = rough[0]
    raise NotConvergedError("Newton's method on the extended system does not converge")


def polished(
    equations: SingularEquations, z: np.ndarray, matrix: np.ndarray, accuracy: float
) -> tuple[np.ndarray, float, float]:
    """Unknowns after what steps with these slopes still gain, residual, and what is left of it in the parameter.

    At a fold the parameter is stationary along the branch: what differences leave uncertain in g, and so in where on
    the branch the fold lies, moves it to second order only (`SingularEquations.beyond_first_order`).
    """
    weights = np.abs(np.linalg.inv(matrix)[-1])
    best: tuple[np.ndarray, float, float] | None = None
    for _ in range(_POLISHING):
        values = equations.residual(z)
        left = float(weights @ np.abs(values))
        if best is not None and not left < best[2]:
            break
        best = z, float(np.max(np.abs(values))), left
        if left <= _SETTLED * accuracy:
            break
        z = z - np.linalg.solve(matrix, values)
    assert best is not None
    return best


def integration_shift(equations: BranchEquations, z: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Half widths of all unknowns: how far other rules, or the replicates of this one, would move them.

    Args:
        matrix: square slopes at z.

    Raises:
        DomainError: the finer rules' averages leave the domain of the equations.
    """
    here = equations.replicates(z)
    if len(here) > 1:
        return two_standard_errors(np.linalg.solve(matrix, here.T).T)
    units = equations.units(z)[: len(matrix)]

    def ask(change: Change) -> Comparison:
        gap = (equations.replicates(z, change) - here).mean(axis=0)
        return Comparison((np.linalg.solve(matrix, gap) / units,), equations.averages(z, change))

    return units * half_width(compared(equations.rules, equations.averages(z), ask, equations.hold_slopes), 0)


def _further(equations: BranchEquations, z: np.ndarray, matrix: np.ndarray) -> float:
    """How far rules two sizes finer would move the parameter: of a single field, where they cost little and the next
    ones may miss a kink as this one does; 0 elsewhere, and out of the domain."""
    (branch,) = equations.branches
    if branch.rule.replicated or integrated(branch.problem).solver.channel.FIELDS > 1:
        return 0.0
    try:
        gap = equations.replicates(z, lambda rule: rule.finer().finer()) - equations.replicates(z)
    except OUTSIDE:
        return 0.0
    return DIFFERENCE_SAFETY * abs(float(np.linalg.solve(matrix, gap.mean(axis=0))[-1]))


def words_of(direction: np.ndarray, branch: BranchMap, z: np.ndarray) -> str:
    """What a direction moves, in the words of the longitudinal modes."""
    overlaps = branch.overlaps(z[: branch.size])
    scales = overlaps.block_scales
    matrix = np.outer(direction * scales, direction / scales)
    return modes_of(matrix, overlaps)[1][0]
