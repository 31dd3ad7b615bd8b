"""Whether a state falls into the trivial solution W = 0: shrunk further and further, its overlaps shrink all the way.

Where the slope of the loss vanishes with the fields, q = m = theta = 0 solves the saddle point, and near it the map is
linear in the size of W: iterated at a fixed size, the shape of a state (V included) converges and q is multiplied by a
number. W = 0 is a minimum of the risk that the state falls into where this is below one at its own size and at every
smaller one. A loss that contains q may keep it so by a slope that does not vanish: an attack costs as much as |W|
itself, and V vanishes, too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..base.errors import DomainError
from ..base.progress import step
from ..integration.estimates import two_standard_errors
from ..integration.rule import Rule
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.symmetry import Symmetry, of_state
from ..saddle_point.iteration import CAUTIOUS
from ..saddle_point.state_map import StateMap

_SIZES = (1e-2, 1e-3, 1e-4)  # of the square root of q, relative to that of a field at rows of W of order one
_STEPS, _STILL = 48, 1e-6  # for a shape to converge, in units of its blocks
_NOTHING = 1e-12  # of a size, after one step: few samples reach the kink beyond which the loss pulls at the weights
_HOPELESS = 3.0  # growth that no change of the shape undoes


@step("whether every overlap shrinks to zero")
def trivial_state(problem: Problem, overlaps: Overlaps, coarse: Rule, fine: Rule) -> tuple[Overlaps, np.ndarray] | None:
    """Return the overlaps of W = 0, V included, and their error bars (n,), where a state falls into it; None else.

    Args:
        coarse, fine: rules by which the shape is found and the shrinking is judged; replicates must agree on it.
    """
    symmetry = Symmetry(None, of_state(problem, overlaps), problem.clusters)
    sizes = _sizes(problem, overlaps)
    state, variances = overlaps, []
    if _size(overlaps) < sizes[-1]:
        # V may have vanished with it, beyond what rounding leaves of the field.
        state = replace(overlaps, V=problem.law.rho[:, None, None] * np.eye(problem.student_rank))
    for size in sizes:
        try:
            state, variance = _converged(StateMap(problem, coarse, symmetry), state, size)
            if not _shrinks(StateMap(problem, fine, symmetry), state):
                return None
        except DomainError:
            return None
        variances.append(variance)
    # V is linear in the size of W where the loss holds |W|, and constant near W = 0 where it does not.
    before, V = (_extrapolated(sizes[i:], variances[i:]) for i in (-3, -2))
    V = np.where(np.abs(V) > 1e-3 * np.abs(variances[-1]).max(), V, 0.0)
    zero = replace(state, q=np.zeros_like(state.q), m=np.zeros_like(state.m), theta=np.zeros_like(state.theta))
    widths = replace(zero, V=np.abs(V - before), phi=np.full_like(state.phi, np.nan))
    return replace(zero, V=V), widths.pack()


def _extrapolated(sizes: list[float], values: list[np.ndarray]) -> np.ndarray:
    """Return the value at zero of the line through the first two."""
    return values[1] - (values[0] - values[1]) * sizes[1] / (sizes[0] - sizes[1])


def _sizes(problem: Problem, overlaps: Overlaps) -> list[float]:
    """Return sizes sqrt(q), descending: that of the state, those in between, and small ones."""
    unit = float(np.sqrt(problem.law.rho.max()))
    small = [size * unit for size in _SIZES]
    own = min(_size(overlaps), unit)
    steps = 0 if own <= small[0] else 1 + int(np.log10(own / small[0]))
    return [*(float(size) for size in np.geomspace(own, small[0], steps + 1)[:steps]), *small]


def _size(overlaps: Overlaps) -> float:
    return float(np.sqrt(np.abs(np.einsum("caa->c", overlaps.q)).max()))


def _resized(overlaps: Overlaps, size: float) -> Overlaps:
    factor = size / max(_size(overlaps), 1e-300)
    return replace(overlaps, q=factor**2 * overlaps.q, m=factor * overlaps.m, theta=factor * overlaps.theta)


def _converged(state_map: StateMap, overlaps: Overlaps, size: float) -> tuple[Overlaps, np.ndarray]:
    """Return the shape that the map converges to at a fixed size of W, and its V.

    Raises:
        DomainError: it grows, or leaves the domain.
    """
    state = _resized(overlaps, size)
    for _ in range(_STEPS):
        u = state.pack()
        image = state_map(u, state.sizes)
        mapped = Overlaps.unpack(image, state.sizes)
        if not np.isfinite(image).all() or not _size(mapped) < _HOPELESS * size:
            raise DomainError("the overlaps grow")
        if _size(mapped) < _NOTHING * size:
            # The response vanishes with the weights where the penalty has a corner at zero, as |w|.
            responds = (np.linalg.eigvalsh(mapped.V) > 0).all()
            return replace(state, V=mapped.V) if responds else state, mapped.V
        # The overlaps of the image at the size kept, mixed in with the weight that quietens the mean mode.
        gap = _resized(mapped, size).pack() - u
        moved = np.max(np.abs(gap) / state.block_scales)
        state = _resized(Overlaps.unpack(u + CAUTIOUS * gap, state.sizes), size)
        if moved < _STILL:
            break
    return state, state.V


def _shrinks(state_map: StateMap, state: Overlaps) -> bool:
    """Return whether q is multiplied by less than one, by more than the replicates differ."""
    images, _ = state_map.replicates(state.pack(), state.sizes)
    factors = np.array([_size(Overlaps.unpack(image, state.sizes)) for image in images]) / _size(state)
    spread = float(two_standard_errors(factors)) if len(factors) > 1 else 0.0
    return bool(factors.mean() + spread < 1)
