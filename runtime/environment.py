"""What of the environment libraries read when they load, checked before they do."""

from __future__ import annotations

import os

from .errors import InputError

_THREADS, _LAYER = "NUMBA_NUM_THREADS", "NUMBA_THREADING_LAYER"
_LAYERS = ("default", "safe", "threadsafe", "forksafe", "tbb", "omp", "workqueue")
_LEAST = 1_000_000_000  # bytes of address space: less ends linear algebra while it loads


def check() -> None:
    """
    Raises:
        InputError: a number of threads, a threading layer or a limit of memory that cannot be worked with.
    """
    threads = os.environ.get(_THREADS, "1")
    if not threads.strip().isdecimal() or int(threads) < 1:
        raise InputError(f"{_THREADS} = {threads!r} is out of range; allowed are whole numbers from 1")
    layer = os.environ.get(_LAYER, "default")
    if layer not in _LAYERS:
        raise InputError(f"{_LAYER} = {layer!r} is not known; allowed are {', '.join(_LAYERS)}")
    try:
        import resource
    except ImportError:  # Windows
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LEAST:
        raise InputError(
            f"address space is limited to {limit / 1e9:.2g} GB (ulimit -v); {_LEAST / 1e9:.0f} GB or more are needed"
        )
