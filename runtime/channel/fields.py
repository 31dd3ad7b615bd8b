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

    Y = teacher_mean + teacher_factor z_Y,  omega = field_mean + field_from_teacher z_Y + field_factor z_omega, where
    Y are the teacher's fields, omega the means of the student's fields, and z_Y, z_omega are standard normal.

    Attributes:
        teacher_mean, field_mean: means of Y, shape (L, t), and of omega, shape (L, s).
        teacher_factor, field_from_teacher, field_factor: matrices of the two equations above, one per token.
        variance, precision: V and its inverse, shape (L, s, s) each.
        field_precision: inverse covariance of omega given Y, shape (L, s, s).
        log_normalisation: logarithm of the normalisation of the density of omega given Y, summed over tokens.
        constants: the model's constants in the compiled functions of the loss.
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
        """The means and factors of the law, in the order in which the compiled sampling loops take them."""
        return (
            self.teacher_mean,
            self.teacher_factor,
            self.field_mean,
            self.field_from_teacher,
            self.field_factor,
        )

    def planes_in_normal_coordinates(self, planes: np.ndarray, noise_scale: np.ndarray) -> np.ndarray:
        """Return planes in fields and noise as planes in standard normal coordinates.

        Args:
            planes: one plane per row: its coefficients of student fields, teacher fields and noise, and a constant.
            noise_scale: standard deviation of each Gaussian noise variable.

        Returns:
            one plane per row: its coefficients of the coordinates z_Y, z_omega and noise, and a constant.
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


def _covariance_factors_of_fields(
    overlaps: Overlaps, contexts: np.ndarray | slice, rho_star: np.ndarray
) -> tuple[list[np.ndarray], float]:
    """Return the covariance factors of teacher and student fields for some (token, cluster) pairs, and sum log det C.

    The factors are T with T T^T = rho*, theta T^(-T), C = q - theta rho*^(-1) theta^T, F with F F^T = C, V^(-1) and
    C^(-1), with one matrix per pair each.

    Raises:
        DomainError: V or C is not positive definite, or an overlap is not finite.
    """
    blocks = overlaps.q, overlaps.V, overlaps.theta, rho_star
    q, V, theta, rho = [np.ascontiguousarray(block[contexts], float) for block in blocks]
    found = [np.empty(block.shape) for block in (rho, theta, q, q, V, q)]
    log_det = load_compiled_loops("matrices").fill_field_laws(q, V, theta, rho, *found)
    if not np.isfinite(log_det) or not np.isfinite(overlaps.m).all():
        raise DomainError(
            "all overlaps must be finite, V must be positive definite, and so must be q - theta rho*^(-1) theta^T, the "
            "covariance of the student's fields given the teacher's"
        )
    return found, log_det


def overlaps_of_loss_fields(part: Problem, overlaps: Overlaps) -> Overlaps:
    """Return the overlaps q, V, m, theta of those linear combinations of the fields that the loss depends on.

    Args:
        part: a reduced problem, over such combinations; for a full problem the overlaps are returned unchanged.
        overlaps: overlaps of the weights.

    Raises:
        DomainError: V or the covariance of the student's fields given the teacher's is not positive definite.
    """
    if not isinstance(part, ReducedProblem):
        return overlaps
    _covariance_factors_of_fields(make_q_positive_definite(part.full, overlaps), slice(None), part.full.law.rho_star)
    return part.maps_of_overlaps_to_combinations.map_overlaps_to_combinations(overlaps.pack())


def field_law(problem: Problem, overlaps: Overlaps, labels: tuple[int, ...]) -> FieldLaw:
    """Return the joint Gaussian law of the fields for one assignment of labels.

    Args:
        problem: problem that gives the law of the teacher's fields.
        overlaps: q, V, m and theta of every (token, cluster) pair.
        labels: label of every token.

    Raises:
        DomainError: V or the covariance of the student's fields given the teacher's is not positive definite.
    """
    contexts = problem.token_cluster_indices(labels) if problem.clusters > 1 else slice(None)
    (teacher_factor, from_teacher, _, field_factor, precision, field_precision), log_det = (
        _covariance_factors_of_fields(overlaps, contexts, problem.law.rho_star)
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
    """Return the block-diagonal matrix, shape (L s, L s), of L blocks of shape (s, s)."""
    L, s, _ = blocks.shape
    out = np.zeros((L, s, L, s))
    out[range(L), :, range(L), :] = blocks
    return out.reshape(L * s, L * s)


def diagonal_blocks(matrix: np.ndarray, L: int, s: int) -> np.ndarray:
    """Return the diagonal blocks of a matrix, shape (L, s, s).

    Args:
        matrix: matrix of shape (L s, L s).
        L: number of blocks.
        s: size of a block.
    """
    return matrix.reshape(L, s, L, s)[range(L), :, range(L), :]
