"""Sums over posterior averages of Bayes-optimal inference."""

from numba import njit


@njit(cache=True, error_model="numpy")
def fill_affine_image(centre, factor, node, out):
    """Fill the image centre + factor node of a node under an affine map.

    Args:
        centre: image of zero, (D,).
        factor: matrix of the map, (D, R).
        node: the node, (R,).
        out: filled with the image, (D,).
    """
    for i in range(out.shape[0]):
        out[i] = centre[i]
        for j in range(node.shape[0]):
            out[i] += factor[i, j] * node[j]


@njit(cache=True, error_model="numpy")
def centre_second_moments(squares, total, g, precision):
    """Turn weighted sums of s s^T into Cov(s) - precision, in place.

    Args:
        squares: sums of s s^T, of which the lower triangle is given, (D, D).
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
def add_posterior_sums(out, weight, value, g, curvature, block):
    """Add a node to the sums of (1, log Z, g_l g_l^T, D_ll' (x) D_ll') over posteriors.

    Args:
        out: sums, flat; the last part, [l, a, b, l', i, j] of D_la,l'i D_lb,l'j, is absent if `curvature` is empty.
        weight: weight of the node.
        value: log Z.
        g: posterior mean, (D,), in blocks of t.
        curvature: D = dg/domega, (D, D) or empty.
        block: block size t.
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
