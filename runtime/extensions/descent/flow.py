"""The equations of motion of the moments: drift and noise of one-pass descent, gradient flow, batches of order d."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...base.errors import DomainError, InputError
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
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
    if not problem.regulariser.is_ridge:
        raise InputError(
            "the equations of motion close for a ridge, which is linear in a row, not for the "
            f"{problem.regulariser.noun} of {name}; `saddleforge simulate` descends at finite d"
        )
    if problem.solver.model.LOSS_JUMPS:
        raise InputError(f"the loss of {name} jumps, and has no slope to descend")


@dataclass(frozen=True)
class Drift:
    """Of every row, dw = -(A w + b) times the rate (docs/theory.md (19.4)): per atom A (s, s) and b as what multiplies
    (tau, pi), (s, C + t); K (C, s, t) of every context, as of (19.3)."""

    A: np.ndarray
    b: np.ndarray
    K: np.ndarray


def drift_of(problem: Problem, overlaps: Overlaps, averages: SlopeAverages) -> Drift:
    """From averages of the slope of the loss, by integration by parts."""
    law, (contexts, s, t, _) = problem.law, problem.sizes
    covariance = np.empty((contexts, s + t, s + t))
    covariance[:, :s, :s], covariance[:, :s, s:] = overlaps.q, overlaps.theta
    covariance[:, s:, :s], covariance[:, s:, s:] = np.swapaxes(overlaps.theta, 1, 2), law.rho_star
    with_both = np.concatenate([averages.with_fields, averages.with_teacher], axis=2)
    # Where X is a function of Y only one combination of H and K is known, and no other counts. Next to that it counts
    # little, but the inverse itself, multiplied out, would be wrong by its size.
    values, vectors = np.linalg.eigh(covariance)
    known = values > _SINGULAR * values[:, -1:]
    inverses = np.where(known, 1 / np.where(known, values, 1.0), 0.0)
    slopes = (with_both @ vectors * inverses[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    H, K = (np.ascontiguousarray(part) for part in (slopes[..., :s], slopes[..., s:]))
    A, b = np.empty((len(law.weights), s, s)), np.empty((len(law.weights), s, contexts + t))
    strengths = problem.regulariser.strengths
    problem.solver.flow.drift(law.gamma, strengths, averages.mean, H, K, averages.in_q, A, b)
    return Drift(A, b, K)


class Flow:
    """d moments / dt of a problem by a rule for the averages, by its generated equations.

    Args:
        batch: sentences of a step; infinity leaves the noise out.
    """

    def __init__(self, problem: Problem, rule: AverageRule, batch: float = 1.0) -> None:
        self.problem, self.rule, self.batch = problem, rule, batch
        self._own_ridge = np.array([number["ridge"] for number in problem.trained], float)

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
        return self.moving(moments, rate)[0]

    def moving(self, moments: Moments, rate: float) -> tuple[Moments, float]:
        """`slope`, and E[loss]."""
        drift, averages = self.at(moments)
        law, found = self.problem.law, _like(moments)
        known = law.gamma, law.gram, drift.A, averages.mean, drift.K, averages.square
        self.problem.solver.flow.slope(rate, self.batch, *known, *_blocks(moments), found.S, found.T, found.P)
        return replace(found, phi=self.trained(moments, averages, rate)), averages.loss

    def step(self, moments: Moments, rate: float, share: float) -> Moments:
        """One step of rate d on the mean of share times d sentences (docs/theory.md (19.10))."""
        drift, averages = self.at(moments)
        law, found = self.problem.law, _like(moments)
        known = law.gamma, law.gram, drift.A, drift.b, averages.mean, drift.K, averages.square
        self.problem.solver.flow.step(rate, share, *known, *_blocks(moments), found.S, found.T, found.P)
        return replace(found, phi=moments.phi + self.trained(moments, averages, rate))

    def trained(self, moments: Moments, averages: SlopeAverages, rate: float) -> np.ndarray:
        """Of the numbers that are trained (docs/theory.md (19.2))."""
        found = np.zeros(len(moments.phi))
        if len(found):
            self.problem.solver.flow.trained_slope(rate, averages.in_phi, self._own_ridge, moments.phi, found)
        return found

    def packed(self, u: np.ndarray, rate: float) -> np.ndarray:
        """`slope` of packed moments; not a number outside of the domain."""
        try:
            return self.slope(Moments.unpack(u, self.problem), rate).pack()
        except DomainError:
            return np.full_like(u, np.nan)

    def jacobian(self, u: np.ndarray, rate: float, step: float = 1e-5, along: np.ndarray | None = None) -> np.ndarray:
        """d slope / d moments (n, n), by central differences, one-sided at the edge of the domain.

        Args:
            along: orthonormal columns (n, k) to take slopes along in place of every moment: (n, k) are returned.
        """
        scale = np.maximum(np.abs(u).max(initial=0.0), 1e-3)
        columns = []
        centre = self.packed(u, rate)
        for unit in np.eye(len(u)) if along is None else along.T:
            ahead, behind = (self.packed(u + sign * step * scale * unit, rate) for sign in (1, -1))
            if np.isfinite(ahead).all() and np.isfinite(behind).all():
                columns.append((ahead - behind) / (2 * step * scale))
            elif np.isfinite(ahead).all():
                columns.append((ahead - centre) / (step * scale))
            else:
                columns.append((centre - behind) / (step * scale))
        return np.stack(columns, axis=1)


def _blocks(moments: Moments) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    S, T, P = (np.ascontiguousarray(block, float) for block in (moments.S, moments.T, moments.P))
    return S, T, P


def _like(moments: Moments) -> Moments:
    """Room for as many."""
    S, T, P = (np.empty(block.shape) for block in (moments.S, moments.T, moments.P))
    return Moments(S, T, P, np.zeros(0))
