"""Minima of an observable along a branch in several parameters at once.

The gradient is that of sensitivities. A quasi-Newton method starts from the best of a few points spread over the box
(and the problem's own). Near its end Newton's method, with a Hessian from differences of gradients, refines parameters
and integration together; the same Hessian turns the remaining gradient, and its error bars, into error bars of the
parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..base.errors import InputError, NotConvergedError, TimeLimitError
from ..base.interrupts import keep_partial_results
from ..base.numbers import format_value_with_error
from ..base.options import AlgorithmOptions
from ..base.presenting import PresentableResult
from ..base.progress import progress_bar
from ..problems.problem import Problem, stored_parameter_name
from ..saddle_point.iteration import Status
from ..solving.solution import Solution, has_lost_overlap_of_start
from ..solving.solve import solve_without_branch_check
from .direction import ParameterDirection
from .minimum import (
    ObservableMinimumSearch,
    describe_extremum,
    observable_with_error,
    resolve_objective_name,
    solution_with_shifted_overlaps,
)
from .sensitivity import sensitivity


@dataclass(frozen=True)
class JointTuningOptions(AlgorithmOptions):
    """Options of minimising an observable in several parameters.

    Attributes:
        scan_effort: number of sizes of each quadrature rule that may be tried in the scan and in the descent.
        scan_accuracy: error bar of the overlaps in scan and descent; finer gives better gradients, but is slower.
        max_evaluations: largest number of evaluations of the quasi-Newton method.
        gradient_tolerance: gradient at which that method ends, relative to the largest slope in the scan.
        max_refinements: largest number of Newton iterations at the minimum, refinements of the integration included.
        hessian_step: step of gradient differences, in the logarithm of a parameter or relative to its interval.
        bound_tolerance: distance from an end of an interval, relative to its length, that counts as zero.
    """

    scan_effort: int = 4
    scan_accuracy: float = 1e-3
    max_evaluations: int = 60
    gradient_tolerance: float = 1e-4
    max_refinements: int = 12
    hessian_step: float = 0.02
    bound_tolerance: float = 1e-9


@dataclass(frozen=True)
class Trial:
    """A point that `sf.tune` tried: values of the parameters, value of the observable, and its error bar.

    Example:
        >>> box = {"lambda": (0.05, 5), "width": (0.1, 5)}
        >>> problem = sf.problem("huber_regression", alpha=10, Delta=0.25)
        >>> best = sf.tune(problem, ["lambda", "width"], bracket=box, accuracy=1e-2)
        >>> min(trial.observed for trial in best.tried) >= best.observed - best.observed_error
        True
    """

    values: dict[str, float]
    observed: float
    observed_error: float


@dataclass(frozen=True, repr=False)
class JointOptimum(PresentableResult):
    """Values of several parameters at which an observable is least on a branch.

    Attributes:
        parameters: names of the parameters.
        values: value of each parameter.
        errors: error bar of each value; nan at an end of an interval, or if the minimum was not refined.
        minimise: name of the observable; a minus sign before it means that it is maximised.
        kinds: kind of each value: minimum, lower_end or upper_end; tried for all if the search did not end.
        status: converged; accuracy_not_reached; edge, if a parameter is at an end of its interval that is not the end
            of its range; time_limit or interrupted: the best of the points tried.
        tried: all points that were tried, in order.
        evidence: Hessian in the logarithms (or values) of the parameters, and number of evaluations.

    Example:
        >>> box = {"lambda": (0.05, 5), "width": (0.1, 5)}
        >>> problem = sf.problem("huber_regression", alpha=10, Delta=0.25)
        >>> best = sf.tune(problem, ["lambda", "width"], bracket=box, accuracy=1e-2)
        >>> best.status, best.kinds, round(best.observed, 5)
        ('converged', ('minimum', 'minimum'), 0.27695)
    """

    problem: Problem
    parameters: tuple[str, ...]
    values: tuple[float, ...]
    errors: tuple[float, ...]
    minimise: str
    kinds: tuple[str, ...]
    status: str
    branch: str
    observed: float
    observed_error: float
    solution: Solution
    tried: tuple[Trial, ...]
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def success(self) -> bool:
        """Return whether the search converged: to a minimum within the accuracy, or to ends of parameter ranges."""
        return self.status == "converged"

    @property
    def advice(self) -> str:
        """Return a sentence that explains the status and says what to try next; empty if the search converged."""
        at = _format_parameter_values(dict(zip(self.parameters, self.values, strict=True)), 6)
        return {
            "converged": "",
            "accuracy_not_reached": "an error bar is larger than the accuracy asked; allow a larger one (--accuracy)",
            "edge": f"{describe_extremum(self.problem, self.minimise)} at an end of the intervals searched, {at}; "
            "try wider ones",
            "time_limit": f"the time limit ended the search: {at} is the best of {len(self.tried)} points tried",
            "interrupted": f"interrupted: {at} is the best of {len(self.tried)} points tried",
        }[self.status]

    def __getitem__(self, name: str) -> float:
        return self.values[self.parameters.index(stored_parameter_name(name))]


def _format_parameter_values(values: Mapping[str, float], digits: int) -> str:
    """Return names and values of parameters as text."""
    return ", ".join(f"{name.rstrip('_')} = {value:.{digits}g}" for name, value in values.items())


@dataclass(frozen=True)
class _SolvedParameterPoint:
    """A point in the space of the tuned parameters at which the branch was solved.

    Attributes:
        at: search coordinates: one parameter, or logarithm of a positive parameter, each.
        gradient: derivatives of the observable in the coordinates.
        gradient_error: error bars of the gradient.
        changes: derivatives of the packed overlaps, one row per coordinate.
    """

    at: np.ndarray
    solution: Solution
    observed: float
    observed_error: float
    gradient: np.ndarray
    gradient_error: np.ndarray
    changes: np.ndarray


class _ObjectiveAlongBranch:
    """The observable to minimise on a branch, as a function of several parameters; solved points are cached."""

    def __init__(
        self,
        searches: Sequence[ObservableMinimumSearch],
        say: Callable[[str], None],
        on_trial: Callable[[Trial], object] | None,
    ) -> None:
        self.searches, self.say, self.on_trial = searches, say, on_trial
        branch = searches[0].branch
        self.problem, self.name = branch.problem, branch.name
        self.sign, self.observable = searches[0].objective_sign, searches[0].observable_name
        self.chosen: dict[str, Any] = {"integrator": branch.integrator, "points": branch.points, "seed": branch.seed}
        self.low, self.high = (np.array([getattr(search, end) for search in searches]) for end in ("low", "high"))
        self.known: list[_SolvedParameterPoint] = []
        self.reason = ""  # why the last point was not found

    @property
    def best_solved_point(self) -> _SolvedParameterPoint:
        """Return the solved point at which the objective is least."""
        return min(self.known, key=lambda point: point.observed)

    def parameter_values(self, at: np.ndarray) -> dict[str, float]:
        """Return parameter values by name at given search coordinates (values, or logarithms of positive ones)."""
        return {s.branch.parameter: s.parameter_at_coordinate(float(x)) for s, x in zip(self.searches, at, strict=True)}

    def parameter_derivatives_by_coordinate(self, at: np.ndarray) -> np.ndarray:
        """Return the derivative of every parameter in its search coordinate: 1, or its value if logarithmic."""
        values = self.parameter_values(at).values()
        return np.array([value if s.logarithmic else 1.0 for s, value in zip(self.searches, values, strict=True)])

    def solve_point_on_branch(self, at: np.ndarray, accuracy: float | None = None) -> _SolvedParameterPoint | None:
        """Solve the branch at search coordinates and return the point; None if the branch was not found there.

        Args:
            at: search coordinates, which are clipped to the box.
            accuracy: error bar of the overlaps; `JointTuningOptions.scan_accuracy` by default.
        """
        rough = JointTuningOptions.current().scan_accuracy
        accuracy = rough if accuracy is None else accuracy
        at = np.clip(at, self.low, self.high)
        for point in self.known:
            if np.array_equal(point.at, at) and point.solution.relative_error <= max(accuracy, rough * 1e-9):
                return point
        values = self.parameter_values(at)
        solution = self._solve_from_nearest_point(self.problem.with_(**values), at, accuracy)
        if solution is None:
            return None
        try:
            moved = [sensitivity(solution, ParameterDirection(solution.problem, name)) for name in values]
        except NotConvergedError as failure:
            self.reason = str(failure)
            return None  # the end of the branch
        units, slopes = (
            self.parameter_derivatives_by_coordinate(at),
            np.array([answer.of(self.observable) for answer in moved]),
        )
        value, error = observable_with_error(solution, self.observable)
        point = _SolvedParameterPoint(
            at=at,
            solution=solution,
            observed=self.sign * value,
            observed_error=error,
            gradient=self.sign * units * slopes[:, 0],
            gradient_error=units * slopes[:, 1],
            changes=units[:, None] * np.array([answer.overlaps.pack() for answer in moved]),
        )
        self.known.append(point)
        best = format_value_with_error(
            self.sign * self.best_solved_point.observed, self.best_solved_point.observed_error
        )
        there = f"{format_value_with_error(value, error)} at {_format_parameter_values(values, 5)}"
        self.say(f"{self.searches[0].observable_description} {there}; best {best}")
        if self.on_trial is not None:
            self.on_trial(self.trial_of_solved_point(point))
        return point

    def trial_of_solved_point(self, point: _SolvedParameterPoint) -> Trial:
        """Return a solved point as a `Trial`, the form in which results list it."""
        values = {name.rstrip("_"): value for name, value in self.parameter_values(point.at).items()}
        return Trial(values, self.sign * point.observed, point.observed_error)

    def _solve_from_nearest_point(self, problem: Problem, at: np.ndarray, accuracy: float) -> Solution | None:
        """Return the solution, started from the nearest solved point or else the named start; None if both fail."""
        guesses: list[str | Solution] = [self.name]
        if self.known:
            near = min(self.known, key=lambda point: float(np.linalg.norm(point.at - at)))
            guesses.insert(0, solution_with_shifted_overlaps(near.solution, (at - near.at) @ near.changes))
        options = JointTuningOptions.current()
        effort = options.scan_effort if accuracy >= options.scan_accuracy else 100
        for guess in guesses:
            solution = solve_without_branch_check(problem, guess, accuracy=accuracy, effort=effort, **self.chosen)
            if solution.status is Status.TIME_LIMIT:
                raise TimeLimitError("the time limit ended the search for a branch")
            if solution.losses is not None and not has_lost_overlap_of_start(problem, self.name, solution):
                return solution
        self.reason = f"it converged to a {solution.branch} solution" if solution.losses else solution.status.words
        return None

    def require_point_on_branch(self, at: np.ndarray, accuracy: float | None = None) -> _SolvedParameterPoint:
        """Solve the branch at search coordinates and return the point; raise NotConvergedError if it was not found.

        Args:
            at: search coordinates.
            accuracy: error bar of the overlaps; `JointTuningOptions.scan_accuracy` by default.
        """
        point = self.solve_point_on_branch(at, accuracy)
        if point is None:
            raise NotConvergedError(
                f"the {self.name} branch was lost at "
                f"{_format_parameter_values(self.parameter_values(at), 6)}: {self.reason}"
            )
        return point

    def objective_hessian(self, point: _SolvedParameterPoint, free: np.ndarray, accuracy: float) -> np.ndarray:
        """Return the Hessian of the observable in the free coordinates, from differences of gradients.

        Args:
            point: solved point at which the Hessian is taken.
            free: mask of the coordinates that are not at a bound.
            accuracy: error bar of the overlaps.
        """
        rows = []
        for axis in np.flatnonzero(free).tolist():
            unit = 1.0 if self.searches[axis].logarithmic else self.high[axis] - self.low[axis]
            step = JointTuningOptions.current().hessian_step * unit
            shift = step * np.eye(len(free))[axis]
            sides = [np.clip(point.at + sign * shift, self.low, self.high) for sign in (1, -1)]
            ends = [self.require_point_on_branch(side, accuracy) for side in sides]
            rows.append((ends[0].gradient - ends[1].gradient)[free] / (ends[0].at - ends[1].at)[axis])
        matrix = np.array(rows)
        return (matrix + matrix.T) / 2


def tune_jointly(
    problem: Problem,
    parameters: Sequence[str],
    *,
    minimise: str = "test_error",
    on: str | None = None,
    bracket: Mapping[str, tuple[float, float]] | None = None,
    accuracy: float = 1e-4,
    seed: int = 0,
    integrator: str = "auto",
    points: int | None = None,
    scan: int = 8,
    on_trial: Callable[[Trial], object] | None = None,
) -> JointOptimum:
    """Return the values of several parameters that minimise an observable on a branch (`sf.tune` with a list).

    Args:
        problem: the problem at any values of the parameters.
        parameters: names of the parameters.
        minimise: name of the observable; a minus sign before it means that it is maximised.
        on: name of the start of the branch; the default start of the model if None.
        bracket: intervals to search by parameter name; others have the default interval of `tune`.
        accuracy: error bar of the parameters, relative to the value where the search is logarithmic.
        seed: seed of the sampled quadrature rules.
        integrator: name of the family of quadrature rules, as for `solve`.
        points: size of the quadrature rule, as for `solve`.
        scan: number of points spread over the box that are tried first, in addition to the problem's own values.
        on_trial: called with every point that is tried.

    Raises:
        InputError: an unknown name, or an interval outside the range of its parameter.
        NotConvergedError: the branch was found nowhere, or the observable has no minimum.
    """
    names = [stored_parameter_name(name) for name in parameters]
    if len(set(names)) < len(names):
        raise InputError(f"the list of parameters to tune has a name twice: {', '.join(parameters)}")
    problem.require_zero_temperature("parameters are tuned")
    intervals = {stored_parameter_name(name): ends for name, ends in (bracket or {}).items()}
    if set(intervals) - set(names):
        raise InputError(f"bracket has an interval for {(set(intervals) - set(names)).pop()!r}, which is not tuned")
    problem, minimise = resolve_objective_name(problem, minimise)
    common = accuracy, seed, integrator, points
    searches = [
        ObservableMinimumSearch.search_from_arguments(problem, name, minimise, on, intervals.get(name), *common)
        for name in names
    ]
    with progress_bar(f"tuning {', '.join(parameters)}", None) as task:
        objective = _ObjectiveAlongBranch(searches, task.count_finished_step, on_trial)
        point, hessian, free = None, np.zeros((0, 0)), np.zeros(len(names), bool)
        with keep_partial_results(lambda: objective.known) as early:
            point, hessian, free = _refine_minimum_by_newton(
                objective, _scan_box_and_descend(objective, scan), accuracy
            )
    status = "time_limit" if early.out_of_time else "interrupted" if early.interrupted else ""
    return _joint_optimum(objective, minimise, accuracy, point, hessian, free, status)


def _scan_box_and_descend(objective: _ObjectiveAlongBranch, scan: int) -> _SolvedParameterPoint:
    """Return the lowest point found by a scan and by a quasi-Newton descent from the best scanned point.

    Raises:
        NotConvergedError: the branch was found nowhere, or the observable does not change.
    """
    from scipy.optimize import minimize  # slow to load
    from scipy.stats import qmc

    low, high, searches = objective.low, objective.high, objective.searches
    own = [objective.problem.value_of_parameter(search.branch.parameter) for search in searches]
    is_in_range = [value > 0 or not search.logarithmic for value, search in zip(own, searches, strict=True)]
    first = np.array(
        [s.coordinate_of_parameter(v) if ok else np.nan for s, v, ok in zip(searches, own, is_in_range, strict=True)]
    )
    first = np.where(np.isfinite(first), np.clip(first, low, high), (low + high) / 2)
    spread = qmc.Halton(len(searches), scramble=False).random(scan + 1)[1:]
    for at in [first, *(low + spread * (high - low))]:
        objective.solve_point_on_branch(at)
    if not objective.known:
        raise NotConvergedError(
            f"the {objective.name} branch was found at none of {scan + 1} points tried; "
            "try other intervals or another branch"
        )
    if all(np.all(np.abs(point.gradient) <= point.gradient_error) for point in objective.known):
        raise NotConvergedError(
            f"{searches[0].observable_description} depends on none of the parameters, within its error bar"
        )
    steepest = max(float(np.abs(point.gradient).max()) for point in objective.known)

    def objective_value_and_gradient(at: np.ndarray) -> tuple[float, np.ndarray]:
        point = objective.solve_point_on_branch(at)
        if point is None:  # a slope back to the branch
            near = objective.best_solved_point
            return near.observed + steepest * float(np.linalg.norm(at - near.at)), steepest * np.sign(at - near.at)
        return point.observed, point.gradient

    options, scale = JointTuningOptions.current(), steepest or 1.0
    minimize(
        lambda at: tuple(part / scale for part in objective_value_and_gradient(at)),
        objective.best_solved_point.at,
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(low, high, strict=True)),
        options={"maxfun": options.max_evaluations, "gtol": options.gradient_tolerance, "ftol": 1e-12},
    )
    return objective.best_solved_point


def _coordinates_not_at_bounds(objective: _ObjectiveAlongBranch, point: _SolvedParameterPoint) -> np.ndarray:
    """Return a mask of the coordinates that are not at a bound toward which the observable falls."""
    margin = JointTuningOptions.current().bound_tolerance * (objective.high - objective.low)
    below, above = point.at <= objective.low + margin, point.at >= objective.high - margin
    return ~((below & (point.gradient > 0)) | (above & (point.gradient < 0)))


def _refine_minimum_by_newton(
    objective: _ObjectiveAlongBranch, point: _SolvedParameterPoint, accuracy: float
) -> tuple[_SolvedParameterPoint, np.ndarray, np.ndarray]:
    """Return the minimum by Newton's method, its Hessian, and a mask of the coordinates that are not at a bound.

    Raises:
        NotConvergedError: the point is a saddle of the observable, or the branch is lost.
    """
    options = JointTuningOptions.current()
    free = _coordinates_not_at_bounds(objective, point)
    if not free.any():
        return point, np.zeros((0, 0)), free
    wanted = min(options.scan_accuracy, point.solution.relative_error or options.scan_accuracy)
    least = 2e-5 if point.solution.rule.replicated else 1e-11
    hessian = objective.objective_hessian(point, free, wanted)
    for _ in range(options.max_refinements):
        if not np.array_equal(free, now := _coordinates_not_at_bounds(objective, point)):
            free = now
            if not free.any():
                break
            hessian = objective.objective_hessian(point, free, wanted)
        if np.linalg.eigvalsh(hessian)[0] <= 0:
            raise NotConvergedError(
                f"{objective.searches[0].observable_description} has a saddle, not a minimum, at "
                f"{_format_parameter_values(objective.parameter_values(point.at), 6)}"
            )
        inverse = np.linalg.inv(hessian)
        step = -inverse @ point.gradient[free]
        widths = np.abs(inverse) @ point.gradient_error[free]
        if np.max(np.abs(step)) > max(0.2 * accuracy, 0.3 * float(np.max(widths))):
            at = point.at.copy()
            at[free] += np.clip(step, *(sign * 0.1 * (objective.high - objective.low)[free] for sign in (-1, 1)))
            at = np.clip(at, objective.low, objective.high)
            if np.array_equal(at, point.at):
                break
            point = objective.require_point_on_branch(at, wanted)
        elif np.max(widths) > 0.5 * accuracy and wanted > least:
            wanted = max(least, wanted * min(0.3, 0.3 * accuracy / float(np.max(widths))))
            point = objective.require_point_on_branch(point.at, wanted)
            hessian = objective.objective_hessian(point, free, wanted)
        else:
            break
    return point, hessian, free


def _joint_optimum(
    objective: _ObjectiveAlongBranch,
    minimise: str,
    accuracy: float,
    point: _SolvedParameterPoint | None,
    hessian: np.ndarray,
    free: np.ndarray,
    status: str,
) -> JointOptimum:
    """Return the `JointOptimum` at the minimum, or at the best tried point if the search did not end."""
    found = objective.best_solved_point if status or point is None else point
    errors, kinds = np.full(len(found.at), np.nan), ["tried"] * len(found.at)
    if not status and point is not None:
        units = objective.parameter_derivatives_by_coordinate(found.at)
        kinds = ["minimum" if is_free else "lower_end" if x < middle else "upper_end" for is_free, x, middle in zip(
            free, found.at, (objective.low + objective.high) / 2, strict=True)]  # fmt: skip
        status = "converged"
        if free.any():
            inverse = np.linalg.inv(hessian)
            off = 2 * np.abs(inverse @ found.gradient[free])
            errors[free] = units[free] * (np.abs(inverse) @ found.gradient_error[free] + off)
            if np.any(errors[free] > accuracy * units[free]):
                status = "accuracy_not_reached"
        for search, kind in zip(objective.searches, kinds, strict=True):
            end = {"lower_end": search.low, "upper_end": search.high}.get(kind)
            if (
                end is not None
                and search.parameter_at_coordinate(end)
                not in ParameterDirection(objective.problem, search.branch.parameter).parameter_range
            ):
                status = "edge"
    values = objective.parameter_values(found.at)
    return JointOptimum(
        problem=objective.problem,
        parameters=tuple(values),
        values=tuple(values.values()),
        errors=tuple(float(error) for error in errors),
        minimise=minimise,
        kinds=tuple(kinds),
        status=status,
        branch=objective.name,
        observed=objective.sign * found.observed,
        observed_error=found.observed_error,
        solution=found.solution,
        tried=tuple(objective.trial_of_solved_point(each) for each in objective.known),
        evidence={
            "hessian": hessian.tolist(),
            "logarithmic": [search.logarithmic for search in objective.searches],
            "evaluations": len(objective.known),
            "integrator": found.solution.rule.rule_description(),
        },
    )
