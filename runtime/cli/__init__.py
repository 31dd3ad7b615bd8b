"""The command line: `main` is what the console script `saddleforge` calls.

Nothing here or in the modules beside it imports NumPy, Numba or SymPy at module level: `--version`, `--help` and
`models` answer at once, and what a command needs is imported when it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from ..base.deprecation import current
from ..base.interrupts import heed


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and leave with its exit status, 0, 1, 2, 3 or 130 (docs/design.md section 4).

    Args:
        arguments: default, those of the process.
    """
    heed()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given:
        given = ["--help"]
    from .outcome import Exit, interrupted, leave, usage_error
    from .streams import opened, tell

    opened()
    given, renamed = current(given)
    for sentence in renamed:
        tell(f"saddleforge: {sentence}")

    as_json = "--json" in given
    try:
        from .app import app

        status = app(given, prog_name="saddleforge", standalone_mode=False)
        if status == Exit.INTERRUPTED.code:  # Typer's, too, while it read the arguments
            interrupted(as_json)
    except KeyboardInterrupt:
        status = interrupted(as_json)
    except Exception as error:
        if type(error).__name__ == "Abort":  # an older Typer's
            status = interrupted(as_json)
        # Typer's exceptions, of whichever version: those of wrong usage can format a message.
        elif hasattr(error, "format_message"):
            status = usage_error(error, given[0], as_json)
        else:
            raise
    leave(status if isinstance(status, int) else 0)
