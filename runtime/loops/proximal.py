"""The proximal map at one point: quotients of matrices, blocks of slopes, lists of minima, edges of pieces."""

import math

import numpy as np
from numba import njit

_SAME = 1e-10  # values that differ by less, relative to their size, are one


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
    square = 0.0
    for i in range(size):
        square += x[i] * x[i]
    for n in range(count):
        distance = 0.0
        for i in range(size):
            distance += (x[i] - found[n, i]) * (x[i] - found[n, i])
        if distance <= 1e-8 * square + 1e-12:
            if found[n, size] <= value:
                return count
            # The lower one stays.
            count -= 1
            for k in range(n, count):
                for i in range(size + 1):
                    found[k, i] = found[k + 1, i]
            break
    place = 0
    while place < count and found[place, size] <= value:
        place += 1
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


@njit(cache=True, error_model="numpy")
def insert_place(edges, count, place):
    """Put a place among the first `count` edges, ascending, unless it is no number or known; returns how many there
    are then."""
    if not abs(place) < math.inf:
        return count
    n = count
    while edges[n - 1] > place:
        n -= 1
    if edges[n - 1] == place:
        return count
    for k in range(count, n, -1):
        edges[k] = edges[k - 1]
    edges[n] = place
    return count + 1


@njit(cache=True, error_model="numpy")
def inside(low, high):
    """A point of an interval, of which an end may be infinite."""
    if low == -math.inf:
        return 0.0 if high == math.inf else high - 1.0
    return low + 1.0 if high == math.inf else 0.5 * (low + high)


@njit(cache=True, error_model="numpy")
def piece_of(edges, x):
    """Return the number of the piece that holds x, the lower one where x is between two; the last edge is infinite."""
    piece = 0
    while edges[piece + 1] < x:
        piece += 1
    return piece


@njit(cache=True, error_model="numpy")
def differ(one, other):
    """Whether two numbers differ by more than rounding."""
    return abs(one - other) > _SAME * (1.0 + abs(one) + abs(other))


@njit(cache=True, error_model="numpy")
def is_minimum(left, left_slope, right, right_slope):
    """Whether a function of these values and slopes on the two sides of an edge has a local minimum there."""
    falls = left_slope <= 0.0
    rises = right_slope >= 0.0
    if differ(left, right):
        # The lower value is there; the side that is higher leads down whatever its slope.
        return rises if left > right else falls
    return falls and rises


@njit(cache=True, error_model="numpy")
def push(stack, depth, a, x_a, b, x_b):
    """Put an interval and the proximal points at its ends on a stack (most, 4); returns how many there are then."""
    stack[depth, 0] = a
    stack[depth, 1] = x_a
    stack[depth, 2] = b
    stack[depth, 3] = x_b
    return depth + 1


@njit(cache=True, error_model="numpy")
def onto(planes, k, x):
    """Move a point x (D,) to plane k, the nearest way; to all of them one after the other where k is their number.

    planes: rows (slopes, value at zero), (P, D + 1); one without slopes moves nothing.
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


@njit(cache=True, error_model="numpy")
def halve(boxes, held, low, middle, high):
    """Put both halves of an interval on a stack (most, 2), the lower one on top; returns how many there are then."""
    boxes[held, 0] = middle
    boxes[held, 1] = high
    boxes[held + 1, 0] = low
    boxes[held + 1, 1] = middle
    return held + 2


@njit(cache=True, error_model="numpy")
def longer(values, size):
    """The values (N,) at the beginning of `size` places."""
    out = np.empty(size, values.dtype)
    for n in range(len(values)):
        out[n] = values[n]
    return out
