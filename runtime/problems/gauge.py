"""Continuous symmetries: rotations of the student's columns that leave loss and regulariser invariant.

Solutions of the saddle point then form orbits, along which the Jacobian of the map has the eigenvalue 1: Newton steps
and error bars are taken orthogonally to them, and one representative of the orbit is reported.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..base.options import AlgorithmOptions
from .overlaps import Overlaps
from .problem import Problem
from .solver_types import ChannelFunctions
from .symmetry import SignedPermutation, loss_symmetries


@dataclass(frozen=True)
class RotationOptions(AlgorithmOptions):
    """Options of the search for rotations of the student's columns that are symmetries.

    Attributes:
        test_points: number of random points, per column, at which the invariance of the loss is tested.
    """

    test_points: int = 12


def rotation_symmetry_generators(problem: Problem) -> np.ndarray:
    """Return an orthonormal basis of the antisymmetric matrices A whose rotations exp(A) of the columns are symmetries.

    X -> X exp(A) leaves loss and regulariser unchanged. The condition, that the slope of the loss along X A is 0 at
    every X, is linear in A and is solved at random X.
    """
    return problem.cached_result_of(_find_rotation_symmetry_generators)


def _find_rotation_symmetry_generators(problem: Problem) -> np.ndarray:
    s = problem.student_rank
    rows, columns = np.triu_indices(s, 1)
    if not len(rows):
        return np.empty((0, s, s))
    basis = np.zeros((len(rows), s, s))
    for k, (a, b) in enumerate(zip(rows, columns, strict=True)):
        basis[k, a, b], basis[k, b, a] = np.sqrt(0.5), -np.sqrt(0.5)
    conditions = [problem.regulariser.rotation_invariance_conditions(basis)]
    channel = problem.solver.channel
    generator = np.random.default_rng(11)
    none = [0.0] * (problem.tokens * s * (s + 1) // 2)
    for labels, _ in problem.label_probabilities:
        constants = problem.constants(labels)
        lines = []
        for _ in range(RotationOptions.current().test_points * s):
            x = generator.standard_normal((problem.tokens, s))
            features = generator.standard_normal(channel.FEATURES)
            if problem.solver.model.NO_PROXIMAL_MAP:
                slope = _gradient_by_finite_differences(channel, x, features, constants)
            else:
                found = problem.solver.proximal.derivatives(*x.ravel(), *x.ravel(), *none, *features, constants)
                slope = np.array(found[1 : 1 + x.size]).reshape(x.shape)
            line = np.array([np.sum(slope * (x @ A)) for A in basis])
            lines.append(line / (np.linalg.norm(slope) * np.linalg.norm(x) + 1e-300))
        conditions.append(np.array(lines))
    _, values, directions = np.linalg.svd(np.concatenate(conditions))
    rank = int(np.sum(values > 1e-8))
    return np.einsum("kn,nab->kab", directions[rank:], basis)


def _gradient_by_finite_differences(
    channel: ChannelFunctions, x: np.ndarray, features: np.ndarray, constants: np.ndarray
) -> np.ndarray:
    """Return the gradient of a loss with respect to the student fields, by central differences."""
    steps = 1e-5 * np.eye(x.size)
    ends = [[channel.loss(*(x.ravel() + way * step), *features, constants) for way in (1, -1)] for step in steps]
    return (np.array([one - other for one, other in ends]) / 2e-5).reshape(x.shape)


def tangents_of_symmetry_orbit(turns: np.ndarray, overlaps: Overlaps) -> np.ndarray:
    """Return orthonormal tangents of the orbit of overlaps under rotations that are symmetries, one per column.

    Components are in units of their `block_scales`.

    Args:
        turns: generators of the rotations, as `rotation_symmetry_generators` returns them.
        overlaps: the overlaps, a point of the orbit.
    """
    found = []
    for A in turns:
        moved = Overlaps(
            q=A.T @ overlaps.q + overlaps.q @ A,
            V=A.T @ overlaps.V + overlaps.V @ A,
            m=overlaps.m @ A,
            theta=A.T @ overlaps.theta,
            phi=np.zeros_like(overlaps.phi),
        )
        found.append(moved.pack() / overlaps.block_scales)
    if not found:
        return np.empty((len(overlaps.block_scales), 0))
    left, values, _ = np.linalg.svd(np.stack(found, axis=1), full_matrices=False)
    return left[:, values > 1e-9]


def canonical_orbit_representative(problem: Problem, overlaps: Overlaps, turns: np.ndarray) -> Overlaps:
    """Return the standard representative of overlaps that are equivalent by rotations of the columns of W.

    In it theta, then m, is upper triangular, and remaining rotations diagonalise q. The overlaps are returned unchanged
    unless all rotations are symmetries.

    Args:
        problem: problem that the overlaps belong to.
        overlaps: the overlaps.
        turns: generators of the rotations, as `rotation_symmetry_generators` returns them.
    """
    s = problem.student_rank
    if s == 1 or len(turns) < s * (s - 1) // 2 or not np.isfinite(overlaps.pack()).all():
        return overlaps
    fields = np.concatenate([*overlaps.theta, *[m[:, None] for m in overlaps.m]], axis=1)
    scale = np.sqrt(np.abs(overlaps.q).max())
    frame = np.empty((s, 0))
    for column in (fields / scale).T:
        rest = column - frame @ (frame.T @ column)
        if np.linalg.norm(rest) > 1e-3 and frame.shape[1] < s:
            frame = np.concatenate([frame, (rest / np.linalg.norm(rest))[:, None]], axis=1)
    if frame.shape[1] < s:
        complement = np.linalg.svd(frame, full_matrices=True)[0][:, frame.shape[1] :] if frame.shape[1] else np.eye(s)
        _, own = np.linalg.eigh(complement.T @ overlaps.q[0] @ complement)
        frame = np.concatenate([frame, complement @ own[:, ::-1]], axis=1)
    if np.linalg.det(frame) < 0 and not is_loss_sign_symmetric(problem, s - 1):
        frame[:, -1] *= -1
    return rotate_student_columns(overlaps, frame)


def is_loss_sign_symmetric(problem: Problem, column: int | None = None) -> bool:
    """Return whether the loss is invariant when W, or one of its columns, changes sign (tested at random points).

    Args:
        problem: problem with the loss.
        column: index of the column of W; None for all columns.
    """
    signs = tuple(-1 if column in (None, a) else 1 for a in range(problem.student_rank))
    sign_change = SignedPermutation(tuple(range(problem.tokens)), signs, (1,) * problem.teacher_rank)
    return all(sign_change in found for found in loss_symmetries(problem).values())


def rotate_student_columns(overlaps: Overlaps, frame: np.ndarray) -> Overlaps:
    """Return the overlaps of the rotated weights W O for an orthogonal matrix O.

    Args:
        overlaps: overlaps of the weights W.
        frame: the matrix O, (s, s).
    """
    return Overlaps(
        q=frame.T @ overlaps.q @ frame,
        V=frame.T @ overlaps.V @ frame,
        m=overlaps.m @ frame,
        theta=frame.T @ overlaps.theta,
        phi=overlaps.phi,
    )
