"""Loading of generated solvers, shipped or in the user's cache, without SymPy unless one must be derived."""

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

from ..base.budget import interrupt_at_limit
from ..base.cache import cache_folder
from ..base.errors import InputError, require_known, require_whole
from ..base.files import write_atomically
from ..base.progress import print_message, progress_step
from ..derive import models
from ..derive.digest import generator_digest, sources_digest
from ..derive.errors import ModelError
from .catalogue import GENERATED, STRUCTURAL, catalogue, generated_file, solver_files, unknown_model_error
from .compiled import FILES, code_folder, use_numba_cache
from .inputs import ExecutionRecord, record_execution
from .model_file import model_structure, parse_model_path, read_model_file, restore_process_state, symbolic_model
from .solver_types import (
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
        name: of the model.
        key: of the structural sizes, as l2_s1_t1_k1.
        folder: of its files.
        metadata: name of its metadata file, without suffix: models that differ only in metadata share a folder.
        base: for the solver of a further metric, the solver that has all other parts.
    """

    name: str
    key: str
    folder: Path
    metadata: str = "model"
    base: Solver | None = None

    @cached_property
    def model(self) -> ModelFacts:
        """Metadata of the model: parameters, starts, trained numbers, and the law of the tokens."""
        return cast(ModelFacts, self._load_part(self.metadata))

    @cached_property
    def reduced(self) -> dict[str, Solver]:
        """Solvers of the reduced problems that averages of "loss" or "metric" are taken of, if of fewer dimensions."""
        folders = {integrand: self.folder / f"reduced_{integrand}" for integrand in ("loss", "metric")}
        found = {what: Solver(self.name, self.key, folder) for what, folder in folders.items() if folder.is_dir()}
        if self.base is not None and "loss" in self.base.reduced:
            found["loss"] = self.base.reduced["loss"]
        return found

    @cached_property
    def metrics(self) -> dict[str, Solver]:
        """Solvers with another metric for the test error, by name of the metric; empty for a single metric."""
        base = self if self.base is None else self.base
        others = base.model.METRICS[1:]
        return {name: Solver(base.name, base.key, base.folder / f"metric_{name}", base=base) for name in others}

    @cached_property
    def channel(self) -> Channel:
        """The channel parts common to both temperatures: features, loss and layout of averages."""
        return self.thermal if self.model.NO_PROXIMAL_MAP else self.proximal

    @cached_property
    def proximal(self) -> ProximalChannel:
        """The channel at zero temperature.

        Raises:
            InputError: the loss has no proximal map.
        """
        if self.model.NO_PROXIMAL_MAP:
            raise InputError(self.no_proximal_map_message)
        return cast(ProximalChannel, self._load_part("channel"))

    @property
    def no_proximal_map_message(self) -> str:
        """Error message for a loss without a proximal map: the reason and what to do."""
        return (
            f"model {self.name}: {self.model.NO_PROXIMAL_MAP}; at a finite temperature it can be solved as it "
            "is: give inverse_temperature"
        )

    @cached_property
    def thermal(self) -> ThermalChannel:
        """The channel at a finite temperature."""
        return cast(ThermalChannel, self._load_part("thermal"))

    @cached_property
    def flow(self) -> FlowEquations:
        """Equations of one-pass gradient descent, for a model with a ridge."""
        return cast(FlowEquations, self._load_part("flow"))

    @cached_property
    def bounds(self) -> Bounds:
        """Interval bounds of the Moreau objective, which prove proximal points to be global minima."""
        return cast(Bounds, self._load_part("bounds"))

    @cached_property
    def prior(self) -> Prior:
        """The prior side: conjugates from channel averages, overlaps from conjugates, Phi, responses of a row of W."""
        return cast(Prior, self._load_part("prior"))

    @cached_property
    def tangent(self) -> Tangent:
        """Derivatives of conjugates and overlaps, in NumPy: the factors of dG/du."""
        return cast(Tangent, self._load_part("tangent"))

    @cached_property
    def metric(self) -> Metric:
        """The test error and the linear baseline, if the model has them."""
        return cast(Metric, self._load_part("metric"))

    @cached_property
    def reference(self) -> Reference:
        """Channel, metric and prior in mpmath, at its current precision."""
        return cast(Reference, self._load_part("reference"))

    @cached_property
    def bayes(self) -> Bayes:
        """Equations of Bayes-optimal inference.

        Raises:
            InputError: the model has no output channel at this structure.
        """
        if not self.has_output:
            having = ", ".join(name for name, entry in catalogue().items() if entry["output"])
            raise InputError(
                f"{self.name} has no output channel at {self.key}, which Bayes-optimal inference needs; models that "
                f"have one are {having}, and any model file with output="
            )
        return cast(Bayes, self._load_part("bayes"))

    @property
    def has_output(self) -> bool:
        """Whether the model declares an output channel, the law of observations given the teacher's fields."""
        return self.part_path("bayes").exists()

    @property
    def structure(self) -> dict[str, int]:
        """Structural sizes L, s, t and K by the names in STRUCTURAL, as a new dict."""
        return dict(self.model.STRUCTURE)

    @cached_property
    def digest(self) -> str:
        """Digest of the physics."""
        return self.model.DIGEST

    @cached_property
    def files_digest(self) -> str:
        """Digest of its files, which also identifies the generator."""
        digest = hashlib.sha256(self.metadata.encode())
        for name, path in solver_files(self.folder).items():
            digest.update(name.encode() + path.read_bytes())
        return digest.hexdigest()[:20]

    def is_compiled(self, part: str = "channel") -> bool:
        """Return whether Numba's cache holds machine code of this part (used only to announce a compilation)."""
        # If there is a reduced problem, only its code is compiled.
        solvers = [each for each in (self, *self.reduced.values()) if each.part_path(part).exists()]
        return any(code_folder(*each.part_files(part)).is_dir() for each in solvers)

    def __reduce__(self) -> tuple[type[Solver], tuple[Any, ...]]:
        # Modules are loaded again when it is unpickled.
        return Solver, (self.name, self.key, self.folder, self.metadata, self.base)

    def part_path(self, part: str) -> Path:
        """Return the file of a part: its own, or that of the base solver."""
        path = generated_file(self.folder / f"{part}.py")
        return path if self.base is None or path.exists() else self.base.part_path(part)

    def part_files(self, part: str) -> tuple[Path, ...]:
        """Return the files that form the module of a part: functions of the model, then loops that call them."""
        loops = self.part_path(f"{part}_loops")
        return (self.part_path(part), loops) if loops.exists() else (self.part_path(part),)

    def _load_part(self, part: str) -> ModuleType:
        files = self.part_files(part)
        # Machine code finds its module by this name: files of the same code are one module.
        name = f"saddleforge_solver_{code_folder(*files).name.replace('-', '_')}"
        if name in sys.modules:
            return sys.modules[name]
        module = ModuleType(name)
        module.__file__ = str(files[0])
        setattr(module, FILES, files)
        sys.modules[name] = module
        try:
            with use_numba_cache():
                for file in files:
                    code = SourceFileLoader(name, str(file)).get_code(name)
                    assert code is not None
                    exec(code, module.__dict__)
        except BaseException:
            del sys.modules[name]
            raise
        return module


@restore_process_state()
def load_solver(model: Any, **sizes: int) -> Solver:
    """Return the solver of a model, generated if it is neither shipped nor cached.

    Args:
        model: a catalogue name, a path to a model file, or a Model.
        sizes: structural sizes that differ from the model's defaults.

    Raises:
        InputError: there is no such model or file, sizes are not allowed, or the model is not well posed.
    """
    sizes = {name: int(value) for name, value in sizes.items()}
    if not isinstance(model, str | Path):
        return _load_or_generate(model, sizes)
    text = str(model)
    if text in catalogue():
        return _load_from_catalogue(text, sizes)
    path, name = parse_model_path(text)
    if path is not None:
        return _load_from_file(path, name, sizes)
    raise unknown_model_error(text)


def _load_from_catalogue(name: str, sizes: dict[str, int]) -> Solver:
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
    folder = _solver_cache_folder(name, key, _catalogue_sources())
    if not is_complete(folder, "model"):
        _announce_generation(name, key)
        from ..derive.catalogue import catalogue_model  # SymPy

        _write_solver(catalogue_model(name), complete, folder)
    return Solver(name, key, folder)


def _catalogue_sources() -> bytes:
    """Return the sources of all models of the catalogue, as some import others."""
    files = sorted(Path(models.__path__[0]).glob("*.py"))
    return b"".join(file.name.encode() + file.read_bytes() for file in files)


def _load_from_file(path: Path, wanted: str, sizes: dict[str, int]) -> Solver:
    record = ExecutionRecord.for_file(
        path, repr((wanted, sorted(sizes.items()), cached_generator_digest())), cache_folder() / "model-files"
    )
    name, key, folder, metadata = record.load_answer() or ("", "", "", "")
    if folder and is_complete(cache_folder() / folder, "model") and is_complete(cache_folder() / folder, metadata):
        return Solver(name, key, cache_folder() / folder, metadata)
    with progress_step(f"executing the model file {path}"), record_execution() as inputs:
        with interrupt_at_limit():
            model = read_model_file(path, wanted)
        solver = _load_or_generate(model, sizes)
    record.save_answer(
        inputs, [solver.name, solver.key, str(solver.folder.relative_to(cache_folder())), solver.metadata]
    )
    return solver


def _load_or_generate(model: Any, sizes: dict[str, int]) -> Solver:
    model = symbolic_model(model)
    structure = model_structure(model, sizes)
    folder = _solver_cache_folder(model.name, structure.key, model.physics_digest(structure).encode())
    metadata = f"model_{model.metadata_digest(structure)}"
    if not is_complete(folder, "model"):
        _announce_generation(model.name, structure.key)
        _write_solver(model, sizes, folder)
    if not is_complete(folder, metadata):
        from ..derive.emit import writer  # SymPy

        text = writer.metadata(model, structure)
        write_atomically(folder / f"{metadata}.py", text)
        write_atomically(folder / f"{metadata}.json", _digests_as_json({f"{metadata}.py": text}))
    return Solver(model.name, structure.key, folder, metadata)


def _solver_cache_folder(name: str, key: str, source: bytes) -> Path:
    digest = hashlib.sha256(source + cached_generator_digest().encode()).hexdigest()[:16]
    return cache_folder() / "solvers" / f"{name}-{digest}" / key


@cache
def cached_generator_digest() -> str:
    """Return the digest of the generator, cached in a file named by the digest of its sources."""
    kept = cache_folder() / f"generator-{sources_digest()}"
    with suppress(OSError, ValueError):
        if re.fullmatch("[0-9a-f]+", known := kept.read_text(encoding="ascii")):
            return known
    digest = generator_digest()
    with suppress(InputError):  # if it cannot be cached it is computed again
        write_atomically(kept, digest)
    return digest


def _write_solver(model: Any, sizes: dict[str, int], folder: Path) -> None:
    """Generate a solver in a temporary folder, then rename it: a reader sees all files or none."""
    from ..derive.emit.writer import generate  # SymPy

    try:
        with progress_step(f"deriving and generating the solver of {model.name}"), interrupt_at_limit():
            written = generate(model, model_structure(model, sizes))
    except (ModelError, TypeError) as error:
        raise InputError(f"model {model.name} cannot be generated: {error}") from error
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".writing-"))
        try:
            for file, text in {**written.files, "model.json": _digests_as_json(written.files)}.items():
                (temporary / file).parent.mkdir(parents=True, exist_ok=True)
                (temporary / file).write_text(text, encoding="utf-8")
            if folder.exists():  # damaged
                folder.rename(temporary / "damaged")
            temporary.rename(folder)
            shutil.rmtree(folder / "damaged", ignore_errors=True)
        except OSError:
            if not is_complete(folder, "model"):  # by another process
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise InputError(
            f"cannot write the generated solver to {folder}: {error.strerror or error}; "
            "set SADDLEFORGE_CACHE to another folder"
        ) from error


def _digests_as_json(files: dict[str, str]) -> str:
    """Return the digests of files written to a folder of the cache, which `is_complete` checks, as JSON."""
    known = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
    return json.dumps({"generator": cached_generator_digest(), "files": known})


def is_complete(folder: Path, name: str) -> bool:
    """Return whether all files listed in a file of digests are present and unchanged.

    Args:
        folder: of the solver.
        name: of the file of digests (`_digests_as_json`), without suffix.
    """
    try:
        digests = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))["files"]
        return all(hashlib.sha256((folder / file).read_bytes()).hexdigest() == known for file, known in digests.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _announce_generation(name: str, key: str) -> None:
    print_message(f"deriving and generating the solver of {name} at {key} (kept in {cache_folder()})")
