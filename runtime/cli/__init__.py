"""The command line: `main` is the function of the console script `saddleforge`.

No module of this package imports NumPy, Numba or SymPy at module level: `--version`, `--help` and `models` answer at
once, and a command imports what it needs when it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from ..base.deprecation import replace_deprecated_options
from ..base.interrupts import install_interrupt_handlers


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line `saddleforge ...` and exit with its status: 0, 1, 2, 3 or 130 (docs/design.md section 4).

    Args:
        arguments: arguments after the name of the program; None: those of the process.
    """
    install_interrupt_handlers()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given:
        given = ["--help"]
    from .outcome import ExitStatus, exit_process, report_interrupt, report_usage_error
    from .streams import print_error_line, repair_standard_streams

    repair_standard_streams()
    given, renamed = replace_deprecated_options(given)
    for sentence in renamed:
        print_error_line(f"saddleforge: {sentence}")

    as_json = "--json" in given
    try:
        from .app import app

        status = app(given, prog_name="saddleforge", standalone_mode=False)
        if status == ExitStatus.INTERRUPTED.code:  # Typer's, too, while it read the arguments
            report_interrupt(as_json)
    except KeyboardInterrupt:
        status = report_interrupt(as_json)
    except Exception as error:
        if type(error).__name__ == "Abort":  # an older Typer's
            status = report_interrupt(as_json)
        # Typer's exceptions, of whichever version: those of wrong usage can format a message.
        elif hasattr(error, "format_message"):
            status = report_usage_error(error, given[0], as_json)
        else:
            raise
    exit_process(status if isinstance(status, int) else 0)
