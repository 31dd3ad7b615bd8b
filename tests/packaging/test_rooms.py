"""Imports run downward from room to room, without a circle (docs/design.md section 3, contracts in pyproject.toml)."""

import os
import shutil
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
    base = packages / "saddleforge" / "base"
    base.unlink()
    shutil.copytree(ROOT / "runtime" / "base", base)
    with (base / "errors.py").open("a", encoding="utf-8") as file:
        file.write("\n\ndef late():\n    from ..cli import app\n\n    return app\n")
    found = checked(packages)
    assert found.returncode == 1
    assert "saddleforge.base.errors -> saddleforge.cli.app" in found.stdout
