"""The equations of motion of the second moments of the weights, for one-pass descent and gradient flow."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...base.errors import DomainError, InputError
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from .averages import GradientAverageRule, LossGradientAverages
from .state import Moments

_COVARIANCE_ROUNDING = 1e-14  # rounding of eigenvalues of the fields' covariance, relative to the largest


def require_closed_dynamics(problem: Problem) -> None:
    """Raise InputError if gradient descent has no closed equations of motion, or the loss of a problem no gradient."""
    name = problem.solver.name
    problem.require_zero_temperature("one-pass gradient descent is defined")
    if not problem.regulariser.is_ridge:
        raise InputError(
            f"descent has closed equations for a ridge penalty, and {name} has another: its "
            f"{problem.regulariser.noun}. `saddleforge simulate` descends at finite d"
        )
    if problem.solver.model.LOSS_JUMPS:
        raise InputError(f"the loss of {name} is discontinuous, so that gradient descent is not defined for it")


@dataclass(frozen=True)
class WeightDrift:
    """The mean motion of a row w of the weights: dw/dt = -rate (A w + b z), z the rows of means and teacher.

    Attributes:
        A: matrix for every atom of the spectral distribution, shape (atoms, s, s).
        b: coefficients of means and teacher, shape (atoms, s, pairs + t); pairs are (token, cluster) pairs.
        K: mean derivative of the loss gradient in the teacher fields, shape (pairs, s, t); docs/theory.md (19.3).
    """

    A: np.ndarray
    b: np.ndarray
    K: np.ndarray


def compute_weight_drift(problem: Problem, overlaps: Overlaps, averages: LossGradientAverages) -> WeightDrift:
    """Return the mean motion of the weights from averages of the loss gradient, by Gaussian integration by parts.

    Args:
        problem: the problem.
        overlaps: overlaps of the weights.
        averages: averages of the loss gradient at these overlaps.
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
    strengths = problem.regulariser.ridge_strengths
    problem.solver.one_pass_descent_equations.drift(law.gamma, strengths, averages.mean, H, K, averages.in_q, A, b)
    return WeightDrift(A, b, K)


class EquationsOfMotion:
    """The equations of motion of the second moments of the weights under one-pass descent.

    Args:
        problem: the problem.
        rule: quadrature rule for averages of the loss gradient.
        batch: samples per step; with infinity the gradients have no noise.
    """

    def __init__(self, problem: Problem, rule: GradientAverageRule, batch: float = 1.0) -> None:
        self.problem, self.rule, self.batch = problem, rule, batch
        self._own_ridge = np.array([number["ridge"] for number in problem.trained], float)

    def weight_drift_and_averages(self, moments: Moments) -> tuple[WeightDrift, LossGradientAverages]:
        """Return the mean motion of weights with given moments, and the averages of the loss gradient it follows from.

        Raises:
            DomainError: no weights have these moments.
        """
        overlaps = moments.overlaps(self.problem)
        averages = self.rule(overlaps)
        return compute_weight_drift(self.problem, overlaps, averages), averages

    def moment_derivatives(self, moments: Moments, rate: float) -> Moments:
        """Return the time derivatives of the moments of the weights (docs/theory.md (19.6), (19.7)).

        Args:
            moments: moments of the weights.
            rate: learning rate.
        """
        return self.moment_derivatives_and_loss(moments, rate)[0]

    def moment_derivatives_and_loss(self, moments: Moments, rate: float) -> tuple[Moments, float]:
        """Return the time derivatives of the moments of the weights, and the mean loss.

        Args:
            moments: moments of the weights.
            rate: learning rate.
        """
        drift, averages = self.weight_drift_and_averages(moments)
        law, found = self.problem.law, _uninitialised_moments_like(moments)
        known = law.gamma, law.gram, drift.A, averages.mean, drift.K, averages.square
        self.problem.solver.one_pass_descent_equations.slope(
            rate, self.batch, *known, *_contiguous_moment_blocks(moments), found.S, found.T, found.P
        )
        return replace(found, phi=self.trained_number_derivatives(moments, averages, rate)), averages.loss

    def moments_after_step(self, moments: Moments, rate: float, share: float) -> Moments:
        """Return the moments of the weights after one step, for batches of order d samples (docs/theory.md (19.10)).

        Args:
            moments: moments of the weights before the step.
            rate: learning rate divided by d.
            share: samples per batch divided by d.
        """
        drift, averages = self.weight_drift_and_averages(moments)
        law, found = self.problem.law, _uninitialised_moments_like(moments)
        known = law.gamma, law.gram, drift.A, drift.b, averages.mean, drift.K, averages.square
        self.problem.solver.one_pass_descent_equations.step(
            rate, share, *known, *_contiguous_moment_blocks(moments), found.S, found.T, found.P
        )
        return replace(found, phi=moments.phi + self.trained_number_derivatives(moments, averages, rate))

    def trained_number_derivatives(self, moments: Moments, averages: LossGradientAverages, rate: float) -> np.ndarray:
        """Return the time derivatives of the numbers that are trained with the weights (docs/theory.md (19.2)).

        Args:
            moments: moments of the weights, with the trained numbers.
            averages: averages of the loss gradient at these moments.
            rate: learning rate.
        """
        found = np.zeros(len(moments.phi))
        if len(found):
            self.problem.solver.one_pass_descent_equations.trained_slope(
                rate, averages.in_phi, self._own_ridge, moments.phi, found
            )
        return found

    def packed_moment_derivatives(self, u: np.ndarray, rate: float) -> np.ndarray:
        """Return the time derivatives of packed moments; NaN for moments that no weights can have.

        Args:
            u: packed moments.
            rate: learning rate.
        """
        try:
            return self.moment_derivatives(Moments.unpack(u, self.problem), rate).pack()
        except DomainError:
            return np.full_like(u, np.nan)

    def jacobian(self, u: np.ndarray, rate: float, step: float = 1e-5, along: np.ndarray | None = None) -> np.ndarray:
        """Return the Jacobian of the time derivatives of the moments, by central differences.

        The differences are one-sided next to moments that no weights can have.

        Args:
            u: packed moments.
            rate: learning rate.
            step: step of the differences, relative to the moments.
            along: orthonormal directions as columns; by default every packed moment is a direction.

        Returns:
            A matrix with a row for every packed moment and a column for every direction.
        """
        scale = np.maximum(np.abs(u).max(initial=0.0), 1e-3)
        columns = []
        centre = self.packed_moment_derivatives(u, rate)
        for unit in np.eye(len(u)) if along is None else along.T:
            ahead, behind = (self.packed_moment_derivatives(u + sign * step * scale * unit, rate) for sign in (1, -1))
            if np.isfinite(ahead).all() and np.isfinite(behind).all():
                columns.append((ahead - behind) / (2 * step * scale))
            elif np.isfinite(ahead).all():
                columns.append((ahead - centre) / (step * scale))
            else:
                columns.append((centre - behind) / (step * scale))
        return np.stack(columns, axis=1)


def _contiguous_moment_blocks(moments: Moments) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    S, T, P = (np.ascontiguousarray(block, float) for block in (moments.S, moments.T, moments.P))
    return S, T, P


def _uninitialised_moments_like(moments: Moments) -> Moments:
    """Return moments of the same shapes with undefined values, and without trained numbers."""
    S, T, P = (np.empty(block.shape) for block in (moments.S, moments.T, moments.P))
    return Moments(S, T, P, np.zeros(0))
