"""The proximal map at one point: linear solves, blocks of its Jacobian, projections onto kink planes."""

from numba import njit


# At every node of an average: where they are called the sizes are numbers, by which loops are unrolled.
@njit(cache=True, error_model="numpy", inline="always")
def solve_linear_system_in_place(matrix, out, size):
    """Solve a linear system with several right-hand sides in place and return the determinant of its matrix.

    Args:
        matrix: matrix of the system, (size, size), overwritten.
        out: right-hand sides, (size, size), replaced by the solutions.
        size: number of equations.
    """
    determinant = 1.0
    for k in range(size):
        pivot = k
        for i in range(k + 1, size):
            if abs(matrix[i, k]) > abs(matrix[pivot, k]):
                pivot = i
        if pivot != k:
            determinant = -determinant
            for j in range(size):
                matrix[k, j], matrix[pivot, j] = matrix[pivot, j], matrix[k, j]
                out[k, j], out[pivot, j] = out[pivot, j], out[k, j]
        determinant *= matrix[k, k]
        inverse = 1.0 / matrix[k, k]
        for i in range(size):
            if i != k:
                factor = matrix[i, k] * inverse
                for j in range(k, size):
                    matrix[i, j] -= factor * matrix[k, j]
                for j in range(size):
                    out[i, j] -= factor * out[k, j]
    for i in range(size):
        inverse = 1.0 / matrix[i, i]
        for j in range(size):
            out[i, j] *= inverse
    return determinant


@njit(cache=True, error_model="numpy", inline="always")
def add_jacobian_blocks(matrix, weight, slope, square, tokens, student):
    """Add token blocks of a Jacobian G at one quadrature node, and their tensor products, to weighted sums.

    Args:
        matrix: Jacobian G of the field g with respect to omega, (L s, L s).
        weight: weight of the node.
        slope: weighted sum of the diagonal blocks G_ll, (L, s, s).
        square: weighted sum of the tensor products of every block G_lr with itself, (L, L, s, s, s, s).
        tokens: number of tokens, L.
        student: number of student columns, s.
    """
    for l in range(tokens):
        for a in range(student):
            for b in range(student):
                slope[l, a, b] += weight * matrix[l * student + a, l * student + b]
        for r in range(tokens):
            for a in range(student):
                for b in range(student):
                    for e in range(student):
                        for f in range(student):
                            one = weight * matrix[l * student + a, r * student + b]
                            square[l, r, a, e, b, f] += one * matrix[l * student + e, r * student + f]


@njit(cache=True, error_model="numpy")
def project_onto_planes(planes, k, x):
    """Project a point orthogonally onto a plane, or onto all planes in turn; return the point.

    Args:
        planes: coefficients and constant of every plane, (planes, fields + 1); those of zeros are skipped.
        k: index of the plane; the number of planes for all of them.
        x: the point, (fields,), changed in place.
    """
    size = len(x)
    for n in range(len(planes)):
        if k == n or k == len(planes):
            square = 0.0
            value = planes[n, size]
            for i in range(size):
                square += planes[n, i] * planes[n, i]
                value += planes[n, i] * x[i]
            if square > 0.0:
                for i in range(size):
                    x[i] -= value / square * planes[n, i]
    return x
