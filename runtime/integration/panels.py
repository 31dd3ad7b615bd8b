"""Panels of lines for Gauss-Legendre rules, halved where an integrand is no polynomial."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..channel.nodes import gauss_legendre


@dataclass(frozen=True)
class Panels:
    """A set of intervals on lines.

    Attributes:
        line: number of the line of each, (P,); low, high: ends, (P,).
    """

    line: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def between_edges(cls, edges: np.ndarray, lines: int = 1) -> Panels:
        """Return the panels between ascending edges, the same on every line.

        Args:
            edges: (E,).
            lines: number of lines.
        """
        low, high = np.tile(edges[:-1], lines), np.tile(edges[1:], lines)
        return cls(np.repeat(np.arange(lines), len(edges) - 1), low, high)

    def __len__(self) -> int:
        return len(self.low)

    @property
    def half_lengths(self) -> np.ndarray:
        """Half the length of every panel."""
        return (self.high - self.low) / 2

    @property
    def max_density(self) -> np.ndarray:
        """The largest normal density on every panel, relative to that at zero."""
        nearest = np.clip(0.0, self.low, self.high)
        return np.exp(-nearest * nearest / 2)

    def gauss_legendre_nodes(self, points: int) -> tuple[np.ndarray, np.ndarray]:
        """Return Gauss-Legendre nodes and the lengths that they stand for, (P, points)."""
        t, w = gauss_legendre(points)
        return ((self.low + self.high) / 2)[:, None] + self.half_lengths[:, None] * t, self.half_lengths[:, None] * w

    def halve(self, which: np.ndarray) -> Panels:
        """Return the lower halves of some panels, then the upper ones."""
        line, low, high = self.line[which], self.low[which], self.high[which]
        middle = (low + high) / 2
        return Panels(np.tile(line, 2), np.concatenate([low, middle]), np.concatenate([middle, high]))


def subdivide(edges: np.ndarray, longest: float) -> np.ndarray:
    """Return ascending edges with equidistant ones between them, none farther from the next than `longest`.

    Args:
        edges: ascending.
        longest: greatest distance.
    """
    counts = np.ceil(np.diff(edges) / longest).astype(int)
    parts = [np.linspace(a, b, n, endpoint=False) for a, b, n in zip(edges, edges[1:], counts, strict=False)]
    return np.append(np.concatenate(parts), edges[-1])
