"""One-pass descent in time: overlaps with error bars, events, plateaus, and the stationary point at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...base import budget, presenting
from ...base.deprecation import DeprecatedName, renamed_attribute
from ...base.errors import DomainError, InputError, TimeLimitError, require_in, require_known
from ...base.options import AlgorithmOptions
from ...base.presenting import DatasetResult, Result
from ...base.progress import progress_step, report_remaining
from ...integration.estimates import rule_sequence_error
from ...problems.columns import block_columns
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem, check_is_problem
from ...saddle_point import observables
from ...saddle_point.starts import name_branch
from .averages import AverageRule, average_rules_for
from .flow import Flow, require_closed_dynamics
from .schedule import Batch, Schedule, parse_batch, parse_schedule
from .state import Moments, named_moments
from .stationary import StationaryPoint, find_stationary, stationary_point_at

METHODS = ("auto", "DOP853", "RK45", "Radau", "BDF", "LSODA")
_TOLERANCE_ROUNDING = 3e-14  # relative tolerance of time steps that rounding allows
_MOMENT_ROUNDING = 2e-13  # of moments, relative to their size
_LEAST_COUNTS = (0.5, 0.0)  # least factors of the last two changes from rule to rule in error bars


@dataclass(frozen=True)
class DescentOptions(AlgorithmOptions):
    """Options of the integration of one-pass descent in time.

    Attributes:
        output_times: number of output times where only the end is given.
        stiffness: spectral radius times the time of integration, above which a stiff method is used.
        tolerance_ratio: ratio of the tolerances whose results give the error bar of time steps.
        divergence_factor: size of moments relative to the start at which descent diverges.
        end_distance: distance of the end from a stationary point, relative to its moments, up to which it is reached.
        plateau_distance: the same for a plateau, where the slowest mode has not decayed.
        plateau_speed: speed relative to the largest that follows, below which there is a plateau.
        coarse_rules_back: rules before the last one, by which stationary points are located first.
        metric_nodes: nodes for the test error at one time.
        step_safety: factor of the error bar of time steps.
    """

    output_times: int = 101
    stiffness: float = 2e3
    tolerance_ratio: float = 30.0
    divergence_factor: float = 1e6
    end_distance: float = 0.1
    plateau_distance: float = 0.2
    plateau_speed: float = 0.1
    coarse_rules_back: int = 3
    metric_nodes: float = 2e4
    step_safety: float = 1.5


@dataclass(frozen=True)
class Event:
    """A time at which an overlap passes a value: its name in tables, the value, the time and its error bar."""

    name: str
    value: float
    time: float
    error: float


@dataclass(frozen=True)
class Plateau:
    """A plateau: an interval in which descent is ten times slower than later, close to an unstable stationary point.

    Attributes:
        begin, end: times.
        point: the stationary point close to the slowest moments; None where Newton's method finds none.
    """

    begin: float
    end: float
    point: StationaryPoint | None


@dataclass(frozen=True, repr=False)
class Dynamics(Result, DatasetResult):
    """A trajectory of one-pass descent from a start.

    Attributes:
        start: its name; rate, batch: of descent; times: of output, (n,), in steps over d (steps, where batches are of
            order d).
        path: packed moments at the times, (n, N), see `Moments`; error_bars: their error bars.
        loss, loss_error: E[loss] of a fresh sample at the times, without the penalty, (n,).
        events, plateaus: in order of time; reached: the stable stationary point close to the end, or None.
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
    error_bars: np.ndarray
    loss: np.ndarray
    loss_error: np.ndarray
    events: tuple[Event, ...]
    plateaus: tuple[Plateau, ...]
    reached: StationaryPoint | None
    status: str
    integrator: Mapping[str, Any]
    method: str
    evaluations: int

    half_widths = renamed_attribute("half_widths", DeprecatedName("error_bars", "0.1.0", "0.3.0"))

    @property
    def success(self) -> bool:
        """Whether the error bars are below the accuracy up to the end."""
        return self.status == "converged"

    @property
    def advice(self) -> str:
        """The reason of a failure, and what to try; empty if it converged."""
        return {
            "converged": "",
            "accuracy_not_reached": "the error bars are larger than the accuracy asked; ask for a larger --accuracy or "
            "less time",
            "left_domain": f"descent diverges after t = {self.times[-1]:.6g}; try a smaller --rate",
            "time_limit": "the time limit ended the computation; what is shown has the error bars given",
        }[self.status]

    def moments(self, number: int) -> Moments:
        """Return the moments at an output time, by its place."""
        return Moments.unpack(self.path[number], self.problem)

    @cached_property
    def overlaps(self) -> tuple[Overlaps, ...]:
        """The overlaps at the times; V is the identity, as descent does not have it."""
        return tuple(self.moments(n).overlaps(self.problem) for n in range(len(self.times)))

    @cached_property
    def overlap_errors(self) -> tuple[Overlaps, ...]:
        """The error bars of q, m, theta and phi at the times: overlaps are sums of moments with positive weights."""
        parts = (Moments.unpack(widths, self.problem) for widths in self.error_bars)
        return tuple(part.overlaps(self.problem) for part in parts)

    @property
    def branch(self) -> str:
        """The branch at the end: semantic, positional, mixed or uninformed."""
        return name_branch(self.overlaps[-1])

    @cached_property
    def test_error(self) -> np.ndarray:
        """The test error at the times, (n,); NaN without a metric."""
        return self._test_errors[0]

    @cached_property
    def test_error_error(self) -> np.ndarray:
        """The error bars of the test error, due to the rule for the metric and to the overlaps, (n,)."""
        return self._test_errors[1]

    @cached_property
    def _test_errors(self) -> tuple[np.ndarray, np.ndarray]:
        values, errors = (np.full(len(self.times), np.nan) for _ in range(2))
        if not self.problem.solver.metric.HAS_METRIC:
            return values, errors
        nodes = DescentOptions.current().metric_nodes
        for n, overlaps in enumerate(self.overlaps):
            try:
                rule = observables.metric_rule(self.problem, overlaps, nodes)
                values[n] = observables.average_metric(self.problem, overlaps, rule)
                moved = Moments.unpack(self.path[n] + self.error_bars[n], self.problem).overlaps(self.problem)
                errors[n] = 1.5 * abs(values[n] - observables.average_metric(self.problem, overlaps, rule.coarser_rule))
                errors[n] += abs(values[n] - observables.average_metric(self.problem, moved, rule))
            except (DomainError, np.linalg.LinAlgError):
                continue  # the fields have no density, or error bars extend outside the domain
        return values, errors

    def to_pandas(self) -> Any:
        """Return a pandas data frame with a row for each time."""
        return presenting.to_frame(self)

    def plot(self, path: str | Path | None = None, **options: Any) -> Any:
        """Return a matplotlib figure of overlaps and errors against time.

        Args:
            path: file to write, or None.
            options: of the figure.
        """
        return presenting.plot(self, path, **options)


@dataclass(frozen=True)
class _Trajectory:
    """A trajectory by one rule and one tolerance: moments at the times before it ends, and times of events."""

    path: np.ndarray
    events: tuple[tuple[float, ...], ...]
    method: str
    left_domain: bool


@progress_step("dynamics")
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
    """Integrate one-pass stochastic gradient descent of infinite d in time (docs/theory.md section 19).

    Args:
        problem: the problem.
        rate: eta, a `Schedule` or a text as of `--rate`: "4", "4,power=0.5,scale=10", "4,warmup=5", or "flow" for
            gradient flow on the population risk, whose time is the sum of rates.
        time: steps over d at the end, or an increasing list of output times from that of the start on. With batches of
            order d, a whole number of steps.
        start: "random" (W standard normal: overlaps vanish), a named start, a mapping of overlaps as
            {"q": 0.125, "m_1": 0.1}, `Moments`, or another `Dynamics`, whose end is used.
        batch: samples of a step, or a fraction of d as "0.5d" with a rate of eta d: descent is then a map.
        accuracy: required error bar of the moments at all times, relative to the largest of each kind.
        method: of SciPy's `solve_ivp`, "auto" for DOP853 or, where the equations are stiff, Radau.
        events: name of an overlap in tables -> value; the times at which it passes the value are located.

    Raises:
        InputError: the dynamics of the problem do not close, or an argument is out of range; the message has the
            allowed range.

    Example:
        >>> run = sf.dynamics(sf.problem("ridge_regression"), rate=0.5, time=20)
        >>> run.status, round(float(run.test_error[-1]), 4)
        ('converged', 0.3342)
    """
    check_is_problem(problem)
    require_closed_dynamics(problem)
    schedule, size = parse_schedule(rate), parse_batch(batch)
    if schedule.flow and size != Batch():
        raise InputError("rate flow: gradient flow follows the population risk; a batch has no meaning there")
    times = _parse_times(time, size)
    require_known("method", method, METHODS)
    require_in("accuracy", accuracy, "[1e-11, 1)")
    name, begin = (start.branch, start.moments(-1)) if isinstance(start, Dynamics) else named_moments(problem, start)
    events = dict(events or {})
    known = [key for key in block_columns(problem, begin.overlaps(problem)) if not key.startswith("V")]
    for overlap, value in events.items():
        require_known("overlap", overlap, known, "events")
        require_in(overlap, value, "(-inf, inf)")
    if events and size.share is not None:
        raise InputError("events are located in continuous time, and batches of order d move by steps: leave one out")
    return _Integration(problem, schedule, size, times, name, begin, events, method).refine(accuracy)


def _parse_times(time: Any, batch: Batch) -> np.ndarray:
    """Return the output times."""
    try:
        given = np.atleast_1d(np.asarray(time, float))
    except (TypeError, ValueError):
        raise InputError(f"time = {time!r}: a number, or increasing numbers, are expected") from None
    if given.ndim != 1 or not np.isfinite(given).all() or not len(given):
        raise InputError(f"time = {time!r}: a number, or increasing numbers, are expected")
    if len(given) == 1:
        require_in("time", float(given[0]), "(0, inf)")
        end = float(given[0])
        given = (
            np.arange(end + 1)
            if batch.share is not None
            else np.linspace(0.0, end, DescentOptions.current().output_times)
        )
    if np.any(np.diff(given) <= 0):
        raise InputError(f"time = {time!r} does not increase; increasing numbers are expected")
    require_in("time", float(given[0]), "[0, inf)")
    if batch.share is not None and np.any(given != np.round(given)):
        raise InputError(f"time = {time!r}: it counts steps where batches are of order d; whole numbers are expected")
    return given


def _scales(problem: Problem, path: np.ndarray) -> np.ndarray:
    """Return for every packed moment the size of its kind at each time, (n, N): S, and bounds of T and P by S."""
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
class _Integration:
    """An integration of descent from the moments of a start to the output times, with a rate, a batch and events."""

    problem: Problem
    schedule: Schedule
    batch: Batch
    times: np.ndarray
    start: str
    begin: Moments
    events: Mapping[str, float]
    method: str

    def flow_by(self, rule: AverageRule) -> Flow:
        """Return the equations of motion by a rule of integration."""
        return Flow(self.problem, rule, np.inf if self.schedule.flow else self.batch.sentences)

    def refine(self, accuracy: float) -> Dynamics:
        """Return descent by finer and finer rules, until error bars are below the accuracy.

        Error bars are changes from rule to rule, and changes by a larger tolerance of time steps, by the coarsest rule.
        """
        options = DescentOptions.current()
        problem, schedule, times = self.problem, self.schedule, self.times
        rules = average_rules_for(problem)
        tolerance = max(accuracy / 100, _TOLERANCE_ROUNDING)
        own: list[_Trajectory] = []
        steps = np.zeros((len(times), len(self.begin.pack())))
        used, status = rules[0], "accuracy_not_reached"
        widths: np.ndarray | None = None
        drift: _Trajectory | None = None
        moved: list[np.ndarray] = []
        for number, rule in enumerate(rules):
            known = f", error bar {widths.max():.1e}" if widths is not None else ""
            report_remaining(f"rule {number + 1} of at most {len(rules)}{known}")
            try:
                if not own and self.batch.share is None:
                    solved, drift, tolerance = self.solve_with_checked_steps(rule, tolerance, accuracy)
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
                counted = rule_sequence_error(sizes, _LEAST_COUNTS[: len(sizes)])
                factor = counted / max(float(last.max(initial=0.0)), 1e-300)
                widths = (
                    last * min(factor, 10.0) + options.step_safety * _pad_with_nan(steps, len(last)) + _MOMENT_ROUNDING
                )
                if widths.max() <= accuracy:
                    status = "converged"
                    break
                if own[-1].left_domain and own[-2].left_domain:  # as the next one would
                    break
        final, before = own[-1], own[-2] if len(own) > 1 else own[-1]
        path, count = final.path, len(final.path)
        if final.left_domain:
            status = "left_domain"
        half = np.full(path.shape, np.nan) if widths is None else _pad_with_nan(widths, count) * _scales(problem, path)
        flow, coarse = self.flow_by(used), self.flow_by(rules[max(0, len(own) - 1 - options.coarse_rules_back)])
        constant = self.batch.share is None and schedule.is_constant
        speeds, loss = _speeds_and_losses(flow, schedule.rate, path) if constant else (None, _losses(used, path))
        loss_before = _losses(rules[len(own) - 2], before.path) if len(own) > 1 else loss
        loss_error = _loss_errors(loss, loss_before, count)
        if drift is not None:
            loss_error += _loss_errors(_losses(rules[0], own[0].path), _losses(rules[0], drift.path), count)
        return Dynamics(
            problem=problem,
            start=self.start,
            rate=schedule,
            batch=self.batch,
            times=times[:count],
            path=path,
            error_bars=half,
            loss=loss,
            loss_error=loss_error,
            events=_locate_events(self.events, final, before, own[0], drift),
            plateaus=_find_plateaus(flow, coarse, schedule, times[:count], path, speeds),
            reached=_find_end_point(flow, coarse, schedule, path[-1]) if constant and not final.left_domain else None,
            status=status,
            integrator=used.describe(),
            method=final.method,
            evaluations=sum(rule.evaluations for rule in rules),
        )

    def solve_with_checked_steps(
        self, rule: AverageRule, tolerance: float, accuracy: float
    ) -> tuple[_Trajectory, _Trajectory, float]:
        """Return a trajectory, that of a larger tolerance, and a tolerance with time steps fine enough.

        Growth from small values, as out of a plateau, needs smaller steps, and not finer averages.

        Args:
            rule: rule for the averages.
            tolerance: of time steps, at first.
            accuracy: required error bar of moments, relative.
        """
        options = DescentOptions.current()
        ratio = options.tolerance_ratio
        solved, looser = self.solve(rule, tolerance), self.solve(rule, ratio * tolerance)
        while tolerance > _TOLERANCE_ROUNDING and not solved.left_domain:
            near = options.step_safety * np.max(_difference(self.problem, solved, looser)) <= accuracy / 2
            if near and not looser.left_domain:
                break
            tolerance = max(tolerance / ratio, _TOLERANCE_ROUNDING)
            solved, looser = self.solve(rule, tolerance), solved
        return solved, looser, tolerance

    def solve(self, rule: AverageRule, tolerance: float) -> _Trajectory:
        """Return the trajectory by a rule and a tolerance.

        Args:
            rule: rule for the averages.
            tolerance: of time steps.
        """
        options = DescentOptions.current()
        if self.batch.share is not None:
            return self.iterate_map(rule, self.batch.share)
        from scipy.integrate import solve_ivp

        problem, times, method = self.problem, self.times, self.method
        flow, u = self.flow_by(rule), self.begin.pack()
        try:
            flow.slope(self.begin, self.schedule(times[0]))
        except DomainError as error:
            raise InputError(f"start: {error}") from None
        if method == "auto":
            values = np.linalg.eigvals(flow.jacobian(u, self.schedule.rate))
            stiff = float(np.abs(values).max()) * (times[-1] - times[0]) > options.stiffness
            method = "Radau" if stiff else "DOP853"

        def crossing_event(name: str, value: float) -> Any:
            """Return the event function of an overlap that passes a value.

            Args:
                name: of the overlap.
                value: the value.
            """

            def difference(_: float, at_u: np.ndarray) -> float:
                """Return the overlap less the value.

                Args:
                    at_u: packed moments.
                """
                columns = block_columns(problem, Moments.unpack(at_u, problem).overlaps(problem))
                # Interpolation of a large step may leave the domain: the value is passed somewhere there.
                return float(np.nan_to_num(columns[name] - value, nan=0.0))

            return difference

        def time_derivative(t: float, at_u: np.ndarray) -> np.ndarray:
            """Return d moments / dt.

            Args:
                t: time.
                at_u: packed moments.
            """
            budget.check_time_limit()
            return flow.packed_slope(at_u, self.schedule(t))

        def divergence_event(_: float, at_u: np.ndarray) -> float:
            """Return the size of moments relative to the largest accepted one, less 1.

            Args:
                at_u: packed moments.
            """
            return float(np.max(np.abs(at_u) / largest)) - 1.0

        divergence_event.terminal = True  # type: ignore[attr-defined]
        largest = options.divergence_factor * (1.0 + np.abs(u).max())
        with np.errstate(all="ignore"):
            found = solve_ivp(
                time_derivative,
                (times[0], times[-1]),
                u,
                method=method,
                t_eval=times,
                rtol=max(tolerance, 100 * np.finfo(float).eps),
                atol=tolerance * 1e-2 * np.maximum(_scales(problem, u[None])[0], 1e-12),
                events=[*(crossing_event(name, value) for name, value in self.events.items()), divergence_event],
            )
        path = found.y.T
        inside = np.isfinite(path).all(axis=1)
        path = path if inside.all() else path[: int(np.argmin(inside))]
        when = tuple(tuple(map(float, each)) for each in found.t_events[:-1])
        return _Trajectory(path, when, method, not found.success or len(path) < len(times))

    def iterate_map(self, rule: AverageRule, share: float) -> _Trajectory:
        """Return the trajectory of the map of batches of order d, a step for every unit of time.

        Args:
            rule: rule for the averages.
            share: samples of a batch over d.
        """
        flow, at_step, wanted = self.flow_by(rule), self.begin, set(self.times.astype(int).tolist())
        path, left_domain = [], False
        for number in range(int(self.times[0]), int(self.times[-1]) + 1):
            budget.check_time_limit()
            try:
                following = flow.step(at_step, self.schedule(float(number)), share)
            except DomainError:
                left_domain = True
                break
            if number in wanted:
                path.append(at_step.pack())
            at_step = following
        if not path:
            raise InputError("start: no weights have these moments")
        return _Trajectory(np.array(path), (), "map", left_domain or len(path) < len(self.times))


def _pad_with_nan(values: np.ndarray, count: int) -> np.ndarray:
    """Return values at the first `count` times, NaN beyond the last value."""
    found = np.full((count, *values.shape[1:]), np.nan)
    shared = min(count, len(values))
    found[:shared] = values[:shared]
    return found


def _difference(problem: Problem, one: _Trajectory, other: _Trajectory) -> np.ndarray:
    """Return the difference of two trajectories at their common times, in units of `_scales`."""
    count = min(len(one.path), len(other.path))
    return np.abs(one.path[:count] - other.path[:count]) / _scales(problem, one.path[:count])


def _locate_events(
    events: Mapping[str, float], final: _Trajectory, before: _Trajectory, first: _Trajectory, looser: _Trajectory | None
) -> tuple[Event, ...]:
    """Return events with error bars: the change from the rule before, and that with the tolerance."""
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


def _speeds_and_losses(flow: Flow, rate: float, path: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return d moments / dt, (n, N), and E[loss], (n,), along a path."""
    found = [flow.slope_and_loss(Moments.unpack(u, flow.problem), rate) for u in path]
    return np.array([slope.pack() for slope, _ in found]), np.array([loss for _, loss in found])


def _losses(rule: AverageRule, path: np.ndarray) -> np.ndarray:
    """Return E[loss] along a path."""
    return np.array([rule(Moments.unpack(u, rule.problem).overlaps(rule.problem)).loss for u in path])


def _loss_errors(loss: np.ndarray, other: np.ndarray, count: int) -> np.ndarray:
    """Return error bars of the loss at `count` times, NaN where one of the two trajectories has ended."""
    return 1.5 * np.abs(_pad_with_nan(loss, count) - _pad_with_nan(other, count))


def _find_plateaus(
    flow: Flow, coarse: Flow, schedule: Schedule, times: np.ndarray, path: np.ndarray, speeds: np.ndarray | None
) -> tuple[Plateau, ...]:
    """Return the plateaus: minima of the speed inside the interval that are followed by ten times the speed."""
    options = DescentOptions.current()
    if len(times) < 5 or speeds is None:
        return ()
    scales = _scales(flow.problem, path)
    speed = np.linalg.norm(speeds / scales, axis=1)
    found = []
    n = 1
    while n < len(times) - 1:
        after = speed[n:].max()
        if speed[n] <= speed[n - 1] and speed[n] <= speed[n + 1] and speed[n] < options.plateau_speed * after:
            fast = np.flatnonzero(~(speed < options.plateau_speed * after))
            first = int(fast[fast < n].max(initial=-1)) + 1
            last = int(fast[fast > n].min(initial=len(times))) - 1
            n = first + int(np.argmin(speed[first : last + 1]))
            point = _find_point_near((coarse, flow), schedule, path[n], scales[n], options.plateau_distance)
            if last < len(times) - 1:
                found.append(Plateau(float(times[first]), float(times[last]), point))
            n = last
        n += 1
    return tuple(found)


def _find_end_point(flow: Flow, coarse: Flow, schedule: Schedule, u: np.ndarray) -> StationaryPoint | None:
    """Return the stable stationary point close to the end, or None."""
    point = _find_point_near((coarse, flow), schedule, u, None, DescentOptions.current().end_distance)
    return point if point is not None and point.stable else None


def _find_point_near(
    flows: tuple[Flow, Flow], schedule: Schedule, u: np.ndarray, scale: np.ndarray | None, within: float
) -> StationaryPoint | None:
    """Return the stationary point within a distance of packed moments, or None.

    The unit is a scale, by default that of the point. By a coarse rule, which comes first, it may be twice as far.
    """
    found = u
    for flow, most in zip(flows, (2 * within, within), strict=True):
        point = find_stationary(flow, found, schedule.rate)
        if point is None:
            return None
        found = point
        unit = np.maximum(_scales(flow.problem, found[None])[0], 1e-12) if scale is None else scale
        if not np.abs((found - u) / unit).max() <= most:
            return None
    return stationary_point_at(flow, found, schedule, np.full_like(u, np.nan))
