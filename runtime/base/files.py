"""Files a user asks for: writable or refused before the work starts, and written whole or not at all.

The rule of every command with -o or --out: its path is that of the folder the command began in, wherever a model goes;
and what is there already is not written over without --force, unless the command goes on from it or wrote it from the
same. Functions of the Python API (`save`, `plot(path)`) write over what is there, as those of other libraries do.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import IO

from .errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_POLL = 0.02  # seconds, while another process has a file locked


@contextmanager
def failing_as(what: str, advice: str = "") -> Iterator[None]:
    """Raise InputError where the system refuses what is done to a file.

    Args:
        what: what cannot be done, before the system's reason; advice: what follows that.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{what}: {error.strerror or error}{advice}") from error


def check_writable(path: str | Path) -> Path:
    """Make sure that a file can be written at a path, before the computation whose result it is to hold.

    Folders that do not exist yet are created when the file is written, not here.

    Returns:
        The path.

    Raises:
        InputError: it is a folder, or a file or folder on the way cannot be written.
    """
    path = Path(path)
    with failing_as(f"cannot write {path}"):
        if path.is_dir():
            raise InputError(f"cannot write {path}: it is a folder; the name of a file is expected")
        if path.exists() and not path.is_file():
            raise InputError(f"cannot write {path}: it is not a regular file")
        if path.exists() and not os.access(path, os.W_OK):
            raise InputError(f"cannot write {path}: the file is read-only")
        _check_folder(path.parent, path)
    return path


def finite(path: Path, again: bool = False) -> Path:
    """A path that is read to its end: of a file, or of a pipe, and not of a device that goes on for ever.

    Args:
        again: whether it is read more than once, which a pipe cannot be.

    Raises:
        OSError: nothing is there, or a device, or a pipe.
    """
    kind = path.stat().st_mode
    if stat.S_ISCHR(kind) or stat.S_ISBLK(kind):
        raise OSError(errno.EINVAL, "it is a device; a file is expected")
    if again and not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        raise OSError(errno.ESPIPE, "it is a pipe, and is read more than once; a file is expected")
    return path


def absolute(path: str | Path) -> Path:
    """A path that stays where it is when the working directory changes.

    Raises:
        InputError: the working directory is gone.
    """
    try:
        return Path(path).absolute()
    except OSError as error:
        raise InputError(f"{path}: the working directory cannot be found ({error.strerror or error})") from error


def new_file(path: str | Path, force: bool, foreign: Callable[[Path], str] | None = None) -> Path:
    """Where a command may write a file, before the computation whose result it is to hold.

    Args:
        force: whether what is there may be written over.
        foreign: why a file that is there is not the command's own, empty where it is; without it, none is.

    Returns:
        The absolute path.

    Raises:
        InputError: something is there that is not to be written over, or nothing can be written.
    """
    there = absolute(check_writable(path))
    if not force and os.path.lexists(there):
        why = "the file exists" if foreign is None else foreign(there)
        if why:
            raise occupied(path, why)
    return there


def occupied(path: str | Path, why: str) -> InputError:
    """The sentence that refuses to write over a file."""
    return InputError(f"cannot write {path}: {why}; give another name, or --force to write over it")


def check_folder(path: str | Path) -> Path:
    """Make sure that files can be written in a folder, which need not exist yet.

    Raises:
        InputError: it is a file, or a folder on the way cannot be written.
    """
    path = Path(path)
    with failing_as(f"cannot write to {path}"):
        _check_folder(path, path)
    return path


def _check_folder(folder: Path, wanted: Path) -> None:
    """Try a temporary file in the nearest folder that exists: permission bits alone do not tell."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        raise InputError(f"cannot write {wanted}: {existing} is a file, not a folder")
    with tempfile.TemporaryFile(dir=existing):
        pass


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file through a temporary one beside it, so that no reader sees half of it; folders are created.

    Raises:
        InputError: it cannot be written.
    """
    path = Path(path)
    with failing_as(f"cannot write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def locked(path: Path, longest: float = math.inf) -> IO[bytes] | None:
    """A file that no other process has locked, until it is closed or the process ends; it is made where it is missing.

    None where the system has no such locks, the file cannot be made, or after so many seconds.
    """
    if fcntl is None:
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = open(path, "ab")  # noqa: SIM115  (for as long as it is locked)
    except OSError:
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
