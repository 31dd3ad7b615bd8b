"""Models as their authors write them: a model file executed, its surroundings put back, or the catalogue's own.

Nothing here is imported with SymPy until a model is asked for: solving a catalogue model needs none.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..base.budget import sharp
from ..base.errors import InputError, TimeLimitError, describe_unknown, require_whole, told
from ..base.files import failing_as, finite
from ..derive.errors import ModelError
from .catalogue import catalogue, unknown_model
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
        raise InputError(f"a model is a catalogue name, a path or what @sf.model() makes, not {type(model).__name__}")
    if model in catalogue():
        from ..derive.catalogue import catalogue_model  # SymPy

        return catalogue_model(str(model))
    path, name = model_path(model)
    if path is None:
        raise unknown_model(str(model))
    with executing(), sharp():
        return read_model_file(path, name)


_PICKED = re.compile(r"(.*\.py):(\w+)", re.DOTALL)


def model_path(model: str | Path) -> tuple[Path | None, str]:
    """The path of a user's model file, checked to be readable, and which of its models; no path where it is none.

    `file.py:name` is the model of that name; without one the file has a single model, and the name is empty.

    Raises:
        InputError: the file cannot be read.
    """
    picked = _PICKED.fullmatch(str(model))
    text, name = picked.groups() if picked else (str(model), "")
    path = Path(text)
    if not (text.endswith(".py") or os.sep in text):
        return None, ""
    with failing_as(f"model file {path}"):
        finite(path, again=True).read_bytes()
    return path, name


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

    Example:
        >>> derived = sf.derivation("ridge_regression")
        >>> len(derived), derived[3].name
        (9, 'Overlaps and their conjugates')
        >>> all(check.passed for step, check in derived.check())
        True
    """
    from ..derive.report.notebook import ModelDerivation  # SymPy

    require_whole("rsb", rsb, 0, 2)
    loaded = symbolic_model(model)
    return ModelDerivation(loaded, structure_of(loaded, sizes), names or {}, rsb)


def read_model_file(path: Path, wanted: str = "") -> Any:
    """Execute a user's model file and return the Model of a name, or the one it defines.

    Those who call it put back what that changed. Modules are found beside it, as a script finds
    them. What it does to the working directory, the environment, sys.path and sys.argv is undone (`put_back`).

    Raises:
        InputError: the file fails, defines no model of that name, or without a name none or several.
    """
    from ..derive.authoring.mistakes import describe_call, line_of
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
    except (TimeLimitError, KeyboardInterrupt):
        raise
    except SystemExit as error:
        raise InputError(f"model file {path} ended the program (exit {error.code})") from error
    except BaseException as error:
        line = line_of(error, path)
        said = f"{told(error)}{describe_call(error)}"
        raise InputError(f"model file {path} fails{' in ' if line else ''}{line}: {said}") from error
    models = {key: value for key, value in vars(module).items() if isinstance(value, Model)}
    known = ", ".join(models) or "none"
    if wanted:
        if wanted not in models:
            raise InputError(describe_unknown("model", wanted, models, f"model file {path}"))
        return models[wanted]
    distinct = list({id(value): value for value in models.values()}.values())
    if len(distinct) != 1:
        which = f" ({known}): name one, as {path}:{next(iter(models), '')}"
        if not models:
            functions = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == name]
            which = f"; a model is a function below @sf.model(...), as {', '.join(functions) or 'its loss'} is not"
        raise InputError(f"model file {path} defines {len(distinct)} models{which}")
    return distinct[0]


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
