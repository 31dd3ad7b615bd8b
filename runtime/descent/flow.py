"""The equations of motion of the moments: drift and noise of one-pass descent, gradient flow, batches of order d."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import DomainError, InputError
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from .averages import AverageRule, SlopeAverages
from .state import Moments

_SINGULAR = 1e-14  # of the fields' covariance, relative to its largest eigenvalue


def refuse(problem: Problem) -> None:
    """
    Raises:
        InputError: the dynamics of the problem do not close, or its loss has no slope.
    """
    name = problem.solver.name
    problem.only_at_zero_temperature("descent follows the slope of the loss")
    if not problem.has_ridge:
        raise InputError(
            f"the dynamics close for a ridge, whose pull on a row is linear in it; the penalty of {name} is another "
            "(`saddleforge simulate` descends at finite d)"
        )
    if problem.solver.model.LOSS_JUMPS:
        raise InputError(f"the loss of {name} jumps, and has no slope that a step could go down")


@dataclass(frozen=True)
class Drift:
    """Of every row, dw = -(A w + b) times the rate (docs/theory.md (19.4)): per atom A (s, s) and b as what multiplies
    (tau, pi), (s, C + t); noise: sum_c gamma_c E_c[D D^T] of every atom, (A, s, s)."""

    A: np.ndarray
    b: np.ndarray
    noise: np.ndarray
    in_phi: np.ndarray


def drift_of(problem: Problem, overlaps: Overlaps, averages: SlopeAverages) -> Drift:
    """From averages of the slope of the loss, by integration by parts."""
    law, (contexts, s, t, _) = problem.law, problem.sizes
    covariance = np.concatenate(
        [
            np.concatenate([overlaps.q, overlaps.theta], axis=2),
            np.concatenate([np.swapaxes(overlaps.theta, 1, 2), law.rho_star], axis=2),
        ],
        axis=1,
    )
    with_both = np.concatenate([averages.with_fields, averages.with_teacher], axis=2)
    # Where X is a function of Y only one combination of H and K is known, and no other counts. Next to that it counts
    # little, but the inverse itself, multiplied out, would be wrong by its size.
    values, vectors = np.linalg.eigh(covariance)
    known = values > _SINGULAR * values[:, -1:]
    inverses = np.where(known, 1 / np.where(known, values, 1.0), 0.0)
    slopes = (with_both @ vectors * inverses[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    H, K = slopes[..., :s], slopes[..., s:]
    ridge = np.diag(problem.strengths)
    A = ridge + np.einsum("ac,cij->aij", law.gamma, H + 2 * averages.in_q)
    b = np.empty((len(law.weights), s, contexts + t))
    b[..., :contexts] = averages.mean.T
    b[..., contexts:] = np.einsum("ac,cij->aij", law.gamma, K)
    own = np.array([number["ridge"] for number in problem.trained])
    return Drift(A, b, np.einsum("ac,cij->aij", law.gamma, averages.square), averages.in_phi + own * overlaps.phi)


class Flow:
    """d moments / dt of a problem by a rule for the averages.

    Args:
        batch: sentences of a step; infinity leaves the noise out.
    """

    def __init__(self, problem: Problem, rule: AverageRule, batch: float = 1.0) -> None:
        self.problem, self.rule, self.batch = problem, rule, batch

    def at(self, moments: Moments) -> tuple[Drift, SlopeAverages]:
        """Drift and averages.

        Raises:
            DomainError: the moments are those of no weights.
        """
        overlaps = moments.overlaps(self.problem)
        averages = self.rule(overlaps)
        return drift_of(self.problem, overlaps, averages), averages

    def slope(self, moments: Moments, rate: float) -> Moments:
        """docs/theory.md (19.6), (19.7): rate times the drift, rate squared over the batch times the noise."""
        drift, _ = self.at(moments)
        law, contexts = self.problem.law, self.problem.contexts
        A, b = drift.A, drift.b
        with_w = np.concatenate([moments.T, np.swapaxes(moments.P, 1, 2)], axis=1)  # (A, C + t, s)
        pull = A @ moments.S + b @ with_w
        along = np.swapaxes(A @ np.swapaxes(with_w, 1, 2) + b @ law.gram, 1, 2)
        return Moments(
            S=-rate * (pull + np.swapaxes(pull, 1, 2)) + rate**2 / self.batch * drift.noise,
            T=-rate * along[:, :contexts],
            P=-rate * np.swapaxes(along[:, contexts:], 1, 2),
            phi=-rate * drift.in_phi,
        )

    def step(self, moments: Moments, rate: float, share: float) -> Moments:
        """One step of rate d on the mean of share times d sentences (docs/theory.md (19.10))."""
        drift, _ = self.at(moments)
        law, contexts, s = self.problem.law, self.problem.contexts, self.problem.student_rank
        with_w = np.concatenate([moments.T, np.swapaxes(moments.P, 1, 2)], axis=1)
        shrink, b = np.eye(s) - rate * drift.A, rate * drift.b
        cross = shrink @ np.swapaxes(with_w, 1, 2) @ np.swapaxes(b, 1, 2)
        along = np.swapaxes(shrink @ np.swapaxes(with_w, 1, 2) - b @ law.gram, 1, 2)
        S = shrink @ moments.S @ np.swapaxes(shrink, 1, 2) - cross - np.swapaxes(cross, 1, 2)
        S = S + b @ law.gram @ np.swapaxes(b, 1, 2) + rate**2 / share * drift.noise
        return Moments(
            S, along[:, :contexts], np.swapaxes(along[:, contexts:], 1, 2), moments.phi - rate * drift.in_phi
        )

    def packed(self, u: np.ndarray, rate: float) -> np.ndarray:
        """`slope` of packed moments; not a number outside of the domain."""
        try:
            return self.slope(Moments.unpack(u, self.problem), rate).pack()
        except DomainError:
            return np.full_like(u, np.nan)

    def jacobian(self, u: np.ndarray, rate: float, step: float = 1e-5) -> np.ndarray:
        """d slope / d moments (n, n), by central differences, one-sided at the edge of the domain."""
        scale = np.maximum(np.abs(u).max(initial=0.0), 1e-3)
        columns = []
        centre = self.packed(u, rate)
        for unit in np.eye(len(u)):
            ahead, behind = (self.packed(u + sign * step * scale * unit, rate) for sign in (1, -1))
            if np.isfinite(ahead).all() and np.isfinite(behind).all():
                columns.append((ahead - behind) / (2 * step * scale))
            elif np.isfinite(ahead).all():
                columns.append((ahead - centre) / (step * scale))
            else:
                columns.append((centre - behind) / (step * scale))
        return np.stack(columns, axis=1)
