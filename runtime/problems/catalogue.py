"""The catalogue of shipped models and the files of their solvers, without SymPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..base.errors import InputError, describe_unknown_name
from ..generated import catalogue as shipped

STRUCTURAL = ("tokens", "student_rank", "teacher_rank", "clusters")
GENERATED = Path(shipped.__file__).parent


def model_catalogue() -> dict[str, dict[str, Any]]:
    """Return summary, source and sizes (default, lowest, highest or None) of every shipped model, by name."""
    return shipped.CATALOGUE


def resolve_shared_file(path: Path) -> Path:
    """Return where a generated file is stored: at its own path, or as the identical file of another solver."""
    if not path.is_relative_to(GENERATED):
        return path
    relative = path.relative_to(GENERATED).as_posix()
    return GENERATED / shipped.SHARED.get(relative, relative)


def solver_source_files(folder: Path) -> dict[str, Path]:
    """Return the Python files of a solver, sorted: path relative to its folder -> actual path."""
    own = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.py")}
    if folder.is_relative_to(GENERATED):
        below = folder.relative_to(GENERATED).as_posix() + "/"
        names = [name.removeprefix(below) for name in shipped.SHARED if name.startswith(below)]
        own |= {name: resolve_shared_file(folder / name) for name in names}
    return dict(sorted(own.items()))


def unknown_model_error(name: str) -> InputError:
    """Return the InputError for a name that is neither a catalogue model nor a path to a file."""
    return InputError(f"{describe_unknown_name('model', name, model_catalogue())}, or the path of a .py file")
