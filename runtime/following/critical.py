"""Critical lines: an event continued in a second parameter, as the curve of solutions of its extended system.

A crossing, a spinodal, an instability or a condition is located once; then all overlaps and both parameters are
unknowns, so that the line may turn back in either parameter. Where it turns back in both at once two spinodals meet (a
cusp); where the branching coefficient changes sign, a continuous transition becomes discontinuous (a tricritical
point).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base import presenting
from ..base.errors import DOMAIN_ERRORS, InputError, require_known_name
from ..base.interrupts import OUT_OF_TIME, keep_partial_results
from ..base.numbers import format_value_with_error
from ..base.options import AlgorithmOptions
from ..base.presenting import DatasetResult
from ..base.progress import progress_bar
from ..branches.branch_map import BranchMap
from ..branches.continuation import CurveContinuation, CurvePoint, StepLengthControl, first_curve_point
from ..branches.equations import (
    BranchEquations,
    ConditionEquations,
    CrossingEquations,
    SingularJacobianEquations,
    branching_coefficient,
)
from ..integration.rule import Rule
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point import observables
from ..saddle_point.iteration import Status
from ..saddle_point.state_map import SaddlePointMap
from ..solving.solution import Solution
from ..thresholds.along_branch import condition_threshold
from ..thresholds.conditions import parse_condition
from ..thresholds.crossing import replica_symmetric_crossing
from ..thresholds.threshold import Threshold
from .events import extended_system_of_event, integration_error_bars_of_unknowns
from .first_event import instability, spinodal

if TYPE_CHECKING:
    import xarray


KINDS = ("crossing", "spinodal", "instability", "where")
LARGEST_STEP = 0.12


@dataclass(frozen=True)
class CriticalLineOptions(AlgorithmOptions):
    """Options of the continuation of an event in a second parameter.

    Attributes:
        max_points: largest number of points of the line; with more points it is continued further.
    """

    max_points: int = 200


@dataclass(frozen=True)
class CriticalLine(DatasetResult):
    """The line of an event (crossing, spinodal, instability, condition) in a plane of two parameters.

    Attributes:
        kind: kind of the event.
        parameter: name of the parameter in which the event is located.
        over: name of the second parameter.
        values: value of `parameter` at the event, for every point of the line.
        errors: error bars of `values`.
        over_values: second parameter of every point, in the order of the continuation, which may turn back.
        special: points of codimension 2 on the line: `kind` (cusp, tricritical) and values of both parameters.
        ending: the reason why the continuation ended.
        first: the event from which the line was continued.
        interrupted: whether the user ended it; finished points are kept.

    Example:
        >>> kind = {"kind": "where", "condition": "test_error = 0.4", "on": "semantic", "bracket": (1, 6)}
        >>> line = sf.critical_line(sf.problem("ridge_regression"), over=("Delta", 0.25, 0.3), **kind)
        >>> alpha, error_bar = line.at(0.275)
        >>> round(alpha, 3)
        2.956
    """

    kind: str
    parameter: str
    over: str
    values: np.ndarray
    errors: np.ndarray
    over_values: np.ndarray
    special: tuple[dict[str, Any], ...]
    ending: str
    first: Threshold
    interrupted: bool = False

    @property
    def out_of_time(self) -> bool:
        """Return whether a time limit ended the continuation of the line; finished points are kept."""
        return self.ending == OUT_OF_TIME

    def to_xarray(self) -> xarray.Dataset:
        """Return an xarray Dataset of the event's parameter value and error bar along the second parameter."""
        return presenting.to_dataset(self)

    def at(self, value: float) -> tuple[float, float]:
        """Return the event's parameter value and error bar at a value of the second parameter, by cubic interpolation.

        Raises:
            InputError: the line does not reach that value, or turns back.
        """
        steps = np.diff(self.over_values)
        if not (np.all(steps > 0) or np.all(steps < 0)):
            raise InputError(f"the critical line turns back in {self.over}: it has no single value at {value:g}")
        order = np.argsort(self.over_values)
        known = self.over_values[order]
        if not known[0] <= value <= known[-1]:
            raise InputError(f"the critical line covers {self.over} = {known[0]:g} to {known[-1]:g}, not {value:g}")
        from scipy.interpolate import CubicSpline

        interpolated = float(CubicSpline(known, self.values[order])(value))
        return interpolated, float(np.interp(value, known, self.errors[order]))

    def __repr__(self) -> str:
        span = f"{self.over} = {self.over_values[0]:.4g} to {self.over_values[-1]:.4g}"
        marks = "".join(
            f"; {m['kind']} at {self.parameter} = {m['value']:.5g}, {self.over} = {m['over']:.5g}" for m in self.special
        )
        return f"{self.kind} in {self.parameter}, {len(self.values)} points from {span}{marks}; {self.ending}"


def critical_line(
    problem: Problem,
    kind: str,
    parameter: str = "alpha",
    *,
    over: tuple[str, float, float],
    between: tuple[str, str] | None = None,
    on: str | None = None,
    condition: str | None = None,
    bracket: tuple[float, float] | None = None,
    accuracy: float = 1e-3,
    seed: int = 0,
    largest: float = LARGEST_STEP,
    on_point: Callable[[float, float, float], None] | None = None,
) -> CriticalLine:
    """Return the line of an event in the plane of two parameters, by continuation in the second one.

    Args:
        problem: the problem at any values of both parameters.
        kind: crossing, spinodal, instability or where.
        parameter: name of the parameter in which the event is located.
        over: name of the second parameter, the value to start at, and the value to continue to.
        between: the branches of a crossing.
        on: the branch of spinodal, instability and where.
        condition: the condition that holds on the line if `kind` is where.
        bracket: interval of `parameter` that is searched for the first event.
        accuracy: error bar of the event in `parameter`.
        seed: seed of the sampled quadrature rules.
        largest: longest step, relative to the event's value, the interval of `over` and the sizes of the overlaps.
        on_point: called for every point with the second parameter, the event's value and its error bar.

    Raises:
        InputError: an unknown kind or parameter, or arguments of another kind.
        NotConvergedError: the event was not found at the first value.

    Example:
        >>> kind = {"kind": "where", "condition": "test_error = 0.4", "on": "semantic", "bracket": (1, 6)}
        >>> line = sf.critical_line(sf.problem("ridge_regression"), over=("Delta", 0.25, 0.3), **kind)
        >>> line.ending, line.values[[0, -1]].round(3).tolist()
        ('0.3 reached', [2.402, 3.774])
    """
    name, first, last = over
    require_known_name("kind", kind, KINDS, "critical line")
    if name == parameter:
        raise InputError(f"{name} is the parameter in which the event is located; follow it in another one")
    if not abs(last - first) > 0:
        raise InputError(f"{name} = {first:g} to {last:g} is empty: an interval is expected")
    problem.require_scalar_parameters(parameter, name)
    at = problem.with_(**{name: first})
    problem.with_(**{name: last})
    common: dict[str, Any] = {"bracket": bracket, "accuracy": accuracy, "seed": seed}
    if kind == "crossing":
        if between is None:
            raise InputError('a crossing needs the two branches, as between=("informed", "uninformed")')
        event = replica_symmetric_crossing(at, parameter, between, **common)
    elif on is None:
        raise InputError(f'kind {kind} needs the branch, as on="informed"')
    elif kind == "where":
        if condition is None:
            raise InputError('kind="where" needs a condition, as condition="test_error = 0.4"')
        event = condition_threshold(at, condition, parameter, on=on, **common)
    else:
        event = {"spinodal": spinodal, "instability": instability}[kind](at, parameter, on=on, **common)
    return continue_event_in_second_parameter(event, kind, over, condition, accuracy, largest, on_point)


def continue_event_in_second_parameter(
    event: Threshold,
    kind: str,
    over: tuple[str, float, float],
    condition: str | None = None,
    accuracy: float = 1e-3,
    largest: float = LARGEST_STEP,
    on_point: Callable[[float, float, float], None] | None = None,
) -> CriticalLine:
    """Return the line through a located event, by continuation in a second parameter (see `critical_line`).

    Args:
        event: the event.
        kind: crossing, spinodal, instability or where.
        over: name of the second parameter, its value at the event, and the value to continue to.
        condition: the condition that holds on the line if `kind` is where.
        accuracy: error bar of the event in its own parameter.
        largest: longest step, in the units of `critical_line`.
        on_point: called for every point with the second parameter, the event's value and its error bar.

    Raises:
        NotConvergedError: the extended system does not converge at the event.
    """
    (name, first, last), parameter = over, event.parameter
    span = max(abs(event.value), 0.1), abs(last - first)
    equations, z = _event_equations_in_two_parameters(event, kind, (parameter, name), span, first, condition)
    tolerance = max(*(branch.rule.newton_tolerance(accuracy) for branch in equations.branches), 1e-9)
    line = CurveContinuation(
        equations,
        z,
        (first, last),
        lambda: tolerance,
        f"the extended system of the {kind} does not converge where the line begins",
        lambda z: f"no {kind} found beyond {parameter} = {z[-2]:.5g}, {name} = {z[-1]:.5g}",
        control=StepLengthControl(step=largest / 3, largest=largest),
    )
    points: list[tuple[float, float, float]] = []
    special: list[dict[str, Any]] = []
    equations.update_bordering_vectors(z)
    before: tuple[CurvePoint, float] | None = None
    with keep_partial_results(lambda: points) as early, progress_bar(f"{kind} line", None) as task:
        for point in line.continuation_points(CriticalLineOptions.current().max_points):
            coefficient = _branching_coefficient_on_line(equations, point, tolerance)
            if before is not None:
                special += _codimension_2_points(*before, point, coefficient)
                equations.update_bordering_vectors(point.z)
            line.point, error = _refine_point_to_accuracy(equations, point, accuracy, tolerance)
            before = line.point, coefficient
            value, second = (float(v) for v in line.point.z[-2:])
            points.append((value, second, error))
            if on_point:
                on_point(second, value, error)
            task.count_finished_step(f"{kind} line at {second:.4g}: {format_value_with_error(value, error)}")
    values, over_values, errors = np.array(points).T
    return CriticalLine(
        kind,
        parameter,
        name,
        values,
        errors,
        over_values,
        special=tuple(special),
        ending=early.reason or line.ending,
        first=event,
        interrupted=early.interrupted,
    )


def _event_equations_in_two_parameters(
    event: Threshold, kind: str, names: tuple[str, str], span: tuple[float, float], second: float, condition: str | None
) -> tuple[Any, np.ndarray]:
    """Return the equations of an event in which both parameters are unknowns, and the unknowns at the event."""
    if kind in ("spinodal", "instability"):
        return extended_system_of_event(event, names, span, (second,))
    maps = [BranchMap.from_solution(solution, names, span) for solution in event.solutions]
    states = [m.coordinates_of_state(s.overlaps.pack()) for m, s in zip(maps, event.solutions, strict=True)]
    parameters = np.array([event.value, second])
    equations: Any
    if kind == "crossing":
        unit = abs(event.solutions[0].training_loss)
        equations = CrossingEquations(maps[0], maps[1], unit)
    else:
        assert condition is not None
        difference = parse_condition(condition, event.solutions[0].problem)
        scale = max(abs(event.solutions[0].training_loss), 1e-12)

        def _difference_of_condition_sides(problem: Problem, overlaps: Overlaps, rule: Rule) -> float:
            return difference(solution_without_error_bars(problem, overlaps, rule, difference.needs_channel_averages))[
                0
            ]

        equations = ConditionEquations(maps[0], _difference_of_condition_sides, scale)
    return equations, np.concatenate([*states, parameters])


def solution_without_error_bars(
    problem: Problem, overlaps: Overlaps, rule: Rule, needs_channel_averages: bool
) -> Solution:
    """Return a solution with given overlaps and without error bars, at which a condition can be evaluated.

    Args:
        problem: the problem.
        overlaps: overlaps of the solution.
        rule: quadrature rule of the averages.
        needs_channel_averages: whether channel averages are computed, since the condition depends on them.
    """
    averages = rule.averages(problem, overlaps) if needs_channel_averages else None
    hats = SaddlePointMap(problem, rule).conjugates_at_overlaps(overlaps, averages.means) if averages else None
    return Solution(
        problem=problem,
        start="given",
        overlaps=overlaps,
        conjugates=hats,
        status=Status.CONVERGED,
        residual=0.0,
        iterations=0,
        rule=rule,
        errors=np.zeros(len(overlaps.pack())),
        losses=observables.free_entropy_and_losses(problem, overlaps, hats, averages) if averages and hats else None,
        training_loss_error=0.0,
        averages=averages,
    )


def _codimension_2_points(
    one: CurvePoint, one_coefficient: float, other: CurvePoint, other_coefficient: float
) -> list[dict[str, Any]]:
    """Return cusps and tricritical points between two neighbouring points of a line.

    A tricritical point is a change of sign of the branching coefficient.
    """
    found: list[tuple[str, np.ndarray]] = []
    if one_coefficient * other_coefficient < 0:
        fraction = one_coefficient / (one_coefficient - other_coefficient)
        found.append(("tricritical", one.z[-2:] + fraction * (other.z[-2:] - one.z[-2:])))
    cusp = find_cusp(one, other)
    if cusp is not None:
        found.append(("cusp", np.array(cusp)))
    return [{"kind": kind, "value": float(point[0]), "over": float(point[1])} for kind, point in found]


def _refine_point_to_accuracy(
    equations: BranchEquations, point: CurvePoint, accuracy: float, tolerance: float
) -> tuple[CurvePoint, float]:
    """Refine a point of the line by finer quadrature rules until the accuracy is met; return it with its error bar."""
    error = _parameter_error_bar(equations, point)
    while not error <= accuracy and _switch_to_finer_quadrature(equations):
        again = first_curve_point(equations, point.z, tolerance, point.tangent)
        if again is None:
            break
        point = replace(again, arclength=point.arclength)
        error = _parameter_error_bar(equations, point)
    return point, error


def _switch_to_finer_quadrature(equations: BranchEquations) -> bool:
    """Switch the equations to the next finer quadrature rules; return False if there are none.

    For a crossing only free entropies need finer rules: in them errors of the overlaps are of second order.
    """
    refined = False
    for branch in equations.branches:
        losses = isinstance(equations, CrossingEquations)
        finer = (branch.loss_rule if losses else branch.rule).finer_rules(branch.problem)
        if finer and losses:
            branch.loss_rule, refined = finer[0], True
        elif finer:
            branch.rule, refined = finer[0], True
    return refined


def find_cusp(one: CurvePoint, other: CurvePoint) -> tuple[float, float] | None:
    """Return the values of both parameters at a cusp between two points of a line; None without a cusp.

    At a cusp both parameters reverse their direction along the line.

    Args:
        one: a point of the line.
        other: the next point of the line.
    """
    before, after = one.tangent[-2:], other.tangent[-2:]
    if before @ after > -0.5 * np.linalg.norm(before) * np.linalg.norm(after):
        return None
    turn = before - after
    fraction = (before @ turn) / (turn @ turn)
    value, second = one.z[-2:] + fraction * (other.z[-2:] - one.z[-2:])
    return float(value), float(second)


def _branching_coefficient_on_line(equations: BranchEquations, point: CurvePoint, tolerance: float) -> float:
    """Return the branching coefficient, which changes sign at a tricritical point; nan if no symmetry is broken."""
    if (
        not isinstance(equations, SingularJacobianEquations)
        or len(equations.sector) == equations.branch.dimension_of_invariant_states
    ):
        return np.nan
    return branching_coefficient(equations, point.z, tolerance)


def _parameter_error_bar(equations: BranchEquations, point: CurvePoint) -> float:
    """Return the error bar of an event's first parameter at a fixed second parameter; nan if it is unknown."""
    square = np.delete(point.matrix, -1, axis=1)
    try:
        return float(integration_error_bars_of_unknowns(equations, point.z, square)[-1])
    except (*DOMAIN_ERRORS, np.linalg.LinAlgError):
        return float("nan")
