"""Sums over posterior averages of Bayes-optimal inference."""

from numba import njit


@njit(cache=True, error_model="numpy")
def collect(out, weight, value, g):
    """Add weight * (1, log Z, g_l g_l^T) to out (2 + FIELDS * TEACHER,); g (FIELDS,)."""
    size = g.shape[0]
    block = (out.shape[0] - 2) // size
    out[0] += weight
    out[1] += weight * value
    for i in range(size):
        first = i // block * block
        for b in range(block):
            out[2 + i * block + b] += weight * g[i] * g[first + b]
