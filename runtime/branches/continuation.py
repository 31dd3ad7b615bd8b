"""Pseudo-arclength continuation: the curve of solutions of n equations in n + 1 unknowns (Keller's method).

The method is general: a `ContinuationSystem` states its equations, their Jacobian and their units. `step_along_curve`
predicts along the tangent; `correct_predicted_point` is Newton's method on the equations and the plane normal to the
predicted direction, which has a solution at folds, too, with Broyden's rank-one updates of the Jacobian;
`StepLengthControl` adapts the step length; `CurveContinuation` computes point after point. Events between two points
are detected in `following.branch_continuation` and `following.critical`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from ..base.errors import DOMAIN_ERRORS, NotConvergedError
from ..base.options import AlgorithmOptions


@dataclass(frozen=True)
class ContinuationOptions(AlgorithmOptions):
    """Options of one predictor-corrector step.

    Attributes:
        max_angle: largest angle by which the tangent may turn in a step, in radians; smaller resolves turns better.
        max_corrections: largest number of evaluations in the corrector; more allow longer steps, but the corrector may
            jump to another branch.
    """

    max_angle: float = 0.35
    max_corrections: int = 14


class ContinuationSystem(Protocol):
    """A system of n equations in n + 1 unknowns."""

    def residual_of_equations(self, z: np.ndarray) -> np.ndarray:
        """Return the residuals of the n equations, scaled to order one; raise DomainError outside their domain."""
        ...

    def residual_jacobian(self, z: np.ndarray) -> np.ndarray:
        """Return the Jacobian of the n equations in the n + 1 unknowns, shape (n, n + 1)."""
        ...

    def units_of_unknowns(self, z: np.ndarray) -> np.ndarray:
        """Return the unit of each of the n + 1 unknowns, in which steps are measured."""
        ...

    def symmetry_orbit_directions(self, z: np.ndarray) -> np.ndarray:
        """Return orthonormal directions of the unknowns, in columns, along which a continuous symmetry acts."""
        ...


@dataclass(frozen=True)
class CurvePoint:
    """A point of the solution curve.

    Attributes:
        z: the n + 1 unknowns of the n equations.
        tangent: unit vector along the curve, in units of the unknowns.
        matrix: Jacobian of the equations at the point, shape (n, n + 1).
        residual: largest absolute residual of the equations.
        arclength: arclength from the first point, in units of the unknowns.
    """

    z: np.ndarray
    tangent: np.ndarray
    matrix: np.ndarray
    residual: float
    arclength: float = 0.0
    evaluations: int = 0


def unit_tangent(system: ContinuationSystem, z: np.ndarray, matrix: np.ndarray, along: np.ndarray) -> np.ndarray:
    """Return the unit tangent of the solution curve, in units of the unknowns.

    Args:
        system: the equations.
        z: the n + 1 unknowns of the n equations.
        matrix: Jacobian of the equations at z, shape (n, n + 1).
        along: vector with which the tangent has a positive scalar product.
    """
    rows = np.concatenate([matrix * system.units_of_unknowns(z), system.symmetry_orbit_directions(z).T])
    tangent = np.linalg.svd(rows, full_matrices=True)[2][-1]
    return tangent if tangent @ along >= 0 else -tangent


def correct_predicted_point(
    system: ContinuationSystem,
    z: np.ndarray,
    matrix: np.ndarray,
    normal: np.ndarray,
    tolerance: float,
    level: float = 0.0,
    most: int | None = None,
) -> tuple[np.ndarray, np.ndarray, float, int] | None:
    """Solve the equations on a plane near a predicted point, by Newton's method.

    The plane is normal . (z' - z) / units = level for the corrected point z'.

    Args:
        system: the equations.
        z: the predicted point, n + 1 unknowns of n equations.
        matrix: Jacobian near that point, shape (n, n + 1), which Broyden's method updates.
        normal: normal vector of the plane, in units of the unknowns.
        tolerance: largest residual.
        level: distance of the plane from the predicted point.
        most: largest number of evaluations of the equations; `ContinuationOptions.max_corrections` by default.

    Returns:
        unknowns, updated Jacobian, residual and number of evaluations; None if it did not converge.
    """
    most = ContinuationOptions.current().max_corrections if most is None else most
    units = system.units_of_unknowns(z)
    start, scaled = z.copy(), matrix * units
    before: tuple[np.ndarray, np.ndarray] | None = None
    best = np.inf
    for count in range(1, most + 1):
        try:
            values = system.residual_of_equations(z)
        except DOMAIN_ERRORS:
            return None
        if not np.isfinite(values).all():
            return None
        if before is not None:
            step, change = (z - before[0]) / units, values - before[1]
            scaled = scaled + np.outer(change - scaled @ step, step) / (step @ step)
        here = (z - start) / units
        gap = np.concatenate([values, [normal @ here - level]])
        size = float(np.max(np.abs(gap)))
        if size <= tolerance:
            return z, scaled / units, float(np.max(np.abs(values))), count
        if count > 3 and size > 10 * best:
            return None
        best = min(best, size)
        orbit = system.symmetry_orbit_directions(z)
        rows = np.concatenate([scaled, normal[None], orbit.T])
        move = np.linalg.lstsq(rows, -np.concatenate([gap, np.zeros(orbit.shape[1])]), rcond=1e-12)[0]
        if not np.linalg.norm(move) < 2.0:
            return None
        before = z, values
        z = z + units * move
    return None


def first_curve_point(
    system: ContinuationSystem, z: np.ndarray, tolerance: float, toward: np.ndarray
) -> CurvePoint | None:
    """Return the first point of a solution curve, by Newton's method at a fixed last unknown; None if that fails.

    Args:
        system: the equations.
        z: guess of the unknowns.
        tolerance: largest residual.
        toward: vector with which the tangent has a positive scalar product.
    """
    fixed = np.zeros(len(z))
    fixed[-1] = 1.0
    try:
        found = correct_predicted_point(system, z, system.residual_jacobian(z), fixed, tolerance)
        if found is None:
            return None
        z, _, residual, count = found
        matrix = system.residual_jacobian(z)
    except DOMAIN_ERRORS:
        return None
    return CurvePoint(z, unit_tangent(system, z, matrix, toward), matrix, residual, 0.0, count)


def step_along_curve(
    system: ContinuationSystem, point: CurvePoint, step: float, tolerance: float, along: int | None = None
) -> CurvePoint | None:
    """Return the curve point one step along the tangent; None if the corrector fails or the tangent turns too far.

    Args:
        system: the equations.
        point: the point to step from.
        step: step length in units of the unknowns; a negative one goes back.
        tolerance: largest residual.
        along: index of the unknown in which the step is measured, so that it ends at a given value of that unknown.
    """
    normal = point.tangent
    units = system.units_of_unknowns(point.z)
    if along is None:
        guess = point.z + step * units * point.tangent
    else:
        guess = point.z + step / point.tangent[along] * units * point.tangent
        normal = np.zeros(len(point.z))
        normal[along] = 1.0
    found = correct_predicted_point(system, guess, point.matrix, normal, tolerance)
    if found is None:
        return None
    z, _, residual, count = found
    try:
        matrix = system.residual_jacobian(z)
    except DOMAIN_ERRORS:
        return None
    if not np.isfinite(matrix).all():
        return None
    tangent = unit_tangent(system, z, matrix, point.tangent)
    moved = (z - point.z) / units
    turned = np.arccos(np.clip(tangent @ point.tangent, -1, 1))
    ahead = float(np.sign(moved @ point.tangent))
    if turned > ContinuationOptions.current().max_angle or (along is None and ahead * step <= 0):
        return None
    arclength = point.arclength + ahead * float(np.linalg.norm(moved))
    return CurvePoint(z, tangent, matrix, residual, arclength, count)


def next_curve_point(
    system: ContinuationSystem, point: CurvePoint, step: float, tolerance: float, ends: tuple[float, float]
) -> tuple[CurvePoint | None, float | None]:
    """Return the next point of the curve, and the interval end at which the step was shortened, or None.

    Equations need not be defined outside the interval: no step is taken there.

    Args:
        system: the equations.
        point: the point to step from.
        step: step length in units of the unknowns.
        tolerance: largest residual.
        ends: ends of the interval of the last unknown.
    """
    low, high = min(ends), max(ends)
    last, unit = point.z[-1], system.units_of_unknowns(point.z)[-1]

    def crossed_interval_end(value: float) -> float | None:
        return low if value < low else high if value > high else None

    edge = crossed_interval_end(last + step * unit * point.tangent[-1])
    if edge is None:
        ahead = step_along_curve(system, point, step, tolerance)
        edge = None if ahead is None else crossed_interval_end(ahead.z[-1])
        if edge is None:
            return ahead, None
    distance = (edge - last) / unit
    if abs(distance) < 1e-9:
        return None, edge
    ahead = step_along_curve(system, point, distance, tolerance, along=len(point.z) - 1)
    if ahead is None:
        return None, None
    return replace(ahead, z=np.append(ahead.z[:-1], edge)), edge


@dataclass
class StepLengthControl:
    """The length of the next continuation step, adapted to the convergence of the corrector.

    Attributes:
        step: length of the next step, in units of the unknowns.
        smallest: length below which the continuation ends.
        largest: upper bound of the length.
        growth: factor of the length after the corrector converged fast.
        shrinkage: factor of the length after the corrector failed.
        easy: number of evaluations up to which the corrector counts as fast.
    """

    step: float = 0.05
    smallest: float = 1e-3
    largest: float = 0.15
    growth: float = 1.5
    shrinkage: float = 0.5
    easy: int = 5

    def adapt_step_length(self, point: CurvePoint | None) -> None:
        """Shorten the next step if the last one failed; lengthen it if the corrector converged fast."""
        if point is None:
            self.step *= self.shrinkage
        elif point.evaluations <= self.easy:
            self.step = min(self.step * self.growth, self.largest)

    @property
    def is_step_too_short(self) -> bool:
        """Return whether the step length has fallen below the smallest one, so that the continuation ends."""
        return self.step < self.smallest


@dataclass
class CurveContinuation:
    """A solution curve computed point by point from one end of an interval of its last unknown to the other.

    Attributes:
        system: the equations.
        first_guess: guess of the first point.
        ends: ends of the interval of the last unknown.
        tolerance: function that returns the largest residual of a corrected point; called at every step.
        start_failure: message of the error if the first point is not found.
        lost: function of the unknowns that returns why the curve has no next point there.
        name: name of the last unknown, as "alpha = ", for `ending`.
        control: control of the step length of the continuation.
        point: the last point; callers that refine it by finer equations store the refined point here.
        ending: the reason why the continuation ended; empty while it goes on.
    """

    system: ContinuationSystem
    first_guess: np.ndarray
    ends: tuple[float, float]
    tolerance: Callable[[], float]
    start_failure: str
    lost: Callable[[np.ndarray], str]
    name: str = ""
    control: StepLengthControl = field(default_factory=StepLengthControl)
    point: CurvePoint = field(init=False)
    ending: str = ""

    def end_continuation(self, reason: str) -> None:
        """End the continuation at the last point and store the reason; a second call changes nothing."""
        self.ending = self.ending or reason

    def continuation_points(self, most: int) -> Iterator[CurvePoint]:
        """Yield points of the curve until the interval ends, a step fails, or `end_continuation` is called.

        At most `most` points are yielded.

        Raises:
            NotConvergedError: the first point is not found.
        """
        toward = np.zeros(len(self.first_guess))
        toward[-1] = np.sign(self.ends[1] - self.ends[0])
        upcoming = first_curve_point(self.system, self.first_guess, self.tolerance(), toward)
        if upcoming is None:
            raise NotConvergedError(self.start_failure)
        count = 0
        while True:
            if upcoming is not None:
                self.point, count = upcoming, count + 1
                yield upcoming
            elif self.control.is_step_too_short:
                self.end_continuation(self.lost(self.point.z))
            if count >= most:
                self.end_continuation(f"stopped after {most} points")
            if self.ending:
                return
            upcoming, edge = next_curve_point(self.system, self.point, self.control.step, self.tolerance(), self.ends)
            self.control.adapt_step_length(upcoming)
            if edge is not None:
                self.end_continuation(f"{self.name}{edge:g} reached")
