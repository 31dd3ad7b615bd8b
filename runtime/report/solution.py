"""Solutions as text and JSON of the command `solve`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.numbers import format_value_or_zero, format_value_with_error
from ..base.presenting import table, to_json
from ..problems.columns import OBSERVED, split_token_and_cluster_axes, table_column_name
from ..problems.observables import FORMULAS
from ..problems.overlaps import OVERLAPS
from ..problems.symbols import Symbols, symbols_of_table_columns
from ..solving.solution import Solution
from ..solving.thermal import GibbsAverages
from .ansatz import HEADING, warning_about_instability
from .contract import attributes_by_name, error_bars_by_name, overlaps_json, problem_json, trained_numbers_json
from .layout import format_attribute_with_error, labelled_value_line
from .stability import EIGENVALUE_ROUNDING

if TYPE_CHECKING:
    from ..extensions.breaking.solution import BrokenSolution
    from ..problems.overlaps import Overlaps
    from ..problems.problem import Problem


@table.register_renderer_of_class(Solution)
def solution_table(solution: Solution, names: Mapping[str, str] | None = None, alone: bool = True) -> str:
    """Return a solution as text: overlaps, losses, errors, quadrature rule and the verdict on stability.

    The verdict comes first if replica symmetry is unstable by more than the digits shown.

    Args:
        solution: solution of the saddle-point equations.
        names: the user's own symbols by name of a quantity; None: the default symbols.
        alone: whether the text stands alone, and not as the replica symmetric part of a solution with broken symmetry.
    """
    problem = solution.problem
    shown = symbols_of_table_columns(problem, names)
    stability = solution.stability
    warning = warning_about_instability(solution) if alone else []
    lines = [
        model_and_parameters_line(problem, shown),
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
    lines += norm_multiplier_lines_of_solution(solution)
    if solution.thermal:
        lines += gibbs_average_lines(solution)
    elif solution.losses:
        lines.append(
            labelled_value_line("training loss", f"{format_attribute_with_error(solution, 'training_loss')} per d")
        )
        if math.isfinite(solution.test_error):
            baseline = solution.baseline_error
            baseline_note = f"   (linear baseline {baseline:.12g})" if math.isfinite(baseline) else ""
            lines.append(
                labelled_value_line("test error", format_attribute_with_error(solution, "test_error") + baseline_note)
            )
        lines += [
            labelled_value_line(f"  {name}", format_value_with_error(*found))
            for name, found in solution.further_test_errors_with_error_bars.items()
        ]
    lines += [
        labelled_value_line(name, format_attribute_with_error(solution, name))
        for name in FORMULAS
        if name in solution.observed
    ]
    rule = solution.rule
    lines.append(f"  integrator {rule.name}, {rule.size_in_words}; errors are {solution.error_kind}")
    if not solution.judge:
        lines.append("  no verdict on stability was asked for")
    if stability:
        if not warning:
            lines.append(f"  {stability.verdict}")
        leading = [v.real if abs(v) > EIGENVALUE_ROUNDING else 0.0 for v in stability.eigenvalues[:3]]
        top = ", ".join(f"{value:.3g}" for value in leading)
        lines.append(f"  longitudinal eigenvalues {top}, ..., {np.min(stability.eigenvalues.real):.3g}")
    return "\n".join(lines)


def quadrature_explanation_lines(solution: Solution) -> list[str]:
    """Return lines of text that explain why the quadrature rule of a solution was chosen."""
    return ["why this rule:", *(f"  {sentence}" for sentence in solution.explanation)]


def norm_multiplier_lines_of_solution(solution: Solution | BrokenSolution) -> list[str]:
    """Return a line with the multipliers that fix the norms of the columns of W; an empty list if norms are free."""
    if solution.multipliers is None or solution.multipliers_error is None:
        return []
    return [norm_multiplier_line(solution.multipliers, solution.multipliers_error)]


def norm_multiplier_line(strengths: np.ndarray, errors: np.ndarray) -> str:
    """Return a line of text with the multipliers (ridge strengths) that fix the norms of the columns of W.

    Args:
        strengths: ridge strength of each column of W.
        errors: error bars of the ridge strengths.
    """
    return f"  the norms are kept by a ridge of {', '.join(map(format_value_with_error, strengths, errors))}"


def gibbs_average_lines(solution: Solution) -> list[str]:
    """Return lines of text on a Gibbs measure: free entropy, energy, entropy, and test errors.

    Test errors are those of weights sampled from the measure, and of their mean.
    """
    thermal = solution.thermal
    assert thermal is not None
    lines = []
    for context, (matrix, widths) in enumerate(zip(thermal.self_overlap, thermal.self_overlap_error, strict=True)):
        label = f"{solution.problem.describe_token_and_cluster(context)}: " if len(thermal.self_overlap) > 1 else ""
        values = ", ".join(map(format_value_with_error, np.diagonal(matrix), np.diagonal(widths)))
        lines.append(f"  {label}overlap of a sample with itself {values}")
    lines += [
        labelled_value_line("free entropy", f"{format_attribute_with_error(thermal, 'free_entropy')} per d"),
        labelled_value_line("training loss", f"{format_attribute_with_error(thermal, 'energy')} per d, of a sample"),
        labelled_value_line("entropy", f"{format_attribute_with_error(thermal, 'entropy')} per d"),
    ]
    if math.isfinite(thermal.test_error):
        both = format_attribute_with_error(thermal, "test_error"), format_attribute_with_error(solution, "test_error")
        lines.append(labelled_value_line("test error", "{} of a sample, {} of their mean".format(*both)))
    return lines


def model_and_parameters_line(problem: Problem, shown: Symbols | None = None, without: str = "") -> str:
    """Return a line of text with the name of the model and the values of its parameters.

    Args:
        problem: the learning problem: a model with its parameters.
        shown: (symbol, LaTeX) by name of a quantity; None: the default symbols.
        without: name of a parameter to leave out, because it varies.
    """
    shown = shown or symbols_of_table_columns(problem)
    held = {
        name: value
        for name, value in problem.parameters.items()
        if table_column_name(name) != table_column_name(without)
    }
    has_alpha = problem.sample_complexity is not None and without != "alpha"
    return (
        f"{problem.solver.name}  "
        + (f"{shown['alpha'][0]} = {problem.alpha:g}  " if has_alpha else "")
        + "  ".join(f"{shown[table_column_name(n)][0]} = {_format_parameter_value(v)}" for n, v in held.items())
        + "".join(f"  {name} = {line.position:g}" for name, (_, line) in problem.lines.items())
        + ("" if problem.spectrum is None else f"  spectrum = {_format_parameter_value(problem.spectrum)}")
        + ("" if problem.inverse_temperature is None else f"  inverse temperature = {problem.inverse_temperature:g}")
    )


def overlap_lines(problem: Problem, overlaps: Overlaps, widths: Overlaps, shown: Symbols | None = None) -> list[str]:
    """Return overlaps with error bars as lines of text, one line per (token, cluster) pair and column of W.

    Args:
        problem: the learning problem: a model with its parameters.
        overlaps: values of the overlaps.
        widths: error bars of the overlaps.
        shown: (symbol, LaTeX) by name of a quantity; None: the default symbols.
    """
    shown = shown or symbols_of_table_columns(problem)
    lines = matrix_entry_lines(
        problem, [(shown[n][0], getattr(overlaps, n), getattr(widths, n), n in ("q", "V")) for n in OVERLAPS]
    )
    for number, value, width in zip(problem.trained, overlaps.phi, widths.phi, strict=True):
        held = f"ridge {float(number['ridge']):g}" if number["ridge"] else "no ridge"
        lines.append(
            f"  {shown[table_column_name(number['name'])][0]} {format_value_with_error(value, width)} (trained, {held})"
        )
    return lines


def matrix_entry_lines(problem: Problem, blocks: Iterable[tuple[str, np.ndarray, np.ndarray, bool]]) -> list[str]:
    """Return entries of matrices with error bars as lines of text, one line per (token, cluster) pair and column of W.

    Args:
        problem: the learning problem: a model with its parameters.
        blocks: for every matrix its symbol, values of shape ((token, cluster) pairs, s, ...), error bars, and whether
            it is symmetric; of a symmetric one the finite entries of the upper triangle are shown.
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
                value = (format_value_with_error if is_symmetric else format_value_or_zero)(
                    float(row[b]), float(widths[b])
                )
                parts.append(f"{symbol}{index} {value}")
        label = problem.describe_token_and_cluster(context) if a == 0 else ""
        lines.append((f"  {label:<10} " if problem.contexts > 1 else "  ") + "   ".join(parts))
    return lines


def _format_parameter_value(value: object) -> str:
    array = np.asarray(value)
    return (
        f"{array.item():g}"
        if array.size == 1
        else np.array2string(array, separator=",").replace("\n", "").replace(" ", "")
    )


def describe_parameters_kept_finite(evidence: Mapping[str, Any]) -> str:
    """Return the end of a sentence that names parameters kept finite instead of their limit 0; "" if none."""
    held = ", ".join(f"{name} = {value:g}" for name, value in evidence.get("not_in_the_limit", {}).items())
    return f"; at {held} as it stands: these error bars do not contain its limit 0" if held else ""


@to_json.register_renderer_of_class(Solution)
def solution_json(solution: Solution) -> dict[str, Any]:
    """Return a solution as the dict that `solve --json` prints; at a finite temperature it has an entry `thermal`."""
    problem = solution.problem
    stability = solution.stability
    losses, widths = solution.losses, solution.error_bars
    members: dict[str, Any] = {
        **problem_json(problem),
        **attributes_by_name(solution, "start", "branch", "rank"),
        "status": solution.status.value,
        **attributes_by_name(solution, "residual", "iterations"),
        "overlaps": overlaps_json(problem, solution.overlaps),
        "trained": trained_numbers_json(problem, solution.overlaps),
        "conjugates": overlaps_json(problem, solution.conjugates) if solution.conjugates else None,
        **attributes_by_name(solution, "multipliers", "free_entropy", "training_loss"),
        "training_loss_parts": attributes_by_name(losses, "data", "penalty", "identity_gap") if losses else None,
        "test_error": solution.test_error,
        "test_errors": solution.test_errors or None,
        "baseline_error": solution.baseline_error,
        **attributes_by_name(solution, *FORMULAS),
        "errors": {
            "overlaps": overlaps_json(problem, widths),
            "trained": trained_numbers_json(problem, widths),
            **error_bars_by_name(solution, ("multipliers", *OBSERVED)),
            "test_errors": widths.test_errors or None,
        },
        "error_kind": solution.error_kind,
        "integrator": solution.rule.rule_description(),
        "stability": stability.to_json() if stability else None,
    }
    if problem.inverse_temperature is None:
        return members
    # The training loss is that of weights sampled from the Gibbs measure; the test error that of their mean.
    thermal, parts, errors = solution.thermal, members["training_loss_parts"], members["errors"]
    members["thermal"] = None if thermal is None else gibbs_averages_json_by_token(problem, thermal.to_json())
    members["free_entropy"] = None if thermal is None else thermal.free_entropy
    members["training_loss"] = None if thermal is None else thermal.energy
    members["training_loss_parts"] = parts and {**parts, "identity_gap": None}
    members["errors"] = {**errors, "training_loss": None if thermal is None else thermal.energy_error}
    return members


def gibbs_averages_json_by_token(problem: Problem, thermal: dict[str, Any]) -> dict[str, Any]:
    """Return averages over a Gibbs measure for JSON, with overlap matrices nested as r[token][cluster][column][column].

    Args:
        problem: the learning problem: a model with its parameters.
        thermal: dict from `gibbs_averages_json`.
    """

    def nest_self_overlap_by_token(values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "self_overlap": split_token_and_cluster_axes(problem, values["self_overlap"]).tolist()}

    return {**nest_self_overlap_by_token(thermal), "errors": nest_self_overlap_by_token(thermal["errors"])}


@to_json.register_renderer_of_class(GibbsAverages)
def gibbs_averages_json(thermal: GibbsAverages) -> dict[str, Any]:
    """Return averages over a Gibbs measure as a dict for JSON; first axis of arrays: (token, cluster) pairs."""
    names = ("free_entropy", "free_energy", "energy", "entropy", "test_error")
    return {
        **attributes_by_name(thermal, "inverse_temperature", *names),
        "energy_parts": attributes_by_name(thermal, "data", "penalty"),
        "self_overlap": thermal.self_overlap,
        "errors": error_bars_by_name(thermal, (*names, "self_overlap")),
    }
