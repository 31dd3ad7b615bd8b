"""What is in the user's cache folder, by what it is for; what nobody asks for any more, and how it is cleared."""

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

from ..base.cache import cache_folder, numba_folder
from ..derive.digest import sources_digest
from .compiled import SOURCE, digest_of
from .solver import generator, is_whole

_LEFT = re.compile(r"^\.writing-|^\..*\.\w{8}$|\.tmp\.[0-9a-f]{16}$")  # by a process that was killed
_HOUR, _MONTH = 3600.0, 30 * 86400.0


@dataclass(frozen=True)
class Part:
    """A file or folder of the cache.

    Attributes:
        what: what it is for; name: of which model, source or table.
        old: no source that is there now asks for it: another generator wrote it, its source has changed or gone, its
            writer was killed.
    """

    what: str
    name: str
    path: Path
    bytes: int
    old: bool


def parts() -> list[Part]:
    """All of the cache, by what it is for, then by name."""
    found = [*_solvers(), *_code(), *_others()]
    return sorted(found, key=lambda part: (part.what, part.name, part.path))


def clear(everything: bool) -> list[Part]:
    """Remove what is old, or all; returns what was removed. What a process has loaded stays with it, and what it still
    wants is made again."""
    gone = []
    for part in parts():
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
    for folder in (numba_folder(), cache_folder()):
        for each in sorted(folder.rglob("*"), key=lambda path: -len(path.parts)):
            if each.is_dir() and not any(each.iterdir()):
                each.rmdir()
    return gone


def _solvers() -> Iterator[Part]:
    for folder in _inside(cache_folder() / "solvers"):
        for structure in _inside(folder):
            left = bool(_LEFT.search(structure.name))
            old = _idle(structure, _HOUR) if left else not is_whole(structure, "model") or not _is_current(structure)
            yield Part("solver", f"{folder.name} {structure.name}", structure, _size(structure), old)


def _is_current(folder: Path) -> bool:
    return bool(json.loads((folder / "model.json").read_text(encoding="utf-8"))["generator"] == generator())


def _code() -> Iterator[Part]:
    """Machine code, a part a source file."""
    for folder in _inside(numba_folder()):
        name, is_old = folder.name, True
        with suppress(OSError):
            files = [Path(line) for line in os.fsdecode((folder / SOURCE).read_bytes()).splitlines()]
            name = "/".join(files[0].with_suffix("").parts[-3:])
            is_old = digest_of(*files) != folder.name.rpartition("-")[2]
        yield Part("machine code", name, folder, _size(folder), is_old)


def _others() -> Iterator[Part]:
    kinds = {"sobol": "nodes", "model-files": "executed model files", "logs": "tracebacks"}
    for path in _inside(cache_folder()):
        if path.name in ("solvers", numba_folder().name):
            continue
        if path.name in kinds:
            for each in _inside(path):
                yield Part(kinds[path.name], each.name, each, _size(each), _is_old(path.name, each))
        else:
            known = path.name == f"generator-{sources_digest()}"
            yield Part("digests", path.name, path, _size(path), path.name.startswith("generator-") and not known)


def _is_old(kind: str, path: Path) -> bool:
    if _LEFT.search(path.name):
        return _idle(path, _HOUR)
    if kind == "logs":
        return _idle(path, _MONTH)
    if kind == "model-files":
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            return not (cache_folder() / kept["answer"][2]).is_dir() or not all(map(os.path.exists, kept["files"]))
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            return True
    return False


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _idle(path: Path, seconds: float) -> bool:
    try:
        return time.time() - path.stat().st_mtime > seconds
    except OSError:
        return False


def _size(path: Path) -> int:
    """Bytes of a file, or of all in a folder."""
    total = 0
    for each in [path, *path.rglob("*")] if path.is_dir() else [path]:
        try:
            total += each.stat().st_size if each.is_file() else 0
        except OSError:  # another process tidies, too
            continue
    return total
