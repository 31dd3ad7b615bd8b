"""Averages over a row w of W in a random field b, for one eigenvalue (spectral atom) of the token covariances.

b = field z + Q^(1/2) eta with eta standard normal, where z = (tau, pi) are the coordinates of means and teacher. The
vector v = (pi, b) consists of those coordinates of the teacher's row that averages run over (`given` of them: all if
the penalty depends on them or they are discrete, else none) and of the field. zeta are standard normal coordinates of
v, with v = factor zeta.
"""

import math

import numpy as np
from numba import njit


@njit(cache=True, error_model="numpy")
def fill_row_covariances(contexts, gram, field, Q, covariance, cross):
    """Fill the covariance of v = (teacher coordinates pi, field b), and that of v with z = (means tau, teacher pi).

    Args:
        contexts: number of (token, cluster) pairs.
        gram: Gram matrix E[z z^T], (contexts + t, contexts + t).
        field: coefficients of z in the field b, (s, contexts + t).
        Q: covariance of the part of b independent of z, (s, s).
        covariance: filled with the covariance of v, (given + s, given + s).
        cross: filled with Cov(v, z), (given + s, contexts + t).
    """
    student, size = field.shape
    known = covariance.shape[0] - student
    for j in range(size):
        for b in range(known):
            cross[b, j] = gram[contexts + b, j]
        for a in range(student):
            value = 0.0
            for i in range(size):
                value += field[a, i] * gram[i, j]
            cross[known + a, j] = value
    for a in range(student):
        for b in range(known):
            covariance[known + a, b] = covariance[b, known + a] = cross[known + a, contexts + b]
        for e in range(student):
            value = Q[a, e]
            for i in range(size):
                value += cross[known + a, i] * field[e, i]
            covariance[known + a, known + e] = value
    for b in range(known):
        for e in range(known):
            covariance[b, e] = gram[contexts + b, contexts + e]


@njit(cache=True, error_model="numpy")
def fill_weight_field_correlations(factor, cross, own, wz):
    """Fill the correlations E[w z^T] of a row w of W with z = (means tau, teacher pi), from normal coordinates.

    E[w z^T] = E[w zeta^T] K for standard normal coordinates zeta of v = factor zeta, where v are the `given` teacher
    coordinates and the field, and K solves factor K = Cov(v, z).

    Args:
        factor: lower triangular factor of Cov(v), (given + s, given + s).
        cross: covariance of v with z, (given + s, contexts + t).
        own: the average E[w zeta^T], (s, given + s).
        wz: filled with E[w z^T], (s, contexts + t).
    """
    size = factor.shape[0]
    wz[:] = 0.0
    column = np.empty(size)
    for j in range(cross.shape[1]):
        for i in range(size):
            value = cross[i, j]
            for k in range(i):
                value -= factor[i, k] * column[k]
            column[i] = value / factor[i, i] if factor[i, i] > 0.0 else 0.0
        for a in range(own.shape[0]):
            for i in range(size):
                wz[a, j] += own[a, i] * column[i]


@njit(cache=True, error_model="numpy")
def fill_normal_node(node, rule, count, zeta):
    """Fill the first coordinates of zeta with a node of a product rule for standard normal variables.

    Return the weight of the node. The rule reaches 8.6 standard deviations.

    Args:
        node: index of the node, below (nodes per coordinate)**count.
        rule: Gauss-Legendre nodes and weights on [-1, 1], (nodes, 2).
        count: number of coordinates to fill.
        zeta: coordinates, filled from the first one on.
    """
    weight = 1.0
    for k in range(count):
        n = node % rule.shape[0]
        node //= rule.shape[0]
        zeta[k] = 8.6 * rule[n, 0]
        weight *= 8.6 * rule[n, 1] * math.exp(-0.5 * zeta[k] * zeta[k]) / math.sqrt(2.0 * math.pi)
    return weight


@njit(cache=True, error_model="numpy")
def fill_listed_teacher_row(node, c, first, count, factor, zeta):
    """Fill the first coordinates of zeta so that factor zeta is one value of a discrete teacher row.

    Return the probability of that value.

    Args:
        node: index of the value.
        c: parameters of the prior, from index `first` on the probability and the entries of every value.
        first: first index of the values in c.
        count: number of coordinates to fill.
        factor: lower triangular matrix that maps zeta to the teacher's row.
        zeta: coordinates, filled from the first one on.
    """
    place = first + node * (count + 1)
    for k in range(count):
        value = c[place + 1 + k]
        for j in range(k):
            value -= factor[k, j] * zeta[j]
        zeta[k] = value / factor[k, k] if factor[k, k] > 0.0 else 0.0
    return c[place]


@njit(cache=True, error_model="numpy")
def fill_normal_panel_nodes(edges, rule, nodes, shares):
    """Fill quadrature nodes and weights for a standard normal variable on panels; return their number.

    Args:
        edges: edges of the panels, ascending.
        rule: Gauss-Legendre nodes and weights on [-1, 1], (nodes, 2).
        nodes: filled with the nodes.
        shares: filled with the weights.
    """
    count = 0
    for panel in range(edges.shape[0] - 1):
        half = 0.5 * (edges[panel + 1] - edges[panel])
        if half > 0.0:
            for n in range(rule.shape[0]):
                xi = 0.5 * (edges[panel] + edges[panel + 1]) + half * rule[n, 0]
                nodes[count] = xi
                shares[count] = half * rule[n, 1] * math.exp(-0.5 * xi * xi) / math.sqrt(2.0 * math.pi)
                count += 1
    return count


@njit(cache=True, error_model="numpy")
def add_weight_moments(weight, w, response, zeta, ww, responses, squares, own):
    """Add the moments of a minimising row w of W at one quadrature node to weighted sums.

    Args:
        weight: weight of the node.
        w: the minimising row, (s,).
        response: derivative J = dw/db of the row in its field, (s, s).
        zeta: standard normal coordinates of the node.
        ww: weighted sum of w w^T.
        responses: weighted sum of J.
        squares: weighted sum of the tensor products of J with itself.
        own: weighted sum of w zeta^T.
    """
    student = w.shape[0]
    for a in range(student):
        for b in range(student):
            ww[a, b] += weight * w[a] * w[b]
            responses[a, b] += weight * response[a, b]
            for e in range(student):
                for f in range(student):
                    squares[a, b, e, f] += weight * response[a, b] * response[e, f]
        for k in range(own.shape[1]):
            own[a, k] += weight * w[a] * zeta[k]


@njit(cache=True, error_model="numpy")
def quadratic_weight_energy(w, G, field):
    """Return the quadratic part w^T G w / 2 - w^T b of the energy of a row w of W.

    Args:
        w: the row, a tuple of s numbers.
        G: stiffness matrix, (s, s).
        field: the field b that acts on the row, (s,).
    """
    value = 0.0
    for a in range(len(w)):
        slope = 0.0
        for b in range(len(w)):
            slope += G[a, b] * w[b]
        value += w[a] * (0.5 * slope - field[a])
    return value
