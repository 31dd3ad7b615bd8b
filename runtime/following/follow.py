"""A branch followed by arclength, through folds and unstable parts, with its bifurcations.

Curves (`branches.curve`) solve at given values of a parameter; here the parameter is an unknown like
the overlaps, so that the branch may turn back. Each event is solved on an extended system of its own
(`branches.equations`), with the integration error carried into it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..base import presenting
from ..base.errors import require_in_interval
from ..base.interrupts import keep_partial_results
from ..base.progress import progress_bar
from ..branches.curve_results import BranchResults
from ..problems.problem import Problem, require_problem
from ..saddle_point.starts import find_start_name
from ..solving.solution import Solution
from ..thresholds.threshold import Threshold
from .branch_continuation import MOST_POINTS, BranchContinuation


@dataclass(frozen=True)
class Followed(BranchResults[Solution]):
    """A branch followed by arclength, with its solutions and bifurcations.

    Attributes:
        solutions: solutions in the order of the arclength; the parameter may go back and forth.
        arclength: arclength at each solution, with q, V, m, ... relative to their sizes, the parameter to its interval.
        events: spinodals and instabilities, in the order of the arclength.
        ending: the reason why the continuation ended.
        interrupted: whether the user ended it; finished points are kept.
        out_of_time: whether a time limit ended it; finished points are kept.
        slopes_by: methods by which the Jacobian dG/du was computed: generated formulas, or differences and why.

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
        """Return a sentence on how far the branch was followed and why the continuation ended."""
        if not self.solutions:
            return f"{self.name} branch not found"
        shown = symbol or self.parameter
        span = f"{shown} = {self.values[0]:.4g} to {self.values[-1]:.4g}"
        ending = self.ending.replace(f"{self.parameter} = ", f"{shown} = ")
        return f"{self.name} branch followed from {span}, {len(self.solutions)} points; {ending}"

    def save(self, path: str | Path, stability: bool = True) -> None:
        """Save the branch to a netCDF file; an existing file is replaced only when the new one is complete.

        Args:
            path: path of the file.
            stability: whether stability verdicts are saved, too (computed if missing).
        """
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
        problem: the problem at any value of the parameter.
        start: named start of the model, or a solution at the first value.
        over: name of the parameter.
        between: parameter values at which the continuation starts and ends.
        accuracy: error bar of the overlaps, as for `solve`; quadrature rules are refined where it requires that.
        event_accuracy: error bar of the parameter value of every event.
        seed: seed of the sampled quadrature rules; all points share the same nodes.
        most: largest number of continuation points.
        events: whether spinodals and instabilities are detected and located.
        on_point: called with every solution, as it is found.

    Raises:
        InputError: an unknown parameter or start, or an empty interval.
        NotConvergedError: there is no solution at the first parameter value.

    Example:
        >>> found = sf.follow(sf.problem("ridge_regression"), between=(3, 1), events=False)
        >>> found.ending
        'alpha = 1 reached'
    """
    require_problem(problem)
    problem.require_zero_temperature("branches are followed through folds")
    require_in_interval("event_accuracy", event_accuracy, "(0, inf)")
    begin = start if isinstance(start, Solution) else find_start_name(problem, start)
    continuation = BranchContinuation(problem, begin, over, between, accuracy, seed)
    located: list[Threshold] = []
    with keep_partial_results() as early, progress_bar(f"following the {continuation.name} branch", None) as task:
        for point in continuation.continuation_points(most):
            if on_point:
                on_point(point.solution)
            task.count_finished_step(f"{continuation.name} branch, {over} = {point.value:.4g}")
            if not events or len(continuation.points_so_far) < 2:
                continue
            for detected in continuation.detect_events():
                task.set_description(
                    f"{continuation.name} branch: locating the {detected.kind} near {over} = {detected.near:.4g}"
                )
                event = continuation.locate_detected_event(detected, event_accuracy)
                if event is not None:
                    located.append(event)
                if event is not None and detected.merges:
                    continuation.points_so_far.pop()  # the mirror image of the branch follows
                    continuation.end_continuation(
                        f"at {over} = {event.value:.5g} it merges with a more symmetric branch"
                    )
    if early.reason:
        continuation.end_continuation(early.reason)
    return Followed(
        over,
        continuation.name,
        tuple(point.solution for point in continuation.points_so_far),
        np.array([point.point.arclength for point in continuation.points_so_far]),
        tuple(located),
        continuation.reason_of_continuation_end,
        early.interrupted,
        early.out_of_time,
        tuple(sorted(continuation.branch.slopes_by)),
    )
