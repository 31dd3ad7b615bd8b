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

from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from .held import directions
from .instance import Instance

_POWER_STEPS = 12


@dataclass(frozen=True)
class Weights:
    """W (d, s) and the O(1) numbers phi (P,) trained with it; also a gradient with respect to them."""

    W: np.ndarray
    phi: np.ndarray

    @property
    def size(self) -> float:
        """Root mean square of W's entries, or the largest |phi| where that is more."""
        return max(float(np.sqrt(np.mean(self.W**2))), float(np.max(np.abs(self.phi), initial=0.0)))

    def pack(self, unit: float = 1.0) -> np.ndarray:
        """Return all numbers in one array, phi times a unit."""
        return np.concatenate([self.W.ravel(), self.phi * unit])

    def unpack(self, vector: np.ndarray, unit: float = 1.0) -> Weights:
        """Return weights of the shape of these from what `pack` gives."""
        return Weights(vector[: self.W.size].reshape(self.W.shape), vector[self.W.size :] / unit)


@dataclass(frozen=True)
class Value:
    """Training loss per d in its two parts, and the gradient.

    The gradient in W is that of the risk itself, entries of order one; in phi it is that of the risk per d.

    Attributes:
        multipliers: strengths (s,) of the ridge that balances the radial part of the gradient under given norms; None
            of any other regulariser.
    """

    data: float
    penalty: float
    gradient: Weights
    multipliers: np.ndarray | None = None

    @property
    def training_loss(self) -> float:
        """Data and penalty, per d."""
        return self.data + self.penalty


def overlaps_of(instance: Instance, weights: Weights, V: np.ndarray | None = None) -> Overlaps:
    """q, m, theta of weights (docs/theory.md (2.1) to (2.3)); V (C, s, s) is nan where it is not given."""
    known, W, d = instance.coordinates, weights.W, instance.d
    scaled = known.gamma.T[:, :, None] * W  # (C, d, s)
    q = W.T @ scaled / d
    return Overlaps(
        q=(q + q.transpose(0, 2, 1)) / 2,
        V=np.full_like(q, np.nan) if V is None else V,
        m=known.tau.T @ W / d,
        theta=scaled.transpose(0, 2, 1) @ known.pi / d,
        phi=weights.phi,
    )


def on_sphere(problem: Problem, weights: Weights) -> Weights:
    """With every column scaled to its given norm; the weights themselves where none are given."""
    if not problem.regulariser.keeps_norms:
        return weights
    scale = problem.regulariser.norms * np.sqrt(len(weights.W)) / np.linalg.norm(weights.W, axis=0)
    return Weights(weights.W * scale, weights.phi)


class Risk:
    """sum_mu loss(X, Y, k, u) + sum_i r(w_i), per d, of an instance, as a function of where `placed` puts weights.

    Args:
        held: name of overlaps that are held at zero, see `held.entries`; None for none.

    Attributes:
        is_explicit: whether the loss depends on the fields alone, and not on q or on trained numbers of its own.
    """

    def __init__(self, instance: Instance, held: str | None = None) -> None:
        self.instance, self.problem = instance, instance.problem
        self._zeros = directions(instance, held)
        self.is_explicit = not (self.problem.trained or self.problem.solver.model.HOLDS_Q)

    def data(self, weights: Weights) -> tuple[float, Weights]:
        """The data term per d and its gradient."""
        instance, problem = self.instance, self.problem
        W, d, L, s = weights.W, instance.d, problem.tokens, problem.student_rank
        root, overlaps = np.sqrt(d), overlaps_of(instance, weights)
        total, gradient, along_means = 0.0, np.zeros((d, s)), np.zeros((problem.contexts, s))
        own_sums = self.no_own_sums()
        constants = instance.constants(overlaps)
        for span, tokens in instance.blocks():
            flat = tokens.reshape(-1, d)
            fields = (flat @ W / root).reshape(-1, L, s) + overlaps.m[instance.contexts[span]]
            slopes = np.empty_like(fields)
            for labels, own, x, known in instance.by_labels(fields, span):
                values, found = problem.solver.proximal.losses_at(x, known, constants[labels])
                total += float(values.sum())
                slopes[own] = found.reshape(-1, L, s)
                if not self.is_explicit:
                    own_sums += self.own_sums(labels, x, known, constants[labels])
            by_token = slopes.reshape(-1, s)
            gradient += flat.T @ by_token / root
            np.add.at(along_means, instance.contexts[span].ravel(), by_token)
        slope = gradient + instance.coordinates.tau @ along_means / d
        phi = own_sums[len(own_sums) - len(weights.phi) :] / d
        if problem.solver.model.HOLDS_Q:
            slope += np.einsum("iab,ib->ia", self.through_q(own_sums), W)
        return total / d, Weights(slope, phi)

    def penalty(self, weights: Weights) -> tuple[float, Weights]:
        """The regulariser's part per d, those of phi included, and its gradient (away from corners)."""
        problem, W = self.problem, weights.W
        ridge = np.array([number["ridge"] for number in problem.trained])
        own = float(np.sum(ridge * weights.phi**2)) / 2
        values, slope = problem.regulariser.values(W, self.instance.known_rows)
        return float(values.sum()) / self.instance.d + own, Weights(slope, ridge * weights.phi)

    def __call__(self, weights: Weights) -> Value:
        """Both parts with their gradient, under given norms those of the scaled columns; counts as one evaluation."""
        weights = self._without_held(weights)
        at = on_sphere(self.problem, weights)
        data, slope = self.data(at)
        penalty, other = self.penalty(at)
        gradient = self._without_held(Weights(slope.W + other.W, slope.phi + other.phi))
        if not self.problem.regulariser.keeps_norms:
            return Value(data, penalty, gradient)
        lengths = np.linalg.norm(weights.W, axis=0)
        units, scale = weights.W / lengths, self.problem.regulariser.norms * np.sqrt(self.instance.d)
        radial = np.sum(units * gradient.W, axis=0)
        along = Weights((gradient.W - units * radial) * scale / lengths, gradient.phi)
        return Value(data, penalty, along, -radial / scale)

    def placed(self, weights: Weights) -> Weights:
        """The nearest weights with the overlaps zero that are held there, and with the norms that are given."""
        return on_sphere(self.problem, self._without_held(weights))

    def held(self, weights: Weights) -> np.ndarray:
        """Orthonormal directions in which placed weights do not move, (k, d, s).

        Those of overlaps held at zero, and the radial one of every column whose norm is given.
        """
        if not self.problem.regulariser.keeps_norms:
            return self._zeros
        radial = np.einsum("ia,ab->aib", weights.W / np.linalg.norm(weights.W, axis=0), np.eye(weights.W.shape[1]))
        return np.concatenate([self._zeros, radial])

    def _without_held(self, weights: Weights) -> Weights:
        if not len(self._zeros):
            return weights
        along = np.einsum("kia,ia->k", self._zeros, weights.W)
        return Weights(weights.W - np.einsum("k,kia->ia", along, self._zeros), weights.phi)

    def curvature(self, at: Weights, data_only: bool = False) -> float:
        """Largest curvature of the risk near some weights, by power iteration on differences of its gradient."""
        direction = np.random.default_rng(3).standard_normal(at.W.shape)
        scale = max(at.size, 0.1)

        def gradient(W: np.ndarray) -> np.ndarray:
            weights = Weights(W, at.phi)
            return self.data(weights)[1].W if data_only else self(weights).gradient.W

        found = 1.0
        for _ in range(_POWER_STEPS):
            direction *= 1e-4 * scale * np.sqrt(direction.size) / np.linalg.norm(direction)
            image = (gradient(at.W + direction) - gradient(at.W - direction)) / 2
            if not image.any():  # piecewise linear
                break
            found = float(np.linalg.norm(image) / np.linalg.norm(direction))
            direction = image
        return max(found, 1e-6)

    def curvature_through_q(self, fields: np.ndarray, constants: Mapping[tuple[int, ...], np.ndarray]) -> np.ndarray:
        """Return what the q in the loss add to the Hessian in every row of W, (d, s, s), at the fields (n, L, s)."""
        s = self.problem.student_rank
        if not self.problem.solver.model.HOLDS_Q:
            return np.zeros((self.instance.d, s, s))
        chosen = self.instance.by_labels(fields)
        sums = [self.own_sums(labels, x, known, constants[labels]) for labels, _, x, known in chosen]
        return self.through_q(np.sum(sums, axis=0))

    def no_own_sums(self) -> np.ndarray:
        """Return zero derivatives of the loss in the q that it holds, a triangle a context, and in phi."""
        s, holds_q = self.problem.student_rank, self.problem.solver.model.HOLDS_Q
        return np.zeros(holds_q * self.problem.contexts * s * (s + 1) // 2 + len(self.problem.trained))

    def own_sums(self, labels: tuple[int, ...], x: np.ndarray, known: np.ndarray, constants: np.ndarray) -> np.ndarray:
        """Return these derivatives, summed over samples with the same labels at fields (N, L s)."""
        problem, out = self.problem, self.no_own_sums()
        own = problem.solver.proximal.own_gradients_at(x, known, constants).sum(axis=0)
        trained = len(problem.trained)
        if problem.solver.model.HOLDS_Q:
            by_token = own[: len(own) - trained].reshape(problem.tokens, -1)
            by_context = out[: len(out) - trained].reshape(problem.contexts, -1)
            np.add.at(by_context, problem.context_of(labels), by_token)
        out[len(out) - trained :] = own[len(own) - trained :]
        return out

    def through_q(self, own_sums: np.ndarray) -> np.ndarray:
        """Of the q held by the loss: 2 gamma_i / d times their symmetrised derivatives, a block a row, (d, s, s)."""
        s = self.problem.student_rank
        rows, columns = np.triu_indices(s)
        pairs = own_sums[: len(own_sums) - len(self.problem.trained)].reshape(-1, len(rows))
        matrices = np.zeros((len(pairs), s, s))
        matrices[:, rows, columns] += pairs / 2
        matrices[:, columns, rows] += pairs / 2
        return 2 * np.einsum("ic,cab->iab", self.instance.coordinates.gamma, matrices) / self.instance.d
