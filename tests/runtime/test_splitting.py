"""Rules split on hyperplanes: Gaussian probabilities of cones and slabs to rounding, in any directions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import erfc
from scipy.stats import multivariate_normal

from saddleforge.channel.nodes import gauss_hermite
from saddleforge.integration.splitting import HyperplaneSplit

POINTS = 32  # enough for rounding on every panel, also on one that holds nearly all of the measure


def average(split: HyperplaneSplit, function, points: int, equidistant: bool = False) -> float:
    return sum(float(weights @ function(nodes)) for nodes, weights in split.node_batches(points, equidistant))


@pytest.mark.parametrize(("dimension", "count"), [(1, 1), (2, 1), (2, 2), (3, 2)])
def test_the_measure_of_a_cone_is_that_of_its_correlated_normals(dimension, count):
    generator = np.random.default_rng(10 * dimension + count)
    normals, places = generator.standard_normal((count, dimension)), 0.5 * generator.standard_normal(count)
    split = HyperplaneSplit.split_on_planes(np.column_stack([normals, places]), dimension)
    tilt = 0.3 * np.eye(dimension)[0]

    def inside(z):
        return np.exp(z @ tilt) * np.all(z @ normals.T + places > 0, axis=1)

    # A tilted normal law is a shifted one.
    exact = np.exp(tilt @ tilt / 2) * multivariate_normal.cdf(
        normals @ tilt + places, cov=normals @ normals.T, abseps=1e-12, releps=1e-12, maxpts=10**6
    )
    values = [average(split, inside, points) for points in (16, 32)]
    assert abs(values[1] - exact) < 1e-10
    assert abs(values[1] - values[0]) < 2e-5


def test_an_octant_of_three_correlated_normals():
    normals = np.random.default_rng(33).standard_normal((3, 3))
    lengths = np.linalg.norm(normals, axis=1)
    correlations = (normals @ normals.T / np.outer(lengths, lengths))[np.triu_indices(3, 1)]
    split = HyperplaneSplit.split_on_planes(np.column_stack([normals, np.zeros(3)]), 3)
    value = average(split, lambda z: np.all(z @ normals.T > 0, axis=1), 24)
    assert value == pytest.approx(1 / 8 + np.arcsin(correlations).sum() / (4 * np.pi), abs=1e-9)


@pytest.mark.parametrize("angle", [1.0, 1e-1, 1e-2, 1e-3, 1e-6])
def test_planes_that_nearly_coincide_enclose_their_angle(angle):
    """The wedge between them has the measure angle / pi, however thin it is."""
    normals = np.array([[0.0, 1.0], [np.sin(angle), np.cos(angle)]])
    split = HyperplaneSplit.split_on_planes(np.column_stack([normals, [0, 0]]), 2)
    value = average(split, lambda z: np.prod(z @ normals.T, axis=1) < 0, 24)
    assert value == pytest.approx(angle / np.pi, rel=1e-9)


@pytest.mark.parametrize(("dimension", "count"), [(1, 1), (2, 0), (2, 2), (3, 2), (3, 3)])
def test_steps_between_planes_take_a_node_an_interval(dimension, count):
    """What is constant there has the same average, to rounding, by a fraction of the nodes."""
    generator = np.random.default_rng(100 * dimension + count)
    normals, places = generator.standard_normal((count, dimension)), generator.standard_normal(count)
    values = generator.standard_normal(2**count)
    split = HyperplaneSplit.split_on_planes(np.column_stack([normals, places]), dimension)

    def steps(z):
        return values[(z @ normals.T + places > 0) @ 2 ** np.arange(count)]

    by_steps, whole = (list(split.node_batches(48, steps=each)) for each in (True, False))
    found, expected = (sum(float(w @ steps(z)) for z, w in each) for each in (by_steps, whole))
    assert found == pytest.approx(expected, abs=1e-11)
    assert sum(len(w) for _, w in by_steps) * 8 <= sum(len(w) for _, w in whole)


def test_three_planes_through_one_line_split_the_measure_into_thirds():
    """Three classes distinguished by the largest of three scores: each has a third of the measure."""
    scores = np.array([[1.0, 0.0], [-0.5, np.sqrt(0.75)], [-0.5, -np.sqrt(0.75)]])
    pairs = [scores[i] - scores[j] for i, j in ((0, 1), (0, 2), (1, 2))]
    split = HyperplaneSplit.split_on_planes(np.column_stack([pairs, np.zeros(3)]), 2)
    for label in range(3):
        value = average(split, lambda z, k=label: np.argmax(z @ scores.T, axis=1) == k, 24)
        assert value == pytest.approx(1 / 3, abs=1e-12)


@given(st.lists(st.integers(-3000, 3000).map(lambda n: n / 1000), max_size=4), st.integers(0, 1))
@settings(max_examples=25, deadline=None)
def test_planes_across_axes_make_a_product_of_panels(places, axis):
    planes = np.zeros((len(places), 3))
    planes[:, axis], planes[:, 2] = 1.0, -np.array(places)
    split = HyperplaneSplit.split_on_planes(planes, 2)
    assert split.is_product_rule
    axes = split.rule_for_each_axis(POINTS)
    np.testing.assert_array_equal(axes[1 - axis][0], gauss_hermite(POINTS)[0])
    assert len(axes[axis][0]) == (POINTS if not places else POINTS * (1 + len(set(places))))
    nodes, weights = axes[axis]
    for place in places:
        assert weights @ (nodes > place) == pytest.approx(erfc(place / np.sqrt(2)) / 2, abs=1e-13)


@pytest.mark.parametrize("gap", [0.0, 1e-13, 1e-10, 9e-10])
def test_parallel_planes_closer_than_1e_9_are_one(gap):
    """The indicator between them is lost: an error of at most the gap times the density."""
    split = HyperplaneSplit.split_on_planes(np.array([[1.0, 0.0, 0.0], [1.0, 0.0, -gap]]), 2)
    nodes, weights = split.rule_for_each_axis(POINTS)[0]
    assert len(nodes) == 2 * POINTS
    assert weights @ (nodes > gap) == pytest.approx(erfc(gap / np.sqrt(2)) / 2, abs=gap / np.sqrt(2 * np.pi) + 1e-13)


def test_planes_beyond_the_reach_of_the_measure_are_ignored():
    for row in ([0.0, 0.0, 1.0], [1.0, 0.0, 40.0], [np.nan, 1.0, 0.0]):
        assert HyperplaneSplit.split_on_planes(np.array([row]), 2).number_of_cut_axes == 0


def test_smooth_axes_stay_as_they_are_next_to_a_cut():
    split = HyperplaneSplit.split_on_planes(np.array([[1.0, 1.0, 0.0, 0.0, 0.2]]), 4)
    assert split.number_of_cut_axes == 1
    value = average(split, lambda z: (z[:, 0] + z[:, 1] + 0.2 > 0) * (1 + z[:, 2] ** 2 * z[:, 3] ** 2), 20)
    assert value == pytest.approx(2 * erfc(-0.2 / 2) / 2, abs=1e-12)


def test_two_breaks_meet_where_the_average_over_their_axis_is_not_smooth():
    """max(0, a, b) of two fields: its mean is known, and the plane a = b is one of three."""
    split = HyperplaneSplit.split_on_planes(np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, -1.0, 0.0]]), 2)
    value = average(split, lambda z: np.maximum(0, z.max(axis=1)), 32)
    assert value == pytest.approx((1 + 1 / np.sqrt(2)) / np.sqrt(2 * np.pi), abs=1e-12)
