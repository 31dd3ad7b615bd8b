"""Checks of environment variables before libraries read them; limits of memory and processors; helper processes."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from .errors import InputError, require_in_interval
from .interrupts import end_process_with_parent

if TYPE_CHECKING:
    import subprocess

_THREADS = "NUMBA_NUM_THREADS"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", _THREADS)
_MAX_THREADS = 4096  # more than the system allows ends the process when they start
_DEVNULL = -3  # subprocess.DEVNULL: the module is slow to load
_MIN_DATA_GIGABYTES = 0.5  # gigabytes: Python with its libraries, and a compilation
_MIN_ADDRESS_SPACE = 1_000_000_000  # bytes of address space: less ends linear algebra while it loads


@contextmanager
def memory_limit(gigabytes: float | None) -> Iterator[None]:
    """Limit, during the block, the memory of this process and of those that it starts; None: no limit.

    Raises:
        InputError: the limit is too small to work with, or the system has no such limit.
    """
    if gigabytes is None:
        yield
        return
    require_in_interval("memory", gigabytes, f"[{_MIN_DATA_GIGABYTES}, inf) gigabytes")
    try:
        import resource

        before = resource.getrlimit(resource.RLIMIT_DATA)
    except (ImportError, AttributeError):
        raise InputError(
            "memory cannot be limited on this system, which has no RLIMIT_DATA; leave the memory limit out"
        ) from None
    most = int(1e9 * min(gigabytes, sys.maxsize / 1e10))
    if before[1] != resource.RLIM_INFINITY:
        most = min(most, before[1])
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def check_thread_and_memory_settings() -> None:
    """Raise InputError if NUMBA_NUM_THREADS or the limit of the address space (ulimit -v) is out of range."""
    threads = os.environ.get(_THREADS, "1").strip()
    if not (threads.isdecimal() and len(threads) < 10 and 1 <= int(threads) <= _MAX_THREADS):
        raise InputError(
            f"{_THREADS} = {threads!r} is out of range; allowed are whole numbers from 1 to {_MAX_THREADS}"
        )
    if "matplotlib" not in sys.modules:  # it reads the variable on import
        os.environ.pop("MPLBACKEND", None)  # pictures go to files
    try:
        import resource
    except ImportError:  # Windows
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _MIN_ADDRESS_SPACE:
        raise InputError(
            f"address space is limited to {limit / 1e9:.2g} GB (ulimit -v); {_MIN_ADDRESS_SPACE / 1e9:.0f} GB "
            "or more are needed; raise the limit"
        )


def processor_count() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_helper_process(
    module: str, variables: Mapping[str, str], stdout: int, stderr: int | None = None
) -> subprocess.Popen[bytes]:
    """Start a Python process that calls `helper_process_main` of a module, and return it.

    Its standard input is a pipe, its import path that of this process without the working directory. Ctrl-C does not
    reach it.

    Args:
        module: dotted name of the module.
        variables: environment variables to add to those of this process.
        stdout: standard output, as `subprocess.Popen` takes it.
        stderr: standard error, as `subprocess.Popen` takes it.

    Raises:
        OSError: the process cannot be started.
    """
    import subprocess  # slow to load

    own = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", f"from {module} import helper_process_main; helper_process_main()"],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, **variables, **own},
        start_new_session=True,
    )


def end_helper_process(process: subprocess.Popen[bytes]) -> None:
    """Kill a helper process if it still runs, and close the pipes to it."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


@contextmanager
def run_background_process(module: str, given: Any, variables: Mapping[str, str]) -> Iterator[Callable[[], bool]]:
    """Run the function `helper_process_main` of a module in a second process during the block, then end that process.

    If the second process cannot be started, the block runs without it.

    Args:
        module: dotted name of the module.
        given: object sent to the second process, which reads it by `receive_object_from_parent`; it is pickled.
        variables: environment variables to add to those of this process.

    Yields:
        A function without arguments that returns whether the second process is running.
    """
    process: subprocess.Popen[bytes] | None = None
    with suppress(OSError):
        process = start_helper_process(module, variables, stdout=_DEVNULL, stderr=_DEVNULL)
        assert process.stdin is not None
        pickle.dump(given, process.stdin)
        process.stdin.flush()
    try:
        yield lambda: process is not None and process.poll() is None
    finally:
        if process is not None:
            end_helper_process(process)


def receive_object_from_parent() -> Any:
    """Return the object that the parent sent to this helper process, which from now on ends when its parent ends."""
    end_process_with_parent()
    return pickle.load(sys.stdin.buffer)
