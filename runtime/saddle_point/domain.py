"""The domain of the saddle-point map: steps that keep it, and which matrix is not positive definite outside it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..errors import DomainError
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


class RelativeCoordinates:
    """Coordinates about a state, packed like overlaps and zero there.

    log(D_0^(-1/2) D D_0^(-1/2)) with D = q - theta rho*^(-1) theta^T, the same of V, and changes of m and theta in
    units of D_0^(1/2), of theta also of rho*^(1/2).
    """

    def __init__(self, problem: Problem, u: np.ndarray, sizes: Sizes) -> None:
        """Begin at a state; DomainError where its V or D is not positive definite."""
        self.problem, self.sizes, self.here = problem, sizes, Overlaps.unpack(u, sizes)
        self.D, self.per_D = _roots(without_teacher(problem, self.here))
        self.V, self.per_V = _roots(self.here.V)
        self.teacher = np.linalg.cholesky(problem.law.rho_star).transpose(0, 2, 1)
        self.phi = np.maximum(np.abs(self.here.phi), 1.0)

    def of_state(self, u: np.ndarray) -> np.ndarray:
        """Return the coordinates of a packed state; DomainError where its V or D is not positive definite."""
        there = Overlaps.unpack(u, self.sizes)
        return Overlaps(
            q=_of_eigenvalues(np.log, self.per_D @ without_teacher(self.problem, there) @ self.per_D),
            V=_of_eigenvalues(np.log, self.per_V @ there.V @ self.per_V),
            m=np.einsum("cab,cb->ca", self.per_D, there.m - self.here.m),
            theta=self.per_D @ (there.theta - self.here.theta) @ np.linalg.inv(self.teacher),
            phi=(there.phi - self.here.phi) / self.phi,
        ).pack()

    def state(self, x: np.ndarray) -> np.ndarray:
        """Return the packed state at coordinates."""
        moved = Overlaps.unpack(x, self.sizes)
        theta = self.here.theta + self.D @ moved.theta @ self.teacher
        return Overlaps(
            q=self.D @ _of_eigenvalues(np.exp, moved.q) @ self.D + project_on_teacher(self.problem, theta),
            V=self.V @ _of_eigenvalues(np.exp, moved.V) @ self.V,
            m=self.here.m + np.einsum("cab,cb->ca", self.D, moved.m),
            theta=theta,
            phi=self.here.phi + self.phi * moved.phi,
        ).pack()

    def change(self, x: np.ndarray) -> np.ndarray:
        """Return the change of the packed state to first order in coordinates."""
        moved = Overlaps.unpack(x, self.sizes)
        theta = self.D @ moved.theta @ self.teacher
        along = theta @ np.linalg.inv(self.problem.law.rho_star) @ self.here.theta.transpose(0, 2, 1)
        return Overlaps(
            q=self.D @ moved.q @ self.D + along + along.transpose(0, 2, 1),
            V=self.V @ moved.V @ self.V,
            m=np.einsum("cab,cb->ca", self.D, moved.m),
            theta=theta,
            phi=self.phi * moved.phi,
        ).pack()


def _roots(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the symmetric roots of (C, s, s) and their inverses; DomainError where one is not positive definite."""
    values, vectors = _positive(matrices)
    roots, turned = np.sqrt(values)[:, None, :], vectors.transpose(0, 2, 1)
    return (vectors * roots) @ turned, (vectors / roots) @ turned


def _of_eigenvalues(function: np.ufunc, matrices: np.ndarray) -> np.ndarray:
    """Return a function of symmetric (C, s, s); DomainError for the logarithm of one that is not positive definite."""
    values, vectors = _positive(matrices) if function is np.log else np.linalg.eigh(matrices)
    result: np.ndarray = (vectors * function(values)[:, None, :]) @ vectors.transpose(0, 2, 1)
    return result


def _positive(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues and eigenvectors; DomainError where one is not positive."""
    values, vectors = np.linalg.eigh(matrices)
    if not (values > 0).all():
        raise DomainError("V or q - theta rho*^(-1) theta^T is not positive definite")
    return values, vectors


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
    """Of the law of the fields: V and q - theta rho*^(-1) theta^T of every context; empty where they are positive.

    The first matrix of docs/theory.md (4.9) that is not, with its eigenvalue and its direction in the columns of W.
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
    """Of the weights in a spectral direction, docs/theory.md (4.10): Lambda + G, G = sum over contexts of gamma V^.

    Empty where it is positive definite, and without a ridge.
    """
    if not problem.has_ridge:
        return ""
    law = problem.law
    for gamma in law.gamma:
        curvature = np.diag(problem.strengths) + np.einsum("c,cab->ab", gamma, hats.V)
        words = _not_positive("Lambda + G, the curvature of the objective in the weights,", curvature)
        if words:
            where = f" in the spectral direction of eigenvalue {gamma[0]:.4g}" if len(law.gamma) > 1 else ""
            return f"{words}{where}: the data term has Tr G = {np.trace(curvature) - problem.strengths.sum():.3g}"
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
