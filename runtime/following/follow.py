"""A branch followed by arclength, through folds and over unstable stretches, with the events on the way.

Curves (`branches.curve`) ask for the solution at given values of a parameter; here the parameter is an unknown like
the overlaps, so that the branch may turn back. Each event is solved on an extended system of its own
(`branches.equations`), with the integration error carried into it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..base import presenting
from ..base.errors import require_in
from ..base.interrupts import keeping_results
from ..base.progress import bar
from ..branches.along import AlongBranch
from ..problems.problem import Problem, check_is_problem
from ..saddle_point.starts import default_start
from ..solving.solution import Solution
from ..thresholds.threshold import Threshold
from .walk import MOST_POINTS, Walk


@dataclass(frozen=True)
class Followed(AlongBranch[Solution]):
    """A branch along its arclength.

    Attributes:
        solutions: in the order in which they were met; the parameter may go back and forth.
        arclength: of each, (N,), in units of the block scales and of the parameter's interval.
        events: spinodals and instabilities, in that order, too.
        ending: why it was not followed further, in words.
        interrupted: by the user; out_of_time: by a time limit; what was finished is here.
        slopes_by: how dG/du was found: printed derivatives, or differences and why.

    Example:
        >>> found = sf.follow(sf.problem("ridge_regression"), between=(3, 1), events=False)
        >>> found.values[[0, -1]].tolist(), len(found.solutions) == len(found.arclength)
        ([3.0, 1.0], True)
    """

    parameter: str
    name: str
    solutions: tuple[Solution, ...]
    arclength: np.ndarray
    events: tuple[Threshold, ...]
    ending: str
    interrupted: bool = False
    out_of_time: bool = False
    slopes_by: tuple[str, ...] = ()

    def end_text(self, symbol: str | None = None) -> str:
        """How far the branch was followed, and why not further; a symbol may stand for the parameter."""
        if not self.solutions:
            return f"{self.name} branch not found"
        shown = symbol or self.parameter
        span = f"{shown} = {self.values[0]:.4g} to {self.values[-1]:.4g}"
        ending = self.ending.replace(f"{self.parameter} = ", f"{shown} = ")
        return f"{self.name} branch followed from {span}, {len(self.solutions)} points; {ending}"

    def save(self, path: str | Path, stability: bool = True) -> None:
        """Write netCDF, whole or not at all, over what is there."""
        presenting.save(self.to_xarray(stability), path)

    def __repr__(self) -> str:
        return "\n".join([self.end_text(), *(f"  {event!r}" for event in self.events)])


def follow(
    problem: Problem,
    *,
    start: str | Solution | None = None,
    over: str = "alpha",
    between: tuple[float, float],
    accuracy: float = 1e-3,
    event_accuracy: float = 1e-3,
    seed: int = 0,
    most: int = MOST_POINTS,
    events: bool = True,
    on_point: Callable[[Solution], object] | None = None,
) -> Followed:
    """Follow a branch from one value of a parameter toward another, through folds, until it leaves the interval.

    Args:
        start: named start of the model, or a solution at the first value.
        over, between: the parameter; the value to begin at, and the one to head for.
        accuracy: of the overlaps, as for `solve`: finer rules are taken where it asks for them.
        event_accuracy: half width asked of every event, in the parameter.
        seed: of the scramblings; all points share the same nodes.
        most: points at the most.
        events: whether spinodals and instabilities are looked for.
        on_point: called with every solution, as it is found.

    Raises:
        InputError: an unknown parameter or start, or an empty interval.
        NotConvergedError: no solution at the first value.

    Example:
        >>> found = sf.follow(sf.problem("ridge_regression"), between=(3, 1), events=False)
        >>> found.ending
        'alpha = 1 reached'
    """
    check_is_problem(problem)
    problem.only_at_zero_temperature("branches are followed through folds")
    require_in("event_accuracy", event_accuracy, "(0, inf)")
    walk = Walk(problem, default_start(problem) if start is None else start, over, between, accuracy, seed)
    located: list[Threshold] = []
    with keeping_results() as early, bar(f"following the {walk.name} branch", None) as task:
        for station in walk.stations(most):
            if on_point:
                on_point(station.solution)
            task.advance(f"{walk.name} branch, {over} = {station.value:.4g}")
            if not events or len(walk.passed) < 2:
                continue
            for passage in walk.passages():
                task.describe(f"{walk.name} branch: locating the {passage.kind} near {over} = {passage.near:.4g}")
                event = walk.locate(passage, event_accuracy)
                if event is not None:
                    located.append(event)
                if event is not None and passage.merges:
                    walk.passed.pop()  # its mirror image lies beyond
                    walk.stop(f"at {over} = {event.value:.5g} it merges with a more symmetric branch")
    if early.reason:
        walk.stop(early.reason)
    return Followed(
        over,
        walk.name,
        tuple(station.solution for station in walk.passed),
        np.array([station.place.arclength for station in walk.passed]),
        tuple(located),
        walk.ending,
        early.interrupted,
        early.out_of_time,
        tuple(sorted(walk.branch.slopes_by)),
    )
