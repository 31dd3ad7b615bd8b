"""Inputs of the execution of a model file: modules and data that it reads, with their digests.

A solver is taken from the cache only if executing the file again would give the same model. During execution, modules
of the user are loaded from source, regardless of modules imported before and of bytecode; afterwards the modules of
the process and its path are restored.
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
from ..base.files import write_atomically

# The results of these depend on their arguments alone: a file that imports anything else is executed each time.
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
class ModelFileInputs:
    """The files and modules that the execution of a model file has read so far.

    Attributes:
        files: digest of the content of every file read, by path; None if there was no such file.
        names: path of every module or package that the user's sources import, by name.
        search: sys.path after the execution.
        traced: whether these are all inputs; if not, the result cannot be cached.
    """

    files: dict[str, str | None] = field(default_factory=dict)
    names: dict[str, str | None] = field(default_factory=dict)
    search: list[str] = field(default_factory=list)
    traced: bool = True

    def record_input_file(self, path: str) -> None:
        """Record a file as an input, with the digest of its present content."""
        path = os.path.abspath(path)
        if path in self.files or not _is_user_file(path) or path.startswith(os.path.join(cache_folder(), "")):
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

    def are_inputs_unchanged(self) -> bool:
        """Return whether all recorded files have the same content, and modules the same path, as when recorded."""
        importlib.invalidate_caches()
        for path, digest in self.files.items():
            again = ModelFileInputs()
            again.record_input_file(path)
            if again.files.get(path) != digest:
                return False
        return all(_path_of_importable_module(name, self.search) == origin for name, origin in self.names.items())


@dataclass(frozen=True)
class CachedModelExecution:
    """The file in the cache that holds the result of executing a model file, with the inputs that it depends on."""

    path: Path

    @classmethod
    def cache_record_of_model_file(cls, file: Path, question: str, folder: Path) -> CachedModelExecution:
        """Return the cache record of a model file for the present working directory and sys.path.

        Args:
            file: path of the model file.
            question: text that states everything else that the result depends on.
            folder: folder of all such records.
        """
        known = [str(file.resolve()), os.path.abspath(""), question, __version__, sys.version, *dict.fromkeys(sys.path)]
        digest = hashlib.sha256(repr(known).encode()).hexdigest()[:16]
        return cls(folder / f"{file.stem}-{digest}.json")

    def load_cached_result(self) -> Any:
        """Return the cached result; None if there is none or an input has changed since."""
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            inputs = ModelFileInputs(kept["files"], kept["names"], kept["search"])
            return kept["answer"] if inputs.are_inputs_unchanged() else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def save_result_with_inputs(self, inputs: ModelFileInputs, answer: Any) -> None:
        """Save a result of an execution in the cache, unless some of its inputs are unknown.

        Args:
            inputs: files and modules that the execution has read.
            answer: the result, of types that JSON allows.
        """
        if not inputs.traced:
            self.path.unlink(missing_ok=True)
            return
        content = {"answer": answer, "files": inputs.files, "names": inputs.names, "search": inputs.search}
        with suppress(InputError):  # if it cannot be saved it is executed again
            write_atomically(self.path, json.dumps(content, indent=1))


class SourceOnlyLoader(SourceFileLoader):
    """An import loader that compiles modules from source each time, without bytecode files."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the code object of a module, compiled from its source; bytecode is neither read nor written."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _UserModuleFinder:
    """An import finder like `PathFinder`, except that the user's modules are compiled from source each time."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the import specification of a module, as `PathFinder.find_spec` does; None if it is not found.

        Args:
            name: name of the module.
            path: folders to search; sys.path by default.
            target: module to be reloaded.
        """
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin and type(spec.loader) is SourceFileLoader and _is_user_file(spec.origin):
            spec.loader, spec.cached = SourceOnlyLoader(spec.loader.name, spec.origin), None
        return spec


_inputs: ModelFileInputs | None = None  # of the file that is being executed


@contextmanager
def record_model_file_inputs() -> Iterator[ModelFileInputs]:
    """Record the files and modules that model code in this block reads; it runs as in a fresh process."""
    global _inputs
    if _inputs is not None:
        yield _inputs
        return
    _install_audit_hook()
    importlib.invalidate_caches()
    inputs, before, search = ModelFileInputs(), set(sys.modules), list(sys.path)
    put_aside: dict[str, ModuleType] = {}
    fresh: set[str] = set()
    ordinary = builtins.__import__

    def _import_user_module(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> ModuleType:
        top = name.partition(".")[0]
        if level == 0 and top not in fresh and _is_user_file((globals or {}).get("__file__")):
            fresh.add(top)
            put_aside.update(_unload_user_package(top, inputs))
        return ordinary(name, globals, locals, fromlist, level)

    place = next((i for i, finder in enumerate(sys.meta_path) if finder is PathFinder), len(sys.meta_path))
    sys.meta_path.insert(place, _UserModuleFinder)
    builtins.__import__, _inputs = _import_user_module, inputs
    try:
        yield inputs
        for name in set(sys.modules) - before | fresh:
            inputs.record_input_file(getattr(sys.modules.get(name), "__file__", None) or os.devnull)
        inputs.search = list(sys.path)
    finally:
        builtins.__import__, _inputs = ordinary, None
        sys.meta_path.remove(_UserModuleFinder)
        sys.path[:] = search
        replaced = {name.partition(".")[0] for name in put_aside}
        for name in [name for name in sys.modules if name.partition(".")[0] in replaced]:
            del sys.modules[name]
        sys.modules.update(put_aside)


def _unload_user_package(top: str, inputs: ModelFileInputs) -> dict[str, ModuleType]:
    """Remove a user's package from sys.modules, so that it is imported again, and return the removed modules."""
    inputs.names[top] = _path_of_importable_module(top, sys.path)
    held = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == top}
    origins = [_path_of_loaded_module(module) for module in held.values()] or [inputs.names[top]]
    if not any(map(_is_user_file, origins)):
        inputs.traced = inputs.traced and (top in _DETERMINED or inputs.names[top] is None)
        return {}
    compiled = any(origin is not None and origin.endswith(tuple(EXTENSION_SUFFIXES)) for origin in origins)
    if compiled or inputs.names[top] is None:
        inputs.traced = False  # extension modules cannot be loaded twice
        return {}
    for name in held:
        del sys.modules[name]
    return held


def _path_of_loaded_module(module: ModuleType) -> str | None:
    return getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)


def _path_of_importable_module(name: str, search: list[str]) -> str | None:
    """Return the path from which a module or package of this name would be imported; None if there is none."""
    for finder in sys.meta_path:
        if not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec(name, search if finder in (PathFinder, _UserModuleFinder) else None)
        if spec is not None:
            return spec.origin or next(iter(spec.submodule_search_locations or ()), None)
    return None


@cache
def _library_folders() -> tuple[str, ...]:
    """Return the folders of Python itself, of installed packages and of saddleforge, whose files are not the user's."""
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


def _is_user_file(path: str | None) -> bool:
    """Return whether a file is the user's, that is, no part of Python or of an installed package."""
    if not path:
        return False
    path = os.path.abspath(path)
    return not path.startswith(_library_folders()) and path != os.devnull and "__pycache__" not in path.split(os.sep)


_hook_installed = False


def _install_audit_hook() -> None:
    """Install Python's audit hook that records opened files; once, since it cannot be removed."""
    global _hook_installed
    if not _hook_installed:
        _hook_installed = True
        _library_folders()
        sys.addaudithook(_record_audit_event)


def _record_audit_event(event: str, arguments: tuple[Any, ...]) -> None:
    global _inputs
    inputs = _inputs
    if inputs is None or (event != "open" and event not in _UNTRACED):
        return
    _inputs = None  # files opened here are not inputs of the model
    try:
        if event != "open":
            finder = sys._getframe(1).f_code.co_filename.startswith("<frozen importlib")
            inputs.traced = inputs.traced and finder
            return
        path, _, flags = arguments
        if isinstance(path, str | bytes | os.PathLike) and not flags & (os.O_WRONLY | os.O_CREAT):
            inputs.record_input_file(os.fsdecode(path))
    finally:
        _inputs = inputs
