"""The first event of a kind on a branch."""

from __future__ import annotations

from ..errors import NotConvergedError
from ..problems.problem import Problem
from ..progress import bar
from ..solving.verification import AUTOMATIC_BELOW
from ..thresholds.threshold import Threshold, search_interval
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
    """
    return _first_event("spinodal", problem, parameter, on, bracket, accuracy, seed, verify)


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
    """
    return _first_event("instability", problem, parameter, on, bracket, accuracy, seed, verify)


def _first_event(
    kind: str,
    problem: Problem,
    parameter: str,
    on: str,
    bracket: tuple[float, float] | None,
    accuracy: float,
    seed: int,
    verify: bool | None,
) -> Threshold:
    """Walk from the upper end of an interval, else from the lower, else both ways from the middle."""
    low, high = search_interval(parameter, bracket)
    middle = (low + high) / 2
    seen = []
    problem.only_at_zero_temperature("branches are followed through folds")
    for begin_at, goals in ((high, (low,)), (low, (high,)), (middle, (low, high))):
        for goal in goals:
            try:
                walk = Walk(problem, on, parameter, (begin_at, goal), 1e-3, seed)
            except NotConvergedError:
                break
            event = _walked_to(walk, kind, accuracy, accuracy < AUTOMATIC_BELOW if verify is None else verify)
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


def _walked_to(walk: Walk, kind: str, accuracy: float, verify: bool) -> Threshold | None:
    with bar(f"{kind} of the {walk.name} branch", None) as task:
        for station in walk.stations(MOST_POINTS):
            task.advance(f"{walk.name} branch, {walk.parameter} = {station.value:.4g}")
            if len(walk.passed) < 2:
                continue
            for passage in walk.passages():
                if passage.kind == kind:
                    return located_event(passage, walk.parameter, walk.name, accuracy, walk.accuracy, verify)
                if passage.merges:
                    walk.stop(f"it merges with a more symmetric branch near {walk.parameter} = {passage.near:.4g}")
    return None
