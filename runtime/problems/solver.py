"""Loading of generated solvers, shipped or from the user's cache, without SymPy unless something must be derived."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from ..base.budget import sharp
from ..base.cache import cache_folder
from ..base.errors import InputError, require_known, require_whole
from ..base.files import write_whole
from ..base.progress import say, step
from ..derive import models
from ..derive.digest import generator_digest, sources_digest
from ..derive.errors import ModelError
from .catalogue import GENERATED, STRUCTURAL, catalogue, generated_file, solver_files, unknown_model
from .compiled import FILES, code_folder, numba_cache
from .inputs import Record, executing
from .model_file import model_path, put_back, read_model_file, structure_of, symbolic_model
from .parts import (
    Bayes,
    Bounds,
    Channel,
    FlowEquations,
    Metric,
    ModelFacts,
    Prior,
    ProximalChannel,
    Reference,
    Tangent,
    ThermalChannel,
)


@dataclass(frozen=True)
class Solver:
    """One generated solver: a folder of source files, imported part by part when first used.

    Attributes:
        metadata: name of the file of its metadata, without suffix: models that differ in nothing else share a folder.
        base: the solver that has the rest, where this is one of its other metrics.
    """

    name: str
    key: str
    folder: Path
    metadata: str = "model"
    base: Solver | None = None

    @cached_property
    def model(self) -> ModelFacts:
        """Constants of the model, its parameters, starts and trained numbers, and the law of the tokens."""
        return cast(ModelFacts, self._load(self.metadata))

    @cached_property
    def reduced(self) -> dict[str, Solver]:
        """Of the problems that averages are those of, where these have fewer dimensions: of "loss" (over the channel)
        and "metric"."""
        folders = {integrand: self.folder / f"reduced_{integrand}" for integrand in ("loss", "metric")}
        found = {what: Solver(self.name, self.key, folder) for what, folder in folders.items() if folder.is_dir()}
        if self.base is not None and "loss" in self.base.reduced:
            found["loss"] = self.base.reduced["loss"]
        return found

    @cached_property
    def metrics(self) -> dict[str, Solver]:
        """By the names of the other metrics, where there are several: the same with that one for the test error."""
        base = self if self.base is None else self.base
        others = base.model.METRICS[1:]
        return {name: Solver(base.name, base.key, base.folder / f"metric_{name}", base=base) for name in others}

    @cached_property
    def channel(self) -> Channel:
        """What both temperatures have: features, loss and layout."""
        return self.thermal if self.model.NO_PROXIMAL_MAP else self.proximal

    @cached_property
    def proximal(self) -> ProximalChannel:
        """The channel at zero temperature.

        Raises:
            InputError: the loss has no proximal map.
        """
        if self.model.NO_PROXIMAL_MAP:
            raise InputError(self.no_proximal_map)
        return cast(ProximalChannel, self._load("channel"))

    @property
    def no_proximal_map(self) -> str:
        """Why there is none, where that is so, and what to do."""
        return (
            f"model {self.name}: {self.model.NO_PROXIMAL_MAP}; at a finite temperature it can be solved as it "
            "is: give inverse_temperature"
        )

    @cached_property
    def thermal(self) -> ThermalChannel:
        """The channel at a finite temperature."""
        return cast(ThermalChannel, self._load("thermal"))

    @cached_property
    def flow(self) -> FlowEquations:
        """One-pass descent of a model with a ridge."""
        return cast(FlowEquations, self._load("flow"))

    @cached_property
    def bounds(self) -> Bounds:
        """Interval bounds of the Moreau objective, by which proximal points are proved global."""
        return cast(Bounds, self._load("bounds"))

    @cached_property
    def prior(self) -> Prior:
        """Prior side: conjugates from channel averages, overlaps from conjugates, Phi, responses of a row of W."""
        return cast(Prior, self._load("prior"))

    @cached_property
    def tangent(self) -> Tangent:
        """How conjugates and overlaps answer to small changes, in NumPy: the parts of dG/du."""
        return cast(Tangent, self._load("tangent"))

    @cached_property
    def metric(self) -> Metric:
        """Whether there are a test error and a linear baseline."""
        return cast(Metric, self._load("metric"))

    @cached_property
    def reference(self) -> Reference:
        """Channel, metric and prior for mpmath, at the precision in force."""
        return cast(Reference, self._load("reference"))

    @cached_property
    def bayes(self) -> Bayes:
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
        return cast(Bayes, self._load("bayes"))

    @property
    def has_output(self) -> bool:
        """Whether the model says what is observed of the teacher's fields."""
        return self.path_of("bayes").exists()

    @property
    def structure(self) -> dict[str, int]:
        """L, s, t and K by the names in STRUCTURAL, in a dict of its own."""
        return dict(self.model.STRUCTURE)

    @cached_property
    def digest(self) -> str:
        """Digest of the physics."""
        return self.model.DIGEST

    @cached_property
    def files_digest(self) -> str:
        """Digest of its files: of what was generated, and by what."""
        digest = hashlib.sha256(self.metadata.encode())
        for name, path in solver_files(self.folder).items():
            digest.update(name.encode() + path.read_bytes())
        return digest.hexdigest()[:20]

    def compiled_before(self, part: str = "channel") -> bool:
        """Whether Numba's cache holds some of this part of the solver (used only to announce a compilation)."""
        # Of the problem in fewer dimensions where there is one, which is all that is compiled then.
        solvers = [each for each in (self, *self.reduced.values()) if each.path_of(part).exists()]
        return any(code_folder(*each.files_of(part)).is_dir() for each in solvers)

    def __reduce__(self) -> tuple[type[Solver], tuple[Any, ...]]:
        # The modules are loaded anew where it is unpickled.
        return Solver, (self.name, self.key, self.folder, self.metadata, self.base)

    def path_of(self, part: str) -> Path:
        """Return the file of a part: its own, or that of the solver that has the rest."""
        path = generated_file(self.folder / f"{part}.py")
        return path if self.base is None or path.exists() else self.base.path_of(part)

    def files_of(self, part: str) -> tuple[Path, ...]:
        """Return the files that make the module of a part: its functions of the model, then loops that call them."""
        loops = self.path_of(f"{part}_loops")
        return (self.path_of(part), loops) if loops.exists() else (self.path_of(part),)

    def _load(self, part: str) -> ModuleType:
        files = self.files_of(part)
        # Machine code finds its module by this name: files of the same code are one module.
        name = f"saddleforge_solver_{code_folder(*files).name.replace('-', '_')}"
        if name in sys.modules:
            return sys.modules[name]
        module = ModuleType(name)
        module.__file__ = str(files[0])
        setattr(module, FILES, files)
        sys.modules[name] = module
        try:
            with numba_cache():
                for file in files:
                    code = SourceFileLoader(name, str(file)).get_code(name)
                    assert code is not None
                    exec(code, module.__dict__)
        except BaseException:
            del sys.modules[name]
            raise
        return module


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
    path, name = model_path(text)
    if path is not None:
        return _from_file(path, name, sizes)
    raise unknown_model(text)


def _from_catalogue(name: str, sizes: dict[str, int]) -> Solver:
    spec = catalogue()[name]["sizes"]
    complete = {}
    for size, (default, low, high) in spec.items():
        value = sizes.get(size, default)
        require_whole(f"{size} of {name}", value, low, high)
        complete[size] = value
    for size in sizes:
        require_known("size", size, spec, name)
    key = "_".join(f"{letter}{complete[size]}" for letter, size in zip("lstk", STRUCTURAL, strict=True))
    folder = GENERATED / name / key
    if (folder / "model.py").exists():
        return Solver(name, key, folder)
    folder = _cached_folder(name, key, _catalogue_source())
    if not is_whole(folder, "model"):
        _announce(name, key)
        from ..derive.catalogue import catalogue_model  # SymPy

        _write_solver(catalogue_model(name), complete, folder)
    return Solver(name, key, folder)


def _catalogue_source() -> bytes:
    """The sources of all models of the catalogue, as some import others."""
    files = sorted(Path(models.__path__[0]).glob("*.py"))
    return b"".join(file.name.encode() + file.read_bytes() for file in files)


def _from_file(path: Path, wanted: str, sizes: dict[str, int]) -> Solver:
    record = Record.of(path, repr((wanted, sorted(sizes.items()), generator())), cache_folder() / "model-files")
    name, key, folder, metadata = record.recall() or ("", "", "", "")
    if folder and is_whole(cache_folder() / folder, "model") and is_whole(cache_folder() / folder, metadata):
        return Solver(name, key, cache_folder() / folder, metadata)
    with step(f"executing the model file {path}"), executing() as inputs:
        with sharp():
            model = read_model_file(path, wanted)
        solver = _generated(model, sizes)
    record.keep(inputs, [solver.name, solver.key, str(solver.folder.relative_to(cache_folder())), solver.metadata])
    return solver


def _generated(model: Any, sizes: dict[str, int]) -> Solver:
    model = symbolic_model(model)
    structure = structure_of(model, sizes)
    folder = _cached_folder(model.name, structure.key, model.physics(structure).encode())
    metadata = f"model_{model.words(structure)}"
    if not is_whole(folder, "model"):
        _announce(model.name, structure.key)
        _write_solver(model, sizes, folder)
    if not is_whole(folder, metadata):
        from ..derive.emit import writer  # SymPy

        text = writer.metadata(model, structure)
        write_whole(folder / f"{metadata}.py", text)
        write_whole(folder / f"{metadata}.json", _digests({f"{metadata}.py": text}))
    return Solver(model.name, structure.key, folder, metadata)


def _cached_folder(name: str, key: str, source: bytes) -> Path:
    digest = hashlib.sha256(source + generator().encode()).hexdigest()[:16]
    return cache_folder() / "solvers" / f"{name}-{digest}" / key


@cache
def generator() -> str:
    """The generator's digest, which takes a part of a second, kept beside the solvers for the sources as they are."""
    kept = cache_folder() / f"generator-{sources_digest()}"
    with suppress(OSError, ValueError):
        if re.fullmatch("[0-9a-f]+", known := kept.read_text(encoding="ascii")):
            return known
    digest = generator_digest()
    with suppress(InputError):  # what cannot be kept is computed again
        write_whole(kept, digest)
    return digest


def _write_solver(model: Any, sizes: dict[str, int], folder: Path) -> None:
    """Generate into a temporary folder, then rename: a reader sees all files or none."""
    from ..derive.emit.writer import generate  # SymPy

    try:
        with step(f"deriving and generating the solver of {model.name}"), sharp():
            written = generate(model, structure_of(model, sizes))
    except (ModelError, TypeError) as error:
        raise InputError(f"model {model.name} cannot be generated: {error}") from error
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".writing-"))
        try:
            for file, text in {**written.files, "model.json": _digests(written.files)}.items():
                (temporary / file).parent.mkdir(parents=True, exist_ok=True)
                (temporary / file).write_text(text, encoding="utf-8")
            if folder.exists():  # damaged
                folder.rename(temporary / "damaged")
            temporary.rename(folder)
            shutil.rmtree(folder / "damaged", ignore_errors=True)
        except OSError:
            if not is_whole(folder, "model"):  # by another process
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise InputError(
            f"cannot write the generated solver to {folder}: {error.strerror or error}; "
            "set SADDLEFORGE_CACHE to another folder"
        ) from error


def _digests(files: dict[str, str]) -> str:
    """What a folder of the cache is to hold, as `is_whole` reads it."""
    known = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
    return json.dumps({"generator": generator(), "files": known})


def is_whole(folder: Path, name: str) -> bool:
    """Whether all files written under a name (`_digests`) are there as they were: neither truncated nor tidied away."""
    try:
        digests = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))["files"]
        return all(hashlib.sha256((folder / file).read_bytes()).hexdigest() == known for file, known in digests.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _announce(name: str, key: str) -> None:
    say(f"deriving and generating the solver of {name} at {key} (kept in {cache_folder()})")
