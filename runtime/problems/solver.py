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

from ..base.budget import interrupt_at_time_limit
from ..base.cache import cache_folder
from ..base.errors import InputError, require_known_name, require_whole_number
from ..base.files import write_atomically
from ..base.progress import print_message, progress_step
from ..derive import models
from ..derive.digest import all_sources_digest, generator_code_digest
from ..derive.errors import ModelError
from .catalogue import (
    GENERATED,
    STRUCTURAL,
    model_catalogue,
    resolve_shared_file,
    solver_source_files,
    unknown_model_error,
)
from .compiled import FILES, machine_code_folder, use_numba_cache
from .inputs import CachedModelExecution, record_model_file_inputs
from .model_file import (
    execute_model_file,
    load_symbolic_model,
    model_structure_at_sizes,
    parse_model_path,
    restore_process_state,
)
from .solver_types import (
    BayesFunctions,
    ChannelFunctions,
    FlowEquations,
    LinearResponseFunctions,
    MetricFunctions,
    ModelMetadata,
    MoreauBoundFunctions,
    MultiprecisionFunctions,
    PriorFunctions,
    ProximalChannelFunctions,
    ThermalChannelFunctions,
)


@dataclass(frozen=True)
class Solver:
    """One generated solver: a folder of source files, imported part by part when first used.

    Attributes:
        name: name of the model.
        key: structural sizes in short, as l2_s1_t1_k1.
        folder: folder of its files.
        metadata: name of its metadata file, without suffix: models that differ only in metadata share a folder.
        base: for the solver of a further metric, the solver that has all other parts.
    """

    name: str
    key: str
    folder: Path
    metadata: str = "model"
    base: Solver | None = None

    @cached_property
    def model(self) -> ModelMetadata:
        """Metadata of the model: parameters, starts, trained numbers, and the law of the tokens."""
        return cast(ModelMetadata, self._load_part_module(self.metadata))

    @cached_property
    def reduced_solvers(self) -> dict[str, Solver]:
        """Solvers of the reduced problems that averages of "loss" or "metric" are taken of, if of fewer dimensions."""
        folders = {integrand: self.folder / f"reduced_{integrand}" for integrand in ("loss", "metric")}
        found = {what: Solver(self.name, self.key, folder) for what, folder in folders.items() if folder.is_dir()}
        if self.base is not None and "loss" in self.base.reduced_solvers:
            found["loss"] = self.base.reduced_solvers["loss"]
        return found

    @cached_property
    def metric_solvers(self) -> dict[str, Solver]:
        """Solvers with another metric for the test error, by name of the metric; empty for a single metric."""
        base = self if self.base is None else self.base
        others = base.model.METRICS[1:]
        return {name: Solver(base.name, base.key, base.folder / f"metric_{name}", base=base) for name in others}

    @cached_property
    def channel(self) -> ChannelFunctions:
        """The channel parts common to both temperatures: features, loss and layout of averages."""
        return self.thermal_channel if self.model.NO_PROXIMAL_MAP else self.proximal

    @cached_property
    def proximal(self) -> ProximalChannelFunctions:
        """The channel at zero temperature.

        Raises:
            InputError: the loss has no proximal map.
        """
        if self.model.NO_PROXIMAL_MAP:
            raise InputError(self.no_proximal_map_message)
        return cast(ProximalChannelFunctions, self._load_part_module("channel"))

    @property
    def no_proximal_map_message(self) -> str:
        """Error message for a loss without a proximal map: the reason and what to do."""
        return (
            f"model {self.name}: {self.model.NO_PROXIMAL_MAP}; at a finite temperature it can be solved as it "
            "is: give inverse_temperature"
        )

    @cached_property
    def thermal_channel(self) -> ThermalChannelFunctions:
        """The channel at a finite temperature."""
        return cast(ThermalChannelFunctions, self._load_part_module("thermal"))

    @cached_property
    def flow_equations(self) -> FlowEquations:
        """Equations of one-pass gradient descent, for a model with a ridge."""
        return cast(FlowEquations, self._load_part_module("flow"))

    @cached_property
    def moreau_bounds(self) -> MoreauBoundFunctions:
        """Interval bounds of the Moreau objective, which prove proximal points to be global minima."""
        return cast(MoreauBoundFunctions, self._load_part_module("bounds"))

    @cached_property
    def prior_functions(self) -> PriorFunctions:
        """Equations of the weights: conjugates, overlaps, free entropy and responses of a row of W."""
        return cast(PriorFunctions, self._load_part_module("prior"))

    @cached_property
    def linear_response(self) -> LinearResponseFunctions:
        """Derivatives of conjugates and overlaps, in NumPy: the factors of dG/du."""
        return cast(LinearResponseFunctions, self._load_part_module("tangent"))

    @cached_property
    def metric_functions(self) -> MetricFunctions:
        """The test error and the linear baseline, if the model has them."""
        return cast(MetricFunctions, self._load_part_module("metric"))

    @cached_property
    def multiprecision_functions(self) -> MultiprecisionFunctions:
        """Channel, metric and prior in mpmath, at its current precision."""
        return cast(MultiprecisionFunctions, self._load_part_module("reference"))

    @cached_property
    def bayes_functions(self) -> BayesFunctions:
        """Equations of Bayes-optimal inference.

        Raises:
            InputError: the model has no output channel at this structure.
        """
        if not self.has_output_channel:
            having = ", ".join(name for name, entry in model_catalogue().items() if entry["output"])
            raise InputError(
                f"{self.name} has no output channel at {self.key}, which Bayes-optimal inference needs; models that "
                f"have one are {having}, and any model file with output="
            )
        return cast(BayesFunctions, self._load_part_module("bayes"))

    @property
    def has_output_channel(self) -> bool:
        """Whether the model declares an output channel, the law of observations given the teacher's fields."""
        return self.part_source_file("bayes").exists()

    @property
    def structural_sizes(self) -> dict[str, int]:
        """Structural sizes L, s, t and K by the names in STRUCTURAL, as a new dict."""
        return dict(self.model.STRUCTURE)

    @cached_property
    def physics_digest(self) -> str:
        """Digest of the equations and sizes of the model, which identifies the physics of a result."""
        return self.model.DIGEST

    @cached_property
    def solver_files_digest(self) -> str:
        """Digest of the source files of the solver, which also identifies the generator."""
        digest = hashlib.sha256(self.metadata.encode())
        for name, path in solver_source_files(self.folder).items():
            digest.update(name.encode() + path.read_bytes())
        return digest.hexdigest()[:20]

    def is_part_compiled(self, part: str = "channel") -> bool:
        """Return whether Numba's cache holds machine code of this part (used only to announce a compilation)."""
        # If there is a reduced problem, only its code is compiled.
        solvers = [each for each in (self, *self.reduced_solvers.values()) if each.part_source_file(part).exists()]
        return any(machine_code_folder(*each.part_source_files(part)).is_dir() for each in solvers)

    def __reduce__(self) -> tuple[type[Solver], tuple[Any, ...]]:
        # Modules are loaded again when it is unpickled.
        return Solver, (self.name, self.key, self.folder, self.metadata, self.base)

    def part_source_file(self, part: str) -> Path:
        """Return the source file of a part of the solver, taken from the base solver if it has none of its own."""
        path = resolve_shared_file(self.folder / f"{part}.py")
        return path if self.base is None or path.exists() else self.base.part_source_file(part)

    def part_source_files(self, part: str) -> tuple[Path, ...]:
        """Return the files that form the module of a part: functions of the model, then loops that call them."""
        loops = self.part_source_file(f"{part}_loops")
        return (self.part_source_file(part), loops) if loops.exists() else (self.part_source_file(part),)

    def _load_part_module(self, part: str) -> ModuleType:
        files = self.part_source_files(part)
        # Machine code finds its module by this name: files of the same code are one module.
        name = f"saddleforge_solver_{machine_code_folder(*files).name.replace('-', '_')}"
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
        return _load_or_generate_solver(model, sizes)
    text = str(model)
    if text in model_catalogue():
        return _load_catalogue_solver(text, sizes)
    path, name = parse_model_path(text)
    if path is not None:
        return _load_solver_of_model_file(path, name, sizes)
    raise unknown_model_error(text)


def _load_catalogue_solver(name: str, sizes: dict[str, int]) -> Solver:
    spec = model_catalogue()[name]["sizes"]
    complete = {}
    for size, (default, low, high) in spec.items():
        value = sizes.get(size, default)
        require_whole_number(f"{size} of {name}", value, low, high)
        complete[size] = value
    for size in sizes:
        require_known_name("size", size, spec, name)
    key = "_".join(f"{letter}{complete[size]}" for letter, size in zip("lstk", STRUCTURAL, strict=True))
    folder = GENERATED / name / key
    if (folder / "model.py").exists():
        return Solver(name, key, folder)
    folder = _solver_cache_folder(name, key, _catalogue_model_sources())
    if not is_solver_folder_complete(folder, "model"):
        _announce_solver_generation(name, key)
        from ..derive.catalogue import catalogue_model  # SymPy

        _generate_solver_files(catalogue_model(name), complete, folder)
    return Solver(name, key, folder)


def _catalogue_model_sources() -> bytes:
    """Return the sources of all models of the catalogue, as some import others."""
    files = sorted(Path(models.__path__[0]).glob("*.py"))
    return b"".join(file.name.encode() + file.read_bytes() for file in files)


def _load_solver_of_model_file(path: Path, wanted: str, sizes: dict[str, int]) -> Solver:
    record = CachedModelExecution.record_for_model_file(
        path, repr((wanted, sorted(sizes.items()), cached_generator_digest())), cache_folder() / "model-files"
    )
    name, key, folder, metadata = record.load_cached_result() or ("", "", "", "")
    if (
        folder
        and is_solver_folder_complete(cache_folder() / folder, "model")
        and is_solver_folder_complete(cache_folder() / folder, metadata)
    ):
        return Solver(name, key, cache_folder() / folder, metadata)
    with progress_step(f"executing the model file {path}"), record_model_file_inputs() as inputs:
        with interrupt_at_time_limit():
            model = execute_model_file(path, wanted)
        solver = _load_or_generate_solver(model, sizes)
    record.save_result_with_inputs(
        inputs, [solver.name, solver.key, str(solver.folder.relative_to(cache_folder())), solver.metadata]
    )
    return solver


def _load_or_generate_solver(model: Any, sizes: dict[str, int]) -> Solver:
    model = load_symbolic_model(model)
    structure = model_structure_at_sizes(model, sizes)
    folder = _solver_cache_folder(model.name, structure.folder_name, model.physics_digest(structure).encode())
    metadata = f"model_{model.metadata_digest(structure)}"
    if not is_solver_folder_complete(folder, "model"):
        _announce_solver_generation(model.name, structure.folder_name)
        _generate_solver_files(model, sizes, folder)
    if not is_solver_folder_complete(folder, metadata):
        from ..derive.emit import writer  # SymPy

        text = writer.metadata_text(model, structure)
        write_atomically(folder / f"{metadata}.py", text)
        write_atomically(folder / f"{metadata}.json", _file_digests_as_json({f"{metadata}.py": text}))
    return Solver(model.name, structure.folder_name, folder, metadata)


def _solver_cache_folder(name: str, key: str, source: bytes) -> Path:
    digest = hashlib.sha256(source + cached_generator_digest().encode()).hexdigest()[:16]
    return cache_folder() / "solvers" / f"{name}-{digest}" / key


@cache
def cached_generator_digest() -> str:
    """Return the digest of the generator, cached in a file named by the digest of its sources."""
    kept = cache_folder() / f"generator-{all_sources_digest()}"
    with suppress(OSError, ValueError):
        if re.fullmatch("[0-9a-f]+", known := kept.read_text(encoding="ascii")):
            return known
    digest = generator_code_digest()
    with suppress(InputError):  # if it cannot be cached it is computed again
        write_atomically(kept, digest)
    return digest


def _generate_solver_files(model: Any, sizes: dict[str, int], folder: Path) -> None:
    """Generate a solver in a temporary folder, then rename it: a reader sees all files or none."""
    from ..derive.emit.writer import generate  # SymPy

    try:
        with progress_step(f"deriving and generating the solver of {model.name}"), interrupt_at_time_limit():
            written = generate(model, model_structure_at_sizes(model, sizes))
    except (ModelError, TypeError) as error:
        raise InputError(f"model {model.name} cannot be generated: {error}") from error
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".writing-"))
        try:
            for file, text in {**written.files, "model.json": _file_digests_as_json(written.files)}.items():
                (temporary / file).parent.mkdir(parents=True, exist_ok=True)
                (temporary / file).write_text(text, encoding="utf-8")
            if folder.exists():  # damaged
                folder.rename(temporary / "damaged")
            temporary.rename(folder)
            shutil.rmtree(folder / "damaged", ignore_errors=True)
        except OSError:
            if not is_solver_folder_complete(folder, "model"):  # by another process
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise InputError(
            f"cannot write the generated solver to {folder}: {error.strerror or error}; "
            "set SADDLEFORGE_CACHE to another folder"
        ) from error


def _file_digests_as_json(files: dict[str, str]) -> str:
    """Return the digests of generated files as JSON, which `is_solver_folder_complete` checks."""
    known = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
    return json.dumps({"generator": cached_generator_digest(), "files": known})


def is_solver_folder_complete(folder: Path, name: str) -> bool:
    """Return whether all files listed in a file of digests are present and unchanged.

    Args:
        folder: folder of the solver.
        name: name of the file of digests (`_file_digests_as_json`), without suffix.
    """
    try:
        digests = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))["files"]
        return all(hashlib.sha256((folder / file).read_bytes()).hexdigest() == known for file, known in digests.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _announce_solver_generation(name: str, key: str) -> None:
    print_message(
        f"deriving and generating the solver of {name} for sizes {key} (once; it is saved in {cache_folder()})"
    )
