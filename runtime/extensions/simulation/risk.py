"""The risk at finite d and its gradient, from the generated loss and penalty.

Under given norms (docs/theory.md (6.5)) it is a function of the directions of the columns of W alone: whatever their
lengths, they are scaled to |w_a| = sigma_a sqrt(d), and the gradient is that of the composition,

    (sigma_a sqrt(d) / |w_a|) (grad_a - u_a u_a^T grad_a),   u_a = w_a / |w_a|,

on the sphere the tangential part of the gradient there. Where it vanishes what is left is radial,
grad_a = -lambda_a w_a, with the strength lambda_a = -w_a^T grad_a / (d sigma_a^2) of the ridge that keeps the norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...base.options import AlgorithmOptions
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from .constraints import constrained_weight_directions
from .instance import Instance


@dataclass(frozen=True)
class CurvatureOptions(AlgorithmOptions):
    """Options of the largest curvature of the risk.

    Attributes:
        power_iterations: steps of the power method; more give a better estimate and cost two gradients each.
    """

    power_iterations: int = 12


@dataclass(frozen=True)
class Weights:
    """The weights W, shape (d, s), and the numbers phi of order one trained with them; also a gradient in both."""

    W: np.ndarray
    phi: np.ndarray

    @property
    def typical_entry_size(self) -> float:
        """The root mean square of the weights W, or the largest modulus of a trained number if that is larger."""
        return max(float(np.sqrt(np.mean(self.W**2))), float(np.max(np.abs(self.phi), initial=0.0)))

    def to_vector(self, unit: float = 1.0) -> np.ndarray:
        """Return one vector with the weights W, then the numbers trained with them, multiplied by a unit."""
        return np.concatenate([self.W.ravel(), self.phi * unit])

    def from_vector(self, vector: np.ndarray, unit: float = 1.0) -> Weights:
        """Return weights W, and numbers trained with them, in this shape from a vector in the order of `to_vector`.

        Args:
            vector: vector of weights and trained numbers.
            unit: unit of the trained numbers in the vector.
        """
        return Weights(vector[: self.W.size].reshape(self.W.shape), vector[self.W.size :] / unit)


@dataclass(frozen=True)
class RiskValue:
    """The training loss per d and its gradient.

    Attributes:
        data: data term of the training loss, per d.
        penalty: penalty in the training loss, per d.
        gradient: gradient of the risk in the weights, and of the risk per d in numbers trained with them.
        multipliers: strengths (s,) of the ridge that balances the radial part of the gradient under given norms; None
            for other regularisers.
    """

    data: float
    penalty: float
    gradient: Weights
    multipliers: np.ndarray | None = None

    @property
    def training_loss(self) -> float:
        """The training loss per d: sum of losses over samples plus penalty."""
        return self.data + self.penalty


def overlaps_of_weights(instance: Instance, weights: Weights, V: np.ndarray | None = None) -> Overlaps:
    """Return the overlaps q, m and theta of W with itself, means and teacher, docs/theory.md (2.1) to (2.3).

    Args:
        instance: teacher and data drawn with one seed.
        weights: weights of the instance.
        V: response V to put into the result, shape ((token, cluster) pairs, s, s); nan by default.
    """
    known, W, d = instance.eigenbasis_coordinates, weights.W, instance.d
    scaled = known.gamma.T[:, :, None] * W  # (C, d, s)
    q = W.T @ scaled / d
    return Overlaps(
        q=(q + q.transpose(0, 2, 1)) / 2,
        V=np.full_like(q, np.nan) if V is None else V,
        m=known.tau.T @ W / d,
        theta=scaled.transpose(0, 2, 1) @ known.pi / d,
        phi=weights.phi,
    )


def scale_columns_to_norms(problem: Problem, weights: Weights) -> Weights:
    """Return weights with columns scaled to the norms that the problem prescribes; unchanged if it prescribes none.

    Args:
        problem: the problem.
        weights: weights to scale.
    """
    if not problem.regulariser.keeps_norms:
        return weights
    scale = problem.regulariser.fixed_column_norms * np.sqrt(len(weights.W)) / np.linalg.norm(weights.W, axis=0)
    return Weights(weights.W * scale, weights.phi)


class Risk:
    """The risk of an instance: the sum of losses of its samples plus the penalty of the weights, per d.

    Weights are first projected on the constraints.

    Args:
        instance: teacher and data drawn with one seed.
        constrained: name of overlaps that are constrained to zero, as theta; None for none.

    Attributes:
        is_explicit: whether the loss depends on the weights through the fields only, and not through overlaps q or
            numbers trained with them.
    """

    def __init__(self, instance: Instance, constrained: str | None = None) -> None:
        self.instance, self.problem = instance, instance.problem
        self._zeros = constrained_weight_directions(instance, constrained)
        self.is_explicit = not (self.problem.trained or self.problem.solver.model.HOLDS_Q)

    def data_term_and_gradient(self, weights: Weights) -> tuple[float, Weights]:
        """Return the sum of losses over samples, divided by d, and the gradient (in W without the factor 1/d)."""
        instance, problem = self.instance, self.problem
        W, d, L, s = weights.W, instance.d, problem.tokens, problem.student_rank
        root, overlaps = np.sqrt(d), overlaps_of_weights(instance, weights)
        total, gradient, along_means = 0.0, np.zeros((d, s)), np.zeros((problem.contexts, s))
        gradient_in_q_and_phi = self.zeros_like_gradient_in_q_and_phi()
        constants = instance.loss_constants(overlaps)
        for span, tokens in instance.iterate_blocks_of_samples():
            flat = tokens.reshape(-1, d)
            fields = (flat @ W / root).reshape(-1, L, s) + overlaps.m[instance.token_contexts[span]]
            slopes = np.empty_like(fields)
            for labels, own, x, known in instance.group_samples_by_labels(fields, span):
                values, found = problem.solver.proximal.losses_at(x, known, constants[labels])
                total += float(values.sum())
                slopes[own] = found.reshape(-1, L, s)
                if not self.is_explicit:
                    gradient_in_q_and_phi += self.gradient_in_q_and_phi(labels, x, known, constants[labels])
            by_token = slopes.reshape(-1, s)
            gradient += flat.T @ by_token / root
            np.add.at(along_means, instance.token_contexts[span].ravel(), by_token)
        slope = gradient + instance.eigenbasis_coordinates.tau @ along_means / d
        phi = gradient_in_q_and_phi[len(gradient_in_q_and_phi) - len(weights.phi) :] / d
        if problem.solver.model.HOLDS_Q:
            slope += np.einsum("iab,ib->ia", self.row_matrices_from_q_gradient(gradient_in_q_and_phi), W)
        return total / d, Weights(slope, phi)

    def penalty_term_and_gradient(self, weights: Weights) -> tuple[float, Weights]:
        """Return the penalty on weights and trained numbers, divided by d, and the gradient (in W without 1/d)."""
        problem, W = self.problem, weights.W
        ridge = np.array([number["ridge"] for number in problem.trained])
        own = float(np.sum(ridge * weights.phi**2)) / 2
        values, slope = problem.regulariser.penalties_and_gradients(W, self.instance.teacher_in_penalty)
        return float(values.sum()) / self.instance.d + own, Weights(slope, ridge * weights.phi)

    def __call__(self, weights: Weights) -> RiskValue:
        """Return the training loss per d and its gradient at weights, which are first projected on the constraints."""
        weights = self._remove_fixed_directions(weights)
        at = scale_columns_to_norms(self.problem, weights)
        data, slope = self.data_term_and_gradient(at)
        penalty, other = self.penalty_term_and_gradient(at)
        gradient = self._remove_fixed_directions(Weights(slope.W + other.W, slope.phi + other.phi))
        if not self.problem.regulariser.keeps_norms:
            return RiskValue(data, penalty, gradient)
        lengths = np.linalg.norm(weights.W, axis=0)
        units, scale = weights.W / lengths, self.problem.regulariser.fixed_column_norms * np.sqrt(self.instance.d)
        radial = np.sum(units * gradient.W, axis=0)
        along = Weights((gradient.W - units * radial) * scale / lengths, gradient.phi)
        return RiskValue(data, penalty, along, -radial / scale)

    def project_on_constraints(self, weights: Weights) -> Weights:
        """Return the nearest weights with prescribed column norms and zero overlaps where constrained."""
        return scale_columns_to_norms(self.problem, self._remove_fixed_directions(weights))

    def fixed_weight_directions(self, weights: Weights) -> np.ndarray:
        """Return orthonormal directions in the space of weights that constraints fix, shape (directions, d, s).

        These are the directions of overlaps constrained to zero, and the radial direction of a column with a given
        norm.
        """
        if not self.problem.regulariser.keeps_norms:
            return self._zeros
        radial = np.einsum("ia,ab->aib", weights.W / np.linalg.norm(weights.W, axis=0), np.eye(weights.W.shape[1]))
        return np.concatenate([self._zeros, radial])

    def _remove_fixed_directions(self, weights: Weights) -> Weights:
        if not len(self._zeros):
            return weights
        along = np.einsum("kia,ia->k", self._zeros, weights.W)
        return Weights(weights.W - np.einsum("k,kia->ia", along, self._zeros), weights.phi)

    def largest_curvature(self, at: Weights, data_only: bool = False) -> float:
        """Return the largest curvature of the risk near given weights, by power iteration on gradient differences.

        Args:
            at: weights near which the curvature is estimated.
            data_only: whether to leave out the penalty.
        """
        direction = np.random.default_rng(3).standard_normal(at.W.shape)
        scale = max(at.typical_entry_size, 0.1)

        def risk_gradient(W: np.ndarray) -> np.ndarray:
            weights = Weights(W, at.phi)
            return self.data_term_and_gradient(weights)[1].W if data_only else self(weights).gradient.W

        found = 1.0
        for _ in range(CurvatureOptions.current().power_iterations):
            direction *= 1e-4 * scale * np.sqrt(direction.size) / np.linalg.norm(direction)
            image = (risk_gradient(at.W + direction) - risk_gradient(at.W - direction)) / 2
            if not image.any():  # piecewise linear
                break
            found = float(np.linalg.norm(image) / np.linalg.norm(direction))
            direction = image
        return max(found, 1e-6)

    def hessian_blocks_due_to_q(
        self, fields: np.ndarray, constants: Mapping[tuple[int, ...], np.ndarray]
    ) -> np.ndarray:
        """Return the part of the Hessian of the training loss due to the dependence of the loss function on overlaps q.

        It has a block for every row of the weights, shape (d, s, s), and is zero if the loss does not depend on q.

        Args:
            fields: fields of the n samples, shape (n samples, L tokens, s columns).
            constants: constants of the loss, by assignment of cluster labels.
        """
        s = self.problem.student_rank
        if not self.problem.solver.model.HOLDS_Q:
            return np.zeros((self.instance.d, s, s))
        chosen = self.instance.group_samples_by_labels(fields)
        sums = [self.gradient_in_q_and_phi(labels, x, known, constants[labels]) for labels, _, x, known in chosen]
        return self.row_matrices_from_q_gradient(np.sum(sums, axis=0))

    def zeros_like_gradient_in_q_and_phi(self) -> np.ndarray:
        """Return zeros in the shape of the derivatives of the loss in overlaps q and in numbers trained with W."""
        s, holds_q = self.problem.student_rank, self.problem.solver.model.HOLDS_Q
        return np.zeros(holds_q * self.problem.contexts * s * (s + 1) // 2 + len(self.problem.trained))

    def gradient_in_q_and_phi(
        self, labels: tuple[int, ...], x: np.ndarray, known: np.ndarray, constants: np.ndarray
    ) -> np.ndarray:
        """Return the derivatives of the loss in overlaps q and numbers trained with W, summed over samples.

        Args:
            labels: cluster label of every token, the same for all these samples.
            x: fields of the samples, shape (samples, L s).
            known: functions of teacher fields and noise that the loss depends on, (samples, functions).
            constants: constants of the loss.
        """
        problem, out = self.problem, self.zeros_like_gradient_in_q_and_phi()
        own = problem.solver.proximal.own_gradients_at(x, known, constants).sum(axis=0)
        trained = len(problem.trained)
        if problem.solver.model.HOLDS_Q:
            by_token = own[: len(own) - trained].reshape(problem.tokens, -1)
            by_context = out[: len(out) - trained].reshape(problem.contexts, -1)
            np.add.at(by_context, problem.token_cluster_indices(labels), by_token)
        out[len(out) - trained :] = own[len(own) - trained :]
        return out

    def row_matrices_from_q_gradient(self, gradient_in_q_and_phi: np.ndarray) -> np.ndarray:
        """Return matrices (d, s, s) that map each row of W to its gradient of the loss through overlaps q.

        The argument, derivatives of the loss in q, is in the order of `gradient_in_q_and_phi`.
        """
        s = self.problem.student_rank
        rows, columns = np.triu_indices(s)
        pairs = gradient_in_q_and_phi[: len(gradient_in_q_and_phi) - len(self.problem.trained)].reshape(-1, len(rows))
        matrices = np.zeros((len(pairs), s, s))
        matrices[:, rows, columns] += pairs / 2
        matrices[:, columns, rows] += pairs / 2
        return 2 * np.einsum("ic,cab->iab", self.instance.eigenbasis_coordinates.gamma, matrices) / self.instance.d
