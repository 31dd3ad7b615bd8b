"""Averages of a few variables with the Boltzmann weight exp(-F / T), by a product rule on a box that contains it.

The energy F is evaluated on a grid of equally many points per axis, the last axis fastest. Kinks of F in a single
variable are given by the index of the variable and the position, in ascending order.
"""

import math

import numpy as np
from numba import njit

CUT = 36.0  # of (F - min F) / T: weights below e^(-36) of the largest are neglected
GROWING, TIGHT, LOST = 0, 1, 2


@njit(cache=True, error_model="numpy")
def mark_points_near_kinks(kinks, low, high, near):
    """Mark the grid points of every axis that are next to a kink of the energy.

    Args:
        kinks: index of the variable and position of every kink of the energy, (kinks, 2).
        low: lower corner of the box of integration, (variables,).
        high: upper corner of the box, (variables,).
        near: filled with the marks, (variables, grid points per axis).
    """
    scan = near.shape[1]
    near[:] = False
    for k in range(kinks.shape[0]):
        axis = int(kinks[k, 0])
        place = (kinks[k, 1] - low[axis]) / (high[axis] - low[axis]) * (scan - 1)
        if -1.0 < place < scan:
            below = math.floor(place)
            for i in range(below - 1, below + 3):
                if 0 <= i < scan:
                    near[axis, i] = True


@njit(cache=True, error_model="numpy")
def adapt_box_to_weight(energies, near, bar, low, high):
    """Move the bounds of the box of integration so that it contains all points with an energy below a bound.

    The box grows where such points reach its boundary; else it shrinks to the grid points below the bound. Between grid
    points the energy may be lower by a fraction of its second difference, next to a kink by its first difference.

    Args:
        energies: energy F at all grid points, last axis fastest.
        near: marks of points next to a kink, (variables, grid points per axis).
        bar: energy above which the Boltzmann weight is negligible.
        low: lower corner of the box, (variables,), changed in place.
        high: upper corner of the box, (variables,), changed in place.

    Returns:
        TIGHT if done, GROWING if the energies must be evaluated on the new box, LOST if no point is below the bound.
    """
    size, scan = near.shape
    first = np.full(size, scan)
    last = np.full(size, -1)
    touched = np.zeros((size, 2), np.bool_)
    place = np.zeros(size, np.int64)
    for n in range(energies.shape[0]):
        energy = energies[n]
        if energy < 1e100:
            slack = 0.0
            stride = energies.shape[0]
            for axis in range(size):
                stride //= scan
                i = place[axis]
                before = energies[n - stride] if i > 0 else energy
                after = energies[n + stride] if i < scan - 1 else energy
                if near[axis, i]:
                    slack += max(abs(before - energy), abs(after - energy))
                elif 0 < i < scan - 1:
                    slack += 0.25 * abs(before - 2.0 * energy + after)
                else:
                    slack += 0.25 * abs(before + after - 2.0 * energy)
            if energy - slack <= bar:
                for axis in range(size):
                    first[axis] = min(first[axis], place[axis])
                    last[axis] = max(last[axis], place[axis])
                    if energy <= bar:
                        if place[axis] == 0:
                            touched[axis, 0] = True
                        if place[axis] == scan - 1:
                            touched[axis, 1] = True
        axis = size - 1
        while axis >= 0:
            place[axis] += 1
            if place[axis] < scan:
                break
            place[axis] = 0
            axis -= 1
    tight = True
    for axis in range(size):
        if last[axis] < 0:
            return LOST
        width = high[axis] - low[axis]
        step = width / (scan - 1)
        base = low[axis]
        if touched[axis, 0] or touched[axis, 1]:
            # The other side is not narrowed at the same time, so that steps grow.
            low[axis] = base - width if touched[axis, 0] else base
            high[axis] = base + (2.0 if touched[axis, 1] else 1.0) * width
            tight = False
            continue
        low[axis] = base + max(first[axis] - 1, 0) * step
        high[axis] = base + min(last[axis] + 1, scan - 1) * step
        if high[axis] - low[axis] < 0.75 * width:
            tight = False
    return TIGHT if tight else GROWING


@njit(cache=True, error_model="numpy")
def fill_axis_nodes(low, high, axis, kinks, rule, places, shares):
    """Fill quadrature nodes and weights for one variable of a Boltzmann average and return their number.

    Without kinks they are equidistant nodes; with kinks, Gauss-Legendre nodes on panels between them.

    Args:
        low: lower end of the interval of integration.
        high: upper end of the interval.
        axis: index of the variable.
        kinks: index of the variable and position of every kink of the energy, (kinks, 2).
        rule: Gauss-Legendre nodes and weights on [-1, 1], (nodes, 2).
        places: filled with the nodes.
        shares: filled with the weights.
    """
    size = rule.shape[0]
    edges = np.empty(kinks.shape[0] + 2)
    edges[0] = low
    count = 1
    for k in range(kinks.shape[0]):
        if int(kinks[k, 0]) == axis and low < kinks[k, 1] < high:
            edges[count] = kinks[k, 1]
            count += 1
    if count == 1:
        step = (high - low) / (size - 1)
        for i in range(size):
            places[i] = low + i * step
            shares[i] = step
        return size
    edges[count] = high
    n = 0
    for panel in range(count):
        middle = 0.5 * (edges[panel] + edges[panel + 1])
        half = 0.5 * (edges[panel + 1] - edges[panel])
        for i in range(size):
            places[n] = middle + half * rule[i, 0]
            shares[n] = half * rule[i, 1]
            n += 1
    return n


@njit(cache=True, error_model="numpy")
def normalise_boltzmann_sums(total, temperature, low, high, mean, spread, other):
    """Divide Boltzmann-weighted sums over the box by the total weight, in place, and form the covariance.

    Args:
        total: sum of the Boltzmann weights.
        temperature: temperature T of the weight exp(-F / T).
        low: lower corner of the box of integration, (variables,).
        high: upper corner of the box, (variables,).
        mean: sums of the variables relative to the middle of the box, (variables,).
        spread: sums of products of the variables, lower triangle; become the covariance over T.
        other: further weighted sums, each divided by the total.
    """
    size = mean.shape[0]
    for k in range(other.shape[0]):
        other[k] /= total
    for a in range(size):
        mean[a] /= total
    for a in range(size):
        for b in range(a + 1):
            spread[a, b] = spread[b, a] = (spread[a, b] / total - mean[a] * mean[b]) / temperature
    for a in range(size):
        mean[a] += 0.5 * (low[a] + high[a])
