"""Newton's method on the saddle point with replica symmetry broken, at Parisi parameters y or with dPhi/dy = 0."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...base.errors import DomainError
from ...base.options import AlgorithmOptions
from ...base.progress import report_remaining
from ...saddle_point.difference_jacobian import jacobian_by_differences
from .state import BrokenState
from .state_map import BreakingMap, MapEvaluation


@dataclass(frozen=True)
class BreakingNewtonOptions(AlgorithmOptions):
    """Options of Newton's method for states with broken replica symmetry.

    Attributes:
        max_step: largest step of an unknown, in block scales; smaller is safer, and slower.
        min_update_step: least step with a Broyden update: kinks on a grid dominate the difference of a shorter one.
        max_halvings: halvings of a step that leaves the domain.
        damping: weight of the new iterate in a damped step.
        min_distance: Delta relative to q below which there is no breaking.
    """

    max_step: float = 0.5
    min_update_step: float = 1e-4
    max_halvings: int = 20
    damping: float = 0.5
    min_distance: float = 1e-6


@dataclass(frozen=True)
class NewtonResult:
    """The result of a Newton iteration.

    Attributes:
        state, rates: the last state, and y of every level (K,); answer: the map evaluated there.
        residual: max |G(u) - u| over block scales, and of y dPhi/dy over |Phi| where y is solved for.
        matrix: Jacobian of the equations in (u, log y); None where it was not taken.
        evaluations: number of evaluations of the map.
    """

    state: BrokenState
    rates: np.ndarray
    answer: MapEvaluation
    residual: float
    matrix: np.ndarray | None
    evaluations: int

    @property
    def outer_rate(self) -> float:
        """The Parisi parameter of the outermost level."""
        return float(self.rates[0])

    @property
    def outer_slope(self) -> float:
        """The derivative dPhi/dy of the outermost level."""
        return float(self.answer.slopes[0])


@dataclass
class Equations:
    """The equations G(u) - u = 0 in coordinates along symmetric directions, and y dPhi/dy = 0 if y is unknown.

    The unknowns log y are the last ones.
    """

    breaking_map: BreakingMap
    with_y: bool
    directions: np.ndarray
    evaluations: int = 0

    @classmethod
    def at_state(cls, breaking_map: BreakingMap, state: BrokenState, rates: np.ndarray, with_y: bool) -> Equations:
        """Return the equations with a rule of integration that is fixed at a state.

        Args:
            breaking_map: the map of states.
            state: the state.
            rates: y of every level, (K,).
            with_y: whether y is unknown.
        """
        return cls(breaking_map.fixed_at(state, rates), with_y, breaking_map.directions(state))

    def coordinates(self, packed: np.ndarray) -> np.ndarray:
        """Return the coordinates of a packed state, (k,)."""
        return self.directions @ packed / np.abs(self.directions).sum(axis=1)

    def packed_state(self, coordinates: np.ndarray) -> np.ndarray:
        """Return the packed state of coordinates, without log y."""
        return coordinates[: len(self.directions)] @ self.directions

    def unknowns_of(self, state: BrokenState, rates: np.ndarray) -> np.ndarray:
        """Return the unknowns: coordinates, and log y if it is unknown.

        Args:
            state: the state.
            rates: y of every level, (K,).
        """
        z = self.coordinates(state.pack())
        return np.append(z, np.log(rates)) if self.with_y else z

    def state_of(self, z: np.ndarray, like: BrokenState, rates: np.ndarray) -> tuple[BrokenState, np.ndarray]:
        """Return state and y of unknowns.

        Args:
            z: the unknowns.
            like: a state of the same sizes.
            rates: y of every level where it is not unknown, (K,).
        """
        own = np.exp(z[len(self.directions) :]) if self.with_y else rates
        return BrokenState.unpack(self.packed_state(z), like.sizes), own

    def evaluate(self, state: BrokenState, rates: np.ndarray) -> tuple[np.ndarray, MapEvaluation]:
        """Return the residuals of the equations and the map evaluated at a state.

        Args:
            state: the state.
            rates: y of every level, (K,).
        """
        self.evaluations += 1
        answer = self.breaking_map(state, rates)
        return self.residuals(answer, state, rates), answer

    def residuals(self, answer: MapEvaluation, state: BrokenState, rates: np.ndarray) -> np.ndarray:
        """Return the residuals of the equations.

        Args:
            answer: the map evaluated at the state.
            state: the state.
            rates: y of every level, (K,).
        """
        gap = self.coordinates(answer.image.pack() - state.pack())
        return np.append(gap, rates * answer.slopes) if self.with_y else gap

    def scales(self, state: BrokenState, answer: MapEvaluation) -> tuple[np.ndarray, np.ndarray]:
        """Return the scales of the unknowns and of the equations.

        Args:
            state: the state.
            answer: the map evaluated there.
        """
        scales = np.max(np.abs(self.directions) * state.block_scales, axis=1)
        if not self.with_y:
            return scales, scales
        ones = np.ones(len(answer.slopes))
        return np.append(scales, ones), np.append(scales, abs(answer.free_entropy) * ones)

    def jacobian(
        self, z: np.ndarray, like: BrokenState, rates: np.ndarray, base: np.ndarray, answer: MapEvaluation
    ) -> np.ndarray:
        """Return the Jacobian of the equations by one-sided differences.

        Args:
            z: the unknowns.
            like: a state of the same sizes.
            rates: y of every level where it is not unknown, (K,).
            base: residuals at z.
            answer: the map evaluated there.

        Raises:
            DomainError: both sides leave the domain.
        """
        scales, _ = self.scales(self.state_of(z, like, rates)[0], answer)

        def gap_at(moved: np.ndarray) -> np.ndarray:
            return self.evaluate(*self.state_of(moved, like, rates))[0]

        return jacobian_by_differences(gap_at, z, self.breaking_map.rule.step * scales, base)


def iterate_damped(breaking_map: BreakingMap, state: BrokenState, rates: np.ndarray, steps: int) -> BrokenState:
    """Return the state after damped steps of V and Delta at given y, with q of one minimiser, m and theta fixed.

    Args:
        breaking_map: the map of states.
        state: the start.
        rates: y of every level, (K,).
        steps: number of steps.

    Raises:
        DomainError: they leave the domain.
    """
    held, weight = state.within, BreakingNewtonOptions.current().damping
    for _ in range(steps):
        image = breaking_map(state, rates).image
        V = (1 - weight) * state.between.V + weight * image.between.V
        distances = (1 - weight) * state.distances + weight * image.distances
        state = BrokenState(replace(held, q=held.q - distances.sum(axis=0), V=V), distances)
    return state


def solve_newton(
    breaking_map: BreakingMap,
    state: BrokenState,
    rates: np.ndarray,
    tolerance: float,
    with_y: bool = False,
    matrix: np.ndarray | None = None,
    most: int = 40,
) -> NewtonResult:
    """Solve for a state by Newton's method with a limited step; it may end above the tolerance.

    The Jacobian is updated (Broyden), and recomputed where a step reduces the residual too little.

    Args:
        breaking_map: the map of states.
        state: the start.
        rates: y of every level, (K,); the start where it is unknown.
        tolerance: of the residual.
        with_y: whether y is solved for as well, by dPhi/dy = 0.
        matrix: Jacobian of the same equations nearby.
        most: iterations at most.

    Raises:
        DomainError: no step stays inside the domain.
    """
    equations, options = Equations.at_state(breaking_map, state, rates, with_y), BreakingNewtonOptions.current()
    z = equations.unknowns_of(state, rates)
    gap, answer = equations.evaluate(*equations.state_of(z, state, rates))
    best, before = np.inf, np.inf
    stalls = 0
    fresh = False
    for _ in range(most):
        at, rates_at = equations.state_of(z, state, rates)
        scales, units = equations.scales(at, answer)
        residual = float(np.max(np.abs(gap) / units))
        shown = ", ".join(f"{y:.4g}" for y in rates_at)
        report_remaining(f"breaking at y = {shown}: residual {residual:.0e}, asked {tolerance:.0e}")
        stalls = 0 if residual < 0.5 * best else stalls + 1
        best = min(best, residual)
        if (residual < tolerance and matrix is not None) or stalls > 3:
            break
        if matrix is None or (not fresh and residual > breaking_map.rule.max_residual_ratio * before):
            matrix, fresh = equations.jacobian(z, state, rates, gap, answer), True
        else:
            fresh = False
        before = residual
        try:
            move = np.linalg.solve(matrix / units[:, None] * scales, -gap / units) * scales
        except np.linalg.LinAlgError:
            break
        length = min(1.0, options.max_step / max(float(np.max(np.abs(move) / scales)), 1e-300))
        for _ in range(options.max_halvings):
            try:
                tried = z + length * move
                gap_there, answer = equations.evaluate(*equations.state_of(tried, state, rates))
                break
            except DomainError:
                length /= 2
        else:
            raise DomainError("no step stays inside the domain of broken replica symmetry")
        step = (tried - z) / scales
        if np.abs(step).max() > options.min_update_step:
            matrix = matrix + np.outer(gap_there - gap - matrix @ (tried - z), step / scales) / float(step @ step)
        z, gap = tried, gap_there
    at, rates_at = equations.state_of(z, state, rates)
    _, units = equations.scales(at, answer)
    residual = float(np.max(np.abs(gap) / units))
    return NewtonResult(at, rates_at, answer, residual, matrix, equations.evaluations)
