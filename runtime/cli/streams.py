"""Standard streams as they are found: closed, full, of few characters, or written to by libraries and model files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TextIO


def opened() -> None:
    """Streams that are closed lead nowhere, and no file that is opened later takes their place; characters that one
    does not have are written as escapes."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def tell(sentence: str) -> None:
    """On standard error, where somebody may read it, in one line: what was typed may hold anything, as a terminal's
    commands."""
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in sentence)
    with suppress(OSError, ValueError):
        print(plain, file=sys.stderr, flush=True)


@contextmanager
def kept_for(result: TextIO, alone: bool) -> Iterator[TextIO]:
    """A stream to print the result on, `result` itself or one that leads where it does.

    Args:
        alone: whether nothing else may come there (--json): whatever is printed meanwhile, or written to its
            descriptor, goes to standard error.
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


def drop(stream: TextIO) -> None:
    """Lead a stream nowhere that cannot be written, so that what is left in its buffer is no error once more."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
