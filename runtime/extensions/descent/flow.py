"""The equations of motion of the moments: drift and noise of one-pass descent, gradient flow, batches of order d."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...base.errors import DomainError, InputError
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from .averages import AverageRule, SlopeAverages
from .state import Moments

_COVARIANCE_ROUNDING = 1e-14  # of eigenvalues of the fields' covariance, relative to the largest


def require_closed_dynamics(problem: Problem) -> None:
    """Raise InputError if the dynamics of the problem do not close, or its loss has no slope."""
    name = problem.solver.name
    problem.require_zero_temperature("descent follows the slope of the loss")
    if not problem.regulariser.is_ridge:
        raise InputError(
            "the equations of motion close for a ridge, which is linear in a row, not for the "
            f"{problem.regulariser.noun} of {name}; `saddleforge simulate` descends at finite d"
        )
    if problem.solver.model.LOSS_JUMPS:
        raise InputError(f"the loss of {name} jumps, and has no slope to descend")


@dataclass(frozen=True)
class Drift:
    """The drift of rows, dw = -(A w + b) times the rate (docs/theory.md (19.4)).

    Attributes:
        A: of every spectral atom, (A, s, s); b: the factor of (tau, pi), (A, s, C + t).
        K: of every context, (C, s, t), as of (19.3).
    """

    A: np.ndarray
    b: np.ndarray
    K: np.ndarray


def compute_drift(problem: Problem, overlaps: Overlaps, averages: SlopeAverages) -> Drift:
    """Return the drift from averages of the slope of the loss, by integration by parts.

    Args:
        problem: the problem.
        overlaps: the overlaps.
        averages: the averages at them.
    """
    law, (contexts, s, t, _) = problem.law, problem.sizes
    covariance = np.empty((contexts, s + t, s + t))
    covariance[:, :s, :s], covariance[:, :s, s:] = overlaps.q, overlaps.theta
    covariance[:, s:, :s], covariance[:, s:, s:] = np.swapaxes(overlaps.theta, 1, 2), law.rho_star
    with_both = np.concatenate([averages.with_fields, averages.with_teacher], axis=2)
    # If X is a function of Y only one combination of H and K is determined, and no other matters. Close to that others
    # matter little, but the inverse itself, multiplied out, would be wrong by its size.
    values, vectors = np.linalg.eigh(covariance)
    known = values > _COVARIANCE_ROUNDING * values[:, -1:]
    inverses = np.where(known, 1 / np.where(known, values, 1.0), 0.0)
    slopes = (with_both @ vectors * inverses[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    H, K = (np.ascontiguousarray(part) for part in (slopes[..., :s], slopes[..., s:]))
    A, b = np.empty((len(law.weights), s, s)), np.empty((len(law.weights), s, contexts + t))
    strengths = problem.regulariser.strengths
    problem.solver.flow.drift(law.gamma, strengths, averages.mean, H, K, averages.in_q, A, b)
    return Drift(A, b, K)


class Flow:
    """The equations of motion d moments / dt of a problem, by a rule for the averages and its generated equations.

    Args:
        problem: the problem.
        rule: rule for the averages.
        batch: samples of a step; infinity leaves the noise out.
    """

    def __init__(self, problem: Problem, rule: AverageRule, batch: float = 1.0) -> None:
        self.problem, self.rule, self.batch = problem, rule, batch
        self._own_ridge = np.array([number["ridge"] for number in problem.trained], float)

    def drift_and_averages(self, moments: Moments) -> tuple[Drift, SlopeAverages]:
        """Return the drift and the averages at moments.

        Raises:
            DomainError: no weights have these moments.
        """
        overlaps = moments.overlaps(self.problem)
        averages = self.rule(overlaps)
        return compute_drift(self.problem, overlaps, averages), averages

    def slope(self, moments: Moments, rate: float) -> Moments:
        """Return d moments / dt: rate times the drift, plus rate squared over the batch times the noise.

        See docs/theory.md (19.6), (19.7).

        Args:
            moments: the moments.
            rate: learning rate eta.
        """
        return self.slope_and_loss(moments, rate)[0]

    def slope_and_loss(self, moments: Moments, rate: float) -> tuple[Moments, float]:
        """Return d moments / dt and E[loss].

        Args:
            moments: the moments.
            rate: learning rate eta.
        """
        drift, averages = self.drift_and_averages(moments)
        law, found = self.problem.law, _empty_like(moments)
        known = law.gamma, law.gram, drift.A, averages.mean, drift.K, averages.square
        self.problem.solver.flow.slope(
            rate, self.batch, *known, *_contiguous_blocks(moments), found.S, found.T, found.P
        )
        return replace(found, phi=self.trained_slope(moments, averages, rate)), averages.loss

    def step(self, moments: Moments, rate: float, share: float) -> Moments:
        """Return the moments after one step with a batch of order d (docs/theory.md (19.10)).

        Args:
            moments: the moments.
            rate: learning rate over d.
            share: samples of the batch over d.
        """
        drift, averages = self.drift_and_averages(moments)
        law, found = self.problem.law, _empty_like(moments)
        known = law.gamma, law.gram, drift.A, drift.b, averages.mean, drift.K, averages.square
        self.problem.solver.flow.step(rate, share, *known, *_contiguous_blocks(moments), found.S, found.T, found.P)
        return replace(found, phi=moments.phi + self.trained_slope(moments, averages, rate))

    def trained_slope(self, moments: Moments, averages: SlopeAverages, rate: float) -> np.ndarray:
        """Return the slope of trained numbers phi (docs/theory.md (19.2)).

        Args:
            moments: the moments.
            averages: averages at them.
            rate: learning rate eta.
        """
        found = np.zeros(len(moments.phi))
        if len(found):
            self.problem.solver.flow.trained_slope(rate, averages.in_phi, self._own_ridge, moments.phi, found)
        return found

    def packed_slope(self, u: np.ndarray, rate: float) -> np.ndarray:
        """Return d moments / dt of packed moments; NaN outside the domain.

        Args:
            u: packed moments.
            rate: learning rate eta.
        """
        try:
            return self.slope(Moments.unpack(u, self.problem), rate).pack()
        except DomainError:
            return np.full_like(u, np.nan)

    def jacobian(self, u: np.ndarray, rate: float, step: float = 1e-5, along: np.ndarray | None = None) -> np.ndarray:
        """Return the Jacobian of d moments / dt by central differences, one-sided at the edge of the domain.

        Args:
            u: packed moments, (n,).
            rate: learning rate eta.
            step: of differences, relative to the moments.
            along: orthonormal columns (n, k) of directions; by default every moment.

        Returns:
            (n, n), or (n, k) along directions.
        """
        scale = np.maximum(np.abs(u).max(initial=0.0), 1e-3)
        columns = []
        centre = self.packed_slope(u, rate)
        for unit in np.eye(len(u)) if along is None else along.T:
            ahead, behind = (self.packed_slope(u + sign * step * scale * unit, rate) for sign in (1, -1))
            if np.isfinite(ahead).all() and np.isfinite(behind).all():
                columns.append((ahead - behind) / (2 * step * scale))
            elif np.isfinite(ahead).all():
                columns.append((ahead - centre) / (step * scale))
            else:
                columns.append((centre - behind) / (step * scale))
        return np.stack(columns, axis=1)


def _contiguous_blocks(moments: Moments) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    S, T, P = (np.ascontiguousarray(block, float) for block in (moments.S, moments.T, moments.P))
    return S, T, P


def _empty_like(moments: Moments) -> Moments:
    """Return moments of the same shapes, not initialised."""
    S, T, P = (np.empty(block.shape) for block in (moments.S, moments.T, moments.P))
    return Moments(S, T, P, np.zeros(0))
