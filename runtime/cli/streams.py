"""Standard streams that may be closed, full, of a small character set, or written to by libraries and model files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TextIO


def repair_standard_streams() -> None:
    """Open closed standard streams on the null device, and make streams escape characters that they cannot encode.

    Files opened later then never get the descriptor of a standard stream.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def print_error_line(sentence: str) -> None:
    """Print a message on stderr as one line without control characters; do nothing if stderr is closed."""
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in sentence)
    with suppress(OSError, ValueError):
        print(plain, file=sys.stderr, flush=True)


@contextmanager
def reserve_output_stream(result: TextIO, alone: bool) -> Iterator[TextIO]:
    """Yield the stream for the result of a command: standard output or a duplicate of it.

    Args:
        result: standard output.
        alone: whether everything else that is written to standard output goes to stderr, as --json requires.
    """
    if not alone:
        with redirect_stdout(result):
            yield result
        return
    with redirect_stdout(sys.stderr):
        try:
            descriptor, other = result.fileno(), sys.stderr.fileno()
        except (OSError, ValueError):  # no file of the system, as in tests
            yield result
            return
        result.flush()
        copy = os.dup(descriptor)
        os.dup2(other, descriptor)
        with os.fdopen(copy, "w", encoding=result.encoding, errors=result.errors) as own:
            try:
                yield own
            finally:
                with suppress(OSError):
                    own.flush()
                os.dup2(copy, descriptor)


def redirect_stream_to_null(stream: TextIO) -> None:
    """Redirect a stream that cannot be written to the null device, so that flushing it raises no error again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
