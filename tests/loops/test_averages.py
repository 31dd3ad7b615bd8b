"""Averages over a Gaussian, a Boltzmann law and a posterior, against NumPy, SciPy and closed forms."""

import numpy as np
import pytest
from scipy.special import ndtr

from saddleforge.extensions.bayes.averages import length_of_packed_averages

RULE = np.stack(np.polynomial.legendre.leggauss(80), axis=1)


def test_a_product_rule_of_normal_nodes_has_gaussian_moments(loops):
    normal_node = loops["weight_rows"].fill_normal_node
    zeta, moments = np.full(3, 7.0), np.zeros((2, 2))
    total = 0.0
    for node in range(len(RULE) ** 2):
        weight = normal_node(node, RULE, 2, zeta)
        total += weight
        moments += weight * np.outer(zeta[:2], zeta[:2])
    assert total == pytest.approx(1, abs=1e-13)
    assert moments == pytest.approx(np.eye(2), abs=1e-12)
    assert zeta[2] == 7


def test_panels_cover_what_is_between_their_edges_and_skip_those_that_are_empty(loops):
    edges, nodes, shares = np.array([-1.0, -1.0, 0.3, 2.0, 2.0]), np.empty(320), np.empty(320)
    count = loops["weight_rows"].fill_normal_panel_nodes(edges, RULE, nodes, shares)
    assert count == 2 * len(RULE)
    assert shares[:count].sum() == pytest.approx(ndtr(2) - ndtr(-1), rel=1e-14)
    assert np.all(np.diff(nodes[:count]) > 0)


def test_the_law_of_an_exposed_row(loops):
    """v = (pi, b) with b = field z + Q^(1/2) eta, and E[w z^T] of a w linear in v."""
    rng = np.random.default_rng(5)
    contexts, teacher, student, known = 2, 3, 2, 3
    root = rng.normal(size=(5, 5))
    gram, field, Q = root @ root.T, rng.normal(size=(student, contexts + teacher)), np.eye(student)
    covariance, cross = np.empty((known + student,) * 2), np.empty((known + student, contexts + teacher))
    loops["weight_rows"].fill_row_covariances(contexts, gram, field, Q, covariance, cross)
    reads = np.vstack([np.eye(5)[contexts:], field])
    expected = reads @ gram @ reads.T
    expected[known:, known:] += Q
    assert covariance == pytest.approx(expected, rel=1e-12)
    assert cross == pytest.approx(reads @ gram, rel=1e-12)
    factor, wz, coefficients = np.linalg.cholesky(covariance), np.empty((student, 5)), rng.normal(size=(student, 5))
    loops["weight_rows"].fill_weight_field_correlations(factor, cross, coefficients @ factor, wz)
    assert wz == pytest.approx(coefficients @ cross, rel=1e-10)


def test_moments_of_a_row_are_added(loops):
    rng = np.random.default_rng(6)
    w, response, zeta = rng.normal(size=2), rng.normal(size=(2, 2)), rng.normal(size=4)
    sums = [np.ones((2, 2)), np.ones((2, 2)), np.ones((2, 2, 2, 2)), np.ones((2, 4))]
    loops["weight_rows"].add_weight_moments(0.3, w, response, zeta, *sums)
    added = [np.outer(w, w), response, np.multiply.outer(response, response), np.outer(w, zeta)]
    for total, term in zip(sums, added, strict=True):
        assert total == pytest.approx(1 + 0.3 * term, rel=1e-13)
    G, b = np.array([[2.0, 0.5], [0.5, 1.0]]), rng.normal(size=2)
    assert loops["weight_rows"].quadratic_weight_energy(tuple(w), G, b) == pytest.approx(
        w @ G @ w / 2 - w @ b, rel=1e-13
    )


def boxed(boltzmann, energy, low, high, scan, temperature, kinks):
    """Search for the box as generated code does, with a Python function for the energy."""
    size, best = len(low), np.inf
    near, energies = np.empty((size, scan), bool), np.empty(scan**size)
    for _ in range(60):
        boltzmann.mark_points_near_kinks(kinks, low, high, near)
        axes = np.meshgrid(*np.linspace(low, high, scan, axis=1), indexing="ij")
        energies[:] = energy(*axes).ravel()
        best = min(best, energies.min())
        state = boltzmann.adapt_box_to_weight(energies, near, best + boltzmann.CUT * temperature, low, high)
        if state != boltzmann.GROWING:
            return state
    return boltzmann.GROWING


@pytest.mark.parametrize("start", [(-1e-3, 1e-3), (4.0, 5.0), (-1e4, 1e4)])
def test_a_box_holds_the_weight_and_little_more(loops, start):
    boltzmann = loops["boltzmann"]
    low, high = np.full(2, start[0]), np.full(2, start[1])
    temperature, narrow = 0.1, 25.0
    found = boxed(
        boltzmann,
        lambda x, y: 0.5 * (x - 1) ** 2 + 0.5 * narrow * (y + 2) ** 2,
        low,
        high,
        12,
        temperature,
        np.empty((0, 2)),
    )
    assert found == boltzmann.TIGHT
    half = np.sqrt(2 * boltzmann.CUT * temperature / np.array([1, narrow]))
    middle = np.array([1.0, -2.0])
    assert np.all(low <= middle - half) and np.all(high >= middle + half)
    assert np.all(high - low < 4 * half)


def test_points_next_to_a_kink_are_marked_and_a_box_without_a_finite_energy_is_lost(loops):
    boltzmann = loops["boltzmann"]
    near = np.ones((2, 11), bool)
    boltzmann.mark_points_near_kinks(np.array([[1.0, 0.25]]), np.zeros(2), np.ones(2), near)
    assert not near[0].any()
    assert np.flatnonzero(near[1]).tolist() == [1, 2, 3, 4]
    low, high = np.zeros(2), np.ones(2)
    boltzmann.mark_points_near_kinks(np.empty((0, 2)), low, high, near)
    assert boltzmann.adapt_box_to_weight(np.full(121, 1e100), near, 1.0, low, high) == boltzmann.LOST


@pytest.mark.parametrize("kink", [False, True])
def test_averages_over_a_boltzmann_law_equal_closed_forms(loops, kink):
    """exp(-(x - 1)^2 / 2 T), or times e^(-|x| / T): mean, variance over T and free energy in closed form."""
    boltzmann, T = loops["boltzmann"], 0.4
    low, high, kinks = np.array([-6.0]), np.array([6.5]), np.array([[0.0, 0.0]][: int(kink)]).reshape(-1, 2)
    places, shares = np.empty(160), np.empty(160)
    count = boltzmann.fill_axis_nodes(low[0], high[0], 0, kinks, RULE, places, shares)
    assert count == (160 if kink else 80)
    energy = 0.5 * (places[:count] - 1) ** 2 + kink * np.abs(places[:count])
    weights, z = shares[:count] * np.exp(-energy / T), places[:count] - 0.5 * (low[0] + high[0])
    total = weights.sum()
    mean, spread, other = (
        np.array([weights @ z]),
        np.array([[weights @ z**2]]),
        np.array([weights @ np.cos(places[:count])]),
    )
    boltzmann.normalise_boltzmann_sums(total, T, low, high, mean, spread, other)
    if not kink:
        assert [mean[0], spread[0, 0]] == pytest.approx([1, 1], rel=1e-12)
        assert other[0] == pytest.approx(np.cos(1) * np.exp(-T / 2), rel=1e-12)
        assert total == pytest.approx(np.sqrt(2 * np.pi * T), rel=1e-12)
    else:  # on either side of zero a Gaussian, of mean 0 and of mean 2
        halves = ndtr(0) * np.exp(-0.5 / T) + ndtr(-2 / np.sqrt(T)) * np.exp(1.5 / T)
        assert total == pytest.approx(np.sqrt(2 * np.pi * T) * halves, rel=1e-12)


def test_posterior_averages_are_collected_token_by_token(loops):
    rng = np.random.default_rng(8)
    tokens, teacher = 3, 2
    g, out = rng.normal(size=6), np.ones(2 + 6 * teacher)
    loops["posterior"].add_posterior_sums(out, 0.3, -1.7, g, np.empty((0, 0)), teacher)
    blocks = [np.outer(part, part) for part in g.reshape(tokens, teacher)]
    assert out == pytest.approx(1 + 0.3 * np.array([1, -1.7, *np.ravel(blocks)]), rel=1e-13)


def test_squares_of_the_response_are_collected_by_pairs_of_tokens(loops):
    rng = np.random.default_rng(9)
    tokens, teacher = 2, 2
    g, D = rng.normal(size=4), rng.normal(size=(4, 4))
    out = np.zeros(length_of_packed_averages(4, teacher, True))
    loops["posterior"].add_posterior_sums(out, 0.3, 0.0, g, D, teacher)
    blocks = D.reshape(tokens, teacher, tokens, teacher)
    expected = 0.3 * np.einsum("laki,lbkj->labkij", blocks, blocks)
    assert out[2 + 4 * teacher :] == pytest.approx(expected.ravel(), rel=1e-13)


def test_sums_of_squares_become_a_covariance_less_the_precision(loops):
    rng = np.random.default_rng(10)
    samples, precision = rng.normal(size=(50, 4)), np.stack([np.eye(2) * 2, np.eye(2) * 3])
    squares, mean = np.tril(samples.T @ samples), samples.mean(axis=0)
    loops["posterior"].centre_second_moments(squares, 50.0, mean, precision)
    expected = np.cov(samples.T, bias=True) - np.diag([2.0, 2.0, 3.0, 3.0])
    assert squares == pytest.approx(expected, rel=1e-12)
