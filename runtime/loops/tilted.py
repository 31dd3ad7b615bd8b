"""Averages over a Gaussian variable, tilted by the exponential of what a node costs."""

import math

import numpy as np
from numba import njit, prange

_CUT = 42.0  # exponents so far below the largest one are left out


@njit(cache=True, error_model="numpy", parallel=True)
def tilted(rows, omega, lengths, costs, rate, variance, fields, columns, free, out):
    """At every node omega_0 = omega[i] of a row, with z = omega - omega_0 ~ N(0, variance): fill

        free[i] = (1 / rate) log E exp(-rate costs),   out[i] = (<z>, <z fields>, <columns> ...),

    <.> the average over z tilted by exp(-rate costs), by the nodes of the same row.

    Args:
        rows: where each begins, and the end, (N + 1,); omega: (M,), ascending in a row; lengths: quadrature weights of
            domega; costs, fields: (M,); columns: (M, K).
        rate: positive; out: (M, 2 + K).
    """
    for row in prange(len(rows) - 1):
        _row(rows[row], rows[row + 1], omega, lengths, costs, rate, variance, fields, columns, free, out)
    return out


@njit(cache=True, error_model="numpy")
def _row(first, last, omega, lengths, costs, rate, variance, fields, columns, free, out):
    """One row of `tilted`."""
    lowest = math.inf
    for i in range(first, last):
        lowest = min(lowest, costs[i])
    log_norm = -0.5 * math.log(2.0 * math.pi * variance)
    for i in range(first, last):
        reach = math.sqrt(2.0 * variance * (_CUT + rate * (costs[i] - lowest)))
        begin = first + np.searchsorted(omega[first:last], omega[i] - reach)
        end = first + np.searchsorted(omega[first:last], omega[i] + reach)
        top = -math.inf
        for j in range(begin, end):
            z = omega[j] - omega[i]
            top = max(top, -0.5 * z * z / variance - rate * costs[j])
        total = 0.0
        out[i] = 0.0
        for j in range(begin, end):
            z = omega[j] - omega[i]
            exponent = -0.5 * z * z / variance - rate * costs[j] - top
            if exponent > -_CUT:
                share = lengths[j] * math.exp(exponent)
                total += share
                out[i, 0] += share * z
                out[i, 1] += share * z * fields[j]
                for k in range(columns.shape[1]):
                    out[i, 2 + k] += share * columns[j, k]
        free[i] = (top + math.log(total) + log_norm) / rate
        for k in range(out.shape[1]):
            out[i, k] /= total
