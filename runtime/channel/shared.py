"""Generated loops over nodes, distributed among threads, and the arrays that they fill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.threads import run_loop_in_threads
from ..problems.solver_types import ChannelFunctions, ProximalChannelFunctions

CHUNKS = 64  # fixed, so that sums do not depend on the number of threads


def sum_loop_in_chunks(loop: Callable[..., None], length: int, *arguments: Any) -> np.ndarray:
    """Return the sums of a generated loop over nodes, one table row per chunk of nodes, (CHUNKS, length).

    Args:
        loop: generated function; its last argument is the array to fill.
        length: number of sums.
        arguments: leading arguments of the loop.
    """
    out = np.zeros((CHUNKS, length))
    run_loop_in_threads(loop, CHUNKS, CHUNKS, *arguments, out)
    return out


def channel_moment_sums(channel: ChannelFunctions, loop: Callable[..., None], *arguments: Any) -> np.ndarray:
    """Return channel sums over nodes by a generated loop: moments of all tokens, then totals.

    Args:
        channel: the generated channel.
        loop: generated `sample`, or `averages` at a finite temperature.
        arguments: arguments of the loop.

    Returns:
        one table row per chunk of nodes.
    """
    return sum_loop_in_chunks(loop, channel.TOKENS * channel.ROW + len(channel.TOTALS), *arguments)


def proximal_point_table(channel: ProximalChannelFunctions, nodes: np.ndarray, *arguments: Any) -> np.ndarray:
    """Return the table that the generated `proximal_points` fills, one row per node.

    Args:
        channel: the generated channel.
        nodes: (N, dimension).
        arguments: of the loop behind the nodes and their weights.
    """
    out = np.zeros((len(nodes), 2 * channel.FIELDS + channel.FEATURES + 5))
    run_loop_in_threads(channel.proximal_points, len(nodes), nodes, np.ones(len(nodes)), *arguments, out)
    return out


def allocate_response_jacobians(channel: ChannelFunctions, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return zero arrays for weights (M,) and Jacobians (M, D, D), one entry per node and discrete noise value.

    Args:
        channel: the generated channel.
        nodes: (N, dimension).
    """
    size = len(nodes) * max(1, len(channel.LABELLED_NOISE))
    return np.zeros(size), np.zeros((size, channel.FIELDS, channel.FIELDS))
