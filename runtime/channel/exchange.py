"""Product rules under the discrete symmetries of the channel: one node of Y of every orbit, averages over the group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ..problems.overlaps import Overlaps, Units
from ..problems.problem import Problem
from ..problems.symmetry import EXACT, Exchange, loss_exchanges
from .fields import Fields

Axis = tuple[np.ndarray, np.ndarray]
"""Nodes and weights of a coordinate."""
Moments = Sequence[tuple[str, tuple[int, ...], int]]
"""The generated MOMENTS: name, shape and place in a row of each."""

_SAME = 1e-10  # of nodes that an exchange takes to each other, up to rounding
_BLOCK = 8192


@dataclass(frozen=True)
class Reduction:
    """Exchanges under which the law of the fields and the loss are invariant, and most often the nodes of a rule, the
    identity left out. Nothing is reduced where there are none."""

    exchanges: tuple[Exchange, ...]

    @classmethod
    def of(cls, problem: Problem, fields: Fields, labels: tuple[int, ...], axes: Sequence[Axis] | None) -> Reduction:
        """Those for one assignment of labels.

        Args:
            axes: nodes and weights of every coordinate of Y, then of the noise; None of a rule that is no product,
                which has none of the symmetries.
        """
        if not axes:
            return cls(())
        return cls.in_fields(problem, fields, labels).where(lambda e: _keeps_nodes(e, problem, axes))

    @classmethod
    def in_fields(cls, problem: Problem, fields: Fields, labels: tuple[int, ...]) -> Reduction:
        """Those for one assignment of labels, whether a rule's nodes are invariant or not."""
        found = [e for e in loss_exchanges(problem)[labels] if tuple(labels[l] for l in e.tokens) == labels]
        if not found:
            return cls(())
        blocks = _blocks_of(fields)
        law = np.concatenate([block.ravel() for block in blocks])
        most = np.concatenate([np.full(block.size, EXACT * np.abs(block).max(initial=0.0)) for block in blocks])
        shapes = tuple(block.shape for block in blocks)

        def kept(exchange: Exchange) -> bool:
            places, signs = _image_of(exchange, shapes)
            return bool((np.abs(law - law[places] * signs) <= most).all())

        return cls(tuple(e for e in found if kept(e)))

    def where(self, keeps: Callable[[Exchange], bool]) -> Reduction:
        """The subgroup that keeps something else, too."""
        return Reduction(tuple(e for e in self.exchanges if keeps(e)))

    def orbits(self, nodes: np.ndarray, teacher_rank: int, student_rank: int = 0) -> np.ndarray:
        """(N,): how many nodes each stands for, 0 for those that another one stands for.

        Args:
            nodes: (N, coordinates of Y, of omega where student_rank is given, and of the noise), standard normal.
        """
        if not self.exchanges:
            return np.ones(len(nodes))
        # A number for every node that no two share by chance: of an orbit, the node with the largest is visited.
        number = np.sqrt(np.arange(2.0, 2.0 + nodes.shape[1]))
        # An exchange is orthogonal: of all images, these are the numbers.
        unit = np.eye(nodes.shape[1])
        images = [moved(exchange, unit, teacher_rank, student_rank) @ number for exchange in self.exchanges]
        out = np.zeros(len(nodes))
        for begin in range(0, len(nodes), _BLOCK):  # within a processor's cache
            left = nodes[begin : begin + _BLOCK]
            own, fixed, kept = left @ number, np.ones(len(left)), np.arange(begin, begin + len(left))
            for image in images:
                gap = own - left @ image
                first = gap > -_SAME
                left, own, kept = left[first], own[first], kept[first]
                fixed = fixed[first] + (np.abs(gap[first]) <= _SAME)
            out[kept] = self._size / fixed
        return out

    def moments(self, out: np.ndarray, row: int, moments: Moments) -> np.ndarray:
        """Token rows averaged over the group; what follows them in `out` is invariant."""
        if not self.exchanges:
            return out
        tokens = len(self.exchanges[0].tokens)
        rows = out[: tokens * row].reshape(tokens, row)
        total = rows + sum(e.of_moments(rows, moments) for e in self.exchanges)
        return np.concatenate([total.ravel() / self._size, out[tokens * row :]])

    def tangents(self, out: np.ndarray, row: int, moments: Moments, units: Units, clusters: int) -> np.ndarray:
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


def moved(exchange: Exchange, nodes: np.ndarray, teacher_rank: int, student_rank: int = 0) -> np.ndarray:
    """The images of nodes in the standard normal coordinates of Y, of omega where student_rank is given, and of the
    noise."""
    tokens = len(exchange.tokens)
    y, x = tokens * teacher_rank, tokens * student_rank
    known, fields, noise = np.split(nodes, [y, y + x], axis=1)
    images = [
        block.reshape(len(nodes), tokens, -1)[:, exchange.order] * np.array(signs, float)
        for block, signs in ((known, exchange.teacher), (fields, exchange.student))
        if block.size
    ]
    return np.concatenate([*(image.reshape(len(nodes), -1) for image in images), exchange.noise * noise], axis=1)


def _blocks_of(fields: Fields) -> tuple[np.ndarray, ...]:
    """What the law of the fields consists of, in the order of `_KINDS`."""
    return (
        fields.teacher_mean,
        fields.teacher_factor,
        fields.field_mean,
        fields.field_from_teacher,
        fields.field_factor,
        fields.variance,
    )


_KINDS = "t", "tt", "s", "st", "ss", "ss"  # axes after that of the tokens: columns of the teacher, of the student


@lru_cache(maxsize=1024)
def _image_of(exchange: Exchange, shapes: tuple[tuple[int, ...], ...]) -> tuple[np.ndarray, np.ndarray]:
    """Of the blocks of the law of the fields, side by side: where entries of the image are taken from, and signs."""
    columns = {"s": np.array(exchange.student, float), "t": np.array(exchange.teacher, float)}
    places, signs, first = [], [], 0
    for shape, kind in zip(shapes, _KINDS, strict=True):
        size = int(np.prod(shape))
        places.append(np.arange(first, first + size).reshape(shape)[exchange.order].ravel())
        sign = np.ones(())
        for axis in kind:
            sign = np.multiply.outer(sign, columns[axis])
        signs.append(np.broadcast_to(sign, shape).ravel())
        first += size
    return np.concatenate(places), np.concatenate(signs)


def _keeps_nodes(exchange: Exchange, problem: Problem, axes: Sequence[Axis]) -> bool:
    """Whether the product of the axes is the same set of nodes and weights after the exchange."""
    teachers = problem.teacher_rank
    for l, source in enumerate(exchange.tokens):
        for b, sign in enumerate(exchange.teacher):
            if not _same_axis(axes[l * teachers + b], axes[source * teachers + b], sign):
                return False
    return all(_same_axis(axis, axis, exchange.noise) for axis in axes[problem.tokens * teachers :])


def _same_axis(one: Axis, other: Axis, sign: int) -> bool:
    nodes, weights = other if sign > 0 else (-other[0][::-1], other[1][::-1])
    return len(nodes) == len(one[0]) and np.allclose(one[0], nodes, 0, 1e-10) and np.allclose(one[1], weights, 1e-9, 0)
