"""Minima on the kink surfaces of a loss of several fields: frames, multipliers, steps, responses, descent directions.

See docs/theory.md (11.15) to (11.17). Switches are linear functions of the fields whose zeros are kinks of the loss; a
kink surface is the set where the switches `held` vanish. Its frame consists of orthonormal vectors: `rank` normal
ones, built in order from the normals of the switches `chosen` (triangular factor `triangle`), then tangential ones.
"""

import math

from numba import njit

_DEPENDENT = 1e-7  # relative length orthogonal to previous vectors, below which a vector is a combination of them
_STILL = 1e-9  # relative component of a normal along a ray, below which its switch stays zero


@njit(cache=True, error_model="numpy")
def _orthonormalise_row(rows, count, products):
    """Orthonormalise row `count` of a square matrix against the previous rows, by Gram-Schmidt.

    Return the length of its part orthogonal to the previous rows, 0 if it is a linear combination of them, and fill
    `products` with its components along them, followed by that length.
    """
    size = rows.shape[1]
    whole = 0.0
    for i in range(size):
        whole += rows[count, i] * rows[count, i]
    for b in range(count):
        products[b] = 0.0
    for _ in range(2):  # the second pass removes rounding errors
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
def fill_surface_frame(normals, held, count, basis, triangle, chosen, work):
    """Fill an orthonormal basis adapted to a kink surface and return the number of its normal directions.

    Args:
        normals: gradients of all switches (functions whose zeros are kinks), (switches, fields).
        held: indices of the switches that vanish on the surface.
        count: number of these switches.
        basis: filled with the orthonormal vectors, normal ones first, (fields, fields).
        triangle: filled with the triangular factor of the normals, (fields, fields).
        chosen: filled with the indices of switches with linearly independent normals, (fields,).
        work: work array, overwritten, (2 fields + 2, fields).
    """
    size = normals.shape[1]
    rank = 0
    for k in range(count):
        if rank == size:
            break
        for i in range(size):
            basis[rank, i] = normals[held[k], i]
        if _orthonormalise_row(basis, rank, triangle[rank]) > 0.0:
            chosen[rank] = held[k]
            rank += 1
    rows = rank
    unused = work[2 * size + 1]
    while rows < size:
        # The unit vector with the largest component orthogonal to the rows.
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
        _orthonormalise_row(basis, rows, unused)
        rows += 1
    return rank


@njit(cache=True, error_model="numpy")
def fill_lagrange_multipliers(slope, basis, triangle, rank, out):
    """Fill the Lagrange multipliers of a minimum on a kink surface: the coefficients of the gradient along its normals.

    Args:
        slope: gradient of the objective, (fields,).
        basis: orthonormal frame of the kink surface, normal vectors first, (fields, fields).
        triangle: triangular factor of the normals in the frame, (fields, fields).
        rank: number of normal vectors in the frame.
        out: filled with the multipliers, out[:rank].
    """
    size = slope.shape[0]
    for k in range(rank - 1, -1, -1):
        value = 0.0
        for i in range(size):
            value += slope[i] * basis[k, i]
        for later in range(k + 1, rank):
            value -= out[later] * triangle[later, k]
        out[k] = value / triangle[k, k]


@njit(cache=True, error_model="numpy")
def project_onto_surface(values, basis, triangle, chosen, rank, x, work):
    """Move a point along the normals onto a kink surface, to first order; return the squared distance moved.

    Args:
        values: values of all switches at the point, (switches,).
        basis: orthonormal frame of the kink surface, normal vectors first, (fields, fields).
        triangle: triangular factor of the normals in the frame, (fields, fields).
        chosen: indices of switches with linearly independent normals, (fields,).
        rank: number of normal vectors in the frame.
        x: the point, (fields,), changed in place.
        work: work array, overwritten, (2 fields + 2, fields).
    """
    size = x.shape[0]
    way = work[2 * size]
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
def _fill_tangential_block(matrix, basis, rank, out):
    """Fill the leading block of `out` with the tangential part T matrix T^T of a matrix; T: tangential vectors."""
    size = matrix.shape[0]
    for a in range(size - rank):
        for b in range(size - rank):
            value = 0.0
            for i in range(size):
                for j in range(size):
                    value += basis[rank + a, i] * matrix[i, j] * basis[rank + b, j]
            out[a, b] = value


@njit(cache=True, error_model="numpy")
def _factorise_ldl(matrix, size, floor, tiny):
    """Factorise a symmetric matrix in place as L diag(e) L^T, with L below the diagonal and e on it.

    Pivots below `tiny` are replaced by at least `floor`. Return whether any was replaced, and the determinant.
    """
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
def _solve_ldl(factors, size, vector):
    """Solve a linear system in place: replace its right-hand side `vector`, given the LDL^T factors of its matrix."""
    for a in range(size):
        for b in range(a):
            vector[a] -= factors[a, b] * vector[b]
    for a in range(size - 1, -1, -1):
        vector[a] /= factors[a, a]
        for b in range(a + 1, size):
            vector[a] -= factors[b, a] * vector[b]


@njit(cache=True, error_model="numpy")
def fill_newton_step_on_surface(slope, hessian, basis, rank, floor, tiny, step, work):
    """Fill the modified Newton step along a kink surface, for minimisation restricted to it.

    Args:
        slope: gradient of the objective, (fields,).
        hessian: Hessian of the Lagrangian, (fields, fields).
        basis: orthonormal frame of the kink surface, normal vectors first, (fields, fields).
        rank: number of normal vectors in the frame.
        floor: smallest value of a replaced pivot of the tangential Hessian.
        tiny: pivots below this are replaced.
        step: filled with the step, (fields,).
        work: work array, overwritten, (2 fields + 2, fields).

    Returns:
        Newton decrement, whether pivots of the Hessian were replaced, and squared length of the step.
    """
    size = slope.shape[0]
    inner = work[:size]
    way = work[2 * size]
    _fill_tangential_block(hessian, basis, rank, inner)
    replaced, _ = _factorise_ldl(inner, size - rank, floor, tiny)
    for a in range(size - rank):
        way[a] = 0.0
        for i in range(size):
            way[a] -= basis[rank + a, i] * slope[i]
    _solve_ldl(inner, size - rank, way)
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
def fill_normal_rays(normals, held, count, rank, basis, out, work, pick):
    """Fill the normal directions of a kink surface along which most switches stay zero; return their number.

    A function that is linear between the switches increases in all normal directions if it increases along these
    directions and their opposites.

    Args:
        normals: gradients of all switches (functions whose zeros are kinks), (switches, fields).
        held: indices of the switches that vanish on the surface.
        count: number of these switches.
        rank: number of normal vectors in the frame.
        basis: orthonormal frame of the kink surface, normal vectors first, (fields, fields).
        out: filled with the directions, one per row.
        work: work array, overwritten, (2 fields + 2, fields).
        pick: work array of indices, overwritten, (fields,).
    """
    size = normals.shape[1]
    rows = work[:size]
    unused = work[2 * size + 1]
    for k in range(rank):
        pick[k] = k
    found = 0
    while found < out.shape[0]:
        independent = True
        for k in range(rank - 1):
            for i in range(size):
                rows[k, i] = normals[held[pick[k]], i]
            independent = independent and _orthonormalise_row(rows, k, unused) > 0.0
        if independent:
            # The remaining normal direction: the row of the frame with the largest component orthogonal to the others.
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
            _orthonormalise_row(rows, rank - 1, unused)
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
def set_sides_along_ray(normals, held, count, ray, sign, side):
    """Set the sign of every switch that changes along a ray from a kink surface; return the number that stay zero.

    Args:
        normals: gradients of all switches (functions whose zeros are kinks), (switches, fields).
        held: indices of the switches that vanish; those that stay zero come first afterwards.
        count: number of switches that vanish.
        ray: direction of the ray, (fields,).
        sign: sign of the direction along the ray.
        side: filled with 1 or -1 for every switch that changes, (switches,).
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
def stiffen_normal_directions(hessian, basis, rank, scale, work):
    """Replace a Hessian by its part tangential to a kink surface plus `scale` times the projector on the normals.

    Args:
        hessian: Hessian, (fields, fields), changed in place.
        basis: orthonormal frame of the kink surface, normal vectors first, (fields, fields).
        rank: number of normal vectors in the frame.
        scale: eigenvalue that the normal directions get.
        work: work array, overwritten, (2 fields + 2, fields).
    """
    size = hessian.shape[0]
    inner = work[:size]
    _fill_tangential_block(hessian, basis, rank, inner)
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
def fill_proximal_response(hessian, precision, basis, rank, out, work):
    """Fill the Jacobian dg/domega of a proximal point on a kink surface.

    It is G = P (T^T (T H T^T)^(-1) T P - 1), where the rows of T are the tangential vectors of the frame.

    Args:
        hessian: Hessian H of the Lagrangian, (fields, fields).
        precision: the matrix P = V^(-1), (fields, fields).
        basis: orthonormal frame of the kink surface, normal vectors first, (fields, fields).
        rank: number of normal vectors in the frame.
        out: filled with G, (fields, fields).
        work: work array, overwritten, (2 fields + 2, fields).

    Returns:
        The ratio det(T H T^T) / det(T P T^T); infinite without tangential directions.
    """
    size = hessian.shape[0]
    free = size - rank
    inner = work[:size]
    moved = work[size : 2 * size]
    way = work[2 * size]
    for a in range(free):
        for j in range(size):
            moved[j, a] = 0.0
            for i in range(size):
                moved[j, a] += basis[rank + a, i] * precision[i, j]
    _fill_tangential_block(precision, basis, rank, inner)
    _, whole = _factorise_ldl(inner, free, 0.0, -math.inf)
    _fill_tangential_block(hessian, basis, rank, inner)
    _, determinant = _factorise_ldl(inner, free, 0.0, -math.inf)
    for j in range(size):
        for a in range(free):
            way[a] = moved[j, a]
        _solve_ldl(inner, free, way)
        for i in range(size):
            out[i, j] = -precision[i, j]
            for a in range(free):
                out[i, j] += moved[i, a] * way[a]
    return determinant / whole if free > 0 else math.inf
