"""The models that ship and where their solvers are, without SymPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import InputError, describe_unknown
from ..generated import catalogue as shipped

STRUCTURAL = ("tokens", "student_rank", "teacher_rank", "clusters")
GENERATED = Path(shipped.__file__).parent


def catalogue() -> dict[str, dict[str, Any]]:
    """Name -> summary, source and sizes (default, lowest, highest or None) of every shipped model."""
    return shipped.CATALOGUE


def unknown_model(name: str) -> InputError:
    """Return the error of what is neither a model of the catalogue nor a path to a file."""
    return InputError(f"{describe_unknown('model', name, catalogue())}, or the path of a .py file")
