"""Averages over rows of W with broken replica symmetry (docs/theory.md (18.10), (18.16), (18.17)).

For a ridge: the replica symmetric formulas from V~^ inwards to V^. For another penalty: averages tilted by exp(y N).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from ...base.errors import DomainError
from ...integration import Rule
from ...integration.one_field import PANELS, SmoothPiecesRule
from ...integration.penalised_planes import two_column_row_averages
from ...integration.penalised_rows import SpectralAtomAverages, WeightRowMinimum, one_column_row_averages
from ...integration.tilted_grid import GRID_SIZES, TiltedGridRule
from ...problems.compiled import load_compiled_loops
from ...problems.overlaps import Conjugates, Overlaps
from ...problems.problem import Problem

_NOT_CONVEX = "the objective of a weight row, r(w) + w^T G w / 2 with G = sum_c gamma_c V^_c, is not strictly convex"
_NORM_ROUNDING = 1e-11  # of log squared norms: root finding in double precision keeps norms to it


@dataclass(frozen=True)
class WeightRowAverages:
    """Averages over rows of W at given conjugates and Parisi parameters of all levels.

    Attributes:
        between: q_0, V of one state, m and theta.
        distances: Delta of every level, (K, C, s, s).
        strengths: strengths of the penalty, or multipliers of fixed norms, (s,).
        free: free entropy Phi_rows of the rows, with the term of fixed norms.
        slopes: derivatives of Phi_rows in y at fixed conjugates, (K,).
        penalty: function that returns the penalty of one minimiser per d.
        squares: function that returns the mean squared responses of <w> to b^0 (type I) and of w to b (type II),
            (2, A, s, s, s, s).
    """

    between: Overlaps
    distances: np.ndarray
    strengths: np.ndarray
    free: float
    slopes: np.ndarray
    penalty: Callable[[], float]
    squares: Callable[[], np.ndarray]


def weight_row_averages(
    problem: Problem, hats: Sequence[Conjugates], rates: np.ndarray, rule: Rule
) -> WeightRowAverages:
    """Return averages over rows of W with broken replica symmetry.

    Args:
        problem: the problem with its penalty.
        hats: conjugates of all levels, K + 1 from the outermost to the innermost level.
        rates: y of every level, (K,).
        rule: rule for averages over the field b of a row.

    Raises:
        DomainError: the averages do not exist at these conjugates.
    """
    if problem.regulariser.is_quadratic:
        return _RidgeRowAverages(problem, hats, rates).closed_form_averages
    return _averages_with_penalty(problem, hats, rates, rule)


@dataclass(frozen=True)
class _RidgeRowAverages:
    """Averages over rows of W with a ridge penalty, in closed form."""

    problem: Problem
    hats: Sequence[Conjugates]
    rates: np.ndarray

    @property
    def closed_form_averages(self) -> WeightRowAverages:
        """All averages over rows of W, see `WeightRowAverages`."""
        across, *within = map(self._replica_symmetric_overlaps, self.hats)
        free, slopes = self._row_free_entropy_and_derivatives()
        variances = np.stack([across.V, *(own.V for own in within)])
        distances = -np.diff(variances, axis=0) / self.rates[:, None, None, None]
        return WeightRowAverages(
            replace(across, V=variances[-1]), distances, self.ridge_strengths, free, slopes, self._penalty_of_minimiser,
            self._squared_responses,
        )  # fmt: skip

    def _replica_symmetric_overlaps(self, hats: Conjugates) -> Overlaps:
        """Return the replica symmetric overlaps of rows with a ridge at conjugates of one level."""
        out = Overlaps(*map(np.empty_like, hats.blocks))
        if not self.problem.regulariser.prior_map_of_ridge("overlaps", self.ridge_strengths)(*hats.blocks, *out.blocks):
            raise DomainError(_NOT_CONVEX)
        return out

    @cached_property
    def ridge_strengths(self) -> np.ndarray:
        """The strengths of the ridge, or the multipliers at which each column of W has its fixed norm.

        Raises:
            DomainError: no multipliers give these norms.
        """
        regulariser, law = self.problem.regulariser, self.problem.law
        if not regulariser.keeps_norms:
            return regulariser.ridge_strengths
        from scipy.optimize import root  # slow to load

        norms = regulariser.fixed_column_norms
        softest = -float(min(np.linalg.eigvalsh(self._quadratic_form_of_atoms(hats)).min() for hats in self.hats))

        def log_norm_excess(logs: np.ndarray) -> np.ndarray:
            squares = self._second_moments_of_row(softest + np.exp(logs))
            return np.log(np.einsum("a,aii->i", law.weights, squares) / norms**2)

        size = np.sqrt(np.einsum("a,aii->i", law.weights, self._second_moments_of_fields())) / norms
        found = root(log_norm_excess, np.log(size + 1e-3 * size.max()), tol=1e-15)
        if np.abs(found.fun).max() > _NORM_ROUNDING:
            raise DomainError("no Lagrange multipliers give the columns of W their fixed norms at these conjugates")
        return softest + np.exp(found.x)

    def _second_moments_of_fields(self) -> np.ndarray:
        """Return the second moments of the fields of a row, B B^T + Q_0, for every spectral atom, (A, s, s)."""
        law, hats = self.problem.law, self.hats[0]
        means = np.broadcast_to(hats.m.T, (len(law.weights), *hats.m.T.shape))
        along = np.concatenate([means, np.einsum("ac,cij->aij", law.gamma, hats.theta)], axis=2)
        return along @ law.gram @ along.transpose(0, 2, 1) + np.einsum("ac,cij->aij", law.gamma, hats.q)

    def _second_moments_of_row(self, strengths: np.ndarray) -> np.ndarray:
        """Return the second moments E[w w^T] of a row of one minimiser for every spectral atom, (A, s, s)."""
        ridge = np.diag(strengths)
        inverses = np.stack([np.linalg.inv(ridge + self._quadratic_form_of_atoms(hats)) for hats in self.hats])
        within = -np.diff(inverses, axis=0) / self.rates[:, None, None, None]
        return inverses[0] @ self._second_moments_of_fields() @ inverses[0] + within.sum(axis=0)

    def _quadratic_form_of_atoms(self, hats: Conjugates) -> np.ndarray:
        """Return the quadratic form sum_c gamma_c V^_c of a row for every spectral atom, (A, s, s)."""
        return np.einsum("ac,cij->aij", self.problem.law.gamma, hats.V)

    def _row_free_entropy_and_derivatives(self) -> tuple[float, np.ndarray]:
        """Return the free entropy Phi_rows of (18.10) and its derivatives in the Parisi parameters y."""
        problem, regulariser, outer = self.problem, self.problem.regulariser, self.hats[0]
        nothing = map(np.zeros_like, outer.blocks)  # without the trace
        _, entropic, _ = regulariser.prior_map_of_ridge("free_entropy", self.ridge_strengths)(*nothing, *outer.blocks)
        if regulariser.keeps_norms:
            entropic += 0.5 * float(np.sum(self.ridge_strengths * regulariser.fixed_column_norms**2))
        logs = [
            np.linalg.slogdet(np.diag(self.ridge_strengths) + self._quadratic_form_of_atoms(hats))[1]
            for hats in self.hats
        ]
        steps = np.diff(logs, axis=0) @ problem.law.weights / (2 * self.rates)
        return entropic + float(steps.sum()), -steps / self.rates

    def _penalty_of_minimiser(self) -> float:
        """Return the penalty of one minimiser per d: E_nu Tr[Lambda E[w w^T]] / 2."""
        squares = self._second_moments_of_row(self.ridge_strengths)
        return 0.5 * float(np.einsum("a,aii,i->", self.problem.law.weights, squares, self.ridge_strengths))

    def _squared_responses(self) -> np.ndarray:
        """Return the squared responses of a row, R~ (x) R~ and R (x) R, with axes a, b, e, f of J_ab J_ef."""
        ends = self.hats[0], self.hats[-1]
        inverses = [np.linalg.inv(np.diag(self.ridge_strengths) + self._quadratic_form_of_atoms(hats)) for hats in ends]
        return np.stack([np.einsum("nab,nef->nabef", inverse, inverse) for inverse in inverses])


def _averages_with_penalty(
    problem: Problem, hats: Sequence[Conjugates], rates: np.ndarray, rule: Rule
) -> WeightRowAverages:
    """Return averages over rows of W with a penalty other than a ridge, for one or two columns."""
    law = problem.law
    atoms = [
        _averages_of_spectral_atom(problem, gamma, gram, hats, rates, rule)
        for gamma, gram in zip(law.gamma, law.gram, strict=True)
    ]

    def average_over_atoms(values: list[np.ndarray]) -> np.ndarray:
        """Return the average of gamma_c times values over the spectral atoms, (..., C, s, s)."""
        found = np.einsum("a,ac,a...->...c", law.weights, law.gamma, np.stack(values))
        return np.asarray(np.moveaxis(found, -1, -3))

    contexts = law.gamma.shape[1]
    along = np.stack([atom.with_fields for atom in atoms])
    q = average_over_atoms([atom.overlaps for atom in atoms])
    distances, softness = np.diff(q, axis=0), rates[:, None, None, None]
    dressed = average_over_atoms([atom.slope for atom in atoms]) - np.cumsum(
        softness * distances, axis=0
    )  # V within a level
    between = Overlaps(
        q=q[0],
        V=dressed[-1],
        m=np.einsum("a,aic->ci", law.weights, along[:, :, :contexts]),
        theta=np.einsum("a,ac,aib->cib", law.weights, law.gamma, along[:, :, contexts:]),
    )
    free = law.weights @ [atom.free for atom in atoms]
    # At given V^ of all levels their differences y Delta^ are given: D falls as 1 / y, by the heat equation (18.12).
    apart = np.diff([level.q for level in hats], axis=0)
    slopes = (np.diff(free) - np.sum(apart * (dressed + softness * q[1:]), axis=(1, 2, 3)) / 2) / rates
    squares = np.stack([atom.squares for atom in atoms], axis=1)
    return WeightRowAverages(
        between, distances, problem.strengths, float(free[0]), slopes,
        lambda: float(law.weights @ [atom.penalty for atom in atoms]), lambda: squares,
    )  # fmt: skip


def _averages_of_spectral_atom(
    problem: Problem, gamma: np.ndarray, gram: np.ndarray, hats: Sequence[Conjugates], rates: np.ndarray,
    rule: Rule,
) -> SpectralAtomAverages:  # fmt: skip
    """Return averages over the rows of W that belong to one spectral atom.

    Raises:
        DomainError: the averages do not exist.
    """
    student, known, outer = problem.student_rank, problem.regulariser.averaged_teacher_columns, hats[0]
    stiffness, spread = (np.einsum("c,cij->ij", gamma, block) for block in (hats[-1].V, outer.q))
    apart = np.diff([np.einsum("c,cij->ij", gamma, level.q) for level in hats], axis=0)
    field = np.concatenate([outer.m.T, np.einsum("c,cij->ij", gamma, outer.theta)], axis=1)
    covariance, cross = np.empty((known + student, known + student)), np.empty((known + student, gram.shape[0]))
    load_compiled_loops("weight_rows").fill_row_covariances(len(gamma), gram, field, spread, covariance, cross)
    minimiser = partial(_minimise_penalised_rows, problem, stiffness)
    if student == 1:
        panels = rule if isinstance(rule, SmoothPiecesRule) else PANELS[-1]
        return one_column_row_averages(minimiser, covariance, cross, apart[:, 0, 0], rates, panels, problem.law.rows)
    (distance,), (y,) = apart, rates
    grids = rule if isinstance(rule, TiltedGridRule) else GRID_SIZES[-1]
    return two_column_row_averages(minimiser, covariance, cross, distance, float(y), grids, problem.law.rows)


def _minimise_penalised_rows(
    problem: Problem, stiffness: np.ndarray, b: np.ndarray, known: np.ndarray
) -> WeightRowMinimum:
    """Return the minimiser w and the value of r(w) + w^T G w / 2 - b^T w for N fields b of a row.

    Raises:
        DomainError: r(w) + w^T G w / 2 is not strictly convex.
    """
    regulariser = problem.regulariser
    known = np.ascontiguousarray(known[:, : regulariser.teacher_columns_in_penalty])
    w, responses = regulariser.minimisers_and_derivatives(b, np.tile(stiffness, (len(b), 1, 1)), known)
    if np.isnan(w).any():
        raise DomainError(_NOT_CONVEX)
    r = regulariser.penalties_and_gradients(w, known)[0]
    return WeightRowMinimum(w, r, responses, (w * b).sum(axis=1) - np.einsum("ni,ij,nj->n", w, stiffness, w) / 2 - r)
