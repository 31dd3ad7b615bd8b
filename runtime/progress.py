"""What a long run tells its user, always on stderr: single messages and a progress bar."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_quiet = False


class Task(Protocol):
    """A running bar: `advance` one step, optionally with a new description."""

    def advance(self, description: str | None = None) -> None: ...

    def describe(self, description: str) -> None: ...


def set_quiet(quiet: bool) -> None:
    """Silence messages and bars."""
    global _quiet
    _quiet = quiet


def say(message: str) -> None:
    """One line on stderr."""
    if not _quiet:
        print(message, file=sys.stderr, flush=True)


class _Silent:
    def advance(self, description: str | None = None) -> None:
        pass

    def describe(self, description: str) -> None:
        pass


class _Bar:
    def __init__(self, progress: object, task: object) -> None:
        self._progress, self._task = progress, task

    def advance(self, description: str | None = None) -> None:
        self._progress.advance(self._task)  # type: ignore[attr-defined]
        if description is not None:
            self.describe(description)

    def describe(self, description: str) -> None:
        self._progress.update(self._task, description=description)  # type: ignore[attr-defined]


class _Lines:
    """For a stderr that is no terminal: one line each time the description changes."""

    def __init__(self, total: int | None) -> None:
        self._total, self._done = total, 0
        self._last = (-1, "")

    def advance(self, description: str | None = None) -> None:
        self._done += 1
        if description is not None:
            self.describe(description)

    def describe(self, description: str) -> None:
        if (self._done, description) != self._last:
            counted = f"{self._done}" if self._total is None else f"{self._done}/{self._total}"
            print(f"[{counted}] {description}", file=sys.stderr, flush=True)
            self._last = (self._done, description)


@contextmanager
def bar(description: str, total: int | None) -> Iterator[Task]:
    """A progress bar on a terminal, lines elsewhere, nothing when quiet; `total` None where it is not known."""
    if _quiet:
        yield _Silent()
        return
    if not sys.stderr.isatty():
        lines = _Lines(total)
        lines.describe(description)
        yield lines
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield _Bar(progress, progress.add_task(description, total=total))
