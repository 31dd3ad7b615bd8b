"""Records of finished points: one file per line of the sweep, to which a line of JSON is appended for every point.

Not a number and infinities are written as NaN and Infinity. An incomplete last line, after a kill or on a full disk, is
ignored when the file is read, and removed before more is written.
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
from ...problems.columns import RENAMED_COLUMNS
from .line import FAILED, Record
from .plan import SweepLine, SweepPlan

try:
    import fcntl
except ImportError:  # no locks on this system: users must not run two commands on one folder
    fcntl = None  # type: ignore[assignment]

_PLAN = "sweep.json"


def records_folder(output: Path) -> Path:
    """Return the folder for the records of a sweep: NAME.records next to an output file NAME.nc."""
    return output.with_name(f"{output.stem}.records")


class SweepRecords:
    """The folder with the records of a sweep: one file for every line, to which records are appended.

    Raises:
        InputError: the folder contains another sweep, or cannot be read or written.
    """

    def __init__(self, folder: Path, plan: SweepPlan) -> None:
        self.folder = folder
        self._streams: dict[Path, IO[bytes]] = {}
        self._plan_text = json.dumps(
            {**plan.settings_that_identify_sweep, "source": plan.source}, sort_keys=True, ensure_ascii=False, indent=1
        )
        path = folder / _PLAN
        self._is_new = not path.exists()
        if not self._is_new:
            require_same_sweep(folder, plan)
        elif folder.is_dir() and any(folder.iterdir()):
            raise InputError(
                f"the folder {folder} exists and contains other files than records of a sweep; give another name"
            )
        else:
            self._write_sweep_settings()

    def existing_records_of_line(self, line: SweepLine) -> dict[int, Record]:
        """Return the existing records of a line by index of the point, the best one of every point."""
        return best_record_of_each_point(read_records(self.records_file_of_line(line)))

    def records_file_of_line(self, line: SweepLine) -> Path:
        """Return the path of the file with the records of a line."""
        return self.folder / f"{line.records_file_stem}.jsonl"

    def append_point_record(self, line: SweepLine, record: Record) -> None:
        """Append the record of a point to the file of its line.

        Args:
            line: line of the sweep.
            record: record of a point.

        Raises:
            InputError: the record cannot be written; earlier records stay.
        """
        path = self.records_file_of_line(line)
        if path not in self._streams:
            self._streams[path] = self._open_records_file(path, line)
        _append_json_line(self._streams[path], path, record)

    def close_line_file(self, line: SweepLine) -> None:
        """Close the file with the records of a line."""
        stream = self._streams.pop(self.records_file_of_line(line), None)
        if stream is not None:
            stream.close()

    def close_record_files(self) -> None:
        """Close all files of records."""
        for stream in self._streams.values():
            with suppress(OSError):
                stream.close()
        self._streams.clear()

    def close_and_remove_if_empty(self) -> None:
        """Close all files, and remove the folder if it is new and contains no records."""
        self.close_record_files()
        if self._is_new and not any(self.folder.glob("*.jsonl")):
            with suppress(OSError):
                (self.folder / _PLAN).unlink(missing_ok=True)
                self.folder.rmdir()

    def _write_sweep_settings(self) -> None:
        """Write the file with the settings that distinguish the sweep from others."""
        write_atomically(self.folder / _PLAN, self._plan_text + "\n")

    def _open_records_file(self, path: Path, line: SweepLine) -> IO[bytes]:
        if not (self.folder / _PLAN).exists():  # another command has withdrawn
            self._write_sweep_settings()
        with convert_os_errors(f"cannot write {path}"):
            stream = path.open("ab", buffering=0)
            try:
                if fcntl is not None:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(
                    f"cannot write {path}: another command is writing records of this sweep; wait until it ends"
                ) from error
            complete = path.read_bytes().rfind(b"\n") + 1
            stream.truncate(complete)
        if not complete:
            _append_json_line(stream, path, {"line": json.loads(line.identity)})
        return stream


def require_same_sweep(folder: Path, plan: SweepPlan) -> None:
    """Raise InputError if a folder contains the records of another sweep than the planned one.

    Args:
        folder: folder with records.
        plan: plan of the sweep.

    Raises:
        InputError: the folder belongs to another sweep; the message names the settings that differ.
    """
    there, wanted = read_sweep_settings(folder), json.loads(json.dumps(plan.settings_that_identify_sweep))
    for name in wanted:
        if there.get(name) != wanted[name]:
            one, other = _differing_entries(there.get(name), wanted[name])
            raise InputError(
                f"{folder} contains the records of another sweep, with {name} = {_shortened_json(one)} instead of "
                f"{_shortened_json(other)}; give another name, or --force to remove them and begin again"
            )


def read_sweep_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of the sweep whose records a folder contains.

    Raises:
        InputError: the folder contains no records, or their settings cannot be read.
    """
    path = folder / _PLAN
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{folder} contains no records of a sweep: cannot read {path} ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{folder} contains no records of a sweep: {path} is not JSON") from error
    if not isinstance(found, dict):
        raise InputError(f"{folder} contains no records of a sweep: {path} is not a JSON object")
    return found


def remove_sweep_records(folder: Path) -> None:
    """Remove the records of a sweep from a folder, which is deleted if it contains no other files.

    Raises:
        InputError: the folder contains no sweep, or a file cannot be removed.
    """
    read_sweep_settings(folder)
    with convert_os_errors(f"cannot remove {folder}"):
        for path in [*folder.glob("*.jsonl"), folder / _PLAN]:
            path.unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()


def read_records(path: Path) -> list[Record]:
    """Return the records in a file in the order in which they were written, without an incomplete last one.

    Raises:
        InputError: the file cannot be read, or is damaged.
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
        raise InputError(
            f"the file of records {path} is damaged; remove it, and run the sweep again to compute its points"
        ) from error
    return [{RENAMED_COLUMNS.get(key, key): value for key, value in each.items()} for each in found if "n" in each]


def compress_records(records: Mapping[int, Record]) -> bytes:
    """Return the records of a line as compressed bytes, about eight times smaller than their text."""
    return zlib.compress(json.dumps(list(records.values())).encode(), 1)


def decompress_records(data: bytes) -> dict[int, Record]:
    """Return the records of a line from compressed bytes, by index of the point."""
    return {record["n"]: record for record in json.loads(zlib.decompress(data))}


def best_record_of_each_point(records: Iterable[Record]) -> dict[int, Record]:
    """Return the best record of every point by its index.

    Better is: not failed, then computed by this version, then more accurate, then later.
    """
    found: dict[int, Record] = {}
    for record in records:
        there = found.get(record["n"])
        if there is None or _record_quality_rank(record) <= _record_quality_rank(there):
            found[record["n"]] = record
    return found


def _record_quality_rank(record: Record) -> tuple[bool, bool, float]:
    return record["status"] == FAILED, record["version"] != __version__, record["accuracy"]


def _append_json_line(stream: IO[bytes], path: Path, entry: Mapping[str, Any]) -> None:
    """Append one line of JSON to a file, completely or not at all."""
    data = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
    before = stream.seek(0, os.SEEK_END)
    try:
        if stream.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        with suppress(OSError):
            stream.truncate(before)
        raise InputError(f"cannot write {path}: {error.strerror or error}; finished points are kept") from error


def _differing_entries(one: Any, other: Any) -> tuple[Any, Any]:
    """Return two dictionaries without the entries in which they agree."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return one, other
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return {n: one[n] for n in names if n in one}, {n: other[n] for n in names if n in other}


def _shortened_json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:117]}..."
