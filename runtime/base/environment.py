"""What of the environment libraries read, checked before they load; what processes may use, and helper processes."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from .errors import InputError, require_in
from .interrupts import end_with_parent

if TYPE_CHECKING:
    import subprocess

_THREADS = "NUMBA_NUM_THREADS"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", _THREADS)
_MOST_THREADS = 4096  # what the system refuses ends the process where they begin
_SILENT = -3  # subprocess.DEVNULL, which is slow to load
_LEAST_DATA = 0.5  # gigabytes: Python with its libraries, and a compilation
_LEAST = 1_000_000_000  # bytes of address space: less ends linear algebra while it loads


@contextmanager
def memory_limit(gigabytes: float | None) -> Iterator[None]:
    """Let this process, and those that it starts, use no more for its data; None: as much as there is.

    Raises:
        InputError: too little to work with; or a system that knows no such limit.
    """
    if gigabytes is None:
        yield
        return
    require_in("memory", gigabytes, f"[{_LEAST_DATA}, inf) gigabytes")
    try:
        import resource

        before = resource.getrlimit(resource.RLIMIT_DATA)
    except (ImportError, AttributeError):
        raise InputError("a limit of memory needs a system that has one (RLIMIT_DATA)") from None
    most = int(1e9 * min(gigabytes, sys.maxsize / 1e10))
    if before[1] != resource.RLIM_INFINITY:
        most = min(most, before[1])
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def check() -> None:
    """
    Raises:
        InputError: a number of threads or a limit of memory that cannot be worked with.
    """
    threads = os.environ.get(_THREADS, "1").strip()
    if not (threads.isdecimal() and len(threads) < 10 and 1 <= int(threads) <= _MOST_THREADS):
        raise InputError(
            f"{_THREADS} = {threads!r} is out of range; allowed are whole numbers from 1 to {_MOST_THREADS}"
        )
    if "matplotlib" not in sys.modules:  # which is told of windows by it, and refuses what it does not know
        os.environ.pop("MPLBACKEND", None)  # pictures go to files
    try:
        import resource
    except ImportError:  # Windows
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LEAST:
        raise InputError(
            f"address space is limited to {limit / 1e9:.2g} GB (ulimit -v); {_LEAST / 1e9:.0f} GB or more are needed"
        )


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def helper(
    module: str, variables: Mapping[str, str], stdout: int, stderr: int | None = None
) -> subprocess.Popen[bytes]:
    """A process that calls `serve` of a module with a pipe as its standard input, and finds what this one imports.

    Nothing of the working directory stands for a module there; Ctrl-C is this process's to handle.

    Args:
        variables: of its environment, beside those of this one; stdout, stderr: as `subprocess` has them.

    Raises:
        OSError: it cannot be started.
    """
    import subprocess  # slow to load

    own = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", f"from {module} import serve; serve()"],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, **variables, **own},
        start_new_session=True,
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """End such a process, done or not, with the pipes to it: no file is left half written."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


@contextmanager
def companion(module: str, given: Any, variables: Mapping[str, str]) -> Iterator[Callable[[], bool]]:
    """Run `serve` of a module in a process next to this one for the time of the block, on what is given.

    It may end before (`received` ends it with this process). Where it cannot start there is none.

    Yields:
        whether it is at work.
    """
    process: subprocess.Popen[bytes] | None = None
    with suppress(OSError):
        process = helper(module, variables, stdout=_SILENT, stderr=_SILENT)
        assert process.stdin is not None
        pickle.dump(given, process.stdin)
        process.stdin.flush()
    try:
        yield lambda: process is not None and process.poll() is None
    finally:
        if process is not None:
            end(process)


def received() -> Any:
    """What the process that started this one as its companion gave it; this one ends with that."""
    end_with_parent()
    return pickle.load(sys.stdin.buffer)
