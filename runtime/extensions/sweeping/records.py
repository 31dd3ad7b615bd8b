"""Records of finished points: a file a line, a line of JSON a point, appended and flushed as each is finished.

Not a number and infinities stand as NaN and Infinity. An incomplete last line, after a kill or on a full disk, is
dropped when the file is read and cut off before more is written.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ..._version import __version__
from ...base.errors import InputError
from ...base.files import convert_os_errors, write_atomically
from .line import FAILED, Record
from .plan import Line, Plan

try:
    import fcntl
except ImportError:  # no locks on this system: users must not run two commands on one folder
    fcntl = None  # type: ignore[assignment]

_PLAN = "sweep.json"


def records_folder(output: Path) -> Path:
    """Return the folder of the records of a sweep that is collected into a file, next to it."""
    return output.with_name(f"{output.stem}.records")


class Records:
    """The folder of a sweep's records.

    Raises:
        InputError: it contains another sweep, or cannot be read or written.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self._streams: dict[Path, IO[bytes]] = {}
        self._plan_text = json.dumps(
            {**plan.identity, "source": plan.source}, sort_keys=True, ensure_ascii=False, indent=1
        )
        path = folder / _PLAN
        self._is_new = not path.exists()
        if not self._is_new:
            check_same_sweep(folder, plan)
        elif folder.is_dir() and any(folder.iterdir()):
            raise InputError(f"{folder} exists and contains no sweep; give another name")
        else:
            self._write_plan()

    def known(self, line: Line) -> dict[int, Record]:
        """Return the records of a line by point index, the most accurate one of each point."""
        return best(read(self.path_of(line)))

    def path_of(self, line: Line) -> Path:
        """Return the file of a line."""
        return self.folder / f"{line.key}.jsonl"

    def append(self, line: Line, record: Record) -> None:
        """Append a record to the file of its line.

        Args:
            line: the line.
            record: the record.

        Raises:
            InputError: it cannot be written; earlier records stay.
        """
        path = self.path_of(line)
        if path not in self._streams:
            self._streams[path] = self._opened(path, line)
        _write_entry(self._streams[path], path, record)

    def close_line(self, line: Line) -> None:
        """Close the file of a line."""
        stream = self._streams.pop(self.path_of(line), None)
        if stream is not None:
            stream.close()

    def close(self) -> None:
        """Close every file."""
        for stream in self._streams.values():
            with suppress(OSError):
                stream.close()
        self._streams.clear()

    def close_and_remove_if_empty(self) -> None:
        """Close every file, and remove the folder if this object created it and it has no records."""
        self.close()
        if self._is_new and not any(self.folder.glob("*.jsonl")):
            with suppress(OSError):
                (self.folder / _PLAN).unlink(missing_ok=True)
                self.folder.rmdir()

    def _write_plan(self) -> None:
        """Write the file that identifies the sweep."""
        write_atomically(self.folder / _PLAN, self._plan_text + "\n")

    def _opened(self, path: Path, line: Line) -> IO[bytes]:
        if not (self.folder / _PLAN).exists():  # another command has withdrawn
            self._write_plan()
        with convert_os_errors(f"cannot write {path}"):
            stream = path.open("ab", buffering=0)
            try:
                if fcntl is not None:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(f"cannot write {path}: another command is writing there") from error
            complete = path.read_bytes().rfind(b"\n") + 1
            stream.truncate(complete)
        if not complete:
            _write_entry(stream, path, {"line": json.loads(line.identity)})
        return stream


def check_same_sweep(folder: Path, plan: Plan) -> None:
    """Raise InputError if a folder contains the records of another sweep than the plan's.

    Args:
        folder: the folder.
        plan: the plan.

    Raises:
        InputError: the folder belongs to another sweep; the message says how it differs.
    """
    there, wanted = read_identity(folder), json.loads(json.dumps(plan.identity))
    for name in wanted:
        if there.get(name) != wanted[name]:
            one, other = _differences(there.get(name), wanted[name])
            raise InputError(
                f"{folder} contains another sweep, with {name} {_shorten(one)} in place of {_shorten(other)}; give "
                "another name, or --force to begin again"
            )


def read_identity(folder: Path) -> dict[str, Any]:
    """Return the identity of the sweep in a folder.

    Raises:
        InputError: the folder has no valid identity.
    """
    path = folder / _PLAN
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{folder} contains no records of a sweep: cannot read {path} ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{folder} contains no records of a sweep: {path} is no JSON") from error
    if not isinstance(found, dict):
        raise InputError(f"{folder} contains no records of a sweep: {path} is of another form")
    return found


def remove_records(folder: Path) -> None:
    """Remove the records of a sweep, and no other files of their folder.

    Raises:
        InputError: the folder contains no sweep, or cannot be removed.
    """
    read_identity(folder)
    with convert_os_errors(f"cannot remove {folder}"):
        for path in [*folder.glob("*.jsonl"), folder / _PLAN]:
            path.unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()


def read(path: Path) -> list[Record]:
    """Return the records of a file in the order of writing, without an incomplete last one.

    Raises:
        InputError: the file cannot be read, or is no file of records.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    lines = text[: text.rfind(b"\n") + 1].splitlines()
    try:
        found = [json.loads(line) for line in lines]
    except ValueError as error:
        raise InputError(f"{path} is damaged: remove it, and its line is computed again") from error
    return [record for record in found if "n" in record]


def compress_records(records: Mapping[int, Record]) -> bytes:
    """Return the records of a line, compressed to an eighth of their memory as objects."""
    return zlib.compress(json.dumps(list(records.values())).encode(), 1)


def decompress_records(data: bytes) -> dict[int, Record]:
    """Return the records from their compressed form, by point index."""
    return {record["n"]: record for record in json.loads(zlib.decompress(data))}


def best(records: Iterable[Record]) -> dict[int, Record]:
    """Return the best record of each point: of this version, most accurate, latest; failures come last."""
    found: dict[int, Record] = {}
    for record in records:
        there = found.get(record["n"])
        if there is None or _record_rank(record) <= _record_rank(there):
            found[record["n"]] = record
    return found


def _record_rank(record: Record) -> tuple[bool, bool, float]:
    return record["status"] == FAILED, record["version"] != __version__, record["accuracy"]


def _write_entry(stream: IO[bytes], path: Path, entry: Mapping[str, Any]) -> None:
    """Append a line of JSON, completely or not at all."""
    data = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
    before = stream.seek(0, os.SEEK_END)
    try:
        if stream.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        with suppress(OSError):
            stream.truncate(before)
        raise InputError(f"cannot write {path}: {error.strerror or error}; what is finished is kept") from error


def _differences(one: Any, other: Any) -> tuple[Any, Any]:
    """Return the parts of two dictionaries that differ."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return one, other
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return {n: one[n] for n in names if n in one}, {n: other[n] for n in names if n in other}


def _shorten(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:117]}..."
