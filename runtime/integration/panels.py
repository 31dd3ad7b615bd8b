"""Panels on lines for composite Gauss-Legendre rules, halved where the integrand is not a polynomial."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..channel.nodes import gauss_legendre


@dataclass(frozen=True)
class QuadraturePanels:
    """A set of quadrature panels: intervals on numbered lines.

    Attributes:
        line: line number of each panel.
        low, high: lower and upper end of each panel.
    """

    line: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def panels_between_edges(cls, edges: np.ndarray, lines: int = 1) -> QuadraturePanels:
        """Return the panels between ascending edges, the same on every line.

        Args:
            edges: edges of the panels, ascending.
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
    def max_normal_density(self) -> np.ndarray:
        """The largest value of the standard normal density on every panel, relative to its value at zero."""
        nearest = np.clip(0.0, self.low, self.high)
        return np.exp(-nearest * nearest / 2)

    def gauss_legendre_nodes(self, points: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the Gauss-Legendre nodes and quadrature weights of every panel, one panel per row."""
        t, w = gauss_legendre(points)
        return ((self.low + self.high) / 2)[:, None] + self.half_lengths[:, None] * t, self.half_lengths[:, None] * w

    def halve_panels(self, which: np.ndarray) -> QuadraturePanels:
        """Return both halves of the selected panels, the lower halves first."""
        line, low, high = self.line[which], self.low[which], self.high[which]
        middle = (low + high) / 2
        return QuadraturePanels(np.tile(line, 2), np.concatenate([low, middle]), np.concatenate([middle, high]))


def subdivide_edges(edges: np.ndarray, longest: float) -> np.ndarray:
    """Return the edges of panels with equidistant edges inserted, so that no panel is longer than `longest`.

    Args:
        edges: edges of the panels, ascending.
        longest: largest length of a panel.
    """
    counts = np.ceil(np.diff(edges) / longest).astype(int)
    parts = [np.linspace(a, b, n, endpoint=False) for a, b, n in zip(edges, edges[1:], counts, strict=False)]
    return np.append(np.concatenate(parts), edges[-1])
