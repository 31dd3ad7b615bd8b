"""Generation of a solver: from a model at a structure to the text of its files, deterministic to the byte.

A loss whose slope in X jumps and that has no known proximal map has a solver with the files of a finite temperature
only. The files of Bayes-optimal averages exist if the model has an output channel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import sympy as sp

from ..authoring.model import Model, ModelAt
from ..authoring.parameters import Structure
from ..digest import generator_digest
from ..theory.kinks import LOSS_JUMPS, slope_jump
from ..theory.piecewise_losses import proximal_obstacle
from ..theory.reduced import ReducedModel, reduced_loss, reduced_metric
from .kernel import Kernel, RecordedKernel, add_stamp, record_kernels
from .line_origins import SOURCES_FILE, StampExtension, fill_in_equations, source_runs, sources_json, split_sources
from .printers.numba import body
from .probes import check_bounded, check_convex, check_finite, check_real
from .sources.bayes_source import bayes_context
from .sources.channel import build_channel, constant_names
from .sources.channel_source import bounds_context, channel_context
from .sources.flow_source import flow_context
from .sources.metadata_source import metadata_file, reduced_metadata_file
from .sources.metric_source import metric_context
from .sources.prior_source import prior_context
from .sources.reference_source import reference_context
from .sources.tangent_source import moment_tangent_context, tangent_context
from .sources.thermal_source import thermal_context

_HERE = Path(__file__).parent
_IMPORT = re.compile(r"((?:from saddleforge\.loops )?import )(\w+(?: as \w+)?(?:, \w+)*)")
# The sources of each file, in addition to this module: the digest in its header covers these and their imports.
SOURCES = {
    "model.py": ("emit/sources/metadata_source.py",),
    "channel.py": ("emit/sources/channel_source.py", "emit/templates/channel.py.jinja"),
    "channel_loops.py": ("emit/sources/channel_source.py", "emit/templates/channel_loops.py.jinja"),
    "bounds.py": ("emit/sources/channel_source.py", "emit/templates/bounds.py.jinja"),
    "bounds_loops.py": ("emit/sources/channel_source.py", "emit/templates/bounds_loops.py.jinja"),
    "tangent.py": ("emit/sources/tangent_source.py", "emit/templates/tangent.py.jinja"),
    "prior.py": ("emit/sources/prior_source.py", "emit/templates/prior.py.jinja"),
    "flow.py": ("emit/sources/flow_source.py", "emit/templates/flow.py.jinja"),
    "thermal.py": ("emit/sources/thermal_source.py", "emit/templates/thermal.py.jinja"),
    "thermal_loops.py": ("emit/sources/thermal_source.py", "emit/templates/thermal_loops.py.jinja"),
    "metric.py": ("emit/sources/metric_source.py", "emit/templates/metric.py.jinja"),
    "reference.py": (
        "emit/sources/reference_source.py",
        "emit/sources/metric_source.py",
        "emit/templates/reference.py.jinja",
    ),
    "bayes.py": ("emit/sources/bayes_source.py", "emit/templates/bayes.py.jinja"),
}


@dataclass(frozen=True)
class GeneratedSolver:
    """A generated solver: file name -> text, the digest of its model, and every kernel that was made for it.

    The file `sources.json` lists the origins of the lines of the others.
    """

    model: str
    structure: Structure
    digest: str
    files: dict[str, str]
    frozen: tuple[RecordedKernel, ...]


def generate(model: Model, structure: Structure | None = None) -> GeneratedSolver:
    """Derive, lower and print one solver.

    Args:
        model: model of the catalogue or of a user.
        structure: sizes; the model's default by default.

    Raises:
        ModelError: the model is not well posed at the structure.
        TypeError: the loss contains a function that no printer supports.
    """
    structure = structure or model.default_structure()
    at = model.at(structure)
    with record_kernels() as frozen:
        files = _generate_files(model, at)
    return GeneratedSolver(at.name, structure, at.digest(), files, tuple(frozen))


def metadata(model: Model, structure: Structure) -> str:
    """Return the text of the metadata file alone, for a model that shares its physics with an existing solver.

    Args:
        model: model whose metadata is needed.
        structure: sizes.

    Raises:
        ModelError: the model is not well posed at the structure.
    """
    at = model.at(structure)
    return _join_lines(_clean_lines(metadata_file(model, at, _header_line("model.py"), proximal_obstacle(at))))


def _generate_files(model: Model, at: ModelAt) -> dict[str, str]:
    check_real(at)
    check_finite(at)
    check_bounded(at)
    if at.penalty is not None:
        check_convex(at.penalty, at.structure)
    jump, unpack = proximal_obstacle(at), _unpacker(at)
    metric = metric_context(at, unpack)
    files = {"model.py": metadata_file(model, at, _header_line("model.py"), jump)}
    contexts: dict[str, dict[str, Any]] = {
        "prior.py": prior_context(at),
        "thermal.py": thermal_context(at, unpack),
        "metric.py": metric,
    }
    if not jump:  # these need a proximal map
        channel = build_channel(at)
        contexts |= {
            "channel.py": channel_context(channel, unpack),
            "tangent.py": tangent_context(at, channel),
            "reference.py": reference_context(at, channel, metric["kernels"]["metric"], unpack),
        }
        if not channel.sides:
            contexts["bounds.py"] = bounds_context(channel, unpack)
    if at.regulariser.kind == "ridge" and not slope_jump(at).startswith(LOSS_JUMPS):
        contexts["flow.py"] = flow_context(at)
    if at.output is not None:
        contexts["bayes.py"] = bayes_context(at, at.output, unpack)
    files |= _render(contexts)
    for folder, reduced in (("reduced_loss", reduced_loss(at)), ("reduced_metric", reduced_metric(at))):
        if reduced is not None:
            files |= {f"{folder}/{name}": text for name, text in _reduced_files(reduced).items()}
    for name in at.others:
        files |= {f"metric_{name}/{file}": text for file, text in _metric_files(model, at.with_metric(name)).items()}
    lines = {name: _clean_lines(text) for name, text in files.items()}
    sources = sources_json({name: source_runs(each) for name, each in lines.items()})
    return {name: _join_lines(each) for name, each in lines.items()} | {SOURCES_FILE: sources}


def _metric_files(model: Model, at: ModelAt) -> dict[str, str]:
    """Return the files for another metric of the same model: metadata, averages, and its reduced problem."""
    files = {"model.py": metadata_file(model, at, _header_line("model.py"), proximal_obstacle(at))}
    files |= _render({"metric.py": metric_context(at, _unpacker(at))})
    reduced = reduced_metric(at)
    if reduced is not None:
        files |= {f"reduced_metric/{name}": text for name, text in _reduced_files(reduced).items()}
    return files


def _reduced_files(at: ReducedModel) -> dict[str, str]:
    """Return the files of the reduced problem of an average: its fields, and its channel or the test error."""
    jump, unpack = proximal_obstacle(at) if at.metric is None else "", _unpacker(at)
    contexts: dict[str, dict[str, Any]] = {}
    if at.metric is not None:
        contexts["metric.py"] = metric_context(at, unpack)
    else:
        contexts["thermal.py"] = thermal_context(at, unpack)
    if at.metric is None and not jump:
        channel = build_channel(at)
        contexts |= {"channel.py": channel_context(channel, unpack), "tangent.py": moment_tangent_context(channel)}
    return {"model.py": reduced_metadata_file(at, _header_line("model.py"), jump)} | _render(contexts)


def _render(contexts: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the texts of templates by file name; they name no model, so that equal kernels give equal files.

    Loops that call the kernels are in a file of their own, which models of the same sizes share.
    """
    environment = _environment()
    called = {file.replace(".py", "_loops.py"): context for file, context in contexts.items()}
    loops = {name: each for name, each in called.items() if name in SOURCES and each.get("has_averages", True)}
    return {
        name: fill_in_equations(environment.get_template(f"{name}.jinja").render(header=_header_line(name), **context))
        for name, context in (contexts | loops).items()
    }


def _header_line(file: str) -> str:
    digest = generator_digest(*SOURCES[file])
    return f"# Generated by saddleforge; do not edit. Generator digest {digest}, SymPy {sp.__version__}."


def _clean_lines(text: str) -> list[tuple[str, str]]:
    """Return (line, source) without trailing blanks, unused imports, and more than two blank lines in a row."""
    lines: list[tuple[str, str]] = []
    for line, source in split_sources(text):
        if (imported := _IMPORT.fullmatch(line)) and not (line := _used_imports(imported, text)):
            continue
        if (line := line.rstrip()) or not all(not above for above, _ in lines[-2:]):
            lines.append((line, source))
    # A template's line statements may leave blank lines inside a function: drop them.
    kept: list[tuple[str, str]] = []
    following = ""
    for line, source in reversed(lines):
        if line or (following and not following.startswith("    ")):
            kept.append((line, source))
        following = line or following
    return kept[::-1]


def _join_lines(lines: Sequence[tuple[str, str]]) -> str:
    return "\n".join(line for line, _ in lines) + "\n"


def _used_imports(imported: re.Match[str], text: str) -> str:
    """Return an import line without the modules that the file does not use."""
    names = [name for name in imported[2].split(", ") if re.search(rf"(?<![\w./]){name.split()[-1]}\.\w", text)]
    return f"{imported[1]}{', '.join(names)}" if names else ""


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        extensions=[StampExtension],
    )
    environment.globals["block"] = _indent_block
    environment.globals["code"] = lambda kernel, margin=4: _indent_block(body(kernel), margin)
    environment.globals["added"] = _adding_lines
    environment.globals["indent"] = lambda text, margin: "\n".join(" " * margin + line for line in text.splitlines())
    return environment


def _adding_lines(kernel: Kernel, factor: str, margin: int) -> str:
    """Return lines that add a factor times each result to the place that is its name."""
    return _indent_block(body(kernel, lambda place, value: f"{place} += {factor} * ({value})"), margin)


def _indent_block(lines: Sequence[str], margin: int) -> str:
    """Return indented lines, which carry their own stamps."""
    return "\n".join(" " * margin + line for line in lines)


def _unpacker(model: ModelAt) -> Callable[[Kernel], str]:
    positions = {name: i for i, name in enumerate(constant_names(model))}

    def unpack(kernel: Kernel) -> str:
        used = sorted((positions[n], n) for n in kernel.names if n in positions)
        return _indent_block(add_stamp([f"{name} = c[{i}]" for i, name in used]), 4)

    return unpack
