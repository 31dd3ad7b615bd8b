"""Where machine code is kept, and how Numba finds it there: compiled once on a machine, loaded at little cost."""

from __future__ import annotations

import hashlib
import importlib
import os
import pickle
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, lru_cache
from itertools import count
from pathlib import Path
from typing import IO, Any, ClassVar

from ..base.budget import sharp
from ..base.cache import numba_folder, unkept
from ..base.errors import InputError
from ..base.files import locked, write_whole
from ..base.progress import step

SOURCE = "source"
FILES = "__files__"  # of a module that several files make: their paths
_LONGEST = 60.0  # seconds, while another process compiles the same function


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
        config.CACHE_DIR = str(numba_folder())
        dispatcher.FunctionCache = _ready_cache()
        yield
    finally:
        config.CACHE_DIR, dispatcher.FunctionCache = previous, caches


@cache
def _ready_cache() -> type[Any]:
    """Numba's cache of a function, which loads machine code without what compiles it; what another process is compiling
    is waited for, and what several save at once is kept.

    A folder need not be writable to be read. What is damaged or of another version is compiled again and written over;
    what cannot be written is said once.
    """
    from llvmlite import __version__ as llvmlite
    from numba import __version__ as numba
    from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile
    from numba.core.event import register
    from numba.core.runtime import rtsys

    class Damaged(OSError):
        """What Numba's cache takes for a file that has been removed."""

    class Sealed(IndexDataCacheFile):
        """Index and data behind a digest of what they hold, of the source and of what compiled it: nothing is unpickled
        that was not written whole, and no index leads to another's data."""

        def _seal(self, data: bytes) -> bytes:
            return hashlib.sha256(f"{numba} {llvmlite} {self._source_stamp!r}\n".encode() + data).digest()

        def _read(self, path: str) -> Any:
            content = Path(path).read_bytes()
            seal, data = content[:32], content[32:]
            if self._seal(data) != seal:
                raise Damaged(path)
            return pickle.loads(data)

        def _write(self, path: str, value: Any) -> None:
            data = self._dump(value)
            with self._open_for_write(path) as file:
                file.write(self._seal(data) + data)

        def save(self, key: Any, data: Any) -> None:
            # Numba's own writes the index first, and killed there leaves it with what the file held before.
            known = self._load_index()
            name = known.get(key) or next(n for n in map(self._data_name, count(1)) if n not in known.values())
            self._save_data(name, data)
            if key not in known:
                self._save_index({**known, key: name})

        def _load_index(self) -> Any:
            try:
                return self._read(self._index_path)
            except OSError:
                return {}

        def _save_index(self, overloads: Any) -> None:
            self._write(self._index_path, overloads)

        def _load_data(self, name: str) -> Any:
            return self._read(self._data_path(name))

        def _save_data(self, name: str, data: Any) -> None:
            self._write(self._data_path(name), data)

    located: Any = CompileResultCacheImpl._locator_classes[0]

    class Locator(located):
        """In `code_folder`, whether it can be written or not."""

        def __init__(self, py_func: Any, py_file: str) -> None:
            self.files = py_func.__globals__.get(FILES) or (Path(py_file),)
            self._py_file, self._lineno = py_file, py_func.__code__.co_firstlineno
            self._cache_path = str(code_folder(*self.files))

        def get_source_stamp(self) -> str:
            # Numba's own is the file's size and time of change, which differ between files of the same code.
            return os.path.basename(self._cache_path)

        @classmethod
        def from_function(cls, py_func: Any, py_file: str) -> Any:
            return cls(py_func, py_file) if os.path.exists(py_file) else None

    class ReadyImpl(CompileResultCacheImpl):
        _locator_classes: ClassVar[list[Any]] = [  # type: ignore[misc]
            Locator,
            *CompileResultCacheImpl._locator_classes[1:],
        ]

    class ReadyCache(FunctionCache):
        _impl_class = ReadyImpl
        _claim: IO[bytes] | None = None  # while this process compiles the function

        def __init__(self, py_func: Any) -> None:
            super().__init__(py_func)
            stamp = self._impl.locator.get_source_stamp()
            self._cache_file = Sealed(self._cache_path, self._impl.filename_base, stamp)

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            # Numba's own loads the implementations of all that can be compiled, SciPy's linear algebra with them, which
            # takes as long as a solve. A compilation does so by itself; machine code wants its runtime only.
            rtsys.initialize(target_context)
            with self._guard_against_spurious_io_errors():
                found = self._load_overload(sig, target_context)
                if found is None and self._claim is None:
                    # Without the lock, or after so long, it is compiled twice.
                    # No circles: who waits holds what calls this function, who is waited for what this function calls.
                    self._claim = locked(Path(self.cache_path) / f".{self._impl.filename_base}.lock", _LONGEST)
                    found = self._load_overload(sig, target_context)
                    if found is not None:
                        self._release()
                return found

        def save_overload(self, sig: Any, data: Any) -> None:
            try:
                # An index is read and written as a whole: of two processes one would give away the other's file.
                lock = locked(Path(self.cache_path) / ".lock", _LONGEST)
                with lock or nullcontext():
                    super().save_overload(sig, data)
                    _note(self._impl.locator.files, Path(self.cache_path))
            except (OSError, InputError) as error:
                unkept(numba_folder(), error)
            finally:
                self._release()

        def _release(self) -> None:
            claim, self._claim = self._claim, None
            if claim is not None:
                claim.close()

    register("numba:compile", _watcher(ReadyCache))
    return ReadyCache


def _watcher(cache: type[Any]) -> Any:
    """Return a listener for when Numba begins and ends to compile a function whose machine code is kept in a `cache`.

    Meanwhile that is the step at hand, and a time limit ends it: nothing in Numba looks at the clock.
    """
    from numba.core.event import Listener

    class Watcher(Listener):
        def __init__(self) -> None:
            self._open: list[ExitStack] = []  # of functions that are being compiled, callers first

        def on_start(self, event: Any) -> None:
            function, is_first = event.data["dispatcher"], not self._open
            self._open.append(ExitStack())
            if is_first and isinstance(function._cache, cache):
                name = function.py_func.__name__.strip("_").replace("_", " ")
                self._open[0].enter_context(step(f"Numba compiles {name}, once on this machine"))
                self._open[0].enter_context(sharp())

        def on_end(self, event: Any) -> None:
            failure = event._exc_details or (None, None, None)  # `is_failed` of some releases says the opposite
            own = event.data["dispatcher"]._cache
            if failure[0] is not None and isinstance(own, cache):
                own._release()
            self._open.pop().__exit__(*failure)

    return Watcher()


def code_folder(*files: Path) -> Path:
    """Return where the machine code of a module is: a folder for the code of its files as it is now, which modules of
    the same code share. `SOURCE` in it names the files that were compiled."""
    changed = [(status.st_mtime_ns, status.st_size) for status in (file.stat() for file in files)]
    return numba_folder() / f"{files[0].stem}-{_digest(files, tuple(changed))}"


@lru_cache(maxsize=1024)
def _digest(files: tuple[Path, ...], _changed: tuple[tuple[int, int], ...]) -> str:
    return digest_of(*files)


def digest_of(*files: Path) -> str:
    """Return a digest of sources. That of a generated file names the generator, as machine code holds loops that the
    file imports."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _note(files: tuple[Path, ...], folder: Path) -> None:
    note = folder / SOURCE
    if not note.exists():
        write_whole(note, b"\n".join(os.fsencode(file.absolute()) for file in files))


@cache
def loops(name: str) -> Any:
    """A file of `runtime/loops`, for those who call it outside generated code."""
    with numba_cache():
        return importlib.import_module(f"..loops.{name}", __package__)
