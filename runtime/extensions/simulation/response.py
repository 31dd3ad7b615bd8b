"""The linear response of a minimum: the Hessian of the risk, and leave-one-out variances of the fields.

With the curvatures D_mu of the loss at the fields of a minimum, R = (r'' + G)^(-1/2) of the rows of W and blocks E of
every row (the second derivative of the loss through q, less G),

    Hessian^(-1) = R M^(-1) R,   M = 1 + R (A^T D A + E) R,   S_mu = A_mu Hessian^(-1) A_mu^T

R vanishes at a corner of the penalty. Fixed directions, as the radial ones under given norms, have no response: a large
multiple of their projector is added to M. Without its own sample the field X_mu has the variance

    V_mu = (S_mu^(-1) - D_mu)^(-1)

whose average is docs/theory.md (2.4). It is positive definite if the other samples alone have a minimum there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...base.options import AlgorithmOptions
from .design import DesignMatrix, solve_positive_definite
from .instance import random_stream
from .method import TrainingResult
from .risk import Risk, RiskValue, Weights, overlaps_of_weights

DIRECT = 2000  # weights beyond which no matrix of their size is stored
_STREAM = 11  # stream of random numbers
_TINY = 1e-300  # avoids division by zero


@dataclass(frozen=True)
class ResponseOptions(AlgorithmOptions):
    """Options of the linear response of a minimum.

    Attributes:
        trace_probes: number of random vectors for a trace; the error falls as its inverse square root.
        cg_tolerance: relative residual of conjugate gradients.
        diagonal_shift: first shift of a Hessian that is not positive definite, relative to its trace over its size.
        shift_factor: ratio of successive shifts.
        fixed_curvature: curvature given to directions in which constraints fix the weights; larger fixes them better,
            but conditions the matrix worse.
        corner_variance: variance of the Moreau envelope that replaces the loss at its kinks, in units of the size of
            fields over that of slopes.
        singular_tolerance: smallest singular value for which the effect of leaving a sample out is computed exactly.
    """

    trace_probes: int = 8
    cg_tolerance: float = 1e-6
    diagonal_shift: float = 1e-8
    shift_factor: float = 10.0
    fixed_curvature: float = 1e6
    corner_variance: float = 1e-4
    singular_tolerance: float = 1e-12


class LinearResponse:
    """The linear response of a minimum of the risk to changes of single samples, and its Hessian.

    Attributes:
        fields: fields of the n samples, shape (n, L s).
        slopes: subgradients of the loss at them, shape (n, L s).
        curvatures: Hessians of the loss at them, shape (n, L s, L s).
        constants: constants of the loss, by assignment of cluster labels.
    """

    def __init__(self, risk: Risk, minimum: TrainingResult) -> None:
        self.risk, self.problem, self.design = risk, risk.problem, DesignMatrix(risk.instance)
        weights, value = minimum.weights, minimum.value
        self.shape = weights.W.shape
        instance, (n, L, s) = risk.instance, self.design.shape
        overlaps = overlaps_of_weights(instance, weights)
        self.constants = instance.loss_constants(overlaps)
        self.fields = np.ascontiguousarray(self.design.compute_fields(weights.W).reshape(n, L * s))
        every = np.arange(n)
        slopes = minimum.slopes
        self.slopes = (
            self.losses_and_gradients_of_samples(every, self.fields)[1] if slopes is None else slopes.reshape(n, L * s)
        )
        # At a corner the loss has the curvature of its envelope at a variance much smaller than any other.
        self._options = ResponseOptions.current()
        self._envelope_variance = self._options.corner_variance * float(
            np.linalg.norm(self.fields) / (np.linalg.norm(self.slopes) + _TINY)
        )
        self.curvatures = self.loss_hessians_of_samples(every, self.fields, self.slopes)
        self._root, self._blocks = self._preconditioner_and_hessian_blocks(weights, value)
        self._fixed = self._fixed_weight_directions(weights)
        self._inverse = self._invert_preconditioned_hessian() if weights.W.size <= DIRECT else None

    def losses_and_gradients_of_samples(self, samples: np.ndarray, fields: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the losses of chosen samples at given fields, and the gradients in these fields.

        Args:
            samples: indices of the samples, possibly repeated.
            fields: fields of these samples, shape (samples, L s).
        """
        values, slopes = np.empty(len(fields)), np.empty_like(fields)
        for labels, rows, x, known in self.risk.instance.group_samples_by_labels(fields, samples):
            values[rows], slopes[rows] = self.problem.solver.proximal.losses_at(x, known, self.constants[labels])
        return values, slopes

    def loss_hessians_of_samples(self, samples: np.ndarray, fields: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """Return the Hessians of the loss of samples in their fields, shape (samples, L s, L s).

        For losses with kinks they are those of the Moreau envelope at a small variance.

        Args:
            samples: indices of the samples.
            fields: fields of these samples, shape (samples, L s).
            slopes: subgradients of the loss at these fields, shape (samples, L s).
        """
        (_, L, s), channel = self.design.shape, self.problem.solver.proximal
        out = np.empty((*fields.shape, L * s))
        if channel.CORNERS:
            eye = np.broadcast_to(np.eye(s), (L, s, s))
            omega = fields + self._envelope_variance * slopes
            for labels, chosen, at, known in self.risk.instance.group_samples_by_labels(omega, samples):
                c = self.constants[labels]
                out[chosen] = -channel.proximal_at(
                    at, eye / self._envelope_variance, self._envelope_variance * eye, known, c, 0
                )[1]
            return (out + out.transpose(0, 2, 1)) / 2
        rows, columns = np.triu_indices(L * s)
        upper = np.empty((len(fields), len(rows)))
        for labels, chosen, x, known in self.risk.instance.group_samples_by_labels(fields, samples):
            pairs, c = zip(x.tolist(), known.tolist(), strict=True), self.constants[labels]
            upper[chosen] = np.array([channel.loss_hessian(*at, *k, c) for at, k in pairs]).reshape(len(x), len(rows))
        out[:, rows, columns] = out[:, columns, rows] = upper
        return out

    def _fixed_weight_directions(self, minimum: Weights) -> np.ndarray:
        """Return orthonormal directions in which constraints fix the weights, in coordinates of the preconditioner."""
        fixed = self.risk.fixed_weight_directions(minimum)
        if self._root is None or not len(fixed):
            return fixed
        flat = np.array([self._apply_preconditioner(direction).ravel() for direction in fixed])
        return np.ascontiguousarray(np.linalg.qr(flat.T)[0].T).reshape(fixed.shape)

    def _preconditioner_and_hessian_blocks(
        self, minimum: Weights, value: RiskValue
    ) -> tuple[np.ndarray | None, np.ndarray]:
        """Return the preconditioner and the block-diagonal part of the Hessian, an (s, s) matrix per row of W.

        The preconditioner is None where it is the identity. The second part is due to the penalty, and to overlaps q in
        the loss, less the inverse square of the preconditioner.
        """
        regulariser, s = self.problem.regulariser, self.shape[1]
        q_blocks = self.risk.hessian_blocks_due_to_q(self.fields, self.constants)
        blocks = q_blocks - np.eye(s)
        if regulariser.is_quadratic:
            strengths = regulariser.ridge_strengths if value.multipliers is None else value.multipliers
            return None, blocks + np.diag(strengths)
        data = self.design.apply_design_transpose(self.slopes.reshape(self.design.shape)) + np.einsum(
            "iab,ib->ia", q_blocks, minimum.W
        )
        _, responses = regulariser.proximal_map(minimum.W - data, 1.0, self.risk.instance.teacher_in_penalty)
        values, vectors = np.linalg.eigh(responses)
        return np.einsum("iab,ib,icb->iac", vectors, np.sqrt(np.maximum(values, 0.0)), vectors), blocks

    def _apply_preconditioner(self, W: np.ndarray) -> np.ndarray:
        return W if self._root is None else np.einsum("iab,ib->ia", self._root, W)

    def _apply_preconditioned_hessian(self, W: np.ndarray, curvatures: np.ndarray) -> np.ndarray:
        """Return the preconditioned Hessian of the training loss times weights, for given curvatures of samples."""
        at = self._apply_preconditioner(W)
        fields = self.design.compute_fields(at)
        pulled = np.einsum("nab,nb->na", curvatures, fields.reshape(len(fields), -1)).reshape(fields.shape)
        out = W + self._apply_preconditioner(
            self.design.apply_design_transpose(pulled) + np.einsum("iab,ib->ia", self._blocks, at)
        )
        return out + self._options.fixed_curvature * np.einsum(
            "k,kia->ia", np.einsum("kia,ia->k", self._fixed, W), self._fixed
        )

    def _invert_preconditioned_hessian(self) -> np.ndarray:
        """Return the inverse of the preconditioned Hessian of the risk, shape (d s, d s)."""
        (d, s), size = self.shape, self.shape[0] * self.shape[1]
        total = np.zeros((size, size))
        self.design.add_weighted_gram_matrix(total, self.curvatures)
        blocks = total.reshape(d, s, d, s)
        blocks[np.arange(d), :, np.arange(d), :] += self._blocks
        if self._root is not None:
            blocks = np.einsum("iab,ibjc,jcd->iajd", self._root, blocks, self._root, optimize=True)
            total = blocks.reshape(size, size)
        fixed = self._fixed.reshape(-1, size)
        total += self._options.fixed_curvature * fixed.T @ fixed
        total[np.diag_indices(size)] += 1
        shift = self._options.diagonal_shift * abs(np.trace(total)) / size
        return solve_positive_definite(total.copy, np.eye(size), shift, self._options.shift_factor)

    def apply_inverse_hessian(self, right: np.ndarray, curvatures: np.ndarray) -> np.ndarray:
        """Return the inverse Hessian of the risk applied to a right-hand side of shape (d inputs, s columns).

        Args:
            right: right-hand side.
            curvatures: Hessians of the loss of the n samples, (n, L s, L s), possibly changed for a few samples.
        """
        from scipy.sparse.linalg import LinearOperator, cg

        def make_flat_linear_operator(function: Callable[[np.ndarray], np.ndarray]) -> LinearOperator:
            size = right.size
            return LinearOperator((size, size), lambda x: function(x.reshape(self.shape)).ravel(), dtype=float)

        first = None
        if self._inverse is not None:
            factor = self._inverse
            first = make_flat_linear_operator(lambda W: factor @ W.ravel())
        system = make_flat_linear_operator(lambda W: self._apply_preconditioned_hessian(W, curvatures))
        found, _ = cg(
            system, self._apply_preconditioner(right).ravel(), rtol=self._options.cg_tolerance, M=first, maxiter=200
        )
        return self._apply_preconditioner(found.reshape(self.shape))

    def leave_one_out_variances(self) -> np.ndarray:
        """Return the response V of each sample's fields in the minimum without that sample, (n, L s, L s).

        With too many weights for exact algebra, every sample gets the mean response of its (token, cluster) pairs, with
        all samples.
        """
        if self._inverse is None:
            return self._average_field_variances()
        (n, L, s), (d, _) = self.design.shape, self.shape
        inverse = self._inverse.reshape(d, s, d, s)
        if self._root is not None:
            inverse = np.einsum("iab,ibjc,jcd->iajd", self._root, inverse, self._root, optimize=True)
        S = np.empty((n, L * s, L * s))
        columns = [np.ascontiguousarray(inverse[:, a].reshape(d, d * s)) for a in range(s)]
        for span, tokens in self.risk.instance.iterate_blocks_of_samples():
            rows = self.design.design_rows_of_samples(span, tokens)
            count = len(rows)
            for a, column in enumerate(columns):
                half = (rows.reshape(-1, d) @ column).reshape(count, L, d, s)
                S[span].reshape(count, L, s, L, s)[:, :, a] = np.einsum("nlib,nki->nlkb", half, rows, optimize=True)
        # At a vertex, as that of a linear programme, the others have no minimum without a sample at a corner.
        left_out, found = np.eye(L * s) - S @ self.curvatures, np.zeros_like(S)
        regular = np.linalg.svd(left_out, compute_uv=False)[:, -1] > self._options.singular_tolerance
        found[regular] = np.linalg.solve(left_out[regular], S[regular])
        found = (found + found.transpose(0, 2, 1)) / 2
        regular &= np.linalg.eigvalsh(found)[:, 0] > 0
        if not regular.all():
            found[~regular] = self._average_field_variances()[~regular]
        return found

    def _average_field_variances(self) -> np.ndarray:
        """Return the response V of each sample's (token, cluster) pairs, by stochastic estimates of a trace."""
        instance, (d, s) = self.risk.instance, self.shape
        n, L, _ = self.design.shape
        signs = random_stream(instance.seed, _STREAM).choice((-1.0, 1.0), (self._options.trace_probes, d))
        contexts = np.zeros((self.problem.contexts, s, s))
        for sign in signs:
            for b in range(s):
                right = np.zeros(self.shape)
                right[:, b] = sign
                answer = self.apply_inverse_hessian(right, self.curvatures)
                contexts[:, :, b] += np.einsum("ic,i,ia->ca", instance.eigenbasis_coordinates.gamma, sign, answer)
        contexts = (contexts + contexts.transpose(0, 2, 1)) / (2 * d * len(signs))
        out = np.zeros((n, L, s, L, s))
        tokens = np.arange(L)
        out[:, tokens, :, tokens, :] = contexts[instance.token_contexts].transpose(1, 0, 2, 3)
        return out.reshape(n, L * s, L * s)
