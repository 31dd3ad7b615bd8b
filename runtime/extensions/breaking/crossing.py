"""Crossings: values at which two branches have equal training loss, replica symmetric or with steps of breaking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...base.errors import InputError, NotConvergedError, TimeLimitError
from ...base.options import AlgorithmOptions
from ...base.progress import progress_bar
from ...branches.branch import Branch
from ...problems.problem import Problem, require_problem
from ...saddle_point.iteration import Status
from ...thresholds.crossing import replica_symmetric_crossing
from ...thresholds.root import DifferenceEvaluation
from ...thresholds.threshold import Threshold
from .curve import BrokenSymmetryBranch
from .second_step import add_second_step
from .solution import BrokenSolution
from .solve import check_number_of_breaking_steps


@dataclass(frozen=True)
class BrokenCrossingOptions(AlgorithmOptions):
    """Options of the search for crossings of training losses with broken replica symmetry.

    Attributes:
        max_evaluations: largest number of secant steps, each of which evaluates both branches.
        first_accuracy: initial accuracy of the overlaps.
        min_accuracy: finest accuracy of the overlaps.
        accuracy_factor: ratio of successive accuracies.
        root_share: fraction of the required accuracy by which the last step may change the crossing; larger stops
            earlier.
    """

    max_evaluations: int = 8
    first_accuracy: float = 1e-3
    min_accuracy: float = 1e-5
    accuracy_factor: float = 5.0
    root_share: float = 0.1


def crossing(
    problem: Problem,
    parameter: str = "alpha",
    *,
    between: tuple[str, str],
    bracket: tuple[float, float] | None = None,
    accuracy: float = 1e-3,
    seed: int = 0,
    rsb: int = 0,
    branches: tuple[Branch, Branch] | None = None,
    verify: bool | None = None,
) -> Threshold:
    """Locate the value at which two branches have equal training loss: a first-order transition.

    Args:
        problem: the problem.
        parameter: name of the parameter that is varied.
        between: names of the two branches.
        bracket: interval to search; by default [0.1, 2.5] for alpha.
        accuracy: required error bar of the crossing.
        seed: seed of the random shifts of sampled quadrature rules.
        rsb: steps of replica symmetry breaking: 0 for replica symmetry; 1 for one-step energies, located by secants
            from the replica symmetric crossing; 2 adds the changes due to a second step at that crossing.
        branches: two replica symmetric branches whose solutions are reused.
        verify: whether to compare with a quadrature rule of another family; by default where the accuracy is below
            1e-6, never with rsb > 0.

    Raises:
        InputError: unknown names, or with rsb > 0 a model for which breaking is not implemented, or verify = True.
        NotConvergedError: the difference of the losses has no sign change where both branches exist.

    Example:
        >>> problem = sf.problem("dot_product_attention", omega=0.3)
        >>> found = sf.crossing(problem, between=("semantic", "positional"), bracket=(1, 1.5), accuracy=1e-2)
        >>> round(found.value, 2), found.success
        (1.25, True)
    """
    require_problem(problem)
    if rsb != 0:
        check_number_of_breaking_steps(rsb, problem, along=True)
        if verify:
            raise InputError(
                "verify = True is available for rsb = 0 only: with replica symmetry breaking there is no second family "
                "of quadrature rules to compare with. Leave out verify"
            )
    one, other = branches or (Branch(problem, parameter, name, seed=seed) for name in between)
    symmetric = replica_symmetric_crossing(problem, parameter, between, bracket, accuracy, seed, (one, other), verify)
    if rsb == 0:
        return symmetric
    coarse = BrokenCrossingOptions.current().first_accuracy
    followers = [
        BrokenSymmetryBranch(problem, parameter, f.name, f.solution_at_parameter, coarse, seed) for f in (one, other)
    ]
    once = _locate_crossing_by_secants(symmetric, followers, accuracy)
    return once if rsb == 1 else _crossing_with_second_steps(once, accuracy)


def _crossing_with_second_steps(once: Threshold, accuracy: float) -> Threshold:
    """Return the crossing of two branches with two steps of breaking, from the one with one step.

    The second step changes the energies of both branches, and the slope of their difference gives the new crossing.

    Raises:
        NotConvergedError: the search for a second step failed.
        TimeLimitError: the time limit ended the search.
    """
    slope, pair = float(once.evidence["slope"]), []
    with progress_bar("crossing, two steps of breaking", len(once.broken)) as task:
        for solution in once.broken:
            task.set_description(f"crossing, two steps of breaking, {solution.branch}")
            found = add_second_step(solution, BrokenCrossingOptions.current().first_accuracy)
            if found.status is Status.TIME_LIMIT:
                raise TimeLimitError("the time limit ended the second replica symmetry breaking step; allow more time")
            if found.steps == 1 and not found.success:
                why = found.found or f"one step of breaking {found.status.words}"
                raise NotConvergedError(f"two steps of replica symmetry breaking, {solution.branch} branch: {why}")
            pair.append(found)
            task.count_finished_step()
    # An energy does not change without a second step.
    moves = [found.energy_moved_further if found.steps == 2 else (0.0, 0.0) for found in pair]
    moved = -(moves[0][0] - moves[1][0]) / slope
    further = sum(width for _, width in moves) / abs(slope)
    error = once.error + further
    return replace(
        once,
        value=once.value + moved,
        error=error,
        status="converged" if error <= accuracy else "accuracy_not_reached",
        broken=tuple(pair),
        evidence={
            **once.evidence,
            "rsb": 2,
            "error_second_step": further,
            "energies_moved_further": [list(move) for move in moves],
            "integrators": [found.rule.rule_description() for found in pair],
            "found": [found.found or ("two steps of breaking" if found.steps == 2 else "one step") for found in pair],
            "residuals": [found.residual for found in pair],
            "one_step": {"value": once.value, "error": once.error},
        },
    )


def _locate_crossing_by_secants(
    symmetric: Threshold, followers: Sequence[BrokenSymmetryBranch], accuracy: float
) -> Threshold:
    """Return the value at which two branches with one step of breaking have equal energy, by the secant method.

    Raises:
        NotConvergedError: a branch is not found, or the secant method does not converge.
        TimeLimitError: the time limit ended the search.
    """
    options = BrokenCrossingOptions.current()
    value, slope = symmetric.value, float(symmetric.evidence["slope"])
    slope_error = 1.0  # relative: its change by the last evaluation
    seen: list[DifferenceEvaluation] = []
    with progress_bar("crossing, one step of breaking", options.max_evaluations) as task:
        for _ in range(options.max_evaluations):
            pair = tuple(
                _solve_branch_to_energy_tolerance(follower, value, 0.3 * accuracy * abs(slope))
                for follower in followers
            )
            first, second = pair
            error = first.energy_error + second.energy_error
            here = DifferenceEvaluation(value, first.energy - second.energy, error, 0.0, None, pair)
            task.count_finished_step(f"crossing, one step of breaking, {symmetric.parameter} = {value:.4g}")
            secant = _secant_slope(seen[-1], here) if seen else None
            if secant is not None:
                # Noise of both differences is an error of the slope as much as its change.
                noise = (here.error + seen[-1].error) / abs(here.difference - seen[-1].difference)
                slope_error = min(1.0, 2 * abs(secant - slope) / abs(secant) + noise)
                slope = secant
            seen.append(here)
            step = -here.difference / slope
            value = here.value + step
            if slope_error * abs(step) <= max(options.root_share * accuracy, here.error / abs(slope)):
                break
        else:
            raise NotConvergedError(
                f"crossing: {options.max_evaluations} secant steps did not converge; the last one changed "
                f"{symmetric.parameter} from {here.value:.6g} to {value:.6g}. Allow larger error bars (--accuracy)"
            )
    integration, root = here.error / abs(slope), slope_error * abs(step)
    error = integration + root
    return Threshold(
        kind="crossing",
        parameter=symmetric.parameter,
        value=value,
        error=error,
        error_kind="estimated",
        status="converged" if error <= accuracy else "accuracy_not_reached",
        branches=symmetric.branches,
        problem=symmetric.problem,
        solutions=tuple(solution.symmetric for solution in pair),
        broken=pair,
        evidence={
            "rsb": 1,
            "slope": slope,
            "evaluated_at": here.value,
            "difference": here.difference,
            "error_integration": integration,
            "error_root": root,
            "visited": [[one.value, one.difference, one.error] for one in seen],
            "energies": [[s.energy, s.energy_error] for s in pair],
            "integrators": [s.rule.rule_description() for s in pair],
            "found": [s.found or "one step of breaking" for s in pair],
            "residuals": [s.residual for s in pair],
            "symmetric": {"value": symmetric.value, "error": symmetric.error},
        },
    )


def _secant_slope(before: DifferenceEvaluation, here: DifferenceEvaluation) -> float | None:
    """Return the secant slope of the energy difference of two branches; None if it changes less than its errors."""
    change = here.difference - before.difference
    if here.value == before.value or abs(change) <= here.error + before.error:
        return None
    return change / (here.value - before.value)


def _solve_branch_to_energy_tolerance(follower: BrokenSymmetryBranch, value: float, tolerance: float) -> BrokenSolution:
    """Return the solution of a branch at a parameter value, with an error bar of the energy below a tolerance.

    Raises:
        NotConvergedError: the branch is not found at this value.
    """
    options = BrokenCrossingOptions.current()
    found = follower.solution_at_parameter(value)
    while found is not None and found.energy_error > tolerance and follower.accuracy > options.min_accuracy:
        follower.accuracy /= options.accuracy_factor
        found = follower.refine_to_accuracy(found)
    if found is None or found.status is Status.MAX_ITERATIONS:
        why = "was not found" if found is None else found.found or "did not converge"
        raise NotConvergedError(
            f"crossing with one step of replica symmetry breaking: the {follower.start} branch {why} at "
            f"{follower.parameter} = {value:.6g}"
        )
    return found
