"""Steps of a run, kept on disk: each result under a key of what it depends on, the code that computes it included.

An interrupted run goes on where it stopped, and a second one only draws.
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

from ..base.files import locked, write_whole
from ..base.progress import step
from ..derive.digest import syntax_digest
from ..report.contract import clean, dumps

STEPS = "steps"
_PACKAGE = Path(__file__).parents[1]


class Steps:
    """Named pieces of work whose results are kept in a folder and used again while what they depend on is the same.

    Attributes:
        computed: names of the steps computed here; beside: of those that another process has computed meanwhile.
        begin: called before a step is computed.
    """

    def __init__(self, out: Path, common: Mapping[str, Any]) -> None:
        self.out, self.common = out, dict(common)
        (out / STEPS).mkdir(parents=True, exist_ok=True)  # by which the folder is known again
        self.keys: dict[str, str] = {}
        self.computed: list[str] = []
        self.beside: list[str] = []
        self.begin: Callable[[], None] = lambda: None
        self._since = time.time()

    def run(
        self,
        name: str,
        settings: Mapping[str, Any],
        work: Callable[[], Any],
        *,
        code: str,
        files: Sequence[str] = (),
        after: Iterable[str] = (),
    ) -> Any:
        """Return the result of a step, read back if it is there, else computed and kept.

        Args:
            settings: what the result depends on beside the code, what is common to all steps, and earlier steps.
            work: returns what JSON can hold, and writes `files` (relative to the folder) itself.
            code: digest of what computes it (see `code_digest`).
            after: names of earlier steps whose results it uses.
        """
        parts = {"name": name, "common": self.common, "code": code, "settings": clean(dict(settings))}
        earlier = {"after": {n: self.keys[n] for n in after}}
        key = self.keys[name] = digest_of(json.dumps(parts | earlier, sort_keys=True).encode())
        path = self.out / STEPS / f"{name}.json"
        kept = self._read(path, key)
        if kept is None:
            self.begin()
            with self._mine(name):
                kept = self._read(path, key)
                if kept is None:
                    result = clean(work())
                    digests = {file: digest_of((self.out / file).read_bytes()) for file in files}
                    whole = {"key": key, "settings": dict(settings), "files": digests, "result": result}
                    write_whole(path, dumps(whole) + "\n")
                    self.computed.append(name)
                    return result
        if name not in self.computed and path.stat().st_mtime >= self._since:
            self.beside.append(name)
        return kept

    @contextmanager
    def _mine(self, name: str) -> Iterator[None]:
        """No other process is at the step meanwhile."""
        path = self.out / STEPS / f".{name}.lock"
        with step("waiting for the process that is at it"):
            lock = locked(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # who waits for it has it open, and finds what is kept
            if lock is not None:
                lock.close()

    def _read(self, path: Path, key: str) -> Any:
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            fresh = all(digest_of((self.out / file).read_bytes()) == was for file, was in kept["files"].items())
            return kept["result"] if kept["key"] == key and fresh else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def digest_of(content: bytes) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def code_digest(work: Callable[..., Any]) -> str:
    """Digest of the code that decides the digits of some work: its module's, and that of all it imports."""
    module = Path(str(sys.modules[work.__module__].__file__))
    return syntax_digest(_PACKAGE, module.relative_to(_PACKAGE).as_posix())
