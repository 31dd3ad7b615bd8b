"""Fixed-point solvers of the saddle point: damped iteration, Newton's method, and the status of their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

import numpy as np

from ..base.errors import DomainError, TimeLimitError
from ..base.options import AlgorithmOptions
from ..base.progress import report_remaining_work
from ..problems.overlaps import Overlaps, Sizes, block_scales
from .state_map import SaddlePointMap, relative_residual

DEFAULT_DAMPING = 0.25  # weight on the new iterate while the spectrum is unknown


@dataclass(frozen=True)
class FixedPointOptions(AlgorithmOptions):
    """Options of damped iteration and of Newton's method with Broyden updates.

    Attributes:
        min_weight: smallest weight on the new iterate; smaller is more robust but slower.
        memory: number of earlier steps that Anderson extrapolation uses.
        extrapolation_residual: residual below which steps are extrapolated.
        rank_tolerance: singular value of the differences, relative to the largest, below which a direction is ignored.
        max_step: longest extrapolated step, relative to the sizes of q, V, m, ...
        patience: number of extrapolated steps without progress after which extrapolation is switched off.
        refresh_ratio: fall of the residual since the last evaluation of the Jacobian that allows another one.
        rate_window: number of iterations over which the rate of convergence is estimated.
        hopeless_ratio: ratio of the predicted final residual to the tolerance above which slow iterations are stopped.
    """

    min_weight: float = 0.02
    memory: int = 3
    extrapolation_residual: float = 0.1
    rank_tolerance: float = 1e-3
    max_step: float = 0.3
    patience: int = 10
    refresh_ratio: float = 0.9
    rate_window: int = 10
    hopeless_ratio: float = 3.0


class Status(StrEnum):
    """The status with which a solver ended; `advice` says what to try next."""

    CONVERGED = "converged"
    FLOOR = "floor"
    MAX_ITERATIONS = "max_iterations"
    LEFT_DOMAIN = "left_domain"
    NOT_FINITE = "not_finite"
    ACCURACY_NOT_REACHED = "accuracy_not_reached"
    NOT_PROVED = "not_proved"
    LEFT_BASIN = "left_basin"
    TRIVIAL = "trivial"
    MINIMA_MISSED = "minima_missed"
    TIME_LIMIT = "time_limit"

    @property
    def words(self) -> str:
        """Return the status in words, for example "converged to another branch"."""
        special = {Status.TRIVIAL: "trivial solution W = 0", Status.LEFT_BASIN: "converged to another branch"}
        return special.get(self, self.value.replace("_", " "))

    @classmethod
    def _missing_(cls, value: object) -> Status | None:
        return {"ended_elsewhere": cls.LEFT_BASIN, "collapsed": cls.TRIVIAL}.get(str(value))  # names in older files

    @property
    def advice(self) -> str:
        """Return a sentence that says what happened and what to try next; empty if the solver converged."""
        return {
            "converged": "",
            "floor": "the residual stalls at the sampling error of the nodes; use more points",
            "max_iterations": "not converged; try another start, a nearby alpha, or --from a converged solution",
            "left_domain": "the iteration left the domain of the overlaps; try another start, --from a solution "
            "nearby, or `follow` from where the branch exists (docs/guide.md, Choosing a start)",
            "not_finite": "the iteration produced numbers that are not finite; check the parameters",
            "accuracy_not_reached": "the integration error is larger than the accuracy asked; allow larger error "
            "bars (--accuracy) or more points",
            "not_proved": "ball arithmetic did not complete the proof; error bars are those of two rules that agree",
            "left_basin": "what is shown is a solution of another branch: an overlap of the start is zero "
            "there within its error; try a larger alpha, --from a solution nearby, `follow` from where the branch "
            "exists, or `curve`, which says where it ends",
            "trivial": "every overlap shrinks to zero, so that W = 0 is a minimum of the risk here and the solution "
            "from this start; for another one try a larger alpha, a weaker regulariser or another start, or, where no "
            "X has a lower loss than X = 0, weights of given norm (regulariser=sf.Sphere(1))",
            "minima_missed": "averages leave these minima out; write narrow parts of the loss as functions of one "
            "linear combination of the student's fields, along which minima are searched for, or make them wider",
            "time_limit": "the time limit ended the computation: what is shown is the best so far, with error bars "
            "where there are any; allow more time or larger error bars (--accuracy)",
        }[self.value]

    @property
    def success(self) -> bool:
        """Return whether the solver reached a fixed point, within the tolerance or the sampling error."""
        return self in (Status.CONVERGED, Status.FLOOR)


@dataclass(frozen=True)
class FixedPoint:
    """The last state of a fixed-point iteration.

    Attributes:
        u: packed overlaps, (n,).
        sizes: numbers of (token, cluster) pairs, student columns, teacher columns and trained numbers.
        residual: largest component of G(u) - u, relative to the sizes of q, V, m, ...
        status: status at the end of the iteration.
        iterations: number of evaluations of the map, without those for Jacobians.
        jacobian: dG/du near u, shape (n, n), or None.
        drift: relative change of u since the Jacobian was evaluated.
        outside: message that says which matrix was not positive definite, if the domain was left.
    """

    u: np.ndarray
    sizes: Sizes
    residual: float
    status: Status
    iterations: int
    jacobian: np.ndarray | None
    drift: float = 0.0
    outside: str = ""

    @property
    def overlaps(self) -> Overlaps:
        """Return the overlaps as blocks q, V, m, theta, phi."""
        return Overlaps.unpack(self.u, self.sizes)


def optimal_damping_weight(eigenvalues: np.ndarray) -> float:
    """Return the damping weight for which iteration converges fastest, given the eigenvalues x of dG/du.

    It is the weight on the new iterate that minimises max |1 - weight (1 - x)|; `DEFAULT_DAMPING` if no weight from
    0.02 to 1 makes that less than 1, for example if an eigenvalue has a real part of 1 or more.
    """
    weights = np.linspace(FixedPointOptions.current().min_weight, 1, 197)
    factors = np.max(np.abs(1 - np.outer(weights, 1 - eigenvalues)), axis=1)
    return float(weights[np.argmin(factors)]) if factors.min() < 1 else DEFAULT_DAMPING


def run_damped_iteration(
    state_map: SaddlePointMap,
    start: Overlaps,
    tolerance: float,
    max_iterations: int = 400,
    weight: float = DEFAULT_DAMPING,
    extrapolate: bool = False,
    continue_if_slow: bool = True,
) -> FixedPoint:
    """Run the damped iteration u <- u + weight (G(u) - u) and return its last state.

    The weight is reduced where the residual grows or the domain ends. Only stable solutions are reached (docs/theory.md
    (8.8)). `optimal_damping_weight` computes a suitable weight from a spectrum.

    Args:
        state_map: the saddle-point map G.
        start: state where the iteration starts.
        tolerance: residual, relative to the sizes of q, V, m, ..., at which the iteration ends.
        max_iterations: largest number of evaluations of the map.
        weight: initial weight on the new iterate.
        extrapolate: whether to use Anderson mixing of the last steps (D. G. Anderson, J. ACM 12, 547, 1965), near a
            solution and as long as it helps.
        continue_if_slow: whether to continue even if the present rate of convergence cannot reach the tolerance, as
            close to a fold beyond which no solution is left.
    """
    options = FixedPointOptions.current()
    u, sizes = start.pack(), start.sizes
    stretch = np.inf
    best, best_u, futile = np.inf, u, 0
    past: list[tuple[np.ndarray, np.ndarray]] = []
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
                outside = state_map.explain_undefined_map(u, sizes)
                return FixedPoint(u, sizes, residual, Status.LEFT_DOMAIN, iteration, None, outside=outside)
            u = (u + u_previous) / 2
            past.clear()
            continue
        if not np.isfinite(image).all():
            return FixedPoint(u, sizes, np.nan, Status.NOT_FINITE, iteration, None)
        new = relative_residual(image, u, sizes)
        grown = grown + 1 if new > residual else 0
        shrunk = shrunk + 1 if new < residual else 0
        residual = new
        report_remaining_work(
            f"iteration {iteration} of at most {max_iterations}: residual {residual:.0e}, asked {tolerance:.0e}"
        )
        if residual < tolerance:
            return FixedPoint(u, sizes, residual, Status.CONVERGED, iteration, None)
        if grown >= 3 and residual > best:
            weight, grown = max(weight * 0.6, options.min_weight), 0
        elif shrunk >= 12:
            weight, shrunk = max(weight, min(weight * 1.2, 0.5)), 0
        if iteration % options.rate_window == 0:
            ahead = residual * min(1.0, residual / stretch) ** ((max_iterations - iteration) / options.rate_window)
            if not continue_if_slow and iteration > options.rate_window and ahead > options.hopeless_ratio * tolerance:
                return FixedPoint(u, sizes, residual, Status.MAX_ITERATIONS, iteration, None)
            stretch = residual
        futile = 0 if residual < best else futile + (len(past) > 1)
        best, best_u = (residual, u) if residual < best else (best, best_u)
        if extrapolate and futile > options.patience:
            extrapolate, u_previous, u = False, best_u, best_u
            continue
        if grown or residual > options.extrapolation_residual:
            past.clear()
        past = [*past[-options.memory :], (u, image - u)] if extrapolate else []
        move = _anderson_mixing_step(past, weight, block_scales(u, sizes)) if past else weight * (image - u)
        u_previous, u = u, state_map.limit_step_to_domain(u, move, sizes) if past else u + move
    # The residual belongs to the state before the last step.
    return FixedPoint(u_previous, sizes, residual, Status.MAX_ITERATIONS, max_iterations, None)


def _anderson_mixing_step(past: list[tuple[np.ndarray, np.ndarray]], weight: float, scales: np.ndarray) -> np.ndarray:
    """Return the step of Anderson mixing, given the last states u and their residuals G(u) - u."""
    options = FixedPointOptions.current()
    gap = past[-1][1] / scales
    if len(past) == 1:
        return weight * gap * scales
    moves, changes = (np.array([(b - a) / scales for a, b in pairwise(each)]).T for each in zip(*past, strict=True))
    mixed, *_ = np.linalg.lstsq(changes, gap, rcond=options.rank_tolerance)
    step = weight * (gap - changes @ mixed) - moves @ mixed
    return min(1.0, options.max_step / max(float(np.max(np.abs(step))), 1e-300)) * step * scales


def broyden_update(matrix: np.ndarray, step: np.ndarray, change: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return the Jacobian dG/du after Broyden's rank-one update, which reproduces one observed change of G(u) - u.

    Args:
        matrix: Jacobian before the update, (n, n).
        step: change of u, (n,).
        change: change of G(u) - u, (n,).
        scales: sizes of the components of u, in which the update is smallest, (n,).
    """
    step, change = step / scales, change / scales
    scaled = (matrix - np.eye(len(step))) * scales / scales[:, None]
    scaled += np.outer(change - scaled @ step, step) / (step @ step)
    return scaled * scales[:, None] / scales + np.eye(len(step))


def run_newton_iteration(
    state_map: SaddlePointMap,
    start: FixedPoint,
    tolerance: float,
    differentiate: Callable[[np.ndarray], np.ndarray],
    max_iterations: int = 12,
) -> FixedPoint:
    """Run Newton's method on G(u) - u = 0, with Broyden's updates of the Jacobian, and return its last state.

    It stops at the tolerance, or with status FLOOR if the residual no longer falls, as by a sampled rule whose nodes
    swap minima of the loss. The Jacobian returned is the one that last reduced the residual.

    Args:
        state_map: the saddle-point map G.
        start: state where the iteration starts, perhaps with a Jacobian.
        tolerance: residual, relative to the sizes of q, V, m, ..., at which the iteration ends.
        differentiate: function of u that returns dG/du; called if `start` has no Jacobian, and if convergence is slow
            but the residual has fallen since the last call.
        max_iterations: largest number of evaluations of the map.
    """
    options = FixedPointOptions.current()
    u, sizes = start.u.copy(), start.sizes
    matrix, residual_at_slopes = start.jacobian, np.inf
    taken, drift = u, start.drift
    best_u, best_gap, best = u, u, np.inf
    # Broyden updates from steps within the sampling noise are not returned.
    returned_matrix = matrix
    stalls = 0
    last_u = last_gap = None
    iteration = 0

    def _best_fixed_point(status: Status, iteration: int) -> FixedPoint:
        moved = float(np.max(np.abs(best_u - taken) / block_scales(best_u, sizes)))
        visited = start.iterations + iteration
        return FixedPoint(best_u, sizes, best, status, visited, returned_matrix, drift + moved)

    for iteration in range(1, max_iterations + 1):
        try:
            image = state_map(u, sizes)
        except TimeLimitError as error:
            error.point = _best_fixed_point(Status.TIME_LIMIT, iteration - 1)
            raise
        except DomainError:
            stalls += 1
            if not np.isfinite(best) or stalls > 3:
                return replace(
                    _best_fixed_point(Status.LEFT_DOMAIN, iteration),
                    outside=state_map.explain_undefined_map(u, sizes),
                )
            u, last_u = (u + 3 * best_u) / 4, None
            continue
        if not np.isfinite(image).all():
            return _best_fixed_point(Status.NOT_FINITE, iteration)
        gap = image - u
        residual = relative_residual(image, u, sizes)
        report_remaining_work(
            f"iteration {iteration} of at most {max_iterations}: residual {residual:.0e}, asked {tolerance:.0e}"
        )
        improved = residual < 0.5 * best
        if residual < best:
            best_u, best_gap, best = u, gap, residual
        if best <= tolerance:
            return _best_fixed_point(Status.CONVERGED, iteration)
        if iteration > 1 and not improved:
            stalls += 1
            if stalls > 3:
                break
        try:
            if matrix is None or (stalls == 2 and best < options.refresh_ratio * residual_at_slopes):
                matrix, residual_at_slopes = differentiate(best_u), best
                u, gap, last_u, stalls = best_u, best_gap, None, min(stalls, 1)
                taken, drift, returned_matrix = best_u, 0.0, matrix
            elif last_u is not None and last_gap is not None:
                matrix = broyden_update(matrix, u - last_u, gap - last_gap, block_scales(u, sizes))
                returned_matrix = matrix if improved else returned_matrix
            move = state_map.newton_correction(matrix, u, gap, sizes)
        except (DomainError, np.linalg.LinAlgError):
            break
        last_u, last_gap = u, gap
        limit = 0.5 / max(0.5, float(np.max(np.abs(move) / block_scales(u, sizes))))
        u = state_map.limit_step_to_domain(u, limit * move, sizes)
    return _best_fixed_point(Status.FLOOR if best < 1e-3 else Status.MAX_ITERATIONS, iteration)
