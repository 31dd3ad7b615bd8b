"""Imports run downward from room to room, without a circle (docs/design.md section 3, contracts in pyproject.toml)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def packages(tmp_path):
    """The folders under the names of the packages that they are, where `lint-imports` finds them."""
    package = tmp_path / "saddleforge"
    package.mkdir()
    for path in (*(ROOT / "runtime").iterdir(), ROOT / "derive", ROOT / "generated"):
        (package / path.name).symlink_to(path)
    return tmp_path


def checked(packages):
    command = [Path(sys.executable).parent / "lint-imports", "--config", ROOT / "pyproject.toml", "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    return subprocess.run(command, cwd=packages, env=environment, capture_output=True, text=True, check=False)


def test_every_room_imports_what_is_below_it(packages):
    found = checked(packages)
    assert found.returncode == 0, found.stdout


def test_an_arrow_upward_is_seen(packages):
    (packages / "saddleforge" / "errors.py").unlink()
    text = (ROOT / "runtime" / "errors.py").read_text(encoding="utf-8")
    text += "\n\ndef late():\n    from .cli import app\n\n    return app\n"
    (packages / "saddleforge" / "errors.py").write_text(text, encoding="utf-8")
    found = checked(packages)
    assert found.returncode == 1
    assert "saddleforge.errors -> saddleforge.cli.app" in found.stdout
