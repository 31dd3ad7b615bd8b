"""The proximal map at one point: quotients of matrices, blocks of slopes, lists of minima."""

from numba import njit


# At every node of an average: where they are called the sizes are numbers, by which loops are unrolled.
@njit(cache=True, error_model="numpy", inline="always")
def divide(matrix, out, size):
    """Make out matrix^(-1) out, by elimination with pivots, which destroys the matrix; returns its determinant."""
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
    """Add weight * G_ll to slope (L, s, s) and weight * G_lr (x) G_lr to square (L, L, s, s, s, s)."""
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
def insert_minimum(found, count, x, value):
    """Put the minimum (x, value), x a tuple, in its place among the first `count` rows of found (most, FIELDS + 1).

    Returns how many rows there are then: as many as before where it is one of them, or higher than as many as fit.
    """
    size = len(x)
    place = 0
    square = 0.0
    for i in range(size):
        square += x[i] * x[i]
    for n in range(count):
        distance = 0.0
        for i in range(size):
            distance += (x[i] - found[n, i]) * (x[i] - found[n, i])
        if distance <= 1e-8 * square + 1e-12:
            return count
        if found[n, size] <= value:
            place = n + 1
    if place == found.shape[0]:
        return count
    count = min(count + 1, found.shape[0])
    for n in range(count - 1, place, -1):
        for i in range(size + 1):
            found[n, i] = found[n - 1, i]
    for i in range(size):
        found[place, i] = x[i]
    found[place, size] = value
    return count
