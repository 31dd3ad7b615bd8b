"""The models that ship, without SymPy."""

from __future__ import annotations

from typing import Any

from ..generated.catalogue import CATALOGUE

STRUCTURAL = ("tokens", "student_rank", "teacher_rank", "clusters")


def catalogue() -> dict[str, dict[str, Any]]:
    """Name -> summary, source and sizes (default, lowest, highest or None) of every shipped model."""
    return CATALOGUE
