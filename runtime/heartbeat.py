"""A process that says what another one is at, also while that one is deep in compiled code and cannot.

Compiled loops hold Python's lock for as long as they run, so that no thread of the same process could speak. This file
is run as a script by `progress`, which writes what is done on a board of shared memory, at no cost to speak of; this
process looks there now and then, and writes on stderr what is due. It looks at once when something comes on stdin, and
ends with it. Arguments: the descriptor of the board, and the seconds of silence.
"""

from __future__ import annotations

import mmap
import os
import select
import struct
import sys
import time
from typing import NamedTuple

QUIET = 4.0  # seconds
SIZE = 1100  # of a board
_LONGEST = 30.0  # between lines about a step that goes on
_SHARE = 0.1  # of what has passed, from one such line to the next
_BLINK = 1.0  # seconds from one picture of a terminal's status line to the next
_LOOK = 1.0  # seconds from one look at the board to the next
_HEAD = struct.Struct("<QdddH")
_LONGEST_TEXT = SIZE - _HEAD.size - 1


class Notes(NamedTuple):
    """What a board holds: what is done now (nothing: all is done), and in seconds of the monotonic clock when that, and
    all of which it is a part, began, and when something else was last printed."""

    begun: float = 0.0
    changed: float = 0.0
    printed: float = 0.0
    text: bytes = b""


class Board:
    """Shared memory on which one process writes and another one reads; the last byte is the reader's: whether what it
    wrote is to be wiped away."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, SIZE)
        self._number = 0

    def write(self, notes: Notes) -> None:
        """In place of what is there; whoever reads meanwhile sees an odd number, or two."""
        self._number += 2
        text = notes.text[:_LONGEST_TEXT]
        _HEAD.pack_into(self._memory, 0, self._number - 1, *notes[:3], len(text))
        self._memory[_HEAD.size : _HEAD.size + len(text)] = text
        self._memory[:8] = self._number.to_bytes(8, "little")

    def read(self) -> Notes | None:
        """What is there; None where it is being written just now."""
        number, begun, changed, printed, length = _HEAD.unpack_from(self._memory)
        text = self._memory[_HEAD.size : _HEAD.size + min(length, _LONGEST_TEXT)]
        if number % 2 or self._memory[:8] != number.to_bytes(8, "little"):
            return None
        return Notes(begun, changed, printed, text)

    @property
    def shown(self) -> bool:
        """Whether the reader has left something on a terminal."""
        return bool(self._memory[-1])

    @shown.setter
    def shown(self, value: bool) -> None:
        self._memory[-1] = value


def messages(before: Notes, now: Notes) -> list[tuple[float, str]]:
    """What a `Teller` is to hear of what changed on a board, and when it was."""
    found: list[tuple[float, str]] = []
    text = now.text.decode("utf-8", "replace")
    if now.begun != before.begun:
        found += [(now.begun, "T"), (now.begun, "T..." if text else "T")]
    if now.printed != before.printed:
        found.append((now.printed, "O"))
    if now.text != before.text or now.begun != before.begun:
        found.append((now.changed, f"T{text}"))
    return found


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
        """Take in `T` and what is done now, nothing where all is done, or `O`: something was just printed. Returns what
        is to be written at once."""
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


def can_write_over() -> bool:
    """Whether stderr is a terminal on which a line can be written over."""
    return os.isatty(2) and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def main() -> None:
    """Look at the board until stdin ends, and write on stderr what is due meanwhile.

    The status line of a terminal is wiped away at the end.
    """
    live = can_write_over()
    board, before = Board(int(sys.argv[1])), Notes()
    quiet = float(sys.argv[2]) if len(sys.argv) > 2 else QUIET
    teller = Teller(live, time.monotonic(), quiet)
    while True:
        due = teller.due()
        wait = min(_LOOK, quiet) if due is None else min(_LOOK, quiet, max(0.0, due - time.monotonic()))
        over = select.select([0], [], [], wait)[0] and not os.read(0, 65536)
        now = board.read()
        if now is not None:
            for at, message in messages(before, now):
                _write(teller.hear(message, at))
            before = now
        if over:
            _write(teller.hear("T", time.monotonic()))
            return
        due = teller.due()
        if due is not None and time.monotonic() >= due:
            _write(teller.speak(time.monotonic(), os.get_terminal_size(2).columns if live else 0))
        board.shown = teller.shown


def _write(text: str) -> None:
    if text:
        os.write(2, text.encode())


if __name__ == "__main__":
    try:
        main()
    except (OSError, KeyboardInterrupt):  # nobody reads any more
        sys.exit(0)
