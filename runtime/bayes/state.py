"""State evolution q -> q^ -> q of a Bayes-optimal learner (docs/theory.md (13.6)), and the points of its solutions
along a common overlap.

Unknowns are the overlaps of contexts whose eigenvalues differ; contexts that share them share q. State evolution may be
held to some columns of the teacher, of the others nothing being known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import brentq

from .. import budget
from ..errors import InputError, NotConvergedError
from ..integration.estimates import two_standard_errors
from ..problems.problem import Problem
from .averages import Averages, change
from .channel import Channel
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

    Args:
        columns: of the teacher, from 0 on, that anything is learned of; None for all.

    Raises:
        InputError: the model has no output channel, or rows that cannot be treated, or no such columns.
    """

    def __init__(self, problem: Problem, columns: Sequence[int] | None = None) -> None:
        self.problem = problem
        self.channel = Channel(problem)
        self.prior = Prior(problem)
        _, self.first, self.which = np.unique(problem.law.gamma.T, axis=0, return_index=True, return_inverse=True)
        self.which = self.which.ravel()
        self.rho = problem.law.rho_star
        t = problem.teacher_rank
        self.columns = tuple(range(t)) if columns is None else tuple(sorted(set(columns)))
        if not self.columns or not set(self.columns) <= set(range(t)):
            raise InputError(
                f"{problem.solver.name} has columns 1 to {t} of the teacher, not "
                f"{', '.join(str(c + 1) for c in self.columns) or 'none'}"
            )
        rows, columns_ = np.triu_indices(t)
        inside = np.isin(rows, self.columns) & np.isin(columns_, self.columns)
        self.triangle = rows[inside], columns_[inside]
        self.outside = rows[~inside], columns_[~inside]

    def pack(self, q: np.ndarray) -> np.ndarray:
        """Upper triangles of the distinct contexts, of the columns that are learned."""
        return self._entries(q, self.triangle)

    def unpack(self, x: np.ndarray) -> np.ndarray:
        """(C, t, t) of `pack`."""
        return self._symmetric(x, self.triangle)

    def _entries(self, q: np.ndarray, places: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return q[self.first][:, places[0], places[1]].ravel()

    def _symmetric(self, x: np.ndarray, places: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        t = self.rho.shape[1]
        blocks = np.zeros((len(self.first), t, t))
        blocks[:, places[0], places[1]] = x.reshape(len(self.first), -1)
        blocks[:, places[1], places[0]] = x.reshape(len(self.first), -1)
        return blocks[self.which]

    @property
    def everything(self) -> np.ndarray:
        """rho*, of the columns that are learned."""
        return self.unpack(self.pack(self.rho))

    def hats(self, outer: np.ndarray, alpha: float) -> np.ndarray:
        """q^_c = alpha E_c[g g^T]."""
        return alpha * outer

    def image(self, q: np.ndarray, alpha: float) -> np.ndarray:
        """One step of state evolution."""
        budget.check()
        return self.reached(self.channel.averages(q), alpha)

    def reached(self, averages: Averages, alpha: float) -> np.ndarray:
        """q from averages over the channel, of the columns that are learned."""
        return self.unpack(self.pack(self.prior.overlaps(self.hats(averages.outer, alpha))))

    def check_held(self, q: np.ndarray, alpha: float) -> None:
        """Whether nothing is learned of the columns that are held at nothing.

        Raises:
            InputError: samples tell of them, so that there is no such solution.
        """
        image = self.prior.overlaps(self.hats(self.channel.averages(q).outer, alpha))
        told = np.abs(self._entries(image, self.outside)).max(initial=0.0)
        if told > 1e-8 * np.abs(self.rho).max():
            raise InputError(
                f"samples of {self.problem.solver.name} carry information on all columns of the teacher: columns "
                f"{', '.join(str(c + 1) for c in self.columns)} cannot be learned alone"
            )

    def jacobian(self, averages: Averages, alpha: float, outside: bool = False) -> np.ndarray:
        """Derivative of the map in the overlaps that `pack` takes, or in all the others where `outside`.

        Args:
            averages: with their derivative in q.
        """
        places = self.outside if outside else self.triangle
        size = len(self.first) * len(places[0])
        if not size:
            return np.zeros((0, 0))
        assert averages.response is not None
        moved = np.stack([self._symmetric(unit, places) for unit in np.eye(size)])
        answers = alpha * np.einsum("cabdij,kdij->kcab", averages.response, moved)
        images = self.prior.slope(self.hats(averages.outer, alpha), answers)
        return np.stack([self._entries(image, places) for image in images], axis=1)

    def spread(self, q: np.ndarray, averages: Averages, alpha: float) -> np.ndarray:
        """Two standard errors of a solution, (C, t, t), from the replicates of a sampled rule through (1 - J)^{-1}.

        Args:
            averages: at the solution, with their derivative in q.
        """
        inverse = np.linalg.inv(np.eye(len(self.pack(q))) - self.jacobian(averages, alpha))
        moves = [inverse @ self.pack(self.reached(sample, alpha) - q) for sample in averages.samples]
        return self.unpack(two_standard_errors(np.array(moves)))

    def settle(self, q: np.ndarray, alpha: float, tolerance: float, curved: Averages | None = None) -> float:
        """Refine both rules at q; returns the sum of their last relative changes.

        Args:
            curved: averages with their derivative close to a solution; the channel's rule is then refined until that is
                known to the tolerance, relative to rho*.
        """
        moved = change if curved is None else self._moved(alpha, curved)
        averages, total = self.channel.settle(q, tolerance, moved)
        return total + self.prior.settle(self.hats(averages.outer, alpha), tolerance)

    def _moved(self, alpha: float, curved: Averages) -> Callable[[Averages, Averages], float]:
        """What solutions of two rules differ by, relative to rho*, or the sum of all weights."""
        scale = np.abs(self.pack(self.rho)).max()

        def moved(one: Averages, other: Averages) -> float:
            gap = self.reached(other, alpha) - self.reached(one, alpha)
            return float(max(self.answer(gap, alpha, curved).max() / scale, abs(other.norm - one.norm)))

        return moved

    def answer(self, gap: np.ndarray, alpha: float, curved: Averages) -> np.ndarray:
        """Most that a solution moves by where the image of q does by a gap, (C, t, t): |(1 - J)^{-1}| |gap|, so that no
        two entries cancel.

        Args:
            curved: averages at the solution, with their derivative in q.
        """
        inverse = np.linalg.inv(np.eye(len(self.pack(gap))) - self.jacobian(curved, alpha))
        return self.unpack(np.abs(inverse) @ np.abs(self.pack(gap)))

    @property
    def refinements(self) -> tuple[float, ...]:
        """Factors by which rules are finer that errors are estimated with: several where averages take little, as two
        rules may agree by chance where the outputs have edges between nodes."""
        return (1.25,) if self.channel.dear else (1.25, 1.6)

    @contextmanager
    def finer(self, factor: float) -> Iterator[None]:
        """Both rules finer by a factor on every axis, with a tenth left out of what is, for a while."""
        channel, prior = self.channel, self.prior
        before = channel.counts, channel.cut, prior.count
        channel.counts, prior.count = [int(np.ceil(factor * n)) for n in channel.counts], int(factor * prior.count)
        channel.cut = channel.cut.tenth
        try:
            yield
        finally:
            channel.counts, channel.cut, prior.count = before

    @cached_property
    def nothing(self) -> np.ndarray:
        """Overlaps before any sample is seen: what the means tell."""
        return self.unpack(self.pack(self.prior.overlaps(np.zeros_like(self.rho))))

    @cached_property
    def uninformative(self) -> bool:
        """Whether samples teach nothing to a learner that knows nothing: q = 0 is a solution at every alpha."""
        if np.abs(self.nothing).max() > 1e-12 * np.abs(self.rho).max():
            return False
        # The average is quadratic in the posterior mean of Y, so that a rough rule tells zero from small.
        cut = self.channel.cut
        averages, _ = self.channel.settle(np.zeros_like(self.rho), 1e-5)
        self.channel.cut = cut
        scale = np.abs(np.linalg.inv(self.rho)).max()
        return bool(np.abs(averages.outer).max() < 1e-9 * scale)

    def share(self, q: np.ndarray) -> float:
        """Mean over distinct contexts of Tr q / Tr rho*, of the columns that are learned: 1 at perfect recovery."""
        whole = self.everything
        return float(np.mean([np.trace(q[c]) / np.trace(whole[c]) for c in self.first]))

    def free_entropy(self, q: np.ndarray, alpha: float, averages: Averages) -> float:
        """Phi at overlaps q with the conjugates that follow from them: log-evidence per d."""
        hats = self.hats(averages.outer, alpha)
        trace = float(np.einsum("cij,cij->", hats, q))
        return -trace / 2 + self.prior.log_integral(hats) + alpha * averages.log_evidence

    def point(self, share: float, guess: Point | None = None, curved: bool = False) -> Point:
        """The solution whose overlaps have a given share, and the alpha that belongs to it.

        For one unknown this is alpha(q) itself; else Newton in the overlaps and log alpha at fixed share.

        Raises:
            NotConvergedError: Newton fails.
        """
        if self.pack(self.rho).size == 1:
            q = share * self.everything
            averages = self.channel.averages(q, curved)
            return Point(share, self._alpha(q, averages), q, averages)
        q = share * self.everything if guess is None else guess.q * (share / guess.share)
        alpha = 1.0 if guess is None else guess.alpha
        x = np.append(self.pack(q), np.log(alpha))
        for _ in range(30):
            averages = self.channel.averages(self.unpack(x[:-1]), curved=True)
            value = self._gap(x, share, averages)
            if np.abs(value).max() < 1e-12:
                break
            x = x - np.linalg.solve(self._gap_slope(x, averages), value)
        else:
            raise NotConvergedError(
                f"no solution of state evolution was found at a fraction {share:.6g} of the overlap"
            )
        q = self.unpack(x[:-1])
        return Point(share, float(np.exp(x[-1])), q, averages)

    def _gap(self, x: np.ndarray, share: float, averages: Averages) -> np.ndarray:
        q = self.unpack(x[:-1])
        scale = np.abs(self.pack(self.rho)).max()
        gap = self.pack(self.reached(averages, float(np.exp(x[-1]))) - q) / scale
        return np.append(gap, self.share(q) - share)

    def _gap_slope(self, x: np.ndarray, averages: Averages) -> np.ndarray:
        """Derivative of `_gap` in overlaps and log alpha."""
        alpha, size = float(np.exp(x[-1])), len(x) - 1
        scale = np.abs(self.pack(self.rho)).max()
        hats = self.hats(averages.outer, alpha)
        slope = np.zeros((size + 1, size + 1))
        slope[:size, :size] = (self.jacobian(averages, alpha) - np.eye(size)) / scale
        slope[:size, size] = self.pack(self.prior.slope(hats, hats[None])[0]) / scale
        slope[size, :size] = [self.share(self.unpack(unit)) for unit in np.eye(size)]
        return slope

    def _alpha(self, q: np.ndarray, averages: Averages) -> float:
        """The alpha at which one scalar overlap reproduces itself: the prior's inverse over the channel's average."""
        target = float(self.pack(q)[0])

        def excess(log_alpha: float) -> float:
            return float(self.pack(self.prior.overlaps(self.hats(averages.outer, np.exp(log_alpha))))[0]) - target

        low = high = 0.0
        while excess(low) > 0:
            low -= 2.0
            if low < -40:
                raise NotConvergedError("the overlap asked for is known before any sample is seen")
        while excess(high) < 0:
            high += 2.0
            if high > 40:
                raise NotConvergedError("no sample complexity reaches the overlap asked for")
        return float(np.exp(brentq(excess, low, high, xtol=1e-15, rtol=4 * np.finfo(float).eps)))
