"""The best value of a parameter along another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base import presenting
from ..base.errors import InputError, NotConvergedError, TimeLimitError
from ..base.interrupts import keeping_results
from ..base.presenting import Recorded, Shown
from ..base.progress import bar
from ..branches.along import Curve
from ..branches.grid import checked_grid
from ..problems.problem import Problem, check_is_problem, parameter_name
from .minimum import Search, in_words, minimised
from .tuning import Optimum, optimum_at, tune

if TYPE_CHECKING:
    import pandas
    import xarray


@dataclass(frozen=True, repr=False)
class TunedCurve(Shown, Recorded):
    """Optima along a second parameter, each at its own best value of the first.

    Attributes:
        over: the parameter along the curve; optima: in its ascending order; missing: values without an optimum.
        out_of_time: whether a time limit ended it: the values not reached are among the missing ones.
        notes: what a full scan at the ends of the curve saw that following the minimum did not.
        interrupted: by the user; what was finished is here.

    Example:
        >>> problem = sf.problem("ridge_regression", Delta=0.25)
        >>> tuned = sf.tuned_curve(problem, "lambda", bracket=(0.01, 1), alpha=(1, 2, 2))
        >>> tuned.values, [round(best.observed, 4) for best in tuned.optima]
        (array([1., 2.]), [0.6404, 0.4254])
    """

    over: str
    optima: tuple[Optimum, ...]
    missing: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    out_of_time: bool = False

    @property
    def curve(self) -> Curve:
        """The solutions as a curve of the branch."""
        name = self.optima[0].branch if self.optima else ""
        return Curve(self.over, name, tuple(optimum.solution for optimum in self.optima), (None, None))

    @property
    def values(self) -> np.ndarray:
        """Return the values of the second parameter, ascending, those without an optimum left out, (N,)."""
        return self.curve.values

    @property
    def success(self) -> bool:
        """Whether there is an optimum at every value, each with success."""
        return not self.missing and all(optimum.success for optimum in self.optima)

    def to_xarray(self, stability: bool = True) -> xarray.Dataset:
        """Return a curve's dataset with best_NAME, best_NAME_error, optimum (its kind) and optimum_status."""
        return presenting.to_dataset(self, stability)

    def to_pandas(self, stability: bool = True) -> pandas.DataFrame:
        """One row a value."""
        return presenting.to_frame(self.to_xarray(stability))


def tuned_curve(
    problem: Problem,
    parameter: str,
    *,
    minimise: str = "test_error",
    on: str | None = None,
    bracket: tuple[float, float] | None = None,
    accuracy: float = 1e-3,
    seed: int = 0,
    over: str = "alpha",
    values: Sequence[float] | np.ndarray | None = None,
    on_point: Callable[[Optimum], object] | None = None,
    integrator: str = "auto",
    points: int | None = None,
    **ranges: Any,
) -> TunedCurve:
    """The best value of a parameter along another one, as lambda*(alpha), every minimum begun at its neighbour's.

    The first and the last value are scanned in full (see `tune`), and every one at which the minimum cannot be
    followed; in between it is. What the last scan finds to be lower is said in `notes`.

    Args:
        over, values: the second parameter and its grid; or give `alpha=(0.5, 4, 8)` directly. The rest as for `tune`.
        on_point: called with every optimum, as it is found. Ctrl-C after the first keeps those found.

    Raises:
        InputError: as `tune`, or no grid.
        KeyboardInterrupt: interrupted before the first optimum was found.
        NotConvergedError: no optimum at the first value.

    Example:
        >>> problem = sf.problem("ridge_regression", Delta=0.25)
        >>> tuned = sf.tuned_curve(problem, "lambda", bracket=(0.01, 1), alpha=(1, 2, 2))
        >>> [round(best.value, 3) for best in tuned.optima]
        [0.25, 0.25]
    """
    check_is_problem(problem)
    if parameter_name(parameter) in (parameter_name(name) for name in (over, *ranges) if name):
        raise InputError(f"{parameter} cannot be tuned along itself")
    problem, over, grid = checked_grid(problem, over, values, ranges)
    problem.check_varied(parameter)
    problem, minimise = minimised(problem, minimise)
    problems = [problem.with_(**{over: value}) for value in grid]
    if bracket is None:  # the same for all of the curve
        search = Search.of(problems[0], parameter, minimise, on, None, accuracy, seed)
        bracket = (search.value(search.low), search.value(search.high))
    options: dict[str, Any] = {"minimise": minimise, "on": on, "bracket": bracket, "accuracy": accuracy, "seed": seed}
    options |= {"integrator": integrator, "points": points}
    optima: dict[float, Optimum] = {}
    tried: list[float] = []
    notes: list[str] = []
    with bar(f"tuning {parameter} along {over}", len(grid)) as task, keeping_results() as early:
        for value, at in zip(grid, problems, strict=True):
            last = optima[max(optima)] if optima else None
            optimum = _followed(at, parameter, last, options) if last else None
            late = False
            if optimum is None or value == grid[-1]:
                scanned = None
                try:
                    scanned = tune(at, parameter, **options, start=last.solution.overlaps if last else None)
                except NotConvergedError as error:
                    if last is None:
                        raise
                    notes.append(f"{over} = {value:g}: {error}")
                if scanned is not None and scanned.status == "time_limit":
                    late, scanned = True, None
                notes += _contradiction(over, value, optimum, scanned)
                optimum = scanned or optimum
            if optimum is not None:
                if on_point:
                    on_point(optimum)
                optima[value] = optimum
            tried.append(value)
            if late:
                raise TimeLimitError("the time limit ended the scan of a value")
            task.advance(f"{over} = {value:.4g}")
    if early.interrupted and not optima:
        raise KeyboardInterrupt
    if early.out_of_time and not optima:
        raise TimeLimitError(f"the time limit ended the search for the first best value of {parameter}")
    missing = tuple(value for value in (grid if early.out_of_time else tried) if value not in optima)
    return TunedCurve(over, tuple(optima.values()), missing, tuple(notes), early.interrupted, early.out_of_time)


def _contradiction(over: str, value: float, followed: Optimum | None, scanned: Optimum | None) -> list[str]:
    """Return where a full scan contradicts the minimum that was followed."""
    if scanned is None or followed is None:
        return []
    sign, better = (-1, "higher") if scanned.minimise.startswith("-") else (1, "lower")
    gain = sign * (followed.observed - scanned.observed)
    if gain <= followed.observed_error + scanned.observed_error:
        return []
    return [
        f"{over} = {value:g}: a {better} value of {in_words(scanned.problem, scanned.minimise)} than at the optimum "
        "followed to there "
        f"({scanned.parameter.rstrip('_')} = {followed.value:.6g}) is at {scanned.value:.6g}; the best one changes "
        "place along the curve"
    ]


def _followed(problem: Problem, parameter: str, last: Optimum, options: dict[str, Any]) -> Optimum | None:
    """The minimum next to that of a neighbouring problem; None where there is none to follow."""
    if last.kind != "minimum":
        return None
    search = Search.of(problem, parameter, **options)
    near = problem.with_(**{search.branch.parameter: last.value})
    search.branch.begin(last.value, last.solution.overlaps)
    try:
        point = search.needed(search.place(near.value_of(search.branch.parameter)))
        width = 0.03 * search.span
        left = right = point
        while not left.slope < 0 <= right.slope:
            if point.slope < 0:
                left, place = right, min(search.high, right.place + width)
                right = search.needed(place)
            else:
                right, place = left, max(search.low, left.place - width)
                left = search.needed(place)
            if place in (search.low, search.high) and not left.slope < 0 <= right.slope:
                return None
            if Search.disagree(left, right):
                return None
            width *= 2
        rough = search.root(left, right, lambda: None, 1e-3 * search.span)
        return optimum_at(search, options["accuracy"], "minimum", rough, lambda: None)
    except NotConvergedError:
        return None
