"""Implicit steps along damped iteration, in coordinates in which V and D = q - theta rho*^(-1) theta^T have any size.

Where weights are nearly the teacher's, or many samples fix their direction, D is far smaller than q, and the map is far
from a straight line in q and theta over steps that are small relative to q. Where a regulariser is weak, damped
iteration has far to go.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from ..base.errors import DomainError, TimeLimitError
from ..base.progress import left
from ..problems.overlaps import Overlaps, Sizes, places_of
from ..problems.problem import Problem
from .domain import project_on_teacher, rounded_in_words, rounding_of_variance, without_teacher
from .iteration import FixedPoint, Status
from .slopes import differences
from .state_map import StateMap, residual_of


@dataclass(frozen=True)
class RelaxationOptions:
    """Limits of implicit steps: longer ones take fewer evaluations, or lose the branch.

    Attributes:
        steps: at the most.
        first, growth: length of the first step in iterations without damping; factor of the next, or of a shorter try.
        shortest: length of a step below which the relaxation ends.
        longest: change of the logarithms of V and D within a step; growing: within it, share of the time in which a
            deviation grows e times.
        nonlinear: share of a step by which the map may deviate from a straight line.
        rounding: times what rounding of q changes of it, below which a residual that is no longer halved is that of a
            solution.
        least_known: residual above which it is none, whatever rounding changes.
        diverged: factor by which q or V grows, beyond which neither data nor penalty bounds the weights.
    """

    steps: int = 300
    first: float = 1.0
    growth: float = 3.0
    shortest: float = 1e-4
    longest: float = 1.0
    growing: float = 0.8
    nonlinear: float = 0.75
    rounding: float = 16.0
    least_known: float = 1e-3
    diverged: float = 1e12


def relax(
    state_map: StateMap, start: FixedPoint, tolerance: float, options: RelaxationOptions = RelaxationOptions()
) -> FixedPoint:
    """Return where dx/dt = G(x) - x ends, x in `RelativeCoordinates`, by implicit Euler steps that become Newton's.

    What attracts damped iteration attracts it (C. T. Kelley, D. E. Keyes, SIAM J. Numer. Anal. 35, 508, 1998). A step
    is as long as the map is nearly a straight line over it.

    Args:
        tolerance: of the residual, in these coordinates, too, as far as rounding lets it.
    """
    problem, sizes, visited, places = state_map.problem, start.sizes, start.iterations, places_of(start.sizes)
    u = state_map.symmetry.project(start.u, sizes)
    point = replace(start, u=u, status=Status.MAX_ITERATIONS, jacobian=None, drift=0.0)
    length, before = options.first, np.inf
    for step in range(options.steps):
        try:
            image = state_map(point.u, sizes)
            visited += 1
            point = replace(point, residual=residual_of(image, point.u, sizes), iterations=visited)
            relative = RelativeMap(state_map, point.u, sizes)
            if relative.rounding > 1:
                break
            here, slopes = relative.between(point.u, image), relative.slopes()
            residual = float(np.max(np.abs(here)))
            left(f"step {step} of at most {options.steps}: residual {residual:.0e}, asked {tolerance:.0e}")
            component = np.argmax(relative.directions != 0, axis=1)
            of_D, logarithms = (component < places[name].stop for name in ("q", "V"))
            rounded = relative.rounding * float(np.max(np.abs(slopes[:, of_D]).sum(axis=1)))
            floor = min(options.rounding * rounded, options.least_known)
            growth = float(np.linalg.eigvals(slopes).real.max())
            length = min(length, options.growing / growth) if growth > 0 else length
            is_floor = before / 2 < residual <= floor
            found = None if is_floor else _implicit_step(relative, here, slopes, logarithms, length, options)
            if residual <= tolerance or (found is None and residual <= floor):
                return replace(point, jacobian=relative.jacobian(slopes), status=Status.CONVERGED)
            if found is None:
                break
            move, length = found
            point, before = replace(point, u=relative.state(move)), residual
            visited += 1
            if np.max(np.abs(point.u)) > options.diverged * max(1.0, float(np.max(np.abs(start.u)))):
                return replace(point, status=Status.LEFT_DOMAIN)
        except TimeLimitError as error:
            error.point = replace(point, status=Status.TIME_LIMIT)
            raise
        except (DomainError, np.linalg.LinAlgError):
            break
    lost = options.rounding * rounding_of_variance(problem, point.overlaps) > options.least_known
    return replace(point, outside=rounded_in_words(problem, point.overlaps) if lost else "")


def _implicit_step(
    relative: RelativeMap,
    here: np.ndarray,
    slopes: np.ndarray,
    logarithms: np.ndarray,
    length: float,
    options: RelaxationOptions,
) -> tuple[np.ndarray, float] | None:
    """Return a step, as long as asked for or shorter, and the length that the next is to have; None where even over
    short ones the map is not straight."""
    while length > options.shortest:
        implicit = np.eye(len(here)) / length - slopes
        move = np.linalg.solve(implicit, here)
        if np.max(np.abs(move[logarithms])) < options.longest:
            with suppress(DomainError):
                off = np.linalg.solve(implicit, relative.gap(move) - move / length)
                if np.linalg.norm(off) < options.nonlinear * np.linalg.norm(move):
                    return move, length * options.growth
        length /= options.growth
    return None


class RelativeMap:
    """G(x) - x and its slopes about a state, x in `RelativeCoordinates` along directions that keep the symmetry.

    Attributes:
        directions, weights: (k, n), of the coordinates that keep it, and what takes coordinates to those along them.
        rounding: as of `rounding_of_variance`.
    """

    def __init__(self, state_map: StateMap, u: np.ndarray, sizes: Sizes) -> None:
        """Begin at a state; DomainError where its V or q - theta rho*^(-1) theta^T is not positive definite."""
        self.state_map, self.sizes = state_map, sizes
        self.at = RelativeCoordinates(state_map.problem, u, sizes)
        self.rounding = rounding_of_variance(state_map.problem, Overlaps.unpack(u, sizes))
        self.directions = state_map.symmetry.directions(sizes, len(u))
        self.weights = self.directions / np.sum(self.directions**2, axis=1)[:, None]

    def state(self, y: np.ndarray) -> np.ndarray:
        """Return the packed state at coordinates along the directions."""
        return self.state_map.symmetry.project(self.at.state(y @ self.directions), self.sizes)

    def gap(self, y: np.ndarray) -> np.ndarray:
        """Return G(x) - x along the directions."""
        u = self.at.state(y @ self.directions)
        return self.between(u, self.state_map(u, self.sizes))

    def between(self, u: np.ndarray, image: np.ndarray) -> np.ndarray:
        """Return G(x) - x along the directions, of a packed state and its image."""
        found: np.ndarray = self.weights @ (self.at.of_state(image) - self.at.of_state(u))
        return found

    def slopes(self, step: float = 1e-5) -> np.ndarray:
        """Return d(G - x)/dx by central differences, with wider steps where rounding asks for them."""
        count = len(self.directions)
        return differences(self.gap, np.zeros(count), np.full(count, max(step, np.cbrt(self.rounding))))

    def jacobian(self, slopes: np.ndarray) -> np.ndarray:
        """Return dG/du; it is zero across what keeps the symmetry."""
        change = np.stack([self.at.change(unit) for unit in np.eye(self.directions.shape[1])], axis=1)
        along = change @ self.directions.T @ (slopes + np.eye(len(slopes)))
        return along @ self.weights @ np.linalg.inv(change)


class RelativeCoordinates:
    """Coordinates about a state, packed like overlaps and zero there.

    log(D_0^(-1/2) D D_0^(-1/2)) with D = q - theta rho*^(-1) theta^T, the same of V, and changes of m and theta in
    units of D_0^(1/2), of theta also of rho*^(1/2).
    """

    def __init__(self, problem: Problem, u: np.ndarray, sizes: Sizes) -> None:
        """Begin at a state; DomainError where its V or D is not positive definite."""
        self.problem, self.sizes, self.here = problem, sizes, Overlaps.unpack(u, sizes)
        self.D, self.per_D = _roots(without_teacher(problem, self.here))
        self.V, self.per_V = _roots(self.here.V)
        self.teacher = np.linalg.cholesky(problem.law.rho_star).transpose(0, 2, 1)
        self.phi = np.maximum(np.abs(self.here.phi), 1.0)

    def of_state(self, u: np.ndarray) -> np.ndarray:
        """Return the coordinates of a packed state; DomainError where its V or D is not positive definite."""
        there = Overlaps.unpack(u, self.sizes)
        return Overlaps(
            q=_of_eigenvalues(np.log, self.per_D @ without_teacher(self.problem, there) @ self.per_D),
            V=_of_eigenvalues(np.log, self.per_V @ there.V @ self.per_V),
            m=np.einsum("cab,cb->ca", self.per_D, there.m - self.here.m),
            theta=self.per_D @ (there.theta - self.here.theta) @ np.linalg.inv(self.teacher),
            phi=(there.phi - self.here.phi) / self.phi,
        ).pack()

    def state(self, x: np.ndarray) -> np.ndarray:
        """Return the packed state at coordinates."""
        moved = Overlaps.unpack(x, self.sizes)
        theta = self.here.theta + self.D @ moved.theta @ self.teacher
        return Overlaps(
            q=self.D @ _of_eigenvalues(np.exp, moved.q) @ self.D + project_on_teacher(self.problem, theta),
            V=self.V @ _of_eigenvalues(np.exp, moved.V) @ self.V,
            m=self.here.m + np.einsum("cab,cb->ca", self.D, moved.m),
            theta=theta,
            phi=self.here.phi + self.phi * moved.phi,
        ).pack()

    def change(self, x: np.ndarray) -> np.ndarray:
        """Return the change of the packed state to first order in coordinates."""
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


def _roots(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the symmetric roots of (C, s, s) and their inverses; DomainError where one is not positive definite."""
    values, vectors = _positive(matrices)
    roots, turned = np.sqrt(values)[:, None, :], vectors.transpose(0, 2, 1)
    return (vectors * roots) @ turned, (vectors / roots) @ turned


def _of_eigenvalues(function: np.ufunc, matrices: np.ndarray) -> np.ndarray:
    """Return a function of symmetric (C, s, s); DomainError for the logarithm of one that is not positive definite."""
    values, vectors = _positive(matrices) if function is np.log else np.linalg.eigh(matrices)
    result: np.ndarray = (vectors * function(values)[:, None, :]) @ vectors.transpose(0, 2, 1)
    return result


def _positive(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues and eigenvectors; DomainError where one is not positive."""
    values, vectors = np.linalg.eigh(matrices)
    if not (values > 0).all():
        raise DomainError("V or q - theta rho*^(-1) theta^T is not positive definite")
    return values, vectors
