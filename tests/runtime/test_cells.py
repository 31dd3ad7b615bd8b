"""Averages over cells that are halved where the integrand asks for it, against closed forms."""

import numpy as np
import pytest

from saddleforge.base.options import options_in_force
from saddleforge.integration.cells import AdaptiveCellOptions, QuadratureCells, has_narrow_features


def averaged(parts, function, relative=1e-9, most=4e6):
    value, error, _ = parts.integrate_adaptively(lambda z, w: w * function(z), relative, np.inf, most)
    return value, error


def bump(width, normal, place):
    """exp(-(a . z - b)^2 / width^2), its average, and its argument."""
    normal = np.array(normal, float)
    spread = normal @ normal
    exact = np.exp(-(place**2) / (width**2 + 2 * spread)) / np.sqrt(1 + 2 * spread / width**2)

    def argument(z):
        return ((z @ normal - place) / width) ** 2

    return lambda z: np.exp(-argument(z)), exact, lambda z: np.arcsinh(argument(z))[:, None]


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_moments_are_exact_and_their_errors_hold(dimension):
    parts = QuadratureCells.cells_between_planes(np.zeros((0, dimension + 1)), dimension)
    value, error = averaged(parts, lambda z: np.prod(z**2, axis=1), 1e-8)
    assert abs(value - 1) <= error < 2e-8


def test_planes_in_any_direction_bound_cells():
    """E |a . z + b| of a folded normal variable, and the measure of a wedge of a quarter turn and more."""
    from scipy.special import ndtr

    a, b = np.array([1.0, -2.0]), 0.3
    spread = np.sqrt(a @ a)
    exact = spread * np.sqrt(2 / np.pi) * np.exp(-((b / spread) ** 2) / 2) + b * (1 - 2 * ndtr(-b / spread))
    parts = QuadratureCells.cells_between_planes(np.array([[*a, b]]), 2)
    value, error = averaged(parts, lambda z: np.abs(z @ a + b))
    assert abs(value - exact) <= error < 1e-8 * exact
    parts = QuadratureCells.cells_between_planes(np.array([[0.0, 1.0, 0.0], [1.0, 0.01, 0.0]]), 2)
    value, error = averaged(parts, lambda z: ((z[:, 1] > 0) & (z @ [1.0, 0.01] > 0)).astype(float), 1e-8)
    assert abs(value - (np.pi - np.arccos(0.01 / np.hypot(1, 0.01))) / (2 * np.pi)) <= error + 1e-9


@pytest.mark.parametrize("width", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize(("normal", "place"), [([1.0], 0.7), ([1.0, 1.0], -0.4), ([1.0, -0.9999], 0.0)])
def test_a_narrow_bump_is_detected_and_integrated_to_all_digits(width, normal, place):
    function, exact, scales = bump(width, normal, place)
    assert width == 1e-1 or has_narrow_features(scales, len(normal))
    parts = QuadratureCells.cells_between_planes(np.array([[*normal, -place]]), len(normal)).refine_until_smooth(scales)
    value, error = averaged(parts, function)
    assert abs(value - exact) <= max(error, 1e-12 * exact)
    assert error < 1e-8 * exact


def test_a_narrow_ring_that_no_plane_follows_is_found():
    """exp(-((r^2 - 2) / w)^2): r^2 / 2 is exponential, so that the average is a normal integral."""
    from scipy.special import ndtr

    width = 0.02
    spread = width / np.sqrt(2)
    exact = 0.5 * np.sqrt(np.pi) * width * np.exp(-1 + spread**2 / 8) * ndtr(2 / spread)
    parts = QuadratureCells.cells_between_planes(np.zeros((0, 3)), 2).refine_until_smooth(
        lambda z: np.arcsinh((((z**2).sum(axis=1) - 2) / width) ** 2)[:, None]
    )
    value, error = averaged(parts, lambda z: np.exp(-((((z**2).sum(axis=1) - 2) / width) ** 2)), 1e-8)
    assert abs(value - exact) <= error < 2e-8 * exact


def test_gentle_arguments_are_none_to_follow_and_too_many_cells_are_refused():
    assert not has_narrow_features(lambda z: np.arcsinh(z), 2) and not has_narrow_features(None, 2)
    assert has_narrow_features(lambda z: np.arcsinh(40 * z[:, :1] * z[:, 1:]), 2)
    with options_in_force(AdaptiveCellOptions(max_nodes=1e5)):
        assert (
            QuadratureCells.cells_between_planes(np.zeros((0, 3)), 2).refine_until_smooth(lambda z: np.sin(1e5 * z) * 4)
            is None
        )
