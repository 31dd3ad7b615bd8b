"""The search for a minimum along a branch: points, candidates, roots of the slope."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..base.errors import InputError, NotConvergedError, require_in, require_known
from ..branches.branch import Branch
from ..problems.columns import METRIC
from ..problems.overlaps import OVERLAPS, Overlaps
from ..problems.problem import Problem, parameter_name
from ..problems.quantities import LOSSES, find_quantity, value_in
from ..saddle_point.starts import default_start
from ..solving.solution import Solution
from .direction import Direction
from .sensitivity import sensitivity

_DECADES = 3  # searched on both sides of the value of a positive parameter, unless told otherwise
_A_DECADE, _ALONG = 2, 6  # points of the first scan, at least: a decade, or an interval on a linear scale
_DISAGREE = 0.5  # of the change an interval's slopes foretell, before it is halved
_EFFORT = 4  # sizes of a rule to climb at each point of the scan: a penalty far from its best makes narrow laws
_FINEST = 2e-3  # of the searched interval: what still disagrees over that is a jump
_CURVATURE_STEP = 0.02  # of the slope's own slope, in the logarithm or relative to the interval
_STEPS = 24  # of Newton, or toward a finer integration
_LEAST_ACCURACY = {True: 2e-5, False: 1e-11}  # of the overlaps: replicated rules, others


@dataclass(frozen=True)
class Point:
    """A branch at one place: the observable to be minimised and its slope, with half widths.

    Attributes:
        change: of the packed overlaps with the place.
    """

    place: float
    value: float
    solution: Solution
    observed: float
    observed_error: float
    slope: float
    slope_error: float
    change: np.ndarray


@dataclass(frozen=True)
class Candidate:
    """A place where the least value may lie.

    Attributes:
        kind: minimum (inside), lower_end or upper_end (of the interval searched), branch_end, or jump (of the branch).
        value: of the parameter; observed, observed_error: of the observable there.
    """

    kind: str
    value: float
    observed: float
    observed_error: float


def observed(solution: Solution, name: str) -> tuple[float, float]:
    """Return value and error bar of an observable, as `find_quantity` names it; of q, V, m, theta of |first entry|."""
    if name in LOSSES:
        own = {"free_entropy": "training_loss_error", "baseline_error": None}.get(name, f"{name}_error")
        return getattr(solution, name), getattr(solution, own) if own else 0.0
    value, error = (value_in(solution.problem, each, name) for each in (solution.overlaps, solution.half_widths))
    return abs(value) if name in OVERLAPS else value, abs(error)


def minimised(problem: Problem, name: str) -> tuple[Problem, str]:
    """Return the problem by the metric that is to be minimised, and the observable as `Search` calls it.

    Args:
        name: of an observable, with a minus where it is maximised.

    Raises:
        InputError: an unknown name, or one that stands for several entries.
    """
    sign, plain = name[: name.startswith("-")], name.removeprefix("-").strip()
    found = find_quantity(problem, plain, f"cannot minimise {name!r}")
    if found.startswith(METRIC):
        return problem.by_metric(found.removeprefix(METRIC)), f"{sign}test_error"
    return problem, sign + found


def moved_by(solution: Solution, shift: np.ndarray) -> Solution:
    """Return a solution with its packed overlaps moved by a shift (n,), where that keeps the sign of every one."""
    u, sizes = solution.overlaps.pack(), solution.overlaps.sizes
    kept = not np.any((u + shift) * u < 0)
    return replace(solution, overlaps=Overlaps.unpack(u + shift, sizes)) if kept else solution


def in_words(problem: Problem, minimise: str) -> str:
    """Return what is minimised or maximised in words: a metric by its own name, where it has one."""
    shown = minimise.removeprefix("-")
    return problem.metric_name if shown == "test_error" and problem.metric_name else shown.replace("_", " ")


def _inside(problem: Problem, name: str, low: float, high: float) -> tuple[float, float]:
    """A range without the ends that it does not include."""

    def allowed(value: float) -> bool:
        try:
            problem.with_(**{name: value})
        except InputError:
            return False
        return True

    margin = 1e-3 * (high - low)
    return low if allowed(low) else low + margin, high if allowed(high) else high - margin


def describe_best(problem: Problem, minimise: str) -> str:
    """Return "test error is least", or "recall is most" where it is maximised."""
    return f"{in_words(problem, minimise)} is {'most' if minimise.startswith('-') else 'least'}"


@dataclass
class Search:
    """A branch with an observable to be minimised along its parameter.

    Attributes:
        minimise: the observable, with a minus where it is maximised.
        logarithmic: whether places are logarithms of the parameter, which must be positive then.
        low, high: ends of the places searched.
    """

    branch: Branch
    minimise: str
    logarithmic: bool
    low: float
    high: float
    known: dict[float, Point] = field(default_factory=dict)

    @classmethod
    def of(
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
    ) -> Search:
        """Checks what the user gave.

        Raises:
            InputError: an unknown name, no interval, or one outside of what is allowed.
        """
        require_in("accuracy", accuracy, "(0, 1)")
        name = parameter_name(parameter)
        problem.check_varied(name)
        present = problem.value_of(name)
        on = on or default_start(problem)
        require_known("branch", on, list(problem.solver.model.STARTS), problem.solver.name)
        least, most = Direction(problem, name).range
        # A ridge may be of either sign, and yet it is its decades that matter.
        is_scale = least == 0 or name in problem.regulariser.strength_names
        if bracket is None:
            if is_scale and present > 0 and np.isinf(most):
                bracket = (present * 10.0**-_DECADES, present * 10.0**_DECADES)
            elif np.isfinite(least) and np.isfinite(most):
                bracket = _inside(problem, name, least, most)
            else:
                raise InputError(f"give an interval to search for {parameter}")
        low, high = (float(end) for end in bracket)
        if not (np.isfinite([low, high]).all() and low < high):
            raise InputError(f"interval {bracket!r} for {parameter}: two finite ends in ascending order are expected")
        for end in (low, high):
            problem.with_(**{name: end})
        logarithmic = is_scale and low > 0 and (np.isinf(most) or high / low > 30)
        branch = Branch(problem, name, on, seed=seed, effort=_EFFORT, integrator=integrator, points=points)
        search = cls(branch, minimise, logarithmic, low, high)
        search.low, search.high = search.place(low), search.place(high)
        return search

    @property
    def observable(self) -> str:
        """Name of the observable."""
        return self.minimise.removeprefix("-")

    @property
    def sign(self) -> float:
        """-1 where the observable is maximised."""
        return -1.0 if self.minimise.startswith("-") else 1.0

    @property
    def words(self) -> str:
        """Return what is minimised, as `in_words`."""
        return in_words(self.branch.problem, self.observable)

    @property
    def span(self) -> float:
        """Length of the interval searched, in places."""
        return self.high - self.low

    def place(self, value: float) -> float:
        """Return the place of a value of the parameter: its logarithm for a positive one."""
        return float(np.log(value)) if self.logarithmic else value

    def value(self, place: float) -> float:
        """The value of the parameter at a place."""
        return float(np.exp(place)) if self.logarithmic else place

    def at(self, place: float, accuracy: float | None = None) -> Point | None:
        """The branch at a place; None where it was not found."""
        if place in self.known and accuracy is None:
            return self.known[place]
        value = self.value(place)
        solution = self.branch.at(value, accuracy, self._guess(place))
        if solution is None:
            return None
        known = self.known.get(place)
        if known is not None and known.solution is solution:
            return known
        try:
            moved = sensitivity(solution, Direction(solution.problem, self.branch.parameter))
        except NotConvergedError:
            return None  # the very end of the branch
        slope, slope_error = moved.of(self.observable)
        unit = value if self.logarithmic else 1.0
        here, here_error = observed(solution, self.observable)
        self.known[place] = Point(
            place,
            value,
            solution,
            self.sign * here,
            here_error,
            self.sign * unit * slope,
            unit * slope_error,
            unit * moved.overlaps.pack(),
        )
        return self.known[place]

    def _guess(self, place: float) -> Solution | None:
        """The nearest known solution moved along its derivative, where that keeps the sign of every overlap."""
        if not self.known:
            return None
        near = min(self.known.values(), key=lambda point: abs(point.place - place))
        return moved_by(near.solution, (place - near.place) * near.change)

    def needed(self, place: float, accuracy: float | None = None) -> Point:
        """Return `at` where the branch has been found on both sides."""
        found = self.at(place, accuracy)
        if found is None:
            raise NotConvergedError(
                f"the {self.branch.name} branch was lost at {self.branch.parameter.rstrip('_')} = "
                f"{self.value(place):.6g} within an interval of it"
            )
        return found

    # The scan

    def scanned(self, tick: Any) -> tuple[list[list[Point]], list[tuple[Point, Point]]]:
        """Stretches of the branch, ascending, resolved well enough to show their minima; and jumps within it."""
        decades = self.span / np.log(10)
        count = max(_ALONG, int(np.ceil(_A_DECADE * decades))) if self.logarithmic else _ALONG
        grid = [float(place) for place in np.linspace(self.low, self.high, count + 1)]
        present = self.branch.problem.value_of(self.branch.parameter)
        known = present > 0 or (np.isfinite(present) and not self.logarithmic)
        anchor = self.place(present) if known else grid[0]
        points: dict[float, Point | None] = {}
        for place in sorted(grid, key=lambda p: abs(p - anchor)):
            points[place] = self.at(place)
            tick()
        if not any(points.values()):
            raise NotConvergedError(
                f"the {self.branch.name} branch was not found at any of {len(grid)} values of "
                f"{self.branch.parameter.rstrip('_')} in [{self.value(self.low):g}, {self.value(self.high):g}]"
            )
        jumps: list[tuple[Point, Point]] = []
        pending = list(pairwise(grid))
        while pending:
            left, right = pending.pop()
            one, other = points[left], points[right]
            both = (one, other) if one is not None and other is not None else None
            if (one is None and other is None) or (both and not self.disagree(*both)):
                continue
            if right - left <= _FINEST * self.span:
                jumps += [both] if both else []
                continue
            middle = (left + right) / 2
            points[middle] = self.at(middle)
            tick()
            pending += [(left, middle), (middle, right)]
        stretches: list[list[Point]] = [[]]
        for _, point in sorted(points.items()):
            broken = any(point is other for _, other in jumps)
            if (point is None or broken) and stretches[-1]:
                stretches.append([])
            if point is not None:
                stretches[-1].append(point)
        return [stretch for stretch in stretches if stretch], jumps

    @staticmethod
    def disagree(one: Point, other: Point) -> bool:
        """Whether the change between two points is not the one their slopes foretell."""
        width = other.place - one.place
        foretold, change = width * (one.slope + other.slope) / 2, other.observed - one.observed
        size = width * (abs(one.slope) + abs(other.slope)) / 2
        noise = one.observed_error + other.observed_error + width * (one.slope_error + other.slope_error)
        return abs(change - foretold) > _DISAGREE * size + noise

    # The minimum

    def root(self, left: Point, right: Point, tick: Any, wanted: float) -> Point:
        """A minimum between two points whose slopes point to each other, as well as the scan's accuracy has it."""
        from scipy.optimize import brentq  # slow to load

        def slope(place: float) -> float:
            tick()
            return self.needed(float(place)).slope

        place = brentq(slope, left.place, right.place, xtol=max(wanted, 1e-13), rtol=1e-13, maxiter=60)
        return self.needed(float(place))

    def refined(self, rough: Point, accuracy: float, tick: Any) -> tuple[Point, dict[str, float]]:
        """The minimum near a rough one by Newton on the slope, with the integration that the accuracy asks for.

        Args:
            accuracy: of the place.

        Returns:
            the last point, and the curvature, the half widths and what remains of the slope, in places.
        """
        curvature = self._curvature(rough, tick)
        point, wanted = rough, min(self.branch.accuracy, rough.solution.relative_error or 1.0)
        least = _LEAST_ACCURACY[rough.solution.rule.replicated]
        for _ in range(_STEPS):
            integration, off = point.slope_error / curvature, abs(point.slope) / curvature
            if off > max(0.2 * accuracy, 0.3 * integration):
                step = float(np.clip(-point.slope / curvature, -0.05 * self.span, 0.05 * self.span))
                place = float(np.clip(point.place + step, self.low, self.high))
                moved = self.at(place, wanted)
                if moved is None or place == point.place:
                    break
                point = moved
            elif integration > 0.5 * accuracy and wanted > least:
                wanted = max(least, wanted * min(0.3, 0.3 * accuracy / integration))
                finer = self.at(point.place, wanted)
                if finer is None or finer.slope_error > 0.9 * point.slope_error:
                    least = wanted  # as far as the rules go, or rounding
                point = finer or point
                curvature = self._curvature(point, tick, wanted)
            else:
                break
            tick()
        integration, off = point.slope_error / curvature, abs(point.slope) / curvature
        return point, {"curvature": curvature, "integration": integration, "root": 2 * off}

    def _curvature(self, point: Point, tick: Any, accuracy: float | None = None) -> float:
        """The slope of the slope, from two places close by."""
        step = _CURVATURE_STEP * (1.0 if self.logarithmic else self.span)
        low, high = max(self.low, point.place - step), min(self.high, point.place + step)
        ends = [self.needed(place, accuracy) for place in (low, high)]
        tick()
        found = (ends[1].slope - ends[0].slope) / (high - low)
        if not found > 0:
            raise NotConvergedError(
                f"{self.observable} has no minimum in {self.branch.parameter.rstrip('_')} near {point.value:.6g}: its "
                "slope does not grow there"
            )
        return float(found)
