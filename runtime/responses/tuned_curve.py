"""Tuned curves: the best value of one parameter as a function of another parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base import presenting
from ..base.errors import InputError, NotConvergedError, TimeLimitError
from ..base.interrupts import keep_partial_results
from ..base.presenting import DatasetResult, TextResult
from ..base.progress import progress_bar
from ..branches.curve_results import Curve
from ..branches.grid import check_parameter_grid
from ..problems.problem import Problem, require_problem, stored_parameter_name
from .minimum import ObservableMinimumSearch, describe_observable_in_words, resolve_objective_name
from .tuning import Optimum, refine_candidate_to_optimum, tune

if TYPE_CHECKING:
    import pandas
    import xarray


@dataclass(frozen=True, repr=False)
class TunedCurve(TextResult, DatasetResult):
    """The best value of one parameter at every value of another parameter.

    Attributes:
        over: name of the parameter along the curve.
        optima: optima in ascending order of that parameter.
        missing: values of that parameter without an optimum.
        notes: sentences on lower minima that full scans found, but following the minimum did not.
        interrupted: whether the user ended it; finished optima are kept.
        out_of_time: whether a time limit ended it; values not reached are among the missing ones.

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
        """Return the solutions at the optima as a `Curve`."""
        name = self.optima[0].branch if self.optima else ""
        return Curve(self.over, name, tuple(optimum.solution for optimum in self.optima), (None, None))

    @property
    def values(self) -> np.ndarray:
        """Return the values of the parameter along the curve at which there is an optimum, ascending."""
        return self.curve.values

    @property
    def success(self) -> bool:
        """Return whether a converged optimum was found at every value of the parameter along the curve."""
        return not self.missing and all(optimum.success for optimum in self.optima)

    def to_xarray(self, stability: bool = True) -> xarray.Dataset:
        """Return an xarray Dataset of the solutions and of the tuned parameter, with error bar, kind and status."""
        return presenting.to_dataset(self, stability)

    def to_pandas(self, stability: bool = True) -> pandas.DataFrame:
        """Return the dataset of `to_xarray` as a data frame with one row per value."""
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
    """Return the best value of a parameter as a function of another one, for example lambda*(alpha).

    The first and the last value are scanned in full (see `tune`); between them the minimum is followed from its
    neighbour, with a full scan where that fails. If a scan finds a lower minimum, `notes` reports it.

    Args:
        problem: the problem at any values of both parameters.
        parameter: name of the parameter to tune.
        minimise: name of the observable, as for `tune`.
        on: name of the start of the branch.
        bracket: interval to search, as for `tune`.
        accuracy: error bar of the best value, as for `tune`.
        seed: seed of the sampled quadrature rules.
        over: name of the second parameter.
        values: grid of the second parameter; or give name and grid together, as alpha=(0.5, 4, 8).
        on_point: called with every optimum when it is found. Ctrl-C after the first keeps those found.
        integrator: name of the quadrature rule, as for `solve`.
        points: size of the quadrature rule, as for `solve`.
        **ranges: a grid by the name of its parameter.

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
    require_problem(problem)
    if stored_parameter_name(parameter) in (stored_parameter_name(name) for name in (over, *ranges) if name):
        raise InputError(f"{parameter} cannot be tuned along itself: choose another parameter along the curve")
    problem, over, grid = check_parameter_grid(problem, over, values, ranges)
    problem.require_scalar_parameters(parameter)
    problem, minimise = resolve_objective_name(problem, minimise)
    problems = [problem.with_(**{over: value}) for value in grid]
    if bracket is None:  # the same for all of the curve
        search = ObservableMinimumSearch.search_from_arguments(
            problems[0], parameter, minimise, on, None, accuracy, seed
        )
        bracket = (search.parameter_at_coordinate(search.low), search.parameter_at_coordinate(search.high))
    options: dict[str, Any] = {"minimise": minimise, "on": on, "bracket": bracket, "accuracy": accuracy, "seed": seed}
    options |= {"integrator": integrator, "points": points}
    optima: dict[float, Optimum] = {}
    tried: list[float] = []
    notes: list[str] = []
    with progress_bar(f"tuning {parameter} along {over}", len(grid)) as task, keep_partial_results() as early:
        for value, at in zip(grid, problems, strict=True):
            last = optima[max(optima)] if optima else None
            optimum = _follow_minimum(at, parameter, last, options) if last else None
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
                notes += _describe_lower_minimum_of_scan(over, value, optimum, scanned)
                optimum = scanned or optimum
            if optimum is not None:
                if on_point:
                    on_point(optimum)
                optima[value] = optimum
            tried.append(value)
            if late:
                raise TimeLimitError(f"the time limit ended the scan at {over} = {value:.4g}")
            task.count_finished_step(f"{over} = {value:.4g}")
    if early.interrupted and not optima:
        raise KeyboardInterrupt
    if early.out_of_time and not optima:
        raise TimeLimitError(f"the time limit ended the search for the best {parameter} at the curve's first point")
    missing = tuple(value for value in (grid if early.out_of_time else tried) if value not in optima)
    return TunedCurve(over, tuple(optima.values()), missing, tuple(notes), early.interrupted, early.out_of_time)


def _describe_lower_minimum_of_scan(
    over: str, value: float, followed: Optimum | None, scanned: Optimum | None
) -> list[str]:
    """Return a list with one sentence if a full scan found a lower minimum than following did; otherwise empty."""
    if scanned is None or followed is None:
        return []
    sign, better = (-1, "higher") if scanned.minimise.startswith("-") else (1, "lower")
    gain = sign * (followed.observed - scanned.observed)
    if gain <= followed.observed_error + scanned.observed_error:
        return []
    shown = describe_observable_in_words(scanned.problem, scanned.minimise)
    return [
        f"{over} = {value:g}: a {better} value of {shown} than at the optimum followed to there "
        f"({scanned.parameter.rstrip('_')} = {followed.value:.6g}) is at {scanned.value:.6g}; the optimum jumps "
        "along the curve"
    ]


def _follow_minimum(problem: Problem, parameter: str, last: Optimum, options: dict[str, Any]) -> Optimum | None:
    """Return the minimum near that of a neighbouring parameter value; None if it cannot be followed."""
    if last.kind != "minimum":
        return None
    search = ObservableMinimumSearch.search_from_arguments(problem, parameter, **options)
    near = problem.with_(**{search.branch.parameter: last.value})
    search.branch.solve_from_overlaps(last.value, last.solution.overlaps)
    try:
        point = search.require_point_on_branch(
            search.coordinate_of_parameter(near.value_of_parameter(search.branch.parameter))
        )
        width = 0.03 * search.search_interval_length
        left = right = point
        while not left.slope < 0 <= right.slope:
            if point.slope < 0:
                left, coordinate = right, min(search.high, right.coordinate + width)
                right = search.require_point_on_branch(coordinate)
            else:
                right, coordinate = left, max(search.low, left.coordinate - width)
                left = search.require_point_on_branch(coordinate)
            if coordinate in (search.low, search.high) and not left.slope < 0 <= right.slope:
                return None
            if ObservableMinimumSearch.are_slopes_inconsistent_with_values(left, right):
                return None
            width *= 2
        rough = search.find_root_of_slope(left, right, lambda: None, 1e-3 * search.search_interval_length)
        return refine_candidate_to_optimum(search, options["accuracy"], "minimum", rough, lambda: None)
    except NotConvergedError:
        return None
