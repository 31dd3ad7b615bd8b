"""A second process of a run, which takes up its steps in an order of its own and leaves their results in the folder.

Which process finds a result decides no bit of it. A step is one process's at a time (`Steps`): who comes to it later
waits, and reads it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from ..environment import Companion, processors, received
from ..progress import set_quiet
from ..threads import used


class Aside:
    """The second process of a run; none where one processor, or one thread, is all there is.

    Args:
        kind, out, figures: of the run (`Run`), whose `aside` it does.
    """

    def __init__(self, kind: type[Any], out: Path, figures: tuple[str, ...]) -> None:
        self._given = kind, out, figures
        self._wins = min(processors(), used()) > 1
        self._companion: Companion | None = None

    def begin(self) -> None:
        """Start it, unless it was: there is something to compute."""
        if self._wins and self._companion is None:
            self._companion = Companion(__name__, self._given, {"NUMBA_NUM_THREADS": "1"})

    def __enter__(self) -> Aside:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._companion is not None:
            self._companion.stop()


def serve() -> None:
    """The second process: a run on stdin."""
    kind, out, figures = received()
    set_quiet(True)
    for work in kind(out, figures).aside():
        with suppress(Exception):  # the first process will meet it, and say so
            work()
