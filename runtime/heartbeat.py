"""A process that says what another one is at, also while that one is deep in compiled code and cannot.

Compiled loops hold Python's lock for as long as they run, so that no thread of the same process could speak. This file
is run as a script by `progress`; it reads on stdin, a line each, `T` and what is done now (nothing: all is done) or `O`
(something was just printed), and writes on stderr. It ends with its input. An argument gives the seconds of silence.
"""

from __future__ import annotations

import os
import select
import sys
import time

QUIET = 4.0  # seconds
_LONGEST = 30.0  # between lines about a step that goes on
_SHARE = 0.1  # of what has passed, from one such line to the next
_BLINK = 1.0  # seconds from one picture of a terminal's status line to the next


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

    def hear(self, message: str, now: float) -> str:
        """Take a message in; returns what is to be written at once."""
        if message.startswith("O"):
            self.spoken, self.shown = now, False
            return ""
        text = message[1:]
        if not self.text and text:
            self.begun = self.spoken = now
            self.told = ""
        if text != self.text:
            self.text, self.changed = text, now
        return self._cleared() if not text else ""

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

    def _cleared(self) -> str:
        shown, self.shown = self.shown, False
        return "\r\x1b[2K" if shown else ""


def main() -> None:
    """Hear messages on stdin until it ends, and write on stderr what is due meanwhile.

    The status line of a terminal is wiped away at the end.
    """
    live = os.isatty(2)
    teller = Teller(live, time.monotonic(), float(sys.argv[1]) if len(sys.argv) > 1 else QUIET)
    pending = b""
    while True:
        due = teller.due()
        wait = None if due is None else max(0.0, due - time.monotonic())
        if select.select([0], [], [], wait)[0]:
            data = os.read(0, 65536)
            if not data:
                _write(teller.hear("T", time.monotonic()))
                return
            *messages, pending = (pending + data).split(b"\n")
            for message in messages:
                _write(teller.hear(message.decode("utf-8", "replace"), time.monotonic()))
        elif due is not None and time.monotonic() >= due:
            _write(teller.speak(time.monotonic(), os.get_terminal_size(2).columns if live else 0))


def _write(text: str) -> None:
    if text:
        os.write(2, text.encode())


if __name__ == "__main__":
    try:
        main()
    except (OSError, KeyboardInterrupt):  # nobody reads any more
        sys.exit(0)
