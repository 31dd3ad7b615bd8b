"""Order parameters with replica symmetry broken, and their conversion to and from vectors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...problems.overlaps import Overlaps, Sizes, packed_length, upper_triangle_indices


@dataclass(frozen=True)
class BrokenState:
    """A state with broken replica symmetry: q_0, V, m, theta as overlaps, and Delta_k = q_k - q_(k-1).

    Attributes:
        between: q_0 in the place of q, V of one state, m and theta; distances: Delta of K levels inwards, (K, C, s, s).
    """

    between: Overlaps
    distances: np.ndarray

    @property
    def within(self) -> Overlaps:
        """The overlaps of one minimiser: q_K in the place of q."""
        return replace(self.between, q=self.between.q + self.distance)

    @property
    def distance(self) -> np.ndarray:
        """The difference q_K - q_0, (C, s, s): Delta of one step."""
        return self.distances.sum(axis=0)

    def variances(self, rates: np.ndarray) -> np.ndarray:
        """Return V~ of every level and V, (K + 1, C, s, s): V_k = V_(k+1) + y_k Delta_k."""
        grown = rates[:, None, None, None] * self.distances
        return self.between.V + np.concatenate([np.cumsum(grown[::-1], axis=0)[::-1], np.zeros_like(grown[:1])])

    @property
    def sizes(self) -> Sizes:
        """The sizes of the overlaps."""
        return self.between.sizes

    def pack(self) -> np.ndarray:
        """Return the overlaps' components, then the upper triangles of Delta, level by level."""
        rows, columns = upper_triangle_indices(self.sizes[1])
        return np.concatenate([self.between.pack(), self.distances[:, :, rows, columns].ravel()])

    @classmethod
    def unpack(cls, vector: np.ndarray, sizes: Sizes) -> BrokenState:
        """Return the state of components in the order of `pack`.

        Args:
            vector: the components.
            sizes: sizes of the overlaps.
        """
        count = packed_length(sizes)
        rows, columns = upper_triangle_indices(sizes[1])
        entries = vector[count:].reshape(-1, sizes[0], len(rows))
        distances = np.zeros((len(entries), sizes[0], sizes[1], sizes[1]))
        distances[..., rows, columns] = distances[..., columns, rows] = entries
        return cls(Overlaps.unpack(vector[:count], sizes), distances)

    @property
    def block_scales(self) -> np.ndarray:
        """The size of its block for every packed component."""
        own = self.within.block_scales  # q_0 may vanish
        count = (len(self.pack()) - len(own)) // len(self.distances)
        return np.concatenate([own, np.repeat(np.abs(self.distances).max(axis=(1, 2, 3)), count)])
