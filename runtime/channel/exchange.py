"""Symmetry reduction of product rules: one node of Y per orbit, averages over the symmetry group of the channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ..problems.overlaps import Overlaps, UnitOverlaps
from ..problems.problem import Problem
from ..problems.symmetry import EXACT, SignedPermutation, loss_symmetries
from .fields import FieldLaw

Axis = tuple[np.ndarray, np.ndarray]
"""Nodes and weights of a coordinate."""
Moments = Sequence[tuple[str, tuple[int, ...], int]]
"""The generated MOMENTS: name, shape and offset of every moment of a token."""

_NODE_ROUNDING = 1e-10  # distance in standard normal coordinates up to which two nodes are the same
_BLOCK = 8192  # nodes that fit a processor's cache


@dataclass(frozen=True)
class SymmetryReduction:
    """A group of exchanges that leave the law of the fields, the loss and mostly the quadrature nodes invariant.

    The identity is left out; an empty group stands for no symmetry.
    """

    exchanges: tuple[SignedPermutation, ...]

    @classmethod
    def from_rule_nodes(
        cls, problem: Problem, fields: FieldLaw, labels: tuple[int, ...], axes: Sequence[Axis] | None
    ) -> SymmetryReduction:
        """Return the exchanges that leave loss, law and quadrature nodes invariant, for one assignment of labels.

        Args:
            problem: problem that defines the loss.
            fields: law of the fields.
            labels: label of every token.
            axes: nodes and weights of every coordinate of Y, then of the noise; None for a rule that is no product,
                which has no symmetries.
        """
        if not axes:
            return cls(())
        return cls.from_field_law(problem, fields, labels).subgroup(lambda e: _is_node_symmetry(e, problem, axes))

    @classmethod
    def from_field_law(cls, problem: Problem, fields: FieldLaw, labels: tuple[int, ...]) -> SymmetryReduction:
        """Return the exchanges that leave loss and law of the fields invariant, for one assignment of labels.

        Args:
            problem: problem that defines the loss.
            fields: law of the fields.
            labels: label of every token.
        """
        found = [e for e in loss_symmetries(problem)[labels] if tuple(labels[l] for l in e.tokens) == labels]
        if not found:
            return cls(())
        blocks = _field_law_arrays(fields)
        law = np.concatenate([block.ravel() for block in blocks])
        tolerance = np.concatenate([np.full(block.size, EXACT * np.abs(block).max(initial=0.0)) for block in blocks])
        shapes = tuple(block.shape for block in blocks)

        def _preserves_field_law(exchange: SignedPermutation) -> bool:
            places, signs = _field_law_permutation(exchange, shapes)
            return bool((np.abs(law - law[places] * signs) <= tolerance).all())

        return cls(tuple(e for e in found if _preserves_field_law(e)))

    def subgroup(self, keeps: Callable[[SignedPermutation], bool]) -> SymmetryReduction:
        """Return the subgroup of the exchanges that satisfy a condition."""
        return SymmetryReduction(tuple(e for e in self.exchanges if keeps(e)))

    def orbit_sizes(self, nodes: np.ndarray, teacher_rank: int, student_rank: int = 0) -> np.ndarray:
        """Return the orbit size of one node per orbit and 0 for all other nodes, (N,).

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
        images = [
            apply_exchange_to_nodes(exchange, unit, teacher_rank, student_rank) @ number for exchange in self.exchanges
        ]
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

    def average_moments_over_group(self, out: np.ndarray, row: int, moments: Moments) -> np.ndarray:
        """Return channel sums with the moments of the tokens averaged over the group.

        Args:
            out: moments of all tokens (L row,), then invariant sums.
            row: number of moments per token.
            moments: the generated MOMENTS.
        """
        if not self.exchanges:
            return out
        tokens = len(self.exchanges[0].tokens)
        rows = out[: tokens * row].reshape(tokens, row)
        total = rows + sum(e.permute_channel_averages(rows, moments) for e in self.exchanges)
        return np.concatenate([total.ravel() / self._group_order, out[tokens * row :]])

    def average_derivatives_over_group(
        self, out: np.ndarray, row: int, moments: Moments, units: UnitOverlaps, clusters: int
    ) -> np.ndarray:
        """Return derivatives (L row, n) of the moments in the packed overlaps, averaged over the group.

        Args:
            out: derivatives before averaging.
            row: number of moments per token.
            moments: the generated MOMENTS.
            units: unit vectors of the packed overlaps.
            clusters: number of clusters.
        """
        total = out.copy()
        for e in self.exchanges:
            images = (out @ _exchange_matrix_on_overlaps(e, units, clusters).T).T.reshape(len(units), -1, row)
            total += np.stack([e.permute_channel_averages(rows, moments).ravel() for rows in images], axis=1)
        return total / self._group_order

    def average_jacobian_over_group(self, values: np.ndarray) -> np.ndarray:
        """Return the mean Jacobians E[G_ll], G = dg/domega, (L, s, s), averaged over the group."""
        total = values.copy()
        for e in self.exchanges:
            sign = np.array(e.student, float)
            total += values[e.token_order] * np.multiply.outer(sign, sign)
        return total / self._group_order

    def average_squared_jacobian_over_group(self, values: np.ndarray) -> np.ndarray:
        """Return the mean squares E[G_ll' (x) G_ll'] of Jacobians, (L, L, s, s, s, s), averaged over the group."""
        total = values.copy()
        for e in self.exchanges:
            sign = np.array(e.student, float)
            total += np.einsum(
                "lmaebf,a,e,b,f->lmaebf", values[e.token_order][:, e.token_order], sign, sign, sign, sign
            )
        return total / self._group_order

    @cached_property
    def _group_order(self) -> int:
        return 1 + len(self.exchanges)


def _exchange_matrix_on_overlaps(exchange: SignedPermutation, units: UnitOverlaps, clusters: int) -> np.ndarray:
    """Return the orthogonal matrix (n, n) by which an exchange acts on packed overlaps."""
    unpacked = [Overlaps.unpack(unit, units.sizes) for unit in np.eye(len(units))]
    return np.stack([exchange.permute_overlaps(one, clusters).pack() for one in unpacked], axis=1)


def apply_exchange_to_nodes(
    exchange: SignedPermutation, nodes: np.ndarray, teacher_rank: int, student_rank: int = 0
) -> np.ndarray:
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
        block.reshape(len(nodes), tokens, -1)[:, exchange.token_order] * np.array(signs, float)
        for block, signs in ((known, exchange.teacher), (fields, exchange.student))
        if block.size
    ]
    return np.concatenate([*(image.reshape(len(nodes), -1) for image in images), exchange.noise * noise], axis=1)


def _field_law_arrays(fields: FieldLaw) -> tuple[np.ndarray, ...]:
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
def _field_law_permutation(
    exchange: SignedPermutation, shapes: tuple[tuple[int, ...], ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the permutation and signs by which an exchange acts on the flattened arrays of the field law."""
    columns = {"s": np.array(exchange.student, float), "t": np.array(exchange.teacher, float)}
    places, signs, first = [], [], 0
    for shape, kind in zip(shapes, _AXIS_KINDS, strict=True):
        size = int(np.prod(shape))
        places.append(np.arange(first, first + size).reshape(shape)[exchange.token_order].ravel())
        sign = np.ones(())
        for axis in kind:
            sign = np.multiply.outer(sign, columns[axis])
        signs.append(np.broadcast_to(sign, shape).ravel())
        first += size
    return np.concatenate(places), np.concatenate(signs)


def _is_node_symmetry(exchange: SignedPermutation, problem: Problem, axes: Sequence[Axis]) -> bool:
    """Return whether an exchange maps the nodes and weights of a product rule to themselves."""
    teachers = problem.teacher_rank
    for l, source in enumerate(exchange.tokens):
        for b, sign in enumerate(exchange.teacher):
            if not _is_equal_axis_up_to_sign(axes[l * teachers + b], axes[source * teachers + b], sign):
                return False
    return all(_is_equal_axis_up_to_sign(axis, axis, exchange.noise) for axis in axes[problem.tokens * teachers :])


def _is_equal_axis_up_to_sign(one: Axis, other: Axis, sign: int) -> bool:
    nodes, weights = other if sign > 0 else (-other[0][::-1], other[1][::-1])
    return len(nodes) == len(one[0]) and np.allclose(one[0], nodes, 0, 1e-10) and np.allclose(one[1], weights, 1e-9, 0)
