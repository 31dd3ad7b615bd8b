"""The first bifurcation of a given kind on a branch: spinodal or instability."""

from __future__ import annotations

from ..base.errors import NotConvergedError
from ..base.progress import progress_bar
from ..problems.problem import Problem
from ..thresholds.search import ThresholdSearch
from ..thresholds.threshold import Threshold
from .branch_continuation import MOST_POINTS, BranchContinuation
from .events import locate_event


def spinodal(
    problem: Problem,
    parameter: str = "alpha",
    *,
    on: str,
    bracket: tuple[float, float] | None = None,
    accuracy: float = 1e-3,
    seed: int = 0,
    verify: bool | None = None,
) -> Threshold:
    """Locate the end of a branch: a fold, or a merger with a more symmetric branch (`evidence["type"]` says which).

    Args:
        problem: the problem at any value of the parameter.
        parameter: name of the parameter in which the end is located.
        on: name of the start of the branch.
        bracket: interval to search, default [0.1, 2.5] for alpha.
        accuracy: error bar of the parameter.
        seed: seed of the sampled quadrature rules.
        verify: whether another family of quadrature rules confirms the result; default: if the accuracy is below 1e-6.

    Raises:
        InputError: the model has no such start, or no interval is given.
        NotConvergedError: the branch is found nowhere, or has no end in the interval.

    Example:
        >>> problem = sf.problem("dot_product_attention", omega=0.3)
        >>> found = sf.spinodal(problem, on="semantic", bracket=(0.6, 1), accuracy=1e-2)
        >>> round(found.value, 2), found.evidence["type"]
        (0.72, 'pitchfork')
    """
    return _locate_first_event(ThresholdSearch("spinodal", problem, parameter, (on,), bracket, accuracy, verify), seed)


def instability(
    problem: Problem,
    parameter: str = "alpha",
    *,
    on: str,
    bracket: tuple[float, float] | None = None,
    accuracy: float = 1e-3,
    seed: int = 0,
    verify: bool | None = None,
) -> Threshold:
    """Locate where a branch loses stability toward states of broken symmetry: a longitudinal eigenvalue passes 1.

    Args:
        problem: the problem at any value of the parameter.
        parameter: name of the parameter in which the instability is located.
        on: name of the start of the branch.
        bracket: interval to search, default [0.1, 2.5] for alpha.
        accuracy: error bar of the parameter.
        seed: seed of the sampled quadrature rules.
        verify: whether another family of quadrature rules confirms the result; default: if the accuracy is below 1e-6.

    Raises:
        InputError: the model has no such start, or no interval is given.
        NotConvergedError: the branch is found nowhere, or has no such event in the interval.

    Example:
        >>> problem = sf.problem("linear_attention", omega=0.3)
        >>> found = sf.instability(problem, on="uninformed", bracket=(0.6, 1.2), accuracy=1e-2)
        >>> round(found.value, 2), found.evidence["toward"]
        (0.92, 'toward theta, tokens alike')
    """
    return _locate_first_event(
        ThresholdSearch("instability", problem, parameter, (on,), bracket, accuracy, verify), seed
    )


def _locate_first_event(search: ThresholdSearch, seed: int) -> Threshold:
    """Locate the first event (fold, instability, ...) on a branch, from an end or the middle of an interval."""
    kind, problem, parameter, (on,) = search.kind, search.problem, search.parameter, search.branches
    low, high = search.search_interval_ends
    middle = (low + high) / 2
    endings = []
    problem.require_zero_temperature("branches are followed through folds")
    for begin_at, goals in ((high, (low,)), (low, (high,)), (middle, (low, high))):
        for goal in goals:
            try:
                continuation = BranchContinuation(problem, on, parameter, (begin_at, goal), 1e-3, seed)
            except NotConvergedError:
                break
            event = first_event_on_branch(continuation, search)
            if event is not None:
                return event
            endings.append(f"from {begin_at:g}: {continuation.reason_of_continuation_end}")
        else:
            break
    if not endings:
        raise NotConvergedError(
            f"{kind}: the {on} branch was found neither at the ends nor in the middle of "
            f"{parameter} = {low:g} to {high:g}; try another interval"
        )
    raise NotConvergedError(
        f"no {kind} on the {on} branch for {parameter} in [{low:g}, {high:g}]; try another interval "
        f"({'; '.join(endings)})"
    )


def first_event_on_branch(continuation: BranchContinuation, search: ThresholdSearch) -> Threshold | None:
    """Return the first event of the requested kind as a threshold; None if the branch ends without one.

    Args:
        continuation: continuation of the branch.
        search: kind and accuracy of the event.
    """
    with progress_bar(f"{search.kind} of the {continuation.name} branch", None) as task:
        for point in continuation.continuation_points(MOST_POINTS):
            task.count_finished_step(f"{continuation.name} branch, {continuation.parameter} = {point.value:.4g}")
            if len(continuation.points_so_far) < 2:
                continue
            for detected in continuation.detect_events():
                if detected.kind == search.kind:
                    return locate_event(
                        detected,
                        continuation.name,
                        search.accuracy,
                        continuation.accuracy,
                        search.requires_independent_check,
                    )
                if detected.merges:
                    continuation.end_continuation(
                        f"it merges with a more symmetric branch near {continuation.parameter} = {detected.near:.4g}"
                    )
    return None
