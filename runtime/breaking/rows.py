"""What rows of W make of the conjugates of one-step breaking (docs/theory.md (18.10), (18.16), (18.17)).

Of a ridge: the replica symmetric step taken twice, at V~^ and at V^. Of another penalty: averages tilted by exp(y N).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.optimize import root

from ..errors import DomainError
from ..integration.penalised_rows import RowAverages, penalised_rows
from ..integration.pieces import Pieces
from ..problems.overlaps import OVERLAPS, Conjugates, Overlaps
from ..problems.problem import Problem

_NORMS = 1e-11  # of squared norms, to which multipliers keep them


@dataclass(frozen=True)
class Rows:
    """At V~^, q_0^, m^ and theta^, V^ and q_1^, and one y.

    Attributes:
        between: q_0, V of one state, m and theta; distance: Delta, (C, s, s).
        strengths: of the ridge, or the multipliers of given norms, (s,); those of another penalty.
        free: Phi_rows, with what given norms add; slope: its derivative in y at given conjugates.
        squares: E of the squared responses of <w> to b^0 (type I) and of w to b (type II), (2, A, s, s, s, s).
    """

    between: Overlaps
    distance: np.ndarray
    strengths: np.ndarray
    free: float
    slope: float
    penalty: Callable[[], float]
    squares: Callable[[], np.ndarray]


def rows_at(problem: Problem, outer: Conjugates, inner: Conjugates, y: float, rule: Pieces) -> Rows:
    """Rows at V~^, q_0^, m^, theta^ (`outer`) and V^, q_1^ (`inner`); the rule is that of b, where b is averaged over.

    Raises:
        DomainError: the conjugates are outside the domain.
    """
    return _Ridge(problem, outer, inner, y).rows if problem.has_ridge else _penalised(problem, outer, inner, y, rule)


@dataclass(frozen=True)
class _Ridge:
    """Closed forms."""

    problem: Problem
    outer: Conjugates
    inner: Conjugates
    y: float

    @property
    def rows(self) -> Rows:
        """All that follows."""
        across, own = self._overlaps(self.outer), self._overlaps(self.inner)
        free, slope = self._free_entropy()
        distance = (across.V - own.V) / self.y
        return Rows(
            replace(across, V=own.V), distance, self.strengths, free, slope, self._penalty, self._squared_responses
        )

    def _overlaps(self, hats: Conjugates) -> Overlaps:
        """Of a ridge with the strengths."""
        blocks = {name: np.empty_like(getattr(hats, name)) for name in OVERLAPS}
        known = (getattr(hats, name) for name in OVERLAPS)
        if not self.problem.of_ridge("overlaps", self.strengths)(*known, *blocks.values()):
            raise DomainError("the regulariser with G = sum gamma V^ is not strictly convex")
        return Overlaps(**blocks)

    @cached_property
    def strengths(self) -> np.ndarray:
        """Those of the ridge; where norms are given, their multipliers, under which q_1 has them.

        Raises:
            DomainError: there are none.
        """
        problem = self.problem
        if not problem.has_sphere:
            return problem.strengths
        norms, law = problem.strengths, problem.law
        softest = -float(min(np.linalg.eigvalsh(self._stiffness(hats)).min() for hats in (self.outer, self.inner)))

        def excess(logs: np.ndarray) -> np.ndarray:
            squares = self._row_squares(softest + np.exp(logs))
            return np.log(np.einsum("a,aii->i", law.weights, squares) / norms**2)

        size = np.sqrt(np.einsum("a,aii->i", law.weights, self._forces())) / norms
        found = root(excess, np.log(size + 1e-3 * size.max()), tol=1e-15)
        if np.abs(found.fun).max() > _NORMS:
            raise DomainError("no multipliers keep the norms")
        return softest + np.exp(found.x)

    def _forces(self) -> np.ndarray:
        """B B^T + Q_0 of every spectral atom, B from the means and the teacher's row, (A, s, s)."""
        law, hats = self.problem.law, self.outer
        means = np.broadcast_to(hats.m.T, (len(law.weights), *hats.m.T.shape))
        along = np.concatenate([means, np.einsum("ac,cij->aij", law.gamma, hats.theta)], axis=2)
        return along @ law.gram @ along.transpose(0, 2, 1) + np.einsum("ac,cij->aij", law.gamma, hats.q)

    def _row_squares(self, strengths: np.ndarray) -> np.ndarray:
        """E[w w^T] of a row of one minimiser, (A, s, s)."""
        ridge = np.diag(strengths)
        across, own = (np.linalg.inv(ridge + self._stiffness(hats)) for hats in (self.outer, self.inner))
        return across @ self._forces() @ across + (across - own) / self.y

    def _stiffness(self, hats: Conjugates) -> np.ndarray:
        """sum_c gamma_c V^_c of every spectral atom, (A, s, s)."""
        return np.einsum("ac,cij->aij", self.problem.law.gamma, hats.V)

    def _free_entropy(self) -> tuple[float, float]:
        """(18.10), and its slope in y."""
        problem, outer = self.problem, self.outer
        nothing = (np.zeros_like(block) for block in (outer.q, outer.V, outer.m, outer.theta))  # no trace is asked for
        _, entropic, _ = problem.of_ridge("free_entropy", self.strengths)(
            *nothing, outer.q, outer.V, outer.m, outer.theta
        )
        if problem.has_sphere:
            entropic += 0.5 * float(np.sum(self.strengths * problem.strengths**2))
        bare, dressed = (np.diag(self.strengths) + self._stiffness(hats) for hats in (self.inner, outer))
        logs = float(problem.law.weights @ (np.linalg.slogdet(bare)[1] - np.linalg.slogdet(dressed)[1]))
        return entropic + logs / (2 * self.y), -logs / (2 * self.y**2)

    def _penalty(self) -> float:
        """Of one minimiser, per d: E_nu Tr[Lambda (R~ (B B^T + Q_0) R~ + (R~ - R) / y)] / 2."""
        squares = self._row_squares(self.strengths)
        return 0.5 * float(np.einsum("a,aii,i->", self.problem.law.weights, squares, self.strengths))

    def _squared_responses(self) -> np.ndarray:
        """R~ (x) R~ and R (x) R, axes a, b, e, f of J_ab J_ef."""
        inverses = [np.linalg.inv(np.diag(self.strengths) + self._stiffness(hats)) for hats in (self.outer, self.inner)]
        return np.stack([np.einsum("nab,nef->nabef", inverse, inverse) for inverse in inverses])


def _penalised(problem: Problem, outer: Conjugates, inner: Conjugates, y: float, rule: Pieces) -> Rows:
    """Of any other penalty of one column."""
    law, atoms = problem.law, penalised_rows(problem, outer, inner, y, rule)

    def mean(read: Callable[[RowAverages], float]) -> float:
        return float(law.weights @ [read(atom) for atom in atoms])

    def by_context(read: Callable[[RowAverages], float]) -> np.ndarray:
        """E_nu[gamma_c ...], (C, 1, 1)."""
        return np.einsum("a,ac,a->c", law.weights, law.gamma, [read(atom) for atom in atoms])[:, None, None]

    contexts = law.gamma.shape[1]
    along = np.stack([atom.with_fields for atom in atoms])
    q, dressed = by_context(lambda atom: atom.between), by_context(lambda atom: atom.slope)
    distance = by_context(lambda atom: atom.within - atom.between)
    between = Overlaps(
        q=q,
        V=dressed - y * distance,
        m=np.einsum("a,ac->c", law.weights, along[:, :contexts])[:, None],
        theta=np.einsum("a,ac,ab->cb", law.weights, law.gamma, along[:, contexts:])[:, None],
    )
    free, value = mean(lambda atom: atom.free), mean(lambda atom: atom.value)
    # At given V^ and V~^ their difference y Delta^ is given: D falls as 1 / y, by the heat equation (18.12).
    slope = (value - free) / y - float(np.sum((inner.q - outer.q) * (dressed + y * q))) / (2 * y)
    squares = np.array([atom.squares for atom in atoms]).T[..., None, None, None, None]
    return Rows(
        between, distance, problem.strengths, free, slope, lambda: mean(lambda atom: atom.penalty), lambda: squares
    )
