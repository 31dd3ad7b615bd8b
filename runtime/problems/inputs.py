"""What executing a model file reads: helpers and data, by digest, so that a solver is taken from the cache only where
executing the file again would give the same model.

While a file is executed, helpers of the user are loaded from their sources, whatever this process imported before and
whatever bytecode lies about; afterwards the process has its own modules and its path of modules back.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import json
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from .._version import __version__
from ..base.cache import cache_folder
from ..base.errors import InputError
from ..base.files import write_whole

# What comes out of these is decided by what goes in: a file that imports anything else is executed each time.
_LIBRARIES = ("sympy", "mpmath", "numpy", "scipy")
_DETERMINED = {
    *("saddleforge", *_LIBRARIES),
    *("__future__", "abc", "array", "bisect", "cmath", "collections", "contextlib", "copy", "csv", "dataclasses"),
    *("decimal", "enum", "fractions", "functools", "gzip", "heapq", "inspect", "io", "itertools", "json", "math"),
    *("numbers", "operator", "os", "pathlib", "pickle", "re", "statistics", "string", "struct", "sys", "textwrap"),
    *("tomllib", "types", "typing", "warnings"),
}
_UNDETERMINED = re.compile(
    rb"\b(?:environb?|getenv|argv|stdin|import_module|__import__)\b|\binput\s*\(|\brandom(?:\.\w|\s+import\b)"
)
_UNTRACED = {
    *("os.listdir", "os.scandir", "glob.glob", "pathlib.Path.glob", "os.system", "os.exec", "os.fork", "os.forkpty"),
    *("os.posix_spawn", "os.spawn", "subprocess.Popen", "socket.connect", "socket.getaddrinfo", "urllib.Request"),
}


@dataclass
class Inputs:
    """What was read so far.

    Attributes:
        files: path -> digest of its bytes, None where there was no such file.
        names: modules that the user's sources import, packages by their first name -> where they were found, if on a
            path.
        search: where modules were looked for in the end.
        traced: False where something was read that is not among these.
    """

    files: dict[str, str | None] = field(default_factory=dict)
    names: dict[str, str | None] = field(default_factory=dict)
    search: list[str] = field(default_factory=list)
    traced: bool = True

    def read(self, path: str) -> None:
        """Note a file, with the bytes it has now."""
        path = os.path.abspath(path)
        if path in self.files or not _is_own(path) or path.startswith(os.path.join(cache_folder(), "")):
            return
        if os.path.exists(path) and not os.path.isfile(path):
            self.traced = False
            return
        try:
            content = Path(path).read_bytes()
        except OSError:
            self.files[path] = None
            return
        self.files[path] = hashlib.sha256(content).hexdigest()
        if path.endswith(".py") and _UNDETERMINED.search(content):
            self.traced = False

    def unchanged(self) -> bool:
        """Whether all of them would be read again as they were."""
        importlib.invalidate_caches()
        for path, digest in self.files.items():
            again = Inputs()
            again.read(path)
            if again.files.get(path) != digest:
                return False
        return all(_found(name, self.search) == origin for name, origin in self.names.items())


@dataclass(frozen=True)
class Record:
    """What was kept of the execution of a model file, in the cache."""

    path: Path

    @classmethod
    def of(cls, file: Path, question: str, folder: Path) -> Record:
        """That of a file, seen from this working directory and along this path of modules.

        Args:
            question: what else the answer depends on.
        """
        known = [str(file.resolve()), os.path.abspath(""), question, __version__, sys.version, *dict.fromkeys(sys.path)]
        digest = hashlib.sha256(repr(known).encode()).hexdigest()[:16]
        return cls(folder / f"{file.stem}-{digest}.json")

    def recall(self) -> Any:
        """The answer that was kept, or None where the file must be executed."""
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            inputs = Inputs(kept["files"], kept["names"], kept["search"])
            return kept["answer"] if inputs.unchanged() else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def keep(self, inputs: Inputs, answer: Any) -> None:
        """Keep an answer with the inputs it came from, where all of them are known."""
        if not inputs.traced:
            self.path.unlink(missing_ok=True)
            return
        content = {"answer": answer, "files": inputs.files, "names": inputs.names, "search": inputs.search}
        with suppress(InputError):  # what cannot be kept is executed again
            write_whole(self.path, json.dumps(content, indent=1))


class FromSource(SourceFileLoader):
    """Compiles from the source each time: bytecode knows its source by size and whole seconds only."""

    def get_code(self, fullname: str) -> CodeType:
        """As of `SourceFileLoader`, but bytecode is neither looked for nor written."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _OwnModules:
    """Finds what PathFinder finds, and has sources of the user compiled anew."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin and type(spec.loader) is SourceFileLoader and _is_own(spec.origin):
            spec.loader, spec.cached = FromSource(spec.loader.name, spec.origin), None
        return spec


_inputs: Inputs | None = None  # of the file that is being executed


@contextmanager
def executing() -> Iterator[Inputs]:
    """Executes what is inside as a fresh process would, and notes what it reads."""
    global _inputs
    if _inputs is not None:
        yield _inputs
        return
    _watch()
    importlib.invalidate_caches()
    inputs, before, search = Inputs(), set(sys.modules), list(sys.path)
    put_aside: dict[str, ModuleType] = {}
    fresh: set[str] = set()
    ordinary = builtins.__import__

    def importing(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> ModuleType:
        top = name.partition(".")[0]
        if level == 0 and top not in fresh and _is_own((globals or {}).get("__file__")):
            fresh.add(top)
            put_aside.update(_take_away(top, inputs))
        return ordinary(name, globals, locals, fromlist, level)

    place = next((i for i, finder in enumerate(sys.meta_path) if finder is PathFinder), len(sys.meta_path))
    sys.meta_path.insert(place, _OwnModules)
    builtins.__import__, _inputs = importing, inputs
    try:
        yield inputs
        for name in set(sys.modules) - before | fresh:
            inputs.read(getattr(sys.modules.get(name), "__file__", None) or os.devnull)
        inputs.search = list(sys.path)
    finally:
        builtins.__import__, _inputs = ordinary, None
        sys.meta_path.remove(_OwnModules)
        sys.path[:] = search
        replaced = {name.partition(".")[0] for name in put_aside}
        for name in [name for name in sys.modules if name.partition(".")[0] in replaced]:
            del sys.modules[name]
        sys.modules.update(put_aside)


def _take_away(top: str, inputs: Inputs) -> dict[str, ModuleType]:
    """What the process holds of a package of the user's, taken out of its modules so that it is loaded anew."""
    inputs.names[top] = _found(top, sys.path)
    held = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == top}
    origins = [_origin(module) for module in held.values()] or [inputs.names[top]]
    if not any(map(_is_own, origins)):
        inputs.traced = inputs.traced and (top in _DETERMINED or inputs.names[top] is None)
        return {}
    compiled = any(origin is not None and origin.endswith(tuple(EXTENSION_SUFFIXES)) for origin in origins)
    if compiled or inputs.names[top] is None:
        inputs.traced = False  # what cannot be loaded twice stays
        return {}
    for name in held:
        del sys.modules[name]
    return held


def _origin(module: ModuleType) -> str | None:
    return getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)


def _found(name: str, search: list[str]) -> str | None:
    """Where a module or package lies, or None where there is none."""
    for finder in sys.meta_path:
        if not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec(name, search if finder in (PathFinder, _OwnModules) else None)
        if spec is not None:
            return spec.origin or next(iter(spec.submodule_search_locations or ()), None)
    return None


@cache
def _not_own() -> tuple[str, ...]:
    """Folders of Python, of installed packages and of saddleforge."""
    import saddleforge.derive
    import saddleforge.generated

    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    for package in (saddleforge, saddleforge.derive, saddleforge.generated):
        folders += package.__path__
    for name in _LIBRARIES:  # wherever they are installed
        spec = PathFinder.find_spec(name)
        folders += (spec.submodule_search_locations or []) if spec is not None else []
    both = [form for folder in folders for form in (os.path.abspath(folder), os.path.realpath(folder))]
    return tuple(dict.fromkeys(os.path.join(folder, "") for folder in both))


def _is_own(path: str | None) -> bool:
    """Whether a file is the user's."""
    if not path:
        return False
    path = os.path.abspath(path)
    return not path.startswith(_not_own()) and path != os.devnull and "__pycache__" not in path.split(os.sep)


_watching = False


def _watch() -> None:
    """Begin to listen to what Python opens, once: a hook stays."""
    global _watching
    if not _watching:
        _watching = True
        _not_own()
        sys.addaudithook(_heard)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    global _inputs
    inputs = _inputs
    if inputs is None or (event != "open" and event not in _UNTRACED):
        return
    _inputs = None  # what is opened here is not the model's
    try:
        if event != "open":
            finder = sys._getframe(1).f_code.co_filename.startswith("<frozen importlib")
            inputs.traced = inputs.traced and finder
            return
        path, _, flags = arguments
        if isinstance(path, str | bytes | os.PathLike) and not flags & (os.O_WRONLY | os.O_CREAT):
            inputs.read(os.fsdecode(path))
    finally:
        _inputs = inputs
