"""Compiled loops over quadrature nodes, on the device that is asked for; results do not depend on threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.devices import DeviceOptions
from ..base.threads import run_loop_in_threads

CHUNKS = 64  # fixed, so that sums do not depend on the number of threads


def fill_at_nodes(
    loop: Callable[..., None],
    given: Sequence[np.ndarray],
    *law: Any,
    filled: Sequence[np.ndarray],
    on_cpu: bool = False,
) -> None:
    """Fill arrays with results at every node.

    Args:
        loop: compiled loop(first, last, *given, *law, *filled) over the nodes first to last - 1.
        given: arrays with one entry per node, such as the nodes and their weights.
        *law: further arguments of the loop.
        filled: arrays that it fills, whose first axis has a constant number of entries per node.
        on_cpu: whether the loop needs what only the CPU has.

    Raises:
        InputError: the memory of the device is too small.
        TimeLimitError: the time limit and the overtime of a running step end within the loop.
    """
    if runs_on_cuda(len(given[0])) and not on_cpu:
        from .cuda import fill_by_index

        fill_by_index(loop, given, law, filled)
    else:
        run_loop_in_threads(loop, len(given[0]), *given, *law, *filled)


def sum_over_nodes(
    loop: Callable[..., None],
    length: int,
    nodes: np.ndarray,
    weights: np.ndarray,
    *law: Any,
    on_cpu: bool = False,
) -> np.ndarray:
    """Return sums over quadrature nodes, one row per portion of the nodes, shape (portions, length).

    Args:
        loop: compiled loop(first, last, chunks, nodes, weights, *law, out) over chunks of the nodes, which fills the
            array out (chunks, length).
        length: number of sums.
        nodes: one node per row.
        weights: weight of each node.
        *law: further arguments of the loop.
        on_cpu: whether the loop needs what only the CPU has.

    Raises:
        InputError: the memory of the device is too small.
        TimeLimitError: the time limit and the overtime of a running step end within the loop.
    """
    if runs_on_cuda(len(nodes)) and not on_cpu:
        from .cuda import sum_by_chunks

        return sum_by_chunks(loop, CHUNKS, length, nodes, weights, *law)
    return sum_in_chunks(loop, length, nodes, weights, *law)


def sum_in_chunks(loop: Callable[..., None], length: int, *arguments: Any) -> np.ndarray:
    """Return sums that a loop over chunks forms on the CPU, one row per chunk, shape (CHUNKS, length).

    Args:
        loop: compiled loop(first, last, chunks, *arguments, out), which fills the array out (chunks, length).
        length: number of sums.
        *arguments: arguments of the loop between the number of chunks and that array.
    """
    out = np.zeros((CHUNKS, length))
    run_loop_in_threads(loop, CHUNKS, CHUNKS, *arguments, out)
    return out


def runs_on_cuda(nodes: int) -> bool:
    """Return whether an average over so many nodes runs on a CUDA device."""
    options = DeviceOptions.current()
    return options.uses_cuda and nodes >= options.min_nodes
