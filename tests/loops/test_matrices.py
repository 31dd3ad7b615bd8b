"""Small matrices and blocks of slopes, against NumPy."""

from types import SimpleNamespace

import numpy as np
import pytest


@pytest.fixture
def matrices(loops) -> SimpleNamespace:
    return loops["matrices"]


@pytest.fixture
def proximal(loops) -> SimpleNamespace:
    return loops["proximal"]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def positive(rng, size):
    root = rng.normal(size=(size, size))
    return root @ root.T + 0.1 * np.eye(size)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_an_inverse_is_that_of_a_positive_definite_matrix(matrices, rng, size):
    matrix, out = positive(rng, size), np.empty((size, size))
    assert matrices.invert_positive_definite(matrix, out)
    assert out == pytest.approx(np.linalg.inv(matrix), rel=1e-12)


@pytest.mark.parametrize("eigenvalue", [0.0, -1e-3, np.nan])
def test_no_inverse_where_the_matrix_is_not_positive_definite(matrices, rng, eigenvalue):
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    matrix = np.diag([2.0, eigenvalue, 1.0]) if eigenvalue == 0 else turn @ np.diag([2.0, eigenvalue, 1.0]) @ turn.T
    assert not matrices.invert_positive_definite(matrix, np.empty((3, 3)))


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_a_factor_gives_the_matrix_back_and_has_no_column_where_a_pivot_vanishes(matrices, rng, rank):
    root, out = np.tril(rng.normal(size=(4, rank))), np.empty((4, 4))
    matrices.semidefinite_cholesky(root @ root.T, out)
    assert out @ out.T == pytest.approx(root @ root.T, rel=1e-10, abs=1e-12)
    assert np.array_equal(out, np.tril(out))
    assert not out[:, rank:].any()


def test_matrix_and_tensor_products_agree_with_numpy(matrices, rng):
    one, other, out = rng.normal(size=(2, 3)), rng.normal(size=(3, 4)), np.empty((2, 4))
    matrices.multiply_matrices(one, other, out)
    assert out == pytest.approx(one @ other, rel=1e-13)
    block, square = rng.normal(size=(2, 2)), np.empty((2, 2, 2, 2))
    matrices.fill_tensor_square(block, square)
    assert np.array_equal(square, np.multiply.outer(block, block))


def test_entries_broadcast_to_the_last_two_axes(matrices, rng):
    a, b = rng.normal(size=5), rng.normal(size=(3, 1))
    out = matrices.matrix_from_entries((3, 5), [[a, 0.0, b]])
    assert out.shape == (3, 5, 1, 3)
    assert np.array_equal(out[..., 0, 0], np.broadcast_to(a, (3, 5)))
    assert np.array_equal(out[..., 0, 2], np.broadcast_to(b, (3, 5)))
    assert not out[..., 0, 1].any()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_division_by_elimination_needs_its_pivots(proximal, rng, size):
    """A zero first on the diagonal, from two rows on."""
    matrix, out = rng.normal(size=(size, size)), rng.normal(size=(size, size))
    if size > 1:
        matrix[0, 0] = 0.0
    expected, determinant = np.linalg.solve(matrix, out), np.linalg.det(matrix)
    assert proximal.solve_linear_system_in_place(matrix, out, len(matrix)) == pytest.approx(determinant, rel=1e-12)
    assert out == pytest.approx(expected, rel=1e-11)


def test_blocks_are_added_token_by_token(proximal, rng):
    tokens, student = 3, 2
    matrix, slope = rng.normal(size=(6, 6)), rng.normal(size=(tokens, student, student))
    square = rng.normal(size=(tokens, tokens, student, student, student, student))
    blocks = matrix.reshape(tokens, student, tokens, student).transpose(0, 2, 1, 3)
    expected = slope + 0.7 * np.einsum("llab->lab", blocks)
    expected_square = square + 0.7 * np.einsum("lrab,lref->lraebf", blocks, blocks)
    proximal.add_jacobian_blocks(matrix, 0.7, slope, square, *slope.shape[:2])
    assert slope == pytest.approx(expected, rel=1e-13)
    assert square == pytest.approx(expected_square, rel=1e-13)


def test_minima_are_listed_once_lowest_first(loops, rng):
    found, points = np.full((4, 3), np.inf), rng.normal(size=(7, 2))
    values = rng.permutation(7).astype(float)
    count = 0
    for x, value in [*zip(points, values, strict=True), *zip(points + 1e-8, values + 1e-9, strict=True)]:
        count = loops["smooth_pieces"].insert_minimum(found, count, tuple(x), value)
    assert count == 4
    lowest = np.argsort(values)[:4]
    assert np.array_equal(found, np.column_stack([points[lowest], values[lowest]]))
