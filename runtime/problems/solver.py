"""Loading of generated solvers, shipped or from the user's cache, without SymPy unless something must be derived."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import platformdirs

from ..errors import InputError
from ..files import write_whole
from ..progress import say, step
from .inputs import FromSource, Record, executing
from .surroundings import put_back

if TYPE_CHECKING:
    from ..derive.report.notebook import ModelDerivation


STRUCTURAL = ("tokens", "student_rank", "teacher_rank", "clusters")


def cache_folder() -> Path:
    """The user's cache folder for generated solvers and compiled code (override: SADDLEFORGE_CACHE)."""
    return Path(os.environ.get("SADDLEFORGE_CACHE") or platformdirs.user_cache_dir("saddleforge")).absolute()


@dataclass(frozen=True)
class Solver:
    """One generated solver: a folder of source files, imported part by part when first used."""

    name: str
    key: str
    folder: Path

    @cached_property
    def model(self) -> ModuleType:
        """Constants of the model, its parameters, starts and trained numbers, and the law of the tokens."""
        return self._load("model")

    @cached_property
    def channel(self) -> ModuleType:
        """Where the loss has no proximal map, what a finite temperature needs of it: features, loss and layout."""
        return self.thermal if self.model.NO_PROXIMAL_MAP else self._load("channel")

    @cached_property
    def bounds(self) -> ModuleType:
        """Interval bounds of the Moreau objective, by which proximal points are proved global."""
        return self._load("bounds")

    @cached_property
    def prior(self) -> ModuleType:
        """Prior side: conjugates from channel averages, overlaps from conjugates, Phi, responses of a row of W."""
        return self._load("prior")

    @cached_property
    def tangent(self) -> ModuleType:
        """How conjugates and overlaps answer to small changes, in NumPy: the parts of dG/du."""
        return self._load("tangent")

    @cached_property
    def thermal(self) -> ModuleType:
        """The channel at a finite temperature."""
        return self._load("thermal")

    @cached_property
    def metric(self) -> ModuleType:
        """Test error and linear baseline, as averages over nodes."""
        return self._load("metric")

    @cached_property
    def reference(self) -> ModuleType:
        """Channel, metric and prior for mpmath, at the precision in force."""
        return self._load("reference")

    @cached_property
    def bayes(self) -> ModuleType:
        """Bayes-optimal inference.

        Raises:
            InputError: the model has no output channel at this structure.
        """
        if not self.has_output:
            having = ", ".join(name for name, entry in catalogue().items() if entry["output"])
            raise InputError(
                f"{self.name} has no output channel at {self.key}, which Bayes-optimal inference needs; models that "
                f"have one are {having}, and any model file with output="
            )
        return self._load("bayes")

    @property
    def has_output(self) -> bool:
        """Whether the model says what is observed of the teacher's fields."""
        return (self.folder / "bayes.py").exists()

    @property
    def structure(self) -> dict[str, int]:
        """L, s, t and K by the names in STRUCTURAL, in a dict of its own."""
        return dict(self.model.STRUCTURE)

    @cached_property
    def digest(self) -> str:
        """Digest of the physics."""
        return self.model.DIGEST

    def compiled_before(self, part: str = "channel") -> bool:
        """Whether Numba's cache holds this part of the solver (used only to announce a compilation)."""
        folder = os.environ.get("NUMBA_CACHE_DIR") or _numba_folder()
        digest = hashlib.sha256((self.folder / f"{part}.py").read_bytes()).hexdigest()[:12]
        mark = Path(folder) / f"compiled-{self.name}-{self.key}-{digest}"
        if mark.exists():
            return True
        try:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        except OSError:
            pass
        return False

    def __reduce__(self) -> tuple[type[Solver], tuple[str, str, Path]]:
        # The modules are loaded anew where it is unpickled.
        return Solver, (self.name, self.key, self.folder)

    def _load(self, part: str) -> ModuleType:
        path = self.folder / f"{part}.py"
        text = path.read_bytes()
        name = f"saddleforge_solver_{self.name}_{self.key}_{hashlib.sha256(text).hexdigest()[:12]}_{part}"
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        _wait_asleep()
        try:
            with _numba_cache():
                spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module


def _numba_folder() -> Path:
    return cache_folder() / "numba"


@cache
def _wait_asleep() -> None:
    """Start Numba's threads such that they sleep while they wait, unless the environment says how they should.

    GNU OpenMP has them spin, which takes half of their speed from processes that share cores and gives nothing to one.
    """
    import numba

    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # read when the threads are launched
        try:
            numba.set_num_threads(numba.get_num_threads())
        finally:
            del os.environ["OMP_WAIT_POLICY"]


@contextmanager
def _numba_cache() -> Iterator[None]:
    """Compiled code goes to the user's cache folder, never beside the sources (which may be read-only)."""
    import numba

    config: Any = numba.config

    previous = config.CACHE_DIR
    try:
        if not os.environ.get("NUMBA_CACHE_DIR"):
            config.CACHE_DIR = str(_numba_folder())
        yield
    finally:
        config.CACHE_DIR = previous


def catalogue() -> dict[str, dict[str, Any]]:
    """Name -> summary, source and sizes (default, lowest, highest or None) of every shipped model."""
    from ..generated.catalogue import CATALOGUE

    return CATALOGUE


@put_back()
def load_solver(model: Any, **sizes: int) -> Solver:
    """The solver of a catalogue name, of a path to a user's model file, or of a Model object.

    Args:
        sizes: structural sizes that differ from the model's defaults.

    Raises:
        InputError: no such model or file, sizes not allowed, or the file does not define a well-posed model.
    """
    sizes = {name: int(value) for name, value in sizes.items()}
    if not isinstance(model, str | Path):
        return _generated(model, sizes)
    text = str(model)
    if text in catalogue():
        return _from_catalogue(text, sizes)
    if text.endswith(".py") or os.sep in text:
        return _from_file(Path(text), sizes)
    raise InputError(f"no model {text!r}: it is neither a path to a .py file nor one of {', '.join(catalogue())}")


def _from_catalogue(name: str, sizes: dict[str, int]) -> Solver:
    spec = catalogue()[name]["sizes"]
    complete = {}
    for size, (default, low, high) in spec.items():
        value = sizes.get(size, default)
        if value < low or (high is not None and value > high):
            allowed = f"{low}" if low == high else f"a whole number from {low}" + (f" to {high}" if high else "")
            raise InputError(f"{size} = {value}: {name} allows {allowed}")
        complete[size] = value
    unknown = set(sizes) - set(spec)
    if unknown:
        raise InputError(f"unknown size {unknown.pop()!r}; known are {', '.join(spec)}")
    key = "_".join(f"{letter}{complete[size]}" for letter, size in zip("lstk", STRUCTURAL, strict=True))
    import saddleforge.generated

    folder = Path(saddleforge.generated.__path__[0]) / name / key
    if (folder / "model.py").exists():
        return Solver(name, key, folder)
    folder = _cached_folder(name, key, _catalogue_source())
    if not folder.exists():
        _announce(name, key)
        from ..derive.catalogue import catalogue_model

        _write_solver(catalogue_model(name), complete, folder)
    return Solver(name, key, folder)


def _catalogue_source() -> bytes:
    """The sources of all models of the catalogue, as some import others."""
    import saddleforge.derive.models

    files = sorted(Path(saddleforge.derive.models.__path__[0]).glob("*.py"))
    return b"".join(file.name.encode() + file.read_bytes() for file in files)


def _from_file(path: Path, sizes: dict[str, int]) -> Solver:
    model_path(path)
    record = Record.of(path, repr((sorted(sizes.items()), _generator())), cache_folder() / "model-files")
    name, key, folder = record.recall() or ("", "", "")
    if folder and (cache_folder() / folder / "model.py").exists():
        return Solver(name, key, cache_folder() / folder)
    # The step comes first: the process that speaks for it is none of the model's doing.
    with step(f"executing the model file {path}"), executing() as inputs:
        solver = _generated(read_model_file(path), sizes)
    record.keep(inputs, [solver.name, solver.key, str(solver.folder.relative_to(cache_folder()))])
    return solver


@put_back()
def symbolic_model(model: Any) -> Any:
    """A Model of the catalogue or of a user's file; imports SymPy. A Model passes.

    Raises:
        InputError: there is no such model.
    """
    from ..derive.authoring.model import Model

    if isinstance(model, Model):
        return model
    if not isinstance(model, str | Path):
        raise InputError(f"a model is a catalogue name, a path or a Model, not {type(model).__name__}")
    if model in catalogue():
        from ..derive.catalogue import catalogue_model

        return catalogue_model(str(model))
    path = model_path(model)
    if path is None:
        raise InputError(f"no model {model!r}: it is neither a path to a .py file nor one of {', '.join(catalogue())}")
    with executing():
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


def derivation(model: Any, *, names: dict[str, str] | None = None, **sizes: int) -> ModelDerivation:
    """The derivation of a model from its replicated partition function.

    Args:
        model: a catalogue name, a path to a model file, or a Model.
        names: symbols of your own in LaTeX, {"theta": "T", "omega": "a"}: a parameter of the model, or else a symbol of
            the theory. Conjugates follow.
        sizes: tokens, student_rank, teacher_rank, clusters, where the model leaves them free.

    Raises:
        InputError: there is no such model or size.
        ModelError: the model is not well posed there, or a name is unknown or would stand for two things.
    """
    from ..derive.report.notebook import ModelDerivation

    loaded = symbolic_model(model)
    return ModelDerivation(loaded, _structure(loaded, sizes), names or {})


def read_model_file(path: Path) -> Any:
    """Execute a user's model file and return the one Model it defines; those who call it put back what that changed.

    Modules are found beside it, as a script finds them. What it does to the working directory, the environment,
    sys.path and sys.argv is undone (`surroundings`).

    Raises:
        InputError: the file fails, or defines none or several.
    """
    from ..derive.authoring.model import Model
    from ..derive.errors import ModelError

    name = f"saddleforge_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=FromSource(name, str(path)))
    if spec is None or spec.loader is None:
        raise InputError(f"model file {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except ModelError as error:
        raise InputError(f"model file {path}: {error}") from error
    except SystemExit as error:
        raise InputError(f"model file {path} ended the program (exit {error.code})") from error
    except Exception as error:
        raise InputError(f"model file {path} fails: {type(error).__name__}: {error}") from error
    models = [value for value in vars(module).values() if isinstance(value, Model)]
    if len(models) != 1:
        raise InputError(f"model file {path} defines {len(models)} models; exactly one is expected")
    return models[0]


def _structure(model: Any, sizes: dict[str, int]) -> Any:
    from ..derive.errors import ModelError

    try:
        return model.structure(**sizes)
    except ModelError as error:
        raise InputError(str(error)) from error


def _generated(model: Any, sizes: dict[str, int]) -> Solver:
    from ..derive.authoring.model import Model

    if not isinstance(model, Model):
        raise InputError(f"a model is a catalogue name, a path or a Model, not {type(model).__name__}")
    structure = _structure(model, sizes)
    folder = _cached_folder(model.name, structure.key, model.identity(structure).encode())
    if not folder.exists():
        _announce(model.name, structure.key)
        _write_solver(model, sizes, folder)
    return Solver(model.name, structure.key, folder)


def _cached_folder(name: str, key: str, source: bytes) -> Path:
    digest = hashlib.sha256(source + _generator().encode()).hexdigest()[:16]
    return cache_folder() / "solvers" / f"{name}-{digest}" / key


@cache
def _generator() -> str:
    """The generator's digest, which takes a part of a second, kept beside the solvers for the sources as they are."""
    from ..derive.digest import generator_digest, sources_digest

    kept = cache_folder() / f"generator-{sources_digest()}"
    with suppress(OSError):
        return kept.read_text(encoding="ascii")
    digest = generator_digest()
    with suppress(InputError):  # what cannot be kept is computed again
        write_whole(kept, digest)
    return digest


def _write_solver(model: Any, sizes: dict[str, int], folder: Path) -> None:
    """Generate into a temporary folder, then rename: a reader sees all files or none."""
    import shutil
    import tempfile

    from ..derive.emit.writer import generate
    from ..derive.errors import ModelError

    try:
        with step(f"deriving and generating the solver of {model.name}"):
            generated = generate(model, _structure(model, sizes))
    except (ModelError, TypeError) as error:
        raise InputError(f"model {model.name} cannot be generated: {error}") from error
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".writing-"))
        for file, text in generated.files.items():
            (temporary / file).write_text(text, encoding="utf-8")
        try:
            temporary.rename(folder)
        except OSError:
            shutil.rmtree(temporary)
            if not (folder / "model.py").exists():
                raise
    except OSError as error:
        raise InputError(f"cannot write the generated solver to {folder}: {error.strerror or error}") from error


def _announce(name: str, key: str) -> None:
    say(f"deriving and generating the solver of {name} at {key} (kept in {cache_folder()})")
