"""Quadrature nodes and weights, mostly for the standard normal measure."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from io import BytesIO
from itertools import pairwise

import numpy as np

from ..base.cache import cache_folder
from ..base.errors import InputError
from ..base.files import write_atomically
from ..device.constants import declare_constant

_MAX_NUMPY_POINTS = 200  # Gauss-Hermite sizes that NumPy computes; its weights overflow beyond 370
_MAX_CACHED_LOG2 = 12  # logarithm to base 2 of the points of sets that the user's cache holds
REACH = 9.0  # the standard normal measure beyond is 2e-19
_TRAPEZOID_REACH = 8.0  # the standard normal measure beyond is 1e-15


@lru_cache(maxsize=64)
def gauss_hermite(points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss-Hermite nodes and weights for averages over N(0, 1).

    Few nodes come from NumPy, whose weights overflow from 371 points on; many come from SciPy, which is slow to load.
    """
    if points <= _MAX_NUMPY_POINTS:
        nodes, weights = np.polynomial.hermite_e.hermegauss(points)
    else:
        from scipy.special import roots_hermitenorm

        nodes, weights = roots_hermitenorm(points)
    return nodes, weights / weights.sum()


@lru_cache(maxsize=64)
def gauss_legendre(points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss-Legendre nodes and weights on [-1, 1], cached."""
    return np.polynomial.legendre.leggauss(points)


@lru_cache(maxsize=64)
def highest_legendre_coefficient_matrix(points: int) -> np.ndarray:
    """Return the matrix, shape (2, points), that maps values at Gauss-Legendre nodes to the two highest coefficients.

    These are coefficients of the Legendre expansion; small ones show that the nodes resolve a function.
    """
    t, w = gauss_legendre(points)
    transform = (np.polynomial.legendre.legvander(t, points - 1) * w[:, None]).T * (np.arange(points) + 0.5)[:, None]
    return np.ascontiguousarray(transform[-2:])


def gauss_legendre_on_panels(breaks: list[float], reach: float, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss-Legendre nodes and weights on each panel of [-reach, reach] between the breaks.

    Args:
        breaks: ends of panels, in any order.
        reach: half the length of the interval.
        points: number of nodes per panel.
    """
    edges = [-reach, *sorted(b for b in breaks if -reach < b < reach), reach]
    x, w = gauss_legendre(points)
    halves = [((left + right) / 2, (right - left) / 2) for left, right in pairwise(edges)]
    return np.concatenate([m + h * x for m, h in halves]), np.concatenate([h * w for _, h in halves])


def normal_rule_on_panels(breaks: list[float], points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss-Legendre nodes on the panels between breaks, and weights with the normal density.

    Args:
        breaks: points between which the integrand is smooth.
        points: number of nodes per panel.
    """
    nodes, weights = gauss_legendre_on_panels(breaks, REACH, points)
    return nodes, weights * np.exp(-nodes * nodes / 2) / np.sqrt(2 * np.pi)


@lru_cache(maxsize=64)
def trapezoid_rule(points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes and weights of the trapezoid rule for averages over N(0, 1)."""
    nodes = np.linspace(-_TRAPEZOID_REACH, _TRAPEZOID_REACH, points)
    return nodes, (nodes[1] - nodes[0]) * np.exp(-nodes * nodes / 2) / np.sqrt(2 * np.pi)


def midpoint_rule(points: int, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes and weights of the midpoint rule on [-reach, reach] for averages over N(0, 1).

    Args:
        points: number of intervals.
        reach: half the length of the interval.
    """
    step = 2 * reach / points
    nodes = -reach + step * (np.arange(points) + 0.5)
    return nodes, step * np.exp(-nodes * nodes / 2) / np.sqrt(2 * np.pi)


def tensor_product_rule(axes: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (one per row) and weights of the product of one-dimensional rules; the first axis varies slowest."""
    if not axes:
        return np.zeros((1, 0)), np.ones(1)
    if len(axes) == 1:
        return axes[0][0][:, None], axes[0][1]
    grids = np.meshgrid(*[nodes for nodes, _ in axes], indexing="ij")
    weights = np.ones(1)
    for _, w in axes:
        weights = np.multiply.outer(weights, w).ravel()
    return np.stack([g.ravel() for g in grids], axis=1), weights


Rotation = tuple[tuple[float, ...], ...]
"""An orthogonal matrix; its columns are the axes of rotated coordinates."""


def sobol_normal_points(
    dimension: int, log2: int, seed: int, groups: tuple[tuple[int, ...], ...], rotation: Rotation | None = None
) -> np.ndarray:
    """Return a scrambled Sobol set of standard normal points, closed under sign flips of groups of coordinates.

    Flips are antithetic: they leave the measure unchanged and keep averages that vanish by symmetry at zero.

    Args:
        dimension: number of coordinates.
        log2: logarithm to base 2 of the points before flips.
        seed: seed of the scrambling.
        groups: coordinates that change sign together, one tuple per group.
        rotation: axes of the coordinates of the set; None for the standard basis.

    Returns:
        one point per row, 2^(log2 + number of groups) rows; an array that must not be changed.
    """
    return _cached_sobol_points(dimension, log2, seed, groups, rotation)


@lru_cache(maxsize=64)
def equal_weights(count: int) -> np.ndarray:
    """Return the weights of `count` nodes of equal weight, which add up to 1; an array that must not be changed."""
    return declare_constant(np.full(count, 1 / count))


@lru_cache(maxsize=64)
def _cached_sobol_points(
    dimension: int, log2: int, seed: int, groups: tuple[tuple[int, ...], ...], rotation: Rotation | None
) -> np.ndarray:
    nodes = (
        _load_or_draw_sobol_points(dimension, log2, seed)
        if log2 <= _MAX_CACHED_LOG2
        else _draw_sobol_points(dimension, log2, seed)
    )
    for group in groups:
        mirror = nodes.copy()
        mirror[:, list(group)] *= -1
        nodes = np.concatenate([nodes, mirror])
    return declare_constant(nodes if rotation is None else nodes @ np.array(rotation).T)


def _draw_sobol_points(dimension: int, log2: int, seed: int) -> np.ndarray:
    from scipy.special import ndtri
    from scipy.stats import qmc

    uniform = qmc.Sobol(dimension, scramble=True, rng=np.random.default_rng(seed)).random_base2(log2)
    tiny = 2.0**-40
    return np.asarray(ndtri(np.clip(uniform, tiny, 1 - tiny)))


def _load_or_draw_sobol_points(dimension: int, log2: int, seed: int) -> np.ndarray:
    """Return a small Sobol set from the user's cache, or draw and store it."""
    import scipy

    path = cache_folder() / "sobol" / f"{scipy.__version__}-{dimension}-{log2}-{seed}.npy"
    with suppress(OSError, ValueError, EOFError):
        known = np.load(path)
        if known.shape == (2**log2, dimension) and np.isfinite(known).all():
            return np.asarray(known)
    drawn = _draw_sobol_points(dimension, log2, seed)
    with suppress(OSError, InputError):
        buffer = BytesIO()
        np.save(buffer, drawn)
        write_atomically(path, buffer.getvalue())
    return drawn
