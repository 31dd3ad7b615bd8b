"""Order parameters as arrays, packed into the vector of their independent components and back."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Any, Self

import numpy as np

from ..base.errors import InputError
from ..base.hints import AttributeHints

Sizes = tuple[int, int, int, int]
"""(C, s, t, P): contexts, student and teacher columns, trained numbers."""

OVERLAPS = ("q", "V", "m", "theta")
_LEAST_COLUMN = 1e-8  # of the largest diagonal entry, below which a column has no size of its own


@cache
def shapes_of(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Of q, V, m and theta, and of their conjugates."""
    contexts, s, t, _ = sizes
    return {"q": (contexts, s, s), "V": (contexts, s, s), "m": (contexts, s), "theta": (contexts, s, t)}


@cache
def places_of(sizes: Sizes) -> dict[str, slice]:
    """Where q, V, m, theta and phi stand in the packed vector, which ends with phi."""
    contexts, s, t, trained = sizes
    half = contexts * s * (s + 1) // 2
    counts = {"q": half, "V": half, "m": contexts * s, "theta": contexts * s * t, "phi": trained}
    ends = accumulate(counts.values())
    return {name: slice(end - count, end) for (name, count), end in zip(counts.items(), ends, strict=True)}


@cache
def _blocks_of(sizes: Sizes) -> tuple[tuple[slice, ...], np.ndarray]:
    """Where q, V, m, theta and phi stand in the packed vector, and for every component of it the number of its block,
    each phi one of its own."""
    places = tuple(places_of(sizes).values())
    numbers = np.concatenate([np.full(place.stop - place.start, n) for n, place in enumerate(places)])
    numbers[places[-1]] += np.arange(sizes[3])
    return places, numbers


@cache
def triangle(s: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the entries of an s x s matrix on and above its diagonal, rows first."""
    return np.triu_indices(s)


@cache
def _numbers_of(sizes: Sizes) -> dict[str, np.ndarray]:
    """Where the entries of q and V, (C, s, s), stand in the packed vector."""
    contexts, s, _, _ = sizes
    rows, columns = triangle(s)
    order = np.empty((s, s), int)
    order[rows, columns] = order[columns, rows] = np.arange(len(rows))
    known = np.arange(contexts)[:, None, None] * len(rows) + order
    return {name: places_of(sizes)[name].start + known for name in ("q", "V")}


def packed_length(sizes: Sizes) -> int:
    """Independent components of the overlaps, and trained numbers."""
    return places_of(sizes)["phi"].stop


def block_scales(u: np.ndarray, sizes: Sizes) -> np.ndarray:
    """For every packed component the size of its block: |q|, |V|, for m and theta the scale of q^(1/2).

    For each phi it is |phi|, but no less than 1.
    """
    (in_q, in_V, in_m, in_theta, in_phi), numbers = _blocks_of(sizes)
    entries = [abs(entry) for entry in u.tolist()]
    q, V = max(entries[in_q]), max(entries[in_V])
    m, theta = max([math.sqrt(q), *entries[in_m]]), max([q, *entries[in_theta]])
    return np.array([q, V, m, theta, *(max(phi, 1.0) for phi in entries[in_phi])])[numbers]


def column_scales(overlaps: Overlaps) -> np.ndarray:
    """For every packed component the size that its columns of W give it, (n,): the geometric mean of their diagonal
    entries in q or V, relative to those of the block; for m and theta the root of that in q. One for a single column.

    Columns of different sizes share blocks, whose scale is that of the largest.
    """
    contexts, s, t, numbers = overlaps.sizes
    if s == 1:
        return np.ones(packed_length(overlaps.sizes))
    diagonals = (np.abs(np.diagonal(block, axis1=1, axis2=2)).max(axis=0) for block in (overlaps.q, overlaps.V))
    q, V = (np.sqrt(np.maximum(each / each.max(), _LEAST_COLUMN)) for each in diagonals)
    ones = np.ones((contexts, s, s))
    theta = np.broadcast_to(q[:, None], (contexts, s, t))
    return Overlaps(ones * np.outer(q, q), ones * np.outer(V, V), ones[:, 0] * q, theta, np.ones(numbers)).pack()


@dataclass(frozen=True)
class Overlaps(AttributeHints):
    """q, V (C, s, s) symmetric, m (C, s), theta (C, s, t); C contexts (token, cluster), cluster fastest.

    Beside them phi (P,): the O(1) numbers trained with the weights.

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
        """Overlaps of weights that were measured, to start from: `sf.solve(problem, sf.Overlaps.measured(q, theta))`.

        In the units of the theory (docs/conventions.md): q = W^T Sigma W / d, theta = W^T Sigma W* / d, and
        m = W^T (mu + p) / sqrt(d) of the sum of mean and encoding, a context (token, cluster) each.

        Args:
            q: (C, s, s), or (s, s) or a number for one context.
            theta: (C, s, t), or (s, t) or a number.
            m: (C, s), or (s,) or a number; zeros by default.
            V: as q; what `solve` finds from the others by default.
            phi: trained numbers, (P,).

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
                "(C, s, s), (C, s, t) and (C, s) are expected, of C contexts, s columns of W and t of the teacher"
            )
        return cls((first + first.transpose(0, 2, 1)) / 2, response, third, second, numbers)

    @property
    def blocks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(q, V, m, theta), as generated solvers take them."""
        return self.q, self.V, self.m, self.theta

    @property
    def sizes(self) -> Sizes:
        """(C, s, t, P)."""
        return *self.theta.shape[-3:], self.phi.shape[-1]

    def pack(self) -> np.ndarray:
        """Independent components: upper triangles of q and V, m, theta, phi; of several states, (..., n)."""
        blocks, shape = [self.q, self.V], (*self.q.shape[:-3], -1)
        if self.q.shape[-1] > 1:
            rows, columns = triangle(self.q.shape[-1])
            blocks = [block[..., rows, columns] for block in blocks]
        flat = [block.reshape(shape) for block in (*blocks, self.m, self.theta)]
        return np.concatenate([*flat, self.phi], axis=-1)

    @classmethod
    def unpack(cls, vector: np.ndarray, sizes: Sizes) -> Self:
        """The overlaps of independent components, (..., n) in the order of `pack`: copies, q and V filled in by
        symmetry."""
        numbers, places, shapes, several = _numbers_of(sizes), places_of(sizes), shapes_of(sizes), vector.shape[:-1]
        return cls(
            q=vector.take(numbers["q"], axis=-1),
            V=vector.take(numbers["V"], axis=-1),
            m=vector[..., places["m"]].reshape(*several, *shapes["m"]).copy(),
            theta=vector[..., places["theta"]].reshape(*several, *shapes["theta"]).copy(),
            phi=vector[..., places["phi"]].copy(),
        )

    @property
    def block_scales(self) -> np.ndarray:
        """Of the packed components, see `block_scales`."""
        return block_scales(self.pack(), self.sizes)

    def flipped(self) -> Overlaps:
        """The same state with the sign of W reversed."""
        return Overlaps(self.q, self.V, -self.m, -self.theta, self.phi)

    @property
    def free_sign_is_positive(self) -> bool:
        """Whether the first non-zero entry of theta, else of m, is positive."""
        for block in (self.theta, self.m):
            scale = np.abs(block).max(initial=0.0)
            nonzero = block.ravel()[np.abs(block.ravel()) > 1e-12 * (1 + scale)]
            if len(nonzero):
                return bool(nonzero[0] > 0)
        return True


class Units(Overlaps):
    """Unit vectors of the packed overlaps as blocks: q, V (n, C, s, s), m (n, C, s), theta (n, C, s, t), phi (n, P)."""

    @classmethod
    def of(cls, sizes: Sizes) -> Units:
        """A direction for every packed component, in the order of `Overlaps.pack`: n = C (s (s + 1) + s + s t) + P."""
        return cls.unpack(np.eye(packed_length(sizes)), sizes)

    def __len__(self) -> int:
        return len(self.q)


@dataclass(frozen=True)
class Conjugates:
    """q_hat, V_hat (C, s, s), m_hat (C, s), theta_hat (C, s, t); they carry the probability of the label."""

    q: np.ndarray
    V: np.ndarray
    m: np.ndarray
    theta: np.ndarray

    @property
    def blocks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(q, V, m, theta), as generated solvers take them."""
        return self.q, self.V, self.m, self.theta

    @classmethod
    def empty(cls, sizes: Sizes) -> Conjugates:
        """Arrays of these shapes without values, for a generated solver to write into."""
        return cls(**{name: np.empty(shape) for name, shape in shapes_of(sizes).items()})

    def flipped(self) -> Conjugates:
        """Those of the same state with the sign of W reversed."""
        return Conjugates(self.q, self.V, -self.m, -self.theta)
