"""Averages over rows of the weights W with broken replica symmetry (docs/theory.md (18.10), (18.16), (18.17)).

A ridge has closed formulas. For another penalty, averages are weighted by exp(y N), with N the negative minimum of the
row's objective and y the Parisi parameter.
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

_ROW_OBJECTIVE_NOT_CONVEX = (
    "the objective of a weight row, r(w) + w^T G w / 2 with G = sum_c gamma_c V^_c, is not strictly convex"
)
_NORM_ROUNDING = 1e-11  # of log squared norms: root finding in double precision keeps norms to it


@dataclass(frozen=True)
class WeightRowAverages:
    """Averages over the rows of the weights W, with K levels of broken replica symmetry.

    Attributes:
        between: the overlap q_0 between states, and V, m and theta of one state.
        distances: overlap difference Delta of every level and (token, cluster) pair, shape (K levels, pairs, s, s).
        strengths: strengths of the penalty, or multipliers of fixed column norms, (s,).
        free: contribution of the rows to the free entropy, with the term of fixed norms.
        slopes: derivatives of `free` in the Parisi parameters at fixed conjugates, (K levels,).
        penalty: function that returns the penalty of one minimiser per d.
        squares: function that returns the mean squared responses of a row to its field, averaged over states (type I)
            and within one state (type II), shape (2, spectral atoms, s, s, s, s).
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
    """Return averages over the rows of the weights W with K levels of broken replica symmetry.

    Args:
        problem: the problem with its penalty.
        hats: conjugate order parameters of the K + 1 levels, from the outermost to the innermost.
        rates: Parisi parameter of every level, (K levels,).
        rule: quadrature rule for averages over the Gaussian field of a row.

    Raises:
        DomainError: the averages do not exist at these conjugates.
    """
    if problem.regulariser.is_quadratic:
        return _RidgeRowAverages(problem, hats, rates).row_averages_in_closed_form
    return _row_averages_with_penalty(problem, hats, rates, rule)


@dataclass(frozen=True)
class _RidgeRowAverages:
    """Averages over the rows of the weights W with a ridge penalty, in closed form."""

    problem: Problem
    hats: Sequence[Conjugates]
    rates: np.ndarray

    @property
    def row_averages_in_closed_form(self) -> WeightRowAverages:
        """The averages over the rows of the weights W with a ridge, in closed form."""
        across, *within = map(self._replica_symmetric_overlaps, self.hats)
        free, slopes = self._row_free_entropy_and_derivatives()
        variances = np.stack([across.V, *(own.V for own in within)])
        distances = -np.diff(variances, axis=0) / self.rates[:, None, None, None]
        return WeightRowAverages(
            replace(across, V=variances[-1]), distances, self.ridge_strengths, free, slopes, self._penalty_of_minimiser,
            self._squared_responses_of_row,
        )  # fmt: skip

    def _replica_symmetric_overlaps(self, hats: Conjugates) -> Overlaps:
        """Return the replica symmetric overlaps of rows with a ridge, at the conjugates of one level."""
        out = Overlaps(*map(np.empty_like, hats.blocks))
        if not self.problem.regulariser.prior_map_of_ridge("overlaps", self.ridge_strengths)(*hats.blocks, *out.blocks):
            raise DomainError(_ROW_OBJECTIVE_NOT_CONVEX)
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
        softest = -float(min(np.linalg.eigvalsh(self._quadratic_form_of_rows(hats)).min() for hats in self.hats))

        def log_ratio_of_squared_norms(logs: np.ndarray) -> np.ndarray:
            squares = self._second_moments_of_row(softest + np.exp(logs))
            return np.log(np.einsum("a,aii->i", law.weights, squares) / norms**2)

        size = np.sqrt(np.einsum("a,aii->i", law.weights, self._second_moments_of_fields())) / norms
        found = root(log_ratio_of_squared_norms, np.log(size + 1e-3 * size.max()), tol=1e-15)
        if np.abs(found.fun).max() > _NORM_ROUNDING:
            raise DomainError("no Lagrange multipliers give the columns of W their norms at these conjugate overlaps")
        return softest + np.exp(found.x)

    def _second_moments_of_fields(self) -> np.ndarray:
        """Return the second moments of the Gaussian field of a row, shape (spectral atoms, s, s)."""
        law, hats = self.problem.law, self.hats[0]
        means = np.broadcast_to(hats.m.T, (len(law.weights), *hats.m.T.shape))
        along = np.concatenate([means, np.einsum("ac,cij->aij", law.gamma, hats.theta)], axis=2)
        return along @ law.gram @ along.transpose(0, 2, 1) + np.einsum("ac,cij->aij", law.gamma, hats.q)

    def _second_moments_of_row(self, strengths: np.ndarray) -> np.ndarray:
        """Return the second moments E[w w^T] of a row w of one minimiser, shape (spectral atoms, s, s)."""
        ridge = np.diag(strengths)
        inverses = np.stack([np.linalg.inv(ridge + self._quadratic_form_of_rows(hats)) for hats in self.hats])
        within = -np.diff(inverses, axis=0) / self.rates[:, None, None, None]
        return inverses[0] @ self._second_moments_of_fields() @ inverses[0] + within.sum(axis=0)

    def _quadratic_form_of_rows(self, hats: Conjugates) -> np.ndarray:
        """Return the matrix of the quadratic part of the objective of a row of W, shape (spectral atoms, s, s)."""
        return np.einsum("ac,cij->aij", self.problem.law.gamma, hats.V)

    def _row_free_entropy_and_derivatives(self) -> tuple[float, np.ndarray]:
        """Return the free entropy of the rows of W (docs/theory.md (18.10)), and its Parisi parameter derivatives."""
        problem, regulariser, outer = self.problem, self.problem.regulariser, self.hats[0]
        nothing = map(np.zeros_like, outer.blocks)  # without the trace
        _, entropic, _ = regulariser.prior_map_of_ridge("free_entropy", self.ridge_strengths)(*nothing, *outer.blocks)
        if regulariser.keeps_norms:
            entropic += 0.5 * float(np.sum(self.ridge_strengths * regulariser.fixed_column_norms**2))
        logs = [
            np.linalg.slogdet(np.diag(self.ridge_strengths) + self._quadratic_form_of_rows(hats))[1]
            for hats in self.hats
        ]
        steps = np.diff(logs, axis=0) @ problem.law.weights / (2 * self.rates)
        return entropic + float(steps.sum()), -steps / self.rates

    def _penalty_of_minimiser(self) -> float:
        """Return the ridge penalty of one minimiser divided by d: half the mean of sum_i strength_i w_i^2 over rows."""
        squares = self._second_moments_of_row(self.ridge_strengths)
        return 0.5 * float(np.einsum("a,aii,i->", self.problem.law.weights, squares, self.ridge_strengths))

    def _squared_responses_of_row(self) -> np.ndarray:
        """Return products J_ab J_ef, with J the derivative of a weight row's minimiser in its Gaussian field.

        They are for the outermost and the innermost level of breaking: shape (2, spectral atoms, s, s, s, s).
        """
        ends = self.hats[0], self.hats[-1]
        inverses = [np.linalg.inv(np.diag(self.ridge_strengths) + self._quadratic_form_of_rows(hats)) for hats in ends]
        return np.stack([np.einsum("nab,nef->nabef", inverse, inverse) for inverse in inverses])


def _row_averages_with_penalty(
    problem: Problem, hats: Sequence[Conjugates], rates: np.ndarray, rule: Rule
) -> WeightRowAverages:
    """Return averages over the rows of the weights W of one or two columns, with a penalty other than a ridge."""
    law = problem.law
    atoms = [
        _averages_of_spectral_atom(problem, gamma, gram, hats, rates, rule)
        for gamma, gram in zip(law.gamma, law.gram, strict=True)
    ]

    def average_over_spectral_atoms(values: list[np.ndarray]) -> np.ndarray:
        """Return the mean of `values` over the covariance spectrum, weighted by the eigenvalues of each pair.

        Pairs are (token, cluster) pairs; the shape is (..., pairs, s, s).
        """
        found = np.einsum("a,ac,a...->...c", law.weights, law.gamma, np.stack(values))
        return np.asarray(np.moveaxis(found, -1, -3))

    contexts = law.gamma.shape[1]
    along = np.stack([atom.with_fields for atom in atoms])
    q = average_over_spectral_atoms([atom.overlaps for atom in atoms])
    distances, softness = np.diff(q, axis=0), rates[:, None, None, None]
    dressed = average_over_spectral_atoms([atom.slope for atom in atoms]) - np.cumsum(
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
    """Return averages over the rows of the weights W that belong to one atom of the spectral distribution.

    Raises:
        DomainError: the averages do not exist, as the objective of a row is not strictly convex.
    """
    student, known, outer = problem.student_rank, problem.regulariser.averaged_teacher_column_count, hats[0]
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
    """Return the minimisers and the minima of the penalised objective of a row w, one for each of its fields b.

    The objective is penalty(w) + w^T stiffness w / 2 - b^T w.

    Raises:
        DomainError: the objective is not strictly convex in w.
    """
    regulariser = problem.regulariser
    known = np.ascontiguousarray(known[:, : regulariser.teacher_column_count_in_penalty])
    w, responses = regulariser.minimisers_and_derivatives(b, np.tile(stiffness, (len(b), 1, 1)), known)
    if np.isnan(w).any():
        raise DomainError(_ROW_OBJECTIVE_NOT_CONVEX)
    r = regulariser.penalties_and_gradients(w, known)[0]
    return WeightRowMinimum(w, r, responses, (w * b).sum(axis=1) - np.einsum("ni,ij,nj->n", w, stiffness, w) / 2 - r)
