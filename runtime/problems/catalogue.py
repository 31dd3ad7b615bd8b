"""The models that ship and where their solvers are, without SymPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..generated import catalogue as shipped

STRUCTURAL = ("tokens", "student_rank", "teacher_rank", "clusters")
GENERATED = Path(shipped.__file__).parent


def catalogue() -> dict[str, dict[str, Any]]:
    """Name -> summary, source and sizes (default, lowest, highest or None) of every shipped model."""
    return shipped.CATALOGUE
