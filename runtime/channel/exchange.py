"""Product rules under the discrete symmetries of the channel: one node of Y per orbit, averages over the group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ..problems.overlaps import Overlaps, UnitOverlaps
from ..problems.problem import Problem
from ..problems.symmetry import EXACT, Exchange, loss_exchanges
from .fields import Fields

Axis = tuple[np.ndarray, np.ndarray]
"""Nodes and weights of a coordinate."""
Moments = Sequence[tuple[str, tuple[int, ...], int]]
"""The generated MOMENTS: name, shape and place in a row of each."""

_NODE_ROUNDING = 1e-10  # distance in standard normal coordinates up to which two nodes are the same
_BLOCK = 8192  # nodes that fit a processor's cache


@dataclass(frozen=True)
class Reduction:
    """A group of exchanges under which the law of the fields, the loss and mostly the nodes of a rule are invariant.

    The identity is left out. Without exchanges nothing is reduced.
    """

    exchanges: tuple[Exchange, ...]

    @classmethod
    def of_rule(
        cls, problem: Problem, fields: Fields, labels: tuple[int, ...], axes: Sequence[Axis] | None
    ) -> Reduction:
        """Return the symmetries of a rule's nodes for one assignment of labels.

        Args:
            problem: problem whose loss decides.
            fields: law of the fields.
            labels: label of every token.
            axes: nodes and weights of every coordinate of Y, then of the noise; None for a rule that is no product,
                which has no symmetries.
        """
        if not axes:
            return cls(())
        return cls.of_fields(problem, fields, labels).subgroup(lambda e: _is_node_symmetry(e, problem, axes))

    @classmethod
    def of_fields(cls, problem: Problem, fields: Fields, labels: tuple[int, ...]) -> Reduction:
        """Return the symmetries of loss and fields for one assignment of labels, whether or not nodes are invariant.

        Args:
            problem: problem whose loss decides.
            fields: law of the fields.
            labels: label of every token.
        """
        found = [e for e in loss_exchanges(problem)[labels] if tuple(labels[l] for l in e.tokens) == labels]
        if not found:
            return cls(())
        blocks = _law_blocks(fields)
        law = np.concatenate([block.ravel() for block in blocks])
        tolerance = np.concatenate([np.full(block.size, EXACT * np.abs(block).max(initial=0.0)) for block in blocks])
        shapes = tuple(block.shape for block in blocks)

        def _keeps_law(exchange: Exchange) -> bool:
            places, signs = _law_permutation(exchange, shapes)
            return bool((np.abs(law - law[places] * signs) <= tolerance).all())

        return cls(tuple(e for e in found if _keeps_law(e)))

    def subgroup(self, keeps: Callable[[Exchange], bool]) -> Reduction:
        """Return the subgroup of the exchanges that fulfil a condition."""
        return Reduction(tuple(e for e in self.exchanges if keeps(e)))

    def orbit_sizes(self, nodes: np.ndarray, teacher_rank: int, student_rank: int = 0) -> np.ndarray:
        """Return how many nodes each node represents, (N,): 0 for those that another one represents.

        Args:
            nodes: (N, coordinates of Y, of omega where student_rank is given, and of the noise), standard normal.
            teacher_rank: columns of the teacher, t.
            student_rank: columns of the student, s; 0 where nodes have no coordinates of omega.
        """
        if not self.exchanges:
            return np.ones(len(nodes))
        # A number for every node that no two share by chance: the node of an orbit with the largest one is visited.
        number = np.sqrt(np.arange(2.0, 2.0 + nodes.shape[1]))
        # An exchange is orthogonal: the numbers of all images.
        unit = np.eye(nodes.shape[1])
        images = [exchange_nodes(exchange, unit, teacher_rank, student_rank) @ number for exchange in self.exchanges]
        out = np.zeros(len(nodes))
        for begin in range(0, len(nodes), _BLOCK):  # within a processor's cache
            left = nodes[begin : begin + _BLOCK]
            own, fixed, kept = left @ number, np.ones(len(left)), np.arange(begin, begin + len(left))
            for image in images:
                gap = own - left @ image
                first = gap > -_NODE_ROUNDING
                left, own, kept = left[first], own[first], kept[first]
                fixed = fixed[first] + (np.abs(gap[first]) <= _NODE_ROUNDING)
            out[kept] = self._group_order / fixed
        return out

    def average_moments(self, out: np.ndarray, row: int, moments: Moments) -> np.ndarray:
        """Return the sums with token rows averaged over the group; what follows them is invariant.

        Args:
            out: token rows (L row,), then other sums.
            row: length of a token's row.
            moments: the generated MOMENTS.
        """
        if not self.exchanges:
            return out
        tokens = len(self.exchanges[0].tokens)
        rows = out[: tokens * row].reshape(tokens, row)
        total = rows + sum(e.exchange_moments(rows, moments) for e in self.exchanges)
        return np.concatenate([total.ravel() / self._group_order, out[tokens * row :]])

    def average_tangents(
        self, out: np.ndarray, row: int, moments: Moments, units: UnitOverlaps, clusters: int
    ) -> np.ndarray:
        """Return derivatives (L row, n) of the token rows in the packed overlaps, averaged over the group.

        Args:
            out: these derivatives before averaging.
            row: length of a token's row.
            moments: the generated MOMENTS.
            units: unit vectors of the packed overlaps.
            clusters: number of clusters.
        """
        total = out.copy()
        for e in self.exchanges:
            images = (out @ _packed_matrix(e, units, clusters).T).T.reshape(len(units), -1, row)
            total += np.stack([e.exchange_moments(rows, moments).ravel() for rows in images], axis=1)
        return total / self._group_order

    def average_slope(self, values: np.ndarray) -> np.ndarray:
        """Return E[G_ll], (L, s, s), averaged over the group."""
        total = values.copy()
        for e in self.exchanges:
            sign = np.array(e.student, float)
            total += values[e.order] * np.multiply.outer(sign, sign)
        return total / self._group_order

    def average_square(self, values: np.ndarray) -> np.ndarray:
        """Return E[G_ll' (x) G_ll'], (L, L, s, s, s, s), averaged over the group."""
        total = values.copy()
        for e in self.exchanges:
            sign = np.array(e.student, float)
            total += np.einsum("lmaebf,a,e,b,f->lmaebf", values[e.order][:, e.order], sign, sign, sign, sign)
        return total / self._group_order

    @cached_property
    def _group_order(self) -> int:
        return 1 + len(self.exchanges)


def _packed_matrix(exchange: Exchange, units: UnitOverlaps, clusters: int) -> np.ndarray:
    """Return the exchange as an orthogonal matrix (n, n) on packed overlaps."""
    unpacked = [Overlaps.unpack(unit, units.sizes) for unit in np.eye(len(units))]
    return np.stack([exchange.exchange_overlaps(one, clusters).pack() for one in unpacked], axis=1)


def exchange_nodes(exchange: Exchange, nodes: np.ndarray, teacher_rank: int, student_rank: int = 0) -> np.ndarray:
    """Return the images of nodes in the standard normal coordinates of Y, of omega and of the noise.

    Args:
        exchange: symmetry to apply.
        nodes: (N, dimension).
        teacher_rank: columns of the teacher, t.
        student_rank: columns of the student, s; 0 where nodes have no coordinates of omega.
    """
    tokens = len(exchange.tokens)
    y, x = tokens * teacher_rank, tokens * student_rank
    known, fields, noise = np.split(nodes, [y, y + x], axis=1)
    images = [
        block.reshape(len(nodes), tokens, -1)[:, exchange.order] * np.array(signs, float)
        for block, signs in ((known, exchange.teacher), (fields, exchange.student))
        if block.size
    ]
    return np.concatenate([*(image.reshape(len(nodes), -1) for image in images), exchange.noise * noise], axis=1)


def _law_blocks(fields: Fields) -> tuple[np.ndarray, ...]:
    """Return the arrays that define the law of the fields, in the order of `_AXIS_KINDS`."""
    return (
        fields.teacher_mean,
        fields.teacher_factor,
        fields.field_mean,
        fields.field_from_teacher,
        fields.field_factor,
        fields.variance,
    )


_AXIS_KINDS = "t", "tt", "s", "st", "ss", "ss"  # axes after that of the tokens: columns of the teacher, of the student


@lru_cache(maxsize=1024)
def _law_permutation(exchange: Exchange, shapes: tuple[tuple[int, ...], ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return an exchange of the law of the fields as places and signs of entries of its joined, flattened blocks."""
    columns = {"s": np.array(exchange.student, float), "t": np.array(exchange.teacher, float)}
    places, signs, first = [], [], 0
    for shape, kind in zip(shapes, _AXIS_KINDS, strict=True):
        size = int(np.prod(shape))
        places.append(np.arange(first, first + size).reshape(shape)[exchange.order].ravel())
        sign = np.ones(())
        for axis in kind:
            sign = np.multiply.outer(sign, columns[axis])
        signs.append(np.broadcast_to(sign, shape).ravel())
        first += size
    return np.concatenate(places), np.concatenate(signs)


def _is_node_symmetry(exchange: Exchange, problem: Problem, axes: Sequence[Axis]) -> bool:
    """Whether the product of the axes is the same set of nodes and weights after the exchange."""
    teachers = problem.teacher_rank
    for l, source in enumerate(exchange.tokens):
        for b, sign in enumerate(exchange.teacher):
            if not _is_same_axis(axes[l * teachers + b], axes[source * teachers + b], sign):
                return False
    return all(_is_same_axis(axis, axis, exchange.noise) for axis in axes[problem.tokens * teachers :])


def _is_same_axis(one: Axis, other: Axis, sign: int) -> bool:
    nodes, weights = other if sign > 0 else (-other[0][::-1], other[1][::-1])
    return len(nodes) == len(one[0]) and np.allclose(one[0], nodes, 0, 1e-10) and np.allclose(one[1], weights, 1e-9, 0)
