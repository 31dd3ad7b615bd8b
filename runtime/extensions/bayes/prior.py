"""Averages over a row of the teacher: its posterior mean given its field, and the log evidence of the field.

The learner is given the covariance eigenvalues gamma and the cluster means tau of every input dimension: spectral atoms
with equal gamma form one mixture, and atoms with different gamma are distinguished.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...base.errors import InputError, NotConvergedError
from ...base.options import AlgorithmOptions
from ...channel.nodes import gauss_hermite, midpoint_rule, tensor_product_rule
from ...problems.problem import Problem
from .averages import symmetric_matrix_sqrt

_ROUNDING = 1e-10  # of entries of Gram matrices, absolute: below it rows count as equal, or as independent of the means


@dataclass(frozen=True)
class PriorOptions(AlgorithmOptions):
    """Options of averages over a teacher row and its field (a noisy Gaussian observation of the row).

    Attributes:
        reach: range of the field of a row, in standard deviations, that is integrated over.
        start_points: initial number of points of an axis.
        refinement_factor: ratio of the numbers of points after and before a refinement.
        max_points: number of points of an axis above which an average fails.
        max_node_spacing: spacing of nodes in standard deviations of the noise of a field; smaller costs more points.
    """

    reach: float = 9.0
    start_points: int = 32
    refinement_factor: float = 1.5
    max_points: int = 20_000
    max_node_spacing: float = 2.0


@dataclass(frozen=True)
class _EigenvalueGroup:
    """A group of input dimensions with equal covariance eigenvalues, which the learner cannot distinguish.

    The teacher's row in such a dimension, given the cluster means, is a mixture of Gaussian components.

    Attributes:
        weight: fraction of all input dimensions.
        gamma: covariance eigenvalue for each (token, cluster) pair, (pairs,).
        shares: probabilities of the components, (components,).
        means: means of the components, (components, t).
        factors: square roots of the covariances of the components, (components, t, t).
        known: factor of the part of the row that the cluster means determine, (t, t); zero for several components.
    """

    weight: float
    gamma: np.ndarray
    shares: np.ndarray
    means: np.ndarray
    factors: np.ndarray
    known: np.ndarray

    @property
    def is_gaussian(self) -> bool:
        return len(self.shares) == 1

    def precision_of_row_field(self, hats: np.ndarray) -> np.ndarray:
        """Return the precision matrix (t, t) of the effective field of a teacher row: that of its Gaussian observation.

        `hats` are the conjugates of the overlaps q, a (t, t) matrix of teacher columns for each (token, cluster) pair.
        """
        return np.einsum("c,cij->ij", self.gamma, hats)


class TeacherRowPrior:
    """The prior law of a teacher row, with averages over its posterior."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.count = PriorOptions.current().start_points

    @cached_property
    def eigenvalue_groups(self) -> list[_EigenvalueGroup]:
        """The groups of input dimensions with equal covariance eigenvalues, one for each distinct set of these.

        Raises:
            InputError: the teacher's rows are not Gaussian and depend on the cluster means.
        """
        law = self.problem.law
        contexts, t = law.gamma.shape[1], self.problem.teacher_rank
        groups = []
        distinct, which = np.unique(law.gamma, axis=0, return_inverse=True)
        for number, gamma in enumerate(distinct):
            atoms = np.flatnonzero((which.ravel() == number) & (law.weights > 0))
            if not len(atoms):
                continue
            weights, grams = law.weights[atoms], law.gram[atoms]
            teacher_grams = grams[:, contexts:, contexts:]
            cross = grams[:, contexts:, :contexts]
            is_single_component = np.abs(grams - grams[0]).max() < _ROUNDING
            depends_on_means = np.abs(cross).max() > _ROUNDING
            known = np.zeros((t, t))
            if law.rows is not None:
                shares, means = law.rows
                factors = np.zeros((len(shares), t, t))
            elif is_single_component:
                explained = cross[0] @ np.linalg.pinv(grams[0, :contexts, :contexts], hermitian=True) @ cross[0].T
                shares, means = np.ones(1), np.zeros((1, t))
                factors = symmetric_matrix_sqrt(teacher_grams[0] - explained)[None]
                known = symmetric_matrix_sqrt(explained)
            else:
                shares, means = weights / weights.sum(), np.zeros((len(atoms), t))
                factors = symmetric_matrix_sqrt(teacher_grams)
            varied = np.abs(grams[:, :contexts, :contexts] - grams[0, :contexts, :contexts]).max() > _ROUNDING
            if (not is_single_component and varied) or (
                depends_on_means and (not is_single_component or law.rows is not None)
            ):
                raise InputError(
                    "Bayes-optimal inference with teacher rows that are not Gaussian is implemented only for rows "
                    "independent of the cluster means"
                )
            groups.append(_EigenvalueGroup(float(weights.sum()), gamma, shares, means, factors, known))
        return groups

    def _posterior_moments_of_row(self, group: _EigenvalueGroup, hats: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the posterior mean and covariance of a teacher row at each quadrature node of its noisy field.

        Returns:
            Weights and log evidences, (nodes,), posterior means, (nodes, t), and covariances, (nodes, t, t).
        """
        Q, t = group.precision_of_row_field(hats), hats.shape[1]
        if group.is_gaussian:  # quadratic in the fields: three nodes an axis are exact
            nodes, weights = tensor_product_rule([gauss_hermite(3)] * (2 * t))
            means = nodes[:, :t] @ group.known.T
            width = symmetric_matrix_sqrt(Q @ group.factors[0] @ group.factors[0].T @ Q + Q)
            fields, means = means @ Q + nodes[:, t:] @ width, means[:, None, :]
        else:
            nodes, weights = tensor_product_rule([midpoint_rule(self.count, PriorOptions.current().reach)] * t)
            widths = [symmetric_matrix_sqrt(Q @ factor @ factor.T @ Q + Q) for factor in group.factors]
            fields = np.concatenate([Q @ mean + nodes @ width for mean, width in zip(group.means, widths, strict=True)])
            weights = np.concatenate([share * weights for share in group.shares])
            means = np.broadcast_to(group.means, (len(fields), *group.means.shape))
        return weights, *self.problem.solver.bayes_functions.rows_at(
            np.ascontiguousarray(fields), group.shares, Q, np.ascontiguousarray(means), group.factors
        )

    def overlaps_and_log_partition(self, hats: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the overlaps q of posterior mean and teacher, and the mean log evidence of a teacher row.

        `hats` are the conjugates of q, in its shape ((token, cluster) pairs, t, t).
        """
        overlaps, log_integral = np.zeros_like(hats), 0.0
        for group in self.eigenvalue_groups:
            weights, values, moments, _ = self._posterior_moments_of_row(group, hats)
            outer = np.einsum("n,ni,nj->ij", weights, moments, moments)
            overlaps += group.weight * group.gamma[:, None, None] * outer
            log_integral += group.weight * float(weights @ values)
        return overlaps, log_integral

    def posterior_overlaps(self, hats: np.ndarray) -> np.ndarray:
        """Return the overlaps q of the posterior mean with the teacher that follow from the conjugates of q."""
        return self.overlaps_and_log_partition(hats)[0]

    def overlap_changes_from_conjugates(self, hats: np.ndarray, changes: np.ndarray) -> np.ndarray:
        """Return first-order changes of the overlaps q due to changes of their conjugates, docs/theory.md (13.10).

        Args:
            hats: conjugates of q, shape ((token, cluster) pairs, t, t).
            changes: changes of the conjugates, shape (changes, pairs, t, t).
        """
        out = np.zeros_like(changes)
        for group in self.eigenvalue_groups:
            weights, _, _, spreads = self._posterior_moments_of_row(group, hats)
            moved = np.einsum("c,kcij->kij", group.gamma, changes)
            squares = np.einsum("n,nai,nbj->abij", weights, spreads, spreads, optimize=True)
            out += group.weight * group.gamma[:, None, None] * np.einsum("abij,kij->kab", squares, moved)[:, None]
        return out

    def refine_quadrature(self, hats: np.ndarray, tolerance: float) -> float:
        """Refine the quadrature over the field of a teacher row until averages converge; return their last change.

        Args:
            hats: conjugates of the overlaps q, a (t, t) matrix of teacher columns for each (token, cluster) pair.
            tolerance: largest allowed change by a finer rule of the log evidence, and of q relative to full overlap.

        Raises:
            NotConvergedError: the rule would need too many points.
        """
        options = PriorOptions.current()
        if all(group.is_gaussian for group in self.eigenvalue_groups):
            return 0.0
        scale = np.abs(self.problem.law.rho_star).max()
        self._refine_nodes_of_wide_components(hats)
        before = self.overlaps_and_log_partition(hats)
        while True:
            count, self.count = self.count, int(self.count * options.refinement_factor)
            after = self.overlaps_and_log_partition(hats)
            change = max(np.abs(after[0] - before[0]).max() / scale, abs(after[1] - before[1]))
            if change < tolerance:
                self.count = count
                return float(change)
            if self.count > options.max_points:
                raise NotConvergedError(
                    f"averages over a teacher row need more than {options.max_points} points per axis; "
                    "allow larger error bars (--accuracy)"
                )
            before = after

    def _refine_nodes_of_wide_components(self, hats: np.ndarray) -> None:
        """Refine the quadrature of a teacher row with several Gaussian components until it resolves the widest one.

        With coarser nodes each node seems to identify the component: coarse rules agree with each other but are wrong.
        """
        options = PriorOptions.current()
        for group in self.eigenvalue_groups:
            Q = group.precision_of_row_field(hats)
            widest = max(float(np.linalg.eigvalsh(factor.T @ Q @ factor).max()) for factor in group.factors)
            if not group.is_gaussian:
                span = 2 * options.reach * np.sqrt(1 + max(widest, 0.0))
                self.count = max(self.count, int(np.ceil(span / options.max_node_spacing)))

    @cached_property
    def information_dimension(self) -> float:
        """The information dimension of the prior: the mean number of continuous degrees of freedom of a teacher row."""
        return sum(
            group.weight * share * np.linalg.matrix_rank(factor, tol=1e-10)
            for group in self.eigenvalue_groups
            for share, factor in zip(group.shares, group.factors, strict=True)
        )

    @cached_property
    def row_entropy(self) -> float:
        """The entropy in nats of the prior of a teacher row that takes few values."""
        return -sum(group.weight * float(group.shares @ np.log(group.shares)) for group in self.eigenvalue_groups)
