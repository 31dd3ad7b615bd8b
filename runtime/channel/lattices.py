"""Lattices for sums of smooth functions over R^n: duals of dense sphere packings, and lattice points in a ball.

A sum over the points of a lattice misses the Fourier transform of the function at the non-zero points of the dual: at
one density of points, the farther these lie from the origin, the smaller the error (Petersen and Middleton, Inf.
Control 5 (1962) 279). Packings as in Conway and Sloane, Sphere Packings, Lattices and Groups, chapters 4 and 6.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..base.errors import InputError

MAX_DIMENSIONS = 12
_ROUNDING = 1e-9  # relative, of coordinates and squared lengths
_BLOCK = 8192  # points that fit a processor's cache


@lru_cache(maxsize=16)
def densest_packing_basis(dimension: int) -> np.ndarray:
    """Return a basis, one vector per row, of the lattice with the densest known sphere packing, of determinant one.

    The lattices are Z, A2, D3, D4, D5, E6, E7, E8, and laminated lattices in nine to twelve dimensions.

    Signed permutations of coordinates that are symmetries: all for Z, D3, D4, D5; those of the pairs (i, i + 3) for
    E6; permutations and even numbers of sign changes for E8; the inversion for each lattice.

    Raises:
        InputError: the number of dimensions is not between 1 and 12.
    """
    n = dimension
    if not 1 <= n <= MAX_DIMENSIONS:
        raise InputError(f"lattice rules exist in 1 to {MAX_DIMENSIONS} dimensions, not in {n}; use sobol")
    if n <= 5:
        basis = _root_lattice_basis(n)
    elif n == 6:
        basis = _e6_lattice_basis()
    elif n == 7:
        basis = _dual_lattice_basis(_project_out_first_vector(_e8_lattice_basis()))
    elif n == 8:
        basis = _e8_lattice_basis()
    else:
        basis = _laminated_lattice_basis(n - 8)
    return np.ascontiguousarray(basis / abs(np.linalg.det(basis)) ** (1 / n))


def sampling_lattice_basis(dimension: int) -> np.ndarray:
    """Return a basis, one vector per row, of the dual of the lattice of `densest_packing_basis`, of determinant one."""
    return _dual_lattice_basis(densest_packing_basis(dimension))


@lru_cache(maxsize=16)
def shortest_vector_length(dimension: int) -> float:
    """Return the length of the shortest non-zero vectors of the lattice of `densest_packing_basis`."""
    basis = densest_packing_basis(dimension)
    lengths = np.linalg.norm(lattice_points_in_ball(basis, float(np.linalg.norm(basis, axis=1).min())), axis=1)
    return float(lengths[lengths > _ROUNDING].min())


def is_lattice_symmetry(basis: np.ndarray, turn: np.ndarray) -> bool:
    """Return whether an orthogonal matrix maps a lattice onto itself.

    Args:
        basis: basis of the lattice, one vector per row.
        turn: orthogonal matrix.
    """
    image = basis @ turn.T @ np.linalg.inv(basis)
    return bool(np.max(np.abs(image - np.round(image))) < _ROUNDING)


def lattice_points_in_ball(basis: np.ndarray, radius: float) -> np.ndarray:
    """Return all points of a lattice within a ball around the origin, one point per row.

    The method is that of Fincke and Pohst (Math. Comput. 44 (1985) 463), breadth first.

    Args:
        basis: basis of the lattice, one vector per row.
        radius: radius of the ball.
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


def _dual_lattice_basis(basis: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.linalg.inv(basis).T)


def _root_lattice_basis(n: int) -> np.ndarray:
    """Return a basis of the root lattice Z (n = 1), A2 (n = 2), or D_n, the integer vectors of even sum (n > 2)."""
    if n == 1:
        return np.array([[np.sqrt(2)]])
    if n == 2:
        return np.sqrt(2) * np.array([[1.0, 0.0], [-0.5, np.sqrt(0.75)]])
    steps = np.eye(n)[:-1] - np.eye(n)[1:]
    return np.concatenate([steps, (np.eye(n)[-2] + np.eye(n)[-1])[None]])


def _e8_lattice_basis() -> np.ndarray:
    """Return a basis of the lattice E8: its eight simple roots, one per row."""
    return np.concatenate([_root_lattice_basis(8)[1:7], [-np.ones(8) / 2, _root_lattice_basis(8)[7]]])


def _project_out_first_vector(basis: np.ndarray) -> np.ndarray:
    """Return a basis of the lattice projected on the hyperplane orthogonal to its first basis vector."""
    rows = basis[1:] - np.outer(basis[1:] @ basis[0], basis[0]) / (basis[0] @ basis[0])
    return np.linalg.qr(rows.T)[1].T


def _e6_lattice_basis() -> np.ndarray:
    """Return a basis of the lattice E6, whose points are triples of Eisenstein integers that agree modulo sqrt(-3)."""
    unit = np.exp(2j * np.pi / 3)
    theta = unit - unit.conjugate()
    over_eisenstein = np.array([[1, 1, 1], [0, theta, 0], [0, 0, theta]])
    rows = np.concatenate([over_eisenstein, unit * over_eisenstein])
    return np.concatenate([rows.real, rows.imag], axis=1)


def _laminated_lattice_basis(layers: int) -> np.ndarray:
    """Return a basis of the laminated lattice in 8 + `layers` dimensions: layers of E8 shifted by its deep holes."""
    halves = np.array(
        [[2, 0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 1, 1, 0, 0], [1, 0, 1, 0, 1, 0, 1, 0]]
    )
    over = np.concatenate([halves[:layers] / 2, _root_lattice_basis(layers) / np.sqrt(2)], axis=1)
    return np.concatenate([np.concatenate([_e8_lattice_basis(), np.zeros((8, layers))], axis=1), over])
