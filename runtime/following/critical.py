"""Critical lines: an event followed in a second parameter, as the curve of solutions of its extended system.

A crossing, a spinodal, an instability or a condition is located once; then all overlaps and both parameters are
unknowns, so that the line may turn back in either parameter. Where it does so in both at once spinodals meet (a cusp);
where the branch that begins on a line of lost stability changes sides, a continuous transition turns discontinuous (a
tricritical point).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base import presenting
from ..base.errors import OUTSIDE, InputError, require_known
from ..base.interrupts import OUT_OF_TIME, keeping_results
from ..base.numbers import with_error
from ..base.presenting import Recorded
from ..base.progress import bar
from ..branches.branch_map import BranchMap
from ..branches.continuation import Continuation, Place, StepControl, begin
from ..branches.equations import BranchEquations, ConditionEquations, CrossingEquations, SingularEquations, branching
from ..integration.rule import Rule
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point import observables
from ..saddle_point.iteration import Status
from ..saddle_point.state_map import StateMap
from ..solving.solution import Solution
from ..thresholds.along_branch import condition_threshold
from ..thresholds.conditions import parse_condition
from ..thresholds.crossing import symmetric_crossing
from ..thresholds.threshold import Threshold
from .events import extended, integration_shift
from .first_event import instability, spinodal

if TYPE_CHECKING:
    import xarray


KINDS = ("crossing", "spinodal", "instability", "where")
LARGEST = 0.12  # step
_MOST = 200


@dataclass(frozen=True)
class CriticalLine(Recorded):
    """An event along a second parameter.

    Attributes:
        kind, parameter, over: what is followed, the parameter it is located in, and the second one.
        values, errors: of the event in `parameter`, (N,); over_values: the second parameter, (N,), in the order in
            which the line was followed: it may turn back.
        special: points of codimension 2 on the line: `kind` (cusp, tricritical), and the two parameters.
        ending: why it was not followed further, in words.
        first: the event the line began with.
        interrupted: by the user; what was finished is here.

    Example:
        >>> kind = {"kind": "where", "condition": "test_error = 0.4", "on": "semantic", "bracket": (1, 6)}
        >>> line = sf.critical_line(sf.problem("ridge_regression"), over=("Delta", 0.25, 0.3), **kind)
        >>> alpha, half_width = line.at(0.275)
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
        """Whether a time limit ended it; what was finished is here."""
        return self.ending == OUT_OF_TIME

    def to_xarray(self) -> xarray.Dataset:
        """value and error along `over`; special points (JSON) and the ending among the attributes."""
        return presenting.to_dataset(self)

    def at(self, value: float) -> tuple[float, float]:
        """The event and its half width where `over` has a value, by cubic interpolation between the points.

        Raises:
            InputError: the line does not reach there, or turns back.
        """
        steps = np.diff(self.over_values)
        if not (np.all(steps > 0) or np.all(steps < 0)):
            raise InputError(f"the line turns back in {self.over}: it has no single value at {value:g}")
        order = np.argsort(self.over_values)
        known = self.over_values[order]
        if not known[0] <= value <= known[-1]:
            raise InputError(f"the line covers {self.over} = {known[0]:g} to {known[-1]:g}, not {value:g}")
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
    largest: float = LARGEST,
    on_point: Callable[[float, float, float], None] | None = None,
) -> CriticalLine:
    """Follow an event in a second parameter.

    Args:
        kind: crossing, spinodal, instability or where.
        parameter, bracket: in which the event is located first, and where to look.
        over: the second parameter, the value to begin at, and the one to head for.
        between: the branches of a crossing; on: the branch of other kinds; condition: of kind where.
        accuracy: half width asked of the first event; the line keeps the rule that it needed.
        largest: longest step, in units of the interval of `over`, of the parameter's own and of the block scales.
        on_point: called with (over, value, error) of every point.

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
    require_known("kind", kind, KINDS, "critical line")
    if name == parameter:
        raise InputError(f"{name} is the parameter in which the event is located; follow it in another one")
    if not abs(last - first) > 0:
        raise InputError(f"{name} = {first:g} to {last:g}: an interval is expected")
    problem.check_varied(parameter, name)
    at = problem.with_(**{name: first})
    problem.with_(**{name: last})
    common: dict[str, Any] = {"bracket": bracket, "accuracy": accuracy, "seed": seed}
    if kind == "crossing":
        if between is None:
            raise InputError("a crossing needs between=(one branch, another)")
        event = symmetric_crossing(at, parameter, between, **common)
    elif on is None:
        raise InputError(f"{kind} needs on=branch")
    elif kind == "where":
        if condition is None:
            raise InputError("kind where needs a condition")
        event = condition_threshold(at, condition, parameter, on=on, **common)
    else:
        event = {"spinodal": spinodal, "instability": instability}[kind](at, parameter, on=on, **common)
    return line_from(event, kind, over, condition, accuracy, largest, on_point)


def line_from(
    event: Threshold,
    kind: str,
    over: tuple[str, float, float],
    condition: str | None = None,
    accuracy: float = 1e-3,
    largest: float = LARGEST,
    on_point: Callable[[float, float, float], None] | None = None,
) -> CriticalLine:
    """The line through an event that is known already (see `critical_line`).

    Args:
        over: the second parameter, its value at the event, and the one to head for.
    """
    (name, first, last), parameter = over, event.parameter
    span = max(abs(event.value), 0.1), abs(last - first)
    equations, z = _extended(event, kind, (parameter, name), span, first, condition)
    tolerance = max(*(branch.rule.tolerance(accuracy) for branch in equations.branches), 1e-9)
    line = Continuation(
        equations,
        z,
        (first, last),
        lambda: tolerance,
        f"the extended system of the {kind} does not converge where the line begins",
        lambda z: f"no such event found beyond {z[-2]:.5g}, {z[-1]:.5g}",
        control=StepControl(step=largest / 3, largest=largest),
    )
    points: list[tuple[float, float, float]] = []
    special: list[dict[str, Any]] = []
    equations.border(z)
    before: tuple[Place, float] | None = None
    with keeping_results(lambda: points) as early, bar(f"{kind} line", None) as task:
        for place in line.places(_MOST):
            side = _branching(equations, place, tolerance)
            if before is not None:
                special += _special(*before, place, side)
                equations.border(place.z)
            line.place, error = _refined(equations, place, accuracy, tolerance)
            before = line.place, side
            value, second = (float(v) for v in line.place.z[-2:])
            points.append((value, second, error))
            if on_point:
                on_point(second, value, error)
            task.advance(f"{kind} line at {second:.4g}: {with_error(value, error)}")
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


def _extended(
    event: Threshold, kind: str, names: tuple[str, str], span: tuple[float, float], second: float, condition: str | None
) -> tuple[Any, np.ndarray]:
    """The event's equations with both parameters free, and its unknowns."""
    if kind in ("spinodal", "instability"):
        return extended(event, names, span, (second,))
    maps = [BranchMap.of(solution, names, span) for solution in event.solutions]
    states = [m.coordinates(s.overlaps.pack()) for m, s in zip(maps, event.solutions, strict=True)]
    parameters = np.array([event.value, second])
    equations: Any
    if kind == "crossing":
        unit = abs(event.solutions[0].training_loss)
        equations = CrossingEquations(maps[0], maps[1], unit)
    else:
        assert condition is not None
        difference = parse_condition(condition, event.solutions[0].problem)
        scale = max(abs(event.solutions[0].training_loss), 1e-12)

        def measured(problem: Problem, overlaps: Overlaps, rule: Rule) -> float:
            return difference(as_solution(problem, overlaps, rule, difference.averaged))[0]

        equations = ConditionEquations(maps[0], measured, scale)
    return equations, np.concatenate([*states, parameters])


def as_solution(problem: Problem, overlaps: Overlaps, rule: Rule, averaged: bool) -> Solution:
    """Overlaps that nearly solve a saddle point, for a condition to look at: what it asks for is computed there.

    Args:
        averaged: whether it asks for averages over the channel.
    """
    averages = rule.averages(problem, overlaps) if averaged else None
    hats = StateMap(problem, rule).conjugates(overlaps, averages.means) if averages else None
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
        losses=observables.losses(problem, overlaps, hats, averages) if averages and hats else None,
        training_loss_error=0.0,
        averages=averages,
    )


def _special(one: Place, one_side: float, other: Place, other_side: float) -> list[dict[str, Any]]:
    """Points of codimension 2 between two points of a line.

    Args:
        one_side, other_side: on which side the branch lies that begins there (`_branching`).
    """
    found: list[tuple[str, np.ndarray]] = []
    if one_side * other_side < 0:
        share = one_side / (one_side - other_side)
        found.append(("tricritical", one.z[-2:] + share * (other.z[-2:] - one.z[-2:])))
    cusp = cusp_between(one, other)
    if cusp is not None:
        found.append(("cusp", np.array(cusp)))
    return [{"kind": kind, "value": float(place[0]), "over": float(place[1])} for kind, place in found]


def _refined(equations: BranchEquations, place: Place, accuracy: float, tolerance: float) -> tuple[Place, float]:
    """A point by finer rules, from here on, as long as its half width asks for them, and the half width."""
    error = _error(equations, place)
    while not error <= accuracy and _take_finer_rules(equations):
        again = begin(equations, place.z, tolerance, place.tangent)
        if again is None:
            break
        place = replace(again, arclength=place.arclength)
        error = _error(equations, place)
    return place, error


def _take_finer_rules(equations: BranchEquations) -> bool:
    """Take the next finer rules, for the free entropies alone in a crossing; False where there are none.

    Phi is stationary: errors of the overlaps cost their square, those of E[M] the whole (docs/theory.md section 15).
    """
    refined = False
    for branch in equations.branches:
        losses = isinstance(equations, CrossingEquations)
        finer = (branch.loss_rule if losses else branch.rule).beyond(branch.problem)
        if finer and losses:
            branch.loss_rule, refined = finer[0], True
        elif finer:
            branch.rule, refined = finer[0], True
    return refined


def cusp_between(one: Place, other: Place) -> tuple[float, float] | None:
    """The two last unknowns where a line passes a cusp between two places; None where it passes none.

    There both stand still and set out again in the opposite direction, while the other unknowns move on.
    """
    before, after = one.tangent[-2:], other.tangent[-2:]
    if before @ after > -0.5 * np.linalg.norm(before) * np.linalg.norm(after):
        return None
    along = before - after
    share = (before @ along) / (along @ along)
    value, second = one.z[-2:] + share * (other.z[-2:] - one.z[-2:])
    return float(value), float(second)


def _branching(equations: BranchEquations, place: Place, tolerance: float) -> float:
    """Where the branch that begins on a line of lost stability exists (`equations.branching`); nan on other lines."""
    if not isinstance(equations, SingularEquations) or len(equations.sector) == equations.branch.size:
        return np.nan
    return branching(equations, place.z, tolerance)


def _error(equations: BranchEquations, place: Place) -> float:
    """Half width of the first parameter, the second held fixed; jumps are taken into account."""
    square = np.delete(place.matrix, -1, axis=1)
    try:
        return float(integration_shift(equations, place.z, square)[-1])
    except (*OUTSIDE, np.linalg.LinAlgError):
        return float("nan")
