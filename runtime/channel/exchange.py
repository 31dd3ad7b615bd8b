"""Product rules under the discrete symmetries of the channel: one node of Y of every orbit, averages over the group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..problems.overlaps import Overlaps, Units
from ..problems.problem import Problem
from ..problems.symmetry import EXACT, Exchange, loss_exchanges
from .fields import Fields


@dataclass(frozen=True)
class Reduction:
    """Exchanges under which the law of the fields, the loss and the nodes of a rule are invariant, the identity left
    out. Nothing is reduced where there are none."""

    exchanges: tuple[Exchange, ...]

    @classmethod
    def of(
        cls,
        problem: Problem,
        fields: Fields,
        labels: tuple[int, ...],
        axes: Sequence[tuple[np.ndarray, np.ndarray]] | None,
    ) -> Reduction:
        """Those for one assignment of labels.

        Args:
            axes: nodes and weights of every coordinate of Y, then of the noise; None of a rule that is no product,
                which has none of the symmetries.
        """
        if not axes:
            return cls(())
        found = [e for e in loss_exchanges(problem)[labels] if tuple(labels[l] for l in e.tokens) == labels]
        return cls(tuple(e for e in found if _keeps_fields(e, fields) and _keeps_nodes(e, problem, axes)))

    def orbits(self, nodes: np.ndarray, problem: Problem) -> np.ndarray:
        """(N,): how many nodes each stands for, 0 for those that another one stands for.

        Args:
            nodes: (N, coordinates of Y and of the noise) in standard normal coordinates.
        """
        if not self.exchanges:
            return np.ones(len(nodes))
        keys = np.round(nodes, 9) + 0.0
        images = [np.round(_moved(e, nodes, problem), 9) + 0.0 for e in self.exchanges]
        first, fixed = np.ones(len(nodes), bool), np.ones(len(nodes))
        for image in images:
            different = image != keys
            column = np.argmax(different, axis=1)
            rows = np.arange(len(nodes))
            moved = different[rows, column]
            first &= ~moved | (keys[rows, column] > image[rows, column])
            fixed += ~moved
        return np.where(first, (1 + len(images)) / fixed, 0.0)

    def moments(self, out: np.ndarray, row: int, moments: Sequence[tuple[str, tuple[int, ...], int]]) -> np.ndarray:
        """Token rows averaged over the group; what follows them in `out` is invariant."""
        if not self.exchanges:
            return out
        tokens = len(self.exchanges[0].tokens)
        rows = out[: tokens * row].reshape(tokens, row)
        total = rows + sum(e.of_moments(rows, moments) for e in self.exchanges)
        return np.concatenate([total.ravel() / self._size, out[tokens * row :]])

    def tangents(
        self,
        out: np.ndarray,
        row: int,
        moments: Sequence[tuple[str, tuple[int, ...], int]],
        units: Units,
        clusters: int,
    ) -> np.ndarray:
        """Derivatives (L row, n) of the token rows in the packed overlaps, averaged over the group."""
        total = out.copy()
        for e in self.exchanges:
            moved = (out @ _of_packed(e, units, clusters).T).T.reshape(len(units), -1, row)
            total += np.stack([e.of_moments(rows, moments).ravel() for rows in moved], axis=1)
        return total / self._size

    def slope(self, values: np.ndarray) -> np.ndarray:
        """E[G_ll], (L, s, s), averaged over the group."""
        total = values.copy()
        for e in self.exchanges:
            sign = np.array(e.student, float)
            total += values[e.order] * np.multiply.outer(sign, sign)
        return total / self._size

    def square(self, values: np.ndarray) -> np.ndarray:
        """E[G_ll' (x) G_ll'], (L, L, s, s, s, s), averaged over the group."""
        total = values.copy()
        for e in self.exchanges:
            sign = np.array(e.student, float)
            total += np.einsum("lmaebf,a,e,b,f->lmaebf", values[e.order][:, e.order], sign, sign, sign, sign)
        return total / self._size

    @cached_property
    def _size(self) -> int:
        return 1 + len(self.exchanges)


def _of_packed(exchange: Exchange, units: Units, clusters: int) -> np.ndarray:
    """The exchange as an orthogonal matrix (n, n) on packed overlaps."""
    unpacked = [Overlaps.unpack(unit, units.sizes) for unit in np.eye(len(units))]
    return np.stack([exchange.of_overlaps(one, clusters).pack() for one in unpacked], axis=1)


def _moved(exchange: Exchange, nodes: np.ndarray, problem: Problem) -> np.ndarray:
    """The images of nodes in the coordinates of Y and the noise."""
    tokens, teachers = problem.tokens, problem.teacher_rank
    known = nodes[:, : tokens * teachers].reshape(len(nodes), tokens, teachers)
    image = known[:, exchange.order] * np.array(exchange.teacher, float)
    return np.concatenate([image.reshape(len(nodes), -1), exchange.noise * nodes[:, tokens * teachers :]], axis=1)


def _keeps_fields(exchange: Exchange, fields: Fields) -> bool:
    order, student, teacher = exchange.order, np.array(exchange.student, float), np.array(exchange.teacher, float)
    square, mixed = np.multiply.outer(student, student), np.multiply.outer(student, teacher)
    pairs = (
        (fields.teacher_mean, fields.teacher_mean[order] * teacher),
        (fields.teacher_factor, fields.teacher_factor[order] * np.multiply.outer(teacher, teacher)),
        (fields.field_mean, fields.field_mean[order] * student),
        (fields.field_from_teacher, fields.field_from_teacher[order] * mixed),
        (fields.field_factor, fields.field_factor[order] * square),
        (fields.variance, fields.variance[order] * square),
    )
    return all(bool(np.all(np.abs(one - other) <= EXACT * np.abs(one).max(initial=0.0))) for one, other in pairs)


def _keeps_nodes(exchange: Exchange, problem: Problem, axes: Sequence[tuple[np.ndarray, np.ndarray]]) -> bool:
    """Whether the product of the axes is the same set of nodes and weights after the exchange."""
    teachers = problem.teacher_rank
    for l, source in enumerate(exchange.tokens):
        for b, sign in enumerate(exchange.teacher):
            if not _same_axis(axes[l * teachers + b], axes[source * teachers + b], sign):
                return False
    return all(_same_axis(axis, axis, exchange.noise) for axis in axes[problem.tokens * teachers :])


def _same_axis(one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray], sign: int) -> bool:
    nodes, weights = other if sign > 0 else (-other[0][::-1], other[1][::-1])
    return len(nodes) == len(one[0]) and np.allclose(one[0], nodes, 0, 1e-10) and np.allclose(one[1], weights, 1e-9, 0)
