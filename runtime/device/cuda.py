"""Compiled loops on a CUDA device: every thread calls the loop for one index, sums are formed in a fixed order.

The loops are those of the CPU: Numba compiles a function for the device that a kernel calls there.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from math import ceil
from threading import get_ident
from typing import Any

import numpy as np
from numba import cuda

from ..base import budget
from ..base.devices import DeviceOptions
from ..base.errors import InputError
from .constants import is_constant

warnings.filterwarnings("ignore", "Grid size .* low occupancy")  # small averages are small

_kept: dict[int, Any] = {}  # device copies of constant arrays, by the identity of the array


def fill_by_index(
    loop: Callable[..., None], given: Sequence[np.ndarray], law: Sequence[Any], filled: Sequence[np.ndarray]
) -> None:
    """Call loop(n, n + 1, *given, *law, *filled) for every index n of a node, on the device.

    Args:
        loop: compiled loop over nodes.
        given: arrays with one entry per node, such as the nodes and their weights.
        law: further arguments of the loop.
        filled: arrays that it fills, whose first axis has a constant number of entries per node.

    Raises:
        InputError: the memory of the device is too small.
        TimeLimitError: the time limit and the overtime of a running step have ended.
    """
    count = len(given[0])
    for part in _portions(count, sum(array.nbytes for array in (*given, *filled))):
        rows = [_rows_of_portion(array, part, count) for array in filled]
        there = [_on_device(row) for row in rows]
        known = [_rows_of_portion(array, part, count) for array in given]
        _launch(loop, part.stop - part.start, *known, *law, *there)
        for row, computed in zip(rows, there, strict=True):
            computed.copy_to_host(row)


def sum_by_chunks(
    loop: Callable[..., None], chunks: int, length: int, nodes: np.ndarray, weights: np.ndarray, *law: Any
) -> np.ndarray:
    """Return the sums over nodes that a loop over chunks of nodes forms, on the device, shape (rows, length).

    Every thread of the device sums a few neighbouring nodes; their sums are added one after the other, so that the
    result does not depend on the order in which threads run.

    Args:
        loop: compiled loop(first, last, chunks, nodes, weights, *law, out) that fills out (chunks, length).
        chunks: number of rows per portion of the nodes that fits into the memory of the device.
        length: number of sums.
        nodes: one node per row.
        weights: weight of each node.
        *law: arguments of the loop after the weights.

    Raises:
        InputError: the memory of the device is too small.
        TimeLimitError: the time limit and the overtime of a running step have ended.
    """
    options = DeviceOptions.current()
    per_row = max(1, min(len(nodes), options.max_threads) // chunks)
    found = []
    for part in _portions(len(nodes), nodes.nbytes + weights.nbytes + 8 * chunks * per_row * length):
        single = _sums_of_threads(chunks * per_row, length, get_ident())
        known = [_rows_of_portion(array, part, len(nodes)) for array in (nodes, weights)]
        _launch(loop, chunks * per_row, chunks * per_row, *known, *law, single)
        rows = _on_device(np.zeros((chunks, length)))
        _launch_kernel(_adding_kernel(), chunks * length, single, rows)
        found.append(rows.copy_to_host())
    return np.concatenate(found)


def _launch(loop: Callable[..., None], count: int, *arguments: Any) -> None:
    """Call a loop on the device, with one thread for each of the indices 0 to count - 1."""
    there = tuple(_on_device(value) if isinstance(value, np.ndarray) else value for value in arguments)
    _launch_kernel(_kernel_of_loop(loop), count, there)


def _launch_kernel(kernel: Any, count: int, *arguments: Any) -> None:
    budget.check_running_step()
    block = DeviceOptions.current().block
    kernel[-(-count // block), block](count, *arguments)


@cache
def _kernel_of_loop(loop: Callable[..., None]) -> Any:
    @cuda.jit
    def _call_loop_for_index(count, arguments):
        n = cuda.grid(1)  # type: ignore[call-arg, var-annotated]
        if n < count:
            loop(n, n + 1, *arguments)

    return _call_loop_for_index


@cache
def _adding_kernel() -> Any:
    @cuda.jit
    def _add_neighbouring_rows(count, single, rows):
        n = cuda.grid(1)  # type: ignore[call-arg, var-annotated]
        if n < count:
            row, column = n // rows.shape[1], n % rows.shape[1]
            each = single.shape[0] // rows.shape[0]
            total = 0.0
            for k in range(row * each, (row + 1) * each):
                total += single[k, column]
            rows[row, column] = total

    return _add_neighbouring_rows


def _on_device(array: np.ndarray) -> Any:
    """Return a copy of an array on the device: the kept one of an array that was declared constant."""
    number = id(array)
    if number in _kept:
        return _kept[number]
    try:
        copy = _copy_to_device(array)
    except InputError:
        _kept.clear()
        _sums_of_threads.cache_clear()
        copy = _copy_to_device(array)
    if is_constant(array):
        _kept[number] = copy
        weakref.finalize(array, _kept.pop, number, None)
    return copy


def _copy_to_device(array: np.ndarray) -> Any:
    """Return a copy of an array on the device; raise InputError where its memory is too small."""
    try:
        return cuda.to_device(np.ascontiguousarray(array))
    except Exception as error:  # of the driver, whose classes differ between packages
        if "OUT_OF_MEMORY" not in str(error).upper():
            raise
        raise InputError(
            f"the CUDA device has no memory left for an array of {array.nbytes / 1e9:.2g} GB; "
            "end other programs that use it, ask for fewer nodes, or give the device cpu"
        ) from error


@lru_cache(maxsize=4)
def _sums_of_threads(rows: int, length: int, thread: int) -> Any:
    """Return an array on the device for the sums of its threads, initially 0; one for every thread of the CPU."""
    return _copy_to_device(np.zeros((rows, length)))


@cache
def _device_memory() -> float:
    """Return the bytes of memory that the device has; infinity for the simulator."""
    return float(cuda.current_context().get_memory_info()[1])


def _portions(count: int, size: int) -> list[slice]:
    """Return the portions into which `count` nodes are divided so that each fits into the memory; size in bytes.

    They depend on the memory that the device has, not on what is free, so that a run repeats to the bit.
    """
    most = DeviceOptions.current().memory_fraction * _device_memory()
    portions = max(1, ceil(size / most))
    return [slice(count * k // portions, count * (k + 1) // portions) for k in range(portions)]


def _rows_of_portion(array: np.ndarray, portion: slice, count: int) -> np.ndarray:
    """Return the rows of an array, a constant number per node, that belong to a portion of `count` nodes."""
    each = len(array) // count
    whole = portion.stop - portion.start == count
    return array if whole else array[portion.start * each : portion.stop * each]
