"""The catalogue of shipped models and the files of their solvers, without SymPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..base.errors import InputError, describe_unknown_name
from ..generated import catalogue as shipped

STRUCTURAL = ("tokens", "student_rank", "teacher_rank", "clusters")
GENERATED = Path(shipped.__file__).parent


def model_catalogue() -> dict[str, dict[str, Any]]:
    """Return a description of every shipped model by name: summary, source, and default and allowed sizes."""
    return shipped.CATALOGUE


def resolve_shared_file(path: Path) -> Path:
    """Return the path at which a generated file is stored: its own, or that of another solver's identical file."""
    if not path.is_relative_to(GENERATED):
        return path
    relative = path.relative_to(GENERATED).as_posix()
    return GENERATED / shipped.SHARED.get(relative, relative)


def solver_source_files(folder: Path) -> dict[str, Path]:
    """Return the actual paths of all Python files of a solver, by path relative to its folder, sorted."""
    own = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.py")}
    if folder.is_relative_to(GENERATED):
        below = folder.relative_to(GENERATED).as_posix() + "/"
        names = [name.removeprefix(below) for name in shipped.SHARED if name.startswith(below)]
        own |= {name: resolve_shared_file(folder / name) for name in names}
    return dict(sorted(own.items()))


def unknown_model_error(name: str) -> InputError:
    """Return the exception for a name that is neither that of a catalogue model nor the path of a file."""
    return InputError(f"{describe_unknown_name('model', name, model_catalogue())}, or the path of a .py file")
