"""What a long run tells its user, always on stderr: single messages, a progress bar, and the step it is at.

Steps are silent as long as all of them together take less than a few seconds. A step that lasts is said by a thread
(`heartbeat`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING

from .heartbeat import Heartbeat, can_write_over

if TYPE_CHECKING:
    from rich.progress import Progress

_quiet = False
_steps: list[Step] = []
_lock = RLock()
_heartbeat = Heartbeat()
_bar: _Bar | None = None  # on a terminal, which it has to itself


class Step:
    """Something that may take long: what is done, and what is left to do."""

    def __init__(self, text: str) -> None:
        self.text, self.left = text, ""

    def __str__(self) -> str:
        return f"{self.text} ({self.left})" if self.left else self.text


@contextmanager
def step(text: str) -> Iterator[Step]:
    """While this lasts, `text` is what is done; steps may hold others, and are said together."""
    task = Step(text)
    with _lock:
        _steps.append(task)
    _tell()
    try:
        yield task
    finally:
        with _lock:
            if task in _steps:
                _steps.remove(task)
        _tell()


def left(text: str) -> None:
    """Of the step at hand, how far it has come and what is left."""
    with _lock:
        if not _steps:
            return
        _steps[-1].left = text
    _tell()


def doing() -> str:
    """What is done now, from the outermost step in; nothing where nothing is."""
    with _lock:
        return ": ".join(str(each) for each in _steps)


def _tell() -> None:
    if _bar is not None:
        _bar.detail()
    elif not _quiet:
        _heartbeat.tell(doing())


class Task:
    """A running bar, of which nothing is seen when quiet."""

    def __init__(self, total: int | None = None) -> None:
        self._total, self._done = total, 0

    def advance(self, description: str | None = None) -> None:
        """Count one step as done; a description stays until the next one."""
        self._done += 1
        if description is not None:
            self.describe(description)

    def describe(self, description: str) -> None:
        """Say what is done now, with no step counted."""


def set_quiet(quiet: bool) -> None:
    """Silence messages and bars."""
    global _quiet
    _quiet = quiet


def say(message: str) -> None:
    """One line on stderr."""
    if not _quiet:
        print(message, file=sys.stderr, flush=True)
        _heartbeat.printed()


class _Bar(Task):
    """A bar on a terminal."""

    def __init__(self, progress: Progress, description: str, total: int | None) -> None:
        super().__init__(total)
        self._progress, self._task = progress, progress.add_task(description, total=total)
        self._description = description

    def advance(self, description: str | None = None) -> None:
        self._progress.advance(self._task)
        super().advance(description)

    def describe(self, description: str) -> None:
        self._description = description
        self.detail()

    def detail(self) -> None:
        """Show the step at hand beside the description."""
        shown = ": ".join(part for part in (self._description, doing()) if part)
        self._progress.update(self._task, description=shown)
        self._progress.refresh()  # its own thread is late within compiled loops


class _Within(Task):
    """A task within another one that has the terminal: a step of it."""

    def __init__(self, own: Step, total: int | None) -> None:
        super().__init__(total)
        self._own = own

    def advance(self, description: str | None = None) -> None:
        super().advance(description or self._own.text)

    def describe(self, description: str) -> None:
        self._own.text = description
        if self._done:
            self._own.left = f"{self._done}" if self._total is None else f"{self._done} of {self._total}"
        _tell()


class _Lines(Task):
    """For a stderr that is no terminal: one line each time the description changes."""

    def __init__(self, total: int | None, own: Step) -> None:
        super().__init__(total)
        self._own, self._last = own, (-1, "")

    def describe(self, description: str) -> None:
        if (self._done, description) != self._last:
            counted = f"{self._done}" if self._total is None else f"{self._done}/{self._total}"
            print(f"[{counted}] {description}", file=sys.stderr, flush=True)
            self._last = (self._done, description)
            _heartbeat.printed()
        self._own.text = description
        self._own.left = "" if self._total is None else f"{self._done} of {self._total} done"
        _tell()


@contextmanager
def bar(description: str, total: int | None) -> Iterator[Task]:
    """A progress bar on a terminal, lines elsewhere, nothing when quiet; `total` None where it is not known."""
    global _bar
    if _quiet:
        yield Task()
        return
    if _bar is not None:
        with step(description) as own:
            yield _Within(own, total)
        return
    if not (sys.stderr.isatty() and can_write_over()):
        with step(description) as own:
            lines = _Lines(total, own)
            lines.describe(description)
            yield lines
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    _heartbeat.tell("")
    with Progress(*columns, console=Console(stderr=True)) as progress:
        _bar = _Bar(progress, description, total)
        try:
            yield _bar
        finally:
            _bar = None
    _tell()
