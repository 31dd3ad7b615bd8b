"""Minima on the surfaces where the slope of a loss of several fields jumps: frames along them and across, multipliers,
steps and responses along them, ways off (docs/theory.md (11.15) to (11.17)).

A surface is where the switches `held` vanish. Its frame are orthonormal rows: `rank` of them across, made in order of
the normals of the switches `chosen`, by `triangle`, then those along it.
"""

import math

import numpy as np
from numba import njit

_DEPENDENT = 1e-7  # share of a vector across those before, below which it is one of their combinations
_STILL = 1e-9  # share of a normal along a ray, below which its switch stays zero


@njit(cache=True, error_model="numpy")
def _extended(rows, count, products):
    """Make row `count` of rows (D, D) orthonormal to those before, unless it is a combination of them.

    Fills products (D,) with what it was along them, and its length across them, which is returned (0: a combination).
    """
    size = rows.shape[1]
    whole = 0.0
    for i in range(size):
        whole += rows[count, i] * rows[count, i]
    for b in range(count):
        products[b] = 0.0
    for _ in range(2):  # the second time takes away what rounding left
        for b in range(count):
            inner = 0.0
            for i in range(size):
                inner += rows[b, i] * rows[count, i]
            for i in range(size):
                rows[count, i] -= inner * rows[b, i]
            products[b] += inner
    square = 0.0
    for i in range(size):
        square += rows[count, i] * rows[count, i]
    if not square > _DEPENDENT * _DEPENDENT * whole:
        return 0.0
    length = math.sqrt(square)
    products[count] = length
    for i in range(size):
        rows[count, i] /= length
    return length


@njit(cache=True, error_model="numpy")
def frame(normals, held, count, basis, triangle, chosen):
    """Fill basis (D, D), triangle (D, D) and chosen (D,) from normals (n, D) of the switches held[:count]; the rank."""
    size = normals.shape[1]
    rank = 0
    for k in range(count):
        if rank == size:
            break
        for i in range(size):
            basis[rank, i] = normals[held[k], i]
        if _extended(basis, rank, triangle[rank]) > 0.0:
            chosen[rank] = held[k]
            rank += 1
    rows = rank
    unused = np.empty(size)
    while rows < size:
        # The unit vector that is longest across the rows.
        best = -1.0
        axis = 0
        for k in range(size):
            left = 1.0
            for b in range(rows):
                left -= basis[b, k] * basis[b, k]
            if left > best:
                best = left
                axis = k
        for i in range(size):
            basis[rows, i] = 1.0 if i == axis else 0.0
        _extended(basis, rows, unused)
        rows += 1
    return rank


@njit(cache=True, error_model="numpy")
def multipliers(slope, basis, triangle, rank, out):
    """Fill out[:rank] with what the normals chosen are taken by to make up the slope (D,) across the surface."""
    size = slope.shape[0]
    for k in range(rank - 1, -1, -1):
        value = 0.0
        for i in range(size):
            value += slope[i] * basis[k, i]
        for later in range(k + 1, rank):
            value -= out[later] * triangle[later, k]
        out[k] = value / triangle[k, k]


@njit(cache=True, error_model="numpy")
def restore(values, basis, triangle, chosen, rank, x):
    """Move x (D,) across the surface to where the switches, of these values (n,), vanish to first order.

    Returns the square of the way.
    """
    size = x.shape[0]
    way = np.empty(size)
    square = 0.0
    for k in range(rank):
        value = values[chosen[k]]
        for b in range(k):
            value -= triangle[k, b] * way[b]
        way[k] = value / triangle[k, k]
        square += way[k] * way[k]
        for i in range(size):
            x[i] -= way[k] * basis[k, i]
    return square


@njit(cache=True, error_model="numpy")
def _along(matrix, basis, rank, out):
    """Fill out, from its first entry, with T matrix T^T, the rows of T along the surface."""
    size = matrix.shape[0]
    for a in range(size - rank):
        for b in range(size - rank):
            value = 0.0
            for i in range(size):
                for j in range(size):
                    value += basis[rank + a, i] * matrix[i, j] * basis[rank + b, j]
            out[a, b] = value


@njit(cache=True, error_model="numpy")
def _factor(matrix, size, floor, tiny):
    """Make a symmetric matrix L diag(e) L^T, L below the diagonal and e on it; whether pivots below tiny were replaced,
    and the determinant."""
    replaced = False
    determinant = 1.0
    for j in range(size):
        for k in range(j):
            matrix[j, j] -= matrix[j, k] * matrix[j, k] * matrix[k, k]
        if matrix[j, j] < tiny:
            matrix[j, j] = max(floor, -matrix[j, j])
            replaced = True
        determinant *= matrix[j, j]
        for i in range(j + 1, size):
            for k in range(j):
                matrix[i, j] -= matrix[i, k] * matrix[j, k] * matrix[k, k]
            matrix[i, j] /= matrix[j, j]
    return replaced, determinant


@njit(cache=True, error_model="numpy")
def _solve(factors, size, vector):
    """Make the vector that of the solution, the matrix by its factors."""
    for a in range(size):
        for b in range(a):
            vector[a] -= factors[a, b] * vector[b]
    for a in range(size - 1, -1, -1):
        vector[a] /= factors[a, a]
        for b in range(a + 1, size):
            vector[a] -= factors[b, a] * vector[b]


@njit(cache=True, error_model="numpy")
def descend(slope, hessian, basis, rank, floor, tiny, step):
    """Fill step (D,): Newton's along the surface, pivots of the Hessian there replaced where they are below tiny.

    Returns the decrement, whether pivots were replaced, and the square of the step.
    """
    size = slope.shape[0]
    inner = np.empty((size, size))
    way = np.empty(size)
    _along(hessian, basis, rank, inner)
    replaced, _ = _factor(inner, size - rank, floor, tiny)
    for a in range(size - rank):
        way[a] = 0.0
        for i in range(size):
            way[a] -= basis[rank + a, i] * slope[i]
    _solve(inner, size - rank, way)
    decrement = 0.0
    square = 0.0
    for i in range(size):
        step[i] = 0.0
        for a in range(size - rank):
            step[i] += way[a] * basis[rank + a, i]
        decrement -= slope[i] * step[i]
        square += step[i] * step[i]
    return decrement, replaced, square


@njit(cache=True, error_model="numpy")
def rays(normals, held, count, rank, basis, out):
    """Fill out (most, D) with the directions across a surface, up to sign, along which as many of its switches stay
    zero as can; returns how many there are.

    What is linear between the switches rises everywhere across the surface if it rises along all of these.
    """
    size = normals.shape[1]
    rows = np.empty((size, size))
    unused = np.empty(size)
    pick = np.arange(rank)
    found = 0
    while found < out.shape[0]:
        independent = True
        for k in range(rank - 1):
            for i in range(size):
                rows[k, i] = normals[held[pick[k]], i]
            independent = independent and _extended(rows, k, unused) > 0.0
        if independent:
            # What is left across the surface: of the rows of its frame the one that is longest beside those picked.
            best = -1.0
            longest = 0
            for k in range(rank):
                left = 1.0
                for b in range(rank - 1):
                    inner = 0.0
                    for i in range(size):
                        inner += rows[b, i] * basis[k, i]
                    left -= inner * inner
                if left > best:
                    best = left
                    longest = k
            for i in range(size):
                rows[rank - 1, i] = basis[longest, i]
            _extended(rows, rank - 1, unused)
            for i in range(size):
                out[found, i] = rows[rank - 1, i]
            found += 1
        k = rank - 2
        while k >= 0 and pick[k] == count - (rank - 1) + k:
            k -= 1
        if k < 0:
            break
        pick[k] += 1
        for later in range(k + 1, rank - 1):
            pick[later] = pick[later - 1] + 1
    return found


@njit(cache=True, error_model="numpy")
def turn(normals, held, count, ray, sign, side):
    """Give those of the switches held[:count] that change along sign * ray (D,) the side (n,) that they come to.

    Returns how many stay zero, which are the first of held then.
    """
    staying = 0
    for k in range(count):
        j = held[k]
        change = 0.0
        whole = 0.0
        for i in range(ray.shape[0]):
            change += normals[j, i] * ray[i]
            whole += normals[j, i] * normals[j, i]
        if abs(change) <= _STILL * math.sqrt(whole):
            held[k] = held[staying]
            held[staying] = j
            staying += 1
        else:
            side[j] = 1.0 if sign * change > 0.0 else -1.0
    return staying


@njit(cache=True, error_model="numpy")
def stiffened(hessian, basis, rank, scale):
    """Make the Hessian (D, D) that along the surface, with `scale` across it."""
    size = hessian.shape[0]
    inner = np.empty((size, size))
    _along(hessian, basis, rank, inner)
    for i in range(size):
        for j in range(size):
            value = 0.0
            for k in range(rank):
                value += scale * basis[k, i] * basis[k, j]
            for a in range(size - rank):
                for b in range(size - rank):
                    value += basis[rank + a, i] * inner[a, b] * basis[rank + b, j]
            hessian[i, j] = value


@njit(cache=True, error_model="numpy")
def response(hessian, precision, basis, rank, out):
    """Fill out (D, D) with G = P (T^T (T H T^T)^(-1) T P - 1), P = V^(-1) (D, D), H the Hessian of the Lagrangian.

    Returns det(T H T^T) / det(T P T^T), infinite where nothing moves.
    """
    size = hessian.shape[0]
    free = size - rank
    inner = np.empty((size, size))
    moved = np.empty((size, size))
    way = np.empty(size)
    for a in range(free):
        for j in range(size):
            moved[j, a] = 0.0
            for i in range(size):
                moved[j, a] += basis[rank + a, i] * precision[i, j]
    _along(precision, basis, rank, inner)
    _, whole = _factor(inner, free, 0.0, -math.inf)
    _along(hessian, basis, rank, inner)
    _, determinant = _factor(inner, free, 0.0, -math.inf)
    for j in range(size):
        for a in range(free):
            way[a] = moved[j, a]
        _solve(inner, free, way)
        for i in range(size):
            out[i, j] = -precision[i, j]
            for a in range(free):
                out[i, j] += moved[i, a] * way[a]
    return determinant / whole if free > 0 else math.inf
