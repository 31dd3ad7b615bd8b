"""Order parameters as arrays, packed into the vector of their independent components and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Overlaps:
    """q, V (C, s, s) symmetric, m (C, s), theta (C, s, t); C contexts (token, cluster), cluster fastest."""

    q: np.ndarray
    V: np.ndarray
    m: np.ndarray
    theta: np.ndarray

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(C, s, t)."""
        contexts, s, t = self.theta.shape
        return contexts, s, t

    def pack(self) -> np.ndarray:
        """Independent components: upper triangles of q and V, m, theta."""
        rows, columns = np.triu_indices(self.q.shape[1])
        return np.concatenate(
            [self.q[:, rows, columns].ravel(), self.V[:, rows, columns].ravel(), self.m.ravel(), self.theta.ravel()]
        )

    @classmethod
    def unpack(cls, vector: np.ndarray, sizes: tuple[int, int, int]) -> Overlaps:
        contexts, s, t = sizes
        rows, columns = np.triu_indices(s)
        half = contexts * len(rows)

        def symmetric(part: np.ndarray) -> np.ndarray:
            full = np.zeros((contexts, s, s))
            full[:, rows, columns] = part.reshape(contexts, len(rows))
            full[:, columns, rows] = full[:, rows, columns]
            return full

        return cls(
            q=symmetric(vector[:half]),
            V=symmetric(vector[half : 2 * half]),
            m=vector[2 * half : 2 * half + contexts * s].reshape(contexts, s).copy(),
            theta=vector[2 * half + contexts * s :].reshape(contexts, s, t).copy(),
        )

    @property
    def block_scales(self) -> np.ndarray:
        """For every packed component the size of its block: |q|, |V|, and for m and theta the scale of q^(1/2)."""
        contexts, s, t = self.sizes
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
            ]
        )

    def flipped(self) -> Overlaps:
        """The same state with the sign of W reversed."""
        return Overlaps(self.q, self.V, -self.m, -self.theta)

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
    def empty(cls, sizes: tuple[int, int, int]) -> Conjugates:
        contexts, s, t = sizes
        return cls(
            np.empty((contexts, s, s)), np.empty((contexts, s, s)), np.empty((contexts, s)), np.empty((contexts, s, t))
        )

    def flipped(self) -> Conjugates:
        return Conjugates(self.q, self.V, -self.m, -self.theta)
