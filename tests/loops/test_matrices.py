"""Small matrices and the slopes of the proximal map, against NumPy."""

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


def symmetric(rng, *shape):
    matrix = rng.normal(size=(*shape, shape[-1]))
    return matrix + np.swapaxes(matrix, -1, -2)


def positive(rng, size):
    root = rng.normal(size=(size, size))
    return root @ root.T + 0.1 * np.eye(size)


def upper(matrix):
    return tuple(matrix[np.triu_indices(len(matrix))])


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_an_inverse_is_that_of_a_positive_definite_matrix(matrices, rng, size):
    matrix, out = positive(rng, size), np.empty((size, size))
    assert matrices.inverse(matrix, out)
    assert out == pytest.approx(np.linalg.inv(matrix), rel=1e-12)


@pytest.mark.parametrize("eigenvalue", [0.0, -1e-3, np.nan])
def test_no_inverse_where_the_matrix_is_not_positive_definite(matrices, rng, eigenvalue):
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    matrix = np.diag([2.0, eigenvalue, 1.0]) if eigenvalue == 0 else turn @ np.diag([2.0, eigenvalue, 1.0]) @ turn.T
    assert not matrices.inverse(matrix, np.empty((3, 3)))


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_a_factor_gives_the_matrix_back_and_has_no_column_where_a_pivot_vanishes(matrices, rng, rank):
    root, out = np.tril(rng.normal(size=(4, rank))), np.empty((4, 4))
    matrices.factor(root @ root.T, out)
    assert out @ out.T == pytest.approx(root @ root.T, rel=1e-10, abs=1e-12)
    assert np.array_equal(out, np.tril(out))
    assert not out[:, rank:].any()


def test_products_blocks_and_squares(matrices, rng):
    one, other, out = rng.normal(size=(2, 3)), rng.normal(size=(3, 4)), np.empty((2, 4))
    matrices.product(one, other, out)
    assert out == pytest.approx(one @ other, rel=1e-13)
    blocks, whole = rng.normal(size=(3, 2, 2)), np.full((6, 6), np.nan)
    matrices.block_diagonal(blocks, whole)
    for n in range(3):
        assert np.array_equal(whole[2 * n : 2 * n + 2, 2 * n : 2 * n + 2], blocks[n])
    assert np.count_nonzero(whole) == 12
    square = np.empty((2, 2, 2, 2))
    matrices.square(blocks[0], square)
    assert np.array_equal(square, np.multiply.outer(blocks[0], blocks[0]))


def test_entries_broadcast_to_the_last_two_axes(matrices, rng):
    a, b = rng.normal(size=5), rng.normal(size=(3, 1))
    out = matrices.entries((3, 5), [[a, 0.0, b]])
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
    assert proximal.divide(matrix, out) == pytest.approx(determinant, rel=1e-12)
    assert out == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize(("tokens", "student"), [(1, 1), (2, 1), (1, 3), (3, 2)])
def test_slopes_of_the_proximal_map(proximal, rng, tokens, student):
    """dg/domega = -(I + H V)^(-1) H, which solves (x - omega) V^(-1) + grad = 0 differentiated."""
    size = tokens * student
    hessian, variance = symmetric(rng, size), np.array([positive(rng, student) for _ in range(tokens)])
    whole, slopes, work = np.zeros((size, size)), np.empty((size, size)), np.empty((size, size))
    for l in range(tokens):
        whole[l * student : (l + 1) * student, l * student : (l + 1) * student] = variance[l]
    determinant = proximal.field_jacobian(upper(hessian), variance, slopes, work)
    assert determinant == pytest.approx(np.linalg.det(np.eye(size) + hessian @ whole), rel=1e-11)
    moved = np.linalg.solve(np.linalg.inv(whole) + hessian, np.linalg.inv(whole))  # dx/domega
    assert slopes == pytest.approx(np.linalg.inv(whole) @ (moved - np.eye(size)), rel=1e-9, abs=1e-10)


def test_blocks_are_added_token_by_token(proximal, rng):
    tokens, student = 3, 2
    matrix, slope = rng.normal(size=(6, 6)), rng.normal(size=(tokens, student, student))
    square = rng.normal(size=(tokens, tokens, student, student, student, student))
    blocks = matrix.reshape(tokens, student, tokens, student).transpose(0, 2, 1, 3)
    expected = slope + 0.7 * np.einsum("llab->lab", blocks)
    expected_square = square + 0.7 * np.einsum("lrab,lref->lraebf", blocks, blocks)
    proximal.add_blocks(matrix, 0.7, slope, square)
    assert slope == pytest.approx(expected, rel=1e-13)
    assert square == pytest.approx(expected_square, rel=1e-13)


def test_a_step_between_two_minima_is_sharp_or_smooth_with_its_own_slope(proximal, rng):
    variance, hessian = np.array([positive(rng, 2), positive(rng, 2)]), symmetric(rng, 4)
    jump, sharp, blur = tuple(rng.normal(size=4)), np.zeros(4), np.full(4, 0.3)
    given = (jump, upper(hessian), variance)
    assert proximal.share_of_one(1e-9, *given, sharp) == (1.0, 0.0)
    assert proximal.share_of_one(-1e-9, *given, sharp) == (0.0, 0.0)
    assert proximal.share_of_one(0.0, *given, blur)[0] == 0.5
    whole = np.zeros((4, 4))
    whole[:2, :2], whole[2:, 2:] = variance
    width = np.linalg.norm((np.array(jump) + np.array(jump) @ whole @ hessian) * blur)
    h = 1e-5 * width
    for z in (-3.1, -0.4, 0.9, 2.5):
        share, slope = proximal.share_of_one(z * width, *given, blur)
        above, below = (proximal.share_of_one(z * width + side, *given, blur)[0] for side in (h, -h))
        assert slope == pytest.approx((above - below) / (2 * h), rel=1e-7)
        assert share + proximal.share_of_one(-z * width, *given, blur)[0] == pytest.approx(1, abs=1e-14)
    assert proximal.share_of_one(7 * width * (1 + 1e-12), *given, blur) == (1.0, 0.0)


def test_the_step_is_smoothed_by_a_kernel_of_sixth_order(proximal):
    """Its slope integrates to 1, and its moments 2 and 4 vanish but for what is cut beyond seven widths."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    z = 7 * nodes
    slope = np.array([proximal.share_of_one(float(d), (1.0,), (0.0,), np.ones((1, 1, 1)), np.ones(1))[1] for d in z])
    moments = [float(7 * np.sum(weights * slope * z**n)) for n in (0, 2, 4, 6)]
    assert moments[:3] == pytest.approx([1, 0, 0], abs=1e-5)
    assert moments[3] == pytest.approx(15, rel=1e-4)


def test_minima_are_listed_once_lowest_first(proximal, rng):
    found, points = np.full((4, 3), np.inf), rng.normal(size=(7, 2))
    values = rng.permutation(7).astype(float)
    count = 0
    for x, value in [*zip(points, values, strict=True), *zip(points + 1e-8, values + 1e-9, strict=True)]:
        count = proximal.insert_minimum(found, count, tuple(x), value)
    assert count == 4
    lowest = np.argsort(values)[:4]
    assert np.array_equal(found, np.column_stack([points[lowest], values[lowest]]))
