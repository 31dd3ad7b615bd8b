"""Order parameters as arrays, packed into the vector of their independent components and back."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

Sizes = tuple[int, int, int, int]


@dataclass(frozen=True)
class Overlaps:
    """q, V (C, s, s) symmetric, m (C, s), theta (C, s, t); C contexts (token, cluster), cluster fastest.

    Beside them phi (P,): the O(1) numbers trained with the weights.
    """

    q: np.ndarray
    V: np.ndarray
    m: np.ndarray
    theta: np.ndarray
    phi: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def sizes(self) -> Sizes:
        """(C, s, t, P)."""
        contexts, s, t = self.theta.shape
        return contexts, s, t, len(self.phi)

    def pack(self) -> np.ndarray:
        """Independent components: upper triangles of q and V, m, theta, phi."""
        rows, columns = np.triu_indices(self.q.shape[1])
        upper = [block[:, rows, columns].ravel() for block in (self.q, self.V)]
        return np.concatenate([*upper, self.m.ravel(), self.theta.ravel(), self.phi])

    @classmethod
    def unpack(cls, vector: np.ndarray, sizes: Sizes) -> Overlaps:
        """The overlaps of independent components in the order of `pack`: copies, q and V filled in by symmetry."""
        contexts, s, t, trained = sizes
        rows, columns = np.triu_indices(s)
        half = contexts * len(rows)

        def symmetric(part: np.ndarray) -> np.ndarray:
            full = np.zeros((contexts, s, s), vector.dtype)
            full[:, rows, columns] = part.reshape(contexts, len(rows))
            full[:, columns, rows] = full[:, rows, columns]
            return full

        end = len(vector) - trained
        return cls(
            q=symmetric(vector[:half]),
            V=symmetric(vector[half : 2 * half]),
            m=vector[2 * half : 2 * half + contexts * s].reshape(contexts, s).copy(),
            theta=vector[2 * half + contexts * s : end].reshape(contexts, s, t).copy(),
            phi=vector[end:].copy(),
        )

    @property
    def block_scales(self) -> np.ndarray:
        """For every packed component the size of its block: |q|, |V|, for m and theta the scale of q^(1/2).

        For each phi it is |phi|, but no less than 1.
        """
        contexts, s, t, _ = self.sizes
        half = contexts * s * (s + 1) // 2
        q_scale, V_scale = np.abs(self.q).max(), np.abs(self.V).max()
        field = max(np.sqrt(q_scale), np.abs(self.m).max(initial=0.0))
        theta = max(q_scale, np.abs(self.theta).max())
        return np.concatenate(
            [
                np.full(half, q_scale),
                np.full(half, V_scale),
                np.full(contexts * s, field),
                np.full(contexts * s * t, theta),
                np.maximum(np.abs(self.phi), 1.0),
            ]
        )

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


@dataclass(frozen=True)
class Conjugates:
    """q_hat, V_hat (C, s, s), m_hat (C, s), theta_hat (C, s, t); they carry the probability of the label."""

    q: np.ndarray
    V: np.ndarray
    m: np.ndarray
    theta: np.ndarray

    @classmethod
    def empty(cls, sizes: Sizes) -> Conjugates:
        """Arrays of these shapes without values, for a generated solver to write into."""
        contexts, s, t, _ = sizes
        return cls(
            np.empty((contexts, s, s)), np.empty((contexts, s, s)), np.empty((contexts, s)), np.empty((contexts, s, t))
        )

    def flipped(self) -> Conjugates:
        """Those of the same state with the sign of W reversed."""
        return Conjugates(self.q, self.V, -self.m, -self.theta)
