"""Where an observable is least along a branch, as the regularisation of least test error, and curves at that value.

A minimum is a root of the sensitivity, which keeps the digits that a comparison of values would halve. The branch is
first scanned: intervals over which values and slopes disagree are halved, down to the jumps of the branch. Every
minimum inside, every end and every jump that could be the best is weighed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import presenting
from .branches import Branch, Curve, grid_of
from .errors import InputError, NotConvergedError, TimeLimitError
from .interrupts import recognised
from .naming import OVERLAPS
from .overlaps import Overlaps
from .problem import Problem
from .progress import bar
from .sensitivity import SCALARS, Direction, sensitivity
from .solution import Solution, is_replicated

if TYPE_CHECKING:
    import pandas
    import xarray

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
    """Where the least value may lie.

    Attributes:
        kind: minimum (inside), lower_end or upper_end (of the interval searched), branch_end, or jump (of the branch).
        value: of the parameter; observed: of the observable there.
    """

    kind: str
    value: float
    observed: float


@dataclass(frozen=True)
class Optimum:
    """The value of a parameter at which an observable is least on a branch.

    Attributes:
        minimise: name of the observable, with a minus where it is maximised.
        value, error: of the parameter and its half width (nan unless kind is minimum).
        kind: as of `Candidate`, or tried (the best of the values tried, where the time ended).
        status: converged; accuracy_not_reached; time_limit; edge, where the least value is at an end of what was
            searched that is no end of what is allowed, so that there may be lower ones beyond; branch_end, where the
            branch ends or jumps.
        observed, observed_error: the observable there.
        others: the other candidates, lowest first.
    """

    problem: Problem
    parameter: str
    minimise: str
    value: float
    error: float
    kind: str
    status: str
    branch: str
    observed: float
    observed_error: float
    solution: Solution
    others: tuple[Candidate, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)
    error_kind: str = "estimated"

    @property
    def success(self) -> bool:
        return self.status == "converged"

    @property
    def advice(self) -> str:
        """What the status means, and what to try next."""
        shown = f"{self.parameter.rstrip('_')} = {self.value:.6g}"
        return {
            "converged": "",
            "accuracy_not_reached": "the half width is larger than asked; ask for less",
            "edge": f"{self.minimise} is least at the end {shown} of the interval searched; try a wider one",
            "time_limit": f"the time limit came first: {shown} is the best of the values tried",
            "branch_end": f"{self.minimise} is least at {shown}, where the {self.branch} branch ends or jumps",
        }[self.status]

    def table(self) -> str:
        """The optimum for a terminal."""
        return presenting.table(self)

    def __repr__(self) -> str:
        return self.table()

    def to_json(self) -> dict[str, Any]:
        """As the object of a threshold (docs/design.md section 5), with the solution there."""
        return presenting.to_json(self)


def observed(solution: Solution, name: str) -> tuple[float, float]:
    """Value and half width of an observable: a loss or error, or |first entry| of an overlap."""
    if name in SCALARS:
        own = {"free_entropy": "training_loss_error", "baseline_error": None}.get(name, f"{name}_error")
        return getattr(solution, name), getattr(solution, own) if own else 0.0
    return tuple(abs(float(getattr(b, name).flat[0])) for b in (solution.overlaps, solution.half_widths))  # type: ignore


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


@dataclass
class Search:
    """A branch with an observable to be minimised along its parameter.

    Attributes:
        sign: -1 where it is maximised.
        logarithmic: whether places are logarithms of the parameter, which must be positive then.
        low, high: ends of the places searched.
    """

    branch: Branch
    observable: str
    sign: float
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
    ) -> Search:
        """Checks what the user gave.

        Raises:
            InputError: an unknown name, no interval, or one outside of what is allowed.
        """
        if not 0 < accuracy < 1:
            raise InputError(f"accuracy = {accuracy!r} is out of range; allowed is (0, 1)")
        name = {"lambda": "lambda_"}.get(parameter, parameter)
        problem.check_varied(name)
        present = problem.value_of(name)
        observable = minimise.removeprefix("-")
        if observable not in (*SCALARS, *OVERLAPS):
            raise InputError(f"cannot minimise {minimise!r}; known are {', '.join((*SCALARS, *OVERLAPS))}, or -NAME")
        missing = {"test_error": "HAS_METRIC", "baseline_error": "HAS_BASELINE"}.get(observable)
        if missing and not getattr(problem.solver.metric, missing):
            raise InputError(f"{problem.solver.name} has no {observable.replace('_', ' ')}")
        starts = list(problem.solver.model.STARTS)
        on = on or ("semantic" if "semantic" in starts else starts[0])
        if on not in starts:
            raise InputError(f"no branch {on!r}; known are {', '.join(starts)}")
        least, most = Direction(problem, name).range
        if bracket is None:
            if least == 0 and present > 0 and np.isinf(most):
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
        logarithmic = least == 0 and low > 0 and (np.isinf(most) or high / low > 30)
        branch = Branch(problem, name, on, seed=seed, effort=_EFFORT)
        sign = -1.0 if minimise.startswith("-") else 1.0
        search = cls(branch, observable, sign, logarithmic, low, high)
        search.low, search.high = search.place(low), search.place(high)
        return search

    @property
    def span(self) -> float:
        return self.high - self.low

    def place(self, value: float) -> float:
        return float(np.log(value)) if self.logarithmic else value

    def value(self, place: float) -> float:
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
        u = near.solution.overlaps.pack()
        there = u + (place - near.place) * near.change
        if np.any(there * u < 0):
            return near.solution
        return replace(near.solution, overlaps=Overlaps.unpack(there, near.solution.overlaps.sizes))

    def needed(self, place: float, accuracy: float | None = None) -> Point:
        """As `at`, where the branch has been found on both sides."""
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
        found: dict[float, Point | None] = {}
        for place in sorted(grid, key=lambda p: abs(p - anchor)):
            found[place] = self.at(place)
            tick()
        if not any(found.values()):
            raise NotConvergedError(
                f"the {self.branch.name} branch was not found at any of {len(grid)} values of "
                f"{self.branch.parameter.rstrip('_')} in [{self.value(self.low):g}, {self.value(self.high):g}]"
            )
        jumps: list[tuple[Point, Point]] = []
        pending = list(pairwise(grid))
        while pending:
            left, right = pending.pop()
            one, other = found[left], found[right]
            if one is None and other is None:
                continue
            fine = right - left > _FINEST * self.span
            if one is not None and other is not None and not self._disagree(one, other):
                continue
            if not fine:
                if one is not None and other is not None:
                    jumps.append((one, other))
                continue
            middle = (left + right) / 2
            found[middle] = self.at(middle)
            tick()
            pending += [(left, middle), (middle, right)]
        stretches: list[list[Point]] = [[]]
        for place in sorted(found):
            point = found[place]
            broken = any(point is other for _, other in jumps)
            if (point is None or broken) and stretches[-1]:
                stretches.append([])
            if point is not None:
                stretches[-1].append(point)
        return [stretch for stretch in stretches if stretch], jumps

    @staticmethod
    def _disagree(one: Point, other: Point) -> bool:
        """Whether the change between two points is not the one their slopes foretell."""
        width = other.place - one.place
        foretold, change = width * (one.slope + other.slope) / 2, other.observed - one.observed
        size = width * (abs(one.slope) + abs(other.slope)) / 2
        noise = one.observed_error + other.observed_error + width * (one.slope_error + other.slope_error)
        return abs(change - foretold) > _DISAGREE * size + noise

    # The minimum

    def root(self, left: Point, right: Point, tick: Any, wanted: float) -> Point:
        """A minimum between two points whose slopes point to each other, as well as the scan's accuracy has it."""
        from scipy.optimize import brentq

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
        least = _LEAST_ACCURACY[is_replicated(rough.solution.rule)]
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


def tune(
    problem: Problem,
    parameter: str,
    *,
    minimise: str = "test_error",
    on: str | None = None,
    bracket: tuple[float, float] | None = None,
    accuracy: float = 1e-4,
    seed: int = 0,
    start: Overlaps | None = None,
) -> Optimum:
    """The value of a scalar parameter at which an observable is least along a branch.

    Args:
        parameter: as lambda, omega, sigma, alpha or one of the model's own; a vector is moved with all entries equal.
        minimise: training_loss, free_entropy, test_error, baseline_error, or q, V, m, theta for |first entry|; with a
            minus, as -theta, it is maximised.
        on: the branch, by its start.
        bracket: interval to search; default three decades on both sides of a positive parameter's value, or all of a
            bounded one's range.
        accuracy: half width asked, relative to the parameter where it is searched logarithmically (positive ones).
        start: overlaps of the branch at the problem's own value, to begin from.

    Raises:
        InputError: an unknown name, or an interval that is none.
        NotConvergedError: the branch was not found, or the observable does not change along it.
    """
    problem.only_at_zero_temperature("parameters are tuned")
    search = Search.of(problem, parameter, minimise, on, bracket, accuracy, seed)
    if start is not None:
        search.branch.begin(problem.value_of(search.branch.parameter), start)
    with bar(f"tuning {parameter}", 40) as task:
        try:
            return _best(search, problem, minimise, accuracy, task.advance)
        except TimeLimitError:
            if not search.known:
                raise
            return _so_far(search, problem, minimise)


def _so_far(search: Search, problem: Problem, minimise: str) -> Optimum:
    """The best of the places tried, where the time ended."""
    best = min(search.known.values(), key=lambda point: point.observed)
    return Optimum(
        problem=problem,
        parameter=search.branch.parameter,
        minimise=minimise,
        value=best.value,
        error=np.nan,
        kind="tried",
        status="time_limit",
        branch=search.branch.name,
        observed=search.sign * best.observed,
        observed_error=best.observed_error,
        solution=best.solution,
        evidence={"scanned": len(search.known), "logarithmic": search.logarithmic},
    )


def _best(search: Search, problem: Problem, minimise: str, accuracy: float, tick: Any) -> Optimum:
    """The lowest of all minima, ends and jumps."""
    stretches, jumps = search.scanned(tick)
    every = [point for stretch in stretches for point in stretch]
    if all(abs(point.slope) <= point.slope_error for point in every):
        raise NotConvergedError(
            f"{search.observable} does not change with {search.branch.parameter.rstrip('_')} on the "
            f"{search.branch.name} branch, within its error"
        )
    found: list[tuple[str, Point]] = []
    for stretch in stretches:
        for left, right in pairwise(stretch):
            if left.slope < 0 <= right.slope:
                # To the accuracy of the scan, which tells the candidates apart.
                found.append(("minimum", search.root(left, right, tick, 1e-3 * search.span)))
        for point, outward, edge in ((stretch[0], -1, search.low), (stretch[-1], 1, search.high)):
            if outward * point.slope >= 0:
                continue
            at_edge = point.place == edge
            jumped = any(point is one or point is other for one, other in jumps)
            name = "lower_end" if outward < 0 else "upper_end"
            found.append((name if at_edge else "jump" if jumped else "branch_end", point))
    found.sort(key=lambda item: item[1].observed)
    others = tuple(Candidate(kind, point.value, search.sign * point.observed) for kind, point in found[1:])
    return _optimum(search, problem, minimise, accuracy, *found[0], others, tick, scanned=len(every))


def _optimum(
    search: Search,
    problem: Problem,
    minimise: str,
    accuracy: float,
    kind: str,
    point: Point,
    others: tuple[Candidate, ...],
    tick: Any,
    **evidence: Any,
) -> Optimum:
    """A candidate to the accuracy asked."""
    error = np.nan
    if kind == "minimum":
        point, parts = search.refined(point, accuracy, tick)
        unit = point.value if search.logarithmic else 1.0
        error = unit * (parts["integration"] + parts["root"])
        evidence |= {
            "curvature": parts["curvature"] / unit**2,
            "slope": point.slope / unit,
            "half_width_integration": unit * parts["integration"],
            "half_width_root": unit * parts["root"],
        }
        status = "converged" if error <= accuracy * unit else "accuracy_not_reached"
    elif kind in ("lower_end", "upper_end"):
        allowed = Direction(problem, search.branch.parameter).range
        status = "converged" if point.value in allowed else "edge"
    else:
        status = "branch_end"
    return Optimum(
        problem=problem,
        parameter=search.branch.parameter,
        minimise=minimise,
        value=point.value,
        error=error,
        kind=kind,
        status=status,
        branch=search.branch.name,
        observed=search.sign * point.observed,
        observed_error=point.observed_error,
        solution=point.solution,
        others=others,
        evidence={**evidence, "logarithmic": search.logarithmic, "integrator": point.solution.rule.describe()},
    )


@dataclass(frozen=True)
class TunedCurve:
    """Optima along a second parameter, each at its own best value of the first.

    Attributes:
        over: the parameter along the curve; optima: in its ascending order; missing: values without an optimum.
        out_of_time: whether a time limit ended it: the values not reached are among the missing ones.
        notes: what a full scan at the ends of the curve saw that following the minimum did not.
        interrupted: by the user; what was finished is here.
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
        return self.curve.values

    @property
    def success(self) -> bool:
        return not self.missing and all(optimum.success for optimum in self.optima)

    def table(self) -> str:
        """One line a value, then what the full scans had to say."""
        return presenting.table(self)

    def to_xarray(self, stability: bool = True) -> xarray.Dataset:
        """As a curve's, with best_NAME, best_NAME_error, optimum (its kind) and optimum_status beside the rest."""
        return presenting.to_dataset(self, stability)

    def to_pandas(self, stability: bool = True) -> pandas.DataFrame:
        """One row a value."""
        return presenting.to_frame(self.to_xarray(stability))

    def save(self, path: str | Path) -> None:
        """Write netCDF, whole or not at all, over what is there."""
        presenting.save(self.to_xarray(), path)


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
    """
    if ranges:
        if len(ranges) > 1 or values is not None:
            raise InputError("give one range, as alpha=(0.5, 4, 8), or values with over=")
        ((over, span),) = ranges.items()
        values = grid_of(over, span)
    if values is None or not len(values):
        raise InputError("give the grid, as alpha=(0.5, 4, 8), or values with over=")
    names = [{"lambda": "lambda_"}.get(name, name) for name in (parameter, over)]
    if names[0] == names[1]:
        raise InputError(f"{parameter} cannot be tuned along itself")
    problem.check_varied(parameter, over)
    grid = sorted({float(value) for value in values})
    problems = [problem.with_(**{over: value}) for value in grid]
    options: dict[str, Any] = {"minimise": minimise, "on": on, "accuracy": accuracy, "seed": seed}
    if bracket is None:  # the same for all of the curve
        search = Search.of(problems[0], parameter, minimise, on, None, accuracy, seed)
        bracket = (search.value(search.low), search.value(search.high))
    options["bracket"] = bracket
    optima: list[Optimum] = []
    missing: list[float] = []
    notes: list[str] = []
    interrupted = out_of_time = False

    def further(value: float, at: Problem) -> bool:
        """The optimum at one more value, or none; whether there was time for it."""
        late = False
        optimum = _followed(at, parameter, optima[-1], options) if optima else None
        note = ""
        if optimum is None or value == grid[-1]:
            try:
                scanned = tune(at, parameter, **options, start=optima[-1].solution.overlaps if optima else None)
            except NotConvergedError as error:
                if not optima:
                    raise
                notes.append(f"{over} = {value:g}: {error}")
                scanned = None
            if scanned is not None and scanned.status == "time_limit":
                late, scanned = True, None
            note = _compared(over, value, optimum, scanned)
            optimum = scanned or optimum
        if optimum is None:
            missing.append(value)
            return not late
        if on_point:
            on_point(optimum)
        optima.append(optimum)
        if note:
            notes.append(note)
        return not late

    with bar(f"tuning {parameter} along {over}", len(grid)) as task:
        try:
            with recognised():
                for n, (value, at) in enumerate(zip(grid, problems, strict=True)):
                    try:
                        out_of_time = not further(value, at)
                    except TimeLimitError:
                        out_of_time = True
                        missing.append(value)
                    if out_of_time:
                        missing += [float(rest) for rest in grid[n + 1 :]]
                        break
                    task.advance(f"{over} = {value:.4g}")
        except KeyboardInterrupt:
            if not optima:
                raise
            interrupted = True
    if out_of_time and not optima:
        raise TimeLimitError(f"the time limit came before the first best value of {parameter}")
    return TunedCurve(over, tuple(optima), tuple(missing), tuple(notes), interrupted, out_of_time)


def _compared(over: str, value: float, followed: Optimum | None, scanned: Optimum | None) -> str:
    """Where a full scan contradicts the minimum that was followed."""
    if scanned is None or followed is None:
        return ""
    sign = -1 if scanned.minimise.startswith("-") else 1
    gain = sign * (followed.observed - scanned.observed)
    if gain <= followed.observed_error + scanned.observed_error:
        return ""
    return (
        f"{over} = {value:g}: a lower value of {scanned.minimise} than at the minimum followed to there "
        f"({scanned.parameter.rstrip('_')} = {followed.value:.6g}) is at {scanned.value:.6g}; the best one changes "
        "place along the curve"
    )


def _followed(problem: Problem, parameter: str, last: Optimum, options: dict[str, Any]) -> Optimum | None:
    """The minimum next to that of a neighbouring problem; None where there is none to follow."""
    if last.kind != "minimum":
        return None
    search = Search.of(problem, parameter, options["minimise"], options["on"], options["bracket"],
                       options["accuracy"], options["seed"])  # fmt: skip
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
            if Search._disagree(left, right):
                return None
            width *= 2
        rough = search.root(left, right, lambda: None, 1e-3 * search.span)
        return _optimum(search, problem, options["minimise"], options["accuracy"], "minimum", rough, (), lambda: None)
    except NotConvergedError:
        return None


__all__ = ["Candidate", "Optimum", "TunedCurve", "observed", "tune", "tuned_curve"]
