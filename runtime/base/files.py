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
def convert_os_errors(what: str, advice: str = "") -> Iterator[None]:
    """Raise InputError in place of an OSError in the block.

    Args:
        what: beginning of the message, before the reason that the system gives.
        advice: end of the message.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{what}: {error.strerror or error}{advice}") from error


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
            raise InputError(f"cannot write {path}: it is a folder; the name of a file is expected")
        if path.exists() and not path.is_file():
            raise InputError(f"cannot write {path}: it is not a regular file")
        if path.exists() and not os.access(path, os.W_OK):
            raise InputError(f"cannot write {path}: the file is read-only")
        _check_writable_folder(path.parent, path)
    return path


def require_readable_to_end(path: Path, again: bool = False) -> Path:
    """Return the path after checking that it can be read to its end: a file or pipe, not a device.

    Args:
        path: the path to check.
        again: whether it is read more than once, which excludes pipes.

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
        raise InputError(f"{path}: the working directory cannot be found ({error.strerror or error})") from error


def check_output_file(path: str | Path, force: bool, foreign: Callable[[Path], str] | None = None) -> Path:
    """Check before a computation that a command may write its result to a path.

    Args:
        path: path of the output file.
        force: whether an existing file may be overwritten.
        foreign: function that returns why an existing file is not the command's own, empty if it is; None: none is.

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
    """Return the error that refuses to overwrite a file.

    Args:
        path: path of the file.
        why: the reason.
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
        raise InputError(f"cannot write {wanted}: {existing} is a file, not a folder")
    with tempfile.TemporaryFile(dir=existing):
        pass


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Write a file by renaming a temporary one in the same folder, so that it is never partial; create folders.

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
    """Return an exclusively locked file, locked until it is closed or the process ends; create it if missing.

    Args:
        path: path of the lock file.
        longest: seconds to wait for another process.

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
