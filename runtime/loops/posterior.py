"""Sums over posterior averages of Bayes-optimal inference."""

from numba import njit


@njit(cache=True, error_model="numpy")
def shift(centre, factor, node, out):
    """Fill out with centre + factor node.

    Args:
        centre: (D,).
        factor: (D, R).
        node: (R,).
        out: (D,).
    """
    for i in range(out.shape[0]):
        out[i] = centre[i]
        for j in range(node.shape[0]):
            out[i] += factor[i, j] * node[j]


@njit(cache=True, error_model="numpy")
def centre(squares, total, g, precision):
    """Turn sums of s s^T into Cov(s) - precision, in place.

    Args:
        squares: sums, of which the lower triangle is given, (D, D).
        total: sum of weights.
        g: mean of s, (D,).
        precision: diagonal blocks, (L, t, t).
    """
    block = precision.shape[1]
    for i in range(g.shape[0]):
        for j in range(i + 1):
            value = squares[i, j] / total - g[i] * g[j]
            if i // block == j // block:
                value -= precision[i // block, i % block, j % block]
            squares[i, j] = value
            squares[j, i] = value


@njit(cache=True, error_model="numpy")
def collect(out, weight, value, g, curvature, block):
    """Add weight * (1, log Z, g_l g_l^T, D_ll' (x) D_ll') to out.

    Args:
        out: sums, flat; the last part, [l, a, b, l', i, j] of D_la,l'i D_lb,l'j, is absent if `curvature` is empty.
        weight: of the node.
        value: log Z.
        g: (D,), in blocks of t.
        curvature: dg/domega, (D, D) or empty.
        block: t.
    """
    size = g.shape[0]
    out[0] += weight
    out[1] += weight * value
    for i in range(size):
        first = i // block * block
        for b in range(block):
            out[2 + i * block + b] += weight * g[i] * g[first + b]
    if not curvature.shape[0]:
        return
    place = 2 + size * block
    for i in range(size):
        for b in range(i // block * block, i // block * block + block):
            for k in range(size):
                for j in range(k // block * block, k // block * block + block):
                    out[place] += weight * curvature[i, k] * curvature[b, j]
                    place += 1
