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
    """A step of a computation that is shown as progress: `text` describes it, `left` the remaining work."""

    def __init__(self, text: str) -> None:
        self.text, self.left = text, ""

    def __str__(self) -> str:
        return f"{self.text} ({self.left})" if self.left else self.text


@contextmanager
def progress_step(text: str) -> Iterator[ProgressStep]:
    """Show `text` as the description of the running step during the block; nested steps are shown together."""
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
    """Set the text that describes the remaining work of the running step, as "3 of 8 done"."""
    with _lock:
        if not _steps:
            return
        _steps[-1].left = text
    _display_current_steps()


def describe_current_steps() -> str:
    """Return the descriptions of the nested steps that are running, the outermost first; empty if there are none."""
    with _lock:
        return ": ".join(str(each) for each in _steps)


def _display_current_steps() -> None:
    if _bar is not None:
        _bar.refresh_displayed_text()
    elif not _quiet:
        _heartbeat.report_activity(describe_current_steps())


class ProgressTask:
    """A counter of the finished steps of a computation, without display; subclasses show a progress bar."""

    def __init__(self, total: int | None = None) -> None:
        self._total, self._done = total, 0

    def count_finished_step(self, description: str | None = None) -> None:
        """Count one step as finished, and replace the description of the progress bar if one is given."""
        self._done += 1
        if description is not None:
            self.set_description(description)

    def set_description(self, description: str) -> None:
        """Replace the description shown by the progress bar, without counting a step."""


def set_quiet_mode(quiet: bool) -> None:
    """Switch off (or on) all messages and progress bars."""
    global _quiet
    _quiet = quiet


def print_message(message: str) -> None:
    """Print a message as one line on stderr, unless quiet mode is on."""
    if not _quiet:
        print(message, file=sys.stderr, flush=True)
        _heartbeat.record_printed_output()


class _TerminalProgressBar(ProgressTask):
    """A progress bar drawn on a terminal."""

    def __init__(self, progress: Progress, description: str, total: int | None) -> None:
        super().__init__(total)
        self._progress, self._task = progress, progress.add_task(description, total=total)
        self._description = description

    def count_finished_step(self, description: str | None = None) -> None:
        self._progress.advance(self._task)
        super().count_finished_step(description)

    def set_description(self, description: str) -> None:
        self._description = description
        self.refresh_displayed_text()

    def refresh_displayed_text(self) -> None:
        """Redraw the progress bar with its description and the running step."""
        shown = ": ".join(part for part in (self._description, describe_current_steps()) if part)
        self._progress.update(self._task, description=shown)
        self._progress.refresh()  # its own thread is late within compiled loops


class _NestedProgressTask(ProgressTask):
    """A progress counter that is started inside a block with a progress bar; it is shown as a step of that bar."""

    def __init__(self, own: ProgressStep, total: int | None) -> None:
        super().__init__(total)
        self._own = own

    def count_finished_step(self, description: str | None = None) -> None:
        super().count_finished_step(description or self._own.text)

    def set_description(self, description: str) -> None:
        self._own.text = description
        if self._done:
            self._own.left = f"{self._done}" if self._total is None else f"{self._done} of {self._total}"
        _display_current_steps()


class _LogLineProgressTask(ProgressTask):
    """Progress printed as log lines where stderr is not a terminal: one line each time the description changes."""

    def __init__(self, total: int | None, own: ProgressStep) -> None:
        super().__init__(total)
        self._own, self._last = own, (-1, "")

    def set_description(self, description: str) -> None:
        if (self._done, description) != self._last:
            counted = f"{self._done}" if self._total is None else f"{self._done}/{self._total}"
            print(f"[{counted}] {description}", file=sys.stderr, flush=True)
            self._last = (self._done, description)
            _heartbeat.record_printed_output()
        self._own.text = description
        self._own.left = "" if self._total is None else f"{self._done} of {self._total} done"
        _display_current_steps()


@contextmanager
def progress_bar(description: str, total: int | None) -> Iterator[ProgressTask]:
    """Show the progress of the block: by a bar on a terminal, by lines elsewhere, not at all in quiet mode.

    Args:
        description: description of the computation.
        total: number of steps; None if unknown.

    Yields:
        The progress bar, whose `count_finished_step` is called after every step.
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
            lines.set_description(description)
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
