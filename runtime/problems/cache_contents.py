"""List the files in the user's cache folder by purpose, tell which are outdated, and clear the cache."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..base.cache import cache_folder, numba_cache_folder
from ..derive.digest import all_sources_digest
from .compiled import SOURCE, source_files_digest
from .solver import cached_generator_digest, is_solver_folder_complete

_UNFINISHED = re.compile(r"^\.writing-|^\..*\.\w{8}$|\.tmp\.[0-9a-f]{16}$")  # left by a process that was killed
_HOUR, _MONTH = 3600.0, 30 * 86400.0


@dataclass(frozen=True)
class CachedFile:
    """A file or folder of the cache.

    Attributes:
        what: purpose of the file, such as "solver".
        name: name of its model, source or table.
        path: path of the file or folder.
        bytes: size in bytes.
        old: whether it is outdated: written by another generator or by a process that was killed, or its source has
            changed or is gone.
    """

    what: str
    name: str
    path: Path
    bytes: int
    old: bool


def cached_files() -> list[CachedFile]:
    """Return all files and folders of the cache, sorted by purpose, then by name."""
    found = [*_cached_solver_folders(), *_cached_machine_code_files(), *_cached_nodes_models_and_logs()]
    return sorted(found, key=lambda part: (part.what, part.name, part.path))


def clear_cache(everything: bool) -> list[CachedFile]:
    """Remove the outdated files of the cache, or all its files, and return a list of what was removed.

    Running processes keep what they have loaded, and compute again what they still need.
    """
    gone = []
    for part in cached_files():
        if not (everything or part.old):
            continue
        try:
            if part.path.is_dir():
                shutil.rmtree(part.path)
            else:
                part.path.unlink()
        except FileNotFoundError:
            continue
        gone.append(part)
    for folder in (numba_cache_folder(), cache_folder()):
        for each in sorted(folder.rglob("*"), key=lambda path: -len(path.parts)):
            if each.is_dir() and not any(each.iterdir()):
                each.rmdir()
    return gone


def _cached_solver_folders() -> Iterator[CachedFile]:
    for folder in _sorted_folder_contents(cache_folder() / "solvers"):
        for structure in _sorted_folder_contents(folder):
            unfinished = bool(_UNFINISHED.search(structure.name))
            old = (
                _is_unmodified_for_seconds(structure, _HOUR)
                if unfinished
                else not is_solver_folder_complete(structure, "model") or not _is_solver_up_to_date(structure)
            )
            yield CachedFile("solver", f"{folder.name} {structure.name}", structure, _size_in_bytes(structure), old)


def _is_solver_up_to_date(folder: Path) -> bool:
    return bool(
        json.loads((folder / "model.json").read_text(encoding="utf-8"))["generator"] == cached_generator_digest()
    )


def _cached_machine_code_files() -> Iterator[CachedFile]:
    """Yield the folders of cached machine code, one per compiled source file."""
    for folder in _sorted_folder_contents(numba_cache_folder()):
        name, is_old = folder.name, True
        with suppress(OSError):
            files = [Path(line) for line in os.fsdecode((folder / SOURCE).read_bytes()).splitlines()]
            name = "/".join(files[0].with_suffix("").parts[-3:])
            is_old = source_files_digest(*files) != folder.name.rpartition("-")[2]
        yield CachedFile("machine code", name, folder, _size_in_bytes(folder), is_old)


def _cached_nodes_models_and_logs() -> Iterator[CachedFile]:
    kinds = {"sobol": "nodes", "model-files": "executed model files", "logs": "tracebacks"}
    for path in _sorted_folder_contents(cache_folder()):
        if path.name in ("solvers", numba_cache_folder().name):
            continue
        if path.name in kinds:
            for each in _sorted_folder_contents(path):
                yield CachedFile(
                    kinds[path.name], each.name, each, _size_in_bytes(each), _is_cache_file_outdated(path.name, each)
                )
        else:
            known = path.name == f"generator-{all_sources_digest()}"
            yield CachedFile(
                "digests", path.name, path, _size_in_bytes(path), path.name.startswith("generator-") and not known
            )


def _is_cache_file_outdated(kind: str, path: Path) -> bool:
    if _UNFINISHED.search(path.name):
        return _is_unmodified_for_seconds(path, _HOUR)
    if kind == "logs":
        return _is_unmodified_for_seconds(path, _MONTH)
    if kind == "model-files":
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            return not (cache_folder() / kept["answer"][2]).is_dir() or not all(map(os.path.exists, kept["files"]))
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            return True
    return False


def _sorted_folder_contents(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _is_unmodified_for_seconds(path: Path, seconds: float) -> bool:
    try:
        return time.time() - path.stat().st_mtime > seconds
    except OSError:
        return False


def _size_in_bytes(path: Path) -> int:
    """Return the size in bytes of a file, or of all files in a folder."""
    total = 0
    for each in [path, *path.rglob("*")] if path.is_dir() else [path]:
        try:
            total += each.stat().st_size if each.is_file() else 0
        except OSError:  # another process clears the cache, too
            continue
    return total
