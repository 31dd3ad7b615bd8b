"""Lines in the fields, parallel to a coordinate of omega: X at places on them, and where it moves fastest."""

from __future__ import annotations

import numpy as np

from ..problems.problem import Problem
from .fields import Fields
from .points import points_at


def flat(x: np.ndarray) -> np.ndarray:
    """X (N, L, s) as rows (N, fields)."""
    return x.reshape(len(x), -1)


def along(nodes: np.ndarray, axes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Copies of the nodes (N, dimension) with the coordinate of each that is named in axes (N,) set to a value (N,)."""
    moved = nodes.copy()
    np.put_along_axis(moved, axes[:, None], values[:, None], axis=1)
    return moved


def narrowed(
    problem: Problem,
    fields: Fields,
    nodes: np.ndarray,
    axes: np.ndarray,
    found: tuple[np.ndarray, ...],
    halvings: int,
    shortest: float = 0.0,
    choice: int = 0,
) -> tuple[tuple[np.ndarray, ...], int]:
    """Halve intervals on lines again and again, keeping the half over which X moves more.

    Args:
        found: row of `nodes` of every interval, its lower and upper end, X at both (N, fields).
        shortest: intervals over which X moves by less are dropped.

    Returns:
        the intervals that are left, as in `found`, and the number of proximal points.
    """
    row, low, high, x_low, x_high = found
    count = 0
    for _ in range(halvings):
        alive = np.linalg.norm(x_high - x_low, axis=1) > shortest if shortest else np.ones(len(row), bool)
        row, low, high, x_low, x_high = (values[alive] for values in (row, low, high, x_low, x_high))
        if not len(row):
            break
        middle = (low + high) / 2
        x_middle = flat(points_at(problem, fields, along(nodes[row], axes[row], middle), choice=choice).x)
        count += len(row)
        left = np.linalg.norm(x_middle - x_low, axis=1) > np.linalg.norm(x_high - x_middle, axis=1)
        high, low = np.where(left, middle, high), np.where(left, low, middle)
        x_high = np.where(left[:, None], x_middle, x_high)
        x_low = np.where(left[:, None], x_low, x_middle)
    return (row, low, high, x_low, x_high), count


def on_lines(
    problem: Problem,
    fields: Fields,
    nodes: np.ndarray,
    axes: np.ndarray,
    ends: np.ndarray,
    choice: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """X at the same ends on the line through every node, (N, ends, fields), and the minima seen there, (N, ends)."""
    lines = along(np.repeat(nodes, len(ends), axis=0), np.repeat(axes, len(ends)), np.tile(ends, len(nodes)))
    found = points_at(problem, fields, lines, choice=choice)
    return flat(found.x).reshape(len(nodes), len(ends), -1), found.minima.reshape(len(nodes), len(ends))
