"""Two ways to run the command line: as a process, and in this one, where nothing has to be imported again."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from saddleforge.base import threads
from saddleforge.base.progress import set_quiet_mode
from saddleforge.cli import main

SCRIPT = Path(sys.executable).with_name("saddleforge")


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    status: int
    stdout: str
    stderr: str

    @property
    def sentence(self) -> str:
        """The last line of stderr."""
        return self.stderr.strip().splitlines()[-1]


@pytest.fixture
def run() -> Callable[..., Finished]:
    """run(*arguments, **environment): the console script as a process."""

    def process(*arguments: Any, **environment: str) -> Finished:
        done = subprocess.run(
            [SCRIPT, *map(str, arguments)],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    return process


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Finished]]:
    """call(*arguments): the same, inside this process, on one thread (tests share the cores)."""
    threads.set_thread_limit(1)

    def inside(*arguments: Any) -> Finished:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return Finished(left.value.code, printed.out, printed.err)

    yield inside
    set_quiet_mode(False)
    threads.set_thread_limit(threads.available_thread_count())


@pytest.fixture
def begins(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """begins(function): a function that is called where a command begins to compute, or to derive, in place of that."""
    # Imported first, so that no module keeps what is patched here as its own.
    for module in ("reproduce.jobs", "branches", "derive.emit.tree"):
        importlib.import_module(f"saddleforge.{module}")

    def patched(function: Callable[..., Any]) -> None:
        for entry in ("problems.problem.problem", "derive.catalogue.catalogue_model"):
            monkeypatch.setattr(f"saddleforge.{entry}", function)

    return patched
