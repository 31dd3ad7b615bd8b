"""The cache of machine code: every function is compiled by Numba once on a machine and loaded afterwards."""

from __future__ import annotations

import hashlib
import importlib
import os
import pickle
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import count
from pathlib import Path
from typing import IO, Any, ClassVar

from ..base.budget import interrupt_at_time_limit
from ..base.cache import numba_cache_folder, warn_cache_not_writable
from ..base.errors import InputError
from ..base.files import lock_file, write_atomically
from ..base.options import AlgorithmOptions
from ..base.progress import progress_step

SOURCE = "source"
FILES = "__files__"  # attribute of a module made of several files: their paths


@dataclass(frozen=True)
class CompilationOptions(AlgorithmOptions):
    """Options of the cache of machine code.

    Attributes:
        lock_timeout: seconds to wait while another process compiles the same function; then it is compiled twice.
    """

    lock_timeout: float = 60.0


@contextmanager
def use_numba_cache() -> Iterator[None]:
    """Make Numba use the user's cache folder during this block, not folders next to the (perhaps read-only) sources.

    Functions defined in the block load their machine code from that folder and save it there.
    """
    import numba  # slow to load, and only needed to compile
    import numba.core.dispatcher

    config: Any = numba.config
    dispatcher: Any = numba.core.dispatcher

    previous, caches = config.CACHE_DIR, dispatcher.FunctionCache
    try:
        config.CACHE_DIR = str(numba_cache_folder())
        dispatcher.FunctionCache = _machine_code_cache_class()
        yield
    finally:
        config.CACHE_DIR, dispatcher.FunctionCache = previous, caches


@cache
def _machine_code_cache_class() -> type[Any]:
    """Return a class that replaces Numba's cache of compiled functions; it loads them without loading the compiler.

    It waits for a process that compiles the same function, and is safe if several processes save at once. Folders may
    be read-only. Damaged files and those of other versions are replaced; a failure to write is reported once.
    """
    from llvmlite import __version__ as llvmlite
    from numba import __version__ as numba
    from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile
    from numba.core.event import register
    from numba.core.runtime import rtsys

    class DamagedCacheFileError(OSError):
        """Error for a cache file with damaged content; Numba treats it as a missing file."""

    class ChecksummedCacheFile(IndexDataCacheFile):
        """Numba's cache files of a function, index and machine code, each with a checksum in front.

        The checksum covers content, source and compiler version, so that no incomplete or foreign file is unpickled.
        """

        def _checksum(self, data: bytes) -> bytes:
            return hashlib.sha256(f"{numba} {llvmlite} {self._source_stamp!r}\n".encode() + data).digest()

        def _read_if_checksum_matches(self, path: str) -> Any:
            content = Path(path).read_bytes()
            seal, data = content[:32], content[32:]
            if self._checksum(data) != seal:
                raise DamagedCacheFileError(path)
            return pickle.loads(data)

        def _write_with_checksum(self, path: str, value: Any) -> None:
            data = self._dump(value)
            with self._open_for_write(path) as file:
                file.write(self._checksum(data) + data)

        def save(self, key: Any, data: Any) -> None:
            """Write the machine code for a signature to its file, then the index that refers to the file.

            Args:
                key: signature of the compiled function.
                data: machine code of the function.
            """
            # Numba writes the index first; a process killed in between would leave it with outdated data.
            known = self._load_index()
            name = known.get(key) or next(n for n in map(self._data_name, count(1)) if n not in known.values())
            self._save_data(name, data)
            if key not in known:
                self._save_index({**known, key: name})

        def _load_index(self) -> Any:
            try:
                return self._read_if_checksum_matches(self._index_path)
            except OSError:
                return {}

        def _save_index(self, overloads: Any) -> None:
            self._write_with_checksum(self._index_path, overloads)

        def _load_data(self, name: str) -> Any:
            return self._read_if_checksum_matches(self._data_path(name))

        def _save_data(self, name: str, data: Any) -> None:
            self._write_with_checksum(self._data_path(name), data)

    located: Any = CompileResultCacheImpl._locator_classes[0]

    class MachineCodeLocator(located):
        """A Numba locator: it gives the folder of the machine code of a function (`machine_code_folder`)."""

        def __init__(self, py_func: Any, py_file: str) -> None:
            self.files = py_func.__globals__.get(FILES) or (Path(py_file),)
            self._py_file, self._lineno = py_file, py_func.__code__.co_firstlineno
            self._cache_path = str(machine_code_folder(*self.files))

        def get_source_stamp(self) -> str:
            # Numba uses size and modification time, which differ between files of the same code.
            return os.path.basename(self._cache_path)

        @classmethod
        def from_function(cls, py_func: Any, py_file: str) -> Any:
            """Return the locator for a Python function; None if its source file does not exist.

            Args:
                py_func: the Python function.
                py_file: path of its source file.
            """
            return cls(py_func, py_file) if os.path.exists(py_file) else None

    class MachineCodeCacheImpl(CompileResultCacheImpl):
        _locator_classes: ClassVar[list[Any]] = [  # type: ignore[misc]
            MachineCodeLocator,
            *CompileResultCacheImpl._locator_classes[1:],
        ]

    class MachineCodeCache(FunctionCache):
        _impl_class = MachineCodeCacheImpl
        _claim: IO[bytes] | None = None  # while this process compiles the function

        def __init__(self, py_func: Any) -> None:
            super().__init__(py_func)
            stamp = self._impl.locator.get_source_stamp()
            self._cache_file = ChecksummedCacheFile(self._cache_path, self._impl.filename_base, stamp)

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            """Return the cached machine code for a signature, or None; wait if another process is compiling it.

            Args:
                sig: signature (types of the arguments) of the compiled function.
                target_context: code generation context, which Numba passes.
            """
            # Numba would load all implementations, SciPy's linear algebra included, which takes as long as a solve.
            # A compilation does so by itself; machine code needs Numba's runtime only.
            rtsys.initialize(target_context)
            with self._guard_against_spurious_io_errors():
                found = self._load_overload(sig, target_context)
                if found is None and self._claim is None:
                    timeout = CompilationOptions.current().lock_timeout
                    # Without the lock, or after the timeout, it is compiled twice. There is no deadlock: a waiting
                    # process holds callers of this function, the other one its callees.
                    self._claim = lock_file(Path(self.cache_path) / f".{self._impl.filename_base}.lock", timeout)
                    found = self._load_overload(sig, target_context)
                    if found is not None:
                        self._release_compilation_lock()
                return found

        def save_overload(self, sig: Any, data: Any) -> None:
            """Save the machine code for a signature in the cache; a failure is reported once.

            Args:
                sig: signature (types of the arguments) of the compiled function.
                data: Numba's compilation result.
            """
            try:
                # An index is read and written as a whole: of two processes one would give away the other's file.
                lock = lock_file(Path(self.cache_path) / ".lock", CompilationOptions.current().lock_timeout)
                with lock or nullcontext():
                    super().save_overload(sig, data)
                    _write_source_list(self._impl.locator.files, Path(self.cache_path))
            except (OSError, InputError) as error:
                warn_cache_not_writable(numba_cache_folder(), error)
            finally:
                self._release_compilation_lock()

        def _release_compilation_lock(self) -> None:
            claim, self._claim = self._claim, None
            if claim is not None:
                claim.close()

    register("numba:compile", _compilation_listener(MachineCodeCache))
    return MachineCodeCache


def _compilation_listener(cache: type[Any]) -> Any:
    """Return a listener that Numba notifies when the compilation of a function begins and ends.

    It shows compilations of functions with the given class of cache as a progress step, and lets a time limit interrupt
    them.
    """
    from numba.core.event import Listener

    class CompilationListener(Listener):
        def __init__(self) -> None:
            self._open: list[ExitStack] = []  # of functions that are being compiled, callers first

        def on_start(self, event: Any) -> None:
            function, is_first = event.data["dispatcher"], not self._open
            self._open.append(ExitStack())
            if is_first and isinstance(function._cache, cache):
                name = function.py_func.__name__.strip("_")
                self._open[0].enter_context(progress_step(f"Numba compiles the function {name}, once on this machine"))
                self._open[0].enter_context(interrupt_at_time_limit())

        def on_end(self, event: Any) -> None:
            failure = event._exc_details or (None, None, None)  # `is_failed` of some releases says the opposite
            own = event.data["dispatcher"]._cache
            if failure[0] is not None and isinstance(own, cache):
                own._release_compilation_lock()
            self._open.pop().__exit__(*failure)

    return CompilationListener()


def machine_code_folder(*files: Path) -> Path:
    """Return the cache folder for the machine code of a module with given source files.

    Modules of the same source code share it; its file `SOURCE` lists the source files.
    """
    changed = [(status.st_mtime_ns, status.st_size) for status in (file.stat() for file in files)]
    return numba_cache_folder() / f"{files[0].stem}-{_cached_source_files_digest(files, tuple(changed))}"


@lru_cache(maxsize=1024)
def _cached_source_files_digest(files: tuple[Path, ...], _changed: tuple[tuple[int, int], ...]) -> str:
    return source_files_digest(*files)


def source_files_digest(*files: Path) -> str:
    """Return a digest of the contents of source files, which identifies their machine code."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _write_source_list(files: tuple[Path, ...], folder: Path) -> None:
    note = folder / SOURCE
    if not note.exists():
        write_atomically(note, b"\n".join(os.fsencode(file.absolute()) for file in files))


@cache
def load_compiled_loops(name: str) -> Any:
    """Return a module of `runtime/loops`, imported so that its compiled functions use the user's cache folder."""
    with use_numba_cache():
        return importlib.import_module(f"..loops.{name}", __package__)
