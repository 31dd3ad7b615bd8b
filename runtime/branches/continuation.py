"""Pseudo-arclength continuation: the curve of solutions of n equations in n + 1 unknowns (Keller's method).

Nothing here knows of saddle points: a `System` states its equations, their slopes and their units. The parts are those
of textbooks: `step_from` predicts along the tangent; `correct` is Newton's method on the equations and the plane across
the predicted direction, which has a solution at folds too, with Broyden's rank-one corrections of the slopes;
`StepControl` chooses the length of the next step; `Continuation` goes from point to point. Events between two points
are found by those who ask for them (`following.walk`, `following.critical`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from ..base.errors import OUTSIDE, NotConvergedError

_ANGLE = 0.35  # largest turn of the tangent in a step, radians
_MOST = 14  # evaluations of a corrector


class System(Protocol):
    """n equations in n + 1 unknowns."""

    def residual(self, z: np.ndarray) -> np.ndarray:
        """The equations (n,), each in units in which it is of order one; raises DomainError outside their domain."""
        ...

    def slopes(self, z: np.ndarray) -> np.ndarray:
        """Their derivatives (n, n + 1)."""
        ...

    def units(self, z: np.ndarray) -> np.ndarray:
        """The size of every unknown, (n + 1,), in which steps are measured."""
        ...

    def idle(self, z: np.ndarray) -> np.ndarray:
        """Orthonormal directions (n + 1, k), in these units, along which a symmetry makes the equations hold anyway."""
        ...


@dataclass(frozen=True)
class Place:
    """A point of the curve.

    Attributes:
        z: unknowns (n + 1,); tangent: unit vector along the curve in the system's units.
        matrix: slopes (n, n + 1) there; residual: largest entry of the equations.
        arclength: from the first place, in the system's units.
    """

    z: np.ndarray
    tangent: np.ndarray
    matrix: np.ndarray
    residual: float
    arclength: float = 0.0
    evaluations: int = 0


def tangent_of(system: System, z: np.ndarray, matrix: np.ndarray, along: np.ndarray) -> np.ndarray:
    """The unit vector, in the system's units, along which the equations keep holding, turned toward `along`."""
    rows = np.concatenate([matrix * system.units(z), system.idle(z).T])
    found = np.linalg.svd(rows, full_matrices=True)[2][-1]
    return found if found @ along >= 0 else -found


def correct(
    system: System,
    z: np.ndarray,
    matrix: np.ndarray,
    across: np.ndarray,
    tolerance: float,
    level: float = 0.0,
    most: int = _MOST,
) -> tuple[np.ndarray, np.ndarray, float, int] | None:
    """Newton's method on the equations and on across . (z' - z) / units = level, from z.

    Returns:
        unknowns, slopes as Broyden's corrections left them, residual, evaluations; None where it did not converge.
    """
    units = system.units(z)
    start, scaled = z.copy(), matrix * units
    before: tuple[np.ndarray, np.ndarray] | None = None
    best = np.inf
    for count in range(1, most + 1):
        try:
            values = system.residual(z)
        except OUTSIDE:
            return None
        if not np.isfinite(values).all():
            return None
        if before is not None:
            step, change = (z - before[0]) / units, values - before[1]
            scaled = scaled + np.outer(change - scaled @ step, step) / (step @ step)
        here = (z - start) / units
        gap = np.concatenate([values, [across @ here - level]])
        size = float(np.max(np.abs(gap)))
        if size <= tolerance:
            return z, scaled / units, float(np.max(np.abs(values))), count
        if count > 3 and size > 10 * best:
            return None
        best = min(best, size)
        idle = system.idle(z)
        rows = np.concatenate([scaled, across[None], idle.T])
        move = np.linalg.lstsq(rows, -np.concatenate([gap, np.zeros(idle.shape[1])]), rcond=1e-12)[0]
        if not np.linalg.norm(move) < 2.0:
            return None
        before = z, values
        z = z + units * move
    return None


def begin(system: System, z: np.ndarray, tolerance: float, toward: np.ndarray) -> Place | None:
    """The first place, corrected with the last unknown held fixed, its tangent turned toward a direction (n + 1,)."""
    fixed = np.zeros(len(z))
    fixed[-1] = 1.0
    try:
        found = correct(system, z, system.slopes(z), fixed, tolerance)
        if found is None:
            return None
        z, _, residual, count = found
        matrix = system.slopes(z)
    except OUTSIDE:
        return None
    return Place(z, tangent_of(system, z, matrix, toward), matrix, residual, 0.0, count)


def step_from(system: System, place: Place, step: float, tolerance: float, along: int | None = None) -> Place | None:
    """The place a step further along the tangent, or None where it cannot be reached.

    Args:
        step: in the system's units; negative goes back.
        along: measure the step along this unknown only, so that it ends at a given value of it.
    """
    across = place.tangent
    units = system.units(place.z)
    if along is None:
        guess = place.z + step * units * place.tangent
    else:
        guess = place.z + step / place.tangent[along] * units * place.tangent
        across = np.zeros(len(place.z))
        across[along] = 1.0
    found = correct(system, guess, place.matrix, across, tolerance)
    if found is None:
        return None
    z, _, residual, count = found
    try:
        matrix = system.slopes(z)
    except OUTSIDE:
        return None
    if not np.isfinite(matrix).all():
        return None
    tangent = tangent_of(system, z, matrix, place.tangent)
    moved = (z - place.z) / units
    turned = np.arccos(np.clip(tangent @ place.tangent, -1, 1))
    ahead = float(np.sign(moved @ place.tangent))
    if turned > _ANGLE or (along is None and ahead * step <= 0):
        return None
    return Place(z, tangent, matrix, residual, place.arclength + ahead * float(np.linalg.norm(moved)), count)


def onward(
    system: System, place: Place, step: float, tolerance: float, ends: tuple[float, float]
) -> tuple[Place | None, float | None]:
    """The next place, at an end of the last unknown's interval where the step would lead beyond it, and that end.

    What lies beyond need not mean anything: a step that is seen to lead there is not tried.
    """
    low, high = min(ends), max(ends)
    last, unit = place.z[-1], system.units(place.z)[-1]

    def edge_of(value: float) -> float | None:
        return low if value < low else high if value > high else None

    edge = edge_of(last + step * unit * place.tangent[-1])
    if edge is None:
        ahead = step_from(system, place, step, tolerance)
        edge = None if ahead is None else edge_of(ahead.z[-1])
        if edge is None:
            return ahead, None
    distance = (edge - last) / unit
    if abs(distance) < 1e-9:
        return None, edge
    ahead = step_from(system, place, distance, tolerance, along=len(place.z) - 1)
    if ahead is None:
        return None, None
    return replace(ahead, z=np.append(ahead.z[:-1], edge)), edge


@dataclass
class StepControl:
    """The length of the next step, in the system's units: short steps find every turn, long ones take less time.

    Attributes:
        step: the first step, then the next one; smallest, largest: of any step.
        growth, shrinkage: factors after a point that was found with ease, and after none.
        easy: evaluations of a corrector up to which a point was found with ease.
    """

    step: float = 0.05
    smallest: float = 1e-3
    largest: float = 0.15
    growth: float = 1.5
    shrinkage: float = 0.5
    easy: int = 5

    def adapt(self, place: Place | None) -> None:
        """Shorten the next step if the last one led to no point, lengthen it if the point was found with ease."""
        if place is None:
            self.step *= self.shrinkage
        elif place.evaluations <= self.easy:
            self.step = min(self.step * self.growth, self.largest)

    @property
    def exhausted(self) -> bool:
        """Whether steps have been shortened below the smallest, so that nothing further is to be found."""
        return self.step < self.smallest


@dataclass
class Continuation:
    """A curve continued point by point from one end of an interval of its last unknown toward the other.

    Attributes:
        begun: unknowns to begin from; ends: of the interval.
        tolerance: largest residual of a corrected point, asked for at every step.
        no_beginning: what the error says where the first point is not found; lost: why it ends at a point without a
            next one.
        name: of the last unknown, as "alpha = ", where `ending` is to name it.
        place: the last point; whoever corrects it by finer equations puts the finer one here.
        ending: why it was not continued further, in words; empty before.
    """

    system: System
    begun: np.ndarray
    ends: tuple[float, float]
    tolerance: Callable[[], float]
    no_beginning: str
    lost: Callable[[np.ndarray], str]
    name: str = ""
    control: StepControl = field(default_factory=StepControl)
    place: Place = field(init=False)
    ending: str = ""

    def stop(self, reason: str) -> None:
        """Continue no further than the point at hand; of several reasons the first stays as `ending`."""
        self.ending = self.ending or reason

    def places(self, most: int) -> Iterator[Place]:
        """Yield points until the interval is left, nothing further is found, there are `most`, or `stop` is called.

        Raises:
            NotConvergedError: the first point is not found.
        """
        toward = np.zeros(len(self.begun))
        toward[-1] = np.sign(self.ends[1] - self.ends[0])
        following = begin(self.system, self.begun, self.tolerance(), toward)
        if following is None:
            raise NotConvergedError(self.no_beginning)
        count = 0
        while True:
            if following is not None:
                self.place, count = following, count + 1
                yield following
            elif self.control.exhausted:
                self.stop(self.lost(self.place.z))
            if count >= most:
                self.stop(f"stopped after {most} points")
            if self.ending:
                return
            following, edge = onward(self.system, self.place, self.control.step, self.tolerance(), self.ends)
            self.control.adapt(following)
            if edge is not None:
                self.stop(f"{self.name}{edge:g} reached")
