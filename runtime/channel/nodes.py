"""Nodes and weights for the standard normal measure, from SciPy and NumPy's rules."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from io import BytesIO
from itertools import pairwise

import numpy as np

from ..base.cache import cache_folder
from ..base.errors import InputError
from ..base.files import write_whole

_MOST_OF_NUMPY = 200  # points of Gauss-Hermite, of which 370 have finite weights
_KEPT = 12  # logarithm of the points of sets that are kept in the user's cache
REACH = 9.0  # the standard normal measure beyond is 2e-19
_GRID_REACH = 8.0  # 1e-15


@lru_cache(maxsize=64)
def gauss_hermite(points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss-Hermite nodes and weights for N(0, 1).

    NumPy's overflow from 371 points on. SciPy's asymptotic ones hold for every size from 151 on; below, SciPy solves an
    eigenvalue problem, with linear algebra that is slow to load.
    """
    if points <= _MOST_OF_NUMPY:
        nodes, weights = np.polynomial.hermite_e.hermegauss(points)
    else:
        from scipy.special import roots_hermitenorm

        nodes, weights = roots_hermitenorm(points)
    return nodes, weights / weights.sum()


@lru_cache(maxsize=64)
def gauss_legendre(points: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on [-1, 1]; finding them takes longer than most integrals over them."""
    return np.polynomial.legendre.leggauss(points)


@lru_cache(maxsize=64)
def highest_coefficients(points: int) -> np.ndarray:
    """(2, points): what values at the nodes of Gauss-Legendre are multiplied with for their last two coefficients in
    Legendre polynomials."""
    t, w = gauss_legendre(points)
    transform = (np.polynomial.legendre.legvander(t, points - 1) * w[:, None]).T * (np.arange(points) + 0.5)[:, None]
    return np.ascontiguousarray(transform[-2:])


def legendre(breaks: list[float], reach: float, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre with `points` nodes on each panel of [-reach, reach] between the breaks."""
    edges = [-reach, *sorted(b for b in breaks if -reach < b < reach), reach]
    x, w = gauss_legendre(points)
    halves = [((left + right) / 2, (right - left) / 2) for left, right in pairwise(edges)]
    return np.concatenate([m + h * x for m, h in halves]), np.concatenate([h * w for _, h in halves])


def panels(breaks: list[float], points: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre on the panels between breaks, with the normal density in the weights.

    For integrands that are smooth between the breaks; `points` a panel.
    """
    nodes, weights = legendre(breaks, REACH, points)
    return nodes, weights * np.exp(-nodes * nodes / 2) / np.sqrt(2 * np.pi)


@lru_cache(maxsize=64)
def trapezoid(points: int) -> tuple[np.ndarray, np.ndarray]:
    """Equidistant nodes and weights for N(0, 1), symmetric."""
    nodes = np.linspace(-_GRID_REACH, _GRID_REACH, points)
    return nodes, (nodes[1] - nodes[0]) * np.exp(-nodes * nodes / 2) / np.sqrt(2 * np.pi)


def midpoints(points: int, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Middles of equal intervals of [-reach, reach] and weights for N(0, 1)."""
    step = 2 * reach / points
    nodes = -reach + step * (np.arange(points) + 0.5)
    return nodes, step * np.exp(-nodes * nodes / 2) / np.sqrt(2 * np.pi)


def tensor(axes: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Product rule of one-dimensional ones: nodes (N, len(axes)), weights (N,), first axis slowest."""
    if not axes:
        return np.zeros((1, 0)), np.ones(1)
    if len(axes) == 1:
        return axes[0][0][:, None], axes[0][1]
    grids = np.meshgrid(*[nodes for nodes, _ in axes], indexing="ij")
    weights = np.ones(1)
    for _, w in axes:
        weights = np.multiply.outer(weights, w).ravel()
    return np.stack([g.ravel() for g in grids], axis=1), weights


def sobol_normal(dimension: int, log2: int, seed: int, groups: tuple[tuple[int, ...], ...]) -> np.ndarray:
    """A scrambled Sobol set in standard normal coordinates, closed under the sign flip of each group of axes.

    Flips are antithetic: they leave the measure unchanged and keep averages that vanish by symmetry at zero.
    Returns (2^log2 * 2^len(groups), dimension).
    """
    # Numba compiles once more for an array that must not be written: kernels are given a copy, as by every other rule.
    return _drawn(dimension, log2, seed, groups).copy()


@lru_cache(maxsize=64)
def _drawn(dimension: int, log2: int, seed: int, groups: tuple[tuple[int, ...], ...]) -> np.ndarray:
    nodes = _kept(dimension, log2, seed) if log2 <= _KEPT else _scrambled(dimension, log2, seed)
    for group in groups:
        mirror = nodes.copy()
        mirror[:, list(group)] *= -1
        nodes = np.concatenate([nodes, mirror])
    nodes.setflags(write=False)
    return nodes


def _scrambled(dimension: int, log2: int, seed: int) -> np.ndarray:
    from scipy.special import ndtri
    from scipy.stats import qmc

    uniform = qmc.Sobol(dimension, scramble=True, rng=np.random.default_rng(seed)).random_base2(log2)
    tiny = 2.0**-40
    return np.asarray(ndtri(np.clip(uniform, tiny, 1 - tiny)))


def _kept(dimension: int, log2: int, seed: int) -> np.ndarray:
    """A small set from the user's cache: every solve begins with some, and SciPy's statistics take long to load."""
    import scipy

    path = cache_folder() / "sobol" / f"{scipy.__version__}-{dimension}-{log2}-{seed}.npy"
    with suppress(OSError, ValueError, EOFError):
        known = np.load(path)
        if known.shape == (2**log2, dimension) and np.isfinite(known).all():
            return np.asarray(known)
    drawn = _scrambled(dimension, log2, seed)
    with suppress(OSError, InputError):
        buffer = BytesIO()
        np.save(buffer, drawn)
        write_whole(path, buffer.getvalue())
    return drawn
