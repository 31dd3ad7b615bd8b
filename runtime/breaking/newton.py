"""Newton's method on the saddle point of one-step breaking, at a given Parisi parameter y or with dPhi/dy = 0."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import DomainError
from ..progress import left
from .state import Broken
from .state_map import Answer, BreakingMap

_STEP = 1e-6  # of differences, in block scales and in log y
_LARGEST = 0.5  # step, in the same units
_HALVINGS = 20
_SETTLING = 0.5  # weight on the new iterate of a damped step


@dataclass(frozen=True)
class Reached:
    """Where an iteration ended.

    Attributes:
        state, y: there; answer: what follows from them.
        residual: max |G(u) - u| over block scales, and of y dPhi/dy over |Phi| where y is solved for.
        matrix: Jacobian of the equations in (u, log y); None where it was not taken.
        evaluations: of the map.
    """

    state: Broken
    y: float
    answer: Answer
    residual: float
    matrix: np.ndarray | None
    evaluations: int


@dataclass
class Equations:
    """G(u) - u, and y dPhi/dy where y is an unknown, too: its logarithm stands last."""

    breaking_map: BreakingMap
    with_y: bool
    evaluations: int = 0

    def unknowns(self, state: Broken, y: float) -> np.ndarray:
        """Packed."""
        return np.append(state.pack(), np.log(y)) if self.with_y else state.pack()

    def state(self, z: np.ndarray, like: Broken, y: float) -> tuple[Broken, float]:
        """Unpacked; `y` where it is no unknown."""
        if not self.with_y:
            return Broken.unpack(z, like.sizes), y
        return Broken.unpack(z[:-1], like.sizes), float(np.exp(z[-1]))

    def values(self, state: Broken, y: float) -> tuple[np.ndarray, Answer]:
        """What is to vanish."""
        self.evaluations += 1
        answer = self.breaking_map(state, y)
        gap = answer.image.pack() - state.pack()
        return (np.append(gap, y * answer.slope) if self.with_y else gap), answer

    def units(self, state: Broken, answer: Answer) -> tuple[np.ndarray, np.ndarray]:
        """Scales of the unknowns and of the equations."""
        scales = state.block_scales
        if not self.with_y:
            return scales, scales
        return np.append(scales, 1.0), np.append(scales, abs(answer.free_entropy))

    def matrix(self, z: np.ndarray, like: Broken, y: float, base: np.ndarray, answer: Answer) -> np.ndarray:
        """Derivatives of the equations by one-sided differences.

        Raises:
            DomainError: both sides leave the domain.
        """
        scales, _ = self.units(self.state(z, like, y)[0], answer)
        columns = []
        for i, scale in enumerate(scales):
            for way in (1.0, -1.0):
                step = way * _STEP * scale
                moved = z.copy()
                moved[i] += step
                try:
                    columns.append((self.values(*self.state(moved, like, y))[0] - base) / step)
                    break
                except DomainError:
                    if way < 0:
                        raise
        return np.stack(columns, axis=1)


def settled(breaking_map: BreakingMap, state: Broken, y: float, steps: int) -> Broken:
    """The state after damped steps at one y.

    Raises:
        DomainError: they leave the domain.
    """
    for _ in range(steps):
        image = breaking_map(state, y).image
        state = Broken.unpack((1 - _SETTLING) * state.pack() + _SETTLING * image.pack(), state.sizes)
    return state


def newton(
    breaking_map: BreakingMap, state: Broken, y: float, tolerance: float, with_y: bool = False, most: int = 30
) -> Reached:
    """Newton's method, no step longer than half of a block, from a state; it may end above the tolerance.

    Args:
        with_y: whether y is solved for as well, by dPhi/dy = 0.

    Raises:
        DomainError: no step stays inside the domain.
    """
    equations = Equations(breaking_map, with_y)
    z = equations.unknowns(state, y)
    gap, answer = equations.values(state, y)
    matrix: np.ndarray | None = None
    best = np.inf
    stalls = 0
    for _ in range(most):
        at, y_at = equations.state(z, state, y)
        scales, units = equations.units(at, answer)
        residual = float(np.max(np.abs(gap) / units))
        left(f"one-step breaking at y = {y_at:.4g}: residual {residual:.0e}, asked {tolerance:.0e}")
        stalls = 0 if residual < 0.5 * best else stalls + 1
        best = min(best, residual)
        if (residual < tolerance and matrix is not None) or stalls > 3:
            break
        matrix = equations.matrix(z, state, y, gap, answer)
        try:
            move = np.linalg.solve(matrix / units[:, None] * scales, -gap / units) * scales
        except np.linalg.LinAlgError:
            break
        length = min(1.0, _LARGEST / max(float(np.max(np.abs(move) / scales)), 1e-300))
        for _ in range(_HALVINGS):
            try:
                tried = z + length * move
                gap, answer = equations.values(*equations.state(tried, state, y))
                break
            except DomainError:
                length /= 2
        else:
            raise DomainError("no step stays inside the domain of one-step breaking")
        z = tried
    at, y_at = equations.state(z, state, y)
    _, units = equations.units(at, answer)
    residual = float(np.max(np.abs(gap) / units))
    return Reached(at, y_at, answer, residual, matrix, equations.evaluations)
