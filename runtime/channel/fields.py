"""The joint Gaussian law of student and teacher fields, as affine maps of standard normal coordinates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..base.errors import DomainError
from ..problems.compiled import load_compiled_loops
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.reduced import ReducedProblem, make_q_positive_definite

Sampling = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class FieldLaw:
    """A joint Gaussian law of student and teacher fields for one assignment of labels (docs/theory.md (3.14)).

    Y = teacher_mean + teacher_factor z_Y,  omega = field_mean + field_from_teacher z_Y + field_factor z_omega.

    Attributes:
        variance, precision: V and V^{-1}, (L, s, s).
        field_precision: inverse covariance of omega given Y, (L, s, s).
        log_normalisation: log of the density's constant, sum over tokens.
    """

    teacher_mean: np.ndarray
    teacher_factor: np.ndarray
    field_mean: np.ndarray
    field_from_teacher: np.ndarray
    field_factor: np.ndarray
    variance: np.ndarray
    precision: np.ndarray
    field_precision: np.ndarray
    log_normalisation: float
    constants: np.ndarray

    @property
    def sampling_loop_arguments(self) -> Sampling:
        """The leading arguments of the generated sampling loops."""
        return (
            self.teacher_mean,
            self.teacher_factor,
            self.field_mean,
            self.field_from_teacher,
            self.field_factor,
        )

    def planes_in_normal_coordinates(self, planes: np.ndarray, noise_scale: np.ndarray) -> np.ndarray:
        """Return planes in (omega, Y, Gaussian noise) as planes in standard normal coordinates (z_Y, z_omega, noise).

        Args:
            planes: (K, D + L t + U + 1), see `Problem.kink_planes`; the same shape is returned.
            noise_scale: standard deviations of the Gaussian noise, (U,).
        """
        if not len(planes):
            return planes
        L, s, t = self.field_from_teacher.shape
        x, y, u, constant = np.split(planes, [L * s, L * (s + t), planes.shape[1] - 1], axis=1)
        x, y = x.reshape(len(planes), L, s), y.reshape(len(planes), L, t)
        on_teacher = np.einsum("klb,lbe->kle", y, self.teacher_factor) + np.einsum(
            "kla,lae->kle", x, self.field_from_teacher
        )
        on_fields = np.einsum("kla,lae->kle", x, self.field_factor)
        constant = (
            constant[:, 0] + np.einsum("klb,lb->k", y, self.teacher_mean) + np.einsum("kla,la->k", x, self.field_mean)
        )
        count = len(planes)
        on_teacher, on_fields = on_teacher.reshape(count, L * t), on_fields.reshape(count, L * s)
        return np.concatenate([on_teacher, on_fields, u * noise_scale, constant[:, None]], axis=1)


def _factor_field_laws(
    overlaps: Overlaps, contexts: np.ndarray | slice, rho_star: np.ndarray
) -> tuple[list[np.ndarray], float]:
    """Return the factors of the Gaussian laws of some contexts, (L, ...), and the sum of log det C.

    They are T with T T^T = rho*, theta T^(-T), C = q - theta rho*^(-1) theta^T, F with F F^T = C, V^(-1) and C^(-1).

    Raises:
        DomainError: V or C is not positive definite, or an overlap not finite: there is no law of the fields.
    """
    blocks = overlaps.q, overlaps.V, overlaps.theta, rho_star
    q, V, theta, rho = [np.ascontiguousarray(block[contexts], float) for block in blocks]
    found = [np.empty(block.shape) for block in (rho, theta, q, q, V, q)]
    log_det = load_compiled_loops("matrices").fill_field_laws(q, V, theta, rho, *found)
    if not np.isfinite(log_det) or not np.isfinite(overlaps.m).all():
        raise DomainError("an overlap is not finite, or V or q - theta rho*^(-1) theta^T is not positive definite")
    return found, log_det


def channel_overlaps(part: Problem, overlaps: Overlaps) -> Overlaps:
    """Return the overlaps of the fields that the loss depends on: those of the weights unless the problem is reduced.

    Args:
        part: full or reduced problem.
        overlaps: overlaps of the weights.

    Raises:
        DomainError: V or the conditional covariance of the fields is not positive definite.
    """
    if not isinstance(part, ReducedProblem):
        return overlaps
    _factor_field_laws(make_q_positive_definite(part.full, overlaps), slice(None), part.full.law.rho_star)
    return part.maps_of_overlaps_to_combinations.combination_overlaps_at(overlaps.pack())


def field_law(problem: Problem, overlaps: Overlaps, labels: tuple[int, ...]) -> FieldLaw:
    """Return the joint Gaussian law of the fields for one assignment of labels.

    Args:
        problem: problem that gives the law of the teacher's fields.
        overlaps: q, V, m and theta of every context.
        labels: label of every token.

    Raises:
        DomainError: V or the conditional covariance is not positive definite.
    """
    contexts = problem.context_indices(labels) if problem.clusters > 1 else slice(None)
    (teacher_factor, from_teacher, _, field_factor, precision, field_precision), log_det = _factor_field_laws(
        overlaps, contexts, problem.law.rho_star
    )
    size = problem.tokens * problem.student_rank
    return FieldLaw(
        teacher_mean=np.ascontiguousarray(problem.law.teacher_means[contexts]),
        teacher_factor=teacher_factor,
        field_mean=np.ascontiguousarray(overlaps.m[contexts]),
        field_from_teacher=from_teacher,
        field_factor=field_factor,
        variance=np.ascontiguousarray(overlaps.V[contexts]),
        precision=precision,
        field_precision=field_precision,
        log_normalisation=-0.5 * (size * np.log(2 * np.pi) + log_det),
        constants=problem.constants(labels, overlaps),
    )


def block_diagonal(blocks: np.ndarray) -> np.ndarray:
    """Return the matrix (D, D) with blocks (L, s, s) on its diagonal."""
    L, s, _ = blocks.shape
    out = np.zeros((L, s, L, s))
    out[range(L), :, range(L), :] = blocks
    return out.reshape(L * s, L * s)


def diagonal_blocks(matrix: np.ndarray, L: int, s: int) -> np.ndarray:
    """Return the diagonal blocks (L, s, s) of a matrix.

    Args:
        matrix: (L s, L s).
        L: number of blocks.
        s: size of a block.
    """
    return matrix.reshape(L, s, L, s)[range(L), :, range(L), :]
