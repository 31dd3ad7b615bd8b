"""Generated loops over nodes, distributed among threads, and the arrays that they fill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.threads import run_in_threads
from ..problems.solver_types import Channel, ProximalChannel

CHUNKS = 64  # fixed, so that sums do not depend on the number of threads


def sum_in_chunks(loop: Callable[..., None], length: int, *arguments: Any) -> np.ndarray:
    """Return the sums of a generated loop, a row a chunk of the nodes (CHUNKS, length).

    Args:
        loop: generated function; its last argument is the array to fill.
        length: numbers a row.
        arguments: of the loop, before that array.
    """
    out = np.zeros((CHUNKS, length))
    run_in_threads(loop, CHUNKS, CHUNKS, *arguments, out)
    return out


def moment_sums(channel: Channel, loop: Callable[..., None], *arguments: Any) -> np.ndarray:
    """Return the sums of the generated `sample` (`averages` at a finite temperature): token rows, then totals.

    Args:
        channel: the generated channel.
        loop: one of these functions.
        arguments: of the loop.

    Returns:
        a row a chunk of the nodes.
    """
    return sum_in_chunks(loop, channel.TOKENS * channel.ROW + len(channel.TOTALS), *arguments)


def proximal_columns(channel: ProximalChannel, nodes: np.ndarray, *arguments: Any) -> np.ndarray:
    """Return what the generated `proximal_points` fill, a row a node.

    Args:
        channel: the generated channel.
        nodes: (N, dimension).
        arguments: of the loop behind the nodes and their weights.
    """
    out = np.zeros((len(nodes), 2 * channel.FIELDS + channel.FEATURES + 5))
    run_in_threads(channel.proximal_points, len(nodes), nodes, np.ones(len(nodes)), *arguments, out)
    return out


def allocate_slopes(channel: Channel, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return arrays of zeros for weights (M,) and slopes (M, D, D), a row a node and value of labelled noise.

    Args:
        channel: the generated channel.
        nodes: (N, dimension).
    """
    size = len(nodes) * max(1, len(channel.LABELLED_NOISE))
    return np.zeros(size), np.zeros((size, channel.FIELDS, channel.FIELDS))
