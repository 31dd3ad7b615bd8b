"""Records of finished points: a file a line, a line of JSON a point, appended and flushed as each is finished.

Not a number and infinities stand as NaN and Infinity. What a kill or a full disk tears off is dropped when the file is
read and cut off before more is written.
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
from ...base.files import failing_as, write_whole
from .line import FAILED, Record
from .plan import Line, Plan

try:
    import fcntl
except ImportError:  # no locks on this system: two commands on one folder are the user's to avoid
    fcntl = None  # type: ignore[assignment]

_PLAN = "sweep.json"


def folder_of(output: Path) -> Path:
    """Where the records of a sweep are that is collected into a file: beside it."""
    return output.with_name(f"{output.stem}.records")


class Records:
    """The folder of a sweep's records.

    Raises:
        InputError: it holds another sweep, or cannot be read or written.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self._open: dict[Path, IO[bytes]] = {}
        self._said = json.dumps({**plan.identity, "source": plan.source}, sort_keys=True, ensure_ascii=False, indent=1)
        path = folder / _PLAN
        self._begun = not path.exists()
        if not self._begun:
            refuse_other(folder, plan)
        elif folder.is_dir() and any(folder.iterdir()):
            raise InputError(f"{folder} exists and contains no sweep; give another name")
        else:
            self._say()

    def known(self, line: Line) -> dict[int, Record]:
        """The records of a line by number, of each point the most accurate."""
        return best(read(self.path_of(line)))

    def path_of(self, line: Line) -> Path:
        """The file of a line."""
        return self.folder / f"{line.key}.jsonl"

    def append(self, line: Line, record: Record) -> None:
        """Put a record away.

        Raises:
            InputError: it cannot be written; what was there stays.
        """
        path = self.path_of(line)
        if path not in self._open:
            self._open[path] = self._opened(path, line)
        _write(self._open[path], path, record)

    def finished(self, line: Line) -> None:
        """Close the file of a line."""
        stream = self._open.pop(self.path_of(line), None)
        if stream is not None:
            stream.close()

    def close(self) -> None:
        """Close every file."""
        for stream in self._open.values():
            with suppress(OSError):
                stream.close()
        self._open.clear()

    def withdraw(self) -> None:
        """Close every file, and leave no folder where this made one and no point was put away."""
        self.close()
        if self._begun and not any(self.folder.glob("*.jsonl")):
            with suppress(OSError):
                (self.folder / _PLAN).unlink(missing_ok=True)
                self.folder.rmdir()

    def _say(self) -> None:
        """Whose records these are."""
        write_whole(self.folder / _PLAN, self._said + "\n")

    def _opened(self, path: Path, line: Line) -> IO[bytes]:
        if not (self.folder / _PLAN).exists():  # another command has withdrawn
            self._say()
        with failing_as(f"cannot write {path}"):
            stream = path.open("ab", buffering=0)
            try:
                if fcntl is not None:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(f"cannot write {path}: another command is writing there") from error
            whole = path.read_bytes().rfind(b"\n") + 1
            stream.truncate(whole)
        if not whole:
            _write(stream, path, {"line": json.loads(line.identity)})
        return stream


def refuse_other(folder: Path, plan: Plan) -> None:
    """Make sure that a folder holds the records of a plan.

    Raises:
        InputError: it is of another sweep; the sentence says what differs.
    """
    there, wanted = identity_in(folder), json.loads(json.dumps(plan.identity))
    for name in wanted:
        if there.get(name) != wanted[name]:
            one, other = _differing(there.get(name), wanted[name])
            raise InputError(
                f"{folder} contains another sweep, with {name} {_short(one)} in place of {_short(other)}; give another "
                "name, or --force to begin again"
            )


def identity_in(folder: Path) -> dict[str, Any]:
    """What the folder of a sweep says that it is.

    Raises:
        InputError: it says nothing.
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


def remove(folder: Path) -> None:
    """Remove the records of a sweep, and nothing else that may be in their folder.

    Raises:
        InputError: it holds no sweep, or cannot be removed.
    """
    identity_in(folder)
    with failing_as(f"cannot remove {folder}"):
        for path in [*folder.glob("*.jsonl"), folder / _PLAN]:
            path.unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()


def read(path: Path) -> list[Record]:
    """The records of a file in the order in which they were written; a torn last one is dropped.

    Raises:
        InputError: it cannot be read, or holds something else.
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


def packed(records: Mapping[int, Record]) -> bytes:
    """The records of a line in an eighth of the memory that they take as objects."""
    return zlib.compress(json.dumps(list(records.values())).encode(), 1)


def unpacked(data: bytes) -> dict[int, Record]:
    """What was packed, by number."""
    return {record["n"]: record for record in json.loads(zlib.decompress(data))}


def best(records: Iterable[Record]) -> dict[int, Record]:
    """Of each point the most accurate record of this version, the latest of equals; failures where nothing else is."""
    found: dict[int, Record] = {}
    for record in records:
        there = found.get(record["n"])
        if there is None or _rank(record) <= _rank(there):
            found[record["n"]] = record
    return found


def _rank(record: Record) -> tuple[bool, bool, float]:
    return record["status"] == FAILED, record["version"] != __version__, record["accuracy"]


def _write(stream: IO[bytes], path: Path, entry: Mapping[str, Any]) -> None:
    """Append a line of JSON, in whole or not at all."""
    data = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
    before = stream.seek(0, os.SEEK_END)
    try:
        if stream.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        with suppress(OSError):
            stream.truncate(before)
        raise InputError(f"cannot write {path}: {error.strerror or error}; what is finished is kept") from error


def _differing(one: Any, other: Any) -> tuple[Any, Any]:
    """Of two dictionaries what differs."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return one, other
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return {n: one[n] for n in names if n in one}, {n: other[n] for n in names if n in other}


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:117]}..."
