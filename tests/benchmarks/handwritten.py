"""What a physicist would write by hand for the paper's case (L = 2, s = t = 1): the Moreau objective of dot-product
attention, Newton from several starts, and the sums over nodes.

It shares no code with the generator. The tests of the proximal map use it as an oracle, the benchmarks as a yardstick.
"""

import math

import numpy as np
from numba import njit, prange

FLAGS = {"error_model": "numpy"}  # not cached: Numba cannot reload a parallel loop of a module loaded by path


@njit(**FLAGS)
def target(y0, y1, omega, A):
    """First column of T(Y) = (1 - omega) softmax(Y Y^T) + omega A; rows of A add up to 1."""
    return (
        (1 - omega) / (1 + math.exp(y0 * y1 - y0 * y0)) + omega * A[0, 0],
        (1 - omega) / (1 + math.exp(y1 * y1 - y0 * y1)) + omega * A[1, 0],
    )


@njit(**FLAGS)
def moreau(x0, x1, w0, w1, p0, p1, t0, t1, rho):
    """1/2 (x - w)^T V^(-1) (x - w) + rho ((t0 - s0)^2 + (t1 - s1)^2): both columns of a row err alike."""
    s0 = 1 / (1 + math.exp(x0 * x1 - x0 * x0))
    s1 = 1 / (1 + math.exp(x1 * x1 - x0 * x1))
    quadratic = 0.5 * p0 * (x0 - w0) * (x0 - w0) + 0.5 * p1 * (x1 - w1) * (x1 - w1)
    return quadratic + rho * ((s0 - t0) * (s0 - t0) + (s1 - t1) * (s1 - t1))


@njit(**FLAGS)
def slopes(x0, x1, w0, w1, p0, p1, t0, t1, rho):
    """Gradient and Hessian of the same: d0, d1, h00, h01, h11."""
    s0 = 1 / (1 + math.exp(x0 * x1 - x0 * x0))
    s1 = 1 / (1 + math.exp(x1 * x1 - x0 * x1))
    b0, b1 = s0 * (1 - s0), s1 * (1 - s1)
    e0, e1 = 2 * rho * (s0 - t0), 2 * rho * (s1 - t1)
    k0 = 2 * rho * b0 * b0 + e0 * b0 * (1 - 2 * s0)
    k1 = 2 * rho * b1 * b1 + e1 * b1 * (1 - 2 * s1)
    a0, a1 = 2 * x0 - x1, -x0  # of x0^2 - x0 x1
    c0, c1 = x1, x0 - 2 * x1  # of x0 x1 - x1^2
    g0, g1 = e0 * b0, e1 * b1
    return (
        p0 * (x0 - w0) + g0 * a0 + g1 * c0,
        p1 * (x1 - w1) + g0 * a1 + g1 * c1,
        p0 + k0 * a0 * a0 + k1 * c0 * c0 + 2 * g0,
        k0 * a0 * a1 + k1 * c0 * c1 - g0 + g1,
        p1 + k0 * a1 * a1 + k1 * c1 * c1 - 2 * g1,
    )


@njit(**FLAGS)
def descend(x0, x1, w0, w1, p0, p1, t0, t1, rho):
    """Newton with positive curvatures and step halving: a local minimum, its value, and whether it converged."""
    value = moreau(x0, x1, w0, w1, p0, p1, t0, t1, rho)
    floor = 1e-3 * (p0 + p1)
    for _ in range(200):
        d0, d1, h00, h01, h11 = slopes(x0, x1, w0, w1, p0, p1, t0, t1, rho)
        half, spread = 0.5 * (h00 + h11), math.sqrt(0.25 * (h00 - h11) ** 2 + h01 * h01)
        low = half - spread
        if low < floor:
            h00 += floor - 2 * min(low, 0.0)
            h11 += floor - 2 * min(low, 0.0)
        det = h00 * h11 - h01 * h01
        m0, m1 = -(h11 * d0 - h01 * d1) / det, -(h00 * d1 - h01 * d0) / det
        decrement = -(d0 * m0 + d1 * m1)
        if decrement < 1e-18:
            return x0 + m0, x1 + m1, value, True
        size = 1.0
        for _ in range(40):
            new = moreau(x0 + size * m0, x1 + size * m1, w0, w1, p0, p1, t0, t1, rho)
            if new <= value - 1e-4 * size * decrement + 1e-16:
                break
            size *= 0.5
        x0 += size * m0
        x1 += size * m1
        value = new
    return x0, x1, value, False


@njit(**FLAGS)
def lowest(starts, w0, w1, p0, p1, t0, t1, rho):
    """Lowest minimum over starts around omega, its value, and whether a second, different minimum was met."""
    best0, best1, best = 0.0, 0.0, np.inf
    lowest0, lowest1, highest = 0.0, 0.0, 0
    for k in range(starts.shape[0]):
        x0, x1, value, done = (
            descend(w0 + starts[k, 0], w1 + starts[k, 1], w0, w1, p0, p1, t0, t1, rho)
            if k > 0
            else descend(w0, w1, w0, w1, p0, p1, t0, t1, rho)
        )
        if not done:
            continue
        if highest == 0:
            lowest0, lowest1, highest = x0, x1, 1
        elif (x0 - lowest0) ** 2 + (x1 - lowest1) ** 2 > 1e-6 * (x0 * x0 + x1 * x1) + 1e-10:
            highest = 2
        if value < best:
            best0, best1, best = x0, x1, value
    return best0, best1, best, highest


@njit(parallel=True, **FLAGS)
def minima(starts, fields, targets, p0, p1, rho):
    """(x0, x1, value, 1 or 2 minima met) at every point, by descents from all starts."""
    out = np.empty((len(fields), 4))
    for n in prange(len(fields)):
        out[n, 0], out[n, 1], out[n, 2], out[n, 3] = lowest(
            starts, fields[n, 0], fields[n, 1], p0, p1, targets[n, 0], targets[n, 1], rho
        )
    return out


@njit(**FLAGS)
def _hats_chunk(begin, end, starts, nodes, weights, y_scale, w_mean, w_from_y, w_scale, p0, p1, rho, omega, A, out):
    for n in range(begin, end):
        y0, y1 = y_scale * nodes[n, 0], y_scale * nodes[n, 1]
        dw0 = w_from_y[0] * nodes[n, 0] + w_scale[0] * nodes[n, 2]
        dw1 = w_from_y[1] * nodes[n, 1] + w_scale[1] * nodes[n, 3]
        w0, w1 = w_mean[0] + dw0, w_mean[1] + dw1
        t0, t1 = target(y0, y1, omega, A)
        x0, x1, value, _ = lowest(starts, w0, w1, p0, p1, t0, t1, rho)
        g0, g1 = p0 * (x0 - w0), p1 * (x1 - w1)
        out[0] += weights[n] * g0
        out[1] += weights[n] * g0 * y0
        out[2] += weights[n] * g0 * dw0
        out[3] += weights[n] * g0 * g0
        out[4] += weights[n] * g1
        out[5] += weights[n] * g1 * y1
        out[6] += weights[n] * g1 * dw1
        out[7] += weights[n] * g1 * g1
        out[8] += weights[n] * value


@njit(parallel=True, **FLAGS)
def hats(chunks, starts, nodes, weights, y_scale, w_mean, w_from_y, w_scale, p0, p1, rho, omega, A):
    """Raw averages g, g dY, g domega, g^2 of both tokens, then E[M]: the update of all conjugates by hand."""
    out = np.zeros((chunks, 9))
    for k in prange(chunks):
        begin, end = k * len(nodes) // chunks, (k + 1) * len(nodes) // chunks
        _hats_chunk(
            begin, end, starts, nodes, weights, y_scale, w_mean, w_from_y, w_scale, p0, p1, rho, omega, A, out[k]
        )
    return out.sum(axis=0)
