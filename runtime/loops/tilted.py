"""Averages over a Gaussian variable, tilted by the exponential of a cost of every node."""

import math

import numpy as np
from numba import njit

_CUT = 42.0  # exponents this far below the largest are neglected


@njit(cache=True, error_model="numpy", nogil=True)
def tilted(first, last, rows, omega, lengths, costs, rate, variance, fields, columns, which, places, free, out):
    """Fill tilted averages over z = omega - omega_0 ~ N(0, variance) at omega_0 = places[p, i].

    They are, by the nodes of row which[p],

        free[p, i] = (1 / rate) log E exp(-rate costs),   out[p, i] = (<z>, <z fields>, <columns> ...),

    <.> being the average tilted by exp(-rate costs).

    Args:
        first: first p.
        last: the p after the last.
        rows: beginning of every row and the end, (R + 1,).
        omega: nodes, ascending in a row, (M,).
        lengths: quadrature weights of domega, (M,).
        costs: (M,).
        rate: positive.
        variance: of z.
        fields: (M,).
        columns: further quantities, (M, K).
        which: row of every p, (P,).
        places: omega_0, (P, N).
        free: filled, (P, N).
        out: filled, (P, N, 2 + K).
    """
    for p in range(first, last):
        begin, end = rows[which[p]], rows[which[p] + 1]
        _fill_row(
            omega[begin:end], lengths[begin:end], costs[begin:end], rate, variance, fields[begin:end],
            columns[begin:end], places[p], free[p], out[p],
        )  # fmt: skip


@njit(cache=True, error_model="numpy")
def _fill_row(omega, lengths, costs, rate, variance, fields, columns, places, free, out):
    """Fill the tilted averages of one row."""
    lowest = costs.min()
    log_norm = -0.5 * math.log(2.0 * math.pi * variance)
    for i in range(len(places)):
        near = min(np.searchsorted(omega, places[i]), len(omega) - 1)
        apart = omega[near] - places[i]
        # Beyond, exponents are further below that of the nearest node than the cut.
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
