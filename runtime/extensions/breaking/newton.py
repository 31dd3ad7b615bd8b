"""Newton's method for the saddle point with broken replica symmetry, at fixed y or with dPhi/dy = 0."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...base.errors import DomainError
from ...base.options import AlgorithmOptions
from ...base.progress import report_remaining_work
from ...saddle_point.difference_jacobian import jacobian_by_differences
from .state import BrokenState
from .state_map import BreakingMap, MapEvaluation


@dataclass(frozen=True)
class BreakingNewtonOptions(AlgorithmOptions):
    """Options of Newton's method for states with broken replica symmetry.

    Attributes:
        max_step: largest step of an unknown, in block scales; smaller is safer, and slower.
        min_update_step: smallest step after which the Jacobian is updated (Broyden); kinks dominate shorter
            differences.
        max_halvings: largest number of halvings of a step that leaves the domain.
        damping: weight of the new iterate in a damped step.
        min_distance: size of Delta relative to q below which replica symmetry counts as unbroken.
    """

    max_step: float = 0.5
    min_update_step: float = 1e-4
    max_halvings: int = 20
    damping: float = 0.5
    min_distance: float = 1e-6


@dataclass(frozen=True)
class NewtonResult:
    """The last iterate of Newton's method for states with broken replica symmetry.

    Attributes:
        state: last state.
        rates: Parisi parameter y of every level, (K,).
        answer: map evaluated at the last state.
        residual: max |G(u) - u| over block scales, and of y dPhi/dy over |Phi| where y is an unknown.
        matrix: Jacobian of the equations in (u, log y); None where it was not computed.
        evaluations: number of evaluations of the map.
    """

    state: BrokenState
    rates: np.ndarray
    answer: MapEvaluation
    residual: float
    matrix: np.ndarray | None
    evaluations: int

    @property
    def outermost_parisi_parameter(self) -> float:
        """The Parisi parameter of the outermost level."""
        return float(self.rates[0])

    @property
    def outermost_derivative_in_y(self) -> float:
        """The derivative dPhi/dy of the free entropy for the outermost level."""
        return float(self.answer.slopes[0])


@dataclass
class BreakingEquations:
    """The equations G(u) - u = 0 for states with the symmetry of the problem, and y dPhi/dy = 0 if y is an unknown.

    The unknowns are coordinates along symmetric directions, then log y.
    """

    breaking_map: BreakingMap
    with_y: bool
    directions: np.ndarray
    evaluations: int = 0

    @classmethod
    def with_fixed_rule(
        cls, breaking_map: BreakingMap, state: BrokenState, rates: np.ndarray, with_y: bool
    ) -> BreakingEquations:
        """Return the equations at a state, with a quadrature rule whose grids no longer change with the state.

        Args:
            breaking_map: the map of states.
            state: the state.
            rates: y of every level, (K,).
            with_y: whether y is an unknown.
        """
        return cls(breaking_map.with_fixed_rule_at(state, rates), with_y, breaking_map.symmetric_directions(state))

    def symmetric_coordinates(self, packed: np.ndarray) -> np.ndarray:
        """Return the coordinates of a packed state along the symmetric directions, (k,)."""
        return self.directions @ packed / np.abs(self.directions).sum(axis=1)

    def packed_state_from_coordinates(self, coordinates: np.ndarray) -> np.ndarray:
        """Return the packed state with given coordinates along the symmetric directions."""
        return coordinates[: len(self.directions)] @ self.directions

    def unknowns_from_state(self, state: BrokenState, rates: np.ndarray) -> np.ndarray:
        """Return the unknowns of the equations: coordinates of a state, and log y if y is an unknown.

        Args:
            state: the state.
            rates: y of every level, (K,).
        """
        z = self.symmetric_coordinates(state.pack())
        return np.append(z, np.log(rates)) if self.with_y else z

    def state_from_unknowns(
        self, z: np.ndarray, like: BrokenState, rates: np.ndarray
    ) -> tuple[BrokenState, np.ndarray]:
        """Return the state and the Parisi parameters y that belong to given unknowns.

        Args:
            z: unknowns of the equations.
            like: state with the same sizes.
            rates: y of every level, (K,), used where y is not an unknown.
        """
        own = np.exp(z[len(self.directions) :]) if self.with_y else rates
        return BrokenState.unpack(self.packed_state_from_coordinates(z), like.overlap_sizes), own

    def evaluate_residuals(self, state: BrokenState, rates: np.ndarray) -> tuple[np.ndarray, MapEvaluation]:
        """Evaluate the map at a state and return the residuals of the equations with the evaluated map.

        Args:
            state: the state.
            rates: y of every level, (K,).
        """
        self.evaluations += 1
        answer = self.breaking_map(state, rates)
        return self.equation_residuals(answer, state, rates), answer

    def equation_residuals(self, answer: MapEvaluation, state: BrokenState, rates: np.ndarray) -> np.ndarray:
        """Return the residuals of the equations from the map evaluated at a state.

        Args:
            answer: map evaluated at the state.
            state: the state.
            rates: y of every level, (K,).
        """
        gap = self.symmetric_coordinates(answer.image.pack() - state.pack())
        return np.append(gap, rates * answer.slopes) if self.with_y else gap

    def unknown_and_equation_scales(self, state: BrokenState, answer: MapEvaluation) -> tuple[np.ndarray, np.ndarray]:
        """Return the typical sizes of the unknowns and of the equations.

        Args:
            state: the state.
            answer: map evaluated at the state.
        """
        scales = np.max(np.abs(self.directions) * state.block_scales, axis=1)
        if not self.with_y:
            return scales, scales
        ones = np.ones(len(answer.slopes))
        return np.append(scales, ones), np.append(scales, abs(answer.free_entropy) * ones)

    def jacobian(
        self, z: np.ndarray, like: BrokenState, rates: np.ndarray, base: np.ndarray, answer: MapEvaluation
    ) -> np.ndarray:
        """Return the Jacobian of the equations by one-sided finite differences.

        Args:
            z: unknowns of the equations.
            like: state with the same sizes.
            rates: y of every level, (K,), used where y is not an unknown.
            base: residuals at the unknowns.
            answer: map evaluated at the unknowns.

        Raises:
            DomainError: the differences in both directions leave the domain.
        """
        scales, _ = self.unknown_and_equation_scales(self.state_from_unknowns(z, like, rates)[0], answer)

        def residuals_at_unknowns(moved: np.ndarray) -> np.ndarray:
            return self.evaluate_residuals(*self.state_from_unknowns(moved, like, rates))[0]

        return jacobian_by_differences(residuals_at_unknowns, z, self.breaking_map.rule.step * scales, base)


def iterate_damped_map(breaking_map: BreakingMap, state: BrokenState, rates: np.ndarray, steps: int) -> BrokenState:
    """Return the state after damped steps of V and Delta at given y; q of one minimiser, m and theta are fixed.

    Args:
        breaking_map: the map of states.
        state: initial state.
        rates: y of every level, (K,).
        steps: number of steps.

    Raises:
        DomainError: a step leaves the domain.
    """
    held, weight = state.minimiser_overlaps, BreakingNewtonOptions.current().damping
    for _ in range(steps):
        image = breaking_map(state, rates).image
        V = (1 - weight) * state.between.V + weight * image.between.V
        distances = (1 - weight) * state.distances + weight * image.distances
        state = BrokenState(replace(held, q=held.q - distances.sum(axis=0), V=V), distances)
    return state


def solve_states_by_newton(
    breaking_map: BreakingMap,
    state: BrokenState,
    rates: np.ndarray,
    tolerance: float,
    with_y: bool = False,
    matrix: np.ndarray | None = None,
    most: int = 40,
) -> NewtonResult:
    """Solve for a state with broken replica symmetry by Newton's method with a limited step.

    The residual of the result may be above the tolerance. The Jacobian is updated (Broyden), and recomputed where a
    step reduces the residual too little.

    Args:
        breaking_map: the map of states.
        state: initial state.
        rates: y of every level, (K,); initial values if y is an unknown.
        tolerance: required residual.
        with_y: whether to solve for y as well, by dPhi/dy = 0.
        matrix: Jacobian of the same equations nearby.
        most: largest number of iterations.

    Raises:
        DomainError: no step stays inside the domain.
    """
    options = BreakingNewtonOptions.current()
    equations = BreakingEquations.with_fixed_rule(breaking_map, state, rates, with_y)
    z = equations.unknowns_from_state(state, rates)
    gap, answer = equations.evaluate_residuals(*equations.state_from_unknowns(z, state, rates))
    best, before = np.inf, np.inf
    stalls = 0
    fresh = False
    for _ in range(most):
        at, rates_at = equations.state_from_unknowns(z, state, rates)
        scales, units = equations.unknown_and_equation_scales(at, answer)
        residual = float(np.max(np.abs(gap) / units))
        shown = "y = " + ", ".join(f"{y:.4g}" for y in rates_at)
        report_remaining_work(f"broken replica symmetry, {shown}: residual {residual:.0e}, goal {tolerance:.0e}")
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
                gap_there, answer = equations.evaluate_residuals(*equations.state_from_unknowns(tried, state, rates))
                break
            except DomainError:
                length /= 2
        else:
            raise DomainError(f"no Newton step remains in the domain of states with broken replica symmetry, {shown}")
        step = (tried - z) / scales
        if np.abs(step).max() > options.min_update_step:
            matrix = matrix + np.outer(gap_there - gap - matrix @ (tried - z), step / scales) / float(step @ step)
        z, gap = tried, gap_there
    at, rates_at = equations.state_from_unknowns(z, state, rates)
    _, units = equations.unknown_and_equation_scales(at, answer)
    residual = float(np.max(np.abs(gap) / units))
    return NewtonResult(at, rates_at, answer, residual, matrix, equations.evaluations)
