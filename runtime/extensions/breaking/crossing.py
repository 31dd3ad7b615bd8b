"""Where two branches have equal training loss, replica symmetric or with one or two steps of breaking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...base.errors import InputError, NotConvergedError, TimeLimitError
from ...base.progress import bar
from ...branches.branch import Branch
from ...problems.problem import Problem, check_is_problem
from ...saddle_point.iteration import Status
from ...thresholds.crossing import symmetric_crossing
from ...thresholds.root import Evaluation
from ...thresholds.threshold import Threshold
from .curve import BrokenBranch
from .deeper import deepened
from .solution import BrokenSolution
from .solve import checked_steps

_EVALUATIONS = 8  # of both energies
_OVERLAPS, _FINEST = 1e-3, 1e-5  # accuracy of the overlaps, at first and at last
_FINER = 5.0  # from one to the next
_ENOUGH = 0.1  # of the accuracy, which the last step may take


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
    """Where two branches have equal training loss: a first-order transition.

    Args:
        between: names of the branches.
        bracket: interval to search; default [0.1, 2.5] for alpha.
        accuracy: half width asked for; seed: of the scramblings.
        rsb: 0 for replica symmetry; 1 for the energies of one step of breaking it, as of `solve`, by secants that begin
            at the replica symmetric crossing; 2 for those of two, by what the second moves them there.
        branches: replica symmetric followers to reuse, with the solutions they already know.
        verify: compare with a rule of another family; by default where the accuracy is below 1e-6, and never with
            rsb > 0.

    Raises:
        InputError: unknown names, or with rsb > 0 a model that is out of its reach or a second rule asked for.
        NotConvergedError: no sign change of the difference where both branches exist.

    Example:
        >>> problem = sf.problem("dot_product_attention", omega=0.3)
        >>> found = sf.crossing(problem, between=("semantic", "positional"), bracket=(1, 1.5), accuracy=1e-2)
        >>> round(found.value, 2), found.success
        (1.25, True)
    """
    check_is_problem(problem)
    if rsb != 0:
        checked_steps(rsb, problem, along=True)
        if verify:
            raise InputError("verify = True goes with rsb = 0: steps of breaking have no second family of rules")
    one, other = branches or (Branch(problem, parameter, name, seed=seed) for name in between)
    symmetric = symmetric_crossing(problem, parameter, between, bracket, accuracy, seed, (one, other), verify)
    if rsb == 0:
        return symmetric
    followers = [BrokenBranch(problem, parameter, f.name, f.at, _OVERLAPS, seed) for f in (one, other)]
    once = _by_secants(symmetric, followers, accuracy)
    return once if rsb == 1 else _moved(once, accuracy)


def _moved(once: Threshold, accuracy: float) -> Threshold:
    """The crossing of two steps, from what the second moves the energies by where those of one step were compared.

    Raises:
        NotConvergedError: a second step is looked for and lost.
        TimeLimitError: the time limit came first.
    """
    slope, pair = float(once.evidence["slope"]), []
    with bar("crossing, two steps of breaking", len(once.broken)) as task:
        for solution in once.broken:
            task.describe(f"crossing, two steps of breaking, {solution.branch}")
            found = deepened(solution, _OVERLAPS)
            if found.status is Status.TIME_LIMIT:
                raise TimeLimitError("the time limit ended the search for a second step")
            if found.steps == 1 and not found.success:
                why = found.found or f"one step of breaking: {found.status.words}"
                raise NotConvergedError(f"crossing: on the {solution.branch} branch {why}")
            pair.append(found)
            task.advance()
    # None moves where there is no second step.
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
            "half_width_second_step": further,
            "energies_moved_further": [list(move) for move in moves],
            "integrators": [found.rule.describe() for found in pair],
            "found": [found.found or ("two steps of breaking" if found.steps == 2 else "one step") for found in pair],
            "residuals": [found.residual for found in pair],
            "one_step": {"value": once.value, "error": once.error},
        },
    )


def _by_secants(symmetric: Threshold, followers: Sequence[BrokenBranch], accuracy: float) -> Threshold:
    """The crossing of energies of one step, by secants from the replica symmetric one, whose slope serves until two
    values give another.

    Raises:
        NotConvergedError: a branch is lost, or the steps come to no end.
        TimeLimitError: the time limit came first.
    """
    value, slope = symmetric.value, float(symmetric.evidence["slope"])
    doubt = 1.0  # of the slope, relative: what the last evaluation has changed of it
    seen: list[Evaluation] = []
    with bar("crossing, one step of breaking", _EVALUATIONS) as task:
        for _ in range(_EVALUATIONS):
            pair = tuple(_energy(follower, value, 0.3 * accuracy * abs(slope)) for follower in followers)
            first, second = pair
            error = first.energy_error + second.energy_error
            here = Evaluation(value, first.energy - second.energy, error, 0.0, None, pair)
            task.advance(f"crossing, one step of breaking, {symmetric.parameter} = {value:.4g}")
            secant = _secant(seen[-1], here) if seen else None
            if secant is not None:
                # Noise of both differences is a doubt as much as what the slope has changed by.
                noise = (here.error + seen[-1].error) / abs(here.difference - seen[-1].difference)
                doubt = min(1.0, 2 * abs(secant - slope) / abs(secant) + noise)
                slope = secant
            seen.append(here)
            step = -here.difference / slope
            value = here.value + step
            if doubt * abs(step) <= max(_ENOUGH * accuracy, here.error / abs(slope)):
                break
        else:
            raise NotConvergedError(
                f"crossing: {_EVALUATIONS} secant steps did not converge; the last led from {here.value:.6g} to "
                f"{value:.6g}"
            )
    integration, root = here.error / abs(slope), doubt * abs(step)
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
            "half_width_integration": integration,
            "half_width_root": root,
            "visited": [[one.value, one.difference, one.error] for one in seen],
            "energies": [[s.energy, s.energy_error] for s in pair],
            "integrators": [s.rule.describe() for s in pair],
            "found": [s.found or "one step of breaking" for s in pair],
            "residuals": [s.residual for s in pair],
            "symmetric": {"value": symmetric.value, "error": symmetric.error},
        },
    )


def _secant(before: Evaluation, here: Evaluation) -> float | None:
    """The slope between two values; None where the difference has not changed by more than its half widths."""
    change = here.difference - before.difference
    if here.value == before.value or abs(change) <= here.error + before.error:
        return None
    return change / (here.value - before.value)


def _energy(follower: BrokenBranch, value: float, tolerance: float) -> BrokenSolution:
    """A branch at a value, solved as finely as a tolerance of its energy asks for and is to be had."""
    found = follower.at(value)
    while found is not None and found.energy_error > tolerance and follower.accuracy > _FINEST:
        follower.accuracy /= _FINER
        found = follower.refined(found)
    if found is None or found.status is Status.MAX_ITERATIONS:
        why = "was not found" if found is None else found.found or "did not converge"
        raise NotConvergedError(
            f"crossing: with one step of breaking the {follower.start} branch {why} at "
            f"{follower.parameter} = {value:.6g}"
        )
    return found
