"""Order parameters with broken replica symmetry, and their conversion to and from vectors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...problems.overlaps import Overlaps, Sizes, packed_vector_length, upper_triangle_indices


@dataclass(frozen=True)
class BrokenState:
    """A state with broken replica symmetry: q_0, V, m, theta as overlaps, and Delta_k = q_k - q_(k-1).

    Attributes:
        between: q_0 in the place of q, V of one state, m and theta; distances: Delta of K levels inwards, (K, C, s, s).
    """

    between: Overlaps
    distances: np.ndarray

    @property
    def minimiser_overlaps(self) -> Overlaps:
        """The overlaps of one minimiser, with q_K as q."""
        return replace(self.between, q=self.between.q + self.total_distance)

    @property
    def total_distance(self) -> np.ndarray:
        """The difference q_K - q_0 between the innermost and the outermost overlap, (C, s, s)."""
        return self.distances.sum(axis=0)

    def level_variances(self, rates: np.ndarray) -> np.ndarray:
        """Return the variances V_k of all levels, (K + 1, C, s, s), from V_k = V_(k+1) + y_k Delta_k."""
        grown = rates[:, None, None, None] * self.distances
        return self.between.V + np.concatenate([np.cumsum(grown[::-1], axis=0)[::-1], np.zeros_like(grown[:1])])

    @property
    def overlap_sizes(self) -> Sizes:
        """The sizes of the overlaps: numbers of contexts, student columns, teacher columns and trained numbers."""
        return self.between.sizes

    def pack(self) -> np.ndarray:
        """Return the state as a vector: components of the overlaps, then upper triangles of Delta, level by level."""
        rows, columns = upper_triangle_indices(self.overlap_sizes[1])
        return np.concatenate([self.between.pack(), self.distances[:, :, rows, columns].ravel()])

    @classmethod
    def unpack(cls, vector: np.ndarray, sizes: Sizes) -> BrokenState:
        """Return the state of a vector whose components are in the order of `pack`.

        Args:
            vector: vector of components.
            sizes: sizes of the overlaps.
        """
        count = packed_vector_length(sizes)
        rows, columns = upper_triangle_indices(sizes[1])
        entries = vector[count:].reshape(-1, sizes[0], len(rows))
        distances = np.zeros((len(entries), sizes[0], sizes[1], sizes[1]))
        distances[..., rows, columns] = distances[..., columns, rows] = entries
        return cls(Overlaps.unpack(vector[:count], sizes), distances)

    @property
    def block_scales(self) -> np.ndarray:
        """The size of the block to which each packed component belongs."""
        own = self.minimiser_overlaps.block_scales  # q_0 may vanish
        count = (len(self.pack()) - len(own)) // len(self.distances)
        return np.concatenate([own, np.repeat(np.abs(self.distances).max(axis=(1, 2, 3)), count)])
