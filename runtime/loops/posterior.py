"""Sums over posterior averages of Bayes-optimal inference."""

from numba import njit


@njit(cache=True, error_model="numpy")
def fill_affine_image(centre, factor, node, out):
    """Fill `out` with the image of a quadrature node under the affine map node -> centre + factor node.

    Args:
        centre: image of the origin, (fields,).
        factor: matrix of the map, (fields, coordinates).
        node: the node, (coordinates,).
        out: filled with the image, (fields,).
    """
    for i in range(out.shape[0]):
        out[i] = centre[i]
        for j in range(node.shape[0]):
            out[i] += factor[i, j] * node[j]


@njit(cache=True, error_model="numpy")
def centre_second_moments(squares, total, g, precision):
    """Turn weighted sums of s s^T, for a random vector s, into its covariance minus a precision matrix, in place.

    Args:
        squares: sums of s s^T, of which the lower triangle is given, (fields, fields).
        total: sum of weights.
        g: mean of the vector s, (fields,).
        precision: diagonal blocks of the precision matrix, (L, t, t).
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
    """Add one quadrature node to sums over posteriors: weight, log Z, products of means, products of responses.

    Args:
        out: flat array of the sums of 1, log Z, g_la g_lb and D_la,l'i D_lb,l'j; the last only with `curvature`.
        weight: weight of the node.
        value: log Z, the logarithm of the posterior's normalisation.
        g: posterior mean of the fields, token by token, (fields,).
        curvature: response D = dg/domega, (fields, fields), or empty.
        block: number t of teacher columns.
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
