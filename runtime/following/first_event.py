"""The first event of a kind on a branch."""

from __future__ import annotations

from ..base.errors import NotConvergedError
from ..base.progress import bar
from ..problems.problem import Problem
from ..thresholds.search import Search
from ..thresholds.threshold import Threshold
from .events import located_event
from .walk import MOST_POINTS, Walk


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
    """Where a branch ends: in a fold, or where it merges with a more symmetric one (evidence: type).

    Args:
        on: the branch, a named start; bracket: interval to search, default [0.1, 2.5] for alpha.
        verify: confirm it by a rule of another family; default, where the accuracy is below 1e-6.

    Raises:
        InputError: no such start, or no interval.
        NotConvergedError: the branch is found nowhere, or has no end in the interval.

    Example:
        >>> problem = sf.problem("dot_product_attention", omega=0.3)
        >>> found = sf.spinodal(problem, on="semantic", bracket=(0.6, 1), accuracy=1e-2)
        >>> round(found.value, 2), found.evidence["type"]
        (0.72, 'pitchfork')
    """
    return _first_event(Search("spinodal", problem, parameter, (on,), bracket, accuracy, verify), seed)


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
    """Where a longitudinal eigenvalue of a branch passes 1 toward states of broken symmetry (evidence: toward).

    Args, raises: as for `spinodal`.

    Example:
        >>> problem = sf.problem("linear_attention", omega=0.3)
        >>> found = sf.instability(problem, on="uninformed", bracket=(0.6, 1.2), accuracy=1e-2)
        >>> round(found.value, 2), found.evidence["toward"]
        (0.92, 'toward theta, tokens alike')
    """
    return _first_event(Search("instability", problem, parameter, (on,), bracket, accuracy, verify), seed)


def _first_event(search: Search, seed: int) -> Threshold:
    """Walk from the upper end of an interval, else from the lower, else both ways from the middle."""
    kind, problem, parameter, (on,) = search.kind, search.problem, search.parameter, search.branches
    low, high = search.interval
    middle = (low + high) / 2
    seen = []
    problem.only_at_zero_temperature("branches are followed through folds")
    for begin_at, goals in ((high, (low,)), (low, (high,)), (middle, (low, high))):
        for goal in goals:
            try:
                walk = Walk(problem, on, parameter, (begin_at, goal), 1e-3, seed)
            except NotConvergedError:
                break
            event = walked_to(walk, search)
            if event is not None:
                return event
            seen.append(f"from {begin_at:g}: {walk.ending}")
        else:
            break
    if not seen:
        raise NotConvergedError(
            f"{kind}: the {on} branch was found neither at the ends nor in the middle of "
            f"{parameter} = {low:g} to {high:g}"
        )
    raise NotConvergedError(
        f"{kind}: none on the {on} branch for {parameter} in [{low:g}, {high:g}] ({'; '.join(seen)})"
    )


def walked_to(walk: Walk, search: Search) -> Threshold | None:
    """The first event on a walk that is looked for, located; None where the walk ends without one."""
    with bar(f"{search.kind} of the {walk.name} branch", None) as task:
        for station in walk.stations(MOST_POINTS):
            task.advance(f"{walk.name} branch, {walk.parameter} = {station.value:.4g}")
            if len(walk.passed) < 2:
                continue
            for passage in walk.passages():
                if passage.kind == search.kind:
                    return located_event(passage, walk.name, search.accuracy, walk.accuracy, search.verifies)
                if passage.merges:
                    walk.stop(f"it merges with a more symmetric branch near {walk.parameter} = {passage.near:.4g}")
    return None
