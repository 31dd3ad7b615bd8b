"""Solutions as text and JSON of the command `solve`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.numbers import format_near_zero, format_with_error
from ..base.presenting import table, to_json
from ..problems.columns import OBSERVED, column_name, split_contexts
from ..problems.observables import FORMULAS
from ..problems.overlaps import OVERLAPS
from ..problems.symbols import Symbols, symbols_of
from ..solving.solution import Solution
from ..solving.thermal import GibbsAverages
from .ansatz import HEADING, warning_lines
from .contract import blocks_json, problem_json, select_attributes, select_errors, trained_json
from .layout import format_attribute, value_line
from .stability import EIGENVALUE_ROUNDING

if TYPE_CHECKING:
    from ..extensions.breaking.solution import BrokenSolution
    from ..problems.overlaps import Overlaps
    from ..problems.problem import Problem


@table.register(Solution)
def solution_table(solution: Solution, names: Mapping[str, str] | None = None, alone: bool = True) -> str:
    """Return the text that `solve` prints: overlaps, losses, errors, quadrature rule and the verdict on stability.

    The verdict comes first if replica symmetry is unstable by more than the digits shown.

    Args:
        solution: the solution.
        names: symbols of the user's own, see `symbols.symbols_of`.
        alone: whether no step of replica symmetry breaking has been tried.
    """
    problem = solution.problem
    shown = symbols_of(problem, names)
    stability = solution.stability
    warning = warning_lines(solution) if alone else []
    lines = [
        problem_line(problem, shown),
        *warning,
        f"start {solution.start}, reached {solution.branch}"
        + (f", rank {solution.rank} by training loss" if solution.rank else "")
        + f"; {solution.status.words}, residual "
        + (f"{solution.residual:.1e}" if np.isfinite(solution.residual) else "not known"),
    ]
    if solution.advice:
        lines.append(f"  {solution.advice}")
    if warning:
        lines.append(f"  {HEADING}:")
    lines += overlap_lines(problem, solution.overlaps, solution.error_bars, shown)
    lines += multiplier_lines(solution)
    if solution.thermal:
        lines += thermal_lines(solution)
    elif solution.losses:
        lines.append(value_line("training loss", f"{format_attribute(solution, 'training_loss')} per d"))
        if math.isfinite(solution.test_error):
            baseline = solution.baseline_error
            baseline_note = f"   (linear baseline {baseline:.12g})" if math.isfinite(baseline) else ""
            lines.append(value_line("test error", format_attribute(solution, "test_error") + baseline_note))
        lines += [value_line(f"  {name}", format_with_error(*found)) for name, found in solution.other_errors.items()]
    lines += [value_line(name, format_attribute(solution, name)) for name in FORMULAS if name in solution.observed]
    rule = solution.rule
    lines.append(f"  integrator {rule.name}, {rule.size}; errors are {solution.error_kind}")
    if not solution.judge:
        lines.append("  no verdict on stability was asked for")
    if stability:
        if not warning:
            lines.append(f"  {stability.verdict}")
        leading = [v.real if abs(v) > EIGENVALUE_ROUNDING else 0.0 for v in stability.eigenvalues[:3]]
        top = ", ".join(f"{value:.3g}" for value in leading)
        lines.append(f"  longitudinal eigenvalues {top}, ..., {np.min(stability.eigenvalues.real):.3g}")
    return "\n".join(lines)


def explanation_lines(solution: Solution) -> list[str]:
    """Return the lines that `--explain` adds to a solution."""
    return ["why this rule:", *(f"  {sentence}" for sentence in solution.explanation)]


def multiplier_lines(solution: Solution | BrokenSolution) -> list[str]:
    """Return the line about the ridge that fixes the norms, one strength a column of W; empty without such norms."""
    if solution.multipliers is None or solution.multipliers_error is None:
        return []
    return [multiplier_line(solution.multipliers, solution.multipliers_error)]


def multiplier_line(strengths: np.ndarray, errors: np.ndarray) -> str:
    """Return the line about the ridge that fixes the norms of W.

    Args:
        strengths: one for each column of W.
        errors: their error bars.
    """
    return f"  the norms are kept by a ridge of {', '.join(map(format_with_error, strengths, errors))}"


def thermal_lines(solution: Solution) -> list[str]:
    """Return free energy, energy and entropy, and the test errors of sampled weights and of their mean."""
    thermal = solution.thermal
    assert thermal is not None
    lines = []
    for context, (matrix, widths) in enumerate(zip(thermal.self_overlap, thermal.self_overlap_error, strict=True)):
        label = f"context {context + 1}: " if len(thermal.self_overlap) > 1 else ""
        values = ", ".join(map(format_with_error, np.diagonal(matrix), np.diagonal(widths)))
        lines.append(f"  {label}overlap of a sample with itself {values}")
    lines += [
        value_line("free entropy", f"{format_attribute(thermal, 'free_entropy')} per d"),
        value_line("training loss", f"{format_attribute(thermal, 'energy')} per d, of a sample"),
        value_line("entropy", f"{format_attribute(thermal, 'entropy')} per d"),
    ]
    if math.isfinite(thermal.test_error):
        both = format_attribute(thermal, "test_error"), format_attribute(solution, "test_error")
        lines.append(value_line("test error", "{} of a sample, {} of their mean".format(*both)))
    return lines


def problem_line(problem: Problem, shown: Symbols | None = None, without: str = "") -> str:
    """Return model and parameters as text.

    Args:
        problem: the problem.
        shown: symbols and LaTeX by name, see `symbols.symbols_of`; None: the default ones.
        without: a parameter to leave out, because it varies.
    """
    shown = shown or symbols_of(problem)
    held = {name: value for name, value in problem.parameters.items() if column_name(name) != column_name(without)}
    has_alpha = problem.sample_complexity is not None and without != "alpha"
    return (
        f"{problem.solver.name}  "
        + (f"{shown['alpha'][0]} = {problem.alpha:g}  " if has_alpha else "")
        + "  ".join(f"{shown[column_name(n)][0]} = {_format_parameter(v)}" for n, v in held.items())
        + "".join(f"  {name} = {line.position:g}" for name, (_, line) in problem.lines.items())
        + ("" if problem.spectrum is None else f"  spectrum = {_format_parameter(problem.spectrum)}")
        + ("" if problem.inverse_temperature is None else f"  inverse temperature = {problem.inverse_temperature:g}")
    )


def overlap_lines(problem: Problem, overlaps: Overlaps, widths: Overlaps, shown: Symbols | None = None) -> list[str]:
    """Return the overlaps of every (token, cluster) pair with error bars, a line a column of W, without NaN.

    Args:
        problem: the problem.
        overlaps: values.
        widths: their error bars.
        shown: symbols and LaTeX by name; None: the default ones.
    """
    shown = shown or symbols_of(problem)
    lines = block_lines(
        problem, [(shown[n][0], getattr(overlaps, n), getattr(widths, n), n in ("q", "V")) for n in OVERLAPS]
    )
    for number, value, width in zip(problem.trained, overlaps.phi, widths.phi, strict=True):
        held = f"ridge {float(number['ridge']):g}" if number["ridge"] else "no ridge"
        lines.append(f"  {shown[column_name(number['name'])][0]} {format_with_error(value, width)} (trained, {held})")
    return lines


def block_lines(problem: Problem, blocks: Iterable[tuple[str, np.ndarray, np.ndarray, bool]]) -> list[str]:
    """Return arrays with their errors as lines, one for each (token, cluster) pair and column of W.

    Args:
        problem: the problem.
        blocks: symbol, values (C, s, ...), errors, and whether it is a symmetric matrix, of which the upper triangle
            without NaN is shown.
    """
    lines, every = [], list(blocks)
    for context, a in np.ndindex(problem.contexts, problem.student_rank):
        parts = []
        for symbol, values, errors, is_symmetric in every:
            row, widths = values[context, a], errors[context, a]
            for b in np.ndindex(row.shape):
                if is_symmetric and (b[0] < a or not math.isfinite(row[b])):
                    continue
                index = "" if row.size == problem.student_rank == 1 else f"_{''.join(str(i + 1) for i in (a, *b))}"
                value = (format_with_error if is_symmetric else format_near_zero)(float(row[b]), float(widths[b]))
                parts.append(f"{symbol}{index} {value}")
        label = problem.describe_context(context) if a == 0 else ""
        lines.append(f"  {label:<10} " + "   ".join(parts))
    return lines


def _format_parameter(value: object) -> str:
    array = np.asarray(value)
    return (
        f"{array.item():g}"
        if array.size == 1
        else np.array2string(array, separator=",").replace("\n", "").replace(" ", "")
    )


def describe_finite_limits(evidence: Mapping[str, Any]) -> str:
    """Return the end of a sentence about parameters that should vanish but are kept finite, or an empty string."""
    held = ", ".join(f"{name} = {value:g}" for name, value in evidence.get("not_in_the_limit", {}).items())
    return f"; at {held} as it stands: these error bars do not contain its limit 0" if held else ""


@to_json.register(Solution)
def solution_json(solution: Solution) -> dict[str, Any]:
    """Return the object that `solve --json` prints, with `thermal` at a finite temperature."""
    problem = solution.problem
    stability = solution.stability
    losses, widths = solution.losses, solution.error_bars
    members: dict[str, Any] = {
        **problem_json(problem),
        **select_attributes(solution, "start", "branch", "rank"),
        "status": solution.status.value,
        **select_attributes(solution, "residual", "iterations"),
        "overlaps": blocks_json(problem, solution.overlaps),
        "trained": trained_json(problem, solution.overlaps),
        "conjugates": blocks_json(problem, solution.conjugates) if solution.conjugates else None,
        **select_attributes(solution, "multipliers", "free_entropy", "training_loss"),
        "training_loss_parts": select_attributes(losses, "data", "penalty", "identity_gap") if losses else None,
        "test_error": solution.test_error,
        "test_errors": solution.test_errors or None,
        "baseline_error": solution.baseline_error,
        **select_attributes(solution, *FORMULAS),
        "errors": {
            "overlaps": blocks_json(problem, widths),
            "trained": trained_json(problem, widths),
            **select_errors(solution, ("multipliers", *OBSERVED)),
            "test_errors": widths.test_errors or None,
        },
        "error_kind": solution.error_kind,
        "integrator": solution.rule.describe(),
        "stability": stability.to_json() if stability else None,
    }
    if problem.inverse_temperature is None:
        return members
    # The training loss is that of weights sampled from the Gibbs measure; the test error that of their mean.
    thermal, parts, errors = solution.thermal, members["training_loss_parts"], members["errors"]
    members["thermal"] = None if thermal is None else nested_gibbs_json(problem, thermal.to_json())
    members["free_entropy"] = None if thermal is None else thermal.free_entropy
    members["training_loss"] = None if thermal is None else thermal.energy
    members["training_loss_parts"] = parts and {**parts, "identity_gap": None}
    members["errors"] = {**errors, "training_loss": None if thermal is None else thermal.energy_error}
    return members


def nested_gibbs_json(problem: Problem, thermal: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of a Gibbs measure with its matrices as r[l][k][a][b].

    Args:
        problem: the problem.
        thermal: the object of `gibbs_json`.
    """

    def nest_blocks(values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "self_overlap": split_contexts(problem, values["self_overlap"]).tolist()}

    return {**nest_blocks(thermal), "errors": nest_blocks(thermal["errors"])}


@to_json.register(GibbsAverages)
def gibbs_json(thermal: GibbsAverages) -> dict[str, Any]:
    """Return the object `thermal`, with arrays as they are."""
    names = ("free_entropy", "free_energy", "energy", "entropy", "test_error")
    return {
        **select_attributes(thermal, "inverse_temperature", *names),
        "energy_parts": select_attributes(thermal, "data", "penalty"),
        "self_overlap": thermal.self_overlap,
        "errors": select_errors(thermal, (*names, "self_overlap")),
    }
