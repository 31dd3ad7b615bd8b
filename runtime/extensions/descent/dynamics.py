"""What one-pass descent does in time: overlaps with half widths, events, plateaus, and which solution it reaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...base import budget, presenting
from ...base.errors import DomainError, InputError, TimeLimitError, require_in, require_known
from ...base.presenting import Recorded, Result
from ...base.progress import left, step
from ...integration.estimates import ladder_half_width
from ...problems.columns import block_columns
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem, check_is_problem
from ...saddle_point import observables
from ...saddle_point.starts import branch_of
from .averages import AverageRule, sizes_for
from .flow import Flow, refuse
from .schedule import Batch, Schedule, batch_of, schedule_of
from .state import Moments, start_of
from .stationary import StationaryPoint, at, settled

METHODS = ("auto", "DOP853", "RK45", "Radau", "BDF", "LSODA")
_OUTPUTS = 101
_STIFF = 2e3  # spectral radius times the time to go, beyond which a stiff method is cheaper
_LOOSER = 30.0  # of the tolerance that the time step's error is judged by
_LEAST_TOLERANCE = 3e-14
_ROUNDING = 2e-13  # of moments, relative to their size
_DIVERGED = 1e6  # of the moments, relative to those of the start
_NEAR = 0.1  # of the moments: how near an end is to the stationary point that it is said to reach
_BESIDE = 0.2  # the same of a plateau, on which what falls slowest has not fallen yet
_SLOW = 0.1  # of the largest speed that follows: what a plateau is
_BEFORE = 3  # rules before the last one: by which stationary points are looked for first
_METRIC_BUDGET = 2e4  # nodes for the test error of one time
_STEP_SAFETY = 1.5
_LEAST_COUNTS = (0.5, 0.0)  # of the last two steps from rule to rule


@dataclass(frozen=True)
class Event:
    """Where an overlap passes a value: its name in tables, the value, the time and its half width."""

    name: str
    value: float
    time: float
    error: float


@dataclass(frozen=True)
class Plateau:
    """Where descent is slow, by a factor of ten against what follows: next to an unstable stationary point.

    Attributes:
        begin, end: times. point: the stationary point next to where it is slowest; None where Newton's method finds
            none.
    """

    begin: float
    end: float
    point: StationaryPoint | None


@dataclass(frozen=True, repr=False)
class Dynamics(Result, Recorded):
    """Descent from a start.

    Attributes:
        start: how it was called; rate, batch: of descent; times: of output, (n,), in steps over d (steps, where batches
            are of order d).
        path: packed moments at the times, (n, N), see `Moments`; half_widths: theirs.
        loss, loss_error: E[loss] of a fresh sentence at the times, without the penalty, (n,).
        events, plateaus: in order of time; reached: the stable stationary point that the end is next to, or None.
        status: "converged" (to the accuracy), "accuracy_not_reached", "left_domain" or "time_limit".
        integrator: of the averages, as of JSON; method: of the time steps; evaluations: of the averages.

    Example:
        >>> run = sf.dynamics(sf.problem("ridge_regression"), rate=0.5, time=[0, 1, 2])
        >>> [round(float(at.theta[0, 0, 0]), 4) for at in run.overlaps]
        [0.0, 0.3846, 0.6065]
    """

    problem: Problem
    start: str
    rate: Schedule
    batch: Batch
    times: np.ndarray
    path: np.ndarray
    half_widths: np.ndarray
    loss: np.ndarray
    loss_error: np.ndarray
    events: tuple[Event, ...]
    plateaus: tuple[Plateau, ...]
    reached: StationaryPoint | None
    status: str
    integrator: Mapping[str, Any]
    method: str
    evaluations: int

    @property
    def success(self) -> bool:
        """Whether the half widths are those asked for, up to the end."""
        return self.status == "converged"

    @property
    def advice(self) -> str:
        """What to try where they are not."""
        return {
            "converged": "",
            "accuracy_not_reached": "the error bars are larger than the accuracy asked; ask for a larger --accuracy or "
            "less time",
            "left_domain": f"descent diverges after t = {self.times[-1]:.6g}; try a smaller --rate",
            "time_limit": "the time limit ended the computation; what is shown has the error bars given",
        }[self.status]

    def moments(self, number: int) -> Moments:
        """At an output time."""
        return Moments.unpack(self.path[number], self.problem)

    @cached_property
    def overlaps(self) -> tuple[Overlaps, ...]:
        """At the times; V is not known to descent."""
        return tuple(self.moments(n).overlaps(self.problem) for n in range(len(self.times)))

    @cached_property
    def overlap_errors(self) -> tuple[Overlaps, ...]:
        """Half widths of q, m, theta and phi at the times: overlaps are sums of moments with positive weights."""
        parts = (Moments.unpack(widths, self.problem) for widths in self.half_widths)
        return tuple(part.overlaps(self.problem) for part in parts)

    @property
    def branch(self) -> str:
        """Of the end: semantic, positional, mixed or uninformed."""
        return branch_of(self.overlaps[-1])

    @cached_property
    def test_error(self) -> np.ndarray:
        """E metric at the times, (n,); nan without a metric."""
        return self._metric[0]

    @cached_property
    def test_error_error(self) -> np.ndarray:
        """Half widths: of the rule for the metric, and what the half widths of the overlaps move."""
        return self._metric[1]

    @cached_property
    def _metric(self) -> tuple[np.ndarray, np.ndarray]:
        values, errors = (np.full(len(self.times), np.nan) for _ in range(2))
        if not self.problem.solver.metric.HAS_METRIC:
            return values, errors
        for n, overlaps in enumerate(self.overlaps):
            try:
                rule = observables.metric_rule(self.problem, overlaps, _METRIC_BUDGET)
                values[n] = observables.average_metric(self.problem, overlaps, rule)
                moved = Moments.unpack(self.path[n] + self.half_widths[n], self.problem).overlaps(self.problem)
                errors[n] = 1.5 * abs(values[n] - observables.average_metric(self.problem, overlaps, rule.coarser))
                errors[n] += abs(values[n] - observables.average_metric(self.problem, moved, rule))
            except (DomainError, np.linalg.LinAlgError):
                continue  # the fields have no density, or the half widths reach beyond the domain
        return values, errors

    def to_pandas(self) -> Any:
        """A pandas data frame, a row a time."""
        return presenting.to_frame(self)

    def plot(self, path: str | Path | None = None, **options: Any) -> Any:
        """Overlaps and errors against time; a matplotlib figure, saved where a path is given."""
        return presenting.plot(self, path, **options)


@dataclass(frozen=True)
class _Solved:
    """A trajectory by one rule and one tolerance: moments at the times reached, and when events happen."""

    path: np.ndarray
    events: tuple[tuple[float, ...], ...]
    method: str
    left: bool


@step("dynamics")
def dynamics(
    problem: Problem,
    rate: Schedule | float | str,
    time: float | Sequence[float] | np.ndarray,
    start: Any = "random",
    *,
    batch: Batch | float | str = 1,
    accuracy: float = 1e-4,
    method: str = "auto",
    events: Mapping[str, float] | None = None,
) -> Dynamics:
    """Follow one-pass stochastic gradient descent of infinite d (docs/theory.md section 19).

    Args:
        rate: eta, a `Schedule` or a text as of `--rate`: "4", "4,power=0.5,scale=10", "4,warmup=5", or "flow" for
            gradient flow on the population risk, whose time is the sum of rates.
        time: steps over d at the end, or an increasing list of output times that begins with that of the start. With
            batches of order d it counts steps: whole numbers.
        start: "random" (W standard normal: overlaps vanish), a named start, a mapping of overlaps as
            {"q": 0.125, "m_1": 0.1}, `Moments`, or what another `Dynamics` ended with.
        batch: sentences of a step, or a share of d as "0.5d" with a rate of eta d: descent is then a map.
        accuracy: half width asked of the moments at all times, relative to the largest of each kind.
        method: of SciPy's `solve_ivp`, "auto" for DOP853 or, where the equations are stiff, Radau.
        events: overlaps by their names in tables, and a value of each whose passing is timed.

    Raises:
        InputError: the dynamics of the problem do not close, or an argument is out of range; the sentence says what is
            allowed.

    Example:
        >>> run = sf.dynamics(sf.problem("ridge_regression"), rate=0.5, time=20)
        >>> run.status, round(float(run.test_error[-1]), 4)
        ('converged', 0.3342)
    """
    check_is_problem(problem)
    refuse(problem)
    schedule, size = schedule_of(rate), batch_of(batch)
    if schedule.flow and size != Batch():
        raise InputError("rate flow: gradient flow follows the population risk; a batch has no meaning there")
    times = _times(time, size)
    require_known("method", method, METHODS)
    require_in("accuracy", accuracy, "[1e-11, 1)")
    name, begin = (start.branch, start.moments(-1)) if isinstance(start, Dynamics) else start_of(problem, start)
    events = dict(events or {})
    known = [key for key in block_columns(problem, begin.overlaps(problem)) if not key.startswith("V")]
    for overlap, value in events.items():
        require_known("overlap", overlap, known, "events")
        require_in(overlap, value, "(-inf, inf)")
    if events and size.share is not None:
        raise InputError("events are located in continuous time, and batches of order d move by steps: leave one out")
    return _Descent(problem, schedule, size, times, name, begin, events, method).refined(accuracy)


def _times(time: Any, batch: Batch) -> np.ndarray:
    """Output times."""
    try:
        given = np.atleast_1d(np.asarray(time, float))
    except (TypeError, ValueError):
        raise InputError(f"time = {time!r}: a number, or increasing numbers, are expected") from None
    if given.ndim != 1 or not np.isfinite(given).all() or not len(given):
        raise InputError(f"time = {time!r}: a number, or increasing numbers, are expected")
    if len(given) == 1:
        require_in("time", float(given[0]), "(0, inf)")
        end = float(given[0])
        given = np.arange(end + 1) if batch.share is not None else np.linspace(0.0, end, _OUTPUTS)
    if np.any(np.diff(given) <= 0):
        raise InputError(f"time = {time!r} does not increase; increasing numbers are expected")
    require_in("time", float(given[0]), "[0, inf)")
    if batch.share is not None and np.any(given != np.round(given)):
        raise InputError(f"time = {time!r}: it counts steps where batches are of order d; whole numbers are expected")
    return given


def _scales(problem: Problem, path: np.ndarray) -> np.ndarray:
    """For every packed moment the size of its kind at each time, (n, N): S, and what S allows T and P to be."""
    law, contexts = problem.law, problem.contexts
    z = np.sqrt(np.einsum("a,aii->i", law.weights, law.gram))
    of_T, of_P = max(float(z[:contexts].max()), 1e-3), float(z[contexts:].max())
    sizes = np.empty_like(path)
    for n, u in enumerate(path):
        found = Moments.unpack(u, problem)
        size = float(np.abs(found.S).max()) + 1e-300
        T, P = (np.full_like(block, np.sqrt(size) * of_z) for block, of_z in ((found.T, of_T), (found.P, of_P)))
        sizes[n] = Moments(np.full_like(found.S, size), T, P, np.maximum(np.abs(found.phi), 1.0)).pack()
    return sizes


@dataclass(frozen=True)
class _Descent:
    """A run of descent: from the moments of a start to the times, at a rate and a batch, with events, by a method."""

    problem: Problem
    schedule: Schedule
    batch: Batch
    times: np.ndarray
    start: str
    begin: Moments
    events: Mapping[str, float]
    method: str

    def flow(self, rule: AverageRule) -> Flow:
        """The equations of motion by a rule."""
        return Flow(self.problem, rule, np.inf if self.schedule.flow else self.batch.sentences)

    def refined(self, accuracy: float) -> Dynamics:
        """By finer rules until half widths are what is asked for: of the averages the change from rule to rule, of the
        time steps that against a larger tolerance, by the coarsest rule."""
        problem, schedule, times = self.problem, self.schedule, self.times
        rules = sizes_for(problem)
        tolerance = max(accuracy / 100, _LEAST_TOLERANCE)
        own: list[_Solved] = []
        steps = np.zeros((len(times), len(self.begin.pack())))
        used, status = rules[0], "accuracy_not_reached"
        widths: np.ndarray | None = None
        drift: _Solved | None = None
        moved: list[np.ndarray] = []
        for number, rule in enumerate(rules):
            known = f", error bar {widths.max():.1e}" if widths is not None else ""
            left(f"rule {number + 1} of at most {len(rules)}{known}")
            try:
                if not own and self.batch.share is None:
                    solved, drift, tolerance = self.stepped(rule, tolerance, accuracy)
                    steps = _difference(problem, solved, drift)
                else:
                    solved = self.solve(rule, tolerance)
            except TimeLimitError:
                if not own:
                    raise
                status = "time_limit"
                break
            used = rule
            if own:
                moved.insert(0, _difference(problem, solved, own[-1]))
            own.append(solved)
            if len(own) > 2 or (len(own) > 1 and rule is rules[-1]):
                last = moved[0]
                sizes = [each.max(initial=0.0) * np.ones(1) for each in moved[:2]]
                counted = ladder_half_width(sizes, _LEAST_COUNTS[: len(sizes)])
                factor = counted / max(float(last.max(initial=0.0)), 1e-300)
                widths = last * min(factor, 10.0) + _STEP_SAFETY * _padded(steps, len(last)) + _ROUNDING
                if widths.max() <= accuracy:
                    status = "converged"
                    break
                if own[-1].left and own[-2].left:  # the next one would, too
                    break
        final, before = own[-1], own[-2] if len(own) > 1 else own[-1]
        path, count = final.path, len(final.path)
        if final.left:
            status = "left_domain"
        half = np.full(path.shape, np.nan) if widths is None else _padded(widths, count) * _scales(problem, path)
        flow, coarse = self.flow(used), self.flow(rules[max(0, len(own) - 1 - _BEFORE)])
        constant = self.batch.share is None and schedule.is_constant
        speeds, loss = _moving(flow, schedule.rate, path) if constant else (None, _losses(used, path))
        loss_before = _losses(rules[len(own) - 2], before.path) if len(own) > 1 else loss
        loss_error = _changed(loss, loss_before, count)
        if drift is not None:
            loss_error += _changed(_losses(rules[0], own[0].path), _losses(rules[0], drift.path), count)
        return Dynamics(
            problem=problem,
            start=self.start,
            rate=schedule,
            batch=self.batch,
            times=times[:count],
            path=path,
            half_widths=half,
            loss=loss,
            loss_error=loss_error,
            events=_timed(self.events, final, before, own[0], drift),
            plateaus=_plateaus(flow, coarse, schedule, times[:count], path, speeds),
            reached=_reached(flow, coarse, schedule, path[-1]) if constant and not final.left else None,
            status=status,
            integrator=used.describe(),
            method=final.method,
            evaluations=sum(rule.evaluations for rule in rules),
        )

    def stepped(self, rule: AverageRule, tolerance: float, accuracy: float) -> tuple[_Solved, _Solved, float]:
        """A trajectory, that of a tolerance thirty times as large, and the tolerance: smaller where what grows from
        little, as out of a plateau, asks for smaller steps, and not for finer averages."""
        solved, looser = self.solve(rule, tolerance), self.solve(rule, _LOOSER * tolerance)
        while tolerance > _LEAST_TOLERANCE and not solved.left:
            near = _STEP_SAFETY * np.max(_difference(self.problem, solved, looser)) <= accuracy / 2
            if near and not looser.left:
                break
            tolerance = max(tolerance / _LOOSER, _LEAST_TOLERANCE)
            solved, looser = self.solve(rule, tolerance), solved
        return solved, looser, tolerance

    def solve(self, rule: AverageRule, tolerance: float) -> _Solved:
        """By a rule for the averages and a tolerance of the time steps."""
        if self.batch.share is not None:
            return self.mapped(rule, self.batch.share)
        from scipy.integrate import solve_ivp

        problem, times, method = self.problem, self.times, self.method
        flow, u = self.flow(rule), self.begin.pack()
        try:
            flow.slope(self.begin, self.schedule(times[0]))
        except DomainError as error:
            raise InputError(f"start: {error}") from None
        if method == "auto":
            values = np.linalg.eigvals(flow.jacobian(u, self.schedule.rate))
            stiff = float(np.abs(values).max()) * (times[-1] - times[0]) > _STIFF
            method = "Radau" if stiff else "DOP853"

        def passing(name: str, value: float) -> Any:
            def function(_: float, at_u: np.ndarray) -> float:
                columns = block_columns(problem, Moments.unpack(at_u, problem).overlaps(problem))
                # What is between two steps may leave the domain where steps are large: it was passed somewhere there.
                return float(np.nan_to_num(columns[name] - value, nan=0.0))

            return function

        def slope(t: float, at_u: np.ndarray) -> np.ndarray:
            budget.check()
            return flow.packed(at_u, self.schedule(t))

        def size(_: float, at_u: np.ndarray) -> float:
            return float(np.max(np.abs(at_u) / largest)) - 1.0

        size.terminal = True  # type: ignore[attr-defined]
        largest = _DIVERGED * (1.0 + np.abs(u).max())
        with np.errstate(all="ignore"):
            found = solve_ivp(
                slope,
                (times[0], times[-1]),
                u,
                method=method,
                t_eval=times,
                rtol=max(tolerance, 100 * np.finfo(float).eps),
                atol=tolerance * 1e-2 * np.maximum(_scales(problem, u[None])[0], 1e-12),
                events=[*(passing(name, value) for name, value in self.events.items()), size],
            )
        path = found.y.T
        inside = np.isfinite(path).all(axis=1)
        path = path if inside.all() else path[: int(np.argmin(inside))]
        when = tuple(tuple(map(float, each)) for each in found.t_events[:-1])
        return _Solved(path, when, method, not found.success or len(path) < len(times))

    def mapped(self, rule: AverageRule, share: float) -> _Solved:
        """One step of the map for every unit of time."""
        flow, at_step, wanted = self.flow(rule), self.begin, set(self.times.astype(int).tolist())
        path, left_domain = [], False
        for number in range(int(self.times[0]), int(self.times[-1]) + 1):
            budget.check()
            try:
                following = flow.step(at_step, self.schedule(float(number)), share)
            except DomainError:
                left_domain = True
                break
            if number in wanted:
                path.append(at_step.pack())
            at_step = following
        if not path:
            raise InputError("start: these moments are those of no weights")
        return _Solved(np.array(path), (), "map", left_domain or len(path) < len(self.times))


def _padded(values: np.ndarray, count: int) -> np.ndarray:
    """Of the first `count` times; not numbers at those that were not reached."""
    found = np.full((count, *values.shape[1:]), np.nan)
    shared = min(count, len(values))
    found[:shared] = values[:shared]
    return found


def _difference(problem: Problem, one: _Solved, other: _Solved) -> np.ndarray:
    """Of two trajectories at the times that both reached, in units of `_scales`."""
    count = min(len(one.path), len(other.path))
    return np.abs(one.path[:count] - other.path[:count]) / _scales(problem, one.path[:count])


def _timed(
    events: Mapping[str, float], final: _Solved, before: _Solved, first: _Solved, looser: _Solved | None
) -> tuple[Event, ...]:
    """With half widths: the change from the rule before, and that with the tolerance."""
    found = []
    for number, (name, value) in enumerate(events.items()):
        own, other = final.events[number], before.events[number]
        pairs = (first.events[number], looser.events[number]) if looser is not None else ((), ())
        for place, time in enumerate(own):
            error = 1.5 * abs(time - other[place]) if place < len(other) else np.nan
            if place < min(map(len, pairs)):
                error += 1.5 * abs(pairs[0][place] - pairs[1][place])
            found.append(Event(name, value, time, error))
    return tuple(sorted(found, key=lambda event: event.time))


def _moving(flow: Flow, rate: float, path: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """d moments / dt, (n, N), and E[loss], (n,), of a path."""
    found = [flow.moving(Moments.unpack(u, flow.problem), rate) for u in path]
    return np.array([slope.pack() for slope, _ in found]), np.array([loss for _, loss in found])


def _losses(rule: AverageRule, path: np.ndarray) -> np.ndarray:
    """E[loss] of a path."""
    return np.array([rule(Moments.unpack(u, rule.problem).overlaps(rule.problem)).loss for u in path])


def _changed(loss: np.ndarray, other: np.ndarray, count: int) -> np.ndarray:
    """Half widths of the loss at `count` times, not numbers where one of the two ends before."""
    return 1.5 * np.abs(_padded(loss, count) - _padded(other, count))


def _plateaus(
    flow: Flow, coarse: Flow, schedule: Schedule, times: np.ndarray, path: np.ndarray, speeds: np.ndarray | None
) -> tuple[Plateau, ...]:
    """Where the speed has a minimum between the start and the end, and what follows is ten times as fast."""
    if len(times) < 5 or speeds is None:
        return ()
    scales = _scales(flow.problem, path)
    speed = np.linalg.norm(speeds / scales, axis=1)
    found = []
    n = 1
    while n < len(times) - 1:
        after = speed[n:].max()
        if speed[n] <= speed[n - 1] and speed[n] <= speed[n + 1] and speed[n] < _SLOW * after:
            fast = np.flatnonzero(~(speed < _SLOW * after))
            first = int(fast[fast < n].max(initial=-1)) + 1
            last = int(fast[fast > n].min(initial=len(times))) - 1
            n = first + int(np.argmin(speed[first : last + 1]))
            point = _beside((coarse, flow), schedule, path[n], scales[n], _BESIDE)
            if last < len(times) - 1:
                found.append(Plateau(float(times[first]), float(times[last]), point))
            n = last
        n += 1
    return tuple(found)


def _reached(flow: Flow, coarse: Flow, schedule: Schedule, u: np.ndarray) -> StationaryPoint | None:
    """The stable stationary point next to the end."""
    point = _beside((coarse, flow), schedule, u, None, _NEAR)
    return point if point is not None and point.stable else None


def _beside(
    flows: tuple[Flow, Flow], schedule: Schedule, u: np.ndarray, scale: np.ndarray | None, within: float
) -> StationaryPoint | None:
    """The stationary point within so much of packed moments, in units of a scale, that of the point itself where there
    is none: by a coarse rule first, whose point may be twice as far."""
    found = u
    for flow, most in zip(flows, (2 * within, within), strict=True):
        point = settled(flow, found, schedule.rate)
        if point is None:
            return None
        found = point
        unit = np.maximum(_scales(flow.problem, found[None])[0], 1e-12) if scale is None else scale
        if not np.abs((found - u) / unit).max() <= most:
            return None
    return at(flow, found, schedule, np.full_like(u, np.nan))
