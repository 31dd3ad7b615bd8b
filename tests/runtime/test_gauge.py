"""Rotations of the student's columns: which are symmetries, and that solutions do not depend on them."""

import numpy as np
import pytest
from scipy.linalg import expm

import saddleforge as sf
from saddleforge.integration import GaussHermite
from saddleforge.problems import gauge
from saddleforge.problems.overlaps import Overlaps
from saddleforge.saddle_point.difference_jacobian import map_jacobian_by_differences
from saddleforge.saddle_point.state_map import SaddlePointMap


def rank_two(**parameters: object) -> sf.Problem:
    return sf.problem("dot_product_attention", student_rank=2, alpha=1.5, **parameters)


def state(seed: int = 0) -> Overlaps:
    """Overlaps in the domain without any symmetry but that of the tokens' covariances."""
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((2, 4))
    q = 0.02 * W @ W.T + 0.02 * np.eye(2)
    m = 0.1 * rng.standard_normal((2, 2))
    theta = 0.015 * rng.standard_normal((2, 1))
    V = np.diag([20.0, 14.0]) + 2.0
    return Overlaps(np.stack([q, q]), np.stack([V, V]), m, np.stack([theta, theta]))


def test_rotations_of_equal_columns_are_symmetries():
    (turn,) = gauge.rotation_symmetry_generators(rank_two())
    assert np.abs(turn) == pytest.approx(np.sqrt(0.5) * np.array([[0, 1], [1, 0]]))
    assert turn == pytest.approx(-turn.T)


def test_ridges_that_differ_leave_no_rotation():
    assert len(gauge.rotation_symmetry_generators(rank_two(**{"lambda": (0.01, 0.02)}))) == 0


@pytest.mark.parametrize("name", ["dot_product_attention", "ridge_regression", "logistic_regression"])
def test_one_column_has_nothing_to_rotate(name):
    assert gauge.rotation_symmetry_generators(sf.problem(name, alpha=1.0)).shape == (0, 1, 1)


@pytest.mark.slow
def test_the_map_turns_with_its_argument():
    """G(O^T u) = O^T G(u) for the exact map; a product rule keeps it for quarter turns."""
    problem = rank_two()
    state_map = SaddlePointMap(problem, GaussHermite(5))
    u = state()
    quarter = np.array([[0.0, 1.0], [-1.0, 0.0]])

    def image(v: Overlaps) -> Overlaps:
        return Overlaps.unpack(
            state_map.image_from_channel_averages(v, state_map.channel_averages(v).moments[0]), v.sizes
        )

    turned = gauge.rotate_student_columns(image(u), quarter).pack()
    # The factor of q is triangular, so that the nodes turn with it only on average.
    assert image(gauge.rotate_student_columns(u, quarter)).pack() == pytest.approx(
        turned, rel=0.05, abs=0.02 * np.abs(turned).max()
    )


def test_tangents_are_the_slopes_of_the_orbit():
    problem, u, step = rank_two(), state(), 1e-6
    (turn,) = turns = gauge.rotation_symmetry_generators(problem)
    ahead, behind = (gauge.rotate_student_columns(u, expm(sign * step * turn)).pack() for sign in (1, -1))
    slope = (ahead - behind) / (2 * step) / u.block_scales
    assert abs(gauge.tangents_of_symmetry_orbit(turns, u)[:, 0] @ slope) == pytest.approx(
        np.linalg.norm(slope), rel=1e-6
    )


def test_the_canonical_point_does_not_depend_on_the_point_of_the_orbit():
    problem, u = rank_two(), state()
    turns = gauge.rotation_symmetry_generators(problem)
    shown = gauge.canonical_orbit_representative(problem, u, turns)
    assert np.abs(shown.theta[:, 1]).max() < 1e-15
    for angle in (0.3, 1.2, 2.9):
        other = gauge.rotate_student_columns(u, expm(angle * np.sqrt(2) * turns[0]))
        assert gauge.canonical_orbit_representative(problem, other, turns).pack() == pytest.approx(
            shown.pack(), abs=1e-12
        )
    flipped = gauge.rotate_student_columns(u, np.diag([1.0, -1.0]))
    assert gauge.canonical_orbit_representative(problem, flipped, turns).pack() == pytest.approx(
        shown.pack(), abs=1e-12
    )


def test_without_fields_the_canonical_point_diagonalises_q():
    problem, u = rank_two(), state()
    bare = Overlaps(u.q, u.V, 0 * u.m, 0 * u.theta)
    shown = gauge.canonical_orbit_representative(problem, bare, gauge.rotation_symmetry_generators(problem))
    assert shown.q[0, 0, 1] == pytest.approx(0.0, abs=1e-15)
    assert shown.q[0, 0, 0] > shown.q[0, 1, 1]


@pytest.mark.slow
def test_corrections_stay_across_the_orbit():
    problem, u = rank_two(), state()
    state_map = SaddlePointMap(problem, GaussHermite(4))
    vector, sizes = u.pack(), u.sizes
    matrix = map_jacobian_by_differences(state_map, vector, sizes, 1e-5)
    gap = 1e-3 * np.random.default_rng(1).standard_normal(len(vector)) * u.block_scales
    move = state_map.newton_correction(matrix, vector, gap, sizes)
    orbit = state_map.directions_of_symmetry_orbit(vector, sizes)
    assert np.abs(orbit.T @ (move / u.block_scales)).max() < 1e-12
    left = (move - state_map.project_jacobian_off_symmetry_orbit(matrix, vector, sizes) @ move - gap) / u.block_scales
    assert left - orbit @ (orbit.T @ left) == pytest.approx(np.zeros_like(left), abs=1e-12)
