"""The search for a minimum of an observable along a branch: scan, candidates, roots of the derivative."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..base.errors import InputError, NotConvergedError, require_in_interval
from ..base.options import AlgorithmOptions
from ..branches.branch import Branch
from ..problems.columns import METRIC
from ..problems.overlaps import OVERLAPS, Overlaps
from ..problems.problem import Problem, stored_parameter_name
from ..problems.quantities import LOSSES, overlap_entry_by_name, resolve_quantity_name
from ..saddle_point.starts import find_start_name
from ..solving.solution import Solution
from .direction import ParameterDirection
from .sensitivity import sensitivity

_LEAST_ACCURACY = {True: 2e-5, False: 1e-11}  # of the overlaps: replicated rules, others


@dataclass(frozen=True)
class TuningOptions(AlgorithmOptions):
    """Options of minimising an observable in one parameter.

    Attributes:
        decades: number of decades searched by default on both sides of the value of a positive parameter.
        points_per_decade: points of the first scan per decade of a logarithmic scale; more find narrower minima.
        min_intervals: smallest number of intervals of the first scan on any scale.
        max_disagreement: relative difference between the change of the observable over an interval and the change that
            its slopes predict, above which the interval is halved; smaller finds narrower minima.
        min_interval: relative length of an interval at which such a disagreement counts as a jump of the branch.
        scan_effort: number of sizes of each quadrature rule that may be tried at points of the scan.
        curvature_step: step of slope differences, in the logarithm of the parameter or relative to the interval.
        max_iterations: largest number of Newton iterations at the minimum, refinements of the integration included.
    """

    decades: int = 3
    points_per_decade: int = 2
    min_intervals: int = 6
    max_disagreement: float = 0.5
    min_interval: float = 2e-3
    scan_effort: int = 4
    curvature_step: float = 0.02
    max_iterations: int = 24


@dataclass(frozen=True)
class ScannedPoint:
    """A point of a branch with the observable to be minimised, its derivative, and their error bars.

    Attributes:
        coordinate: search coordinate: the parameter, or its logarithm.
        value: value of the parameter.
        change: derivative of the packed overlaps in the coordinate.
    """

    coordinate: float
    value: float
    solution: Solution
    observed: float
    observed_error: float
    slope: float
    slope_error: float
    change: np.ndarray


@dataclass(frozen=True)
class OptimumCandidate:
    """A value of the parameter at which the observable may be least.

    Attributes:
        kind: minimum (inside the interval), lower_end or upper_end (of the interval), branch_end, jump (of the branch).
        value: value of the parameter.
        observed: value of the observable.
        observed_error: error bar of the observable.
    """

    kind: str
    value: float
    observed: float
    observed_error: float


def observable_with_error(solution: Solution, name: str) -> tuple[float, float]:
    """Return the value and the error bar of an observable at a solution.

    Args:
        solution: the solution.
        name: name of the observable; q, V, m and theta stand for the absolute value of their first entry.
    """
    if name in LOSSES:
        own = {"free_entropy": "training_loss_error", "baseline_error": None}.get(name, f"{name}_error")
        return getattr(solution, name), getattr(solution, own) if own else 0.0
    value, error = (
        overlap_entry_by_name(solution.problem, each, name) for each in (solution.overlaps, solution.error_bars)
    )
    return abs(value) if name in OVERLAPS else value, abs(error)


def resolve_objective_name(problem: Problem, name: str) -> tuple[Problem, str]:
    """Return the problem with the metric that is to be minimised, and the full name of the observable.

    Args:
        problem: the problem.
        name: name of the observable; a minus sign before it means that it is maximised.

    Raises:
        InputError: the name is unknown, or stands for several entries.
    """
    sign, plain = name[: name.startswith("-")], name.removeprefix("-").strip()
    found = resolve_quantity_name(problem, plain, f"cannot minimise {name!r}")
    if found.startswith(METRIC):
        return problem.with_metric(found.removeprefix(METRIC)), f"{sign}test_error"
    return problem, sign + found


def solution_with_shifted_overlaps(solution: Solution, shift: np.ndarray) -> Solution:
    """Return a copy of a solution with shifted overlaps; no shift if it would change the sign of an overlap.

    Args:
        solution: the solution.
        shift: shift of the packed overlaps, (n,).
    """
    u, sizes = solution.overlaps.pack(), solution.overlaps.sizes
    keeps_signs = not np.any((u + shift) * u < 0)
    return replace(solution, overlaps=Overlaps.unpack(u + shift, sizes)) if keeps_signs else solution


def describe_observable_in_words(problem: Problem, minimise: str) -> str:
    """Return a description of an observable, for example "test error"; a named metric is called by its name.

    Args:
        problem: the problem with its metric.
        minimise: name of the observable; a minus sign before it means that it is maximised.
    """
    shown = minimise.removeprefix("-")
    return problem.metric_name if shown == "test_error" and problem.metric_name else shown.replace("_", " ")


def _interval_of_allowed_values(problem: Problem, name: str, low: float, high: float) -> tuple[float, float]:
    """Return an interval, shortened slightly at ends that the parameter cannot take."""

    def is_parameter_value_allowed(value: float) -> bool:
        try:
            problem.with_(**{name: value})
        except InputError:
            return False
        return True

    margin = 1e-3 * (high - low)
    return low if is_parameter_value_allowed(low) else low + margin, high if is_parameter_value_allowed(
        high
    ) else high - margin


def describe_extremum(problem: Problem, minimise: str) -> str:
    """Return a phrase like "test error is least", or "recall is most" if the observable is maximised.

    Args:
        problem: the problem with its metric.
        minimise: name of the observable; a minus sign before it means that it is maximised.
    """
    return f"{describe_observable_in_words(problem, minimise)} is {'most' if minimise.startswith('-') else 'least'}"


@dataclass
class ObservableMinimumSearch:
    """A search for the parameter value at which an observable of a branch is least.

    Attributes:
        minimise: name of the observable; a minus sign before it means that it is maximised.
        logarithmic: whether the search coordinate is the logarithm of the (positive) parameter.
        low: lower end of the interval, in the search coordinate.
        high: upper end of the interval, in the search coordinate.
        known: solved points, by search coordinate.
    """

    branch: Branch
    minimise: str
    logarithmic: bool
    low: float
    high: float
    known: dict[float, ScannedPoint] = field(default_factory=dict)

    @classmethod
    def search_from_arguments(
        cls,
        problem: Problem,
        parameter: str,
        minimise: str,
        on: str | None,
        bracket: tuple[float, float] | None,
        accuracy: float,
        seed: int,
        integrator: str = "auto",
        points: int | None = None,
    ) -> ObservableMinimumSearch:
        """Check the arguments of `sf.tune` and return the search that they describe.

        Args:
            problem: the problem at any value of the parameter.
            parameter: name of the parameter.
            minimise: name of the observable; a minus sign before it means that it is maximised.
            on: name of the start of the branch; the default start of the model if None.
            bracket: interval to search; a default for positive and for bounded parameters.
            accuracy: error bar of the parameter (only checked here).
            seed: seed of the sampled quadrature rules.
            integrator: name of the quadrature rule, as for `solve`.
            points: size of the quadrature rule, as for `solve`.

        Raises:
            InputError: an unknown name, no interval, or one outside the range of the parameter.
        """
        options = TuningOptions.current()
        require_in_interval("accuracy", accuracy, "(0, 1)")
        name = stored_parameter_name(parameter)
        problem.require_scalar_parameters(name)
        present = problem.value_of_parameter(name)
        on = find_start_name(problem, on, "branch")
        least, most = ParameterDirection(problem, name).parameter_range
        # A ridge may be of either sign, but is searched logarithmically, too.
        is_scale = least == 0 or name in problem.regulariser.names_of_strength_parameters
        if bracket is None:
            if is_scale and present > 0 and np.isinf(most):
                bracket = (present * 10.0**-options.decades, present * 10.0**options.decades)
            elif np.isfinite(least) and np.isfinite(most):
                bracket = _interval_of_allowed_values(problem, name, least, most)
            else:
                raise InputError(f"give an interval to search for {parameter}, as bracket=(0.1, 1)")
        low, high = (float(end) for end in bracket)
        if not (np.isfinite([low, high]).all() and low < high):
            raise InputError(f"interval {bracket!r} for {parameter}: two finite ends in ascending order are expected")
        for end in (low, high):
            problem.with_(**{name: end})
        logarithmic = is_scale and low > 0 and (np.isinf(most) or high / low > 30)
        effort = options.scan_effort
        branch = Branch(problem, name, on, seed=seed, effort=effort, integrator=integrator, points=points)
        search = cls(branch, minimise, logarithmic, low, high)
        search.low, search.high = search.coordinate_of_parameter(low), search.coordinate_of_parameter(high)
        return search

    @property
    def observable_name(self) -> str:
        """Return the name of the observable, without a minus sign."""
        return self.minimise.removeprefix("-")

    @property
    def objective_sign(self) -> float:
        """Return -1 if the observable is maximised, otherwise 1."""
        return -1.0 if self.minimise.startswith("-") else 1.0

    @property
    def observable_description(self) -> str:
        """Return a description of the observable, for example "test error"."""
        return describe_observable_in_words(self.branch.problem, self.observable_name)

    @property
    def search_interval_length(self) -> float:
        """Return the length of the searched interval, in the search coordinate."""
        return self.high - self.low

    def coordinate_of_parameter(self, value: float) -> float:
        """Return the search coordinate of a parameter value: the value, or its logarithm."""
        return float(np.log(value)) if self.logarithmic else value

    def parameter_at_coordinate(self, coordinate: float) -> float:
        """Return the parameter value at a search coordinate."""
        return float(np.exp(coordinate)) if self.logarithmic else coordinate

    def solve_point_on_branch(self, coordinate: float, accuracy: float | None = None) -> ScannedPoint | None:
        """Solve the branch at a search coordinate and return the point; None if the branch was not found there.

        Args:
            coordinate: the search coordinate: the parameter value, or its logarithm.
            accuracy: error bar of the overlaps; that of the branch by default.
        """
        if coordinate in self.known and accuracy is None:
            return self.known[coordinate]
        value = self.parameter_at_coordinate(coordinate)
        solution = self.branch.solution_at_parameter(value, accuracy, self._extrapolate_nearest_solution(coordinate))
        if solution is None:
            return None
        known = self.known.get(coordinate)
        if known is not None and known.solution is solution:
            return known
        try:
            moved = sensitivity(solution, ParameterDirection(solution.problem, self.branch.parameter))
        except NotConvergedError:
            return None  # the end of the branch
        slope, slope_error = moved.of(self.observable_name)
        unit = value if self.logarithmic else 1.0
        here, here_error = observable_with_error(solution, self.observable_name)
        self.known[coordinate] = ScannedPoint(
            coordinate,
            value,
            solution,
            self.objective_sign * here,
            here_error,
            self.objective_sign * unit * slope,
            unit * slope_error,
            unit * moved.overlaps.pack(),
        )
        return self.known[coordinate]

    def _extrapolate_nearest_solution(self, coordinate: float) -> Solution | None:
        """Return a guess of the solution, extrapolated linearly from the nearest known one; None without one."""
        if not self.known:
            return None
        near = min(self.known.values(), key=lambda point: abs(point.coordinate - coordinate))
        return solution_with_shifted_overlaps(near.solution, (coordinate - near.coordinate) * near.change)

    def require_point_on_branch(self, coordinate: float, accuracy: float | None = None) -> ScannedPoint:
        """Solve the branch at a search coordinate and return the point; raise NotConvergedError if it was not found.

        Args:
            coordinate: the search coordinate: the parameter value, or its logarithm.
            accuracy: error bar of the overlaps; that of the branch by default.
        """
        point = self.solve_point_on_branch(coordinate, accuracy)
        if point is None:
            raise NotConvergedError(
                f"the {self.branch.name} branch was lost at {self.branch.parameter.rstrip('_')} = "
                f"{self.parameter_at_coordinate(coordinate):.6g} between values at which it exists"
            )
        return point

    # The scan

    def scan_interval(self, tick: Any) -> tuple[list[list[ScannedPoint]], list[tuple[ScannedPoint, ScannedPoint]]]:
        """Scan the interval; return the points of every connected part of the branch, and the jumps between parts."""
        options = TuningOptions.current()
        decades = self.search_interval_length / np.log(10)
        count = options.min_intervals
        if self.logarithmic:
            count = max(count, int(np.ceil(options.points_per_decade * decades)))
        grid = [float(coordinate) for coordinate in np.linspace(self.low, self.high, count + 1)]
        present = self.branch.problem.value_of_parameter(self.branch.parameter)
        known = present > 0 or (np.isfinite(present) and not self.logarithmic)
        anchor = self.coordinate_of_parameter(present) if known else grid[0]
        points: dict[float, ScannedPoint | None] = {}
        for coordinate in sorted(grid, key=lambda p: abs(p - anchor)):
            points[coordinate] = self.solve_point_on_branch(coordinate)
            tick()
        if not any(points.values()):
            raise NotConvergedError(
                f"the {self.branch.name} branch was not found at any of {len(grid)} values of "
                f"{self.branch.parameter.rstrip('_')} in [{self.parameter_at_coordinate(self.low):g}, "
                f"{self.parameter_at_coordinate(self.high):g}]"
            )
        jumps: list[tuple[ScannedPoint, ScannedPoint]] = []
        pending = list(pairwise(grid))
        while pending:
            left, right = pending.pop()
            one, other = points[left], points[right]
            both = (one, other) if one is not None and other is not None else None
            if (one is None and other is None) or (both and not self.are_slopes_inconsistent_with_values(*both)):
                continue
            if right - left <= options.min_interval * self.search_interval_length:
                jumps += [both] if both else []
                continue
            middle = (left + right) / 2
            points[middle] = self.solve_point_on_branch(middle)
            tick()
            pending += [(left, middle), (middle, right)]
        connected_parts: list[list[ScannedPoint]] = [[]]
        for _, point in sorted(points.items()):
            broken = any(point is other for _, other in jumps)
            if (point is None or broken) and connected_parts[-1]:
                connected_parts.append([])
            if point is not None:
                connected_parts[-1].append(point)
        return [part for part in connected_parts if part], jumps

    @staticmethod
    def are_slopes_inconsistent_with_values(one: ScannedPoint, other: ScannedPoint) -> bool:
        """Return whether the change of the observable between two points contradicts its derivatives there.

        Args:
            one: a solved point.
            other: a solved point to compare with.
        """
        width = other.coordinate - one.coordinate
        predicted, change = width * (one.slope + other.slope) / 2, other.observed - one.observed
        size = width * (abs(one.slope) + abs(other.slope)) / 2
        noise = one.observed_error + other.observed_error + width * (one.slope_error + other.slope_error)
        return abs(change - predicted) > TuningOptions.current().max_disagreement * size + noise

    # The minimum

    def find_root_of_slope(self, left: ScannedPoint, right: ScannedPoint, tick: Any, wanted: float) -> ScannedPoint:
        """Return the point between two others at which the derivative of the observable is zero, as accurate as a scan.

        Args:
            left: a solved point with negative derivative.
            right: a solved point with positive derivative, at a larger coordinate.
            tick: function that reports progress, called after every evaluation.
            wanted: tolerance of the coordinate.
        """
        from scipy.optimize import brentq  # slow to load

        def observable_slope_at_coordinate(coordinate: float) -> float:
            tick()
            return self.require_point_on_branch(float(coordinate)).slope

        coordinate = brentq(
            observable_slope_at_coordinate,
            left.coordinate,
            right.coordinate,
            xtol=max(wanted, 1e-13),
            rtol=1e-13,
            maxiter=60,
        )
        return self.require_point_on_branch(float(coordinate))

    def refine_minimum(self, rough: ScannedPoint, accuracy: float, tick: Any) -> tuple[ScannedPoint, dict[str, float]]:
        """Refine a minimum to the accuracy, by Newton's method on the derivative of the observable.

        Args:
            rough: a point near the minimum.
            accuracy: error bar of the search coordinate.
            tick: function that reports progress, called after every iteration.

        Returns:
            the last point; and curvature and parts of the error bar by name, in the search coordinate.
        """
        curvature = self._curvature_of_observable(rough, tick)
        point, wanted = rough, min(self.branch.accuracy, rough.solution.relative_error or 1.0)
        least = _LEAST_ACCURACY[rough.solution.rule.replicated]
        for _ in range(TuningOptions.current().max_iterations):
            integration, off = point.slope_error / curvature, abs(point.slope) / curvature
            if off > max(0.2 * accuracy, 0.3 * integration):
                step = float(
                    np.clip(
                        -point.slope / curvature,
                        -0.05 * self.search_interval_length,
                        0.05 * self.search_interval_length,
                    )
                )
                coordinate = float(np.clip(point.coordinate + step, self.low, self.high))
                moved = self.solve_point_on_branch(coordinate, wanted)
                if moved is None or coordinate == point.coordinate:
                    break
                point = moved
            elif integration > 0.5 * accuracy and wanted > least:
                wanted = max(least, wanted * min(0.3, 0.3 * accuracy / integration))
                finer = self.solve_point_on_branch(point.coordinate, wanted)
                if finer is None or finer.slope_error > 0.9 * point.slope_error:
                    least = wanted  # no finer rule, or rounding
                point = finer or point
                curvature = self._curvature_of_observable(point, tick, wanted)
            else:
                break
            tick()
        integration, off = point.slope_error / curvature, abs(point.slope) / curvature
        return point, {"curvature": curvature, "integration": integration, "root": 2 * off}

    def _curvature_of_observable(self, point: ScannedPoint, tick: Any, accuracy: float | None = None) -> float:
        """Return the second derivative of the observable in the search coordinate, by a central difference."""
        step = TuningOptions.current().curvature_step * (1.0 if self.logarithmic else self.search_interval_length)
        low, high = max(self.low, point.coordinate - step), min(self.high, point.coordinate + step)
        ends = [self.require_point_on_branch(coordinate, accuracy) for coordinate in (low, high)]
        tick()
        curvature = (ends[1].slope - ends[0].slope) / (high - low)
        if not curvature > 0:
            raise NotConvergedError(
                f"{self.observable_name} has no minimum in {self.branch.parameter.rstrip('_')} near {point.value:.6g}: "
                "its derivative does not increase there"
            )
        return float(curvature)
