"""The spread of a solution over replicates of a quadrature rule, with the Jacobian measured along its direction."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..base.errors import DomainError
from ..base.options import AlgorithmOptions
from ..base.progress import progress_step
from ..integration import Rule, SaddlePointAverages
from ..integration.estimates import replicate_error_bar
from ..saddle_point.iteration import FixedPoint, broyden_update
from ..saddle_point.state_map import SaddlePointMap
from .local import map_jacobian_of_task, overlap_shifts_by_replicates, relative_error_of_replicates
from .settings import SolveSettings


@dataclass(frozen=True)
class ReplicateOptions(AlgorithmOptions):
    """Options of error bars from replicates.

    Attributes:
        linear_range: error bar, relative to the sizes of q, V, m, ..., up to which the equations count as linear; the
            end of the error interval is then located on one side only.
        end_steps: largest number of evaluations of the map that locate one end of the error interval.
        end_tolerance: relative accuracy of an end; smaller values take more evaluations.
        first_step: largest distance, relative to the sizes of q, V, m, ..., of the first evaluation for an end; smaller
            values are safer where the Jacobian is nearly singular, and take more evaluations.
        end_growth: largest factor by which the distance to an end grows from one evaluation to the next.
    """

    linear_range: float = 1e-2
    end_steps: int = 8
    end_tolerance: float = 0.15
    first_step: float = 0.03
    end_growth: float = 4.0


@dataclass(frozen=True)
class ReplicateShifts:
    """The changes of a solution by each replicate of a quadrature rule.

    Attributes:
        point: the solution; its Jacobian reproduces the map along the direction in which the replicates spread most.
        shifts: change of the packed overlaps by each replicate, (replicates, components).
        averages: channel averages at the solution.
    """

    point: FixedPoint
    shifts: np.ndarray
    averages: SaddlePointAverages

    @property
    def errors(self) -> np.ndarray:
        """The error bars of the packed overlaps, (components,)."""
        return replicate_error_bar(self.shifts)

    @property
    def relative_error(self) -> float:
        """The largest error bar, relative to the sizes of q, V, m, ..."""
        return relative_error_of_replicates(self.shifts, self.point)


def compare_replicates(task: SolveSettings, point: FixedPoint, rule: Rule) -> ReplicateShifts:
    """Return the changes of a solution by each replicate of a quadrature rule.

    Changes are residuals of the replicates times (I - J)^{-1}, which is very sensitive to the Jacobian J where an
    eigenvalue is close to 1, as near folds and pitchforks. The Jacobian of a sampled map is known to a few digits only.
    The ends of the error interval are therefore located along the direction in which the replicates spread most: there
    the residual differs by two standard errors from that at the solution. They replace the Jacobian along this
    direction. If the farther end is not found, the interval is as long as the overlaps themselves.

    Args:
        task: the settings of the solve.
        point: the solution, with its Jacobian if that is known.
        rule: quadrature rule with replicates.

    Raises:
        DomainError: the overlaps lie outside the domain of definition by this rule.
    """
    if point.jacobian is None:
        point = replace(point, jacobian=map_jacobian_of_task(task, rule, point))
    assert point.jacobian is not None
    shifts, averages = overlap_shifts_by_replicates(task, point, rule)
    scales, state_map = point.overlaps.block_scales, task.state_map_by_quadrature_rule(rule)
    width = principal_error_of_replicates(shifts, scales)
    if not width.any():
        return ReplicateShifts(point, shifts, averages)
    gap = width - point.jacobian @ width
    with progress_step("locating the ends of the error interval"):
        ends = [_locate_end_of_error_interval(state_map, point, width, gap)]
        if ends[0] is None or _relative_size(ends[0], scales) > ReplicateOptions.current().linear_range:
            ends.append(_locate_end_of_error_interval(state_map, point, -width, -gap))
    found = [end for end in ends if end is not None]
    if len(found) < len(ends) or (len(ends) == 2 and np.dot(*(end / scales for end in found)) >= 0):
        unknown = ReplicateShifts(point, shifts, averages)
        return replace(unknown, shifts=_widen(shifts, 1 / unknown.relative_error))
    half = found[0] if len(found) == 1 else (found[0] - found[1]) / 2
    measured = replace(point, jacobian=broyden_update(point.jacobian, half, -gap, scales))
    shifts, averages = overlap_shifts_by_replicates(task, measured, rule)
    farthest = max(_relative_size(end, scales) for end in found) / _relative_size(half, scales)
    return ReplicateShifts(measured, _widen(shifts, farthest), averages)


def _locate_end_of_error_interval(
    state_map: SaddlePointMap, point: FixedPoint, width: np.ndarray, gap: np.ndarray
) -> np.ndarray | None:
    """Return the distance from a solution to the state whose residual is smaller by a gap; None if there is none near.

    Args:
        state_map: map G by the rule of the solution.
        point: the solution, with its Jacobian J.
        width: distance by the Jacobian, (I - J)^{-1} gap.
        gap: difference of the residual G(u) - u.
    """
    options, scales, matrix = ReplicateOptions.current(), point.overlaps.block_scales, point.jacobian
    assert matrix is not None
    at_solution = state_map(point.u, point.sizes) - point.u
    distance = min(1.0, options.first_step / _relative_size(width, scales)) * width
    previous, previous_residual = np.zeros_like(width), at_solution
    try:
        for _ in range(options.end_steps):
            u = point.u + distance
            residual = state_map(u, point.sizes) - u
            matrix = broyden_update(matrix, distance - previous, residual - previous_residual, scales)
            move = state_map.newton_correction(matrix, u, residual - at_solution + gap, point.sizes)
            size, step = _relative_size(distance, scales), _relative_size(move, scales)
            if step <= options.end_tolerance * size:
                return distance + move
            previous, previous_residual = distance, residual
            distance = distance + min(1.0, options.end_growth * size / step) * move
            if _relative_size(distance, scales) > 1:
                return None
    except (DomainError, np.linalg.LinAlgError):
        pass
    return None


def principal_error_of_replicates(shifts: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return two standard errors of the mean of the replicates, as a vector along the direction of largest spread.

    Args:
        shifts: change of the packed overlaps by each replicate, (replicates, components).
        scales: sizes of the components, relative to which the spread is measured, (components,).
    """
    scaled = (shifts - shifts.mean(axis=0)) / scales
    _, sizes, directions = np.linalg.svd(scaled, full_matrices=False)
    return 2 * sizes[0] / np.sqrt(len(shifts) * (len(shifts) - 1)) * directions[0] * scales


def _widen(shifts: np.ndarray, factor: float) -> np.ndarray:
    """Return the changes by the replicates with their deviations from the mean multiplied by a factor of at least 1."""
    mean = shifts.mean(axis=0)
    return mean + max(factor, 1.0) * (shifts - mean)


def _relative_size(distance: np.ndarray, scales: np.ndarray) -> float:
    return float(np.linalg.norm(distance / scales))
