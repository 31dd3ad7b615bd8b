"""Lattices to sum smooth functions of R^n over: the duals of dense packings, and their points in a ball.

A sum over the points of a lattice misses the Fourier transform of the function at the non-zero points of the dual: at
one density of points, the farther these lie from the origin, the smaller the error (Petersen and Middleton, Inf.
Control 5 (1962) 279). Packings as in Conway and Sloane, Sphere Packings, Lattices and Groups, chapters 4 and 6.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..base.errors import InputError

MOST_DIMENSIONS = 12
_ROUNDING = 1e-9
_BLOCK = 8192


@lru_cache(maxsize=16)
def packing(dimension: int) -> np.ndarray:
    """A basis in rows, (n, n), of determinant one: Z, A2, D3, D4, D5, E6, E7, E8, and
    laminated lattices in nine to twelve dimensions.

    Permutations and changes of sign of coordinates under which it stays the same: all for Z, D3, D4 and D5; for E6
    those of three pairs (i, i + 3); permutations and even changes of sign for E8; the inversion always.

    Raises:
        InputError: no or more than twelve dimensions.
    """
    n = dimension
    if not 1 <= n <= MOST_DIMENSIONS:
        raise InputError(f"lattices are known in 1 to {MOST_DIMENSIONS} dimensions, not in {n}")
    if n <= 5:
        basis = _roots(n)
    elif n == 6:
        basis = _e6()
    elif n == 7:
        basis = _dual(_projected(_e8()))
    elif n == 8:
        basis = _e8()
    else:
        basis = _laminated(n - 8)
    return np.ascontiguousarray(basis / abs(np.linalg.det(basis)) ** (1 / n))


def sampling_lattice(dimension: int) -> np.ndarray:
    """A basis in rows, (n, n), of determinant one, of the dual of `packing`."""
    return _dual(packing(dimension))


@lru_cache(maxsize=16)
def shortest(dimension: int) -> float:
    """Length of the shortest vectors of `packing`."""
    basis = packing(dimension)
    lengths = np.linalg.norm(points_in_ball(basis, float(np.linalg.norm(basis, axis=1).min())), axis=1)
    return float(lengths[lengths > _ROUNDING].min())


def keeps(basis: np.ndarray, turn: np.ndarray) -> bool:
    """Whether an orthogonal map (n, n) of the points, x -> turn x, takes a lattice to itself."""
    image = basis @ turn.T @ np.linalg.inv(basis)
    return bool(np.max(np.abs(image - np.round(image))) < _ROUNDING)


def points_in_ball(basis: np.ndarray, radius: float) -> np.ndarray:
    """All points of a lattice within a distance of the origin, (N, n); the method of Fincke and Pohst (Math. Comput. 44
    (1985) 463), breadth first.

    Args:
        basis: (n, n), rows.
    """
    n = len(basis)
    upper = np.linalg.qr(basis.T)[1]
    numbers: list[np.ndarray] = []  # one array a coordinate: most of the work is copying them
    left = np.full(1, radius**2 * (1 + _ROUNDING))
    for i in range(n - 1, -1, -1):
        centre = np.zeros(len(left))
        for number, factor in zip(numbers, upper[i, i + 1 :] / upper[i, i], strict=True):
            centre -= factor * number
        reach = np.sqrt(np.maximum(left, 0.0)) / abs(upper[i, i])
        first = np.ceil(centre - reach)
        counts = np.maximum(np.floor(centre + reach) - first + 1, 0).astype(int)
        before = np.cumsum(counts) - counts
        values = np.repeat(first - before, counts) + np.arange(int(np.sum(counts)))
        if i:
            left = np.repeat(left, counts) - (upper[i, i] * (values - np.repeat(centre, counts))) ** 2
        numbers = [values, *(np.repeat(number, counts) for number in numbers)]
    points = np.stack(numbers, axis=1)
    for begin in range(0, len(points), _BLOCK):  # within a processor's cache
        points[begin : begin + _BLOCK] = points[begin : begin + _BLOCK] @ basis
    return points


def _dual(basis: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.linalg.inv(basis).T)


def _roots(n: int) -> np.ndarray:
    """Z, A2, and D_n: integers of even sum."""
    if n == 1:
        return np.array([[np.sqrt(2)]])
    if n == 2:
        return np.sqrt(2) * np.array([[1.0, 0.0], [-0.5, np.sqrt(0.75)]])
    steps = np.eye(n)[:-1] - np.eye(n)[1:]
    return np.concatenate([steps, (np.eye(n)[-2] + np.eye(n)[-1])[None]])


def _e8() -> np.ndarray:
    """D8 and its points moved by (1/2, ..., 1/2); rows are simple roots, the first two of them neighbours."""
    return np.concatenate([_roots(8)[1:7], [-np.ones(8) / 2, _roots(8)[7]]])


def _projected(basis: np.ndarray) -> np.ndarray:
    """The projection on the hyperplane orthogonal to the first vector, in coordinates of that plane."""
    rows = basis[1:] - np.outer(basis[1:] @ basis[0], basis[0]) / (basis[0] @ basis[0])
    return np.linalg.qr(rows.T)[1].T


def _e6() -> np.ndarray:
    """Three Eisenstein integers that agree modulo sqrt(-3), the real parts before the imaginary ones."""
    unit = np.exp(2j * np.pi / 3)
    theta = unit - unit.conjugate()
    over_eisenstein = np.array([[1, 1, 1], [0, theta, 0], [0, 0, theta]])
    rows = np.concatenate([over_eisenstein, unit * over_eisenstein])
    return np.concatenate([rows.real, rows.imag], axis=1)


def _laminated(layers: int) -> np.ndarray:
    """E8 and its deep holes, over the points of a root lattice of one to four dimensions whose roots have length one.

    Sums of the holes are holes, or points of E8 where the root lattice has no root.
    """
    halves = np.array(
        [[2, 0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 1, 1, 0, 0], [1, 0, 1, 0, 1, 0, 1, 0]]
    )
    over = np.concatenate([halves[:layers] / 2, _roots(layers) / np.sqrt(2)], axis=1)
    return np.concatenate([np.concatenate([_e8(), np.zeros((8, layers))], axis=1), over])
