"""The user's cache folder: its path, whether its code may be executed, and the warning where it cannot be written.

Solvers in it are Python sources, machine code in it is unpickled by Numba: who can write there runs code as the user.
"""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path

import platformdirs

from .errors import InputError
from .progress import print_message

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path:
    """Return the user's cache folder for solvers and compiled code; create it if needed.

    The environment variable SADDLEFORGE_CACHE overrides its path.

    Raises:
        InputError: there is no home folder, the path is a file, or others than the user may write there.
    """
    folder = os.environ.get("SADDLEFORGE_CACHE")
    if not folder:
        folder = platformdirs.user_cache_dir("saddleforge")
        if not os.path.isabs(folder):
            raise InputError("there is no home folder for the cache: set HOME, or SADDLEFORGE_CACHE to a folder")
    return _ensure_private_folder(os.path.abspath(folder))


def numba_cache_folder() -> Path:
    """Return the folder in which Numba caches compiled code; NUMBA_CACHE_DIR overrides it.

    Raises:
        InputError: there is no home folder, the path is a file, or others than the user may write there.
    """
    folder = os.environ.get("NUMBA_CACHE_DIR")
    return _ensure_private_folder(os.path.abspath(folder)) if folder else cache_folder() / "numba"


@cache
def _ensure_private_folder(folder: str) -> Path:
    """Return the folder, created if needed, after checking that nobody but the user or root can write code there."""
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise InputError(f"the cache folder {path} is a file: set SADDLEFORGE_CACHE to a folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.stat()
    except OSError:
        return path  # no code to execute there; `warn_cache_not_writable` reports failing writes
    if not hasattr(os, "geteuid"):  # Windows
        return path
    another_folder_advice = "set SADDLEFORGE_CACHE (or NUMBA_CACHE_DIR) to a folder of your own"
    if status.st_uid not in (os.geteuid(), 0):
        raise InputError(
            f"the cache folder {path} belongs to another user ({_name_of_user(status.st_uid)}), whose code would be "
            f"executed; {another_folder_advice}"
        )
    if status.st_mode & _OTHERS_MAY_WRITE and not _make_empty_folder_private(path):
        raise InputError(
            f"others may write in the cache folder {path}, whose code is executed; `chmod go-w` it if its content is "
            f"yours, or {another_folder_advice}"
        )
    return path


def _make_empty_folder_private(path: Path) -> bool:
    """Make a folder writable by the user alone if it is empty; return whether this was done."""
    try:
        if any(path.iterdir()):
            return False
        path.chmod(0o700)
        return not any(path.iterdir())
    except OSError:
        return False


def _name_of_user(uid: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return f"uid {uid}"


@cache
def _print_message_once(message: str) -> None:
    print_message(message)


def warn_cache_not_writable(folder: Path, error: Exception) -> None:
    """Report once that compiled code could not be cached in `folder`, so that the next process compiles it again.

    Args:
        folder: the folder that could not be written.
        error: the error of the failed write.
    """
    reason = getattr(error, "strerror", None) or str(error)
    _print_message_once(
        f"compiled code cannot be saved in {folder} ({reason}): the next run compiles it again, unless "
        "SADDLEFORGE_CACHE is set to a folder that can be written"
    )
