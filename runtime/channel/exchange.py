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
    """A symmetry group: permutations of tokens and sign flips of columns under which the channel is invariant.

    Attributes:
        exchanges: elements of the group except the identity; empty without symmetry.
    """

    exchanges: tuple[SignedPermutation, ...]

    @classmethod
    def symmetries_of_law_and_nodes(
        cls, problem: Problem, fields: FieldLaw, labels: tuple[int, ...], axes: Sequence[Axis] | None
    ) -> SymmetryReduction:
        """Return the symmetries of the loss, the law of the fields and the quadrature nodes, given the labels.

        Args:
            problem: problem that defines the loss.
            fields: law of the fields.
            labels: label of every token.
            axes: nodes and weights of every teacher field, then of the noise; None for a rule that is no product: the
                group is then empty.
        """
        if not axes:
            return cls(())
        group = cls.symmetries_of_field_law(problem, fields, labels)
        return group.subgroup_satisfying(lambda e: _is_symmetry_of_nodes(e, problem, axes))

    @classmethod
    def symmetries_of_field_law(
        cls, problem: Problem, fields: FieldLaw, labels: tuple[int, ...], tolerance: float = EXACT
    ) -> SymmetryReduction:
        """Return the symmetries of the loss and of the law of the fields, given the labels of the tokens.

        Args:
            problem: problem that defines the loss.
            fields: law of the fields.
            labels: label of every token.
            tolerance: deviation of an invariant law, relative to the size of teacher fields, student fields and V.
        """
        found = [e for e in loss_symmetries(problem)[labels] if tuple(labels[l] for l in e.tokens) == labels]
        if not found:
            return cls(())
        blocks = _arrays_of_field_law(fields)
        law = np.concatenate([block.ravel() for block in blocks])
        sizes = [float(np.abs(block).max(initial=0.0)) for block in blocks]
        units = [max(sizes[:2])] * 2 + [max(sizes[2:5])] * 3 + sizes[5:]  # of teacher fields, student fields and V
        deviations = np.repeat(tolerance * np.array(units), [block.size for block in blocks])
        shapes = tuple(block.shape for block in blocks)

        def _preserves_field_law(exchange: SignedPermutation) -> bool:
            places, signs = _permutation_of_field_law_arrays(exchange, shapes)
            return bool((np.abs(law - law[places] * signs) <= deviations).all())

        return cls(tuple(e for e in found if _preserves_field_law(e)))

    def subgroup_satisfying(self, keeps: Callable[[SignedPermutation], bool]) -> SymmetryReduction:
        """Return the group of those symmetries that satisfy a condition."""
        return SymmetryReduction(tuple(e for e in self.exchanges if keeps(e)))

    def orbit_sizes(self, nodes: np.ndarray, teacher_rank: int, student_rank: int = 0) -> np.ndarray:
        """Return a weight of each node: the size of its orbit for one node per orbit, 0 for the other nodes.

        Args:
            nodes: standard normal coordinates of teacher fields, of student fields (if `student_rank` is given) and of
                noise, one node per row.
            teacher_rank: columns of the teacher, t.
            student_rank: columns of the student, s; 0 where nodes have no coordinates of the student field omega.
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
            out[kept] = self._order_of_symmetry_group / fixed
        return out

    def average_moments_over_group(self, out: np.ndarray, row: int, moments: Moments) -> np.ndarray:
        """Return channel sums with the tokens' moments averaged over these symmetries of the channel.

        Args:
            out: moments of one token after the other, then sums that are invariant.
            row: number of moments per token.
            moments: name, shape and offset of each moment of a token (MOMENTS of the generated channel).
        """
        if not self.exchanges:
            return out
        tokens = len(self.exchanges[0].tokens)
        rows = out[: tokens * row].reshape(tokens, row)
        total = rows + sum(e.permute_channel_averages(rows, moments) for e in self.exchanges)
        return np.concatenate([total.ravel() / self._order_of_symmetry_group, out[tokens * row :]])

    def average_derivatives_over_group(
        self, out: np.ndarray, row: int, moments: Moments, units: UnitOverlaps, clusters: int
    ) -> np.ndarray:
        """Return derivatives of the moments in the packed overlaps, averaged over these symmetries of the channel.

        Args:
            out: derivatives before averaging, shape (moments of all tokens, packed overlaps).
            row: number of moments per token.
            moments: name, shape and offset of each moment of a token (MOMENTS of the generated channel).
            units: unit vectors of the packed overlaps.
            clusters: number of clusters.
        """
        total = out.copy()
        for e in self.exchanges:
            images = (out @ _exchange_matrix_on_overlaps(e, units, clusters).T).T.reshape(len(units), -1, row)
            total += np.stack([e.permute_channel_averages(rows, moments).ravel() for rows in images], axis=1)
        return total / self._order_of_symmetry_group

    def average_jacobian_over_group(self, values: np.ndarray) -> np.ndarray:
        """Return the mean Jacobian E[dg_l/domega_l] of each token l, averaged over these symmetries of the channel.

        Args:
            values: mean Jacobians before averaging, shape (L, s, s).
        """
        total = values.copy()
        for e in self.exchanges:
            sign = np.array(e.student, float)
            total += values[e.source_token_indices] * np.multiply.outer(sign, sign)
        return total / self._order_of_symmetry_group

    def average_squared_jacobian_over_group(self, values: np.ndarray) -> np.ndarray:
        """Return the mean products E[G (x) G] of the Jacobians G = dg_l / domega_l' of the field g of tokens l and l'.

        They are averaged over these symmetries of the loss and of the law of the fields.

        Args:
            values: mean squares for each pair of tokens l, l', shape (L, L, s, s, s, s).
        """
        total = values.copy()
        for e in self.exchanges:
            sign = np.array(e.student, float)
            total += np.einsum(
                "lmaebf,a,e,b,f->lmaebf",
                values[e.source_token_indices][:, e.source_token_indices],
                sign,
                sign,
                sign,
                sign,
            )
        return total / self._order_of_symmetry_group

    @cached_property
    def _order_of_symmetry_group(self) -> int:
        return 1 + len(self.exchanges)


def _exchange_matrix_on_overlaps(exchange: SignedPermutation, units: UnitOverlaps, clusters: int) -> np.ndarray:
    """Return the orthogonal matrix by which a symmetry acts on the vector of packed overlaps."""
    unpacked = [Overlaps.unpack(unit, units.sizes) for unit in np.eye(len(units))]
    return np.stack([exchange.permute_overlaps(one, clusters).pack() for one in unpacked], axis=1)


def apply_exchange_to_nodes(
    exchange: SignedPermutation, nodes: np.ndarray, teacher_rank: int, student_rank: int = 0
) -> np.ndarray:
    """Return the images of quadrature nodes under a symmetry.

    Args:
        exchange: symmetry to apply.
        nodes: standard normal coordinates of teacher fields, student fields and noise, one node per row.
        teacher_rank: columns of the teacher, t.
        student_rank: columns of the student, s; 0 where nodes have no coordinates of the student field omega.
    """
    tokens = len(exchange.tokens)
    y, x = tokens * teacher_rank, tokens * student_rank
    known, fields, noise = np.split(nodes, [y, y + x], axis=1)
    images = [
        block.reshape(len(nodes), tokens, -1)[:, exchange.source_token_indices] * np.array(signs, float)
        for block, signs in ((known, exchange.teacher), (fields, exchange.student))
        if block.size
    ]
    return np.concatenate([*(image.reshape(len(nodes), -1) for image in images), exchange.noise * noise], axis=1)


def _arrays_of_field_law(fields: FieldLaw) -> tuple[np.ndarray, ...]:
    """Return the arrays that define the law of the fields: means, factors and variances of teacher and student."""
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
def _permutation_of_field_law_arrays(
    exchange: SignedPermutation, shapes: tuple[tuple[int, ...], ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the permutation and the signs by which a symmetry acts on the flattened arrays of the field law."""
    columns = {"s": np.array(exchange.student, float), "t": np.array(exchange.teacher, float)}
    places, signs, first = [], [], 0
    for shape, kind in zip(shapes, _AXIS_KINDS, strict=True):
        size = int(np.prod(shape))
        places.append(np.arange(first, first + size).reshape(shape)[exchange.source_token_indices].ravel())
        sign = np.ones(())
        for axis in kind:
            sign = np.multiply.outer(sign, columns[axis])
        signs.append(np.broadcast_to(sign, shape).ravel())
        first += size
    return np.concatenate(places), np.concatenate(signs)


def _is_symmetry_of_nodes(exchange: SignedPermutation, problem: Problem, axes: Sequence[Axis]) -> bool:
    """Return whether a symmetry maps the nodes and weights of a product rule onto themselves."""
    teachers = problem.teacher_rank
    for l, source in enumerate(exchange.tokens):
        for b, sign in enumerate(exchange.teacher):
            if not _are_axes_equal_up_to_sign(axes[l * teachers + b], axes[source * teachers + b], sign):
                return False
    return all(_are_axes_equal_up_to_sign(axis, axis, exchange.noise) for axis in axes[problem.tokens * teachers :])


def _are_axes_equal_up_to_sign(one: Axis, other: Axis, sign: int) -> bool:
    nodes, weights = other if sign > 0 else (-other[0][::-1], other[1][::-1])
    return len(nodes) == len(one[0]) and np.allclose(one[0], nodes, 0, 1e-10) and np.allclose(one[1], weights, 1e-9, 0)
