"""Sums over omega where the posterior is a sum of two parts that depend on coordinates of their own."""

import numpy as np
from numba import njit


@njit(cache=True, error_model="numpy", nogil=True)
def collect_sums(
    first, second, ranges, omega, along, nodes, weights, others, factor, least, curved, sums, squares, responses
):
    """Averages over all pairs of nodes of two sums over what is hidden, at every node of the other coordinates.

    Args:
        first, second: (M, N, K) and (M, N', K), moments 1, y (D) and, where curved, y y^T (upper triangle by rows), of
            unit variance around omega; overwritten with those of y - omega.
        ranges: (2, M, 2), nodes of both from and up to which they are not zero.
        omega: (M, D), in the other coordinates; along: the direction of the nodes (N,), -1 without any.
        weights: (N, N'), summed from the left with a zero column before, (N, N' + 1), and from above with a zero row,
            (N + 1, N'); others: (M,).
        factor: of all weights; least: weight below which a node is left out.
        sums: 1 and log Z are added to it; squares: g g^T (D, D), upper triangle; responses: products of pairs of
            entries of dg/domega, upper triangle.
    """
    pairs, from_left, from_above = weights
    g, slope = np.empty(squares.shape[0]), np.empty(responses.shape[0])
    nothing, at = np.zeros(first.shape[2]), np.empty(squares.shape[0])
    heaviest = pairs.max()
    for other in range(first.shape[0]):
        outside = others[other] * factor
        at[:] = omega[other]
        i0, i1 = _that_counts(first[other], ranges[0, other], least, outside * heaviest)
        j0, j1 = _that_counts(second[other], ranges[1, other], least, outside * heaviest)
        for table, low, high in ((first, i0, i1), (second, j0, j1)):
            for i in range(low, high):
                if along >= 0:
                    at[along] = nodes[i]
                _centre(table[other, i], at, curved)
        for i in range(i0, i1):
            one = first[other, i]
            alone = from_left[i, -1] - from_left[i, j1] + from_left[i, j0]
            _add(one, nothing, alone * outside, least, curved, g, slope, sums, squares, responses)
            for j in range(j0, j1):
                weight = pairs[i, j] * outside
                _add(one, second[other, j], weight, least, curved, g, slope, sums, squares, responses)
        for j in range(j0, j1):
            alone = from_above[-1, j] - from_above[i1, j] + from_above[i0, j]
            _add(nothing, second[other, j], alone * outside, least, curved, g, slope, sums, squares, responses)


@njit(cache=True, error_model="numpy", nogil=True)
def _that_counts(table, span, least, weight):
    """First node, and the one after the last, of (N, K) whose sum may have a weight that counts, within a span."""
    low, high = span
    while low < high and not table[low, 0] * weight >= least:
        low += 1
    while high > low and not table[high - 1, 0] * weight >= least:
        high -= 1
    return low, high


@njit(cache=True, error_model="numpy", nogil=True)
def _centre(moments, omega, curved):
    """From moments of y to those of y - omega, in place."""
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
def _add(one, two, weight, least, curved, g, slope, sums, squares, responses):
    """One node of omega: the moments of its posterior are those of two sums together."""
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
