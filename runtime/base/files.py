"""Output files: checked before the work starts, and written whole or not at all.

The rule of every command with -o or --out: its path is relative to the folder in which the command started, even if a
model file changes it; an existing file is not overwritten without --force, unless the command continues it or wrote
it from the same input. Functions of the Python API (`save`, `plot(path)`) overwrite, as those of other libraries do.
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

_LOCK_POLL_INTERVAL = 0.02  # seconds, while another process has a file locked


@contextmanager
def convert_os_errors(failed_action: str, advice: str = "") -> Iterator[None]:
    """Convert an OSError raised in the block to an InputError.

    Args:
        failed_action: beginning of the message, as "cannot write FILE"; the reason given by the system follows.
        advice: end of the message: what the user can do.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{failed_action}: {error.strerror or error}{advice}") from error


def check_file_writable(path: str | Path) -> Path:
    """Check before a computation that its result can be written to a file.

    Folders that do not exist yet are created when the file is written, not here.

    Returns:
        The path.

    Raises:
        InputError: the path is a folder, or the file or a folder above it cannot be written.
    """
    path = Path(path)
    with convert_os_errors(f"cannot write {path}"):
        if path.is_dir():
            raise InputError(f"cannot write {path}: it is a folder; give the name of a file")
        if path.exists() and not path.is_file():
            raise InputError(f"cannot write {path}: it is a device or pipe, not a regular file; give another name")
        if path.exists() and not os.access(path, os.W_OK):
            raise InputError(f"cannot write {path}: the file is read-only; give another name, or allow writing")
        _check_writable_folder(path.parent, path)
    return path


def require_readable_file(path: Path, again: bool = False) -> Path:
    """Return the path after checking that it is a file or pipe, not a device whose content may never end.

    Args:
        path: the path to check.
        again: whether the file will be read more than once, which excludes pipes.

    Raises:
        OSError: the path does not exist, or is a device or an excluded pipe.
    """
    kind = path.stat().st_mode
    if stat.S_ISCHR(kind) or stat.S_ISBLK(kind):
        raise OSError(errno.EINVAL, "it is a device; a file is expected")
    if again and not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        raise OSError(errno.ESPIPE, "it is a pipe, and is read more than once; a file is expected")
    return path


def absolute_path(path: str | Path) -> Path:
    """Return the absolute path, which does not depend on later changes of the working directory.

    Raises:
        InputError: the working directory no longer exists.
    """
    try:
        return Path(path).absolute()
    except OSError as error:
        raise InputError(
            f"cannot find {path}: the working directory is missing ({error.strerror or error}); change to another one"
        ) from error


def check_output_file(path: str | Path, force: bool, foreign: Callable[[Path], str] | None = None) -> Path:
    """Check before a computation that a command may write its result to a path.

    Args:
        path: path of the output file.
        force: whether an existing file may be overwritten.
        foreign: function of the path of an existing file that returns why the command did not write it, empty if it did
            write it; None: no existing file may be overwritten.

    Returns:
        The absolute path.

    Raises:
        InputError: the file exists and must not be overwritten, or cannot be written.
    """
    there = absolute_path(check_file_writable(path))
    if not force and os.path.lexists(there):
        why = "the file exists" if foreign is None else foreign(there)
        if why:
            raise file_exists_error(path, why)
    return there


def file_exists_error(path: str | Path, why: str) -> InputError:
    """Return the InputError that says why a file is not overwritten.

    Args:
        path: path of the file.
        why: reason, as "the file exists".
    """
    return InputError(f"cannot write {path}: {why}; give another name, or --force to write over it")


def check_output_folder(path: str | Path) -> Path:
    """Return the folder after checking that files can be written there; it need not exist yet.

    Raises:
        InputError: the path is a file, or a folder above it cannot be written.
    """
    path = Path(path)
    with convert_os_errors(f"cannot write to {path}"):
        _check_writable_folder(path, path)
    return path


def _check_writable_folder(folder: Path, wanted: Path) -> None:
    """Raise InputError unless a temporary file can be created in the folder, or in the nearest one that exists."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        raise InputError(f"cannot write {wanted}: {existing} is a file, not a folder; give another path")
    with tempfile.TemporaryFile(dir=existing):
        pass


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Write a file so that it is never partially written: a temporary file in its folder is renamed.

    Missing folders are created.

    Args:
        path: path of the file.
        content: text or bytes.

    Raises:
        InputError: the file cannot be written.
    """
    path = Path(path)
    with convert_os_errors(f"cannot write {path}"):
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


def lock_file(path: Path, longest: float = math.inf) -> IO[bytes] | None:
    """Open a file, created if missing, with an exclusive lock that lasts until it is closed or the process ends.

    Args:
        path: path of the lock file.
        longest: longest time to wait for another process that has locked the file, in seconds.

    Returns:
        The open file; None if the system has no locks, the file cannot be created, or the time is up.
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
            sleep(_LOCK_POLL_INTERVAL)
        except OSError:  # a file system without locks
            lock.close()
            return None
        except BaseException:
            lock.close()
            raise
