"""The saddle point as a fixed point: a safe damped start, a fast Newton finish, and an honest status.

The map G takes overlaps to conjugates (channel) and back to overlaps (prior). Convergence is judged on the undamped
residual max |G(u) - u| / (size of the block), recomputed at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from time import perf_counter

import numpy as np

from . import budget, gauge, pace
from .errors import TimeLimitError
from .integration.averages import Averages, Rule
from .integration.fields import DomainError
from .overlaps import Conjugates, Overlaps, Sizes
from .problem import Problem
from .progress import left
from .symmetry import NO_SYMMETRY, Symmetry

CAUTIOUS = 0.25  # weight on the new iterate while nothing is known of the spectrum
_LEAST = 0.02


class Status(StrEnum):
    """How an iteration ended; `advice` says what to try next."""

    CONVERGED = "converged"
    FLOOR = "floor"
    MAX_ITERATIONS = "max_iterations"
    LEFT_DOMAIN = "left_domain"
    NOT_FINITE = "not_finite"
    ACCURACY_NOT_REACHED = "accuracy_not_reached"
    NOT_PROVED = "not_proved"
    ENDED_ELSEWHERE = "ended_elsewhere"
    COLLAPSED = "collapsed"
    TIME_LIMIT = "time_limit"

    @property
    def words(self) -> str:
        """For people."""
        return "collapsed to W = 0" if self is Status.COLLAPSED else self.value.replace("_", " ")

    @property
    def advice(self) -> str:
        return {
            "converged": "",
            "floor": "the residual stalls at a floor set by the sample of nodes; more points lower it",
            "max_iterations": "not converged; try another start, a nearby alpha, or --from a converged solution",
            "left_domain": "the iteration left the domain of the overlaps; the branch may not exist here",
            "not_finite": "the iteration produced numbers that are not finite; check the parameters",
            "accuracy_not_reached": "the integration error is larger than asked; allow more points or ask for less",
            "not_proved": "balls could not settle the proof; the half widths are those of two rules that agree",
            "ended_elsewhere": "what is shown is a solution of another branch: an overlap that the start holds is zero "
            "there within its error; try a larger alpha, --from a solution nearby, `follow` from where the branch "
            "exists, or `curve`, which says where it ends",
            "collapsed": "every overlap shrinks to zero: here W = 0 is a minimum of the risk by the doing of loss and "
            "regulariser; try a larger alpha, a weaker regulariser (or attack), or another start",
            "time_limit": "the time limit came first: what is shown is the best so far, with its half widths where it "
            "has any; allow more time or ask for less",
        }[self.value]

    @property
    def success(self) -> bool:
        return self in (Status.CONVERGED, Status.FLOOR)


@dataclass
class StateMap:
    """u -> G(u) for a problem and a rule, counting evaluations.

    Attributes:
        symmetry: what the iterates keep exactly, under rules that do not keep it, too.
    """

    problem: Problem
    rule: Rule
    symmetry: Symmetry = NO_SYMMETRY
    evaluations: int = field(default=0)

    @cached_property
    def turns(self) -> np.ndarray:
        """Generators of the rotations of the student's columns that are symmetries, (k, s, s)."""
        return gauge.generators(self.problem)

    def orbit(self, u: np.ndarray, sizes: Sizes) -> np.ndarray:
        """Orthonormal directions (n, k) of the orbit through u along which the symmetry stays, in block scales."""
        found = gauge.tangents(self.turns, Overlaps.unpack(u, sizes))
        if self.symmetry.is_trivial or not found.size:
            return found
        broken = np.stack([along - self.symmetry.project(along, sizes) for along in found.T], axis=1)
        _, values, directions = np.linalg.svd(broken, full_matrices=True)
        clear = np.concatenate([values, np.zeros(len(directions) - len(values))]) < 1e-8
        return found @ directions[clear].T

    def conjugates(self, overlaps: Overlaps, moments: np.ndarray) -> Conjugates:
        """Conjugates from raw averages (C, row); DomainError where the overlaps do not admit them."""
        problem = self.problem
        hats = Conjugates.empty(overlaps.sizes)
        inside = problem.solver.prior.conjugates(
            problem.alpha,
            moments,
            overlaps.q,
            overlaps.V,
            overlaps.m,
            overlaps.theta,
            problem.law.rho_star,
            hats.q,
            hats.V,
            hats.m,
            hats.theta,
        )
        if not inside:
            raise DomainError("rho* - theta^T q^(-1) theta is not positive definite")
        return hats

    def overlaps(self, hats: Conjugates, phi: np.ndarray) -> Overlaps:
        """Overlaps from conjugates, with the trained numbers phi beside them.

        Raises:
            DomainError: the regulariser with G is not strictly convex (ridge: Lambda + G not positive definite).
        """
        problem = self.problem
        blocks = {name: np.empty_like(getattr(hats, name)) for name in ("q", "V", "m", "theta")}
        out = Overlaps(**blocks, phi=phi)
        inside = problem.of_prior("overlaps")(
            hats.q,
            hats.V,
            hats.m,
            hats.theta,
            out.q,
            out.V,
            out.m,
            out.theta,
        )
        if not inside:
            raise DomainError("the regulariser with G = sum gamma V^ is not strictly convex")
        return out

    def trained(self, overlaps: Overlaps, moments: np.ndarray) -> np.ndarray:
        """The next phi, (P,): a step down the gradient alpha E[dloss/dphi] + ridge phi, in units of its curvature."""
        problem, phi = self.problem, overlaps.phi
        if not len(phi):
            return phi
        offsets = {text: offset for text, _, offset in problem.solver.channel.MOMENTS}
        first, second = (
            problem.alpha * moments[:, start : start + len(phi)].sum(axis=0)  # of one token, or shared among alike ones
            for start in (offsets["loss_phi"], offsets["loss_phi_phi"])
        )
        ridge = np.array([number["ridge"] for number in problem.trained])
        return phi - (first + ridge * phi) / np.maximum(np.abs(second) + ridge, 1e-3 * problem.alpha)

    def image(self, overlaps: Overlaps, moments: np.ndarray) -> np.ndarray:
        """Packed overlaps that follow from the averages (C, row) at the given ones."""
        return self.overlaps(self.conjugates(overlaps, moments), self.trained(overlaps, moments)).pack()

    def averages(self, overlaps: Overlaps) -> Averages:
        """Averages at overlaps; TimeLimitError where the time left is not enough for them."""
        budget.check(pace.expected(self.problem, self.rule))
        self.evaluations += 1
        begun = perf_counter()
        found = self.rule.averages(self.problem, overlaps)
        pace.measured(self.problem, self.rule, perf_counter() - begun)
        return found

    def __call__(self, u: np.ndarray, sizes: Sizes) -> np.ndarray:
        overlaps = Overlaps.unpack(u, sizes)
        averages = self.averages(overlaps)
        return self.kept(u, self.image(overlaps, averages.moments.mean(axis=0)), sizes)

    def kept(self, u: np.ndarray, image: np.ndarray, sizes: Sizes) -> np.ndarray:
        """The image of u averaged over its symmetry, without a step along the orbit of u."""
        image = self.symmetry.project(image, sizes)
        if len(self.turns):
            scales, orbit = Overlaps.unpack(u, sizes).block_scales, self.orbit(u, sizes)
            image = image - scales * (orbit @ (orbit.T @ ((image - u) / scales)))
        return image

    def kept_slopes(self, u: np.ndarray, d_image: np.ndarray, d_u: np.ndarray, sizes: Sizes) -> np.ndarray:
        """What `kept` makes of changes (n, k) of the image, where u changes by (n, k), at a solution."""
        d_image = np.stack([self.symmetry.project(column, sizes) for column in d_image.T], axis=1)
        if len(self.turns):
            scales, orbit = Overlaps.unpack(u, sizes).block_scales[:, None], self.orbit(u, sizes)
            d_image = d_image - scales * (orbit @ (orbit.T @ ((d_image - d_u) / scales)))
        return d_image

    def correction(self, matrix: np.ndarray, u: np.ndarray, gap: np.ndarray, sizes: Sizes) -> np.ndarray:
        """(I - J)^{-1} gap across the orbit, for one gap (n,) or several (k, n).

        Args:
            matrix: J = dG/du.

        Raises:
            LinAlgError: 1 is an eigenvalue of J.
        """
        scales, orbit = Overlaps.unpack(u, sizes).block_scales, self.orbit(u, sizes)
        frozen = self.symmetry.frozen
        free = np.ones(len(u), bool) if frozen is None else ~frozen
        scaled = ((np.eye(len(u)) - matrix) * scales / scales[:, None])[np.ix_(free, free)]
        along = orbit[free]
        across = np.eye(len(along)) - along @ along.T
        solved = across @ np.linalg.solve(across @ scaled @ across + along @ along.T, across @ (gap / scales).T[free])
        out = np.zeros_like(gap)
        out.T[free] = (solved.T * scales[free]).T
        return out

    def across(self, matrix: np.ndarray, u: np.ndarray, sizes: Sizes) -> np.ndarray:
        """The Jacobian without the directions of the orbit, whose eigenvalue 1 means nothing."""
        scales, orbit = Overlaps.unpack(u, sizes).block_scales, gauge.tangents(self.turns, Overlaps.unpack(u, sizes))
        projector = np.eye(len(u)) - orbit @ orbit.T
        return projector @ (matrix * scales / scales[:, None]) @ projector * scales[:, None] / scales

    def replicates(self, u: np.ndarray, sizes: Sizes) -> tuple[np.ndarray, Averages]:
        """G(u) of every replicate, (R, n), and the averages."""
        overlaps = Overlaps.unpack(u, sizes)
        averages = self.averages(overlaps)
        images = [self.kept(u, self.image(overlaps, moments), sizes) for moments in averages.moments]
        return np.stack(images), averages


@dataclass(frozen=True)
class FixedPoint:
    """Where an iteration ended.

    Attributes:
        u: packed overlaps; residual: undamped, relative to block sizes; jacobian: dG/du about u or None.
        iterations: evaluations of the map on the way here, those of differences for slopes left out.
        drift: how far u has moved, in block scales, since the Jacobian was taken.
    """

    u: np.ndarray
    sizes: Sizes
    residual: float
    status: Status
    iterations: int
    jacobian: np.ndarray | None
    drift: float = 0.0

    @property
    def overlaps(self) -> Overlaps:
        return Overlaps.unpack(self.u, self.sizes)


def residual_of(image: np.ndarray, u: np.ndarray, sizes: Sizes) -> float:
    """max |G(u) - u| / (block scale)."""
    return float(np.max(np.abs(image - u) / Overlaps.unpack(u, sizes).block_scales))


def jacobian(
    state_map: StateMap,
    u: np.ndarray,
    sizes: Sizes,
    step: float | np.ndarray = 1e-4,
    one_sided: bool = False,
) -> np.ndarray:
    """dG/du by differences with steps (one, or one a component) relative to the block sizes, smaller where the domain
    is near.

    Central, or one-sided at half the cost, for smooth maps and small steps. Under a symmetry of the map only the
    invariant states are explored; across them the result is zero.

    Raises:
        DomainError: even steps of 1e-5 of the given ones leave the domain.
    """
    scales = Overlaps.unpack(u, sizes).block_scales
    steps = np.broadcast_to(step, u.shape)
    base = state_map(u, sizes) if one_sided else None

    def slope(along: np.ndarray, size: float, least: float) -> np.ndarray:
        shift = size * along
        try:
            if base is not None:
                return (state_map(u + shift, sizes) - base) / size
            return (state_map(u + shift, sizes) - state_map(u - shift, sizes)) / (2 * size)
        except DomainError:
            if size < least:
                raise
            return slope(along, size / 10, least)

    matrix = np.zeros((len(u), len(u)))
    for along in state_map.symmetry.directions(sizes, len(u)):
        i = int(np.argmax(along != 0))
        size = steps[i] * scales[i]
        matrix += np.outer(slope(along, size, 1e-5 * size), along / (along @ along))
    return matrix


def best_weight(eigenvalues: np.ndarray) -> float:
    """The weight on the new iterate under which damped iteration contracts fastest: least max |1 - weight (1 - x)|.

    CAUTIOUS where no weight from 0.02 to 1 contracts, as where an eigenvalue has a real part of 1 or more.
    """
    weights = np.linspace(_LEAST, 1, 197)
    factors = np.max(np.abs(1 - np.outer(weights, 1 - eigenvalues)), axis=1)
    return float(weights[np.argmin(factors)]) if factors.min() < 1 else CAUTIOUS


def damped(
    state_map: StateMap,
    start: Overlaps,
    tolerance: float,
    max_iterations: int = 400,
    weight: float = CAUTIOUS,
) -> FixedPoint:
    """Damped iteration u <- u + weight (G(u) - u), the weight reduced where the residual grows or the domain ends.

    It follows stable solutions only (docs/theory.md (8.8)); the mean mode asks for weights below about 0.3, which a
    spectrum tells better (`best_weight`).
    """
    u, sizes = start.pack(), start.sizes
    best = np.inf
    grown = shrunk = 0
    u_previous = u
    residual = np.inf
    for iteration in range(1, max_iterations + 1):
        try:
            image = state_map(u, sizes)
        except TimeLimitError as error:
            error.point = FixedPoint(u_previous, sizes, residual, Status.TIME_LIMIT, iteration - 1, None)
            raise
        except DomainError:
            weight /= 2
            if iteration == 1 or weight < 1e-3:
                return FixedPoint(u, sizes, residual, Status.LEFT_DOMAIN, iteration, None)
            u = (u + u_previous) / 2
            continue
        if not np.isfinite(image).all():
            return FixedPoint(u, sizes, np.nan, Status.NOT_FINITE, iteration, None)
        new = residual_of(image, u, sizes)
        grown = grown + 1 if new > residual else 0
        shrunk = shrunk + 1 if new < residual else 0
        residual = new
        left(f"iteration {iteration} of at most {max_iterations}: residual {residual:.0e}, asked {tolerance:.0e}")
        if residual < tolerance:
            return FixedPoint(u, sizes, residual, Status.CONVERGED, iteration, None)
        if grown >= 3 and residual > best:
            weight, grown = max(weight * 0.6, _LEAST), 0
        elif shrunk >= 12:
            weight, shrunk = max(weight, min(weight * 1.2, 0.5)), 0
        best = min(best, residual)
        u_previous, u = u, u + weight * (image - u)
    # The last step has not been judged: the residual is that of the point before it.
    return FixedPoint(u_previous, sizes, residual, Status.MAX_ITERATIONS, max_iterations, None)


def newton(
    state_map: StateMap,
    start: FixedPoint,
    tolerance: float,
    differentiate: Callable[[np.ndarray], np.ndarray],
    max_iterations: int = 12,
) -> FixedPoint:
    """Newton on G(u) - u = 0 with a Jacobian from differences, kept up to date by Broyden's rank-one corrections.

    Stops at the tolerance, or with status FLOOR where the residual no longer falls (a sampled rule's nodes swap).

    Args:
        differentiate: u -> dG/du; called where `start` brings no Jacobian, and once more where the contraction is poor.
    """
    u, sizes = start.u.copy(), start.sizes
    matrix, refreshed = start.jacobian, False
    taken, drift = u, start.drift
    best_u, best = u, np.inf
    stalls = 0
    last_u = last_gap = None
    iteration = 0

    def ended(status: Status, iteration: int) -> FixedPoint:
        moved = float(np.max(np.abs(best_u - taken) / Overlaps.unpack(best_u, sizes).block_scales))
        return FixedPoint(best_u, sizes, best, status, start.iterations + iteration, matrix, drift + moved)

    for iteration in range(1, max_iterations + 1):
        try:
            image = state_map(u, sizes)
        except TimeLimitError as error:
            error.point = ended(Status.TIME_LIMIT, iteration - 1)
            raise
        except DomainError:
            stalls += 1
            if not np.isfinite(best) or stalls > 3:
                return ended(Status.LEFT_DOMAIN, iteration)
            u, last_u = (u + 3 * best_u) / 4, None
            continue
        if not np.isfinite(image).all():
            return ended(Status.NOT_FINITE, iteration)
        gap = image - u
        residual = residual_of(image, u, sizes)
        left(f"iteration {iteration} of at most {max_iterations}: residual {residual:.0e}, asked {tolerance:.0e}")
        improved = residual < 0.5 * best
        if residual < best:
            best_u, best = u, residual
        if best <= tolerance:
            return ended(Status.CONVERGED, iteration)
        if iteration > 1 and not improved:
            stalls += 1
            if stalls > 3:
                break
        try:
            if matrix is None or (stalls == 2 and not refreshed):
                matrix, refreshed, last_u = differentiate(best_u), True, None
                taken, drift = best_u, 0.0
            elif last_u is not None and last_gap is not None:
                scales = Overlaps.unpack(u, sizes).block_scales
                step, change = (u - last_u) / scales, (gap - last_gap) / scales
                scaled = (matrix - np.eye(len(u))) * scales / scales[:, None]
                scaled += np.outer(change - scaled @ step, step) / (step @ step)
                matrix = scaled * scales[:, None] / scales + np.eye(len(u))
            move = state_map.correction(matrix, u, gap, sizes)
        except (DomainError, np.linalg.LinAlgError):
            break
        last_u, last_gap = u, gap
        limit = 0.5 / max(0.5, float(np.max(np.abs(move) / Overlaps.unpack(u, sizes).block_scales)))
        u = u + limit * move
    return ended(Status.FLOOR if best < 1e-3 else Status.MAX_ITERATIONS, iteration)
