"""Where machine code is kept, and how Numba finds it there: compiled once on a machine, loaded at little cost."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

import platformdirs

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LONGEST, _POLL = 60.0, 0.02  # seconds, while another process compiles the same function


def cache_folder() -> Path:
    """The user's cache folder for generated solvers and compiled code (override: SADDLEFORGE_CACHE)."""
    return Path(os.environ.get("SADDLEFORGE_CACHE") or platformdirs.user_cache_dir("saddleforge")).absolute()


def numba_folder() -> Path:
    """Of compiled code in it (override: NUMBA_CACHE_DIR)."""
    return cache_folder() / "numba"


@cache
def wait_asleep() -> None:
    """Start Numba's threads such that they sleep while they wait, unless the environment says how they should.

    GNU OpenMP has them spin, which takes half of their speed from processes that share cores and gives nothing to one.
    """
    import numba  # slow to load, and only needed to compile

    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # read when the threads are launched
        try:
            numba.set_num_threads(numba.get_num_threads())
        finally:
            del os.environ["OMP_WAIT_POLICY"]


@contextmanager
def numba_cache() -> Iterator[None]:
    """Compiled code goes to the user's cache folder, never beside the sources (which may be read-only).

    Functions that are defined meanwhile find it there by `_ready_cache`.
    """
    import numba  # slow to load, and only needed to compile
    import numba.core.dispatcher

    config: Any = numba.config
    dispatcher: Any = numba.core.dispatcher

    previous, caches = config.CACHE_DIR, dispatcher.FunctionCache
    try:
        if not os.environ.get("NUMBA_CACHE_DIR"):
            config.CACHE_DIR = str(numba_folder())
        dispatcher.FunctionCache = _ready_cache()
        yield
    finally:
        config.CACHE_DIR, dispatcher.FunctionCache = previous, caches


@cache
def _ready_cache() -> type[Any]:
    """Numba's cache of a function, which loads machine code without what compiles it; what another process is compiling
    is waited for, and what several save at once is kept."""
    from numba.core.caching import FunctionCache
    from numba.core.runtime import rtsys

    class ReadyCache(FunctionCache):
        _claim: IO[bytes] | None = None  # while this process compiles the function

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            # Numba's own loads the implementations of all that can be compiled, SciPy's linear algebra with them, which
            # takes as long as a solve. A compilation does so by itself; machine code wants its runtime only.
            rtsys.initialize(target_context)
            with self._guard_against_spurious_io_errors():
                found = self._load_overload(sig, target_context)
                if found is None and self._claim is None:
                    # No circles: who waits holds what calls this function, who is waited for what this function calls.
                    self._claim = _locked(Path(self.cache_path) / f".{self._impl.filename_base}.lock", _LONGEST)
                    found = self._load_overload(sig, target_context)
                    if found is not None:
                        self._release()
                return found

        def save_overload(self, sig: Any, data: Any) -> None:
            try:
                # An index is read and written as a whole: of two processes one would give away the other's file.
                lock = _locked(Path(self.cache_path) / ".lock", _LONGEST)
                with lock or nullcontext():
                    super().save_overload(sig, data)
            finally:
                self._release()

        def _release(self) -> None:
            claim, self._claim = self._claim, None
            if claim is not None:
                claim.close()

    return ReadyCache


def _locked(path: Path, longest: float) -> IO[bytes] | None:
    """A file that no other process has locked, until it is closed or the process ends.

    None where the system has no such locks, or after so many seconds: then something is compiled twice.
    """
    if fcntl is None:
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = open(path, "ab")  # noqa: SIM115  (for as long as it is locked)
    except OSError:  # Numba says itself what is wrong with a folder
        return None
    end = monotonic() + longest
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if monotonic() > end:
                lock.close()
                return None
            sleep(_POLL)
        except OSError:  # a file system without locks
            lock.close()
            return None
        except BaseException:
            lock.close()
            raise


@cache
def loops(name: str) -> Any:
    """A file of `runtime/loops`, for those who call it outside generated code."""
    with numba_cache():
        return importlib.import_module(f"..loops.{name}", __package__)
