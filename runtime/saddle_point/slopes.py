"""dG/du by differences, and with which steps and rules."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..base.errors import OUTSIDE, DomainError
from ..integration import Rule, Sobol
from ..problems.overlaps import Overlaps, Sizes, block_scales, column_scales, places_of
from ..problems.problem import Problem
from ..problems.symmetry import NO_SYMMETRY, Symmetry
from .state_map import StateMap


def differences(
    function: Callable[[np.ndarray], np.ndarray], z: np.ndarray, steps: np.ndarray, here: np.ndarray | None = None
) -> np.ndarray:
    """Derivatives (n, len(z)) by central differences; one-sided where one side lies outside the domain.

    Args:
        here: the function at z, where one side will do, as for small steps of what is smooth.

    Raises:
        DomainError, InputError: both sides do.
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
            except OUTSIDE as error:
                failures.append(error)
        if len(failures) == 2:
            raise failures[0]
        if len(ends) == 1:
            ends[0.0] = function(z)
        (high, above), (low, below) = sorted(ends.items(), reverse=True)
        columns.append((above - below) / ((high - low) * step))
    return np.stack(columns, axis=1)


def jacobian(
    state_map: StateMap,
    u: np.ndarray,
    sizes: Sizes,
    step: float | np.ndarray = 1e-4,
    one_sided: bool = False,
) -> np.ndarray:
    """Return dG/du by differences with steps (one, or one a component) relative to the block sizes, smaller where the
    domain is near.

    Central, or one-sided at half the cost, for smooth maps and small steps. Under a symmetry of the map only the
    invariant states are explored; across them the result is zero.

    Raises:
        DomainError: even steps of 1e-5 of the given ones leave the domain.
    """
    scales = block_scales(u, sizes)
    steps = np.broadcast_to(step, u.shape)
    base = state_map(u, sizes) if one_sided else None

    def slope(along: np.ndarray, size: float, least: float) -> np.ndarray:
        shift = size * along
        try:
            if base is not None:
                return (state_map(u + shift, sizes) - base) / size
            return (state_map(u + shift, sizes) - state_map(u - shift, sizes)) / (2 * size)
        except DomainError:
            if abs(size) < abs(least):
                raise
            return slope(along, size / 10, least)

    matrix = np.zeros((len(u), len(u)))
    for along in state_map.symmetry.directions(sizes, len(u)):
        i = int(np.argmax(along != 0))
        size = steps[i] * scales[i]
        matrix += np.outer(slope(along, size, 1e-5 * size), along / (along @ along))
    return matrix


HASTY, PATIENT = Sobol(10, 4), Sobol(12, 8)  # over which the Jacobian of a sampled map is taken


def jacobian_by_rule(
    problem: Problem,
    rule: Rule,
    u: np.ndarray,
    sizes: Sizes,
    sample: Rule = HASTY,
    symmetry: Symmetry = NO_SYMMETRY,
) -> np.ndarray:
    """Return dG/du by differences over the nodes and with the steps of `slope_settings`."""
    used, steps, one_sided = slope_settings(problem, rule, Overlaps.unpack(u, sizes), sample)
    return jacobian(StateMap(problem, used, symmetry), u, sizes, steps, one_sided)


def slope_settings(
    problem: Problem, rule: Rule, overlaps: Overlaps, sample: Rule = HASTY
) -> tuple[Rule, np.ndarray, bool]:
    """Rule, steps (in block scales, (n,)) and whether one side will do, for the slope of the map under a rule.

    Narrow steps for smooth rules; for sampled rules, whose map jumps where a node's minimum swaps, wide steps over a
    smaller set `sample`, so that many nodes swap within a step.
    """
    rule, step, one_sided = rule.for_differences(problem, sample)
    return rule, wide_steps(overlaps) if step is None else step * column_scales(overlaps), one_sided


def wide_steps(overlaps: Overlaps, width: float = 1e-2) -> np.ndarray:
    """Steps relative to the blocks, (n,), of columns smaller than others as much smaller; along q no wider than a tenth
    of its narrowest direction, columns at the same size.

    Query and key of untied attention are nearly the same: the map is far from a straight line over such a width of q.
    """
    scales, place = column_scales(overlaps), places_of(overlaps.sizes)["q"]
    units = Overlaps.unpack(scales, overlaps.sizes).q
    values = np.linalg.eigvalsh(overlaps.q / units)
    steps = width * scales
    steps[place] = min(width, 0.1 * max(float(values.min() / values.max()), 1e-4)) * scales[place]
    return steps
