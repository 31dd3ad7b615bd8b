"""The Jacobian dG/du by differences, with suitable steps and rules."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..base.errors import DOMAIN_ERRORS, DomainError
from ..integration import Rule, Sobol
from ..problems.overlaps import Overlaps, Sizes, block_scales, packed_overlap_slices, student_column_scales
from ..problems.problem import Problem
from ..problems.symmetry import NO_SYMMETRY, StateSymmetry
from .state_map import SaddlePointMap


def jacobian_by_differences(
    function: Callable[[np.ndarray], np.ndarray], z: np.ndarray, steps: np.ndarray, here: np.ndarray | None = None
) -> np.ndarray:
    """Return the Jacobian of a vector function by central differences, one-sided at the edge of its domain.

    Args:
        function: the function of a vector z that returns a vector.
        z: point at which the Jacobian is taken.
        steps: difference step for each component of z.
        here: value of the function at z, if one-sided differences suffice (small steps of smooth functions).

    Raises:
        DomainError: both sides lie outside the domain of the function (or InputError, as the function raises it).
    """
    columns = []
    for shift, step in zip(np.diag(steps), steps, strict=True):
        ends: dict[float, np.ndarray] = {} if here is None else {0.0: here}
        failures: list[Exception] = []
        for way in (1.0, -1.0):
            if len(ends) == 2:
                break
            try:
                ends[way] = function(z + way * shift)
            except DOMAIN_ERRORS as error:
                failures.append(error)
        if len(failures) == 2:
            raise failures[0]
        if len(ends) == 1:
            ends[0.0] = function(z)
        (high, above), (low, below) = sorted(ends.items(), reverse=True)
        columns.append((above - below) / ((high - low) * step))
    return np.stack(columns, axis=1)


def map_jacobian_by_differences(
    state_map: SaddlePointMap,
    u: np.ndarray,
    sizes: Sizes,
    step: float | np.ndarray = 1e-4,
    one_sided: bool = False,
) -> np.ndarray:
    """Return the Jacobian dG/du of a saddle-point map by differences, with smaller steps close to the domain boundary.

    If the map has a symmetry, differences are taken along symmetric directions; in the others the result is zero.

    Args:
        state_map: the saddle-point map G.
        u: packed overlaps, (n,).
        sizes: numbers of (token, cluster) pairs, student columns, teacher columns and trained numbers.
        step: difference step relative to the sizes of q, V, m, ...: one number, or one per component of u.
        one_sided: whether to use one-sided differences, at half the cost, which smooth maps allow with small steps.

    Raises:
        DomainError: even steps that are 1e-5 of the given ones leave the domain.
    """
    scales = block_scales(u, sizes)
    steps = np.broadcast_to(step, u.shape)
    base = state_map(u, sizes) if one_sided else None

    def _directional_derivative(along: np.ndarray, size: float, least: float) -> np.ndarray:
        shift = size * along
        try:
            if base is not None:
                return (state_map(u + shift, sizes) - base) / size
            return (state_map(u + shift, sizes) - state_map(u - shift, sizes)) / (2 * size)
        except DomainError:
            if abs(size) < abs(least):
                raise
            return _directional_derivative(along, size / 10, least)

    matrix = np.zeros((len(u), len(u)))
    for along in state_map.symmetry.basis_of_invariant_states(sizes, len(u)):
        i = int(np.argmax(along != 0))
        size = steps[i] * scales[i]
        matrix += np.outer(_directional_derivative(along, size, 1e-5 * size), along / (along @ along))
    return matrix


COARSE_NODES, FINE_NODES = Sobol(12, 4), Sobol(14, 8)  # nodes for the Jacobian of a sampled map: few, and more accurate


def map_jacobian_by_quadrature_rule(
    problem: Problem,
    rule: Rule,
    u: np.ndarray,
    sizes: Sizes,
    sample: Rule = COARSE_NODES,
    symmetry: StateSymmetry = NO_SYMMETRY,
) -> np.ndarray:
    """Return the Jacobian dG/du of a problem's saddle-point map by differences that suit its quadrature rule.

    Args:
        problem: the problem of the map.
        rule: quadrature rule of the map.
        u: packed overlaps, (n,).
        sizes: numbers of (token, cluster) pairs, student columns, teacher columns and trained numbers.
        sample: quadrature rule that is used instead if the rule is a sampled one.
        symmetry: symmetry of the state.
    """
    used, steps, one_sided = quadrature_rule_and_difference_steps(problem, rule, Overlaps.unpack(u, sizes), sample)
    return map_jacobian_by_differences(SaddlePointMap(problem, used, symmetry), u, sizes, steps, one_sided)


def quadrature_rule_and_difference_steps(
    problem: Problem, rule: Rule, overlaps: Overlaps, sample: Rule = COARSE_NODES
) -> tuple[Rule, np.ndarray, bool]:
    """Return a quadrature rule, difference steps and whether these may be one-sided, to compute the Jacobian dG/du.

    Steps are relative to the sizes of q, V, m, ..., and small for smooth rules. By sampled rules the map jumps where
    the loss minimum of a node swaps: steps are large, with fewer nodes, so that many nodes swap within a step.

    Args:
        problem: the problem of the map.
        rule: quadrature rule of the map.
        overlaps: overlaps where the Jacobian is taken.
        sample: quadrature rule that is used instead if the rule is a sampled one.
    """
    rule, step, one_sided = rule.rule_for_numerical_jacobian(problem, sample)
    return rule, large_difference_steps(overlaps) if step is None else step * student_column_scales(overlaps), one_sided


def large_difference_steps(overlaps: Overlaps, width: float = 4e-2) -> np.ndarray:
    """Return a difference step for each overlap, for maps that are not smooth, in proportion to its columns' scale.

    They are relative to the sizes of q, V, m, ... Steps of q are at most a tenth of the smallest eigenvalue that q has
    for normalised columns of W: beyond that the map is strongly nonlinear.

    Args:
        overlaps: overlaps where differences are taken.
        width: width of a step for the largest column.
    """
    scales, place = student_column_scales(overlaps), packed_overlap_slices(overlaps.sizes)["q"]
    units = Overlaps.unpack(scales, overlaps.sizes).q
    values = np.linalg.eigvalsh(overlaps.q / units)
    steps = width * scales
    steps[place] = min(width, 0.1 * max(float(values.min() / values.max()), 1e-4)) * scales[place]
    return steps
