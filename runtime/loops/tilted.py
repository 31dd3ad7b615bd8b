"""Averages over a Gaussian variable with an additional weight exp(-rate cost) (exponential tilting)."""

import math

import numpy as np
from numba import njit

_CUT = 42.0  # exponents this far below the largest are neglected


@njit(cache=True, error_model="numpy", nogil=True)
def fill_tilted_averages(
    first, last, rows, omega, lengths, costs, rate, variance, fields, columns, which, places, free, out
):
    """Fill averages over the field omega = omega_0 + z of a state, with z ~ N(0, variance), at many values of omega_0.

    They are weighted by exp(-rate cost(omega)), as at one level of replica symmetry breaking.

    For omega_0 = places[p, i], with <.> for the weighted average over the nodes omega of line which[p], they are

        free[p, i] = (1 / rate) log E exp(-rate costs),   out[p, i] = (<z>, <z fields>, <columns> ...).

    Args:
        first: first index p of the rows to fill.
        last: end of the range of p (exclusive).
        rows: index of the first node of every line, followed by the number of nodes.
        omega: nodes of all lines, ascending on each.
        lengths: quadrature weight of every node for integrals over omega.
        costs: cost at every node.
        rate: positive factor of the cost in the exponent.
        variance: variance of z.
        fields: field g at every node.
        columns: further quantities to average, (nodes, quantities).
        which: index of the line of every p.
        places: values of omega_0, (p, i).
        free: filled with the free energies, (p, i).
        out: filled with the averages, (p, i, 2 + quantities).
    """
    for p in range(first, last):
        begin, end = rows[which[p]], rows[which[p] + 1]
        _fill_tilted_averages_on_line(
            omega[begin:end], lengths[begin:end], costs[begin:end], rate, variance, fields[begin:end],
            columns[begin:end], places[p], free[p], out[p],
        )  # fmt: skip


@njit(cache=True, error_model="numpy")
def _fill_tilted_averages_on_line(omega, lengths, costs, rate, variance, fields, columns, places, free, out):
    """Fill averages over omega ~ N(omega_0, variance), weighted by exp(-rate cost), by nodes omega on one line."""
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
