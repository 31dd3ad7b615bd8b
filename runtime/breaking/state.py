"""Order parameters of one-step replica symmetry breaking, packed and back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..problems.overlaps import Overlaps, Sizes, packed_length, triangle


@dataclass(frozen=True)
class Broken:
    """q_0, V, m, theta as overlaps, and Delta = q_1 - q_0 (C, s, s), of one value of the Parisi parameter.

    Attributes:
        between: q_0 in the place of q, V of one state, m and theta; distance: Delta.
    """

    between: Overlaps
    distance: np.ndarray

    @property
    def within(self) -> Overlaps:
        """Those of one minimiser: q_1 in the place of q."""
        return replace(self.between, q=self.between.q + self.distance)

    @property
    def sizes(self) -> Sizes:
        """Of the overlaps."""
        return self.between.sizes

    def pack(self) -> np.ndarray:
        """The overlaps' components, then the upper triangles of Delta."""
        rows, columns = triangle(self.sizes[1])
        return np.concatenate([self.between.pack(), self.distance[:, rows, columns].ravel()])

    @classmethod
    def unpack(cls, vector: np.ndarray, sizes: Sizes) -> Broken:
        """The state of components in the order of `pack`."""
        count = packed_length(sizes)
        rows, columns = triangle(sizes[1])
        distance = np.zeros((sizes[0], sizes[1], sizes[1]))
        distance[:, rows, columns] = vector[count:].reshape(-1, len(rows))
        distance[:, columns, rows] = distance[:, rows, columns]
        return cls(Overlaps.unpack(vector[:count], sizes), distance)

    @property
    def block_scales(self) -> np.ndarray:
        """For every packed component the size of its block."""
        own = self.within.block_scales  # q_0 may vanish
        count = len(self.pack()) - len(own)
        return np.concatenate([own, np.full(count, np.abs(self.distance).max())])
