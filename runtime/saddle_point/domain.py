"""The domain of the saddle-point map: steps that keep it, and which matrix is not positive definite outside it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..problems.overlaps import OVERLAPS, Conjugates, Overlaps, Sizes
from ..problems.problem import Problem
from ..problems.reduced import apart

_SINGULAR = 1e-14  # of the largest eigenvalue, below which a matrix counts as singular


def step_inside(problem: Problem, u: np.ndarray, move: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Return u + move to first order, with V and q - theta rho*^(-1) theta^T positive definite wherever they are at u.

    Both may be far smaller than q: of weights that are nearly the teacher's, a step along theta alone, straight in q,
    leaves the domain long before it leaves the neighbourhood where the slopes hold.
    """
    here, change = Overlaps.unpack(u, sizes), Overlaps.unpack(move, sizes)
    theta, left = here.theta + change.theta, without_teacher(problem, here)
    d_left = (
        change.q
        - project_on_teacher(problem, theta)
        + project_on_teacher(problem, here.theta)
        + project_on_teacher(problem, change.theta)
    )
    moved = replace(
        here,
        q=_move_inside(left, d_left) + project_on_teacher(problem, theta),
        V=_move_inside(here.V, change.V),
        m=here.m + change.m,
        theta=theta,
        phi=here.phi + change.phi,
    )
    return moved.pack()


def project_on_teacher(problem: Problem, theta: np.ndarray) -> np.ndarray:
    """Return theta rho*^(-1) theta^T, (C, s, s): the part of q along the teacher's fields."""
    product: np.ndarray = theta @ np.linalg.inv(problem.law.rho_star) @ theta.transpose(0, 2, 1)
    return product


def without_teacher(problem: Problem, overlaps: Overlaps) -> np.ndarray:
    """Return D = q - theta rho*^(-1) theta^T, (C, s, s)."""
    return overlaps.q - project_on_teacher(problem, overlaps.theta)


def rounding_of_variance(problem: Problem, overlaps: Overlaps) -> float:
    """Return the relative uncertainty that rounding of q leaves of D = q - theta rho*^(-1) theta^T, along the direction
    in which D is least."""
    least = float(np.abs(np.linalg.eigvalsh(without_teacher(problem, overlaps))).min())
    return float(np.finfo(float).eps * np.abs(overlaps.q).max() / max(least, 1e-300))


def rounded_in_words(problem: Problem, overlaps: Overlaps) -> str:
    """Return how small D is where double precision leaves it too few digits."""
    least = np.linalg.eigvalsh(without_teacher(problem, overlaps)).min()
    return (
        f"q - theta rho*^(-1) theta^T = {least:.2g} is so small next to q = {np.abs(overlaps.q).max():.3g} that double "
        "precision does not hold its digits: take a stronger regulariser"
    )


def _move_inside(matrices: np.ndarray, changes: np.ndarray) -> np.ndarray:
    """Return A + dA for each of (C, s, s), as A^(1/2) f(A^(-1/2) dA A^(-1/2)) A^(1/2) with f(x) = 1 + x or, where x is
    negative, 1 / (1 - x), which is positive definite; plainly where A is not."""
    values, vectors = np.linalg.eigh(matrices)
    inside = values[:, 0] > _SINGULAR * np.abs(values[:, -1])
    moved = matrices + changes
    if inside.any():
        root = vectors[inside] * np.sqrt(values[inside])[:, None, :]
        inverse = vectors[inside] / np.sqrt(values[inside])[:, None, :]
        factors, turned = np.linalg.eigh(inverse.transpose(0, 2, 1) @ changes[inside] @ inverse)
        factors = np.where(factors >= 0, 1 + factors, 1 / (1 - np.minimum(factors, 0)))
        half = root @ turned
        moved[inside] = (half * factors[:, None, :]) @ half.transpose(0, 2, 1)
    return moved


def fields_outside(problem: Problem, overlaps: Overlaps) -> str:
    """Return which matrix of the law of the fields is not positive definite, in words; empty where all are.

    The matrices are V and q - theta rho*^(-1) theta^T of every context, docs/theory.md (4.9); the first that is not is
    given with its eigenvalue and its direction in the columns of W.
    """
    for name in OVERLAPS:
        if not np.isfinite(getattr(overlaps, name)).all():
            return f"{name} is not finite"
    overlaps = apart(problem, overlaps)
    norm = (
        "q - theta rho*^(-1) theta^T",
        "the weights are shorter than their part along the teacher (measured overlaps are divided by d)",
    )
    if not overlaps.theta.any():  # a model without a teacher is not told about it
        norm = "q", "there are no weights of this length"
    variances = without_teacher(problem, overlaps)
    for context in range(problem.contexts):
        for (name, meaning), matrix in (
            (("V", "the fields have no response"), overlaps.V[context]),
            (norm, variances[context]),
        ):
            words = _not_positive(name, matrix)
            if words:
                return f"{words}, at {problem.context_in_words(context)}: {meaning}"
    return ""


def loss_outside(problem: Problem, overlaps: Overlaps) -> str:
    """Return why the Moreau objective has no lower bound, for a loss that is declared to have none; empty where it has.

    Where the loss falls as -k |X|^2 / 2 along a ray r, r^T V^(-1) r > k is needed.
    """
    if not problem.solver.model.UNBOUNDED or not np.isfinite(overlaps.V).all():
        return ""
    for labels, fall in problem.falls:
        contexts = problem.context_of(labels)
        ray = fall.ray.reshape(problem.tokens, problem.student_rank)
        held = sum(r @ np.linalg.pinv(V, hermitian=True) @ r for r, V in zip(ray, overlaps.V[contexts], strict=True))
        if held <= fall.curvature:
            where = " and ".join(problem.context_in_words(context) for context in contexts)
            return (
                f"the loss falls as -{fall.curvature / 2:.3g} |X|^2 along a ray of X, faster than (X - omega)^2 / 2V "
                f"rises with V^(-1) = {held:.3g} at {where}: the penalty does not bound it there; try a stronger one"
            )
    return ""


def weights_outside(problem: Problem, hats: Conjugates) -> str:
    """Return where Lambda + G, docs/theory.md (4.10), is not positive definite, in words; empty where it is.

    G is the sum over contexts of gamma V^ in a spectral direction. Empty, too, without a ridge.
    """
    if not problem.regulariser.is_ridge:
        return ""
    law, strengths = problem.law, problem.regulariser.strengths
    for gamma in law.gamma:
        curvature = np.diag(strengths) + np.einsum("c,cab->ab", gamma, hats.V)
        words = _not_positive("Lambda + G, the curvature of the objective in the weights,", curvature)
        if words:
            where = f" in the spectral direction of eigenvalue {gamma[0]:.4g}" if len(law.gamma) > 1 else ""
            return f"{words}{where}: the data term has Tr G = {np.trace(curvature) - strengths.sum():.3g}"
    return ""


def _not_positive(name: str, matrix: np.ndarray) -> str:
    """`name has the eigenvalue -0.1 along ...` where a symmetric matrix is not positive definite; nothing else."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    if values[0] > _SINGULAR * max(float(np.abs(values).max()), 1e-300):
        return ""
    if len(values) == 1:
        return f"{name} is {values[0]:.3g}, not positive"
    along = vectors[:, 0] * np.sign(vectors[np.argmax(np.abs(vectors[:, 0])), 0])
    direction = ", ".join(f"{entry:.2f}" for entry in along + 0.0)
    return f"{name} has the eigenvalue {values[0]:.3g} along ({direction}) of the columns of W"
