"""A thread that says what a process is at while a step lasts, and the rules of when to say what.

Numba compiles in Python and in LLVM, which holds no lock of Python, and compiled loops that last hold none either
(`nogil`): the thread is late by no more than a call that does.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from time import monotonic, sleep

QUIET = 4.0  # seconds
_LONGEST = 30.0  # between lines about a step that goes on
_SHARE = 0.1  # of what has passed, from one such line to the next
_BLINK = 1.0  # seconds from one picture of a terminal's status line to the next
_LOOK, _SOONEST = 1.0, 0.05  # seconds from one look at the clock to the next, at most and at least


class Teller:
    """When to say what.

    Attributes:
        live: whether one line is written over and over (a terminal), not line after line.
        quiet: seconds that may pass without a word about a step.
    """

    def __init__(self, live: bool, now: float, quiet: float = QUIET) -> None:
        self.live, self.quiet = live, quiet
        self.text, self.told = "", ""
        self.begun = self.changed = self.spoken = now
        self.shown = False

    def hear(self, text: str, now: float) -> str:
        """Take in what is done now, nothing where all is done; return what is to be written at once."""
        if not self.text and text:
            self.begun = self.spoken = now
            self.told = ""
        if text != self.text:
            self.text, self.changed = text, now
        shown, self.shown = self.shown, self.shown and bool(text)
        return "\r\x1b[2K" if shown and not text else ""

    def printed(self, now: float) -> None:
        """Take in that something else was just printed."""
        self.spoken, self.shown = now, False

    def due(self) -> float | None:
        """When there is something to say next; None while nothing is done."""
        if not self.text:
            return None
        if self.live:
            return max(self.begun + self.quiet, self.spoken + _BLINK)
        regular = self.spoken + min(max(self.quiet, _SHARE * (self.spoken - self.begun)), _LONGEST)
        if self.text == self.told:
            return max(regular, self.spoken + min(2 * self.quiet, _LONGEST))
        return min(regular, max(self.changed, self.spoken) + self.quiet)

    def speak(self, now: float, width: int = 0) -> str:
        """What is to be written now."""
        line = f"... {self.text} [{now - self.begun:.0f} s]"
        self.told, self.spoken = self.text, now
        if not self.live:
            return f"{line}\n"
        self.shown = True
        return f"\r\x1b[2K{line[: max(width - 1, 20)]}"


class Heartbeat:
    """The thread that speaks for this process; it begins with a first step and writes on the process's own stderr."""

    def __init__(self) -> None:
        self._owner = -1  # of the thread: a process that was forked off has none
        self._lock = threading.Lock()
        self._teller = Teller(False, 0.0)

    def tell(self, text: str) -> None:
        """Say what is done now; nothing where all is done."""
        if self._owner == os.getpid() or self._begin():
            with self._lock:
                cleared = self._teller.hear(" ".join(text.split()), monotonic())
                with suppress(OSError):
                    _write(cleared)

    def printed(self) -> None:
        """Take note that something else was just printed."""
        if self._owner == os.getpid():
            with self._lock:
                self._teller.printed(monotonic())

    def _begin(self) -> bool:
        """Start the thread, unless stderr is another one than the process's own, as in a notebook or under a test."""
        try:
            if sys.stderr.fileno() != 2:
                return False
            self._lock, self._teller = threading.Lock(), Teller(can_write_over(), monotonic())
            threading.Thread(target=self._speak, name="heartbeat", daemon=True).start()
        except (AttributeError, OSError, ValueError, RuntimeError):  # the latter where no thread can be had
            return False
        self._owner = os.getpid()
        atexit.register(self.tell, "")
        return True

    def _speak(self) -> None:
        """Write what is due, for as long as somebody reads it."""
        with suppress(OSError):
            while True:
                with self._lock:
                    now, due = monotonic(), self._teller.due()
                    if due is not None and due <= now:
                        width = os.get_terminal_size(2).columns if self._teller.live else 0
                        _write(self._teller.speak(now, width))
                        due = self._teller.due()
                sleep(_LOOK if due is None else min(_LOOK, max(_SOONEST, due - now)))


def can_write_over() -> bool:
    """Whether stderr is a terminal on which a line can be written over."""
    return os.isatty(2) and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def _write(text: str) -> None:
    if text:
        os.write(2, text.encode(errors="backslashreplace"))
