"""Symbolic models: execution of model files, with the state of the process restored, and models of the catalogue.

SymPy is imported only when a symbolic model is needed: solving a catalogue model needs none.
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

from ..base.budget import interrupt_at_time_limit
from ..base.errors import InputError, TimeLimitError, describe_exception, describe_unknown_name, require_whole_number
from ..base.files import convert_os_errors, require_readable_file
from ..derive.errors import ModelError
from .catalogue import model_catalogue, unknown_model_error
from .inputs import SourceOnlyLoader, record_model_file_inputs

if TYPE_CHECKING:
    from ..derive.report.notebook import ModelDerivation


@contextmanager
def restore_process_state() -> Iterator[None]:
    """Restore the working directory, the environment, sys.path, sys.argv and the standard streams after the block.

    This undoes changes that a model file makes to the process that executes it.
    """
    try:
        folder: str | None = os.getcwd()
    except OSError:  # it no longer exists
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


@restore_process_state()
def load_symbolic_model(model: Any) -> Any:
    """Return the symbolic Model with a catalogue name or in a model file; a Model is returned unchanged.

    Raises:
        InputError: there is no such model.
    """
    from ..derive.authoring.model import Model  # SymPy

    if isinstance(model, Model):
        return model
    if not isinstance(model, str | Path):
        raise InputError(
            f"a model must be a catalogue name, a path or a Model (@sf.model()), not {type(model).__name__}"
        )
    if model in model_catalogue():
        from ..derive.catalogue import catalogue_model  # SymPy

        return catalogue_model(str(model))
    path, name = parse_model_path(model)
    if path is None:
        raise unknown_model_error(str(model))
    with record_model_file_inputs(), interrupt_at_time_limit():
        return execute_model_file(path, name)


_FILE_AND_NAME = re.compile(r"(.*\.py):(\w+)", re.DOTALL)


def parse_model_path(model: str | Path) -> tuple[Path | None, str]:
    """Split `FILE.py:NAME` into the path of a model file and the name of a model in it.

    Without `:NAME` the name is empty. For text that is no path, such as a catalogue name, the path is None.

    Raises:
        InputError: the file cannot be read.
    """
    picked = _FILE_AND_NAME.fullmatch(str(model))
    text, name = picked.groups() if picked else (str(model), "")
    path = Path(text)
    if not (text.endswith(".py") or os.sep in text):
        return None, ""
    with convert_os_errors(f"model file {path}"):
        require_readable_file(path, again=True).read_bytes()
    return path, name


def derivation(model: Any, *, names: dict[str, str] | None = None, rsb: int = 0, **sizes: int) -> ModelDerivation:
    """Return the derivation of a model from its replicated partition function.

    Args:
        model: a catalogue name, a path to a model file, or a Model.
        names: symbols of your own in LaTeX for parameters of the model or symbols of the theory, such as
            {"theta": "T", "omega": "a"}. Conjugates follow.
        rsb: number of steps of replica symmetry breaking, 0, 1 or 2.
        sizes: tokens, student_rank, teacher_rank, clusters, if the model leaves them free.

    Raises:
        InputError: there is no such model or size, or rsb is not 0, 1 or 2.
        ModelError: the model is not well posed at these sizes, or a symbol is unknown or would stand for two things.

    Example:
        >>> derived = sf.derivation("ridge_regression")
        >>> len(derived), derived[3].name
        (9, 'Overlaps and their conjugates')
        >>> all(check.passed for step, check in derived.check())
        True
    """
    from ..derive.report.notebook import ModelDerivation  # SymPy

    require_whole_number("rsb", rsb, 0, 2)
    loaded = load_symbolic_model(model)
    return ModelDerivation(loaded, model_structure_at_sizes(loaded, sizes), names or {}, rsb)


def execute_model_file(path: Path, wanted: str = "") -> Any:
    """Execute a user's model file and return one of its models.

    Modules are imported from its folder, as by a script. The caller restores the process (`restore_process_state`).

    Args:
        path: path of the file.
        wanted: name of the model; empty if the file defines a single one.

    Raises:
        InputError: the file fails, has no model of that name or, if no name is given, not exactly one model.
    """
    from ..derive.authoring.mistakes import describe_expected_call, describe_last_error_line
    from ..derive.authoring.model import Model  # SymPy

    name = f"saddleforge_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=SourceOnlyLoader(name, str(path)))
    if spec is None or spec.loader is None:
        raise InputError(f"model file {path} is not a Python file; give a file with the suffix .py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        with _make_exit_raise_exception():
            spec.loader.exec_module(module)
    except ModelError as error:
        raise InputError(f"model file {path}: {error}") from error
    except (TimeLimitError, KeyboardInterrupt):
        raise
    except SystemExit as error:
        raise InputError(f"model file {path} ended the program (exit {error.code}); remove that call") from error
    except BaseException as error:
        line = describe_last_error_line(error, path)
        reason = f"{describe_exception(error)}{describe_expected_call(error)}"
        raise InputError(f"model file {path} fails{' in ' if line else ''}{line}: {reason}") from error
    models = {key: value for key, value in vars(module).items() if isinstance(value, Model)}
    known = ", ".join(models) or "none"
    if wanted:
        if wanted not in models:
            raise InputError(describe_unknown_name("model", wanted, models, f"model file {path}"))
        return models[wanted]
    distinct = list({id(value): value for value in models.values()}.values())
    if len(distinct) != 1:
        advice = f" ({known}): name one, as {path}:{next(iter(models), '')}"
        if not models:
            functions = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == name]
            advice = f"; a model is a function below @sf.model(...), as {', '.join(functions) or 'its loss'} is not"
        raise InputError(f"model file {path} defines {len(distinct)} models{advice}")
    return distinct[0]


@contextmanager
def _make_exit_raise_exception() -> Iterator[None]:
    """Make os._exit and os.abort raise SystemExit during this block instead of ending the process."""

    def raise_system_exit(code: int = 1) -> NoReturn:
        raise SystemExit(code)

    kept = {name: getattr(os, name) for name in ("_exit", "abort")}
    for name in kept:
        setattr(os, name, raise_system_exit)
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(os, name, function)


def model_structure_at_sizes(model: Any, sizes: dict[str, int]) -> Any:
    """Return the complete structural sizes of a symbolic Model after changing some of them.

    Args:
        model: a symbolic Model.
        sizes: numbers of tokens, columns or clusters to change, by name.

    Raises:
        InputError: the model does not allow these sizes.
    """
    try:
        return model.structure(**sizes)
    except ModelError as error:
        raise InputError(str(error)) from error
