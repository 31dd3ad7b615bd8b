"""Steps of a run, stored on disk: each result has a key made of its input and of the code that computes it.

An interrupted run continues from its last step, and a repeated run only draws.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..base.files import lock_file, write_atomically
from ..base.progress import progress_step
from ..derive.digest import imported_code_digest
from ..report.contract import json_text, to_plain_json

STEPS = "steps"
_PACKAGE = Path(__file__).parents[1]


class StoredSteps:
    """A store of named computations ("steps") in a folder: a result is used again while its input is the same.

    Attributes:
        computed: names of the steps that this process computed.
        computed_elsewhere: names of the steps that another process computed at the same time.
        begin: function without arguments that is called before a step is computed.
    """

    def __init__(self, out: Path, common: Mapping[str, Any]) -> None:
        self.out, self.common = out, dict(common)
        (out / STEPS).mkdir(parents=True, exist_ok=True)  # marks the folder as that of a run
        self.keys: dict[str, str] = {}
        self.computed: list[str] = []
        self.computed_elsewhere: list[str] = []
        self.begin: Callable[[], None] = lambda: None
        self._since = time.time()

    def load_or_compute_step(
        self,
        name: str,
        settings: Mapping[str, Any],
        work: Callable[[], Any],
        *,
        code: str,
        files: Sequence[str] = (),
        after: Iterable[str] = (),
    ) -> Any:
        """Return the result of a step: the stored one if its input is the same, else computed and stored.

        Args:
            name: name of the step.
            settings: input of this step; a change makes a stored result invalid.
            work: function without arguments that computes the result, a value for JSON, and writes `files`.
            code: digest of the code of the step (see `code_digest`).
            files: names of the files that the step writes, relative to the folder.
            after: names of earlier steps whose results the step uses.
        """
        parts = {"name": name, "common": self.common, "code": code, "settings": to_plain_json(dict(settings))}
        earlier = {"after": {n: self.keys[n] for n in after}}
        key = self.keys[name] = content_digest(json.dumps(parts | earlier, sort_keys=True).encode())
        path = self.out / STEPS / f"{name}.json"
        kept = self._read_stored_result(path, key)
        if kept is None:
            self.begin()
            with self._hold_lock_of_step(name):
                kept = self._read_stored_result(path, key)
                if kept is None:
                    result = to_plain_json(work())
                    digests = {file: content_digest((self.out / file).read_bytes()) for file in files}
                    whole = {"key": key, "settings": dict(settings), "files": digests, "result": result}
                    write_atomically(path, json_text(whole) + "\n")
                    self.computed.append(name)
                    return result
        if name not in self.computed and path.stat().st_mtime >= self._since:
            self.computed_elsewhere.append(name)
        return kept

    @contextmanager
    def _hold_lock_of_step(self, name: str) -> Iterator[None]:
        """Lock a stored computation ("step") during the block; wait if another process is computing it."""
        path = self.out / STEPS / f".{name}.lock"
        with progress_step("waiting for the process that computes this step"):
            lock = lock_file(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # a waiting process has it open, and will read the stored result
            if lock is not None:
                lock.close()

    def _read_stored_result(self, path: Path, key: str) -> Any:
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            fresh = all(content_digest((self.out / file).read_bytes()) == was for file, was in kept["files"].items())
            return kept["result"] if kept["key"] == key and fresh else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def content_digest(content: bytes) -> str:
    """Return the SHA-256 digest of bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def code_digest(work: Callable[..., Any]) -> str:
    """Return a digest of the code on which a function depends: its module and all modules of the package it imports."""
    module = Path(str(sys.modules[work.__module__].__file__))
    return imported_code_digest(_PACKAGE, module.relative_to(_PACKAGE).as_posix())
