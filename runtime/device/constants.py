"""Arrays that never change, such as sets of quadrature nodes: a device keeps its copy of them."""

from __future__ import annotations

import weakref

import numpy as np

_constant: dict[int, weakref.ref[np.ndarray]] = {}


def declare_constant(array: np.ndarray) -> np.ndarray:
    """Declare that nobody will write into an array, so that a device may keep its copy; return the array.

    The array stays writable to NumPy: Numba compiles a function once more for read-only arrays.
    """
    number = id(array)
    _constant[number] = weakref.ref(array, lambda _: _constant.pop(number, None))
    return array


def is_constant(array: np.ndarray) -> bool:
    """Return whether an array was declared constant."""
    known = _constant.get(id(array))
    return known is not None and known() is array
