"""A normal variable between two places, against SciPy."""

import math

import numpy as np
import pytest
from scipy import stats

PLACES = [(-math.inf, 0.3), (-1.0, 2.0), (0.5, math.inf), (4.0, 4.5), (-30.0, -29.0), (-math.inf, math.inf)]


@pytest.mark.parametrize(("a", "b"), PLACES)
def test_moments_of_a_truncated_normal_variable_agree_with_scipy(loops, a, b):
    between, law = loops["truncated_normal"], stats.truncnorm(a, b)
    share, mean, spread, skewness = between.truncated_normal_moments(a, b)
    measure = math.exp(stats.norm.logcdf(-a) if a > 0 else stats.norm.logcdf(b)) - (
        stats.norm.sf(b) if a > 0 else stats.norm.cdf(a)
    )
    assert share == pytest.approx(measure, rel=1e-12)
    assert between.normal_measures_of_intervals(np.array([a]), np.array([b]))[0] == share
    assert mean == pytest.approx(law.mean(), rel=1e-9, abs=1e-15)
    assert spread == pytest.approx(law.std(), rel=1e-7)  # a difference of moments, as the next one is
    if abs(mean) < 10:
        assert skewness == pytest.approx(float(law.stats("s")), abs=1e-6)


def test_an_interval_far_in_the_tail_has_zero_measure(loops):
    assert loops["truncated_normal"].truncated_normal_moments(40.0, math.inf) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("count", [1, 2])
def test_nodes_have_the_moments_of_the_law_between_the_places(loops, count):
    """z = shared y + width e at Gauss-Hermite nodes: moments of (y, e) up to the first or the third, piece by piece."""
    z, weight = np.polynomial.hermite_e.hermegauss(60)
    weight = weight / weight.sum()
    places, shared, width = np.array([-math.inf, -0.4, 1.1, math.inf]), 0.6, 0.8
    rows = np.repeat(np.arange(3), len(z))
    nodes, weights = loops["truncated_normal"].conditional_teacher_nodes(
        rows, np.tile(z, 3), np.tile(weight, 3), places, shared, width, count
    )
    y, e = nodes.T
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert [weights @ y, weights @ e, weights @ (shared * y + width * e) ** 2] == pytest.approx([0, 0, 1], abs=1e-9)
    if count == 2:
        assert [weights @ y**2, weights @ e**2, weights @ y**3] == pytest.approx([1, 1, 0], abs=1e-9)
