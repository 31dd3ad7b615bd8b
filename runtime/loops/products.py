"""Sums over omega for a posterior that is a sum of two terms, each of which depends on separate coordinates."""

import numpy as np
from numba import njit


@njit(cache=True, error_model="numpy", nogil=True)
def add_posterior_averages_over_pairs(
    first, second, ranges, omega, along, nodes, weights, others, factor, least, curved, sums, squares, responses
):
    """Add averages over nodes of omega for a posterior of y that is a sum of two terms, each tabulated at own nodes.

    Args:
        first: moments of y under the first term: 1, y and, if curved, the upper triangle of y y^T, (outer nodes, nodes,
            moments); overwritten with the moments of y - omega.
        second: the same of the second term.
        ranges: first and last node of both terms that are not zero, (2, outer nodes, 2).
        omega: fields omega at the nodes of the other coordinates, (outer nodes, fields).
        along: index of the coordinate along which the terms' nodes lie; -1 for none.
        nodes: positions of the nodes along that coordinate.
        weights: weights of all pairs of nodes; their cumulative sums along rows, after a column of zeros; and along
            columns, after a row of zeros.
        others: weights of the nodes of the other coordinates, (outer nodes,).
        factor: common factor of all weights.
        least: weight below which a node is left out.
        curved: whether to sum responses dg/domega, too.
        sums: receives the weighted sums of 1 and log Z.
        squares: receives the upper triangle of the weighted sum of g g^T, (fields, fields).
        responses: receives the weighted sums of products of pairs of entries of dg/domega, upper triangle.
    """
    pairs, from_left, from_above = weights
    g, slope = np.empty(squares.shape[0]), np.empty(responses.shape[0])
    nothing, at = np.zeros(first.shape[2]), np.empty(squares.shape[0])
    heaviest = pairs.max()
    for other in range(first.shape[0]):
        outside = others[other] * factor
        at[:] = omega[other]
        i0, i1 = _range_of_relevant_nodes(first[other], ranges[0, other], least, outside * heaviest)
        j0, j1 = _range_of_relevant_nodes(second[other], ranges[1, other], least, outside * heaviest)
        for table, low, high in ((first, i0, i1), (second, j0, j1)):
            for i in range(low, high):
                if along >= 0:
                    at[along] = nodes[i]
                _centre_moments(table[other, i], at, curved)
        for i in range(i0, i1):
            one = first[other, i]
            alone = from_left[i, -1] - from_left[i, j1] + from_left[i, j0]
            _add_posterior_node(one, nothing, alone * outside, least, curved, g, slope, sums, squares, responses)
            for j in range(j0, j1):
                weight = pairs[i, j] * outside
                _add_posterior_node(one, second[other, j], weight, least, curved, g, slope, sums, squares, responses)
        for j in range(j0, j1):
            alone = from_above[-1, j] - from_above[i1, j] + from_above[i0, j]
            _add_posterior_node(
                nothing, second[other, j], alone * outside, least, curved, g, slope, sums, squares, responses
            )


@njit(cache=True, error_model="numpy", nogil=True)
def _range_of_relevant_nodes(table, span, least, weight):
    """Narrow a range (first, last + 1) of nodes to those whose weights are not negligible, and return it."""
    low, high = span
    while low < high and not table[low, 0] * weight >= least:
        low += 1
    while high > low and not table[high - 1, 0] * weight >= least:
        high -= 1
    return low, high


@njit(cache=True, error_model="numpy", nogil=True)
def _centre_moments(moments, omega, curved):
    """Replace moments of a random vector y by those of y - omega, in place."""
    size = omega.shape[0]
    if curved:
        place = 1 + size
        for a in range(size):
            for b in range(a, size):
                moments[place] += (
                    omega[a] * omega[b] * moments[0] - omega[a] * moments[1 + b] - omega[b] * moments[1 + a]
                )
                place += 1
    for a in range(size):
        moments[1 + a] -= omega[a] * moments[0]


@njit(cache=True, error_model="numpy", nogil=True)
def _add_posterior_node(one, two, weight, least, curved, g, slope, sums, squares, responses):
    """Add the posterior averages at one node of omega to sums over nodes.

    The moments of the posterior are the sums of the moments `one` and `two` of its two terms.
    """
    size = g.shape[0]
    total = one[0] + two[0]
    share = weight * total
    if not share >= least:
        return
    for a in range(size):
        g[a] = (one[1 + a] + two[1 + a]) / total
    sums[0] += share
    sums[1] += share * np.log(total)
    for a in range(size):
        for b in range(a, size):
            squares[a, b] += share * g[a] * g[b]
    if not curved:
        return
    place = 0
    for a in range(size):
        for b in range(a, size):
            at = 1 + size + place
            slope[place] = (one[at] + two[at]) / total - g[a] * g[b] - (1.0 if a == b else 0.0)
            place += 1
    for a in range(place):
        for b in range(a, place):
            responses[a, b] += share * slope[a] * slope[b]
