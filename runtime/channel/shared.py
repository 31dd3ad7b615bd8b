"""Generated loops over nodes, shared out among threads; what they fill is made here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.threads import share
from ..problems.parts import Channel, ProximalChannel

CHUNKS = 64  # fixed, so that sums do not depend on the number of threads


def summed(loop: Callable[..., None], length: int, *arguments: Any) -> np.ndarray:
    """Sums of a generated loop, a row a chunk of the nodes (CHUNKS, length)."""
    out = np.zeros((CHUNKS, length))
    share(loop, CHUNKS, CHUNKS, *arguments, out)
    return out


def rows(channel: Channel, loop: Callable[..., None], *arguments: Any) -> np.ndarray:
    """The generated `sample`, or `averages` at a finite temperature: token rows, then totals, a row a chunk."""
    return summed(loop, channel.TOKENS * channel.ROW + len(channel.TOTALS), *arguments)


def proximal_columns(channel: ProximalChannel, nodes: np.ndarray, *arguments: Any) -> np.ndarray:
    """The generated `proximal_points`, a row a node."""
    out = np.zeros((len(nodes), 2 * channel.FIELDS + channel.FEATURES + 5))
    share(channel.proximal_points, len(nodes), nodes, np.ones(len(nodes)), *arguments, out)
    return out


def slopes_of(channel: Channel, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Room for weights (M,) and slopes (M, D, D), a row a node and value of labelled noise."""
    size = len(nodes) * max(1, len(channel.LABELLED_NOISE))
    return np.zeros(size), np.zeros((size, channel.FIELDS, channel.FIELDS))
