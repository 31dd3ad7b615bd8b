"""Proximal points X on lines parallel to a coordinate of omega, and intervals in which X changes fastest."""

from __future__ import annotations

import numpy as np

from ..problems.problem import Problem
from .fields import FieldLaw
from .points import proximal_points_at_nodes


def flatten_fields(x: np.ndarray) -> np.ndarray:
    """Return student fields of shape (nodes, L, s) as an array of shape (nodes, L s)."""
    return x.reshape(len(x), -1)


def replace_coordinate(nodes: np.ndarray, axes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return a copy of nodes in which one coordinate of every node is replaced.

    Args:
        nodes: coordinates, one node per row.
        axes: number of the coordinate to replace, for each node.
        values: new value of this coordinate, for each node.
    """
    moved = nodes.copy()
    np.put_along_axis(moved, axes[:, None], values[:, None], axis=1)
    return moved


def bisect_steepest_intervals(
    problem: Problem,
    fields: FieldLaw,
    nodes: np.ndarray,
    axes: np.ndarray,
    intervals: tuple[np.ndarray, ...],
    halvings: int,
    shortest: float = 0.0,
    choice: int = 0,
) -> tuple[tuple[np.ndarray, ...], int]:
    """Bisect intervals on lines, keeping the half over which the proximal point X changes more.

    Args:
        problem: problem with a proximal map.
        fields: law of the fields.
        nodes: standard normal coordinates, one node per row; a line runs through each node.
        axes: number of the coordinate along which each line runs.
        intervals: five arrays: row of `nodes`, lower end, upper end, X at the lower end, X at the upper end.
        halvings: number of bisections.
        shortest: intervals over which X changes by less are dropped.
        choice: index of the discrete noise value.

    Returns:
        the bisected intervals, in the format of `intervals`, and the number of proximal points computed.
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
            proximal_points_at_nodes(
                problem, fields, replace_coordinate(nodes[row], axes[row], middle), choice=choice
            ).x
        )
        count += len(row)
        left = np.linalg.norm(x_middle - x_low, axis=1) > np.linalg.norm(x_high - x_middle, axis=1)
        high, low = np.where(left, middle, high), np.where(left, low, middle)
        x_high = np.where(left[:, None], x_middle, x_high)
        x_low = np.where(left[:, None], x_low, x_middle)
    return (row, low, high, x_low, x_high), count


def proximal_points_on_lines(
    problem: Problem,
    fields: FieldLaw,
    nodes: np.ndarray,
    axes: np.ndarray,
    ends: np.ndarray,
    choice: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the proximal points X along the line through every node, and the numbers of minima found there.

    Args:
        problem: problem with a proximal map.
        fields: law of the fields.
        nodes: standard normal coordinates, one node per row.
        axes: number of the coordinate along which each line runs.
        ends: positions along every line.
        choice: index of the discrete noise value.

    Returns:
        X of shape (nodes, positions, student fields), numbers of minima of shape (nodes, positions).
    """
    lines = replace_coordinate(
        np.repeat(nodes, len(ends), axis=0), np.repeat(axes, len(ends)), np.tile(ends, len(nodes))
    )
    found = proximal_points_at_nodes(problem, fields, lines, choice=choice)
    return flatten_fields(found.x).reshape(len(nodes), len(ends), -1), found.minima.reshape(len(nodes), len(ends))
