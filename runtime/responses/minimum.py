"""The search for a minimum along a branch: scan, candidates, roots of the slope."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..base.errors import InputError, NotConvergedError, require_in, require_known
from ..base.options import AlgorithmOptions
from ..branches.branch import Branch
from ..problems.columns import METRIC
from ..problems.overlaps import OVERLAPS, Overlaps
from ..problems.problem import Problem, parameter_name
from ..problems.quantities import LOSSES, find_quantity, overlap_entry
from ..saddle_point.starts import default_start
from ..solving.solution import Solution
from .direction import ParameterDirection
from .sensitivity import sensitivity

_LEAST_ACCURACY = {True: 2e-5, False: 1e-11}  # of the overlaps: replicated rules, others


@dataclass(frozen=True)
class TuningOptions(AlgorithmOptions):
    """Options of minimising an observable in one parameter.

    Attributes:
        decades: searched on both sides of the value of a positive parameter by default.
        points_per_decade, min_intervals: of the first scan, on a logarithmic scale, and on any; more find narrower
            minima.
        max_disagreement: difference of the change over an interval from the one by its slopes, relative to their size,
            above which it is halved; smaller finds narrower minima.
        min_interval: relative to the interval searched; where values and slopes still disagree is a jump.
        scan_effort: sizes of each rule that may be tried at points of the scan: a penalty far from its best value makes
            narrow laws.
        curvature_step: of the difference of slopes, in the logarithm or relative to the interval searched.
        max_iterations: of Newton's method at the minimum, refinements of the integration included.
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
class ScanPoint:
    """A point of a branch: the observable to be minimised and its slope, with error bars.

    Attributes:
        coordinate: the parameter, or its logarithm; value: the parameter.
        change: derivative of the packed overlaps in the coordinate, (n,).
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
class Candidate:
    """A value of the parameter at which the observable may be least.

    Attributes:
        kind: minimum (inside), lower_end or upper_end (of the interval searched), branch_end, or jump (of the branch).
        value: of the parameter; observed, observed_error: of the observable there.
    """

    kind: str
    value: float
    observed: float
    observed_error: float


def observable_with_error(solution: Solution, name: str) -> tuple[float, float]:
    """Return value and error bar of an observable.

    Args:
        solution: the solution.
        name: as of `find_quantity`; q, V, m, theta stand for |first entry|.
    """
    if name in LOSSES:
        own = {"free_entropy": "training_loss_error", "baseline_error": None}.get(name, f"{name}_error")
        return getattr(solution, name), getattr(solution, own) if own else 0.0
    value, error = (overlap_entry(solution.problem, each, name) for each in (solution.overlaps, solution.error_bars))
    return abs(value) if name in OVERLAPS else value, abs(error)


def resolve_objective(problem: Problem, name: str) -> tuple[Problem, str]:
    """Return the problem with the metric that is to be minimised, and the name of the observable to minimise.

    Args:
        problem: the problem.
        name: of an observable, with a minus where it is maximised.

    Raises:
        InputError: an unknown name, or one that stands for several entries.
    """
    sign, plain = name[: name.startswith("-")], name.removeprefix("-").strip()
    found = find_quantity(problem, plain, f"cannot minimise {name!r}")
    if found.startswith(METRIC):
        return problem.with_metric(found.removeprefix(METRIC)), f"{sign}test_error"
    return problem, sign + found


def shift_overlaps(solution: Solution, shift: np.ndarray) -> Solution:
    """Return a solution with shifted overlaps, unless one of them would change its sign.

    Args:
        solution: the solution.
        shift: of the packed overlaps, (n,).
    """
    u, sizes = solution.overlaps.pack(), solution.overlaps.sizes
    keeps_signs = not np.any((u + shift) * u < 0)
    return replace(solution, overlaps=Overlaps.unpack(u + shift, sizes)) if keeps_signs else solution


def describe_objective(problem: Problem, minimise: str) -> str:
    """Return the observable that is minimised or maximised in words: a metric by its own name, if it has one.

    Args:
        problem: with its metric.
        minimise: name of the observable, with a minus where it is maximised.
    """
    shown = minimise.removeprefix("-")
    return problem.metric_name if shown == "test_error" and problem.metric_name else shown.replace("_", " ")


def _allowed_interval(problem: Problem, name: str, low: float, high: float) -> tuple[float, float]:
    """Return a range without the ends that it does not include."""

    def is_allowed(value: float) -> bool:
        try:
            problem.with_(**{name: value})
        except InputError:
            return False
        return True

    margin = 1e-3 * (high - low)
    return low if is_allowed(low) else low + margin, high if is_allowed(high) else high - margin


def describe_best(problem: Problem, minimise: str) -> str:
    """Return "test error is least", or "recall is most" where it is maximised.

    Args:
        problem: with its metric.
        minimise: name of the observable, with a minus where it is maximised.
    """
    return f"{describe_objective(problem, minimise)} is {'most' if minimise.startswith('-') else 'least'}"


@dataclass
class MinimumSearch:
    """The minimisation of an observable along a branch.

    Attributes:
        minimise: the observable, with a minus where it is maximised.
        logarithmic: whether the coordinate is the logarithm of the parameter, which must be positive then, not the
            parameter itself.
        low, high: ends of the interval searched, in the coordinate.
        known: solved points, by coordinate.
    """

    branch: Branch
    minimise: str
    logarithmic: bool
    low: float
    high: float
    known: dict[float, ScanPoint] = field(default_factory=dict)

    @classmethod
    def from_arguments(
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
    ) -> MinimumSearch:
        """Return the search for checked arguments of a user.

        Args:
            problem: at any value of the parameter.
            parameter: its name.
            minimise: name of the observable, with a minus where it is maximised.
            on: the branch, by its start; the default start of the model if None.
            bracket: interval to search; a default for positive and for bounded parameters.
            accuracy: of the parameter, checked only.
            seed: of sampled rules.
            integrator: as for `solve`.
            points: as for `solve`.

        Raises:
            InputError: an unknown name, no interval, or one outside the range of the parameter.
        """
        options = TuningOptions.current()
        require_in("accuracy", accuracy, "(0, 1)")
        name = parameter_name(parameter)
        problem.require_scalar_parameters(name)
        present = problem.value_of(name)
        on = on or default_start(problem)
        require_known("branch", on, list(problem.solver.model.STARTS), problem.solver.name)
        least, most = ParameterDirection(problem, name).range
        # A ridge may be of either sign, but is searched logarithmically, too.
        is_scale = least == 0 or name in problem.regulariser.strength_names
        if bracket is None:
            if is_scale and present > 0 and np.isinf(most):
                bracket = (present * 10.0**-options.decades, present * 10.0**options.decades)
            elif np.isfinite(least) and np.isfinite(most):
                bracket = _allowed_interval(problem, name, least, most)
            else:
                raise InputError(f"give an interval to search for {parameter}")
        low, high = (float(end) for end in bracket)
        if not (np.isfinite([low, high]).all() and low < high):
            raise InputError(f"interval {bracket!r} for {parameter}: two finite ends in ascending order are expected")
        for end in (low, high):
            problem.with_(**{name: end})
        logarithmic = is_scale and low > 0 and (np.isinf(most) or high / low > 30)
        effort = options.scan_effort
        branch = Branch(problem, name, on, seed=seed, effort=effort, integrator=integrator, points=points)
        search = cls(branch, minimise, logarithmic, low, high)
        search.low, search.high = search.coordinate(low), search.coordinate(high)
        return search

    @property
    def observable(self) -> str:
        """Return the name of the observable."""
        return self.minimise.removeprefix("-")

    @property
    def sign(self) -> float:
        """Return -1 where the observable is maximised, otherwise 1."""
        return -1.0 if self.minimise.startswith("-") else 1.0

    @property
    def description(self) -> str:
        """Return the observable in words."""
        return describe_objective(self.branch.problem, self.observable)

    @property
    def span(self) -> float:
        """Return the length of the interval searched, in the coordinate."""
        return self.high - self.low

    def coordinate(self, value: float) -> float:
        """Return the coordinate of a value of the parameter: its logarithm if the search is logarithmic."""
        return float(np.log(value)) if self.logarithmic else value

    def value(self, coordinate: float) -> float:
        """Return the value of the parameter at a coordinate."""
        return float(np.exp(coordinate)) if self.logarithmic else coordinate

    def solve_at(self, coordinate: float, accuracy: float | None = None) -> ScanPoint | None:
        """Return the branch at a coordinate; None where it was not found.

        Args:
            coordinate: the coordinate.
            accuracy: error bar of the overlaps; that of the branch by default.
        """
        if coordinate in self.known and accuracy is None:
            return self.known[coordinate]
        value = self.value(coordinate)
        solution = self.branch.at(value, accuracy, self._guess(coordinate))
        if solution is None:
            return None
        known = self.known.get(coordinate)
        if known is not None and known.solution is solution:
            return known
        try:
            moved = sensitivity(solution, ParameterDirection(solution.problem, self.branch.parameter))
        except NotConvergedError:
            return None  # the end of the branch
        slope, slope_error = moved.of(self.observable)
        unit = value if self.logarithmic else 1.0
        here, here_error = observable_with_error(solution, self.observable)
        self.known[coordinate] = ScanPoint(
            coordinate,
            value,
            solution,
            self.sign * here,
            here_error,
            self.sign * unit * slope,
            unit * slope_error,
            unit * moved.overlaps.pack(),
        )
        return self.known[coordinate]

    def _guess(self, coordinate: float) -> Solution | None:
        """Return the nearest known solution, extrapolated by its derivative unless an overlap changes its sign."""
        if not self.known:
            return None
        near = min(self.known.values(), key=lambda point: abs(point.coordinate - coordinate))
        return shift_overlaps(near.solution, (coordinate - near.coordinate) * near.change)

    def require_at(self, coordinate: float, accuracy: float | None = None) -> ScanPoint:
        """Return `solve_at`; raise NotConvergedError if the branch is lost.

        Args:
            coordinate: the coordinate.
            accuracy: as of `solve_at`.
        """
        point = self.solve_at(coordinate, accuracy)
        if point is None:
            raise NotConvergedError(
                f"the {self.branch.name} branch was lost at {self.branch.parameter.rstrip('_')} = "
                f"{self.value(coordinate):.6g} within an interval of it"
            )
        return point

    # The scan

    def scan(self, tick: Any) -> tuple[list[list[ScanPoint]], list[tuple[ScanPoint, ScanPoint]]]:
        """Return connected parts of the branch, ascending, as resolved points, and the jumps between parts."""
        options = TuningOptions.current()
        decades = self.span / np.log(10)
        count = options.min_intervals
        if self.logarithmic:
            count = max(count, int(np.ceil(options.points_per_decade * decades)))
        grid = [float(coordinate) for coordinate in np.linspace(self.low, self.high, count + 1)]
        present = self.branch.problem.value_of(self.branch.parameter)
        known = present > 0 or (np.isfinite(present) and not self.logarithmic)
        anchor = self.coordinate(present) if known else grid[0]
        points: dict[float, ScanPoint | None] = {}
        for coordinate in sorted(grid, key=lambda p: abs(p - anchor)):
            points[coordinate] = self.solve_at(coordinate)
            tick()
        if not any(points.values()):
            raise NotConvergedError(
                f"the {self.branch.name} branch was not found at any of {len(grid)} values of "
                f"{self.branch.parameter.rstrip('_')} in [{self.value(self.low):g}, {self.value(self.high):g}]"
            )
        jumps: list[tuple[ScanPoint, ScanPoint]] = []
        pending = list(pairwise(grid))
        while pending:
            left, right = pending.pop()
            one, other = points[left], points[right]
            both = (one, other) if one is not None and other is not None else None
            if (one is None and other is None) or (both and not self.slopes_disagree(*both)):
                continue
            if right - left <= options.min_interval * self.span:
                jumps += [both] if both else []
                continue
            middle = (left + right) / 2
            points[middle] = self.solve_at(middle)
            tick()
            pending += [(left, middle), (middle, right)]
        connected_parts: list[list[ScanPoint]] = [[]]
        for _, point in sorted(points.items()):
            broken = any(point is other for _, other in jumps)
            if (point is None or broken) and connected_parts[-1]:
                connected_parts.append([])
            if point is not None:
                connected_parts[-1].append(point)
        return [part for part in connected_parts if part], jumps

    @staticmethod
    def slopes_disagree(one: ScanPoint, other: ScanPoint) -> bool:
        """Return whether the change between two points disagrees with their slopes.

        Args:
            one: a point.
            other: another one.
        """
        width = other.coordinate - one.coordinate
        predicted, change = width * (one.slope + other.slope) / 2, other.observed - one.observed
        size = width * (abs(one.slope) + abs(other.slope)) / 2
        noise = one.observed_error + other.observed_error + width * (one.slope_error + other.slope_error)
        return abs(change - predicted) > TuningOptions.current().max_disagreement * size + noise

    # The minimum

    def find_minimum(self, left: ScanPoint, right: ScanPoint, tick: Any, wanted: float) -> ScanPoint:
        """Return the root of the slope between two points, to the accuracy of the scan.

        Args:
            left: a point with a negative slope.
            right: a point with a positive one, above.
            tick: reports progress, after every evaluation.
            wanted: tolerance of the coordinate.
        """
        from scipy.optimize import brentq  # slow to load

        def slope(coordinate: float) -> float:
            tick()
            return self.require_at(float(coordinate)).slope

        coordinate = brentq(slope, left.coordinate, right.coordinate, xtol=max(wanted, 1e-13), rtol=1e-13, maxiter=60)
        return self.require_at(float(coordinate))

    def refine_minimum(self, rough: ScanPoint, accuracy: float, tick: Any) -> tuple[ScanPoint, dict[str, float]]:
        """Return the minimum near a rough one, by Newton's method on the slope, as accurate as asked for.

        Args:
            rough: a point near the minimum.
            accuracy: error bar of the coordinate.
            tick: reports progress, after every iteration.

        Returns:
            the last point, and the curvature and the parts of the error bar, in the coordinate.
        """
        curvature = self._curvature(rough, tick)
        point, wanted = rough, min(self.branch.accuracy, rough.solution.relative_error or 1.0)
        least = _LEAST_ACCURACY[rough.solution.rule.replicated]
        for _ in range(TuningOptions.current().max_iterations):
            integration, off = point.slope_error / curvature, abs(point.slope) / curvature
            if off > max(0.2 * accuracy, 0.3 * integration):
                step = float(np.clip(-point.slope / curvature, -0.05 * self.span, 0.05 * self.span))
                coordinate = float(np.clip(point.coordinate + step, self.low, self.high))
                moved = self.solve_at(coordinate, wanted)
                if moved is None or coordinate == point.coordinate:
                    break
                point = moved
            elif integration > 0.5 * accuracy and wanted > least:
                wanted = max(least, wanted * min(0.3, 0.3 * accuracy / integration))
                finer = self.solve_at(point.coordinate, wanted)
                if finer is None or finer.slope_error > 0.9 * point.slope_error:
                    least = wanted  # no finer rule, or rounding
                point = finer or point
                curvature = self._curvature(point, tick, wanted)
            else:
                break
            tick()
        integration, off = point.slope_error / curvature, abs(point.slope) / curvature
        return point, {"curvature": curvature, "integration": integration, "root": 2 * off}

    def _curvature(self, point: ScanPoint, tick: Any, accuracy: float | None = None) -> float:
        """Return the derivative of the slope, by a central difference."""
        step = TuningOptions.current().curvature_step * (1.0 if self.logarithmic else self.span)
        low, high = max(self.low, point.coordinate - step), min(self.high, point.coordinate + step)
        ends = [self.require_at(coordinate, accuracy) for coordinate in (low, high)]
        tick()
        curvature = (ends[1].slope - ends[0].slope) / (high - low)
        if not curvature > 0:
            raise NotConvergedError(
                f"{self.observable} has no minimum in {self.branch.parameter.rstrip('_')} near {point.value:.6g}: its "
                "slope does not grow there"
            )
        return float(curvature)
