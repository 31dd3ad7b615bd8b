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
    MoreauObjectiveBounds,
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
        key: abbreviated structural sizes: l2_s1_t1_k1 for 2 tokens, one column of W and of W*, one cluster.
        folder: folder of its files.
        metadata: name of its metadata file, without suffix; models that differ only in metadata share a folder.
        base: for the solver of an additional metric, the solver that has all other parts; else None.
    """

    name: str
    key: str
    folder: Path
    metadata: str = "model"
    base: Solver | None = None

    @cached_property
    def model(self) -> ModelMetadata:
        """The generated metadata of the model: parameters, starts, trained numbers, law of the tokens."""
        return cast(ModelMetadata, self._load_part_module(self.metadata))

    @cached_property
    def solvers_of_reduced_problems(self) -> dict[str, Solver]:
        """Solvers for averages of the "loss" or the "metric" in terms of fewer fields, if there are such."""
        folders = {integrand: self.folder / f"reduced_{integrand}" for integrand in ("loss", "metric")}
        found = {what: Solver(self.name, self.key, folder) for what, folder in folders.items() if folder.is_dir()}
        if self.base is not None and "loss" in self.base.solvers_of_reduced_problems:
            found["loss"] = self.base.solvers_of_reduced_problems["loss"]
        return found

    @cached_property
    def metric_solvers(self) -> dict[str, Solver]:
        """Solvers for the model's additional metrics, by name of the metric; empty if it has a single metric."""
        base = self if self.base is None else self.base
        others = base.model.METRICS[1:]
        return {name: Solver(base.name, base.key, base.folder / f"metric_{name}", base=base) for name in others}

    @cached_property
    def channel(self) -> ChannelFunctions:
        """The generated functions of the loss that zero and finite temperature share."""
        return self.thermal_channel if self.model.NO_PROXIMAL_MAP else self.proximal

    @cached_property
    def proximal(self) -> ProximalChannelFunctions:
        """The generated channel functions at zero temperature, which use the proximal map of the loss.

        Raises:
            InputError: the loss has no proximal map.
        """
        if self.model.NO_PROXIMAL_MAP:
            raise InputError(self.no_proximal_map_message)
        return cast(ProximalChannelFunctions, self._load_part_module("channel"))

    @property
    def no_proximal_map_message(self) -> str:
        """Message for a loss without a proximal map: why it has none, and what to do."""
        return (
            f"model {self.name}: {self.model.NO_PROXIMAL_MAP}; at a finite temperature it can be solved as it "
            "is: give inverse_temperature"
        )

    @cached_property
    def thermal_channel(self) -> ThermalChannelFunctions:
        """The generated channel functions at a finite temperature."""
        return cast(ThermalChannelFunctions, self._load_part_module("thermal"))

    @cached_property
    def one_pass_descent_equations(self) -> FlowEquations:
        """The generated equations of one-pass gradient descent (gradient flow), for a model with a ridge."""
        return cast(FlowEquations, self._load_part_module("flow"))

    @cached_property
    def moreau_objective_bounds(self) -> MoreauObjectiveBounds:
        """The generated interval bounds of the Moreau objective, which prove proximal points to be global minima."""
        return cast(MoreauObjectiveBounds, self._load_part_module("bounds"))

    @cached_property
    def prior_functions(self) -> PriorFunctions:
        """The generated equations of the weights: conjugates, overlaps, free entropy and responses of a row of W."""
        return cast(PriorFunctions, self._load_part_module("prior"))

    @cached_property
    def linear_response(self) -> LinearResponseFunctions:
        """The generated derivatives of conjugates and overlaps, the factors of the saddle-point map's Jacobian."""
        return cast(LinearResponseFunctions, self._load_part_module("tangent"))

    @cached_property
    def metric_functions(self) -> MetricFunctions:
        """The generated functions for test error and linear baseline, if the model declares them."""
        return cast(MetricFunctions, self._load_part_module("metric"))

    @cached_property
    def multiprecision_functions(self) -> MultiprecisionFunctions:
        """The generated functions of loss, metric and weights for mpmath, at its current precision."""
        return cast(MultiprecisionFunctions, self._load_part_module("reference"))

    @cached_property
    def bayes_functions(self) -> BayesFunctions:
        """The generated equations of Bayes-optimal inference.

        Raises:
            InputError: the model has no output channel at these sizes.
        """
        if not self.has_output_channel:
            others = ", ".join(name for name, entry in model_catalogue().items() if entry["output"])
            raise InputError(
                f"{self.name} has no output channel at {self.key}, which Bayes-optimal inference needs; use one of "
                f"the models that have one ({others}), or a model file with output="
            )
        return cast(BayesFunctions, self._load_part_module("bayes"))

    @property
    def has_output_channel(self) -> bool:
        """Whether the model declares an output channel, the law of observations given the teacher's fields."""
        return self.source_file_of_solver_part("bayes").exists()

    @property
    def structural_sizes(self) -> dict[str, int]:
        """Numbers of tokens, student columns, teacher columns and clusters, by the names in `STRUCTURAL`."""
        return dict(self.model.STRUCTURE)

    @cached_property
    def physics_digest(self) -> str:
        """Digest of the model's equations and sizes, which identifies the mathematical problem of a result."""
        return self.model.DIGEST

    @cached_property
    def solver_files_digest(self) -> str:
        """Digest of all source files of the solver; it changes with the model and with the code generator."""
        digest = hashlib.sha256(self.metadata.encode())
        for name, path in solver_source_files(self.folder).items():
            digest.update(name.encode() + path.read_bytes())
        return digest.hexdigest()[:20]

    def is_solver_part_compiled(self, part: str = "channel") -> bool:
        """Return whether machine code of a part of the solver is cached, so that it need not be compiled."""
        # If there is a reduced problem, only its code is compiled.
        solvers = (self, *self.solvers_of_reduced_problems.values())
        files = [each.source_files_of_solver_part(part) for each in solvers]
        return any(machine_code_folder(*each).is_dir() for each in files if each[0].exists())

    def __reduce__(self) -> tuple[type[Solver], tuple[Any, ...]]:
        # Modules are loaded again when it is unpickled.
        return Solver, (self.name, self.key, self.folder, self.metadata, self.base)

    def source_file_of_solver_part(self, part: str) -> Path:
        """Return the source file of a part, such as "channel"; it may be a file of the main solver (`base`)."""
        path = resolve_shared_file(self.folder / f"{part}.py")
        return path if self.base is None or path.exists() else self.base.source_file_of_solver_part(part)

    def source_files_of_solver_part(self, part: str) -> tuple[Path, ...]:
        """Return the source files of a part of the solver: the model's functions, then the loops that call them."""
        own, loops = (self.source_file_of_solver_part(name) for name in (part, f"{part}_loops"))
        return (own, loops) if loops.exists() else (own,)

    def _load_part_module(self, part: str) -> ModuleType:
        files = self.source_files_of_solver_part(part)
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
        sizes: numbers of tokens, columns and clusters that differ from the model's defaults.

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
    """Return the source code of all models of the catalogue, joined; some import others."""
    files = sorted(Path(models.__path__[0]).glob("*.py"))
    return b"".join(file.name.encode() + file.read_bytes() for file in files)


def _load_solver_of_model_file(path: Path, wanted: str, sizes: dict[str, int]) -> Solver:
    record = CachedModelExecution.cache_record_of_model_file(
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
    """Return the digest of the code generator, cached in a file named by the digest of its source files."""
    kept = cache_folder() / f"generator-{all_sources_digest()}"
    with suppress(OSError, ValueError):
        if re.fullmatch("[0-9a-f]+", known := kept.read_text(encoding="ascii")):
            return known
    digest = generator_code_digest()
    with suppress(InputError):  # if it cannot be cached it is computed again
        write_atomically(kept, digest)
    return digest


def _generate_solver_files(model: Any, sizes: dict[str, int], folder: Path) -> None:
    """Generate all files of a solver and put them into a folder at once, by renaming a temporary folder."""
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
    """Return JSON text with the digests of generated files, for `is_solver_folder_complete` to check."""
    known = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
    return json.dumps({"generator": cached_generator_digest(), "files": known})


def is_solver_folder_complete(folder: Path, name: str) -> bool:
    """Return whether all files of a generated solver are present and unchanged.

    Args:
        folder: folder of the solver.
        name: name of its file with the digests of all files, without the suffix .json.
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
