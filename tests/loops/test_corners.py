"""Frames, multipliers, rays and responses on surfaces, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from saddleforge.problems.compiled import load_compiled_loops

corners = load_compiled_loops("corners")


def work_rows(fields):
    return np.empty((2 * fields + 2, fields))


def surface(normals, held):
    """Rank, basis, triangle and switches chosen."""
    size = normals.shape[1]
    basis, triangle, chosen = np.empty((size, size)), np.zeros((size, size)), np.empty(size, np.int64)
    rank = corners.fill_surface_frame(normals, np.array(held), len(held), basis, triangle, chosen, work_rows(size))
    return rank, basis, triangle, chosen


def normals_of(seed):
    """Four in three dimensions, the third a combination of the first two."""
    normals = np.random.default_rng(seed).normal(size=(4, 3))
    normals[2] = normals[0] - 2 * normals[1]
    return normals


@pytest.mark.parametrize(("held", "expected"), [([], 0), ([1], 1), ([0, 1, 2], 2), ([0, 2, 1, 3], 3)])
def test_frames_are_orthonormal_and_multipliers_give_the_slope_back(held, expected):
    normals = normals_of(3)
    rank, basis, triangle, chosen = surface(normals, np.array(held, np.int64))
    assert rank == expected and basis @ basis.T == pytest.approx(np.eye(3), abs=1e-12)
    across = basis[:rank]
    assert normals[held] @ basis[rank:].T == pytest.approx(np.zeros((len(held), 3 - rank)), abs=1e-12)
    slope, found = np.array([0.3, -1.0, 2.0]), np.zeros(3)
    corners.fill_lagrange_multipliers(slope, basis, triangle, rank, found)
    assert found[:rank] @ normals[chosen[:rank]] == pytest.approx(slope @ across.T @ across, abs=1e-12)


def test_rays_keep_as_many_switches_as_can_stay():
    """Three switches whose normals lie in a plane: three rays in it, one along each."""
    normals, held = normals_of(5), np.array([0, 1, 2])
    rank, basis, _, _ = surface(normals, held)
    rays = np.empty((8, 3))
    assert corners.fill_normal_rays(normals, held, 3, rank, basis, rays, work_rows(3), np.empty(3, np.int64)) == 3
    assert np.sum(np.abs(rays[:3] @ normals[:3].T) < 1e-12, axis=1) == pytest.approx([1, 1, 1])
    side = np.zeros(4)
    assert corners.set_sides_along_ray(normals, held, 3, rays[0], -1.0, side) == 1
    changes = -(normals @ rays[0])
    assert all(side[j] == np.sign(changes[j]) for j in held[1:])


@pytest.mark.parametrize("held", [[0], [0, 1, 2], [0, 1, 3]])
def test_responses_are_those_of_a_quadratic_minimum_on_the_surface(held):
    """X minimises X H X / 2 - omega P X on a plane."""
    random, normals = np.random.default_rng(8), normals_of(9)
    H, P = (m @ m.T + np.eye(3) for m in random.normal(size=(2, 3, 3)))
    rank, basis, _, chosen = surface(normals, held)
    found = np.empty((3, 3))
    determinant = corners.fill_proximal_response(H, P, basis, rank, found, work_rows(3))
    A = normals[chosen[:rank]]
    system = np.block([[H, A.T], [A, np.zeros((rank, rank))]])
    moved = np.linalg.solve(system, np.vstack([P, np.zeros((rank, 3))]))[:3]
    assert found == pytest.approx(P @ (moved - np.eye(3)), abs=1e-10)
    T = basis[rank:]
    expected = np.linalg.det(T @ H @ T.T) / np.linalg.det(T @ P @ T.T) if rank < 3 else np.inf
    assert determinant == pytest.approx(expected)
