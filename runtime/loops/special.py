"""Functions of losses that `math` lacks, safe where exponentials overflow."""

import math

from numba import njit
from numba.cpython.unsafe.tuple import tuple_setitem


@njit(cache=True, error_model="numpy")
def sigmoid(z):
    """1 / (1 + e^(-z))."""
    if z >= 0.0:
        return 1.0 / (1.0 + math.exp(-z))
    e = math.exp(z)
    return e / (1.0 + e)


@njit(cache=True, error_model="numpy")
def softplus(z):
    """log(1 + e^z)."""
    return max(z, 0.0) + math.log1p(math.exp(-abs(z)))


@njit(cache=True, error_model="numpy")
def step(z):
    """1 above zero, 0 below, one half at zero."""
    return 1.0 if z > 0.0 else 0.5 if z == 0.0 else 0.0


@njit(cache=True, error_model="numpy")
def softmax(*z):
    """e^(z_i) / sum_j e^(z_j), one number an argument."""
    top = z[0]
    for i in range(1, len(z)):
        top = max(top, z[i])
    row = z
    total = 0.0
    for i in range(len(z)):
        e = math.exp(z[i] - top)
        row = tuple_setitem(row, i, e)  # type: ignore[call-arg]
        total += e
    inverse = 1.0 / total
    for i in range(len(z)):
        row = tuple_setitem(row, i, row[i] * inverse)  # type: ignore[call-arg]
    return row
