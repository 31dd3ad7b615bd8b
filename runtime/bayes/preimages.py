"""Averages where all columns of the teacher but one are known exactly: of its fields the finitely many values are left
that what is observed allows (docs/theory.md (13.16)).

At known columns the fields of the one that is left and what is observed are as many numbers, and the posterior is a sum
over the points that the channel takes to what is observed. They are found by Newton's method from a lattice of starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .. import budget
from ..channel.lattices import points_in_ball, sampling_lattice
from ..channel.nodes import gauss_hermite, tensor
from ..errors import InputError, NotConvergedError
from ..problems.problem import Problem
from .averages import Averages, add_up, half
from .planted import Planted, suits

_REACH = 5.0  # standard deviations of the column's fields among starts
_STEP = 2e-3  # of central differences of fourth order
_ITERATIONS, _FAR = 25, 12.0  # and standard deviations at which they end
_SOLVED, _STILL, _SAME = 1e-9, 1e-6, 1e-4  # of what is observed, and of the fields: a last move, and a distance
_FLAT, _EXACT = 1e-12, 1e-11  # determinants of slopes that rounding hides; of what is observed, where no step is needed
_MOST, _AT_ONCE = 30_000, 256  # sentences


@dataclass
class Preimages:
    """The rule.

    Attributes:
        of: the column that is left, from 0 on; even: whether what is observed tells no column's sign;
            points: of every field, an even number; starts: across the lattice of starts.

    Raises:
        InputError: a channel whose hidden coordinates are not fields, or that does not show as many numbers as the
            column has fields.
    """

    problem: Problem
    of: int
    even: bool = False
    points: int = 6
    starts: int = 10

    def __post_init__(self) -> None:
        module = self.problem.solver.bayes
        if not (suits(module) and Planted(self.problem).hides) or len(module.OBSERVED) != self.problem.tokens:
            raise InputError(
                f"column {self.of + 1} of {self.problem.solver.name} is asked for with the others known exactly: what "
                "is observed must then be as many numbers as it has fields, and hidden ones fields"
            )

    def averages(self) -> Averages:
        """Of the column alone, nothing being known of it: E g_l g_l^T, and how it responds to its overlaps.

        Raises:
            NotConvergedError: too many sentences.
        """
        law, t, of = self.problem.law, self.problem.teacher_rank, self.of
        outer, response = np.zeros_like(law.rho_star), np.zeros((*law.rho_star.shape, *law.rho_star.shape))
        nodes, shares = self._nodes()
        for labels, probability in self.problem.label_choices:
            contexts = self.problem.context_of(labels)
            own, precision = law.rho_star[contexts][:, of, of], 1 / law.rho_star[contexts][:, of, of]
            factor = np.linalg.cholesky(law.rho_star[contexts])
            fields = np.einsum("lab,nlb->nla", factor, nodes.reshape(len(nodes), -1, t)).reshape(len(nodes), -1)
            fields += law.teacher_means[contexts].ravel()
            mean = law.teacher_means[contexts][:, of]
            told, total = np.zeros(len(own)), np.zeros((len(own), len(own)))
            for begin in range(0, len(fields), _AT_ONCE):
                budget.check()
                part, weights = fields[begin : begin + _AT_ONCE], shares[begin : begin + _AT_ONCE]
                rows, values, probabilities = self.left(part, labels)
                centre = np.zeros((len(part), len(own)))
                np.add.at(centre, rows, probabilities[:, None] * values)
                covariance = np.zeros((len(part), len(own), len(own)))
                apart = values - centre[rows]
                np.add.at(covariance, rows, probabilities[:, None, None] * apart[:, :, None] * apart[:, None])
                told += weights @ (precision * (centre - mean)) ** 2
                curvature = precision[:, None] * (covariance - np.diag(own)) * precision
                total += np.einsum("n,nlk->lk", weights, curvature**2)
            squares = np.zeros((len(own), t, t, len(own), t, t))
            squares[:, of, of, :, of, of] = total
            first = np.zeros((len(own), t, t))
            first[:, of, of] = told
            add_up(outer, response, contexts, probability * np.concatenate([first.ravel(), squares.ravel()]))
        return Averages(outer, np.nan, float(shares.sum()), response)

    @property
    def spacing(self) -> float:
        """Of the lattice of starts, in standard deviations."""
        return 2 * _REACH / self.starts

    @cached_property
    def planted(self) -> Planted:
        """What is observed at fields."""
        return Planted(self.problem)

    def _nodes(self) -> tuple[np.ndarray, np.ndarray]:
        size = self.problem.tokens * self.problem.teacher_rank
        if self.points**size > 4 * _MOST:
            raise NotConvergedError(
                f"{self.points} points of each of {size} fields are too many; ask for a larger --accuracy"
            )
        nodes, shares = tensor([gauss_hermite(self.points)] * size)
        if self.even:
            nodes, shares = half(nodes, shares)
        # Turned, so that no two fields are equal where a channel is singular; as exact for polynomials of total degree.
        nodes = nodes @ np.linalg.qr(np.random.default_rng(0).normal(size=(size, size)))[0]
        kept = shares > 1e-14
        if kept.sum() > _MOST:
            raise NotConvergedError(
                f"{self.points} points of each of {size} fields are too many; ask for a larger --accuracy"
            )
        return nodes[kept], shares[kept]

    def left(self, fields: np.ndarray, labels: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What the column's fields may be at what is observed of sentences: rows (K,) of `fields`, values (K, L), and
        probabilities (K,), which add up to one for each row.

        Args:
            fields: the true ones, (N, L t), of which other columns are known.
        """
        contexts, law = self.problem.context_of(labels), self.problem.law
        mean, variance = law.teacher_means[contexts][:, self.of], law.rho_star[contexts][:, self.of, self.of]
        rows, values = self._solutions(fields, labels)
        slope = self._forward(rows, values, fields, labels)[1]
        with np.errstate(divide="ignore"):
            logs = -np.maximum(np.linalg.slogdet(slope)[1], -700.0) - ((values - mean) ** 2 / variance).sum(axis=1) / 2
        top = np.full(len(fields), -np.inf)
        np.maximum.at(top, rows, logs)
        weights = np.exp(logs - top[rows])
        return rows, values, weights / np.bincount(rows, weights, len(fields))[rows]

    def _forward(
        self, rows: np.ndarray, values: np.ndarray, fields: np.ndarray, labels: tuple[int, ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        """What is observed (K, L) where the column's fields are `values` (K, L), and its slope (K, L, L) in them."""
        count, size = values.shape
        moves = _STEP * np.concatenate([np.zeros((1, size)), *(k * np.eye(size) for k in (1, -1, 2, -2))])
        every = np.tile(fields[rows], (len(moves), 1))
        every[:, self.of :: self.problem.teacher_rank] = (values + moves[:, None]).reshape(-1, size)
        seen = self.planted.observed(every, labels).reshape(len(moves), count, size)
        right, left, far_right, far_left = seen[1:].reshape(4, size, count, size)
        return seen[0], np.moveaxis((8 * (right - left) - far_right + far_left) / (12 * _STEP), 0, 2)

    def _solutions(self, fields: np.ndarray, labels: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Rows (K,) and values (K, L) of the column's fields at which what is observed is as at `fields`."""
        truth, law = fields[:, self.of :: self.problem.teacher_rank], self.problem.law
        contexts = self.problem.context_of(labels)
        mean, variance = law.teacher_means[contexts][:, self.of], law.rho_star[contexts][:, self.of, self.of]
        wanted = self.planted.observed(fields, labels)
        every = np.arange(len(fields))
        # Where the channel is flat rounding hides all solutions but the true one and, by symmetry, its mirror image.
        mirrored = np.abs(self._forward(every, -truth, fields, labels)[0] - wanted).max(axis=1) < _EXACT
        found = [(every, truth), (every[mirrored], -truth[mirrored])]
        starts = mean + np.sqrt(variance) * self.spacing * points_in_ball(
            sampling_lattice(truth.shape[1]), _REACH / self.spacing
        )
        rows, values = np.repeat(every, len(starts)), np.tile(starts, (len(fields), 1))
        moved = np.full(len(values), np.inf)
        for _ in range(_ITERATIONS):
            seen, slope = self._forward(rows, values, fields, labels)
            gap = seen - wanted[rows]
            good = np.isfinite(gap).all(axis=1) & np.isfinite(slope).all(axis=(1, 2))
            # A slope that is none leads nowhere; the others' steps are held to the distance of starts.
            good[good] = np.abs(np.linalg.det(slope[good])) > _FLAT
            solved = good & (np.abs(gap).max(axis=1) < _SOLVED) & (moved < _STILL)
            found.append((rows[solved], values[solved]))
            left = good & ~solved & (np.abs(values - mean) < _FAR * np.sqrt(variance)).all(axis=1)
            if not left.any():
                break
            step = np.linalg.solve(slope[left], gap[left][:, :, None])[:, :, 0]
            moved, rows = np.abs(step).max(axis=1), rows[left]
            values = values[left] - step * np.minimum(1.0, self.spacing / np.maximum(moved, 1e-300))[:, None]
        return _distinct(*(np.concatenate(part) for part in zip(*found, strict=True)))


def _distinct(rows: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One of solutions of a row that are closer than Newton's method tells apart."""
    order = np.argsort(rows, kind="stable")
    kept: list[int] = []
    first = 0
    for n in order:
        if kept[first:] and rows[kept[-1]] != rows[n]:
            first = len(kept)
        if all(np.abs(values[n] - values[m]).max() > _SAME for m in kept[first:]):
            kept.append(int(n))
    return rows[kept], values[kept]
