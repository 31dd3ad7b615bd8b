"""dG/du by differences, and with which steps and rules."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import OUTSIDE, DomainError
from ..integration import Rule, Sobol
from ..problems.overlaps import Overlaps, Sizes, block_scales, column_scales, places_of
from ..problems.problem import Problem
from ..problems.symmetry import NO_SYMMETRY, Symmetry
from .domain import RelativeCoordinates, rounding_of_variance
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
    image: np.ndarray | None = None,
) -> np.ndarray:
    """dG/du by differences with steps (one, or one a component) relative to the block sizes, smaller where the domain
    is near.

    Central, or one-sided at half the cost, for smooth maps and small steps. Under a symmetry of the map only the
    invariant states are explored; across them the result is zero.

    Args:
        image: G(u), where it is known.

    Raises:
        DomainError: even steps of 1e-5 of the given ones leave the domain.
    """
    scales = block_scales(u, sizes)
    steps = np.broadcast_to(step, u.shape)
    base = (state_map(u, sizes) if image is None else image) if one_sided else None

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


HASTY, PATIENT = Sobol(10, 4), Sobol(12, 8)  # over which the Jacobian of a sampled map is taken


def jacobian_by_rule(
    problem: Problem,
    rule: Rule,
    u: np.ndarray,
    sizes: Sizes,
    sample: Sobol = HASTY,
    symmetry: Symmetry = NO_SYMMETRY,
    image: np.ndarray | None = None,
) -> np.ndarray:
    """dG/du by differences over the nodes and with the steps of `slope_settings`.

    Args:
        image: G(u) by the rule, where it is known.
    """
    used, steps, one_sided = slope_settings(problem, rule, Overlaps.unpack(u, sizes), sample)
    known = image if used == rule else None
    return jacobian(StateMap(problem, used, symmetry), u, sizes, steps, one_sided, known)


def slope_settings(
    problem: Problem, rule: Rule, overlaps: Overlaps, sample: Sobol = HASTY
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
