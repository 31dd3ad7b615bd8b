"""A thread that reports progress while a long step runs, and the rules of when to report.

Numba compiles in Python and in LLVM, which holds no lock of Python, and long compiled loops hold none either
(`nogil`): the thread is late by no more than a call that holds it.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from time import monotonic, sleep

SILENT_SECONDS = 4.0  # seconds
_MAX_LINE_INTERVAL = 30.0  # seconds between lines about the same step
_LINE_INTERVAL_FRACTION = 0.1  # of the elapsed time, between such lines
_STATUS_LINE_INTERVAL = 1.0  # seconds between updates of a terminal's status line
_MAX_POLL_INTERVAL, _MIN_POLL_INTERVAL = 1.0, 0.05  # seconds between checks of the clock


class ProgressReporter:
    """A scheduler of progress lines: decides when the next line is printed, and composes its text.

    Attributes:
        live: whether one line is overwritten (on a terminal) or lines are appended (in a log file).
        quiet: time that a step runs before its first progress line, in seconds.
    """

    def __init__(self, live: bool, now: float, quiet: float = SILENT_SECONDS) -> None:
        self.live, self.quiet = live, quiet
        self.text, self.last_text = "", ""
        self.started = self.changed = self.last_output = now
        self.shown = False

    def set_activity_text(self, text: str, now: float) -> str:
        """Set the text of the current activity; return the control characters that erase an outdated line, or "".

        Args:
            text: description of the activity; empty if nothing is running.
            now: monotonic clock in seconds.
        """
        if not self.text and text:
            self.started = self.last_output = now
            self.last_text = ""
        if text != self.text:
            self.text, self.changed = text, now
        shown, self.shown = self.shown, self.shown and bool(text)
        return "\r\x1b[2K" if shown and not text else ""

    def record_printed_output(self, now: float) -> None:
        """Record that another message was just printed on stderr, which delays the next progress line."""
        self.last_output, self.shown = now, False

    def next_progress_line_time(self) -> float | None:
        """Return the time at which the next progress line is due (monotonic seconds); None if nothing runs."""
        if not self.text:
            return None
        if self.live:
            return max(self.started + self.quiet, self.last_output + _STATUS_LINE_INTERVAL)
        interval = max(self.quiet, _LINE_INTERVAL_FRACTION * (self.last_output - self.started))
        regular = self.last_output + min(interval, _MAX_LINE_INTERVAL)
        if self.text == self.last_text:
            return max(regular, self.last_output + min(2 * self.quiet, _MAX_LINE_INTERVAL))
        return min(regular, max(self.changed, self.last_output) + self.quiet)

    def compose_progress_line(self, now: float, width: int = 0) -> str:
        """Return the progress line to write now.

        Args:
            now: monotonic clock in seconds.
            width: columns of the terminal.
        """
        line = f"... {self.text} [{now - self.started:.0f} s]"
        self.last_text, self.last_output = self.text, now
        if not self.live:
            return f"{line}\n"
        self.shown = True
        return f"\r\x1b[2K{line[: max(width - 1, 20)]}"


class ProgressHeartbeat:
    """A background thread that writes progress lines to stderr while a long step runs; the first step starts it."""

    def __init__(self) -> None:
        self._owner = -1  # process of the thread: a forked process has none
        self._lock = threading.Lock()
        self._reporter = ProgressReporter(False, 0.0)

    def report_activity(self, text: str) -> None:
        """Set the text of the current activity, which progress lines show; empty if nothing is running."""
        if self._owner == os.getpid() or self._start_progress_thread():
            with self._lock:
                cleared = self._reporter.set_activity_text(" ".join(text.split()), monotonic())
                with suppress(OSError):
                    _write_to_stderr(cleared)

    def record_printed_output(self) -> None:
        """Record that another message was just printed on stderr, which delays the next progress line."""
        if self._owner == os.getpid():
            with self._lock:
                self._reporter.record_printed_output(monotonic())

    def _start_progress_thread(self) -> bool:
        """Start the progress thread unless stderr is redirected, as in a notebook; return whether it runs."""
        try:
            if sys.stderr.fileno() != 2:
                return False
            self._lock, self._reporter = threading.Lock(), ProgressReporter(can_overwrite_terminal_line(), monotonic())
            threading.Thread(target=self._write_progress_lines, name="heartbeat", daemon=True).start()
        except (AttributeError, OSError, ValueError, RuntimeError):  # RuntimeError: no thread can be started
            return False
        self._owner = os.getpid()
        atexit.register(self.report_activity, "")
        return True

    def _write_progress_lines(self) -> None:
        """Write progress lines to stderr whenever one is due, until stderr is closed."""
        with suppress(OSError):
            while True:
                with self._lock:
                    now, due = monotonic(), self._reporter.next_progress_line_time()
                    if due is not None and due <= now:
                        width = os.get_terminal_size(2).columns if self._reporter.live else 0
                        _write_to_stderr(self._reporter.compose_progress_line(now, width))
                        due = self._reporter.next_progress_line_time()
                pause = _MAX_POLL_INTERVAL if due is None else max(_MIN_POLL_INTERVAL, due - now)
                sleep(min(_MAX_POLL_INTERVAL, pause))


def can_overwrite_terminal_line() -> bool:
    """Return whether stderr is a terminal on which a line can be overwritten."""
    return os.isatty(2) and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def _write_to_stderr(text: str) -> None:
    if text:
        os.write(2, text.encode(errors="backslashreplace"))
