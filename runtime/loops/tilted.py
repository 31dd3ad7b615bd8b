"""Averages over a Gaussian variable, tilted by the exponential of what a node costs."""

import math

import numpy as np
from numba import njit

_CUT = 42.0  # exponents so far below the largest one are left out


@njit(cache=True, error_model="numpy", nogil=True)
def tilted(first, last, rows, omega, lengths, costs, rate, variance, fields, columns, which, places, free, out):
    """At omega_0 = places[p, i] of row which[p], p = first, ..., last - 1, with z = omega - omega_0 ~ N(0, variance):
    fill

        free[p, i] = (1 / rate) log E exp(-rate costs),   out[p, i] = (<z>, <z fields>, <columns> ...),

    <.> the average over z tilted by exp(-rate costs), by the nodes of the row.

    Args:
        rows: where each begins, and the end, (R + 1,); omega: nodes (M,), ascending in a row; lengths: quadrature
            weights of domega; costs, fields: (M,); columns: (M, K).
        rate: positive; which: (P,); places: (P, N); free: (P, N); out: (P, N, 2 + K).
    """
    for p in range(first, last):
        begin, end = rows[which[p]], rows[which[p] + 1]
        _row(
            omega[begin:end], lengths[begin:end], costs[begin:end], rate, variance, fields[begin:end],
            columns[begin:end], places[p], free[p], out[p],
        )  # fmt: skip


@njit(cache=True, error_model="numpy")
def _row(omega, lengths, costs, rate, variance, fields, columns, places, free, out):
    """One row of `tilted`."""
    lowest = costs.min()
    log_norm = -0.5 * math.log(2.0 * math.pi * variance)
    for i in range(len(places)):
        near = min(np.searchsorted(omega, places[i]), len(omega) - 1)
        apart = omega[near] - places[i]
        # Beyond, exponents are so far below that of the nearest node.
        reach = math.sqrt(2.0 * variance * (_CUT + rate * (costs[near] - lowest)) + apart * apart)
        begin = np.searchsorted(omega, places[i] - reach)
        end = np.searchsorted(omega, places[i] + reach)
        top = -math.inf
        for j in range(begin, end):
            z = omega[j] - places[i]
            top = max(top, -0.5 * z * z / variance - rate * costs[j])
        total = 0.0
        out[i] = 0.0
        for j in range(begin, end):
            z = omega[j] - places[i]
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
