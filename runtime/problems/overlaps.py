"""Order parameters (overlaps) as arrays, and as the vector of their independent components ("packed")."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Any, Self

import numpy as np

from ..base.errors import InputError
from ..base.hints import AttributeErrorHints
from ..base.options import AlgorithmOptions

Sizes = tuple[int, int, int, int]
"""Numbers of contexts, of columns of W, of columns of W* and of trained numbers."""

OVERLAPS = ("q", "V", "m", "theta")


@dataclass(frozen=True)
class ColumnScaleOptions(AlgorithmOptions):
    """Options of the scales by which errors in columns of W of different norms are measured.

    Attributes:
        min_column: diagonal entry of a column, relative to the largest, below which its scale no longer shrinks.
    """

    min_column: float = 1e-8


@cache
def overlap_array_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Return the array shapes of the overlaps q, V, m and theta by name; their conjugates have the same."""
    contexts, s, t, _ = sizes
    return {"q": (contexts, s, s), "V": (contexts, s, s), "m": (contexts, s), "theta": (contexts, s, t)}


@cache
def packed_overlap_slices(sizes: Sizes) -> dict[str, slice]:
    """Return the slices of the packed vector that hold q, V, m, theta and the trained numbers phi, by name."""
    contexts, s, t, trained = sizes
    half = contexts * s * (s + 1) // 2
    counts = {"q": half, "V": half, "m": contexts * s, "theta": contexts * s * t, "phi": trained}
    ends = accumulate(counts.values())
    return {name: slice(end - count, end) for (name, count), end in zip(counts.items(), ends, strict=True)}


@cache
def _block_numbers_of_packed_components(sizes: Sizes) -> tuple[tuple[slice, ...], np.ndarray]:
    """Return the slices of the packed vector for q, V, m, theta and phi, and the block number of every component.

    The blocks are q, V, m, theta, and every trained number phi by itself.
    """
    places = tuple(packed_overlap_slices(sizes).values())
    numbers = np.concatenate([np.full(place.stop - place.start, n) for n, place in enumerate(places)])
    numbers[places[-1]] += np.arange(sizes[3])
    return places, numbers


@cache
def upper_triangle_indices(s: int) -> tuple[np.ndarray, np.ndarray]:
    """Return row and column indices of the entries on and above the diagonal of an s x s matrix, in row order."""
    return np.triu_indices(s)


@cache
def _packed_positions_of_q_and_V(sizes: Sizes) -> dict[str, np.ndarray]:
    """Return for every entry of q and of V its position in the packed vector, two arrays (contexts, s, s)."""
    contexts, s, _, _ = sizes
    rows, columns = upper_triangle_indices(s)
    order = np.empty((s, s), int)
    order[rows, columns] = order[columns, rows] = np.arange(len(rows))
    known = np.arange(contexts)[:, None, None] * len(rows) + order
    return {name: packed_overlap_slices(sizes)[name].start + known for name in ("q", "V")}


def packed_vector_length(sizes: Sizes) -> int:
    """Return the length of the packed vector: the number of independent overlap components and trained numbers."""
    return packed_overlap_slices(sizes)["phi"].stop


def block_scales(u: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Return the typical size of the array (q, V, m, theta or phi) of every component of packed overlaps.

    It is the largest |q| and |V|; for m at least |q|^(1/2); for theta at least |q|; for a trained number at least 1.

    Args:
        u: packed overlaps, (components,).
        sizes: numbers of contexts, columns of W, columns of W* and trained numbers.
    """
    (in_q, in_V, in_m, in_theta, in_phi), numbers = _block_numbers_of_packed_components(sizes)
    entries = [abs(entry) for entry in u.tolist()]
    q, V = max(entries[in_q]), max(entries[in_V])
    m, theta = max([math.sqrt(q), *entries[in_m]]), max([q, *entries[in_theta]])
    return np.array([q, V, m, theta, *(max(phi, 1.0) for phi in entries[in_phi])])[numbers]


def student_column_scales(overlaps: Overlaps) -> np.ndarray:
    """Return for every component of a packed vector the size of its columns of W, relative to the largest column.

    For q and V this is the geometric mean of two diagonal entries, relative to the largest one; for m and theta the
    square root of the diagonal entry of q; 1 if W has a single column.
    """
    contexts, s, t, numbers = overlaps.sizes
    if s == 1:
        return np.ones(packed_vector_length(overlaps.sizes))
    diagonals = (np.abs(np.diagonal(block, axis1=1, axis2=2)).max(axis=0) for block in (overlaps.q, overlaps.V))
    least = ColumnScaleOptions.current().min_column
    q, V = (np.sqrt(np.maximum(each / each.max(), least)) for each in diagonals)
    ones = np.ones((contexts, s, s))
    theta = np.broadcast_to(q[:, None], (contexts, s, t))
    return Overlaps(ones * np.outer(q, q), ones * np.outer(V, V), ones[:, 0] * q, theta, np.ones(numbers)).pack()


@dataclass(frozen=True)
class Overlaps(AttributeErrorHints):
    """The order parameters of a state: arrays q, V (contexts, s, s), m (contexts, s), theta (contexts, s, t).

    A context is a pair of a token and a cluster, ordered by token, then by cluster. phi are the scalars that are
    trained together with the weights.

    Example:
        >>> problem = sf.problem("ridge_regression", alpha=2)
        >>> found = sf.solve(problem).overlaps
        >>> found.theta.shape, round(float(found.theta[0, 0, 0]), 6)
        ((1, 1, 1), 0.915571)
        >>> sf.solve(problem, sf.Overlaps.measured(q=[[[0.9]]], theta=[[[0.8]]])).success
        True
    """

    q: np.ndarray
    V: np.ndarray
    m: np.ndarray
    theta: np.ndarray
    phi: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def measured(cls, q: Any, theta: Any, m: Any = None, *, V: Any = None, phi: Any = ()) -> Overlaps:
        """Return overlaps measured on weights, as a start for `sf.solve(problem, sf.Overlaps.measured(q, theta))`.

        In the units of the theory (docs/conventions.md): q = W^T Sigma W / d, theta = W^T Sigma W* / d, and
        m = W^T (mu + p) / sqrt(d) of the sum of mean and encoding, for every context (token, cluster).

        Args:
            q: overlap q, (contexts, s, s), or (s, s) or a number for one context.
            theta: overlap with the teacher, (contexts, s, t), or (s, t) or a number.
            m: overlap with means and encodings, (contexts, s), or (s,) or a number; zeros by default.
            V: variance, of the shape of q; by default `solve` determines it from the others.
            phi: values of the trained numbers.

        Raises:
            InputError: shapes do not fit together.
        """
        try:
            first, second = np.asarray(q, float), np.asarray(theta, float)
            first = first.reshape((1,) * (3 - first.ndim) + first.shape)
            second = second.reshape((1,) * (3 - second.ndim) + second.shape)
            contexts, s = first.shape[:2]
            third = np.zeros((contexts, s)) if m is None else np.asarray(m, float).reshape(contexts, s)
            response = np.full(first.shape, np.nan) if V is None else np.asarray(V, float).reshape(first.shape)
            fits = first.shape == (contexts, s, s) and second.shape[:2] == (contexts, s) and second.ndim == 3
            numbers = np.asarray(phi, float).reshape(-1)
        except (TypeError, ValueError):
            fits = False
        if not fits:
            raise InputError(
                f"overlaps of shapes q {np.shape(q)}, theta {np.shape(theta)}, m {np.shape(m)} do not fit together; "
                "give (C, s, s), (C, s, t) and (C, s) for C pairs (token, cluster), s columns of W and t columns of W*"
            )
        return cls((first + first.transpose(0, 2, 1)) / 2, response, third, second, numbers)

    @property
    def blocks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The four arrays q, V, m and theta, in the order in which generated functions take them."""
        return self.q, self.V, self.m, self.theta

    @property
    def sizes(self) -> Sizes:
        """Numbers of contexts, of columns of W, of columns of W* and of trained numbers."""
        return *self.theta.shape[-3:], self.phi.shape[-1]

    def pack(self) -> np.ndarray:
        """Return the vector of independent components: upper triangles of q and V, then m, theta, trained numbers.

        Leading axes of the arrays, of many states at a time, stay.
        """
        blocks, shape = [self.q, self.V], (*self.q.shape[:-3], -1)
        if self.q.shape[-1] > 1:
            rows, columns = upper_triangle_indices(self.q.shape[-1])
            blocks = [block[..., rows, columns] for block in blocks]
        flat = [block.reshape(shape) for block in (*blocks, self.m, self.theta)]
        return np.concatenate([*flat, self.phi], axis=-1)

    @classmethod
    def unpack(cls, vector: np.ndarray, sizes: Sizes) -> Self:
        """Return the overlaps whose vector of independent components is given; the inverse of `pack`.

        Args:
            vector: independent components in the order of `pack`, (..., components).
            sizes: numbers of contexts, columns of W, columns of W* and trained numbers.
        """
        numbers, places, shapes, several = (
            _packed_positions_of_q_and_V(sizes),
            packed_overlap_slices(sizes),
            overlap_array_shapes(sizes),
            vector.shape[:-1],
        )
        return cls(
            q=vector.take(numbers["q"], axis=-1),
            V=vector.take(numbers["V"], axis=-1),
            m=vector[..., places["m"]].reshape(*several, *shapes["m"]).copy(),
            theta=vector[..., places["theta"]].reshape(*several, *shapes["theta"]).copy(),
            phi=vector[..., places["phi"]].copy(),
        )

    @property
    def block_scales(self) -> np.ndarray:
        """The typical size of the array (q, V, m, theta or phi) of every component of the packed overlaps."""
        return block_scales(self.pack(), self.sizes)

    def with_opposite_sign(self) -> Overlaps:
        """Return the overlaps of the weights -W: m and theta change sign."""
        return Overlaps(self.q, self.V, -self.m, -self.theta, self.phi)

    @property
    def has_positive_leading_entry(self) -> bool:
        """Whether the first non-zero entry of theta is positive; of m, if theta vanishes."""
        for block in (self.theta, self.m):
            scale = np.abs(block).max(initial=0.0)
            nonzero = block.ravel()[np.abs(block.ravel()) > 1e-12 * (1 + scale)]
            if len(nonzero):
                return bool(nonzero[0] > 0)
        return True


class UnitOverlaps(Overlaps):
    """The unit vectors of the packed space as arrays q, V, m, theta and phi; their first axis numbers the vectors."""

    @classmethod
    def from_sizes(cls, sizes: Sizes) -> UnitOverlaps:
        """Return one unit vector for every component of packed overlaps, in the order of `pack`."""
        return cls.unpack(np.eye(packed_vector_length(sizes)), sizes)

    def __len__(self) -> int:
        return len(self.q)


@dataclass(frozen=True)
class Conjugates:
    """The conjugate order parameters of q, V, m and theta in every context, a pair (token, cluster)."""

    q: np.ndarray
    V: np.ndarray
    m: np.ndarray
    theta: np.ndarray

    @property
    def blocks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The four conjugate arrays of q, V, m and theta, in the order in which generated functions take them."""
        return self.q, self.V, self.m, self.theta

    @classmethod
    def empty(cls, sizes: Sizes) -> Conjugates:
        """Return conjugates with uninitialised arrays of the right shapes, which a generated solver fills."""
        return cls(**{name: np.empty(shape) for name, shape in overlap_array_shapes(sizes).items()})

    def with_opposite_sign(self) -> Conjugates:
        """Return the conjugates for the weights -W: those of m and theta change sign."""
        return Conjugates(self.q, self.V, -self.m, -self.theta)
