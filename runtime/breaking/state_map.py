"""The saddle point of one-step breaking at a given Parisi parameter y: u -> G(u), free entropy and its slope in y.

With V~ = V + y Delta and V~^ = V^ - y Delta^ the prior's half is the replica symmetric one, taken twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import root

from .. import budget
from ..errors import DomainError, InputError
from ..integration.tilted import TiltedAverages
from ..problems.overlaps import OVERLAPS, Conjugates, Overlaps, packed_length, triangle
from ..problems.problem import Problem
from ..problems.symmetry import NO_SYMMETRY, Symmetry
from ..saddle_point.state_map import conjugates_of
from .rules import TiltedRule, averages, framed, ladder
from .state import Broken

_NORMS = 1e-11  # of squared norms, to which multipliers keep them


@dataclass(frozen=True)
class Answer:
    """What follows from a state at one y.

    Attributes:
        image: the next state; averages: at the state.
        between: conjugates with V~^ and q_0^; within: with V^ and q_1^.
        strengths: of the ridge, or the multipliers of given norms, (s,).
        free_entropy: Phi(y), extremal where the state is the saddle point; slope: its derivative in y, others held.
    """

    image: Broken
    averages: TiltedAverages
    between: Conjugates
    within: Conjugates
    strengths: np.ndarray
    free_entropy: float
    slope: float


@dataclass(frozen=True)
class BreakingMap:
    """u -> G(u) of a problem by a rule, at the Parisi parameter y.

    Attributes:
        symmetry: of the states that are looked for.

    Raises:
        InputError: a model whose one-step equations are not solved here.
    """

    problem: Problem
    rule: TiltedRule
    symmetry: Symmetry = NO_SYMMETRY

    def __post_init__(self) -> None:
        refuse(self.problem)

    def __call__(self, state: Broken, y: float) -> Answer:
        """What follows from a state.

        Raises:
            DomainError: the state, or what follows from it, is outside the domain.
        """
        budget.check()
        problem, between = self.problem, state.between
        found = averages(problem, state, y, self.rule)
        outer, inner = (conjugates_of(problem, between, moments) for moments in found.moments)
        # The second set differs in q^ alone; V^ = V~^ + y (q_1^ - q_0^).
        inner = replace(inner, V=outer.V + y * (inner.q - outer.q))
        strengths = self._strengths(outer, inner, y)
        across, own = self._overlaps(outer, strengths), self._overlaps(inner, strengths)
        image = Broken(replace(across, V=own.V), (across.V - own.V) / y)
        phi, slope = self._free_entropy(state, y, found, outer, inner, strengths)
        return Answer(image, found, outer, inner, strengths, phi, slope)

    def around(self, state: Broken, y: float) -> BreakingMap:
        """The same map for looking around a state."""
        return replace(self, rule=framed(self.rule, state, y))

    def directions(self, state: Broken) -> np.ndarray:
        """Directions (k, n) of packed states that span those of the same symmetry, entries 0 and +-1."""
        sizes = state.sizes
        count = packed_length(sizes)
        of_overlaps = self.symmetry.directions(sizes, count)
        of_q = Broken(Overlaps.unpack(np.arange(1.0, count + 1), sizes), np.zeros_like(state.distance))
        rows, columns = triangle(sizes[1])
        places = of_q.between.q[:, rows, columns].ravel().astype(int) - 1  # of q among the overlaps
        along = of_overlaps[np.abs(of_overlaps[:, places]).sum(axis=1) > 0][:, places]
        out = np.zeros((len(of_overlaps) + len(along), count + len(places)))
        out[: len(of_overlaps), :count], out[len(of_overlaps) :, count:] = of_overlaps, along
        return out

    def _overlaps(self, hats: Conjugates, strengths: np.ndarray) -> Overlaps:
        """Of a ridge with given strengths."""
        blocks = {name: np.empty_like(getattr(hats, name)) for name in OVERLAPS}
        known = (getattr(hats, name) for name in OVERLAPS)
        if not self.problem.of_ridge("overlaps", strengths)(*known, *blocks.values()):
            raise DomainError("the regulariser with G = sum gamma V^ is not strictly convex")
        return Overlaps(**blocks)

    def _strengths(self, outer: Conjugates, inner: Conjugates, y: float) -> np.ndarray:
        """Those of the ridge; where norms are given, their multipliers, under which q_1 has them.

        Raises:
            DomainError: there are none.
        """
        problem = self.problem
        if not problem.has_sphere:
            return problem.strengths
        norms, law = problem.strengths, problem.law
        stiff, bare = self._stiffness(outer), self._stiffness(inner)
        softest = -float(min(np.linalg.eigvalsh(stiff).min(), np.linalg.eigvalsh(bare).min()))
        forces = self._forces(outer)

        def excess(logs: np.ndarray) -> np.ndarray:
            squares = self._squares(outer, inner, softest + np.exp(logs), y)
            return np.log(np.einsum("a,aii->i", law.weights, squares) / norms**2)

        size = np.sqrt(np.einsum("a,aii->i", law.weights, forces)) / norms
        found = root(excess, np.log(size + 1e-3 * size.max()), tol=1e-15)
        if np.abs(found.fun).max() > _NORMS:
            raise DomainError("no multipliers keep the norms")
        return softest + np.exp(found.x)

    def _forces(self, hats: Conjugates) -> np.ndarray:
        """B B^T + Q_0 of every spectral atom, B from the means and the teacher's row, (A, s, s)."""
        law = self.problem.law
        means = np.broadcast_to(hats.m.T, (len(law.weights), *hats.m.T.shape))
        along = np.concatenate([means, np.einsum("ac,cij->aij", law.gamma, hats.theta)], axis=2)
        return along @ law.gram @ along.transpose(0, 2, 1) + np.einsum("ac,cij->aij", law.gamma, hats.q)

    def _squares(self, outer: Conjugates, inner: Conjugates, strengths: np.ndarray, y: float) -> np.ndarray:
        """E[w w^T] of a row of one minimiser, (A, s, s)."""
        ridge = np.diag(strengths)
        across, own = (np.linalg.inv(ridge + self._stiffness(hats)) for hats in (outer, inner))
        return across @ self._forces(outer) @ across + (across - own) / y

    def _stiffness(self, hats: Conjugates) -> np.ndarray:
        """sum_c gamma_c V^_c of every spectral atom, (A, s, s)."""
        return np.einsum("ac,cij->aij", self.problem.law.gamma, hats.V)

    def _free_entropy(
        self, state: Broken, y: float, averages: TiltedAverages, outer: Conjugates, inner: Conjugates,
        strengths: np.ndarray,
    ) -> tuple[float, float]:  # fmt: skip
        """Phi(y) and dPhi/dy with everything else held."""
        problem, between, distance = self.problem, state.between, state.distance
        law = problem.law
        mixed = between.V + y * distance  # V~
        trace, entropic, _ = problem.of_ridge("free_entropy", strengths)(
            between.q, mixed, between.m, between.theta, outer.q, outer.V, outer.m, outer.theta
        )
        if problem.has_sphere:
            entropic += 0.5 * float(np.sum(strengths * problem.strengths**2))
        bare, dressed = (np.diag(strengths) + self._stiffness(hats) for hats in (inner, outer))
        logs = float(law.weights @ (np.linalg.slogdet(bare)[1] - np.linalg.slogdet(dressed)[1]))
        gap = float(np.sum(outer.V * mixed) - np.sum(inner.V * between.V)) + logs
        alpha = problem.alpha
        phi = trace + entropic + gap / (2 * y) + alpha * averages.free
        slope = -gap / (2 * y * y) - alpha / y * (averages.moreau + averages.free)
        slope -= float(np.sum((y * inner.q - inner.V) * distance)) / (2 * y)
        return phi, slope

    def responses(self, hats: Conjugates, strengths: np.ndarray) -> np.ndarray:
        """E[J (x) J] per spectral atom, J = dw/db with G of these conjugates, (A, s, s, s, s), axes a, b, e, f."""
        inverse = np.linalg.inv(np.diag(strengths) + self._stiffness(hats))
        return np.einsum("nab,nef->nabef", inverse, inverse)

    def penalty(self, answer: Answer, y: float) -> float:
        """Of one minimiser, per d: E_nu Tr[Lambda (R~ (B B^T + Q_0) R~ + (R~ - R) / y)] / 2."""
        squares = self._squares(answer.between, answer.within, answer.strengths, y)
        return 0.5 * float(np.einsum("a,aii,i->", self.problem.law.weights, squares, answer.strengths))


def refuse(problem: Problem) -> None:
    """
    Raises:
        InputError: a finite temperature, a loss that reads three student fields or more, holds overlaps or trained numbers,
            or a penalty that is neither a ridge nor given norms.
    """
    name = problem.solver.name
    problem.only_at_zero_temperature("one-step breaking is solved")
    ladder(problem)
    if not problem.has_ridge:
        raise InputError(f"one-step breaking is solved for ridges and given norms; the penalty of {name} is another")
    if problem.solver.model.HOLDS_Q or problem.trained:
        raise InputError(
            f"one-step breaking is solved for losses of the fields alone; that of {name} holds overlaps or trained "
            "numbers"
        )
