"""Truncated normal variables: measures, moments, and nodes given a correlated variable."""

import math

import numpy as np
from numba import njit

_LEAST = 1e-300  # measure below which an interval counts as empty
_LIGHT = 1e-22  # weight below which a node is left out
_FARTHEST = 9.0  # standard deviations beyond which a density counts as zero


@njit(cache=True, error_model="numpy")
def _normal_measure_left_of_zero(a, b):
    """Return the standard normal measure of the interval [a, b] for a + b <= 0, without cancellation."""
    return 0.5 * (math.erfc(-b * math.sqrt(0.5)) - math.erfc(-a * math.sqrt(0.5)))


@njit(cache=True, error_model="numpy")
def normal_measures_of_intervals(a, b):
    """Return the standard normal measures of many intervals [a, b].

    Args:
        a: lower ends of the intervals, one-dimensional.
        b: upper ends of the intervals, of the same length.
    """
    out = np.empty(len(a))
    for n in range(len(a)):
        out[n] = (
            _normal_measure_left_of_zero(-b[n], -a[n]) if b[n] > -a[n] else _normal_measure_left_of_zero(a[n], b[n])
        )
    return out


@njit(cache=True, error_model="numpy")
def truncated_normal_moments(a, b):
    """Return measure, mean, standard deviation and skewness of N(0, 1) truncated to an interval.

    All four are zero if the measure underflows.

    Args:
        a: lower end of the interval.
        b: upper end of the interval.
    """
    flip = b > -a
    left, right = (-b, -a) if flip else (a, b)
    share = _normal_measure_left_of_zero(left, right)
    if not share > _LEAST:
        return 0.0, 0.0, 0.0, 0.0
    norm = share * math.sqrt(2.0 * math.pi)
    at_left, at_right = math.exp(-0.5 * left * left) / norm, math.exp(-0.5 * right * right) / norm
    if left == -math.inf:
        left = 0.0
    if right == math.inf:
        right = 0.0
    # Moments of order k: m_k = (k - 1) m_{k - 2} + a^{k - 1} phi(a) - b^{k - 1} phi(b), over the measure.
    first = at_left - at_right
    second = 1.0 + left * at_left - right * at_right
    third = 2.0 * first + left * left * at_left - right * right * at_right
    spread = math.sqrt(max(second - first**2, 1e-12))
    skewness = (third - 3.0 * first * second + 2.0 * first**3) / spread**3
    skewness = min(max(skewness, -4.0), 4.0)
    return (share, -first, spread, -skewness) if flip else (share, first, spread, skewness)


@njit(cache=True, error_model="numpy")
def conditional_teacher_nodes(row, z, weight, places, shared, width, count):  # docs/theory.md (11.14)
    """Return nodes for two standard normal variables y and e, y in an interval, from nodes for z = shared y + width e.

    Args:
        row: index of the interval of y for every node of z: it runs from places[row] to places[row + 1].
        z: nodes of the variable z.
        weight: weights of the nodes of z.
        places: ends of the intervals of y, ascending.
        shared: coefficient of y in z.
        width: coefficient of the independent normal variable e in z.
        count: number of nodes of y for every z: 1 at its conditional mean, or 2 with its first three moments.

    Returns:
        Array of the rows (y, e) of the new nodes, and their weights.
    """
    nodes = np.empty((count * len(z), 2))
    weights = np.empty(len(nodes))
    total = 0
    for n in range(len(z)):
        low, high = places[row[n]], places[row[n] + 1]
        share, mean, spread, skewness = truncated_normal_moments(
            (low - shared * z[n]) / width, (high - shared * z[n]) / width
        )
        for k in range(count):
            place, chance = _node_of_two_point_rule(k, mean, spread, skewness) if count == 2 else (mean, 1.0)
            if weight[n] * share * chance > _LIGHT:
                y = shared * z[n] + width * place
                nodes[total, 0] = y
                nodes[total, 1] = (z[n] - shared * y) / width
                weights[total] = weight[n] * share * chance
                total += 1
    return nodes[:total], weights[:total]


@njit(cache=True, error_model="numpy")
def _node_of_two_point_rule(k, mean, spread, skewness):
    """Return position and weight of node k (0 or 1) of the two-point rule with given mean, deviation and skewness."""
    root, way = math.sqrt(1.0 + 0.25 * skewness * skewness), 2.0 * k - 1.0
    return mean + spread * (0.5 * skewness + way * root), 0.5 * (1.0 - 0.5 * way * skewness / root)


@njit(cache=True, error_model="numpy")
def conditional_teacher_nodes_given_sum(
    row, omega, weight, y, shares, centre, slope, width, count
):  # docs/theory.md (11.19)
    """Return nodes for two standard normal variables y and e, given omega = centre + slope y + width e and a sum.

    Args:
        row: index of the value of the sum for every omega, ascending.
        omega: nodes of the field omega.
        weight: weight of every node in omega and the sum.
        y: nodes of the teacher variable y.
        shares: density of the sum given y times the weights of the nodes of y, (values of the sum, nodes of y).
        centre: mean of omega.
        slope: coefficient of y in omega.
        width: coefficient of the independent normal variable e in omega.
        count: number of nodes of y for every omega: 1 at its conditional mean, or 2 with its first three moments.

    Returns:
        For every new node: the index of its omega, the pair (y, e), and its weight.
    """
    whose = np.empty(count * len(omega), np.int64)
    nodes = np.empty((len(whose), 2))
    weights = np.empty(len(whose))
    held, chances = np.empty(len(y), np.int64), np.empty(len(y))
    most = total = 0
    for n in range(len(omega)):
        if n == 0 or row[n] != row[n - 1]:
            most = 0
            for k in range(len(y)):
                if shares[row[n], k] > 0.0:
                    held[most] = k
                    most += 1
        share = mean = 0.0
        for i in range(most):
            k = held[i]
            e = (omega[n] - centre - slope * y[k]) / width
            chances[i] = shares[row[n], k] * math.exp(-0.5 * e * e) if abs(e) < _FARTHEST else 0.0
            share += chances[i]
            mean += chances[i] * y[k]
        if not share > _LEAST:
            continue
        mean /= share
        second = third = 0.0
        for i in range(most if count == 2 else 0):
            away = y[held[i]] - mean
            second += chances[i] * away**2
            third += chances[i] * away**3
        spread = math.sqrt(max(second / share, 1e-24))
        skewness = third / share / spread**3
        share *= weight[n] / (width * math.sqrt(2.0 * math.pi))
        for k in range(count):
            place, chance = _node_of_two_point_rule(k, mean, spread, skewness) if count == 2 else (mean, 1.0)
            if share * chance > _LIGHT:
                whose[total] = n
                nodes[total, 0] = place
                nodes[total, 1] = (omega[n] - centre - slope * place) / width
                weights[total] = share * chance
                total += 1
    return whose[:total], nodes[:total], weights[:total]
