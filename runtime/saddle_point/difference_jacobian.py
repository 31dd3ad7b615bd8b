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
    """Return the Jacobian (n, len(z)) by central differences, one-sided if one side lies outside the domain.

    Args:
        function: z -> (n,).
        z: point at which the Jacobian is taken.
        steps: one for each component of z.
        here: the function at z, for one-sided differences, which suffice for small steps of smooth functions.

    Raises:
        DomainError, InputError: both sides lie outside.
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
    """Return dG/du by differences, with smaller steps close to the boundary of the domain.

    If the map has a symmetry, differences are taken along invariant directions; orthogonally the result is zero.

    Args:
        state_map: the saddle-point map G.
        u: packed overlaps, (n,).
        sizes: sizes (C, s, t, P) of the overlaps.
        step: relative to the block scales, one or one per component, (n,).
        one_sided: whether to use one-sided differences, at half the cost, for smooth maps and small steps.

    Raises:
        DomainError: even steps of 1e-5 of the given ones leave the domain.
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
    for along in state_map.symmetry.invariant_directions(sizes, len(u)):
        i = int(np.argmax(along != 0))
        size = steps[i] * scales[i]
        matrix += np.outer(_directional_derivative(along, size, 1e-5 * size), along / (along @ along))
    return matrix


COARSE_NODES, FINE_NODES = Sobol(10, 4), Sobol(12, 8)  # nodes for the Jacobian of a sampled map: few, and more accurate


def map_jacobian_by_rule(
    problem: Problem,
    rule: Rule,
    u: np.ndarray,
    sizes: Sizes,
    sample: Rule = COARSE_NODES,
    symmetry: StateSymmetry = NO_SYMMETRY,
) -> np.ndarray:
    """Return dG/du by differences, with the rule and steps of `difference_rule_and_steps`.

    Args:
        problem: the problem of the map.
        rule: quadrature rule of the map.
        u: packed overlaps, (n,).
        sizes: sizes (C, s, t, P) of the overlaps.
        sample: nodes used if the rule is sampled.
        symmetry: symmetry of the state.
    """
    used, steps, one_sided = difference_rule_and_steps(problem, rule, Overlaps.unpack(u, sizes), sample)
    return map_jacobian_by_differences(SaddlePointMap(problem, used, symmetry), u, sizes, steps, one_sided)


def difference_rule_and_steps(
    problem: Problem, rule: Rule, overlaps: Overlaps, sample: Rule = COARSE_NODES
) -> tuple[Rule, np.ndarray, bool]:
    """Return rule, steps (in block scales, (n,)) and whether one-sided differences suffice for dG/du.

    Steps are small for smooth rules. A sampled map jumps where the minimum of a node swaps: it takes large steps over
    fewer nodes, so that many nodes swap within a step.

    Args:
        problem: the problem of the map.
        rule: quadrature rule of the map.
        overlaps: overlaps where the Jacobian is taken.
        sample: nodes used if the rule is sampled.
    """
    rule, step, one_sided = rule.rule_for_numerical_jacobian(problem, sample)
    return rule, large_difference_steps(overlaps) if step is None else step * student_column_scales(overlaps), one_sided


def large_difference_steps(overlaps: Overlaps, width: float = 1e-2) -> np.ndarray:
    """Return large difference steps relative to the block scales, (n,), proportional to the scale of each column.

    Steps of q are at most a tenth of its smallest eigenvalue (columns normalised), as the map is strongly nonlinear
    beyond: query and key of untied attention, for one, are nearly the same.

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
