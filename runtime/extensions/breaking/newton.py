"""Newton's method for the saddle point with broken replica symmetry.

The Parisi parameters y are fixed, or found from dPhi/dy = 0, with Phi the free entropy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...base.errors import DomainError
from ...base.options import AlgorithmOptions
from ...base.progress import report_remaining_work
from ...saddle_point.difference_jacobian import jacobian_by_differences
from .state import BrokenSymmetryState
from .state_map import BrokenSymmetryMap, MapEvaluation


@dataclass(frozen=True)
class BreakingNewtonOptions(AlgorithmOptions):
    """Options of Newton's method for states with broken replica symmetry.

    Attributes:
        max_step: largest step of an unknown, relative to its block; smaller is safer, and slower.
        min_update_step: smallest step after which the Jacobian is updated (Broyden); kinks of the loss dominate the
            residual changes of shorter steps.
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
        rates: Parisi parameter of every level, (levels,).
        answer: saddle-point map evaluated at the last state.
        residual: largest change of the state under the saddle-point map, relative to the sizes of its blocks; where
            Parisi parameters are unknowns, also the derivative of the free entropy in their logarithms, relative to it.
        matrix: Jacobian of the equations in the unknowns; None where it was not computed.
        evaluations: number of evaluations of the saddle-point map.
    """

    state: BrokenSymmetryState
    rates: np.ndarray
    answer: MapEvaluation
    residual: float
    matrix: np.ndarray | None
    evaluations: int

    @property
    def outermost_parisi_parameter(self) -> float:
        """The Parisi parameter of the outermost level of broken replica symmetry."""
        return float(self.rates[0])

    @property
    def outermost_free_entropy_derivative(self) -> float:
        """The derivative of the free entropy in the Parisi parameter of the outermost level."""
        return float(self.answer.slopes[0])


@dataclass
class BrokenSymmetryEquations:
    """The saddle-point equations with broken replica symmetry, for states with the symmetry of the problem.

    The state equals its image under the saddle-point map. The unknowns are coordinates of the state along symmetric
    directions and, if asked for, the logarithms of the Parisi parameters, at which the free entropy is stationary.
    """

    breaking_map: BrokenSymmetryMap
    with_y: bool
    directions: np.ndarray
    evaluations: int = 0

    @classmethod
    def fix_quadrature_grids(
        cls, breaking_map: BrokenSymmetryMap, state: BrokenSymmetryState, rates: np.ndarray, with_y: bool
    ) -> BrokenSymmetryEquations:
        """Return the equations with a quadrature rule whose grids are adapted to one state and then kept fixed.

        Args:
            breaking_map: the saddle-point map.
            state: state to which the grids are adapted.
            rates: Parisi parameter of every level, (levels,).
            with_y: whether the Parisi parameters are unknowns.
        """
        return cls(breaking_map.fix_quadrature_at_state(state, rates), with_y, breaking_map.symmetric_directions(state))

    def symmetric_coordinates(self, packed: np.ndarray) -> np.ndarray:
        """Return the coordinates of a packed state along the directions with the symmetry of the problem."""
        return self.directions @ packed / np.abs(self.directions).sum(axis=1)

    def packed_state_from_coordinates(self, coordinates: np.ndarray) -> np.ndarray:
        """Return the packed state from its coordinates along the directions with the symmetry of the problem."""
        return coordinates[: len(self.directions)] @ self.directions

    def unknowns_from_state(self, state: BrokenSymmetryState, rates: np.ndarray) -> np.ndarray:
        """Return the vector of unknowns: coordinates of the state, then logarithms of unknown Parisi parameters.

        Args:
            state: the state.
            rates: Parisi parameter of every level, (levels,).
        """
        z = self.symmetric_coordinates(state.pack())
        return np.append(z, np.log(rates)) if self.with_y else z

    def state_from_unknowns(
        self, z: np.ndarray, like: BrokenSymmetryState, rates: np.ndarray
    ) -> tuple[BrokenSymmetryState, np.ndarray]:
        """Return the state and the Parisi parameters from the vector of unknowns.

        Args:
            z: vector of unknowns.
            like: state with the same numbers of (token, cluster) pairs and columns.
            rates: Parisi parameters, (levels,), used where they are not unknowns.
        """
        own = np.exp(z[len(self.directions) :]) if self.with_y else rates
        return BrokenSymmetryState.unpack(self.packed_state_from_coordinates(z), like.overlap_sizes), own

    def evaluate_residuals(self, state: BrokenSymmetryState, rates: np.ndarray) -> tuple[np.ndarray, MapEvaluation]:
        """Evaluate the saddle-point map at a state; return the residuals of the equations and the evaluated map.

        Args:
            state: the state.
            rates: Parisi parameter of every level, (levels,).
        """
        self.evaluations += 1
        answer = self.breaking_map(state, rates)
        return self.equation_residuals(answer, state, rates), answer

    def equation_residuals(self, answer: MapEvaluation, state: BrokenSymmetryState, rates: np.ndarray) -> np.ndarray:
        """Return the residuals of the equations from the saddle-point map evaluated at a state.

        Args:
            answer: saddle-point map evaluated at the state.
            state: the state.
            rates: Parisi parameter of every level, (levels,).
        """
        gap = self.symmetric_coordinates(answer.image.pack() - state.pack())
        return np.append(gap, rates * answer.slopes) if self.with_y else gap

    def unknown_and_equation_scales(
        self, state: BrokenSymmetryState, answer: MapEvaluation
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return two vectors: the scales by which unknowns, and those by which residuals, are divided.

        Args:
            state: the state.
            answer: saddle-point map evaluated at the state.
        """
        scales = np.max(np.abs(self.directions) * state.block_scales, axis=1)
        if not self.with_y:
            return scales, scales
        ones = np.ones(len(answer.slopes))
        return np.append(scales, ones), np.append(scales, abs(answer.free_entropy) * ones)

    def jacobian(
        self,
        z: np.ndarray,
        like: BrokenSymmetryState,
        rates: np.ndarray,
        base: np.ndarray,
        answer: MapEvaluation,
    ) -> np.ndarray:
        """Return the Jacobian of the equations by one-sided finite differences.

        Args:
            z: vector of unknowns.
            like: state with the same numbers of (token, cluster) pairs and columns.
            rates: Parisi parameters, (levels,), used where they are not unknowns.
            base: residuals at these unknowns.
            answer: saddle-point map evaluated at these unknowns.

        Raises:
            DomainError: steps of the differences leave the domain of the overlaps in both directions.
        """
        scales, _ = self.unknown_and_equation_scales(self.state_from_unknowns(z, like, rates)[0], answer)

        def residuals_at_unknowns(moved: np.ndarray) -> np.ndarray:
            return self.evaluate_residuals(*self.state_from_unknowns(moved, like, rates))[0]

        return jacobian_by_differences(residuals_at_unknowns, z, self.breaking_map.rule.step * scales, base)


def iterate_damped_map(
    breaking_map: BrokenSymmetryMap, state: BrokenSymmetryState, rates: np.ndarray, steps: int
) -> BrokenSymmetryState:
    """Iterate the saddle-point map with damping in V and Delta only, and return the last state.

    The overlaps q, m and theta of one minimiser are fixed.

    Args:
        breaking_map: the saddle-point map.
        state: initial state.
        rates: Parisi parameter of every level, (levels,).
        steps: number of iterations.

    Raises:
        DomainError: an iteration leaves the domain of the overlaps.
    """
    held, weight = state.minimiser_overlaps, BreakingNewtonOptions.current().damping
    for _ in range(steps):
        image = breaking_map(state, rates).image
        V = (1 - weight) * state.between.V + weight * image.between.V
        distances = (1 - weight) * state.distances + weight * image.distances
        state = BrokenSymmetryState(replace(held, q=held.q - distances.sum(axis=0), V=V), distances)
    return state


def solve_states_by_newton(
    breaking_map: BrokenSymmetryMap,
    state: BrokenSymmetryState,
    rates: np.ndarray,
    tolerance: float,
    with_y: bool = False,
    matrix: np.ndarray | None = None,
    most: int = 40,
) -> NewtonResult:
    """Solve the saddle point with broken replica symmetry by Newton's method with a limited step.

    The residual of the result may be above the tolerance. The Jacobian is updated (Broyden), and recomputed where a
    step reduces the residual too little.

    Args:
        breaking_map: the saddle-point map.
        state: initial state.
        rates: Parisi parameter of every level, (levels,); initial values if they are unknowns.
        tolerance: required residual.
        with_y: whether the Parisi parameters are unknowns, at which the free entropy is stationary.
        matrix: Jacobian of the same equations nearby; None to compute it.
        most: largest number of iterations.

    Raises:
        DomainError: no step stays inside the domain of the overlaps.
    """
    options = BreakingNewtonOptions.current()
    equations = BrokenSymmetryEquations.fix_quadrature_grids(breaking_map, state, rates, with_y)
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
            raise DomainError(f"every Newton step leaves the domain of states with broken replica symmetry at {shown}")
        step = (tried - z) / scales
        if np.abs(step).max() > options.min_update_step:
            matrix = matrix + np.outer(gap_there - gap - matrix @ (tried - z), step / scales) / float(step @ step)
        z, gap = tried, gap_there
    at, rates_at = equations.state_from_unknowns(z, state, rates)
    _, units = equations.unknown_and_equation_scales(at, answer)
    residual = float(np.max(np.abs(gap) / units))
    return NewtonResult(at, rates_at, answer, residual, matrix, equations.evaluations)
