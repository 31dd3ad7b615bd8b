"""Minima of an observable along a branch in several parameters at once.

The gradient is that of sensitivities. From the best of a few places spread over the box (and the problem's own) a
quasi-Newton method goes down to where it vanishes; there Newton's method, its Hessian from differences of gradients,
refines place and integration together, and the same Hessian turns what is left of the gradient, and its half widths,
into half widths of the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..base.errors import InputError, NotConvergedError, TimeLimitError
from ..base.interrupts import keeping_results
from ..base.numbers import with_error
from ..base.presenting import Result
from ..base.progress import bar
from ..problems.problem import Problem, parameter_name
from ..saddle_point.iteration import Status
from ..solving.solution import Solution, has_lost
from ..solving.solve import reach
from .direction import Direction
from .minimum import Search, describe_best, minimised, moved_by, observed
from .sensitivity import sensitivity

_EFFORT = 4  # sizes of a rule to climb at each place of the scan
_DESCENTS = 60  # evaluations of the quasi-Newton method
_REFINEMENTS = 12
_STEP = 0.02  # of the differences of gradients, in the logarithm or relative to the interval
_ROUGH = 1e-3  # accuracy of the overlaps on the way
_AT_END = 1e-9  # of an interval, within which a place is at its end
_FLAT = 1e-4  # of the largest slope met, below which the quasi-Newton method ends


@dataclass(frozen=True)
class Trial:
    """One place that was tried: values of the parameters, the observable there and its half width.

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
class JointOptimum(Result):
    """Values of several parameters at which an observable is least on a branch.

    Attributes:
        parameters: names; values, errors: of each, and their half widths (nan where it is at an end, or not refined).
        minimise: name of the observable, with a minus where it is maximised.
        kinds: of each: minimum, lower_end or upper_end; tried for all where the search did not end.
        status: converged; accuracy_not_reached; edge, where a parameter is at an end of what was searched that is no
            end of what is allowed; time_limit or interrupted: the best of what was tried.
        tried: every place, in the order in which they were.
        evidence: Hessian in the logarithms (or values) of the parameters, evaluations.

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
        """Whether it is a minimum to the accuracy asked for, or at ends of what parameters may be."""
        return self.status == "converged"

    @property
    def advice(self) -> str:
        """Return what the status means, and what to try next."""
        at = _listed(dict(zip(self.parameters, self.values, strict=True)), 6)
        return {
            "converged": "",
            "accuracy_not_reached": "an error bar is larger than the accuracy asked; ask for a larger --accuracy",
            "edge": f"{describe_best(self.problem, self.minimise)} at an end of the intervals searched, {at}; "
            "try wider ones",
            "time_limit": f"the time limit ended the search: {at} is the best of {len(self.tried)} places tried",
            "interrupted": f"interrupted: {at} is the best of {len(self.tried)} places tried",
        }[self.status]

    def __getitem__(self, name: str) -> float:
        return self.values[self.parameters.index(parameter_name(name))]


def _listed(values: Mapping[str, float], digits: int) -> str:
    """Values of parameters in words."""
    return ", ".join(f"{name.rstrip('_')} = {value:.{digits}g}" for name, value in values.items())


@dataclass(frozen=True)
class _Place:
    """The values at which the branch was solved, in places (logarithms of positive parameters).

    Attributes:
        gradient, gradient_error: of the observable, (k,); changes: of the packed overlaps, (k, n).
    """

    at: np.ndarray
    solution: Solution
    observed: float
    observed_error: float
    gradient: np.ndarray
    gradient_error: np.ndarray
    changes: np.ndarray


class _Landscape:
    """An observable of a branch over several parameters, solved where it is asked for."""

    def __init__(
        self, searches: Sequence[Search], say: Callable[[str], None], on_trial: Callable[[Trial], object] | None
    ) -> None:
        self.searches, self.say, self.on_trial = searches, say, on_trial
        branch = searches[0].branch
        self.problem, self.name = branch.problem, branch.name
        self.sign, self.observable = searches[0].sign, searches[0].observable
        self.chosen: dict[str, Any] = {"integrator": branch.integrator, "points": branch.points, "seed": branch.seed}
        self.low, self.high = (np.array([getattr(search, end) for search in searches]) for end in ("low", "high"))
        self.known: list[_Place] = []
        self.reason = ""  # why the last place was not found

    @property
    def best(self) -> _Place:
        """Return those of the points that were solved."""
        return min(self.known, key=lambda place: place.observed)

    def values(self, at: np.ndarray) -> dict[str, float]:
        """Return the values of the parameters at a place."""
        return {s.branch.parameter: s.value(float(x)) for s, x in zip(self.searches, at, strict=True)}

    def units(self, at: np.ndarray) -> np.ndarray:
        """Slope of every parameter with its place."""
        values = self.values(at).values()
        return np.array([value if s.logarithmic else 1.0 for s, value in zip(self.searches, values, strict=True)])

    def at(self, at: np.ndarray, accuracy: float = _ROUGH) -> _Place | None:
        """The branch at a place; None where it was not found."""
        at = np.clip(at, self.low, self.high)
        for place in self.known:
            if np.array_equal(place.at, at) and place.solution.relative_error <= max(accuracy, _ROUGH * 1e-9):
                return place
        values = self.values(at)
        solution = self._solved(self.problem.with_(**values), at, accuracy)
        if solution is None:
            return None
        try:
            moved = [sensitivity(solution, Direction(solution.problem, name)) for name in values]
        except NotConvergedError as failure:
            self.reason = str(failure)
            return None  # the very end of the branch
        units, slopes = self.units(at), np.array([answer.of(self.observable) for answer in moved])
        value, error = observed(solution, self.observable)
        place = _Place(
            at=at,
            solution=solution,
            observed=self.sign * value,
            observed_error=error,
            gradient=self.sign * units * slopes[:, 0],
            gradient_error=units * slopes[:, 1],
            changes=units[:, None] * np.array([answer.overlaps.pack() for answer in moved]),
        )
        self.known.append(place)
        best = with_error(self.sign * self.best.observed, self.best.observed_error)
        self.say(f"{self.searches[0].words} {with_error(value, error)} at {_listed(values, 5)}; best {best}")
        if self.on_trial is not None:
            self.on_trial(self.trial(place))
        return place

    def trial(self, place: _Place) -> Trial:
        """A place as it is shown."""
        values = {name.rstrip("_"): value for name, value in self.values(place.at).items()}
        return Trial(values, self.sign * place.observed, place.observed_error)

    def _solved(self, problem: Problem, at: np.ndarray, accuracy: float) -> Solution | None:
        """Solve from the nearest known solution, moved along its derivatives; else from the named start."""
        guesses: list[str | Solution] = [self.name]
        if self.known:
            near = min(self.known, key=lambda place: float(np.linalg.norm(place.at - at)))
            guesses.insert(0, moved_by(near.solution, (at - near.at) @ near.changes))
        effort = _EFFORT if accuracy >= _ROUGH else 100
        for guess in guesses:
            solution = reach(problem, guess, accuracy=accuracy, effort=effort, **self.chosen)
            if solution.status is Status.TIME_LIMIT:
                raise TimeLimitError("the time limit ended the search for a branch")
            if solution.losses is not None and not has_lost(problem, self.name, solution):
                return solution
        self.reason = f"it led to a {solution.branch} solution" if solution.losses else solution.status.words
        return None

    def needed(self, at: np.ndarray, accuracy: float = _ROUGH) -> _Place:
        """Return `at` where the branch has been found next to it."""
        found = self.at(at, accuracy)
        if found is None:
            raise NotConvergedError(f"the {self.name} branch was lost at {_listed(self.values(at), 6)}: {self.reason}")
        return found

    def hessian(self, place: _Place, free: np.ndarray, accuracy: float) -> np.ndarray:
        """Second derivatives in the free places (f, f), from gradients on both sides."""
        rows = []
        for axis in np.flatnonzero(free).tolist():
            step = _STEP * (1.0 if self.searches[axis].logarithmic else self.high[axis] - self.low[axis])
            shift = step * np.eye(len(free))[axis]
            ends = [self.needed(np.clip(place.at + way * shift, self.low, self.high), accuracy) for way in (1, -1)]
            rows.append((ends[0].gradient - ends[1].gradient)[free] / (ends[0].at - ends[1].at)[axis])
        found = np.array(rows)
        return (found + found.T) / 2


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
    """`sf.tune` of several parameters at once, whose arguments it has.

    Args:
        bracket: an interval by name; for those that it leaves out, the default of `tune`.
        scan: places spread over the box that are tried first, beside the problem's own.
        on_trial: called with every place tried.

    Raises:
        InputError, NotConvergedError: as `tune`.
    """
    names = [parameter_name(name) for name in parameters]
    if len(set(names)) < len(names):
        raise InputError(f"parameters to tune: {', '.join(parameters)}: one is given twice")
    problem.only_at_zero_temperature("parameters are tuned")
    intervals = {parameter_name(name): ends for name, ends in (bracket or {}).items()}
    if set(intervals) - set(names):
        raise InputError(f"an interval for {(set(intervals) - set(names)).pop()!r}, which is not tuned")
    problem, minimise = minimised(problem, minimise)
    common = accuracy, seed, integrator, points
    searches = [Search.of(problem, name, minimise, on, intervals.get(name), *common) for name in names]
    with bar(f"tuning {', '.join(parameters)}", None) as task:
        landscape = _Landscape(searches, task.advance, on_trial)
        place, hessian, free = None, np.zeros((0, 0)), np.zeros(len(names), bool)
        with keeping_results(lambda: landscape.known) as early:
            place, hessian, free = _refined(landscape, _descended(landscape, scan), accuracy)
    status = "time_limit" if early.out_of_time else "interrupted" if early.interrupted else ""
    return _optimum(landscape, minimise, accuracy, place, hessian, free, status)


def _descended(landscape: _Landscape, scan: int) -> _Place:
    """Scan, then down from the best of it.

    Raises:
        NotConvergedError: the branch was found nowhere, or the observable does not change.
    """
    from scipy.optimize import minimize  # slow to load
    from scipy.stats import qmc

    low, high, searches = landscape.low, landscape.high, landscape.searches
    own = [landscape.problem.value_of(search.branch.parameter) for search in searches]
    inside = [value > 0 or not search.logarithmic for value, search in zip(own, searches, strict=True)]
    begin = np.array([s.place(v) if ok else np.nan for s, v, ok in zip(searches, own, inside, strict=True)])
    begin = np.where(np.isfinite(begin), np.clip(begin, low, high), (low + high) / 2)
    spread = qmc.Halton(len(searches), scramble=False).random(scan + 1)[1:]
    for at in [begin, *(low + spread * (high - low))]:
        landscape.at(at)
    if not landscape.known:
        raise NotConvergedError(f"the {landscape.name} branch was found at none of {scan + 1} places of the box")
    if all(np.all(np.abs(place.gradient) <= place.gradient_error) for place in landscape.known):
        raise NotConvergedError(f"{searches[0].words} changes with none of the parameters, within its error")
    steepest = max(float(np.abs(place.gradient).max()) for place in landscape.known)

    def value_and_slope(at: np.ndarray) -> tuple[float, np.ndarray]:
        place = landscape.at(at)
        if place is None:  # back to where it is
            near = landscape.best
            return near.observed + steepest * float(np.linalg.norm(at - near.at)), steepest * np.sign(at - near.at)
        return place.observed, place.gradient

    scale = steepest or 1.0
    minimize(
        lambda at: tuple(part / scale for part in value_and_slope(at)),
        landscape.best.at,
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(low, high, strict=True)),
        options={"maxfun": _DESCENTS, "gtol": _FLAT, "ftol": 1e-12},
    )
    return landscape.best


def _free(landscape: _Landscape, place: _Place) -> np.ndarray:
    """Return which parameters are not held at an end by the slope, (k,) of bool."""
    margin = _AT_END * (landscape.high - landscape.low)
    below, above = place.at <= landscape.low + margin, place.at >= landscape.high - margin
    return ~((below & (place.gradient > 0)) | (above & (place.gradient < 0)))


def _refined(landscape: _Landscape, place: _Place, accuracy: float) -> tuple[_Place, np.ndarray, np.ndarray]:
    """Newton's method at the minimum, with the integration that the accuracy asks for; the Hessian, and what is free.

    Raises:
        NotConvergedError: it is no minimum.
    """
    free = _free(landscape, place)
    if not free.any():
        return place, np.zeros((0, 0)), free
    wanted = min(_ROUGH, place.solution.relative_error or _ROUGH)
    least = 2e-5 if place.solution.rule.replicated else 1e-11
    hessian = landscape.hessian(place, free, wanted)
    for _ in range(_REFINEMENTS):
        if not np.array_equal(free, now := _free(landscape, place)):
            free = now
            if not free.any():
                break
            hessian = landscape.hessian(place, free, wanted)
        if np.linalg.eigvalsh(hessian)[0] <= 0:
            raise NotConvergedError(
                f"{landscape.searches[0].words} has no minimum near {landscape.values(place.at)}: a saddle"
            )
        inverse = np.linalg.inv(hessian)
        step = -inverse @ place.gradient[free]
        widths = np.abs(inverse) @ place.gradient_error[free]
        if np.max(np.abs(step)) > max(0.2 * accuracy, 0.3 * float(np.max(widths))):
            at = place.at.copy()
            at[free] += np.clip(step, *(way * 0.1 * (landscape.high - landscape.low)[free] for way in (-1, 1)))
            at = np.clip(at, landscape.low, landscape.high)
            if np.array_equal(at, place.at):
                break
            place = landscape.needed(at, wanted)
        elif np.max(widths) > 0.5 * accuracy and wanted > least:
            wanted = max(least, wanted * min(0.3, 0.3 * accuracy / float(np.max(widths))))
            place = landscape.needed(place.at, wanted)
            hessian = landscape.hessian(place, free, wanted)
        else:
            break
    return place, hessian, free


def _optimum(
    landscape: _Landscape,
    minimise: str,
    accuracy: float,
    place: _Place | None,
    hessian: np.ndarray,
    free: np.ndarray,
    status: str,
) -> JointOptimum:
    found = landscape.best if status or place is None else place
    errors, kinds = np.full(len(found.at), np.nan), ["tried"] * len(found.at)
    if not status and place is not None:
        units = landscape.units(found.at)
        kinds = ["minimum" if is_free else "lower_end" if x < middle else "upper_end" for is_free, x, middle in zip(
            free, found.at, (landscape.low + landscape.high) / 2, strict=True)]  # fmt: skip
        status = "converged"
        if free.any():
            inverse = np.linalg.inv(hessian)
            off = 2 * np.abs(inverse @ found.gradient[free])
            errors[free] = units[free] * (np.abs(inverse) @ found.gradient_error[free] + off)
            if np.any(errors[free] > accuracy * units[free]):
                status = "accuracy_not_reached"
        for search, kind in zip(landscape.searches, kinds, strict=True):
            end = {"lower_end": search.low, "upper_end": search.high}.get(kind)
            if end is not None and search.value(end) not in Direction(landscape.problem, search.branch.parameter).range:
                status = "edge"
    values = landscape.values(found.at)
    return JointOptimum(
        problem=landscape.problem,
        parameters=tuple(values),
        values=tuple(values.values()),
        errors=tuple(float(error) for error in errors),
        minimise=minimise,
        kinds=tuple(kinds),
        status=status,
        branch=landscape.name,
        observed=landscape.sign * found.observed,
        observed_error=found.observed_error,
        solution=found.solution,
        tried=tuple(landscape.trial(each) for each in landscape.known),
        evidence={
            "hessian": hessian.tolist(),
            "logarithmic": [search.logarithmic for search in landscape.searches],
            "evaluations": len(landscape.known),
            "integrator": found.solution.rule.describe(),
        },
    )
