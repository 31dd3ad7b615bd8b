"""Lines in the fields, parallel to a coordinate of omega: X on them, and the intervals in which it changes fastest."""

from __future__ import annotations

import numpy as np

from ..problems.problem import Problem
from .fields import Fields
from .points import proximal_points_at


def flatten_fields(x: np.ndarray) -> np.ndarray:
    """Return X (N, L, s) as rows (N, fields)."""
    return x.reshape(len(x), -1)


def with_coordinate(nodes: np.ndarray, axes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return copies of nodes with one coordinate of each set to a value.

    Args:
        nodes: (N, dimension).
        axes: number of the coordinate to set, (N,).
        values: (N,).
    """
    moved = nodes.copy()
    np.put_along_axis(moved, axes[:, None], values[:, None], axis=1)
    return moved


def bisect_steepest(
    problem: Problem,
    fields: Fields,
    nodes: np.ndarray,
    axes: np.ndarray,
    intervals: tuple[np.ndarray, ...],
    halvings: int,
    shortest: float = 0.0,
    choice: int = 0,
) -> tuple[tuple[np.ndarray, ...], int]:
    """Bisect intervals on lines, keeping the half over which X changes more.

    Args:
        problem: problem with a proximal map.
        fields: law of the fields.
        nodes: (N, dimension), a line through each.
        axes: coordinate along which each line runs, (N,).
        intervals: row of `nodes` of every interval, its lower and upper end, X at both (N, fields).
        halvings: number of bisections.
        shortest: intervals over which X changes by less are dropped.
        choice: value of the labelled noise.

    Returns:
        the remaining intervals, as in `intervals`, and the number of proximal points.
    """
    row, low, high, x_low, x_high = intervals
    count = 0
    for _ in range(halvings):
        alive = np.linalg.norm(x_high - x_low, axis=1) > shortest if shortest else np.ones(len(row), bool)
        row, low, high, x_low, x_high = (values[alive] for values in (row, low, high, x_low, x_high))
        if not len(row):
            break
        middle = (low + high) / 2
        x_middle = flatten_fields(
            proximal_points_at(problem, fields, with_coordinate(nodes[row], axes[row], middle), choice=choice).x
        )
        count += len(row)
        left = np.linalg.norm(x_middle - x_low, axis=1) > np.linalg.norm(x_high - x_middle, axis=1)
        high, low = np.where(left, middle, high), np.where(left, low, middle)
        x_high = np.where(left[:, None], x_middle, x_high)
        x_low = np.where(left[:, None], x_low, x_middle)
    return (row, low, high, x_low, x_high), count


def evaluate_on_lines(
    problem: Problem,
    fields: Fields,
    nodes: np.ndarray,
    axes: np.ndarray,
    ends: np.ndarray,
    choice: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return X at given places on the line through every node, (N, ends, fields), and the minima seen, (N, ends).

    Args:
        problem: problem with a proximal map.
        fields: law of the fields.
        nodes: (N, dimension).
        axes: coordinate along which each line runs, (N,).
        ends: places on every line, (ends,).
        choice: value of the labelled noise.
    """
    lines = with_coordinate(np.repeat(nodes, len(ends), axis=0), np.repeat(axes, len(ends)), np.tile(ends, len(nodes)))
    found = proximal_points_at(problem, fields, lines, choice=choice)
    return flatten_fields(found.x).reshape(len(nodes), len(ends), -1), found.minima.reshape(len(nodes), len(ends))
