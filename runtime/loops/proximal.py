"""The proximal map at one point: quotients of matrices, blocks of slopes, planes where arguments of a loss vanish."""

from numba import njit


# At every node of an average: where they are called the sizes are numbers, by which loops are unrolled.
@njit(cache=True, error_model="numpy", inline="always")
def divide(matrix, out, size):
    """Replace out by matrix^(-1) out, by elimination with pivoting, and return the determinant.

    Args:
        matrix: (size, size), destroyed.
        out: (size, size).
        size: number of rows.
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
def add_blocks(matrix, weight, slope, square, tokens, student):
    """Add weight * G_ll to slope and weight * G_lr (x) G_lr to square.

    Args:
        matrix: G, (L s, L s).
        weight: of the node.
        slope: (L, s, s).
        square: (L, L, s, s, s, s).
        tokens: L.
        student: s.
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
def onto(planes, k, x):
    """Project a point orthogonally onto a plane, or onto all planes in turn; return it.

    Args:
        planes: rows (slopes, value at zero), (P, D + 1); planes without slopes are skipped.
        k: number of the plane; P for all of them.
        x: the point, (D,), changed in place.
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
