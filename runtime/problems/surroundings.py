"""What a model file may do to the process that reads it, undone: physics has no working directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def put_back() -> Iterator[None]:
    """Put back the working directory, the environment, sys.path, sys.argv and the standard streams after the block."""
    try:
        folder: str | None = os.getcwd()
    except OSError:  # it is gone already
        folder = None
    environment, path, arguments = dict(os.environ), list(sys.path), list(sys.argv)
    streams = sys.stdin, sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
        sys.path[:], sys.argv[:] = path, arguments
        if dict(os.environ) != environment:
            os.environ.clear()
            os.environ.update(environment)
        with suppress(OSError):
            if folder is not None:
                os.chdir(folder)
