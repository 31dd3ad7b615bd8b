"""A test whether a state converges to the trivial solution W = 0: whether its overlaps shrink at all sizes.

Where the slope of the loss vanishes with the fields, q = m = theta = 0 solves the saddle point, and near it the map is
linear in the size of W: iterated at a fixed size, the shape of a state (V included) converges and q is multiplied by a
number. W = 0 is a minimum of the risk, to which the state converges, where this number is below one at its own size and
at every smaller one. A loss that contains q may have W = 0 as a minimum with a slope that does not vanish: an attack
costs as much as |W| itself, and V vanishes, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..base.errors import DomainError
from ..base.options import AlgorithmOptions
from ..base.progress import progress_step
from ..integration.estimates import replicate_error_bar
from ..integration.rule import Rule
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.symmetry import StateSymmetry, symmetries_of_state
from ..saddle_point.iteration import DEFAULT_DAMPING
from ..saddle_point.state_map import SaddlePointMap


@dataclass(frozen=True)
class TrivialSolutionOptions(AlgorithmOptions):
    """Options of the test whether a state converges to the trivial solution W = 0.

    Attributes:
        sizes: small norms sqrt(q) of the weights, descending, relative to weights of order one; the last decides.
        max_iterations: largest number of iterations of the map at one norm of the weights.
        tolerance: relative change of the normalised overlaps at which they have converged.
        vanishing_ratio: ratio of the norms after and before a step below which the image counts as zero.
        max_growth: ratio of the norms after and before a step above which the weights count as growing.
    """

    sizes: tuple[float, ...] = (1e-2, 1e-3, 1e-4)
    max_iterations: int = 48
    tolerance: float = 1e-6
    vanishing_ratio: float = 1e-12
    max_growth: float = 3.0


@progress_step("whether every overlap shrinks to zero")
def find_trivial_solution(
    problem: Problem, overlaps: Overlaps, coarse: Rule, fine: Rule
) -> tuple[Overlaps, np.ndarray] | None:
    """Return overlaps and error bars of the trivial solution W = 0 if a state converges to it; otherwise None.

    Args:
        problem: the problem to solve.
        overlaps: overlaps of the state.
        coarse: quadrature rule for the iteration at fixed norms of the weights.
        fine: quadrature rule by whose replicates the norm must shrink.
    """
    symmetry = StateSymmetry(None, symmetries_of_state(problem, overlaps), problem.clusters)
    sizes = _descending_weight_norms(problem, overlaps)
    state, variances = overlaps, []
    if _norm_of_weights(overlaps) < sizes[-1]:
        # V may have vanished with it, so that the field is a rounding error.
        state = replace(overlaps, V=problem.law.rho[:, None, None] * np.eye(problem.student_rank))
    for size in sizes:
        try:
            state, variance = _converge_overlaps_at_fixed_norm(SaddlePointMap(problem, coarse, symmetry), state, size)
            if not _is_weight_norm_shrinking(SaddlePointMap(problem, fine, symmetry), state):
                return None
        except DomainError:
            return None
        variances.append(variance)
    # V is linear in the size of W where the loss holds |W|, and constant near W = 0 where it does not.
    before, V = (_extrapolate_to_zero_norm(sizes[i:], variances[i:]) for i in (-3, -2))
    V = np.where(np.abs(V) > 1e-3 * np.abs(variances[-1]).max(), V, 0.0)
    zero = replace(state, q=np.zeros_like(state.q), m=np.zeros_like(state.m), theta=np.zeros_like(state.theta))
    widths = replace(zero, V=np.abs(V - before), phi=np.full_like(state.phi, np.nan))
    return replace(zero, V=V), widths.pack()


def _extrapolate_to_zero_norm(sizes: list[float], values: list[np.ndarray]) -> np.ndarray:
    """Return a value extrapolated to zero norm of the weights, along the straight line through two values."""
    return values[1] - (values[0] - values[1]) * sizes[1] / (sizes[0] - sizes[1])


def _descending_weight_norms(problem: Problem, overlaps: Overlaps) -> list[float]:
    """Return descending norms sqrt(q) of the weights, from that of the state to very small ones."""
    unit = float(np.sqrt(problem.law.rho.max()))
    small = [size * unit for size in TrivialSolutionOptions.current().sizes]
    own = min(_norm_of_weights(overlaps), unit)
    steps = 0 if own <= small[0] else 1 + int(np.log10(own / small[0]))
    return [*(float(size) for size in np.geomspace(own, small[0], steps + 1)[:steps]), *small]


def _norm_of_weights(overlaps: Overlaps) -> float:
    return float(np.sqrt(np.abs(np.einsum("caa->c", overlaps.q)).max()))


def _rescale_weights(overlaps: Overlaps, size: float) -> Overlaps:
    factor = size / max(_norm_of_weights(overlaps), 1e-300)
    return replace(overlaps, q=factor**2 * overlaps.q, m=factor * overlaps.m, theta=factor * overlaps.theta)


def _converge_overlaps_at_fixed_norm(
    state_map: SaddlePointMap, overlaps: Overlaps, size: float
) -> tuple[Overlaps, np.ndarray]:
    """Return the overlaps to which the map converges if the norm of the weights is fixed, and their V.

    Raises:
        DomainError: the overlaps grow, or leave the domain of definition.
    """
    options, state = TrivialSolutionOptions.current(), _rescale_weights(overlaps, size)
    for _ in range(options.max_iterations):
        u = state.pack()
        image = state_map(u, state.sizes)
        mapped = Overlaps.unpack(image, state.sizes)
        if not np.isfinite(image).all() or not _norm_of_weights(mapped) < options.max_growth * size:
            raise DomainError("the saddle-point map increases the norm of the weights: no convergence to W = 0")
        if _norm_of_weights(mapped) < options.vanishing_ratio * size:
            # The response vanishes with the weights where the penalty has a corner at zero, as |w|.
            responds = (np.linalg.eigvalsh(mapped.V) > 0).all()
            return replace(state, V=mapped.V) if responds else state, mapped.V
        # The overlaps of the image at the size kept, mixed in with the damping weight that keeps the mean mode stable.
        gap = _rescale_weights(mapped, size).pack() - u
        moved = np.max(np.abs(gap) / state.block_scales)
        state = _rescale_weights(Overlaps.unpack(u + DEFAULT_DAMPING * gap, state.sizes), size)
        if moved < options.tolerance:
            break
    return state, state.V


def _is_weight_norm_shrinking(state_map: SaddlePointMap, state: Overlaps) -> bool:
    """Return whether the saddle-point map reduces the norm of the weights by more than the spread of replicates."""
    images, _ = state_map.map_images_and_averages(state.pack(), state.sizes)
    factors = np.array([_norm_of_weights(Overlaps.unpack(image, state.sizes)) for image in images]) / _norm_of_weights(
        state
    )
    spread = float(replicate_error_bar(factors)) if len(factors) > 1 else 0.0
    return bool(factors.mean() + spread < 1)
