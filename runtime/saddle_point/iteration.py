"""A safe damped start, a fast Newton finish, and an honest status."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

import numpy as np

from ..base.errors import DomainError, TimeLimitError
from ..base.progress import left
from ..problems.overlaps import Overlaps, Sizes, block_scales
from .state_map import StateMap, residual_of

CAUTIOUS = 0.25  # weight on the new iterate while nothing is known of the spectrum
_LEAST = 0.02
_MEMORY = 3  # steps that extrapolation looks back on
_STRAIGHT = 0.1  # residual below which it does
_CLEAR = 1e-3  # of the largest singular value of their differences, below which a direction says nothing
_LONGEST = 0.3  # step that is extrapolated, in block scales
_PATIENCE = 10  # such steps without a smaller residual, after which differences are taken to say nothing
_WORTHWHILE = 0.9  # of the residual where slopes were taken last, below which they are taken again
_STRETCH, _NOWHERE = 10, 3.0  # iterations over which a pace is told, and times the tolerance that is too far to come


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
    MINIMA_MISSED = "minima_missed"
    TIME_LIMIT = "time_limit"

    @property
    def words(self) -> str:
        """For people."""
        return "collapsed to W = 0" if self is Status.COLLAPSED else self.value.replace("_", " ")

    @property
    def advice(self) -> str:
        """For the user, in a sentence: what happened and what to try; empty where it converged."""
        return {
            "converged": "",
            "floor": "the residual stalls at the sampling error of the nodes; use more points",
            "max_iterations": "not converged; try another start, a nearby alpha, or --from a converged solution",
            "left_domain": "the iteration left the domain of the overlaps; try another start, --from a solution "
            "nearby, or `follow` from where the branch exists (docs/guide.md, Choosing a start)",
            "not_finite": "the iteration produced numbers that are not finite; check the parameters",
            "accuracy_not_reached": "the integration error is larger than the accuracy asked; ask for a larger "
            "--accuracy or allow more points",
            "not_proved": "ball arithmetic did not complete the proof; error bars are those of two rules that agree",
            "ended_elsewhere": "what is shown is a solution of another branch: an overlap of the start is zero "
            "there within its error; try a larger alpha, --from a solution nearby, `follow` from where the branch "
            "exists, or `curve`, which says where it ends",
            "collapsed": "every overlap shrinks to zero, so that W = 0 is a minimum of the risk here and the solution "
            "from this start; for another one try a larger alpha, a weaker regulariser or another start, or, where no "
            "X has a lower loss than X = 0, weights of given norm (regulariser=sf.Sphere(1))",
            "minima_missed": "averages leave these minima out; write narrow parts of the loss as functions of one "
            "linear combination of the student's fields, along which minima are searched for, or make them wider",
            "time_limit": "the time limit ended the computation: what is shown is the best so far, with error bars "
            "where there are any; allow more time or ask for a larger --accuracy",
        }[self.value]

    @property
    def success(self) -> bool:
        """Whether a fixed point was reached, to the tolerance or to the floor that the sample of nodes sets."""
        return self in (Status.CONVERGED, Status.FLOOR)


@dataclass(frozen=True)
class FixedPoint:
    """The end of an iteration.

    Attributes:
        u: packed overlaps; residual: undamped, relative to block sizes; jacobian: dG/du about u or None.
        iterations: evaluations of the map on the way here, those of differences for slopes left out.
        drift: how far u has moved, in block scales, since the Jacobian was taken.
        outside: where the domain was left, the matrix that was not positive definite, in words.
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
        """u as blocks."""
        return Overlaps.unpack(self.u, self.sizes)


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
    extrapolate: bool = False,
    hopeful: bool = True,
) -> FixedPoint:
    """Damped iteration u <- u + weight (G(u) - u), the weight reduced where the residual grows or the domain ends.

    It follows stable solutions only (docs/theory.md (8.8)); the mean mode asks for weights below about 0.3, which a
    spectrum tells better (`best_weight`).

    Args:
        extrapolate: whether to mix the last steps such that the residual would vanish were the map a straight one
            (D. G. Anderson, J. ACM 12, 547, 1965), near a solution, and for as long as that helps.
        hopeful: whether to go on where, at the pace of the last iterations, all that are left lead nowhere near the
            tolerance, as beside the ghost of two branches that have met.
    """
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
                outside = state_map.why_outside(u, sizes)
                return FixedPoint(u, sizes, residual, Status.LEFT_DOMAIN, iteration, None, outside=outside)
            u = (u + u_previous) / 2
            past.clear()
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
        if iteration % _STRETCH == 0:
            ahead = residual * min(1.0, residual / stretch) ** ((max_iterations - iteration) / _STRETCH)
            if not hopeful and iteration > _STRETCH and ahead > _NOWHERE * tolerance:
                return FixedPoint(u, sizes, residual, Status.MAX_ITERATIONS, iteration, None)
            stretch = residual
        futile = 0 if residual < best else futile + (len(past) > 1)
        best, best_u = (residual, u) if residual < best else (best, best_u)
        if extrapolate and futile > _PATIENCE:
            extrapolate, u_previous, u = False, best_u, best_u
            continue
        if grown or residual > _STRAIGHT:
            past.clear()
        past = [*past[-_MEMORY:], (u, image - u)] if extrapolate else []
        move = _extrapolated(past, weight, block_scales(u, sizes)) if past else weight * (image - u)
        u_previous, u = u, state_map.step(u, move, sizes) if past else u + move
    # The last step has not been judged: the residual is that of the point before it.
    return FixedPoint(u_previous, sizes, residual, Status.MAX_ITERATIONS, max_iterations, None)


def _extrapolated(past: list[tuple[np.ndarray, np.ndarray]], weight: float, scales: np.ndarray) -> np.ndarray:
    """The step from the last of some states u with their gaps G(u) - u: damped, with as much of earlier steps as leaves
    the least gap."""
    gap = past[-1][1] / scales
    if len(past) == 1:
        return weight * gap * scales
    moves, changes = (np.array([(b - a) / scales for a, b in pairwise(each)]).T for each in zip(*past, strict=True))
    mixed, *_ = np.linalg.lstsq(changes, gap, rcond=_CLEAR)
    step = weight * (gap - changes @ mixed) - moves @ mixed
    return min(1.0, _LONGEST / max(float(np.max(np.abs(step))), 1e-300)) * step * scales


def newton(
    state_map: StateMap,
    start: FixedPoint,
    tolerance: float,
    differentiate: Callable[[np.ndarray], np.ndarray],
    max_iterations: int = 12,
) -> FixedPoint:
    """Newton on G(u) - u = 0 with a Jacobian from differences, kept up to date by Broyden's rank-one corrections.

    Stops at the tolerance, or with status FLOOR where the residual no longer falls (a sampled rule's nodes swap). The
    Jacobian returned is the one that last made it fall.

    Args:
        differentiate: u -> dG/du; called where `start` brings no Jacobian, and where the contraction is poor,
            as long as the residual has fallen since the last time.
    """
    u, sizes = start.u.copy(), start.sizes
    matrix, residual_at_slopes = start.jacobian, np.inf
    taken, drift = u, start.drift
    best_u, best_gap, best = u, u, np.inf
    # Steps within the noise of a floor say nothing of the slope, whatever Broyden's formula makes of them.
    believed = matrix
    stalls = 0
    last_u = last_gap = None
    iteration = 0

    def ended(status: Status, iteration: int) -> FixedPoint:
        moved = float(np.max(np.abs(best_u - taken) / block_scales(best_u, sizes)))
        visited = start.iterations + iteration
        return FixedPoint(best_u, sizes, best, status, visited, believed, drift + moved)

    for iteration in range(1, max_iterations + 1):
        try:
            image = state_map(u, sizes)
        except TimeLimitError as error:
            error.point = ended(Status.TIME_LIMIT, iteration - 1)
            raise
        except DomainError:
            stalls += 1
            if not np.isfinite(best) or stalls > 3:
                return replace(ended(Status.LEFT_DOMAIN, iteration), outside=state_map.why_outside(u, sizes))
            u, last_u = (u + 3 * best_u) / 4, None
            continue
        if not np.isfinite(image).all():
            return ended(Status.NOT_FINITE, iteration)
        gap = image - u
        residual = residual_of(image, u, sizes)
        left(f"iteration {iteration} of at most {max_iterations}: residual {residual:.0e}, asked {tolerance:.0e}")
        improved = residual < 0.5 * best
        if residual < best:
            best_u, best_gap, best = u, gap, residual
        if best <= tolerance:
            return ended(Status.CONVERGED, iteration)
        if iteration > 1 and not improved:
            stalls += 1
            if stalls > 3:
                break
        try:
            if matrix is None or (stalls == 2 and best < _WORTHWHILE * residual_at_slopes):
                matrix, residual_at_slopes = differentiate(best_u), best
                u, gap, last_u, stalls = best_u, best_gap, None, min(stalls, 1)
                taken, drift, believed = best_u, 0.0, matrix
            elif last_u is not None and last_gap is not None:
                scales = block_scales(u, sizes)
                step, change = (u - last_u) / scales, (gap - last_gap) / scales
                scaled = (matrix - np.eye(len(u))) * scales / scales[:, None]
                scaled += np.outer(change - scaled @ step, step) / (step @ step)
                matrix = scaled * scales[:, None] / scales + np.eye(len(u))
                believed = matrix if improved else believed
            move = state_map.correction(matrix, u, gap, sizes)
        except (DomainError, np.linalg.LinAlgError):
            break
        last_u, last_gap = u, gap
        limit = 0.5 / max(0.5, float(np.max(np.abs(move) / block_scales(u, sizes))))
        u = state_map.step(u, limit * move, sizes)
    return ended(Status.FLOOR if best < 1e-3 else Status.MAX_ITERATIONS, iteration)
