"""Implicit steps along damped iteration, in coordinates in which V and D = q - theta rho*^(-1) theta^T have any size.

Where weights are nearly the teacher's, or many samples fix their direction, D is far smaller than q, and the map is far
from a straight line in q and theta over steps that are small relative to q. Where a regulariser is weak, damped
iteration has far to go.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from ..errors import DomainError, TimeLimitError
from ..problems.overlaps import places_of
from ..progress import left
from .domain import rounded_in_words, rounding_of_variance
from .iteration import FixedPoint, Status
from .slopes import RelativeMap
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
    point = start.moved(
        state_map.symmetry.project(start.u, sizes), status=Status.MAX_ITERATIONS, jacobian=None, drift=0.0
    )
    length, before = options.first, np.inf
    for step in range(options.steps):
        try:
            image = state_map(point.u, sizes)
            visited += 1
            point = replace(point, residual=residual_of(image, point.u, sizes), image=image, iterations=visited)
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
            point, before = point.moved(relative.state(move)), residual
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
