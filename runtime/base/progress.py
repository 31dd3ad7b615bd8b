"""Progress reports of long runs, always on stderr: single messages, a progress bar, and the current step.

Steps are silent as long as all of them together take less than a few seconds. A longer step is reported by a thread
(`heartbeat`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING

from .heartbeat import ProgressHeartbeat, can_overwrite_terminal_line

if TYPE_CHECKING:
    from rich.progress import Progress

_quiet = False
_steps: list[ProgressStep] = []
_lock = RLock()
_heartbeat = ProgressHeartbeat()
_bar: _TerminalProgressBar | None = None  # the only one on a terminal


class ProgressStep:
    """A step that may take long: its description, and the remaining work."""

    def __init__(self, text: str) -> None:
        self.text, self.left = text, ""

    def __str__(self) -> str:
        return f"{self.text} ({self.left})" if self.left else self.text


@contextmanager
def progress_step(text: str) -> Iterator[ProgressStep]:
    """Report `text` as the current step during the block; nested steps are reported together."""
    task = ProgressStep(text)
    with _lock:
        _steps.append(task)
    _display_current_steps()
    try:
        yield task
    finally:
        with _lock:
            if task in _steps:
                _steps.remove(task)
        _display_current_steps()


def report_remaining_work(text: str) -> None:
    """Set the progress and the remaining work of the current step."""
    with _lock:
        if not _steps:
            return
        _steps[-1].left = text
    _display_current_steps()


def describe_current_steps() -> str:
    """Return the current steps, the outermost first; empty if there are none."""
    with _lock:
        return ": ".join(str(each) for each in _steps)


def _display_current_steps() -> None:
    if _bar is not None:
        _bar.refresh_displayed_text()
    elif not _quiet:
        _heartbeat.report_activity(describe_current_steps())


class ProgressTask:
    """A progress bar that shows nothing; subclasses show it."""

    def __init__(self, total: int | None = None) -> None:
        self._total, self._done = total, 0

    def advance(self, description: str | None = None) -> None:
        """Count one step as done, and show a description if one is given."""
        self._done += 1
        if description is not None:
            self.describe(description)

    def describe(self, description: str) -> None:
        """Set the description without counting a step."""


def set_quiet_mode(quiet: bool) -> None:
    """Silence messages and bars."""
    global _quiet
    _quiet = quiet


def print_message(message: str) -> None:
    """Print one line on stderr, unless quiet."""
    if not _quiet:
        print(message, file=sys.stderr, flush=True)
        _heartbeat.note_printed_output()


class _TerminalProgressBar(ProgressTask):
    """A progress bar on a terminal."""

    def __init__(self, progress: Progress, description: str, total: int | None) -> None:
        super().__init__(total)
        self._progress, self._task = progress, progress.add_task(description, total=total)
        self._description = description

    def advance(self, description: str | None = None) -> None:
        self._progress.advance(self._task)
        super().advance(description)

    def describe(self, description: str) -> None:
        self._description = description
        self.refresh_displayed_text()

    def refresh_displayed_text(self) -> None:
        """Show the description of the bar and the current step."""
        shown = ": ".join(part for part in (self._description, describe_current_steps()) if part)
        self._progress.update(self._task, description=shown)
        self._progress.refresh()  # its own thread is late within compiled loops


class _NestedProgressTask(ProgressTask):
    """A task within another task with a progress bar, shown as a step of that one."""

    def __init__(self, own: ProgressStep, total: int | None) -> None:
        super().__init__(total)
        self._own = own

    def advance(self, description: str | None = None) -> None:
        super().advance(description or self._own.text)

    def describe(self, description: str) -> None:
        self._own.text = description
        if self._done:
            self._own.left = f"{self._done}" if self._total is None else f"{self._done} of {self._total}"
        _display_current_steps()


class _LogLineProgressTask(ProgressTask):
    """A progress bar on a stderr that is no terminal: one line each time the description changes."""

    def __init__(self, total: int | None, own: ProgressStep) -> None:
        super().__init__(total)
        self._own, self._last = own, (-1, "")

    def describe(self, description: str) -> None:
        if (self._done, description) != self._last:
            counted = f"{self._done}" if self._total is None else f"{self._done}/{self._total}"
            print(f"[{counted}] {description}", file=sys.stderr, flush=True)
            self._last = (self._done, description)
            _heartbeat.note_printed_output()
        self._own.text = description
        self._own.left = "" if self._total is None else f"{self._done} of {self._total} done"
        _display_current_steps()


@contextmanager
def progress_bar(description: str, total: int | None) -> Iterator[ProgressTask]:
    """Show a progress bar on a terminal, lines elsewhere, nothing when quiet.

    Args:
        description: what is done.
        total: number of steps; None if unknown.

    Yields:
        The task, whose `advance` counts steps.
    """
    global _bar
    if _quiet:
        yield ProgressTask()
        return
    if _bar is not None:
        with progress_step(description) as own:
            yield _NestedProgressTask(own, total)
        return
    if not (sys.stderr.isatty() and can_overwrite_terminal_line()):
        with progress_step(description) as own:
            lines = _LogLineProgressTask(total, own)
            lines.describe(description)
            yield lines
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    _heartbeat.report_activity("")
    with Progress(*columns, console=Console(stderr=True)) as progress:
        _bar = _TerminalProgressBar(progress, description, total)
        try:
            yield _bar
        finally:
            _bar = None
    _display_current_steps()
