"""What a long run tells its user, always on stderr: single messages, a progress bar, and the step it is at.

Steps are silent as long as all of them together take less than a few seconds. A step that lasts is said by a process of
its own (`heartbeat`): compilation and most compiled loops hold Python's lock, so that no thread could.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from time import monotonic
from typing import Protocol

from .heartbeat import SIZE, Board, Notes, can_write_over

_quiet = False
_steps: list[Step] = []
_lock = RLock()
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
    else:
        _helper.tell(doing())


class _Helper:
    """The process that speaks for this one; started when a first step begins, and ended with this process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._board: Board | None = None
        self._notes = Notes()
        self._owner, self._useless = -1, False

    def tell(self, text: str) -> None:
        """What is done now; nothing where all is done."""
        if _quiet or self._useless or not self._started():
            return
        now, before = monotonic(), self._notes
        begun = now if text and not before.text else before.begun
        said = " ".join(text.split()).encode(errors="backslashreplace")
        self._note(before._replace(begun=begun, changed=now, text=said))

    def printed(self) -> None:
        """Something else was just printed."""
        if self._process is not None and self._owner == os.getpid() and not (_quiet or self._useless):
            self._note(self._notes._replace(printed=monotonic()))

    def _note(self, notes: Notes) -> None:
        assert self._board is not None and self._process is not None and self._process.stdin is not None
        self._notes = notes
        self._board.write(notes)
        if not notes.text and self._board.shown:  # to be wiped away at once
            try:
                os.write(self._process.stdin.fileno(), b"\n")
            except BlockingIOError:
                pass  # nobody reads stderr: there is nothing to wipe away either
            except OSError:
                self._useless = True

    def _started(self) -> bool:
        if self._owner == os.getpid():
            return True
        # Another stderr than the process's own, as in a notebook or under a test, is not the helper's to write on.
        try:
            own = sys.stderr.fileno() == 2 and os.name == "posix"
        except (AttributeError, OSError, ValueError):
            own = False
        if not own or not sys.executable:
            return False
        self._owner, self._notes = os.getpid(), Notes()
        script = Path(__file__).with_name("heartbeat.py")
        try:
            with tempfile.TemporaryFile() as shared:
                shared.write(bytes(SIZE))  # not a hole, which a disk that has become full cannot fill: SIGBUS
                shared.flush()
                self._board = Board(shared.fileno())
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(script), str(shared.fileno())],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is the parent's to handle
                    pass_fds=(shared.fileno(),),
                )
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
        except OSError:
            self._useless = True
            return False
        atexit.register(self.stop)
        return True

    def stop(self) -> None:
        """End it, and wait for what it has on a terminal to be wiped away."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        self._useless = True
        with suppress(OSError, subprocess.TimeoutExpired):
            assert process.stdin is not None
            process.stdin.close()
            process.wait(1)
        if process.returncode is None:
            process.kill()
            process.wait()


_helper = _Helper()


class Task(Protocol):
    """A running bar: `advance` one step, optionally with a new description."""

    def advance(self, description: str | None = None) -> None:
        """Count one step as done; a description stays until the next one."""
        ...

    def describe(self, description: str) -> None:
        """Say what is done now, with no step counted."""
        ...


def set_quiet(quiet: bool) -> None:
    """Silence messages and bars."""
    global _quiet
    _quiet = quiet


def say(message: str) -> None:
    """One line on stderr."""
    if not _quiet:
        print(message, file=sys.stderr, flush=True)
        _helper.printed()


class _Silent:
    def advance(self, description: str | None = None) -> None:
        pass

    def describe(self, description: str) -> None:
        pass


class _Bar:
    def __init__(self, progress: object, task: object, description: str) -> None:
        self._progress, self._task, self._description = progress, task, description

    def advance(self, description: str | None = None) -> None:
        self._progress.advance(self._task)  # type: ignore[attr-defined]
        if description is not None:
            self.describe(description)

    def describe(self, description: str) -> None:
        self._description = description
        self.detail()

    def detail(self) -> None:
        """Show the step at hand beside the description."""
        shown = ": ".join(part for part in (self._description, doing()) if part)
        self._progress.update(self._task, description=shown)  # type: ignore[attr-defined]
        self._progress.refresh()  # type: ignore[attr-defined]  # its own thread does not run within compiled loops


class _Within:
    """A task within another one that has the terminal: a step of it."""

    def __init__(self, own: Step, total: int | None) -> None:
        self._own, self._total, self._done = own, total, 0

    def advance(self, description: str | None = None) -> None:
        self._done += 1
        self._own.left = f"{self._done}" if self._total is None else f"{self._done} of {self._total}"
        self.describe(description or self._own.text)

    def describe(self, description: str) -> None:
        self._own.text = description
        _tell()


class _Lines:
    """For a stderr that is no terminal: one line each time the description changes."""

    def __init__(self, total: int | None, own: Step) -> None:
        self._total, self._done, self.step = total, 0, own
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
            _helper.printed()
        self.step.text = description
        self.step.left = "" if self._total is None else f"{self._done} of {self._total} done"
        _tell()


@contextmanager
def bar(description: str, total: int | None) -> Iterator[Task]:
    """A progress bar on a terminal, lines elsewhere, nothing when quiet; `total` None where it is not known."""
    global _bar
    if _quiet:
        yield _Silent()
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
    _helper.tell("")
    with Progress(*columns, console=Console(stderr=True)) as progress:
        _bar = _Bar(progress, progress.add_task(description, total=total), description)
        try:
            yield _bar
        finally:
            _bar = None
    _tell()
