"""Averages over a row of the teacher: the posterior mean given its field, and log Z_w (derive/theory/bayes.py).

A learner knows the eigenvalues gamma and the mean coordinates tau of a coordinate, so that spectral atoms with the same
gamma are one mixture to it, and atoms with different gamma are told apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...base.errors import InputError, NotConvergedError
from ...channel.nodes import gauss_hermite, midpoints, tensor
from ...problems.problem import Problem
from .averages import root

_REACH, START_POINTS, _GROWTH = 9.0, 32, 1.5
_MOST_POINTS = 20_000
_TOLERANCE = 1e-10
_WIDEST = 2.0  # spacing of nodes in standard deviations of the noise of a field


@dataclass(frozen=True)
class _Group:
    """Coordinates that look alike to the learner.

    Attributes:
        weight: their share; gamma: (C,).
        shares, means, factors: components of the law of a row given tau, (K,), (K, t) and (K, t, t).
        known: factor of the part of the mean that tau tells, (t, t); zero unless there is one Gaussian component.
    """

    weight: float
    gamma: np.ndarray
    shares: np.ndarray
    means: np.ndarray
    factors: np.ndarray
    known: np.ndarray

    @property
    def gaussian(self) -> bool:
        return len(self.shares) == 1

    def precision(self, hats: np.ndarray) -> np.ndarray:
        """Of the field of a row, (t, t), from q^, (C, t, t)."""
        return np.einsum("c,cij->ij", self.gamma, hats)


class Prior:
    """The law of a teacher row as its posterior sees it."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.count = START_POINTS

    @cached_property
    def groups(self) -> list[_Group]:
        """One for each distinct set of eigenvalues.

        Raises:
            InputError: a mixture of rows that depends on the means.
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
            alike = np.abs(grams - grams[0]).max() < _TOLERANCE
            told = np.abs(cross).max() > _TOLERANCE
            known = np.zeros((t, t))
            if law.rows is not None:
                shares, means = law.rows
                factors = np.zeros((len(shares), t, t))
            elif alike:
                explained = cross[0] @ np.linalg.pinv(grams[0, :contexts, :contexts], hermitian=True) @ cross[0].T
                shares, means, factors = np.ones(1), np.zeros((1, t)), root(teacher_grams[0] - explained)[None]
                known = root(explained)
            else:
                shares, means, factors = weights / weights.sum(), np.zeros((len(atoms), t)), root(teacher_grams)
            varied = np.abs(grams[:, :contexts, :contexts] - grams[0, :contexts, :contexts]).max() > _TOLERANCE
            if (not alike and varied) or (told and (not alike or law.rows is not None)):
                raise InputError(
                    "Bayes-optimal inference of rows that are not Gaussian needs rows independent of the means"
                )
            groups.append(_Group(float(weights.sum()), gamma, shares, means, factors, known))
        return groups

    def _posterior(self, group: _Group, hats: np.ndarray) -> tuple[np.ndarray, ...]:
        """Weights (N,), log Z_w (N,), posterior means (N, t) and covariances (N, t, t) at the fields of a group."""
        Q, t = group.precision(hats), hats.shape[1]
        if group.gaussian:  # quadratic in the fields: three nodes an axis are exact
            nodes, weights = tensor([gauss_hermite(3)] * (2 * t))
            means = nodes[:, :t] @ group.known.T
            width = root(Q @ group.factors[0] @ group.factors[0].T @ Q + Q)
            fields, means = means @ Q + nodes[:, t:] @ width, means[:, None, :]
        else:
            nodes, weights = tensor([midpoints(self.count, _REACH)] * t)
            widths = [root(Q @ factor @ factor.T @ Q + Q) for factor in group.factors]
            fields = np.concatenate([Q @ mean + nodes @ width for mean, width in zip(group.means, widths, strict=True)])
            weights = np.concatenate([share * weights for share in group.shares])
            means = np.broadcast_to(group.means, (len(fields), *group.means.shape))
        return weights, *self.problem.solver.bayes.rows_at(
            np.ascontiguousarray(fields), group.shares, Q, np.ascontiguousarray(means), group.factors
        )

    def averages(self, hats: np.ndarray) -> tuple[np.ndarray, float]:
        """q_c = E_nu[gamma_c f f^T] from q^_c, both (C, t, t), and E_nu log Z_w."""
        overlaps, log_integral = np.zeros_like(hats), 0.0
        for group in self.groups:
            weights, values, moments, _ = self._posterior(group, hats)
            outer = np.einsum("n,ni,nj->ij", weights, moments, moments)
            overlaps += group.weight * group.gamma[:, None, None] * outer
            log_integral += group.weight * float(weights @ values)
        return overlaps, log_integral

    def overlaps(self, hats: np.ndarray) -> np.ndarray:
        """Return the first of `averages`."""
        return self.averages(hats)[0]

    def slope(self, hats: np.ndarray, changes: np.ndarray) -> np.ndarray:
        """What `overlaps` change by at changes of q^: E[gamma_c S (sum gamma dq^) S], S = Cov(pi | b) (docs/theory.md
        (13.10)).

        Args:
            hats: (C, t, t); changes: any number of them, (K, C, t, t).
        """
        out = np.zeros_like(changes)
        for group in self.groups:
            weights, _, _, spreads = self._posterior(group, hats)
            moved = np.einsum("c,kcij->kij", group.gamma, changes)
            squares = np.einsum("n,nai,nbj->abij", weights, spreads, spreads, optimize=True)
            out += group.weight * group.gamma[:, None, None] * np.einsum("abij,kij->kab", squares, moved)[:, None]
        return out

    def settle(self, hats: np.ndarray, tolerance: float) -> float:
        """Refine the rule until overlaps and log Z_w move by less than `tolerance`; returns the last move."""
        if all(group.gaussian for group in self.groups):
            return 0.0
        scale = np.abs(self.problem.law.rho_star).max()
        self._resolve(hats)
        before = self.averages(hats)
        while True:
            count, self.count = self.count, int(self.count * _GROWTH)
            after = self.averages(hats)
            change = max(np.abs(after[0] - before[0]).max() / scale, abs(after[1] - before[1]))
            if change < tolerance:
                self.count = count
                return float(change)
            if self.count > _MOST_POINTS:
                raise NotConvergedError(f"averages over a teacher's row need more than {_MOST_POINTS} points an axis")
            before = after

    def _resolve(self, hats: np.ndarray) -> None:
        """Divide fields of wide components until nodes are no farther apart than the noise of a field.

        On coarser nodes it seems to be known everywhere which component a row is of, and all coarse rules agree.
        """
        for group in self.groups:
            Q = group.precision(hats)
            widest = max(float(np.linalg.eigvalsh(factor.T @ Q @ factor).max()) for factor in group.factors)
            if not group.gaussian:
                self.count = max(self.count, int(np.ceil(2 * _REACH * np.sqrt(1 + max(widest, 0.0)) / _WIDEST)))

    @cached_property
    def continuous_dimension(self) -> float:
        """Rank of the continuous part of a row's law, averaged: the information dimension of the prior."""
        return sum(
            group.weight * share * np.linalg.matrix_rank(factor, tol=1e-10)
            for group in self.groups
            for share, factor in zip(group.shares, group.factors, strict=True)
        )

    @cached_property
    def entropy(self) -> float:
        """Of rows that take few values, nats a row."""
        return -sum(group.weight * float(group.shares @ np.log(group.shares)) for group in self.groups)
