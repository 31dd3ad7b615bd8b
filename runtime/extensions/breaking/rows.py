"""Averages over rows of W at the conjugates, with replica symmetry broken (docs/theory.md (18.10), (18.16), (18.17)).

For a ridge: the replica symmetric formulas from V~^ inwards to V^. For another penalty: averages tilted by exp(y N).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from ...base.errors import DomainError
from ...integration import Rule
from ...integration.one_field import PANELS, Pieces
from ...integration.penalised_planes import plane_averages
from ...integration.penalised_rows import RowAverages, RowMinimum, row_averages
from ...integration.tilted_grid import GRID_SIZES, Grids
from ...problems.compiled import load_loops
from ...problems.overlaps import Conjugates, Overlaps
from ...problems.problem import Problem

_NORM_ROUNDING = 1e-11  # of log squared norms: root finding in double precision keeps norms to it


@dataclass(frozen=True)
class RowStatistics:
    """Averages over rows of W at the conjugates of all levels and their y.

    Attributes:
        between: q_0, V of one state, m and theta; distances: Delta, (K, C, s, s).
        strengths: of the ridge or of another penalty, or the multipliers of given norms, (s,).
        free: Phi_rows, with the term of given norms; slopes: its derivatives in y at fixed conjugates, (K,).
        penalty: returns the penalty of one minimiser, per d.
        squares: returns E of the squared responses of <w> to b^0 (type I) and of w to b (type II), (2, A, s, s, s, s).
    """

    between: Overlaps
    distances: np.ndarray
    strengths: np.ndarray
    free: float
    slopes: np.ndarray
    penalty: Callable[[], float]
    squares: Callable[[], np.ndarray]


def row_statistics(problem: Problem, hats: Sequence[Conjugates], rates: np.ndarray, rule: Rule) -> RowStatistics:
    """Return averages over rows.

    Args:
        problem: the problem with its penalty.
        hats: conjugates of all levels, from V~^, q_0^, m^, theta^ inwards to V^ and q_K^, (K + 1).
        rates: y of every level, (K,).
        rule: rule for averages over the field b of a row.

    Raises:
        DomainError: the conjugates are outside the domain.
    """
    if problem.regulariser.is_quadratic:
        return _RidgeRows(problem, hats, rates).rows
    return _penalised_rows(problem, hats, rates, rule)


@dataclass(frozen=True)
class _RidgeRows:
    """Averages over rows with a ridge, in closed form."""

    problem: Problem
    hats: Sequence[Conjugates]
    rates: np.ndarray

    @property
    def rows(self) -> RowStatistics:
        """All averages of `RowStatistics`."""
        across, *within = map(self._ridge_overlaps, self.hats)
        free, slopes = self._row_free_entropy()
        variances = np.stack([across.V, *(own.V for own in within)])
        distances = -np.diff(variances, axis=0) / self.rates[:, None, None, None]
        return RowStatistics(
            replace(across, V=variances[-1]), distances, self.strengths, free, slopes, self._penalty,
            self._squared_responses,
        )  # fmt: skip

    def _ridge_overlaps(self, hats: Conjugates) -> Overlaps:
        """Return the replica symmetric overlaps of a ridge with these strengths."""
        out = Overlaps(*map(np.empty_like, hats.blocks))
        if not self.problem.regulariser.ridge_map("overlaps", self.strengths)(*hats.blocks, *out.blocks):
            raise DomainError("the regulariser with G = sum gamma V^ is not strictly convex")
        return out

    @cached_property
    def strengths(self) -> np.ndarray:
        """The strengths of the ridge; for given norms the multipliers at which q_K has these.

        Raises:
            DomainError: there are no such multipliers.
        """
        regulariser, law = self.problem.regulariser, self.problem.law
        if not regulariser.keeps_norms:
            return regulariser.strengths
        from scipy.optimize import root  # slow to load

        norms = regulariser.norms
        softest = -float(min(np.linalg.eigvalsh(self._stiffness(hats)).min() for hats in self.hats))

        def excess(logs: np.ndarray) -> np.ndarray:
            squares = self._row_squares(softest + np.exp(logs))
            return np.log(np.einsum("a,aii->i", law.weights, squares) / norms**2)

        size = np.sqrt(np.einsum("a,aii->i", law.weights, self._squared_fields())) / norms
        found = root(excess, np.log(size + 1e-3 * size.max()), tol=1e-15)
        if np.abs(found.fun).max() > _NORM_ROUNDING:
            raise DomainError("no multipliers keep the norms")
        return softest + np.exp(found.x)

    def _squared_fields(self) -> np.ndarray:
        """Return B B^T + Q_0 of every spectral atom, B from the means and the teacher's row, (A, s, s)."""
        law, hats = self.problem.law, self.hats[0]
        means = np.broadcast_to(hats.m.T, (len(law.weights), *hats.m.T.shape))
        along = np.concatenate([means, np.einsum("ac,cij->aij", law.gamma, hats.theta)], axis=2)
        return along @ law.gram @ along.transpose(0, 2, 1) + np.einsum("ac,cij->aij", law.gamma, hats.q)

    def _row_squares(self, strengths: np.ndarray) -> np.ndarray:
        """Return E[w w^T] of a row of one minimiser, (A, s, s)."""
        ridge = np.diag(strengths)
        inverses = np.stack([np.linalg.inv(ridge + self._stiffness(hats)) for hats in self.hats])
        within = -np.diff(inverses, axis=0) / self.rates[:, None, None, None]
        return inverses[0] @ self._squared_fields() @ inverses[0] + within.sum(axis=0)

    def _stiffness(self, hats: Conjugates) -> np.ndarray:
        """Return sum_c gamma_c V^_c of every spectral atom, (A, s, s)."""
        return np.einsum("ac,cij->aij", self.problem.law.gamma, hats.V)

    def _row_free_entropy(self) -> tuple[float, np.ndarray]:
        """Return Phi_rows, (18.10), and its derivatives in y."""
        problem, regulariser, outer = self.problem, self.problem.regulariser, self.hats[0]
        nothing = map(np.zeros_like, outer.blocks)  # without the trace
        _, entropic, _ = regulariser.ridge_map("free_entropy", self.strengths)(*nothing, *outer.blocks)
        if regulariser.keeps_norms:
            entropic += 0.5 * float(np.sum(self.strengths * regulariser.norms**2))
        logs = [np.linalg.slogdet(np.diag(self.strengths) + self._stiffness(hats))[1] for hats in self.hats]
        steps = np.diff(logs, axis=0) @ problem.law.weights / (2 * self.rates)
        return entropic + float(steps.sum()), -steps / self.rates

    def _penalty(self) -> float:
        """Return the penalty of one minimiser, per d: E_nu Tr[Lambda E[w w^T]] / 2."""
        squares = self._row_squares(self.strengths)
        return 0.5 * float(np.einsum("a,aii,i->", self.problem.law.weights, squares, self.strengths))

    def _squared_responses(self) -> np.ndarray:
        """Return R~ (x) R~ and R (x) R, axes a, b, e, f of J_ab J_ef."""
        ends = self.hats[0], self.hats[-1]
        inverses = [np.linalg.inv(np.diag(self.strengths) + self._stiffness(hats)) for hats in ends]
        return np.stack([np.einsum("nab,nef->nabef", inverse, inverse) for inverse in inverses])


def _penalised_rows(problem: Problem, hats: Sequence[Conjugates], rates: np.ndarray, rule: Rule) -> RowStatistics:
    """Return averages over rows with a penalty other than a ridge, of one column or two."""
    law = problem.law
    atoms = [
        _average_atom(problem, gamma, gram, hats, rates, rule) for gamma, gram in zip(law.gamma, law.gram, strict=True)
    ]

    def average_by_context(values: list[np.ndarray]) -> np.ndarray:
        """Return E_nu[gamma_c ...], (..., C, s, s)."""
        found = np.einsum("a,ac,a...->...c", law.weights, law.gamma, np.stack(values))
        return np.asarray(np.moveaxis(found, -1, -3))

    contexts = law.gamma.shape[1]
    along = np.stack([atom.with_fields for atom in atoms])
    q = average_by_context([atom.overlaps for atom in atoms])
    distances, softness = np.diff(q, axis=0), rates[:, None, None, None]
    dressed = average_by_context([atom.slope for atom in atoms]) - np.cumsum(
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
    return RowStatistics(
        between, distances, problem.strengths, float(free[0]), slopes,
        lambda: float(law.weights @ [atom.penalty for atom in atoms]), lambda: squares,
    )  # fmt: skip


def _average_atom(
    problem: Problem, gamma: np.ndarray, gram: np.ndarray, hats: Sequence[Conjugates], rates: np.ndarray,
    rule: Rule,
) -> RowAverages:  # fmt: skip
    """Return averages over rows of one spectral atom.

    Raises:
        DomainError: no such averages exist.
    """
    student, known, outer = problem.student_rank, problem.regulariser.given_teachers, hats[0]
    stiffness, spread = (np.einsum("c,cij->ij", gamma, block) for block in (hats[-1].V, outer.q))
    apart = np.diff([np.einsum("c,cij->ij", gamma, level.q) for level in hats], axis=0)
    field = np.concatenate([outer.m.T, np.einsum("c,cij->ij", gamma, outer.theta)], axis=1)
    covariance, cross = np.empty((known + student, known + student)), np.empty((known + student, gram.shape[0]))
    load_loops("weight_rows").covariances(len(gamma), gram, field, spread, covariance, cross)
    minimiser = partial(_minimise_rows, problem, stiffness)
    if student == 1:
        panels = rule if isinstance(rule, Pieces) else PANELS[-1]
        return row_averages(minimiser, covariance, cross, apart[:, 0, 0], rates, panels, problem.law.rows)
    (distance,), (y,) = apart, rates
    grids = rule if isinstance(rule, Grids) else GRID_SIZES[-1]
    return plane_averages(minimiser, covariance, cross, distance, float(y), grids, problem.law.rows)


def _minimise_rows(problem: Problem, stiffness: np.ndarray, b: np.ndarray, known: np.ndarray) -> RowMinimum:
    """Return minimiser and value by the formulas of the regulariser, at G.

    Raises:
        DomainError: r(w) + w^T G w / 2 is not strictly convex.
    """
    regulariser = problem.regulariser
    known = np.ascontiguousarray(known[:, : regulariser.known_teachers])
    w, responses = regulariser.minimisers(b, np.tile(stiffness, (len(b), 1, 1)), known)
    if np.isnan(w).any():
        raise DomainError("the regulariser with G = sum gamma V^ is not strictly convex")
    r = regulariser.values(w, known)[0]
    return RowMinimum(w, r, responses, (w * b).sum(axis=1) - np.einsum("ni,ij,nj->n", w, stiffness, w) / 2 - r)
