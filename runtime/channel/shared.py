"""Generated loops over nodes, distributed among threads, and the arrays that they fill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.threads import run_loop_in_threads
from ..problems.solver_types import ChannelFunctions, ProximalChannelFunctions

CHUNKS = 64  # fixed, so that sums do not depend on the number of threads


def sum_nodes_in_chunks(loop: Callable[..., None], length: int, *arguments: Any) -> np.ndarray:
    """Return sums over quadrature nodes, one row per chunk of nodes, shape (CHUNKS, length).

    Args:
        loop: compiled loop over the nodes; its last argument is the array of sums that it fills.
        length: number of sums.
        arguments: arguments of the loop before that array.
    """
    out = np.zeros((CHUNKS, length))
    run_loop_in_threads(loop, CHUNKS, CHUNKS, *arguments, out)
    return out


def channel_moment_sums(channel: ChannelFunctions, loop: Callable[..., None], *arguments: Any) -> np.ndarray:
    """Return the sums over nodes of the moments of all tokens, then of all other averages, one row per chunk of nodes.

    Args:
        channel: the compiled channel functions of a model.
        loop: its function `sample`, or `averages` at a finite temperature.
        arguments: arguments of this function.
    """
    return sum_nodes_in_chunks(loop, channel.TOKENS * channel.ROW + len(channel.TOTALS), *arguments)


def proximal_point_table(channel: ProximalChannelFunctions, nodes: np.ndarray, *arguments: Any) -> np.ndarray:
    """Return a table of proximal points, one row per node, with columns as in the compiled function `proximal_points`.

    Args:
        channel: the compiled channel functions of a model.
        nodes: standard normal coordinates, one node per row.
        arguments: arguments of `proximal_points` after the nodes and their weights.
    """
    out = np.zeros((len(nodes), 2 * channel.FIELDS + channel.FEATURES + 5))
    run_loop_in_threads(channel.proximal_points, len(nodes), nodes, np.ones(len(nodes)), *arguments, out)
    return out


def allocate_response_jacobians(channel: ChannelFunctions, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return zero arrays for weights and field Jacobians dg/domega, with one entry per node and discrete noise value.

    Args:
        channel: the compiled channel functions of a model.
        nodes: standard normal coordinates, one node per row.
    """
    size = len(nodes) * max(1, len(channel.LABELLED_NOISE))
    return np.zeros(size), np.zeros((size, channel.FIELDS, channel.FIELDS))
