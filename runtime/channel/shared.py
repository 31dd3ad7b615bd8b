"""Generated loops over nodes, distributed among threads, and the arrays that they fill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..device.loops import fill_at_nodes, sum_over_nodes
from ..problems.solver_types import ChannelFunctions, ProximalChannelFunctions


def channel_moment_sums(
    channel: ChannelFunctions, loop: Callable[..., None], *arguments: Any, on_cpu: bool = False
) -> np.ndarray:
    """Return sums over nodes, one row per portion of the nodes: moments of all tokens, then all other averages.

    Args:
        channel: the compiled channel functions of a model.
        loop: its function `sample`, or `averages` at a finite temperature.
        *arguments: arguments of this function.
        on_cpu: whether it needs what only the CPU has.
    """
    length = channel.TOKENS * channel.ROW + len(channel.TOTALS)
    return sum_over_nodes(loop, length, *arguments, on_cpu=on_cpu)


def proximal_point_table(channel: ProximalChannelFunctions, nodes: np.ndarray, *arguments: Any) -> np.ndarray:
    """Return a table of proximal points, one row per node, with columns as in the compiled function `proximal_points`.

    Args:
        channel: the compiled channel functions of a model.
        nodes: standard normal coordinates, one node per row.
        arguments: arguments of `proximal_points` after the nodes and their weights.
    """
    out = np.zeros((len(nodes), 2 * channel.FIELDS + channel.FEATURES + 5))
    weights, one_field = np.ones(len(nodes)), channel.FIELDS == 1
    fill_at_nodes(channel.proximal_points, (nodes, weights), *arguments, filled=[out], on_cpu=one_field)
    return out


def allocate_response_jacobians(channel: ChannelFunctions, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return zero arrays for weights and field Jacobians dg/domega, with one entry per node and discrete noise value.

    Args:
        channel: the compiled channel functions of a model.
        nodes: standard normal coordinates, one node per row.
    """
    size = len(nodes) * max(1, len(channel.LABELLED_NOISE))
    return np.zeros(size), np.zeros((size, channel.FIELDS, channel.FIELDS))
