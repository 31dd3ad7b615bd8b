"""Pseudo-transient continuation, in coordinates relative to V and D = q - theta rho*^(-1) theta^T, however small.

If weights are nearly the teacher's, or many samples fix their direction, D is far smaller than q, and the map is
strongly nonlinear in q and theta even for steps that are small relative to q. With a weak regulariser damped iteration
converges slowly.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from ..base.errors import DomainError, TimeLimitError
from ..base.options import AlgorithmOptions
from ..base.progress import report_remaining_work
from ..problems.overlaps import Overlaps, Sizes, packed_overlap_slices
from ..problems.problem import Problem
from .difference_jacobian import jacobian_by_differences
from .domain import (
    conditional_covariance,
    explain_lost_digits_of_covariance,
    project_on_teacher,
    rounding_error_of_conditional_covariance,
)
from .iteration import FixedPoint, Status
from .state_map import SaddlePointMap, relative_residual


@dataclass(frozen=True)
class PseudoTransientOptions(AlgorithmOptions):
    """Options of pseudo-transient continuation: longer steps take fewer evaluations, but may lose the branch.

    Attributes:
        max_steps: largest number of implicit steps.
        initial_step: time of the first step; an undamped iteration takes time 1.
        growth_factor: ratio of a step to the previous one, or to a shorter retry.
        min_step: length of a step below which the continuation stops.
        max_log_change: largest change, within a step, of the logarithms of V and of the conditional covariance.
        growth_time_fraction: largest step length relative to the e-folding time of the fastest growing deviation.
        max_nonlinearity: largest deviation of the map from its linearisation, relative to the step.
        rounding_factor: ratio of residual to rounding error of q below which a residual that no longer falls counts as
            converged.
        max_floor: residual above which nothing counts as converged, whatever the rounding error.
        divergence_ratio: growth of q or V beyond which the weights count as unbounded.
    """

    max_steps: int = 300
    initial_step: float = 1.0
    growth_factor: float = 3.0
    min_step: float = 1e-4
    max_log_change: float = 1.0
    growth_time_fraction: float = 0.8
    max_nonlinearity: float = 0.75
    rounding_factor: float = 16.0
    max_floor: float = 1e-3
    divergence_ratio: float = 1e12


def pseudo_transient_continuation(
    state_map: SaddlePointMap, start: FixedPoint, tolerance: float, options: PseudoTransientOptions | None = None
) -> FixedPoint:
    """Return the stationary state of dx/dt = G(x) - x, for the saddle-point map G, by growing implicit Euler steps.

    Pseudo-transient continuation reaches the stable solutions of damped iteration, and converges like Newton's method
    (C. T. Kelley, D. E. Keyes, SIAM J. Numer. Anal. 35, 508, 1998). States x are in `CoordinatesAroundState`.

    Args:
        state_map: the saddle-point map G.
        start: state where the continuation starts.
        tolerance: residual at which the continuation ends, as far as rounding allows.
        options: options of the continuation; those in force by default.
    """
    options = options or PseudoTransientOptions.current()
    problem, sizes, visited, places = (
        state_map.problem,
        start.sizes,
        start.iterations,
        packed_overlap_slices(start.sizes),
    )
    u = state_map.symmetry.project_onto_invariant_states(start.u, sizes)
    point = replace(start, u=u, status=Status.MAX_ITERATIONS, jacobian=None, drift=0.0)
    length, before = options.initial_step, np.inf
    for step in range(options.max_steps):
        try:
            image = state_map(point.u, sizes)
            visited += 1
            point = replace(point, residual=relative_residual(image, point.u, sizes), iterations=visited)
            relative = RelativeSaddlePointMap(state_map, point.u, sizes)
            if relative.rounding > 1:
                break
            here, slopes = relative.residual_between_states(point.u, image), relative.jacobian_of_residual()
            residual = float(np.max(np.abs(here)))
            report_remaining_work(
                f"step {step} of at most {options.max_steps}: residual {residual:.0e}, asked {tolerance:.0e}"
            )
            component = np.argmax(relative.directions != 0, axis=1)
            of_D, logarithms = (component < places[name].stop for name in ("q", "V"))
            rounded = relative.rounding * float(np.max(np.abs(slopes[:, of_D]).sum(axis=1)))
            floor = min(options.rounding_factor * rounded, options.max_floor)
            growth = float(np.linalg.eigvals(slopes).real.max())
            length = min(length, options.growth_time_fraction / growth) if growth > 0 else length
            is_floor = before / 2 < residual <= floor
            found = None if is_floor else _implicit_euler_step(relative, here, slopes, logarithms, length, options)
            if residual <= tolerance or (found is None and residual <= floor):
                return replace(point, jacobian=relative.map_jacobian(slopes), status=Status.CONVERGED)
            if found is None:
                break
            move, length = found
            point, before = replace(point, u=relative.state_from_relative_coordinates(move)), residual
            visited += 1
            if np.max(np.abs(point.u)) > options.divergence_ratio * max(1.0, float(np.max(np.abs(start.u)))):
                return replace(point, status=Status.LEFT_DOMAIN)
        except TimeLimitError as error:
            error.point = replace(point, status=Status.TIME_LIMIT)
            raise
        except (DomainError, np.linalg.LinAlgError):
            break
    lost = (
        options.rounding_factor * rounding_error_of_conditional_covariance(problem, point.overlaps) > options.max_floor
    )
    return replace(point, outside=explain_lost_digits_of_covariance(problem, point.overlaps) if lost else "")


def _implicit_euler_step(
    relative: RelativeSaddlePointMap,
    here: np.ndarray,
    slopes: np.ndarray,
    logarithms: np.ndarray,
    length: float,
    options: PseudoTransientOptions,
) -> tuple[np.ndarray, float] | None:
    """Return an implicit Euler step of at most a given length, and the length of the next; None if too nonlinear."""
    while length > options.min_step:
        implicit = np.eye(len(here)) / length - slopes
        move = np.linalg.solve(implicit, here)
        if np.max(np.abs(move[logarithms])) < options.max_log_change:
            with suppress(DomainError):
                off = np.linalg.solve(implicit, relative.residual_in_coordinates(move) - move / length)
                if np.linalg.norm(off) < options.max_nonlinearity * np.linalg.norm(move):
                    return move, length * options.growth_factor
        length /= options.growth_factor
    return None


class RelativeSaddlePointMap:
    """The residual G(x) - x of the saddle-point equations near a state, in `CoordinatesAroundState` of equal symmetry.

    Attributes:
        directions: directions of the coordinates that keep the symmetry, in rows.
        weights: rows that project coordinates on these directions.
        rounding: relative rounding error of the conditional covariance.
    """

    def __init__(self, state_map: SaddlePointMap, u: np.ndarray, sizes: Sizes) -> None:
        """Raise DomainError if V or the conditional covariance of the given state is not positive definite."""
        self.state_map, self.sizes = state_map, sizes
        self.coordinates = CoordinatesAroundState(state_map.problem, u, sizes)
        self.rounding = rounding_error_of_conditional_covariance(state_map.problem, Overlaps.unpack(u, sizes))
        self.directions = state_map.symmetry.basis_of_invariant_states(sizes, len(u))
        self.weights = self.directions / np.sum(self.directions**2, axis=1)[:, None]

    def state_from_relative_coordinates(self, y: np.ndarray) -> np.ndarray:
        """Return the packed overlaps of a symmetric state, given its coordinates along the symmetric directions."""
        return self.state_map.symmetry.project_onto_invariant_states(
            self.coordinates.state_from_relative_coordinates(y @ self.directions), self.sizes
        )

    def residual_in_coordinates(self, y: np.ndarray) -> np.ndarray:
        """Return the residual G(x) - x in relative coordinates, at given coordinates x."""
        u = self.coordinates.state_from_relative_coordinates(y @ self.directions)
        return self.residual_between_states(u, self.state_map(u, self.sizes))

    def residual_between_states(self, u: np.ndarray, image: np.ndarray) -> np.ndarray:
        """Return the residual G(x) - x in relative coordinates, given a state and its image.

        Args:
            u: packed overlaps of the state.
            image: packed overlaps of its image G(u).
        """
        found: np.ndarray = self.weights @ (
            self.coordinates.relative_coordinates_of_state(image) - self.coordinates.relative_coordinates_of_state(u)
        )
        return found

    def jacobian_of_residual(self, step: float = 1e-5) -> np.ndarray:
        """Return the Jacobian of the residual G(x) - x in relative coordinates, by central differences."""
        count = len(self.directions)
        return jacobian_by_differences(
            self.residual_in_coordinates, np.zeros(count), np.full(count, max(step, np.cbrt(self.rounding)))
        )

    def map_jacobian(self, slopes: np.ndarray) -> np.ndarray:
        """Return the Jacobian dG/du of the saddle-point map in packed overlaps, from that in relative coordinates."""
        change = np.stack(
            [self.coordinates.linearised_state_change(unit) for unit in np.eye(self.directions.shape[1])], axis=1
        )
        along = change @ self.directions.T @ (slopes + np.eye(len(slopes)))
        return along @ self.weights @ np.linalg.inv(change)


class CoordinatesAroundState:
    """Coordinates of states near a given state: zero there, with any values allowed (no positivity constraint).

    The coordinates of D = q - theta rho*^(-1) theta^T are log(D_0^(-1/2) D D_0^(-1/2)), D_0 that of the given state;
    likewise for V. Those of m and theta are changes in units of D_0^(1/2), for theta also of rho*^(1/2).
    """

    def __init__(self, problem: Problem, u: np.ndarray, sizes: Sizes) -> None:
        """Raise DomainError if V or the conditional covariance of the given state is not positive definite."""
        self.problem, self.sizes, self.here = problem, sizes, Overlaps.unpack(u, sizes)
        self.D, self.per_D = _matrix_square_roots(conditional_covariance(problem, self.here))
        self.V, self.per_V = _matrix_square_roots(self.here.V)
        self.teacher = np.linalg.cholesky(problem.law.rho_star).transpose(0, 2, 1)
        self.phi = np.maximum(np.abs(self.here.phi), 1.0)

    def relative_coordinates_of_state(self, u: np.ndarray) -> np.ndarray:
        """Return the relative coordinates of packed overlaps; raise DomainError if they are outside the domain."""
        there = Overlaps.unpack(u, self.sizes)
        return Overlaps(
            q=_function_of_symmetric_matrices(
                np.log, self.per_D @ conditional_covariance(self.problem, there) @ self.per_D
            ),
            V=_function_of_symmetric_matrices(np.log, self.per_V @ there.V @ self.per_V),
            m=np.einsum("cab,cb->ca", self.per_D, there.m - self.here.m),
            theta=self.per_D @ (there.theta - self.here.theta) @ np.linalg.inv(self.teacher),
            phi=(there.phi - self.here.phi) / self.phi,
        ).pack()

    def state_from_relative_coordinates(self, x: np.ndarray) -> np.ndarray:
        """Return the packed overlaps at given coordinates."""
        moved = Overlaps.unpack(x, self.sizes)
        theta = self.here.theta + self.D @ moved.theta @ self.teacher
        return Overlaps(
            q=self.D @ _function_of_symmetric_matrices(np.exp, moved.q) @ self.D
            + project_on_teacher(self.problem, theta),
            V=self.V @ _function_of_symmetric_matrices(np.exp, moved.V) @ self.V,
            m=self.here.m + np.einsum("cab,cb->ca", self.D, moved.m),
            theta=theta,
            phi=self.here.phi + self.phi * moved.phi,
        ).pack()

    def linearised_state_change(self, x: np.ndarray) -> np.ndarray:
        """Return the change of the packed overlaps to first order in the coordinates."""
        moved = Overlaps.unpack(x, self.sizes)
        theta = self.D @ moved.theta @ self.teacher
        along = theta @ np.linalg.inv(self.problem.law.rho_star) @ self.here.theta.transpose(0, 2, 1)
        return Overlaps(
            q=self.D @ moved.q @ self.D + along + along.transpose(0, 2, 1),
            V=self.V @ moved.V @ self.V,
            m=np.einsum("cab,cb->ca", self.D, moved.m),
            theta=theta,
            phi=self.phi * moved.phi,
        ).pack()


def _matrix_square_roots(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the symmetric square roots of matrices and their inverses; raise DomainError if one is not positive."""
    values, vectors = _positive_eigenpairs(matrices)
    roots, turned = np.sqrt(values)[:, None, :], vectors.transpose(0, 2, 1)
    return (vectors * roots) @ turned, (vectors / roots) @ turned


def _function_of_symmetric_matrices(function: np.ufunc, matrices: np.ndarray) -> np.ndarray:
    """Return a function (exp or log) of symmetric matrices; raise DomainError for the log of one not positive."""
    values, vectors = _positive_eigenpairs(matrices) if function is np.log else np.linalg.eigh(matrices)
    result: np.ndarray = (vectors * function(values)[:, None, :]) @ vectors.transpose(0, 2, 1)
    return result


def _positive_eigenpairs(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues and eigenvectors of symmetric matrices; raise DomainError if one is not positive."""
    values, vectors = np.linalg.eigh(matrices)
    if not (values > 0).all():
        raise DomainError("V or q - theta rho*^(-1) theta^T (covariance of fields given Y) is not positive definite")
    return values, vectors
