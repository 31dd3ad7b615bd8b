"""Newton's method on the saddle point with replica symmetry broken, at Parisi parameters y or with dPhi/dy = 0."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...base.errors import DomainError
from ...base.progress import left
from ...saddle_point.slopes import differences
from .state import Broken
from .state_map import Answer, BreakingMap

_LARGEST = 0.5  # step, in the same units
_TELLING = 1e-4  # least step from which differences are updated: of a shorter one kinks on a grid tell more than slopes
_HALVINGS = 20
_SETTLING = 0.5  # weight on the new iterate of a damped step


@dataclass(frozen=True)
class Reached:
    """Where an iteration ended.

    Attributes:
        state, rates: there, y of every level (K,); answer: what follows from them.
        residual: max |G(u) - u| over block scales, and of y dPhi/dy over |Phi| where y is solved for.
        matrix: Jacobian of the equations in (u, log y); None where it was not taken.
        evaluations: of the map.
    """

    state: Broken
    rates: np.ndarray
    answer: Answer
    residual: float
    matrix: np.ndarray | None
    evaluations: int

    @property
    def y(self) -> float:
        """Of the outermost level: the one of one step."""
        return float(self.rates[0])

    @property
    def slope(self) -> float:
        """dPhi/dy of the same level."""
        return float(self.answer.slopes[0])


@dataclass
class Equations:
    """G(u) - u in coordinates along the directions that the symmetry leaves, and y dPhi/dy where y is an unknown, too:
    its logarithms stand last."""

    breaking_map: BreakingMap
    with_y: bool
    directions: np.ndarray
    evaluations: int = 0

    @classmethod
    def around(cls, breaking_map: BreakingMap, state: Broken, rates: np.ndarray, with_y: bool) -> Equations:
        """For looking around a state."""
        return cls(breaking_map.around(state, rates), with_y, breaking_map.directions(state))

    def coordinates(self, packed: np.ndarray) -> np.ndarray:
        """Of a packed state, (k,)."""
        return self.directions @ packed / np.abs(self.directions).sum(axis=1)

    def packed(self, coordinates: np.ndarray) -> np.ndarray:
        """The packed state of coordinates, log y left out."""
        return coordinates[: len(self.directions)] @ self.directions

    def unknowns(self, state: Broken, rates: np.ndarray) -> np.ndarray:
        """Coordinates, and log y."""
        z = self.coordinates(state.pack())
        return np.append(z, np.log(rates)) if self.with_y else z

    def state(self, z: np.ndarray, like: Broken, rates: np.ndarray) -> tuple[Broken, np.ndarray]:
        """Unpacked; `rates` where they are no unknowns."""
        own = np.exp(z[len(self.directions) :]) if self.with_y else rates
        return Broken.unpack(self.packed(z), like.sizes), own

    def values(self, state: Broken, rates: np.ndarray) -> tuple[np.ndarray, Answer]:
        """What is to vanish."""
        self.evaluations += 1
        answer = self.breaking_map(state, rates)
        return self.gap(answer, state, rates), answer

    def gap(self, answer: Answer, state: Broken, rates: np.ndarray) -> np.ndarray:
        """What is to vanish, of what follows from a state."""
        gap = self.coordinates(answer.image.pack() - state.pack())
        return np.append(gap, rates * answer.slopes) if self.with_y else gap

    def units(self, state: Broken, answer: Answer) -> tuple[np.ndarray, np.ndarray]:
        """Scales of the unknowns and of the equations."""
        scales = np.max(np.abs(self.directions) * state.block_scales, axis=1)
        if not self.with_y:
            return scales, scales
        ones = np.ones(len(answer.slopes))
        return np.append(scales, ones), np.append(scales, abs(answer.free_entropy) * ones)

    def matrix(self, z: np.ndarray, like: Broken, rates: np.ndarray, base: np.ndarray, answer: Answer) -> np.ndarray:
        """Derivatives of the equations by one-sided differences.

        Raises:
            DomainError: both sides leave the domain.
        """
        scales, _ = self.units(self.state(z, like, rates)[0], answer)

        def gap_at(moved: np.ndarray) -> np.ndarray:
            return self.values(*self.state(moved, like, rates))[0]

        return differences(gap_at, z, self.breaking_map.rule.step * scales, base)


def settled(breaking_map: BreakingMap, state: Broken, rates: np.ndarray, steps: int) -> Broken:
    """The state after damped steps of V and Delta at given y, everything else of one minimiser being held.

    Raises:
        DomainError: they leave the domain.
    """
    held = state.within
    for _ in range(steps):
        image = breaking_map(state, rates).image
        V = (1 - _SETTLING) * state.between.V + _SETTLING * image.between.V
        distances = (1 - _SETTLING) * state.distances + _SETTLING * image.distances
        state = Broken(replace(held, q=held.q - distances.sum(axis=0), V=V), distances)
    return state


def newton(
    breaking_map: BreakingMap,
    state: Broken,
    rates: np.ndarray,
    tolerance: float,
    with_y: bool = False,
    matrix: np.ndarray | None = None,
    most: int = 40,
) -> Reached:
    """Newton's method, no step longer than half of a block, from a state; it may end above the tolerance.

    Differences are taken again where a step with those updated (Broyden) leads the residual down too little.

    Args:
        with_y: whether y is solved for as well, by dPhi/dy = 0.
        matrix: derivatives of the same equations nearby.

    Raises:
        DomainError: no step stays inside the domain.
    """
    equations = Equations.around(breaking_map, state, rates, with_y)
    z = equations.unknowns(state, rates)
    gap, answer = equations.values(*equations.state(z, state, rates))
    best, before = np.inf, np.inf
    stalls = 0
    fresh = False
    for _ in range(most):
        at, rates_at = equations.state(z, state, rates)
        scales, units = equations.units(at, answer)
        residual = float(np.max(np.abs(gap) / units))
        told = ", ".join(f"{y:.4g}" for y in rates_at)
        left(f"breaking at y = {told}: residual {residual:.0e}, asked {tolerance:.0e}")
        stalls = 0 if residual < 0.5 * best else stalls + 1
        best = min(best, residual)
        if (residual < tolerance and matrix is not None) or stalls > 3:
            break
        if matrix is None or (not fresh and residual > breaking_map.rule.least_fall * before):
            matrix, fresh = equations.matrix(z, state, rates, gap, answer), True
        else:
            fresh = False
        before = residual
        try:
            move = np.linalg.solve(matrix / units[:, None] * scales, -gap / units) * scales
        except np.linalg.LinAlgError:
            break
        length = min(1.0, _LARGEST / max(float(np.max(np.abs(move) / scales)), 1e-300))
        for _ in range(_HALVINGS):
            try:
                tried = z + length * move
                gap_there, answer = equations.values(*equations.state(tried, state, rates))
                break
            except DomainError:
                length /= 2
        else:
            raise DomainError("no step stays inside the domain of broken replica symmetry")
        step = (tried - z) / scales
        if np.abs(step).max() > _TELLING:
            matrix = matrix + np.outer(gap_there - gap - matrix @ (tried - z), step / scales) / float(step @ step)
        z, gap = tried, gap_there
    at, rates_at = equations.state(z, state, rates)
    _, units = equations.units(at, answer)
    residual = float(np.max(np.abs(gap) / units))
    return Reached(at, rates_at, answer, residual, matrix, equations.evaluations)
