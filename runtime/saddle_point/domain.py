"""The domain of definition of the saddle-point map: steps that stay inside, and explanations of states outside."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..problems.overlaps import OVERLAPS, Conjugates, Overlaps, Sizes
from ..problems.problem import Problem
from ..problems.reduced import make_q_positive_definite

_ROUNDING = 1e-14  # of eigenvalues relative to the largest: smaller ones count as zero


def take_step_within_domain(problem: Problem, u: np.ndarray, move: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Return the overlaps u after a step, which is reduced so that V and the conditional covariance stay positive.

    The conditional covariance q - theta rho*^(-1) theta^T and V may be far smaller than q, if weights are nearly the
    teacher's; a linear step then leaves the domain long before the linearisation fails.

    Args:
        problem: the problem that has these overlaps.
        u: packed overlaps, (n,).
        move: the step, shape (n,).
        sizes: numbers of (token, cluster) pairs, student columns, teacher columns and trained numbers.
    """
    here, change = Overlaps.unpack(u, sizes), Overlaps.unpack(move, sizes)
    theta, left = here.theta + change.theta, conditional_covariance(problem, here)
    d_left = (
        change.q
        - project_on_teacher(problem, theta)
        + project_on_teacher(problem, here.theta)
        + project_on_teacher(problem, change.theta)
    )
    moved = replace(
        here,
        q=_update_positive_definite_matrices(left, d_left) + project_on_teacher(problem, theta),
        V=_update_positive_definite_matrices(here.V, change.V),
        m=here.m + change.m,
        theta=theta,
        phi=here.phi + change.phi,
    )
    return moved.pack()


def project_on_teacher(problem: Problem, theta: np.ndarray) -> np.ndarray:
    """Return theta rho*^(-1) theta^T, the part of q that the teacher's fields explain, for every (token, cluster) pair.

    Args:
        problem: the problem that has these overlaps.
        theta: overlap with the teacher, one (s, t) matrix per (token, cluster) pair.
    """
    product: np.ndarray = theta @ np.linalg.inv(problem.law.rho_star) @ theta.transpose(0, 2, 1)
    return product


def conditional_covariance(problem: Problem, overlaps: Overlaps) -> np.ndarray:
    """Return D = q - theta rho*^(-1) theta^T, the covariance of the fields given those of the teacher.

    Args:
        problem: the problem that has these overlaps.
        overlaps: overlaps of student and teacher.
    """
    return overlaps.q - project_on_teacher(problem, overlaps.theta)


def rounding_error_of_conditional_covariance(problem: Problem, overlaps: Overlaps) -> float:
    """Return the relative error of the smallest eigenvalue of q - theta rho*^(-1) theta^T due to rounding of q.

    Args:
        problem: the problem that has these overlaps.
        overlaps: overlaps of student and teacher.
    """
    least = float(np.abs(np.linalg.eigvalsh(conditional_covariance(problem, overlaps))).min())
    return float(np.finfo(float).eps * np.abs(overlaps.q).max() / max(least, 1e-300))


def explain_lost_digits_of_covariance(problem: Problem, overlaps: Overlaps) -> str:
    """Return an error message: q - theta rho*^(-1) theta^T is too small for double precision.

    Args:
        problem: the problem that has these overlaps.
        overlaps: overlaps of student and teacher.
    """
    least = np.linalg.eigvalsh(conditional_covariance(problem, overlaps)).min()
    return (
        f"q - theta rho*^(-1) theta^T = {least:.2g} is so small next to q = {np.abs(overlaps.q).max():.3g} that double "
        "precision does not hold its digits: take a stronger regulariser"
    )


def _update_positive_definite_matrices(matrices: np.ndarray, changes: np.ndarray) -> np.ndarray:
    """Return matrices that agree with A + dA to first order and are positive definite if A is.

    Each is A^(1/2) f(A^(-1/2) dA A^(-1/2)) A^(1/2) with f(x) = 1 + x or, for negative x, 1 / (1 - x).
    """
    values, vectors = np.linalg.eigh(matrices)
    inside = values[:, 0] > _ROUNDING * np.abs(values[:, -1])
    moved = matrices + changes
    if inside.any():
        root = vectors[inside] * np.sqrt(values[inside])[:, None, :]
        inverse = vectors[inside] / np.sqrt(values[inside])[:, None, :]
        factors, turned = np.linalg.eigh(inverse.transpose(0, 2, 1) @ changes[inside] @ inverse)
        factors = np.where(factors >= 0, 1 + factors, 1 / (1 - np.minimum(factors, 0)))
        half = root @ turned
        moved[inside] = (half * factors[:, None, :]) @ half.transpose(0, 2, 1)
    return moved


def explain_indefinite_covariances(problem: Problem, overlaps: Overlaps) -> str:
    """Return a message that says which covariance of the fields is not positive definite; empty if all are.

    The matrices are V and q - theta rho*^(-1) theta^T of every (token, cluster) pair, docs/theory.md (4.9); the message
    gives the eigenvalue and the direction, in the columns of W, of the first indefinite one.

    Args:
        problem: the problem that has these overlaps.
        overlaps: overlaps of student and teacher.
    """
    for name in OVERLAPS:
        if not np.isfinite(getattr(overlaps, name)).all():
            return f"{name} is not finite"
    overlaps = make_q_positive_definite(problem, overlaps)
    norm = (
        "q - theta rho*^(-1) theta^T",
        "the weights are shorter than their part along the teacher (measured overlaps are divided by d)",
    )
    if not overlaps.theta.any():  # for a model without a teacher
        norm = "q", "there are no weights of this length"
    variances = conditional_covariance(problem, overlaps)
    for context in range(problem.contexts):
        for (name, meaning), matrix in (
            (("V", "the fields have no response"), overlaps.V[context]),
            (norm, variances[context]),
        ):
            words = _describe_negative_eigenvalue(name, matrix)
            if words:
                where = problem.describe_token_and_cluster(context)
                return f"{words}{where and f', at {where}'}: {meaning}"
    return ""


def explain_unbounded_loss(problem: Problem, overlaps: Overlaps) -> str:
    """Return a message that says why the proximal (Moreau) objective has no lower bound; empty if it has one.

    A bound exists if r^T V^(-1) r > k for every ray r of fields X along which the loss falls as -k |X|^2 / 2.

    Args:
        problem: the problem that has these overlaps.
        overlaps: overlaps of student and teacher.
    """
    if not problem.solver.model.UNBOUNDED or not np.isfinite(overlaps.V).all():
        return ""
    for labels, fall in problem.unbounded_rays:
        contexts = problem.token_cluster_indices(labels)
        ray = fall.ray.reshape(problem.tokens, problem.student_rank)
        held = sum(r @ np.linalg.pinv(V, hermitian=True) @ r for r, V in zip(ray, overlaps.V[contexts], strict=True))
        if held <= fall.curvature:
            where = " and ".join(problem.describe_token_and_cluster(context) for context in contexts)
            return (
                f"the loss falls as -{fall.curvature / 2:.3g} |X|^2 along a ray of X, faster than (X - omega)^2 / 2V "
                f"rises with V^(-1) = {held:.3g}{where and f' at {where}'}: "
                "the penalty does not bound it there; try a stronger one"
            )
    return ""


def explain_unbounded_weights(problem: Problem, hats: Conjugates) -> str:
    """Return a message that says where Lambda + G of docs/theory.md (4.10) is not positive definite; empty if nowhere.

    The weights are then unbounded. Lambda is the ridge, G the sum of gamma V^ over (token, cluster) pairs in a spectral
    direction. Without a ridge the message is empty.

    Args:
        problem: the problem that has these overlaps.
        hats: conjugates q^, V^, m^ and theta^ at the overlaps.
    """
    if not problem.regulariser.is_ridge:
        return ""
    law, strengths = problem.law, problem.regulariser.ridge_strengths
    for gamma in law.gamma:
        curvature = np.diag(strengths) + np.einsum("c,cab->ab", gamma, hats.V)
        words = _describe_negative_eigenvalue("Lambda + G, the curvature of the objective in the weights,", curvature)
        if words:
            where = f" in the spectral direction of eigenvalue {gamma[0]:.4g}" if len(law.gamma) > 1 else ""
            return f"{words}{where}: the data term has Tr G = {np.trace(curvature) - strengths.sum():.3g}"
    return ""


def _describe_negative_eigenvalue(name: str, matrix: np.ndarray) -> str:
    """Return a message like `V has the eigenvalue -0.1 along ...` if a matrix is indefinite; otherwise empty."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    if values[0] > _ROUNDING * max(float(np.abs(values).max()), 1e-300):
        return ""
    if len(values) == 1:
        return f"{name} is {values[0]:.3g}, not positive"
    along = vectors[:, 0] * np.sign(vectors[np.argmax(np.abs(vectors[:, 0])), 0])
    direction = ", ".join(f"{entry:.2f}" for entry in along + 0.0)
    return f"{name} has the eigenvalue {values[0]:.3g} along ({direction}) of the columns of W"
