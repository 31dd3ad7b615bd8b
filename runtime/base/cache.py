"""The user's cache folder: where it is, whether its code may be executed, and what to say where it cannot be written.

Solvers in it are Python sources, machine code in it is unpickled by Numba: whoever writes there, runs code as the user.
"""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path

import platformdirs

from .errors import InputError
from .progress import say

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path:
    """The user's cache folder for generated solvers and compiled code (override: SADDLEFORGE_CACHE), made if it can be.

    Raises:
        InputError: there is no home folder to have it in, it is a file, or others than the user may write in it.
    """
    folder = os.environ.get("SADDLEFORGE_CACHE")
    if not folder:
        folder = platformdirs.user_cache_dir("saddleforge")
        if not os.path.isabs(folder):
            raise InputError("there is no home folder for the cache: set HOME, or SADDLEFORGE_CACHE to a folder")
    return _private(os.path.abspath(folder))


def numba_folder() -> Path:
    """Of compiled code (override: NUMBA_CACHE_DIR).

    Raises:
        InputError: as `cache_folder`.
    """
    folder = os.environ.get("NUMBA_CACHE_DIR")
    return _private(os.path.abspath(folder)) if folder else cache_folder() / "numba"


@cache
def _private(folder: str) -> Path:
    """A folder whose code may be executed: the user's or root's, and no other's to write in."""
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise InputError(f"the cache folder {path} is a file: set SADDLEFORGE_CACHE to a folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.stat()
    except OSError:
        return path  # nothing to execute there; what cannot be kept is said when it is to be
    if not hasattr(os, "geteuid"):  # Windows
        return path
    set_another = "set SADDLEFORGE_CACHE (or NUMBA_CACHE_DIR) to a folder of your own"
    if found.st_uid not in (os.geteuid(), 0):
        raise InputError(
            f"the cache folder {path} belongs to another user ({_name(found.st_uid)}), whose code would be executed; "
            f"{set_another}"
        )
    if found.st_mode & _OTHERS and not _made_private(path):
        raise InputError(
            f"others may write in the cache folder {path}, whose code is executed; `chmod go-w` it if its content is "
            f"yours, or {set_another}"
        )
    return path


def _made_private(path: Path) -> bool:
    """Whether a folder was empty, and now nobody else may write in it."""
    try:
        if any(path.iterdir()):
            return False
        path.chmod(0o700)
        return not any(path.iterdir())
    except OSError:
        return False


def _name(uid: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return f"uid {uid}"


@cache
def _said(sentence: str) -> None:
    say(sentence)


def unkept(folder: Path, error: Exception) -> None:
    """Say, once, that something could not be kept: it is done again by the next process, and that is all."""
    reason = getattr(error, "strerror", None) or str(error)
    _said(
        f"what is compiled cannot be kept in {folder} ({reason}): the next run compiles it again, unless "
        "SADDLEFORGE_CACHE names a folder that can be written"
    )
