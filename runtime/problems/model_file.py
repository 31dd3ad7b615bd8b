"""Models as their authors write them: a model file executed, its surroundings put back, or the catalogue's own.

Nothing here is imported with SymPy until a model is asked for: solving a catalogue model needs none.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..budget import sharp
from ..derive.errors import ModelError
from ..errors import InputError, TimeLimitError
from .catalogue import catalogue
from .inputs import FromSource, executing

if TYPE_CHECKING:
    from ..derive.report.notebook import ModelDerivation


@contextmanager
def put_back() -> Iterator[None]:
    """Put back the working directory, the environment, sys.path, sys.argv and the standard streams after the block.

    What a model file may do to the process that reads it is undone: physics has no working directory.
    """
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


@put_back()
def symbolic_model(model: Any) -> Any:
    """A Model of the catalogue or of a user's file; imports SymPy. A Model passes.

    Raises:
        InputError: there is no such model.
    """
    from ..derive.authoring.model import Model  # SymPy

    if isinstance(model, Model):
        return model
    if not isinstance(model, str | Path):
        raise InputError(f"a model is a catalogue name, a path or a Model, not {type(model).__name__}")
    if model in catalogue():
        from ..derive.catalogue import catalogue_model  # SymPy

        return catalogue_model(str(model))
    path = model_path(model)
    if path is None:
        raise InputError(f"no model {model!r}: it is neither a path to a .py file nor one of {', '.join(catalogue())}")
    with executing(), sharp():
        return read_model_file(path)


def model_path(model: str | Path) -> Path | None:
    """The path of a user's model file, checked to be readable; None where the name is no path.

    Raises:
        InputError: the file cannot be read.
    """
    name, path = str(model), Path(model)
    if not (name.endswith(".py") or os.sep in name):
        return None
    try:
        path.read_bytes()
    except OSError as error:
        raise InputError(f"model file {path}: {error.strerror or error}") from error
    return path


def derivation(model: Any, *, names: dict[str, str] | None = None, rsb: int = 0, **sizes: int) -> ModelDerivation:
    """The derivation of a model from its replicated partition function.

    Args:
        model: a catalogue name, a path to a model file, or a Model.
        names: symbols of your own in LaTeX, {"theta": "T", "omega": "a"}: a parameter of the model, or else a symbol of
            the theory. Conjugates follow.
        rsb: how often the steps break replica symmetry, 0, 1 or 2.
        sizes: tokens, student_rank, teacher_rank, clusters, where the model leaves them free.

    Raises:
        InputError: there is no such model or size, or rsb is none of 0, 1 and 2.
        ModelError: the model is not well posed there, or a name is unknown or would stand for two things.
    """
    from ..derive.report.notebook import ModelDerivation  # SymPy

    if rsb not in (0, 1, 2):
        raise InputError(f"rsb = {rsb}: 0 (replica symmetry), 1 or 2 (steps of breaking it) is expected")
    loaded = symbolic_model(model)
    return ModelDerivation(loaded, structure_of(loaded, sizes), names or {}, rsb)


def read_model_file(path: Path) -> Any:
    """Execute a user's model file and return the one Model it defines; those who call it put back what that changed.

    Modules are found beside it, as a script finds them. What it does to the working directory, the environment,
    sys.path and sys.argv is undone (`put_back`).

    Raises:
        InputError: the file fails, or defines none or several.
    """
    from ..derive.authoring.model import Model  # SymPy

    name = f"saddleforge_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=FromSource(name, str(path)))
    if spec is None or spec.loader is None:
        raise InputError(f"model file {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        with _not_ended():
            spec.loader.exec_module(module)
    except ModelError as error:
        raise InputError(f"model file {path}: {error}") from error
    except TimeLimitError:
        raise
    except SystemExit as error:
        raise InputError(f"model file {path} ended the program (exit {error.code})") from error
    except Exception as error:
        raise InputError(f"model file {path} fails: {type(error).__name__}: {error}") from error
    models = [value for value in vars(module).values() if isinstance(value, Model)]
    if len(models) != 1:
        raise InputError(f"model file {path} defines {len(models)} models; exactly one is expected")
    return models[0]


@contextmanager
def _not_ended() -> Iterator[None]:
    """What ends a process without a word (os._exit, os.abort) raises SystemExit in a model file, as exit does."""

    def ended(code: int = 1) -> NoReturn:
        raise SystemExit(code)

    kept = {name: getattr(os, name) for name in ("_exit", "abort")}
    for name in kept:
        setattr(os, name, ended)
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(os, name, function)


def structure_of(model: Any, sizes: dict[str, int]) -> Any:
    """A Model's structure at these sizes; InputError where it allows no such."""
    try:
        return model.structure(**sizes)
    except ModelError as error:
        raise InputError(str(error)) from error
