"""Order parameters with broken replica symmetry, and their conversion to and from vectors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...problems.overlaps import Overlaps, Sizes, packed_vector_length, upper_triangle_indices


@dataclass(frozen=True)
class BrokenSymmetryState:
    """Order parameters with K levels of broken replica symmetry.

    Attributes:
        between: overlaps between states: q_0 in the place of q, and V, m and theta of one state.
        distances: differences Delta_k = q_k - q_(k-1) of successive levels, shape (K levels, pairs, s, s), where
            pairs are (token, cluster) pairs and s is the number of student columns.
    """

    between: Overlaps
    distances: np.ndarray

    @property
    def minimiser_overlaps(self) -> Overlaps:
        """The overlaps q, V, m and theta of one minimiser of the training loss; q is the innermost overlap."""
        return replace(self.between, q=self.between.q + self.overlap_difference)

    @property
    def overlap_difference(self) -> np.ndarray:
        """The innermost overlap q minus the outermost one, an (s, s) matrix for each (token, cluster) pair."""
        return self.distances.sum(axis=0)

    def variances_of_breaking_levels(self, rates: np.ndarray) -> np.ndarray:
        """Return the variance V of every level of breaking, outermost first, shape (levels + 1, pairs, s, s).

        Pairs are (token, cluster) pairs. Each V is that of the next inner level plus Parisi parameter times Delta.
        """
        grown = rates[:, None, None, None] * self.distances
        return self.between.V + np.concatenate([np.cumsum(grown[::-1], axis=0)[::-1], np.zeros_like(grown[:1])])

    @property
    def overlap_sizes(self) -> Sizes:
        """The numbers of (token, cluster) pairs, student columns, teacher columns and trained numbers."""
        return self.between.sizes

    def pack(self) -> np.ndarray:
        """Return one vector of the state: its independent overlap entries, then the upper triangle of every Delta."""
        rows, columns = upper_triangle_indices(self.overlap_sizes[1])
        return np.concatenate([self.between.pack(), self.distances[:, :, rows, columns].ravel()])

    @classmethod
    def unpack(cls, vector: np.ndarray, sizes: Sizes) -> BrokenSymmetryState:
        """Return the state from a vector of its independent entries.

        Args:
            vector: vector that `pack` returned.
            sizes: numbers of (token, cluster) pairs, student columns, teacher columns and trained numbers.
        """
        count = packed_vector_length(sizes)
        rows, columns = upper_triangle_indices(sizes[1])
        entries = vector[count:].reshape(-1, sizes[0], len(rows))
        distances = np.zeros((len(entries), sizes[0], sizes[1], sizes[1]))
        distances[..., rows, columns] = distances[..., columns, rows] = entries
        return cls(Overlaps.unpack(vector[:count], sizes), distances)

    @property
    def block_scales(self) -> np.ndarray:
        """The scale of every entry of the packed state: the largest entry of its block (q, V, m, theta or Delta)."""
        own = self.minimiser_overlaps.block_scales  # q_0 may vanish
        count = (len(self.pack()) - len(own)) // len(self.distances)
        return np.concatenate([own, np.repeat(np.abs(self.distances).max(axis=(1, 2, 3)), count)])
