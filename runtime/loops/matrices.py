"""Linear algebra of small dense matrices."""

import numpy as np
from numba import njit


@njit(cache=True, error_model="numpy")
def cholesky(matrix, least, out):
    """Fill the lower Cholesky factor of a symmetric matrix and return the number of vanishing pivots.

    Columns of vanishing pivots are zero.

    Args:
        matrix: symmetric matrix, (n, n).
        least: fraction of the matrix's diagonal entry up to which a pivot counts as vanishing.
        out: filled with the factor, (n, n).
    """
    size = matrix.shape[0]
    out[:] = 0.0
    vanishing = 0
    for j in range(size):
        pivot = matrix[j, j]
        for k in range(j):
            pivot -= out[j, k] * out[j, k]
        if not pivot > least * matrix[j, j]:
            vanishing += 1
            continue
        out[j, j] = np.sqrt(pivot)
        for i in range(j + 1, size):
            value = matrix[i, j]
            for k in range(j):
                value -= out[i, k] * out[j, k]
            out[i, j] = value / out[j, j]
    return vanishing


@njit(cache=True, error_model="numpy")
def semidefinite_cholesky(matrix, out):
    """Fill the lower Cholesky factor of a positive semidefinite matrix; columns of vanishing pivots are zero.

    Args:
        matrix: symmetric matrix, (n, n).
        out: filled with the factor, (n, n).
    """
    cholesky(matrix, 1e-14, out)


@njit(cache=True, error_model="numpy")
def invert_positive_definite(matrix, out):
    """Fill the inverse of a symmetric matrix and return whether the matrix is positive definite.

    Args:
        matrix: symmetric matrix, (n, n).
        out: filled with the inverse, (n, n).
    """
    size = matrix.shape[0]
    factor = np.empty((size, size))
    if cholesky(matrix, 0.0, factor) > 0:
        return False
    column = np.empty(size)
    for e in range(size):
        for i in range(size):
            value = 1.0 if i == e else 0.0
            for k in range(i):
                value -= factor[i, k] * column[k]
            column[i] = value / factor[i, i]
        for i in range(size - 1, -1, -1):
            value = column[i]
            for k in range(i + 1, size):
                value -= factor[k, i] * out[k, e]
            out[i, e] = value / factor[i, i]
    return True


@njit(cache=True, error_model="numpy")
def multiply_matrices(one, other, out):
    """Fill the product of two matrices, summed in the order of the columns of the first one.

    Args:
        one: first matrix, (n, k).
        other: second matrix, (k, m).
        out: filled with the product, (n, m).
    """
    for i in range(one.shape[0]):
        for j in range(other.shape[1]):
            value = 0.0
            for k in range(one.shape[1]):
                value += one[i, k] * other[k, j]
            out[i, j] = value


@njit(cache=True, error_model="numpy")
def fill_tensor_square(matrix, out):
    """Fill the tensor product M_ab M_ef of a matrix M with itself.

    Args:
        matrix: square matrix, (s, s).
        out: filled with the products, (s, s, s, s).
    """
    size = matrix.shape[0]
    for a in range(size):
        for b in range(size):
            for e in range(size):
                for f in range(size):
                    out[a, b, e, f] = matrix[a, b] * matrix[e, f]


@njit(cache=True, error_model="numpy")
def fill_field_laws(
    q, V, theta, rho_star, teacher_factor, from_teacher, conditional, factor, precision, field_precision
):
    """Fill the matrices of the joint Gaussian law of student and teacher fields (docs/theory.md (3.14)), by context.

    Args:
        q: overlap q of the student, (contexts, s, s).
        V: variance V, (contexts, s, s).
        theta: overlaps with the teacher, (contexts, s, t).
        rho_star: covariance rho* of the teacher fields, (contexts, t, t).
        teacher_factor: filled with the Cholesky factor T of rho* = T T^T, (contexts, t, t).
        from_teacher: filled with b = theta T^(-T), (contexts, s, t).
        conditional: filled with the conditional covariance K = q - b b^T, (contexts, s, s).
        factor: filled with the Cholesky factor F of K = F F^T, (contexts, s, s).
        precision: filled with V^(-1), (contexts, s, s).
        field_precision: filled with K^(-1), (contexts, s, s).

    Returns:
        log det K, summed over the blocks; nan if V, rho* or K is not positive definite or not finite.
    """
    total = 0.0
    for block in range(q.shape[0]):
        T, b, C, F = teacher_factor[block], from_teacher[block], conditional[block], factor[block]
        if cholesky(rho_star[block], 0.0, T) > 0 or not invert_positive_definite(V[block], precision[block]):
            return np.nan
        for a in range(b.shape[0]):
            for e in range(b.shape[1]):
                value = theta[block, a, e]
                for k in range(e):
                    value -= T[e, k] * b[a, k]
                b[a, e] = value / T[e, e]
        multiply_matrices(b, b.T, C)
        for a in range(C.shape[0]):
            for e in range(C.shape[1]):
                C[a, e] = q[block, a, e] - C[a, e]
                total += 0.0 * (q[block, a, e] + V[block, a, e])  # nan if one of them is nan
        if cholesky(C, 0.0, F) > 0 or not invert_positive_definite(C, field_precision[block]):
            return np.nan
        for a in range(F.shape[0]):
            total += 2.0 * np.log(F[a, a])
    return total


def matrix_from_entries(shape, rows):
    """Return an array (..., n, m) of n x m matrices from their entries, without Numba.

    Args:
        shape: leading axes, to which entries are broadcast.
        rows: n lists of m entries, each a number or an array that broadcasts to the leading axes.
    """
    out = np.empty((*shape, len(rows), len(rows[0])))
    for i, row in enumerate(rows):
        for j, entry in enumerate(row):
            out[..., i, j] = entry
    return out
