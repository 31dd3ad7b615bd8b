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

from ..authoring.model import FixedSizeModel, Model
from ..authoring.parameters import Structure
from ..digest import generator_code_digest
from ..theory.kinks import LOSS_JUMPS, describe_gradient_jump
from ..theory.piecewise_losses import why_proximal_map_is_unavailable
from ..theory.reduced import ReducedModel, reduce_model_for_loss, reduce_model_for_metric
from .kernel import Kernel, RecordedKernel, add_origin_comment, record_kernels
from .line_origins import (
    SOURCES_FILE,
    OriginCommentExtension,
    fill_in_equation_citations,
    lines_with_origins,
    runs_of_equal_origin,
    sources_json_text,
)
from .printers.numba import kernel_body_lines
from .probes import check_loss_is_bounded_below, check_loss_is_finite, check_loss_is_real, check_penalty_is_convex
from .sources.bayes_source import bayes_template_variables
from .sources.channel import build_channel_kernels, channel_constant_names
from .sources.channel_source import bounds_template_variables, channel_template_variables
from .sources.flow_source import descent_template_variables
from .sources.metadata_source import metadata_file_text, metadata_text_of_reduced_problem
from .sources.metric_source import metric_template_variables
from .sources.prior_source import prior_template_variables
from .sources.reference_source import reference_template_variables
from .sources.tangent_source import reduced_problem_tangent_variables, tangent_template_variables
from .sources.thermal_source import thermal_template_variables

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
    """A generated solver: texts of its files by name, the digest of its model's equations, and its kernels.

    The file `sources.json` lists the origins of the lines of the others.
    """

    model: str
    structure: Structure
    digest: str
    files: dict[str, str]
    frozen: tuple[RecordedKernel, ...]


def generate(model: Model, structure: Structure | None = None) -> GeneratedSolver:
    """Derive and generate the files of one solver.

    Args:
        model: model of the catalogue or of a user.
        structure: sizes L, s, t and number of clusters; by default those of the model.

    Raises:
        ModelError: the model has no valid loss, penalty or law at these sizes.
        TypeError: the loss contains a function that no printer supports.
    """
    structure = structure or model.default_structure()
    at = model.at(structure)
    with record_kernels() as frozen:
        files = _generate_files(model, at)
    return GeneratedSolver(at.name, structure, at.equations_digest(), files, tuple(frozen))


def metadata_text(model: Model, structure: Structure) -> str:
    """Return the text of a solver's metadata file alone, for a model with the same equations as an existing solver.

    Args:
        model: model whose metadata is needed.
        structure: numbers of tokens L and of columns s and t, and of clusters.

    Raises:
        ModelError: the model has no valid loss, penalty or law at these sizes.
    """
    at = model.at(structure)
    return _join_lines_to_text(
        _remove_superfluous_blank_lines(
            metadata_file_text(model, at, _header_line_of_file("model.py"), why_proximal_map_is_unavailable(at))
        )
    )


def _generate_files(model: Model, at: FixedSizeModel) -> dict[str, str]:
    check_loss_is_real(at)
    check_loss_is_finite(at)
    check_loss_is_bounded_below(at)
    if at.penalty is not None:
        check_penalty_is_convex(at.penalty, at.structure)
    jump, unpack = why_proximal_map_is_unavailable(at), _loader_of_constants(at)
    metric = metric_template_variables(at, unpack)
    files = {"model.py": metadata_file_text(model, at, _header_line_of_file("model.py"), jump)}
    contexts: dict[str, dict[str, Any]] = {
        "prior.py": prior_template_variables(at),
        "thermal.py": thermal_template_variables(at, unpack),
        "metric.py": metric,
    }
    if not jump:  # these need a proximal map
        channel = build_channel_kernels(at)
        contexts |= {
            "channel.py": channel_template_variables(channel, unpack),
            "tangent.py": tangent_template_variables(at, channel),
            "reference.py": reference_template_variables(at, channel, metric["kernels"]["metric"], unpack),
        }
        if not channel.sides:
            contexts["bounds.py"] = bounds_template_variables(channel, unpack)
    if at.regulariser.kind == "ridge" and not describe_gradient_jump(at).startswith(LOSS_JUMPS):
        contexts["flow.py"] = descent_template_variables(at)
    if at.output is not None:
        contexts["bayes.py"] = bayes_template_variables(at, at.output, unpack)
    files |= _render_templates(contexts)
    both = ("reduced_loss", reduce_model_for_loss(at)), ("reduced_metric", reduce_model_for_metric(at))
    for folder, reduced in both:
        if reduced is not None:
            files |= {f"{folder}/{name}": text for name, text in _generate_reduced_problem_files(reduced).items()}
    for name in at.others:
        files |= {
            f"metric_{name}/{file}": text for file, text in _generate_metric_files(model, at.with_metric(name)).items()
        }
    lines = {name: _remove_superfluous_blank_lines(text) for name, text in files.items()}
    sources = sources_json_text({name: runs_of_equal_origin(each) for name, each in lines.items()})
    return {name: _join_lines_to_text(each) for name, each in lines.items()} | {SOURCES_FILE: sources}


def _generate_metric_files(model: Model, at: FixedSizeModel) -> dict[str, str]:
    """Return the files for another metric of a model: metadata, averages, and the reduced problem of the metric."""
    files = {
        "model.py": metadata_file_text(model, at, _header_line_of_file("model.py"), why_proximal_map_is_unavailable(at))
    }
    files |= _render_templates({"metric.py": metric_template_variables(at, _loader_of_constants(at))})
    reduced = reduce_model_for_metric(at)
    if reduced is not None:
        files |= {f"reduced_metric/{name}": text for name, text in _generate_reduced_problem_files(reduced).items()}
    return files


def _generate_reduced_problem_files(at: ReducedModel) -> dict[str, str]:
    """Return the files of the reduced problem of the loss or of a metric: metadata, and channel or metric."""
    jump, unpack = why_proximal_map_is_unavailable(at) if at.metric is None else "", _loader_of_constants(at)
    contexts: dict[str, dict[str, Any]] = {}
    if at.metric is not None:
        contexts["metric.py"] = metric_template_variables(at, unpack)
    else:
        contexts["thermal.py"] = thermal_template_variables(at, unpack)
    if at.metric is None and not jump:
        channel = build_channel_kernels(at)
        contexts |= {
            "channel.py": channel_template_variables(channel, unpack),
            "tangent.py": reduced_problem_tangent_variables(channel),
        }
    return {
        "model.py": metadata_text_of_reduced_problem(at, _header_line_of_file("model.py"), jump)
    } | _render_templates(contexts)


def _render_templates(contexts: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the rendered texts of generated files by file name; no text contains a model's name.

    Loops that call the kernels are in a file of their own, which models of the same sizes share.
    """
    environment = _jinja_environment()
    called = {file.replace(".py", "_loops.py"): context for file, context in contexts.items()}
    loops = {name: each for name, each in called.items() if name in SOURCES and each.get("has_averages", True)}
    return {
        name: fill_in_equation_citations(
            environment.get_template(f"{name}.jinja").render(header=_header_line_of_file(name), **context)
        )
        for name, context in (contexts | loops).items()
    }


def _header_line_of_file(file: str) -> str:
    digest = generator_code_digest(*SOURCES[file])
    return f"# Generated by saddleforge; do not edit. Generator digest {digest}, SymPy {sp.__version__}."


def _remove_superfluous_blank_lines(text: str) -> list[tuple[str, str]]:
    """Return (line, origin) of the lines of a generated file, without superfluous blank lines and unused imports."""
    lines: list[tuple[str, str]] = []
    for line, source in lines_with_origins(text):
        if (imported := _IMPORT.fullmatch(line)) and not (line := _remove_unused_imports(imported, text)):
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


def _join_lines_to_text(lines: Sequence[tuple[str, str]]) -> str:
    return "\n".join(line for line, _ in lines) + "\n"


def _remove_unused_imports(imported: re.Match[str], text: str) -> str:
    """Return an import line without the modules that a file does not use."""
    names = [name for name in imported[2].split(", ") if re.search(rf"(?<![\w./]){name.split()[-1]}\.\w", text)]
    return f"{imported[1]}{', '.join(names)}" if names else ""


@cache
def _jinja_environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        extensions=[OriginCommentExtension],
    )
    environment.globals["block"] = _indent_lines
    environment.globals["code"] = lambda kernel, margin=4: _indent_lines(kernel_body_lines(kernel), margin)
    environment.globals["added"] = _lines_adding_kernel_results
    environment.globals["indent"] = lambda text, margin: "\n".join(" " * margin + line for line in text.splitlines())
    return environment


def _lines_adding_kernel_results(kernel: Kernel, factor: str, margin: int) -> str:
    """Return source lines that add each result of a kernel, times a factor, to the variable of its name."""
    return _indent_lines(kernel_body_lines(kernel, lambda place, value: f"{place} += {factor} * ({value})"), margin)


def _indent_lines(lines: Sequence[str], margin: int) -> str:
    """Return lines joined to one text, each indented by `margin` spaces."""
    return "\n".join(" " * margin + line for line in lines)


def _loader_of_constants(model: FixedSizeModel) -> Callable[[Kernel], str]:
    positions = {name: i for i, name in enumerate(channel_constant_names(model))}

    def lines_loading_constants(kernel: Kernel) -> str:
        used = sorted((positions[n], n) for n in kernel.input_names if n in positions)
        return _indent_lines(add_origin_comment([f"{name} = c[{i}]" for i, name in used]), 4)

    return lines_loading_constants
