"""The canonical mirror image and the branch of a state at finite d.

Images are by signs, permutations of columns and tokens, and rotations; the kind is judged against chance overlaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from ...base.options import AlgorithmOptions
from ...problems import gauge
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...problems.symmetry import SignedPermutation, symmetries_of_problem
from ...saddle_point.starts import name_branch


@dataclass(frozen=True)
class OrientationOptions(AlgorithmOptions):
    """Options of the choice of a mirror image, and of the classification of states.

    Attributes:
        probe_points: random points at which the loss of permuted columns is compared.
        max_columns: columns up to which all permutations are tried; their number grows as a factorial.
        tie_tolerance: difference of scores above which a mirror image is preferred to another.
        off_diagonal_weight: weight of overlaps theta between different columns of student and teacher.
        noise_deviations: standard deviations of uninformed weights beyond which an overlap counts as informed.
    """

    probe_points: int = 4
    max_columns: int = 5
    tie_tolerance: float = 1e-9
    off_diagonal_weight: float = 0.5
    noise_deviations: float = 4.0


def mirror_images(problem: Problem, overlaps: Overlaps) -> Iterator[Overlaps]:
    """Yield the overlaps of all mirror images of a state: its images under the symmetries of the problem.

    The state itself comes first, then images that have the same risk on the same data, then those on other data.

    Args:
        problem: the problem.
        overlaps: overlaps of the state.
    """
    identity = SignedPermutation(tuple(range(problem.tokens)), (1,) * problem.student_rank, (1,) * problem.teacher_rank)
    same = [e for e in symmetries_of_problem(problem) if (e.tokens, e.teacher) == (identity.tokens, identity.teacher)]
    others = [e for e in symmetries_of_problem(problem) if e not in same]
    for exchange in (identity, *same, *others):
        for order in symmetric_column_orders(problem):
            yield exchange.permute_overlaps(permute_weight_columns(overlaps, order), problem.clusters)


def nearest_mirror_image(problem: Problem, overlaps: Overlaps, reference: Overlaps | None = None) -> Overlaps:
    """Return that image of a state under the symmetries of the problem that is nearest to reference overlaps.

    Without a reference it is the canonical image, in which the largest overlap of each column, theta or m, is positive
    and, for theta, on the diagonal.

    Args:
        problem: the problem.
        overlaps: overlaps of the state.
        reference: reference overlaps; None for the canonical image.
    """
    overlaps = gauge.canonical_orbit_representative(problem, overlaps, gauge.rotation_symmetry_generators(problem))
    scales = overlaps.block_scales
    best, found, tolerance = -np.inf, overlaps, OrientationOptions.current().tie_tolerance
    for image in mirror_images(problem, overlaps):
        score = (
            _canonical_image_score(image) if reference is None else -_scaled_square_distance(image, reference, scales)
        )
        if score > best + tolerance:
            best, found = score, image
    return found


def _canonical_image_score(overlaps: Overlaps) -> float:
    """Return a score for choosing among symmetry-equivalent overlaps of a state; the largest marks the canonical ones.

    It is a sum over columns of their largest overlaps theta, weighted less off the diagonal, or m.
    """
    other_weight = OrientationOptions.current().off_diagonal_weight
    size = float(np.abs(np.diagonal(overlaps.q, axis1=1, axis2=2)).max())
    total = 0.0
    for column in range(overlaps.m.shape[1]):
        theta, m = overlaps.theta[:, column] / size, overlaps.m[:, column] / np.sqrt(size)
        if np.abs(theta).max() >= np.abs(m).max():
            teacher = int(np.abs(theta).max(axis=0).argmax())
            total += float(theta[:, teacher].sum()) * (1 if teacher == column else other_weight)
        else:
            total += float(m[np.argmax(np.abs(m) > np.abs(m).max() / 2)])
    return total


def _scaled_square_distance(overlaps: Overlaps, reference: Overlaps, scales: np.ndarray) -> float:
    difference = (overlaps.pack() - reference.pack()) / scales
    return float(np.nansum(difference**2))


def permute_weight_columns(overlaps: Overlaps, order: tuple[int, ...]) -> Overlaps:
    """Return the overlaps of W with its columns in another order.

    Args:
        overlaps: overlaps of W.
        order: indices of the columns.
    """
    columns = list(order)
    return Overlaps(
        q=overlaps.q[:, columns][:, :, columns],
        V=overlaps.V[:, columns][:, :, columns],
        m=overlaps.m[:, columns],
        theta=overlaps.theta[:, columns],
        phi=overlaps.phi,
    )


def symmetric_column_orders(problem: Problem) -> list[tuple[int, ...]]:
    """Return the orders of the columns of W with the same loss and regulariser as the given one, which comes first.

    The loss is compared at random points.
    """
    s = problem.student_rank
    every = list(permutations(range(s))) if s <= OrientationOptions.current().max_columns else [tuple(range(s))]
    return [order for order in every if _is_column_symmetry(problem, order)]


def _is_column_symmetry(problem: Problem, order: tuple[int, ...]) -> bool:
    columns = list(order)
    if order == tuple(range(len(order))):
        return True
    if problem.solver.model.HOLDS_Q or not problem.regulariser.is_invariant_under(lambda w: w[columns]):
        return False
    channel, generator = problem.solver.channel, np.random.default_rng(37)
    for labels, _ in problem.label_probabilities:
        c = problem.constants(labels)
        for _ in range(OrientationOptions.current().probe_points):
            x = generator.standard_normal((problem.tokens, problem.student_rank))
            known = generator.standard_normal(channel.FEATURES)
            one, other = (channel.loss(*at.ravel(), *known, c) for at in (x, x[:, columns]))
            if not abs(one - other) <= 1e-12 * (1 + abs(one)):
                return False
    return True


def overlap_fluctuations(problem: Problem, overlaps: Overlaps, d: int) -> Overlaps:
    """Return the standard deviations, of order 1/sqrt(d), of the overlaps of weights independent of the data.

    They are the same for all entries of an overlap array, and zero for V and for numbers trained with the weights.

    Args:
        problem: the problem.
        overlaps: overlaps whose q gives the size of the weights.
        d: dimension.
    """
    law = problem.law
    q = np.abs(np.diagonal(overlaps.q, axis1=1, axis2=2))
    tau = np.einsum("a,aii->i", law.weights, law.gram)[: problem.contexts]
    return Overlaps(
        q=np.full_like(overlaps.q, np.sqrt(2 / d) * np.max(q)),
        V=np.zeros_like(overlaps.q),
        m=np.full_like(overlaps.m, np.sqrt(np.max(q / law.rho[:, None]) * np.max(tau) / d)),
        theta=np.full_like(overlaps.theta, np.sqrt(np.max(q) * np.abs(law.rho_star).max() / d)),
        phi=np.zeros_like(overlaps.phi),
    )


def classify_state(problem: Problem, d: int, overlaps: Overlaps) -> str:
    """Return the name of the branch of trained weights, by which overlaps (theta, m) exceed their fluctuations.

    Args:
        problem: the problem.
        d: dimension.
        overlaps: overlaps of the state.
    """
    return name_branch(
        problem,
        overlaps,
        OrientationOptions.current().noise_deviations * overlap_fluctuations(problem, overlaps, d).pack(),
    )
