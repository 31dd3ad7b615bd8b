"""One-pass descent in time: overlaps with error bars, events, plateaus, and the stationary point at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...base import budget, presenting
from ...base.deprecation import DeprecatedName, deprecated_attribute
from ...base.errors import DomainError, InputError, TimeLimitError, require_in_interval, require_known_name
from ...base.options import AlgorithmOptions
from ...base.presenting import DatasetResult, PresentableResult
from ...base.progress import progress_step, report_remaining_work
from ...integration.estimates import error_bar_of_rule_sequence
from ...problems.columns import overlap_entries_by_column
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem, require_problem
from ...saddle_point import observables
from ...saddle_point.starts import name_branch
from .averages import GradientAverageRule, gradient_average_rules
from .flow import EquationsOfMotion, require_closed_dynamics
from .schedule import BatchSize, LearningRateSchedule, parse_batch_size, parse_learning_rate
from .state import Moments, moments_of_start
from .stationary import StationaryPoint, find_stationary_moments, stationary_point_with_spectrum

METHODS = ("auto", "DOP853", "RK45", "Radau", "BDF", "LSODA")
_TOLERANCE_ROUNDING = 3e-14  # relative tolerance of time steps that rounding allows
_MOMENT_ROUNDING = 2e-13  # of moments, relative to their size
_LEAST_COUNTS = (0.5, 0.0)  # least factors of the last two changes from rule to rule in error bars


@dataclass(frozen=True)
class DescentOptions(AlgorithmOptions):
    """Options of the integration of one-pass descent in time.

    Attributes:
        output_times: number of output times where only the end is given.
        stiffness: spectral radius of the Jacobian times the time of integration above which a stiff method is used.
        tolerance_ratio: ratio of the two tolerances of time steps whose results are compared.
        divergence_factor: size of the moments, relative to the start, at which descent counts as diverged.
        end_distance: distance of the last moments from a stationary point, relative to it, up to which it is reached.
        plateau_distance: distance of a plateau from its stationary point, relative to that point's moments.
        plateau_speed: speed, relative to the largest that follows, below which there is a plateau.
        coarse_rules_back: number of quadrature rules before the last one at which stationary points are located first.
        metric_nodes: number of quadrature nodes for the test error at one time.
        step_safety: factor by which the error bar of time steps is multiplied.
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
class OverlapEvent:
    """A time at which an overlap passes a given value.

    Attributes:
        name, value: name of the overlap, and the value that it passes.
        time, error: the time and its error bar.
    """

    name: str
    value: float
    time: float
    error: float


@dataclass(frozen=True)
class Plateau:
    """A plateau: an interval in which descent is ten times slower than later, close to an unstable stationary point.

    Attributes:
        begin, end: times at which the plateau begins and ends.
        point: the stationary point close to the moments of lowest speed; None where Newton's method finds none.
    """

    begin: float
    end: float
    point: StationaryPoint | None


@dataclass(frozen=True, repr=False)
class Dynamics(PresentableResult, DatasetResult):
    """A trajectory of one-pass descent from a start.

    Attributes:
        start: name of the start; rate, batch: learning rate and batch size.
        times: output times, (n,), in steps over d (in steps, if batches are of order d).
        path: packed moments at the times, (n, N), see `Moments`; error_bars: error bars of the packed moments.
        loss, loss_error: E[loss] of a fresh sample at the times, without the penalty, (n,).
        events, plateaus: in order of time; reached: the stable stationary point close to the end, or None.
        status: "converged" (to the accuracy), "accuracy_not_reached", "left_domain" or "time_limit".
        integrator: quadrature rule of the averages, as in JSON; method: method of the time steps; evaluations: number
            of evaluations of the averages.

    Example:
        >>> run = sf.dynamics(sf.problem("ridge_regression"), rate=0.5, time=[0, 1, 2])
        >>> [round(float(at.theta[0, 0, 0]), 4) for at in run.overlaps]
        [0.0, 0.3846, 0.6065]
    """

    problem: Problem
    start: str
    rate: LearningRateSchedule
    batch: BatchSize
    times: np.ndarray
    path: np.ndarray
    error_bars: np.ndarray
    loss: np.ndarray
    loss_error: np.ndarray
    events: tuple[OverlapEvent, ...]
    plateaus: tuple[Plateau, ...]
    reached: StationaryPoint | None
    status: str
    integrator: Mapping[str, Any]
    method: str
    evaluations: int

    half_widths = deprecated_attribute("half_widths", DeprecatedName("error_bars", "0.1.0", "0.3.0"))

    @property
    def success(self) -> bool:
        """Whether the error bars of the moments are below the required accuracy at all output times."""
        return self.status == "converged"

    @property
    def advice(self) -> str:
        """The reason why the integration failed, and what to try; empty if it converged."""
        return {
            "converged": "",
            "accuracy_not_reached": "the error bars are larger than the required accuracy; allow larger ones "
            "(--accuracy) or a shorter --time",
            "left_domain": f"descent diverges after t = {self.times[-1]:.6g}; try a smaller --rate",
            "time_limit": "the time limit ended the computation; the results so far have the error bars given",
        }[self.status]

    def moments(self, number: int) -> Moments:
        """Return the second moments of the weights at one output time, given by its index."""
        return Moments.unpack(self.path[number], self.problem)

    @cached_property
    def overlaps(self) -> tuple[Overlaps, ...]:
        """The overlaps q, m and theta at the output times; V, which has no meaning in descent, is the identity."""
        return tuple(self.moments(n).overlaps(self.problem) for n in range(len(self.times)))

    @cached_property
    def overlap_errors(self) -> tuple[Overlaps, ...]:
        """The error bars of the overlaps q, m and theta, and of trained numbers, at the output times."""
        parts = (Moments.unpack(widths, self.problem) for widths in self.error_bars)
        return tuple(part.overlaps(self.problem) for part in parts)

    @property
    def branch(self) -> str:
        """The name of the branch of solutions to which the last overlaps belong, such as informed."""
        return name_branch(self.problem, self.overlaps[-1])

    @cached_property
    def test_error(self) -> np.ndarray:
        """The test error at every output time; NaN for a model without a test-error metric."""
        return self._test_errors[0]

    @cached_property
    def test_error_error(self) -> np.ndarray:
        """The error bar of the test error at every output time."""
        return self._test_errors[1]

    @cached_property
    def _test_errors(self) -> tuple[np.ndarray, np.ndarray]:
        values, errors = (np.full(len(self.times), np.nan) for _ in range(2))
        if not self.problem.solver.metric_functions.HAS_METRIC:
            return values, errors
        nodes = DescentOptions.current().metric_nodes
        for n, overlaps in enumerate(self.overlaps):
            try:
                rule = observables.metric_rule_with_node_budget(self.problem, overlaps, nodes)
                values[n] = observables.average_metric_by_quadrature(self.problem, overlaps, rule)
                moved = Moments.unpack(self.path[n] + self.error_bars[n], self.problem).overlaps(self.problem)
                errors[n] = 1.5 * abs(
                    values[n] - observables.average_metric_by_quadrature(self.problem, overlaps, rule.coarser_rule)
                )
                errors[n] += abs(values[n] - observables.average_metric_by_quadrature(self.problem, moved, rule))
            except (DomainError, np.linalg.LinAlgError):
                continue  # the fields have no density, or error bars extend outside the domain
        return values, errors

    def to_pandas(self) -> Any:
        """Return a pandas data frame with one row per output time."""
        return presenting.to_frame(self)

    def plot(self, path: str | Path | None = None, **options: Any) -> Any:
        """Return a matplotlib figure of overlaps and errors against time.

        Args:
            path: file of the figure, or None.
            options: options of the figure.
        """
        return presenting.plot(self, path, **options)


@dataclass(frozen=True)
class _DescentTrajectory:
    """A trajectory of descent by one quadrature rule and one tolerance of time steps.

    Attributes:
        path: packed moments, one row per output time.
        events: times at which each overlap of interest passes its value.
        method: method of the time steps.
        left_domain: whether the moments diverged, or left the domain of moments that weights can have.
    """

    path: np.ndarray
    events: tuple[tuple[float, ...], ...]
    method: str
    left_domain: bool


@progress_step("dynamics")
def dynamics(
    problem: Problem,
    rate: LearningRateSchedule | float | str,
    time: float | Sequence[float] | np.ndarray,
    start: Any = "random",
    *,
    batch: BatchSize | float | str = 1,
    accuracy: float = 1e-4,
    method: str = "auto",
    events: Mapping[str, float] | None = None,
) -> Dynamics:
    """Integrate one-pass stochastic gradient descent in time, for infinite d (docs/theory.md section 19).

    Args:
        problem: the problem.
        rate: learning rate eta, a number or a text in the form of `--rate`: "4", "4,power=0.5,scale=10", "4,warmup=5",
            or "flow" for gradient flow on the population risk, whose time is the sum of rates.
        time: last time, in steps over d, or an increasing list of output times, of which the first is that of the
            start. With batches of order d, a whole number of steps.
        start: "random" (W standard normal: overlaps vanish), a named start, a mapping of overlaps as
            {"q": 0.125, "m_1": 0.1}, `Moments`, or another `Dynamics`, whose last moments are used.
        batch: samples per step, or a fraction of d as "0.5d" with a rate of eta d: descent is then a map.
        accuracy: required error bar of the moments at all times, relative to the largest of each kind.
        method: method of SciPy's `solve_ivp`; "auto" is DOP853 or, if the equations are stiff, Radau.
        events: overlaps by their names in tables, with values; the times at which each passes its value are located.

    Raises:
        InputError: descent on the problem has no closed equations, or an argument is out of range; the message has the
            allowed range.

    Example:
        >>> run = sf.dynamics(sf.problem("ridge_regression"), rate=0.5, time=20)
        >>> run.status, round(float(run.test_error[-1]), 4)
        ('converged', 0.3342)
    """
    require_problem(problem)
    require_closed_dynamics(problem)
    schedule, size = parse_learning_rate(rate), parse_batch_size(batch)
    if schedule.flow and size != BatchSize():
        raise InputError("rate flow: gradient flow follows the population risk and has no batches; leave out the batch")
    times = _parse_output_times(time, size)
    require_known_name("method", method, METHODS)
    require_in_interval("accuracy", accuracy, "[1e-11, 1)")
    name, begin = (start.branch, start.moments(-1)) if isinstance(start, Dynamics) else moments_of_start(problem, start)
    events = dict(events or {})
    known = [key for key in overlap_entries_by_column(problem, begin.overlaps(problem)) if not key.startswith("V")]
    for overlap, value in events.items():
        require_known_name("overlap", overlap, known, "events")
        require_in_interval(overlap, value, "(-inf, inf)")
    if events and size.share is not None:
        raise InputError(
            "events cannot be located for batches of order d, for which time is counted in whole steps: leave out the "
            "events, or give a fixed number of samples as batch"
        )
    return _DescentIntegration(problem, schedule, size, times, name, begin, events, method).integrate_to_accuracy(
        accuracy
    )


def _parse_output_times(time: Any, batch: BatchSize) -> np.ndarray:
    """Return the output times from the last time or a list of times."""
    try:
        given = np.atleast_1d(np.asarray(time, float))
    except (TypeError, ValueError):
        raise InputError(f"time = {time!r}: a number, or increasing numbers, are expected") from None
    if given.ndim != 1 or not np.isfinite(given).all() or not len(given):
        raise InputError(f"time = {time!r}: a number, or increasing numbers, are expected")
    if len(given) == 1:
        require_in_interval("time", float(given[0]), "(0, inf)")
        end = float(given[0])
        given = (
            np.arange(end + 1)
            if batch.share is not None
            else np.linspace(0.0, end, DescentOptions.current().output_times)
        )
    if np.any(np.diff(given) <= 0):
        raise InputError(f"time = {time!r} does not increase; increasing numbers are expected")
    require_in_interval("time", float(given[0]), "[0, inf)")
    if batch.share is not None and np.any(given != np.round(given)):
        raise InputError(f"time = {time!r}: with batches of order d time counts steps; give whole numbers")
    return given


def _moment_scales(problem: Problem, path: np.ndarray) -> np.ndarray:
    """Return the scales by which packed moments along a trajectory are divided, in an array of the same shape.

    At each time the second moments of the weights share one scale, the largest of them. It also sets the scales of the
    moments with means and teacher.
    """
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
class _DescentIntegration:
    """An integration of descent in time, from the moments of a start to the output times."""

    problem: Problem
    schedule: LearningRateSchedule
    batch: BatchSize
    times: np.ndarray
    start: str
    begin: Moments
    events: Mapping[str, float]
    method: str

    def equations_of_motion(self, rule: GradientAverageRule) -> EquationsOfMotion:
        """Return the equations of motion of the moments, with averages by a given quadrature rule."""
        return EquationsOfMotion(self.problem, rule, np.inf if self.schedule.flow else self.batch.sentences)

    def integrate_to_accuracy(self, accuracy: float) -> Dynamics:
        """Integrate descent by finer and finer quadrature rules, until the error bars are below the accuracy.

        An error bar is the change from rule to rule, plus the change with the tolerance of time steps.
        """
        options = DescentOptions.current()
        problem, schedule, times = self.problem, self.schedule, self.times
        rules = gradient_average_rules(problem)
        tolerance = max(accuracy / 100, _TOLERANCE_ROUNDING)
        own: list[_DescentTrajectory] = []
        steps = np.zeros((len(times), len(self.begin.pack())))
        used, status = rules[0], "accuracy_not_reached"
        widths: np.ndarray | None = None
        drift: _DescentTrajectory | None = None
        moved: list[np.ndarray] = []
        for number, rule in enumerate(rules):
            known = f", error bar {widths.max():.1e}" if widths is not None else ""
            report_remaining_work(f"rule {number + 1} of at most {len(rules)}{known}")
            try:
                if not own and self.batch.share is None:
                    solved, drift, tolerance = self.integrate_with_converged_steps(rule, tolerance, accuracy)
                    steps = _scaled_trajectory_difference(problem, solved, drift)
                else:
                    solved = self.integrate_with_quadrature_rule(rule, tolerance)
            except TimeLimitError:
                if not own:
                    raise
                status = "time_limit"
                break
            used = rule
            if own:
                moved.insert(0, _scaled_trajectory_difference(problem, solved, own[-1]))
            own.append(solved)
            if len(own) > 2 or (len(own) > 1 and rule is rules[-1]):
                last = moved[0]
                sizes = [each.max(initial=0.0) * np.ones(1) for each in moved[:2]]
                counted = error_bar_of_rule_sequence(sizes, _LEAST_COUNTS[: len(sizes)])
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
        half = (
            np.full(path.shape, np.nan)
            if widths is None
            else _pad_with_nan(widths, count) * _moment_scales(problem, path)
        )
        flow, coarse = (
            self.equations_of_motion(used),
            self.equations_of_motion(rules[max(0, len(own) - 1 - options.coarse_rules_back)]),
        )
        constant = self.batch.share is None and schedule.is_constant
        speeds, loss = (
            _moment_derivatives_and_losses(flow, schedule.rate, path) if constant else (None, _mean_losses(used, path))
        )
        loss_before = _mean_losses(rules[len(own) - 2], before.path) if len(own) > 1 else loss
        loss_error = _loss_error_bars(loss, loss_before, count)
        if drift is not None:
            loss_error += _loss_error_bars(
                _mean_losses(rules[0], own[0].path), _mean_losses(rules[0], drift.path), count
            )
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
            events=_locate_overlap_events(self.events, final, before, own[0], drift),
            plateaus=_find_plateaus(flow, coarse, schedule, times[:count], path, speeds),
            reached=_find_stationary_point_at_end(flow, coarse, schedule, path[-1])
            if constant and not final.left_domain
            else None,
            status=status,
            integrator=used.describe_quadrature_rule(),
            method=final.method,
            evaluations=sum(rule.evaluations for rule in rules),
        )

    def integrate_with_converged_steps(
        self, rule: GradientAverageRule, tolerance: float, accuracy: float
    ) -> tuple[_DescentTrajectory, _DescentTrajectory, float]:
        """Reduce the tolerance of time steps until the trajectory changes by less than the accuracy.

        Args:
            rule: quadrature rule of the averages.
            tolerance: first tolerance of time steps.
            accuracy: required error bar of the moments, relative to their scales.

        Returns:
            The trajectory, the previous one with a larger tolerance, and the tolerance of the trajectory.
        """
        options = DescentOptions.current()
        ratio = options.tolerance_ratio
        solved, looser = (
            self.integrate_with_quadrature_rule(rule, tolerance),
            self.integrate_with_quadrature_rule(rule, ratio * tolerance),
        )
        while tolerance > _TOLERANCE_ROUNDING and not solved.left_domain:
            near = (
                options.step_safety * np.max(_scaled_trajectory_difference(self.problem, solved, looser))
                <= accuracy / 2
            )
            if near and not looser.left_domain:
                break
            tolerance = max(tolerance / ratio, _TOLERANCE_ROUNDING)
            solved, looser = self.integrate_with_quadrature_rule(rule, tolerance), solved
        return solved, looser, tolerance

    def integrate_with_quadrature_rule(self, rule: GradientAverageRule, tolerance: float) -> _DescentTrajectory:
        """Return the trajectory of descent by one quadrature rule and one tolerance of time steps.

        Args:
            rule: quadrature rule of the averages.
            tolerance: tolerance of time steps.
        """
        options = DescentOptions.current()
        if self.batch.share is not None:
            return self.iterate_steps_of_large_batches(rule, self.batch.share)
        from scipy.integrate import solve_ivp

        problem, times, method = self.problem, self.times, self.method
        flow, u = self.equations_of_motion(rule), self.begin.pack()
        try:
            flow.moment_derivatives(self.begin, self.schedule(times[0]))
        except DomainError as error:
            raise InputError(f"start: {error}") from None
        if method == "auto":
            values = np.linalg.eigvals(flow.jacobian(u, self.schedule.rate))
            stiff = float(np.abs(values).max()) * (times[-1] - times[0]) > options.stiffness
            method = "Radau" if stiff else "DOP853"

        def overlap_crossing_event(name: str, value: float) -> Any:
            """Return the event function whose root is the time at which an overlap passes a value.

            Args:
                name: name of the overlap.
                value: value to pass.
            """

            def overlap_minus_target_value(_: float, at_u: np.ndarray) -> float:
                """Return the overlap minus the value that it has to pass, at given packed moments."""
                columns = overlap_entries_by_column(problem, Moments.unpack(at_u, problem).overlaps(problem))
                # Interpolation of a large step may leave the domain: the value is passed somewhere there.
                return float(np.nan_to_num(columns[name] - value, nan=0.0))

            return overlap_minus_target_value

        def moment_time_derivative(t: float, at_u: np.ndarray) -> np.ndarray:
            """Return the time derivatives of packed moments at a time, which sets the learning rate.

            Args:
                t: time.
                at_u: packed moments.
            """
            budget.check_time_limit()
            return flow.packed_moment_derivatives(at_u, self.schedule(t))

        def divergence_event(_: float, at_u: np.ndarray) -> float:
            """Return a number that is zero where the largest of the packed moments counts as diverged."""
            return float(np.max(np.abs(at_u) / largest)) - 1.0

        divergence_event.terminal = True  # type: ignore[attr-defined]
        largest = options.divergence_factor * (1.0 + np.abs(u).max())
        with np.errstate(all="ignore"):
            found = solve_ivp(
                moment_time_derivative,
                (times[0], times[-1]),
                u,
                method=method,
                t_eval=times,
                rtol=max(tolerance, 100 * np.finfo(float).eps),
                atol=tolerance * 1e-2 * np.maximum(_moment_scales(problem, u[None])[0], 1e-12),
                events=[
                    *(overlap_crossing_event(name, value) for name, value in self.events.items()),
                    divergence_event,
                ],
            )
        path = found.y.T
        inside = np.isfinite(path).all(axis=1)
        path = path if inside.all() else path[: int(np.argmin(inside))]
        when = tuple(tuple(map(float, each)) for each in found.t_events[:-1])
        return _DescentTrajectory(path, when, method, not found.success or len(path) < len(times))

    def iterate_steps_of_large_batches(self, rule: GradientAverageRule, share: float) -> _DescentTrajectory:
        """Return the trajectory of descent with batches of order d samples, with one step per unit of time.

        Args:
            rule: quadrature rule of the averages.
            share: samples per batch divided by d.
        """
        flow, at_step, wanted = self.equations_of_motion(rule), self.begin, set(self.times.astype(int).tolist())
        path, left_domain = [], False
        for number in range(int(self.times[0]), int(self.times[-1]) + 1):
            budget.check_time_limit()
            try:
                following = flow.moments_after_step(at_step, self.schedule(float(number)), share)
            except DomainError:
                left_domain = True
                break
            if number in wanted:
                path.append(at_step.pack())
            at_step = following
        if not path:
            raise InputError("start: no weights have the moments of this start; give other overlaps")
        return _DescentTrajectory(np.array(path), (), "map", left_domain or len(path) < len(self.times))


def _pad_with_nan(values: np.ndarray, count: int) -> np.ndarray:
    """Return an array of `count` rows: the given values, then NaN where there are fewer."""
    found = np.full((count, *values.shape[1:]), np.nan)
    shared = min(count, len(values))
    found[:shared] = values[:shared]
    return found


def _scaled_trajectory_difference(problem: Problem, one: _DescentTrajectory, other: _DescentTrajectory) -> np.ndarray:
    """Return the distance of two trajectories at their common times: differences of moments, each in its scale."""
    count = min(len(one.path), len(other.path))
    return np.abs(one.path[:count] - other.path[:count]) / _moment_scales(problem, one.path[:count])


def _locate_overlap_events(
    events: Mapping[str, float],
    final: _DescentTrajectory,
    before: _DescentTrajectory,
    first: _DescentTrajectory,
    looser: _DescentTrajectory | None,
) -> tuple[OverlapEvent, ...]:
    """Return the times at which overlaps pass given values, in order of time.

    Their error bars are the changes with the quadrature rule and with the tolerance of time steps.
    """
    found = []
    for number, (name, value) in enumerate(events.items()):
        own, other = final.events[number], before.events[number]
        pairs = (first.events[number], looser.events[number]) if looser is not None else ((), ())
        for place, time in enumerate(own):
            error = 1.5 * abs(time - other[place]) if place < len(other) else np.nan
            if place < min(map(len, pairs)):
                error += 1.5 * abs(pairs[0][place] - pairs[1][place])
            found.append(OverlapEvent(name, value, time, error))
    return tuple(sorted(found, key=lambda event: event.time))


def _moment_derivatives_and_losses(
    flow: EquationsOfMotion, rate: float, path: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the time derivatives of packed moments, one row per output time, and the mean loss at each time."""
    found = [flow.moment_derivatives_and_loss(Moments.unpack(u, flow.problem), rate) for u in path]
    return np.array([slope.pack() for slope, _ in found]), np.array([loss for _, loss in found])


def _mean_losses(rule: GradientAverageRule, path: np.ndarray) -> np.ndarray:
    """Return the mean loss at every output time of a trajectory."""
    return np.array([rule(Moments.unpack(u, rule.problem).overlaps(rule.problem)).loss for u in path])


def _loss_error_bars(loss: np.ndarray, other: np.ndarray, count: int) -> np.ndarray:
    """Return error bars of the mean loss: its change from a less accurate trajectory; NaN where one has ended."""
    return 1.5 * np.abs(_pad_with_nan(loss, count) - _pad_with_nan(other, count))


def _find_plateaus(
    flow: EquationsOfMotion,
    coarse: EquationsOfMotion,
    schedule: LearningRateSchedule,
    times: np.ndarray,
    path: np.ndarray,
    speeds: np.ndarray | None,
) -> tuple[Plateau, ...]:
    """Return the plateaus of a trajectory: intervals around minima of its speed, which is far larger later."""
    options = DescentOptions.current()
    if len(times) < 5 or speeds is None:
        return ()
    scales = _moment_scales(flow.problem, path)
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
            point = _find_stationary_point_near((coarse, flow), schedule, path[n], scales[n], options.plateau_distance)
            if last < len(times) - 1:
                found.append(Plateau(float(times[first]), float(times[last]), point))
            n = last
        n += 1
    return tuple(found)


def _find_stationary_point_at_end(
    flow: EquationsOfMotion, coarse: EquationsOfMotion, schedule: LearningRateSchedule, u: np.ndarray
) -> StationaryPoint | None:
    """Return the stable stationary point close to the last moments of a trajectory, or None if there is none."""
    point = _find_stationary_point_near((coarse, flow), schedule, u, None, DescentOptions.current().end_distance)
    return point if point is not None and point.stable else None


def _find_stationary_point_near(
    flows: tuple[EquationsOfMotion, EquationsOfMotion],
    schedule: LearningRateSchedule,
    u: np.ndarray,
    scale: np.ndarray | None,
    within: float,
) -> StationaryPoint | None:
    """Return the stationary point within a given distance of packed moments, or None if there is none.

    Distances are in units of `scale`, by default the sizes of the moments at the stationary point. A coarse quadrature
    rule locates the point first, and may find it at up to twice the given distance.
    """
    found = u
    for flow, most in zip(flows, (2 * within, within), strict=True):
        point = find_stationary_moments(flow, found, schedule.rate)
        if point is None:
            return None
        found = point
        unit = np.maximum(_moment_scales(flow.problem, found[None])[0], 1e-12) if scale is None else scale
        if not np.abs((found - u) / unit).max() <= most:
            return None
    return stationary_point_with_spectrum(flow, found, schedule, np.full_like(u, np.nan))
