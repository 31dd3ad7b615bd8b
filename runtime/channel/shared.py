"""Generated loops over nodes, distributed among threads, and the arrays that they fill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..device.loops import fill_at_nodes, sum_over_nodes
from ..problems.solver_types import ChannelFunctions, ProximalChannelFunctions


def runs_on_cpu_alone(channel: ChannelFunctions) -> bool:
    """Return whether the generated loops of a channel need what a CUDA device lacks.

    In one field they call functions by their addresses; at a finite temperature the sizes of work arrays are known only
    when they run.

    Args:
        channel: the compiled channel functions of a model.
    """
    return channel.FIELDS == 1 or not hasattr(channel, "proximal_points")


def channel_moment_sums(channel: ChannelFunctions, loop: Callable[..., None], *arguments: Any) -> np.ndarray:
    """Return sums over nodes, one row per portion of the nodes: moments of all tokens, then all other averages.

    Args:
        channel: the compiled channel functions of a model.
        loop: its function `sample`, or `averages` at a finite temperature.
        *arguments: arguments of this function.
    """
    length = channel.TOKENS * channel.ROW + len(channel.TOTALS)
    return sum_over_nodes(loop, length, *arguments, on_cpu=runs_on_cpu_alone(channel))


def proximal_point_table(channel: ProximalChannelFunctions, nodes: np.ndarray, *arguments: Any) -> np.ndarray:
    """Return a table of proximal points, one row per node, with columns as in the compiled function `proximal_points`.

    Args:
        channel: the compiled channel functions of a model.
        nodes: standard normal coordinates, one node per row.
        arguments: arguments of `proximal_points` after the nodes and their weights.
    """
    out = np.zeros((len(nodes), 2 * channel.FIELDS + channel.FEATURES + 5))
    given, on_cpu = (nodes, np.ones(len(nodes))), runs_on_cpu_alone(channel)
    fill_at_nodes(channel.proximal_points, given, *arguments, filled=[out], on_cpu=on_cpu)
    return out


def allocate_response_jacobians(channel: ChannelFunctions, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return zero arrays for weights and field Jacobians dg/domega, with one entry per node and discrete noise value.

    Args:
        channel: the compiled channel functions of a model.
        nodes: standard normal coordinates, one node per row.
    """
    size = len(nodes) * max(1, len(channel.LABELLED_NOISE))
    return np.zeros(size), np.zeros((size, channel.FIELDS, channel.FIELDS))
