"""State evolution q -> q^ -> q of a Bayes-optimal learner (docs/theory.md (13.6)), and the points of its solutions
along a common overlap.

Unknowns are the overlaps of contexts whose eigenvalues differ; contexts that share them share q.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import brentq

from .. import budget
from ..errors import NotConvergedError
from ..problems.problem import Problem
from .channel import Averages, Channel
from .prior import Prior


@dataclass(frozen=True)
class Point:
    """A solution of state evolution, with the sample complexity at which it is one."""

    share: float
    alpha: float
    q: np.ndarray
    averages: Averages


class State:
    """The map of state evolution of a problem, with rules that settle at a tolerance.

    Raises:
        InputError: the model has no output channel, or rows that cannot be treated.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.channel = Channel(problem)
        self.prior = Prior(problem)
        columns = problem.law.gamma.T
        _, self.first, self.which = np.unique(columns, axis=0, return_index=True, return_inverse=True)
        self.which = self.which.ravel()
        t = problem.teacher_rank
        self.triangle = np.triu_indices(t)
        self.rho = problem.law.rho_star

    def pack(self, q: np.ndarray) -> np.ndarray:
        """Upper triangles of the distinct contexts."""
        return q[self.first][:, self.triangle[0], self.triangle[1]].ravel()

    def unpack(self, x: np.ndarray) -> np.ndarray:
        """(C, t, t) of `pack`."""
        t = self.rho.shape[1]
        blocks = np.zeros((len(self.first), t, t))
        blocks[:, self.triangle[0], self.triangle[1]] = x.reshape(len(self.first), -1)
        blocks[:, self.triangle[1], self.triangle[0]] = x.reshape(len(self.first), -1)
        return blocks[self.which]

    def hats(self, outer: np.ndarray, alpha: float) -> np.ndarray:
        """q^_c = alpha E_c[g g^T]."""
        return alpha * outer

    def image(self, q: np.ndarray, alpha: float) -> np.ndarray:
        """One step of state evolution."""
        budget.check()
        return self.prior.overlaps(self.hats(self.channel.averages(q).outer, alpha))

    def settle(self, q: np.ndarray, alpha: float, tolerance: float) -> float:
        """Refine both rules at q; returns the sum of their last relative changes."""
        averages, change = self.channel.settle(q, tolerance)
        return change + self.prior.settle(self.hats(averages.outer, alpha), tolerance)

    @cached_property
    def nothing(self) -> np.ndarray:
        """Overlaps before any sample is seen: what the means tell."""
        return self.prior.overlaps(np.zeros_like(self.rho))

    @cached_property
    def uninformative(self) -> bool:
        """Whether samples teach nothing to a learner that knows nothing: q = 0 is a solution at every alpha."""
        if np.abs(self.nothing).max() > 1e-12 * np.abs(self.rho).max():
            return False
        # The average is quadratic in the posterior mean of Y, so that a rough rule tells zero from small.
        averages, _ = self.channel.settle(np.zeros_like(self.rho), 1e-5)
        scale = np.abs(np.linalg.inv(self.rho)).max()
        return bool(np.abs(averages.outer).max() < 1e-9 * scale)

    def share(self, q: np.ndarray) -> float:
        """Mean over distinct contexts of Tr q / Tr rho*: 1 at perfect recovery."""
        return float(np.mean([np.trace(q[c]) / np.trace(self.rho[c]) for c in self.first]))

    def free_entropy(self, q: np.ndarray, alpha: float, averages: Averages) -> float:
        """Phi at overlaps q with the conjugates that follow from them: log-evidence per d."""
        hats = self.hats(averages.outer, alpha)
        trace = float(np.einsum("cij,cij->", hats, q))
        return -trace / 2 + self.prior.log_integral(hats) + alpha * averages.log_evidence

    def point(self, share: float, guess: Point | None = None) -> Point:
        """The solution whose overlaps have a given share, and the alpha that belongs to it.

        For one unknown this is alpha(q) itself; else Newton in the overlaps and log alpha at fixed share.

        Raises:
            NotConvergedError: Newton fails.
        """
        if self.pack(self.rho).size == 1:
            q = share * self.rho
            averages = self.channel.averages(q)
            return Point(share, self._alpha(q, averages), q, averages)
        q = share * self.rho if guess is None else guess.q * (share / guess.share)
        alpha = 1.0 if guess is None else guess.alpha
        x = np.append(self.pack(q), np.log(alpha))
        for _ in range(30):
            value = self._gap(x, share)
            if np.abs(value).max() < 1e-12:
                break
            matrix = np.empty((len(x), len(x)))
            for i in range(len(x)):
                step = np.zeros(len(x))
                step[i] = 1e-5
                matrix[:, i] = (self._gap(x + step, share) - self._gap(x - step, share)) / 2e-5
            x = x - np.linalg.solve(matrix, value)
        else:
            raise NotConvergedError(f"no solution of state evolution was found at a share {share:.6g} of the overlap")
        q = self.unpack(x[:-1])
        return Point(share, float(np.exp(x[-1])), q, self.channel.averages(q))

    def _gap(self, x: np.ndarray, share: float) -> np.ndarray:
        q = self.unpack(x[:-1])
        scale = np.abs(self.pack(self.rho)).max()
        gap = self.pack(self.image(q, float(np.exp(x[-1]))) - q) / scale
        return np.append(gap, self.share(q) - share)

    def _alpha(self, q: np.ndarray, averages: Averages) -> float:
        """The alpha at which one scalar overlap reproduces itself: the prior's inverse over the channel's average."""
        target = float(self.pack(q)[0])

        def excess(log_alpha: float) -> float:
            return float(self.pack(self.prior.overlaps(self.hats(averages.outer, np.exp(log_alpha))))[0]) - target

        low = high = 0.0
        while excess(low) > 0:
            low -= 2.0
        while excess(high) < 0:
            high += 2.0
            if high > 40:
                raise NotConvergedError("no sample complexity reaches the overlap asked for")
        return float(np.exp(brentq(excess, low, high, xtol=1e-15, rtol=4 * np.finfo(float).eps)))
