"""Solutions: as `solve` prints them, for people and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.numbers import near_zero, with_error
from ..base.presenting import table, to_json
from ..problems.columns import OBSERVED, by_context, column_of
from ..problems.observables import FORMULAS
from ..problems.overlaps import OVERLAPS
from ..problems.symbols import Symbols, symbols_of
from ..solving.solution import Solution
from ..solving.thermal import Gibbs
from .ansatz import HEADING, warning_lines
from .contract import blocks_json, chosen, errors_of, problem_json, trained_json
from .layout import text_of, value_line
from .stability import VANISHING

if TYPE_CHECKING:
    from ..extensions.breaking.solution import BrokenSolution
    from ..problems.overlaps import Overlaps
    from ..problems.problem import Problem


@table.register(Solution)
def solution_table(solution: Solution, names: Mapping[str, str] | None = None, alone: bool = True) -> str:
    """What `solve` prints: overlaps, losses, errors, rule and the RS verdict; `names` as in `symbols.symbols_of`.

    The verdict comes first where replica symmetry is unstable beyond the digits shown.

    Args:
        alone: whether no step of breaking has been tried.
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
    lines += overlap_lines(problem, solution.overlaps, solution.half_widths, shown)
    lines += multiplier_lines(solution)
    if solution.thermal:
        lines += thermal_lines(solution)
    elif solution.losses:
        lines.append(value_line("training loss", f"{text_of(solution, 'training_loss')} per d"))
        if math.isfinite(solution.test_error):
            baseline = solution.baseline_error
            beside = f"   (linear baseline {baseline:.12g})" if math.isfinite(baseline) else ""
            lines.append(value_line("test error", text_of(solution, "test_error") + beside))
        lines += [value_line(f"  {name}", with_error(*found)) for name, found in solution.other_errors.items()]
    lines += [value_line(name, text_of(solution, name)) for name in FORMULAS if name in solution.observed]
    rule = solution.rule
    lines.append(f"  integrator {rule.name}, {rule.size}; errors are {solution.error_kind}")
    if not solution.judge:
        lines.append("  no verdict on stability was asked for")
    if stability:
        if not warning:
            lines.append(f"  {stability.verdict}")
        leading = [v.real if abs(v) > VANISHING else 0.0 for v in stability.eigenvalues[:3]]
        top = ", ".join(f"{value:.3g}" for value in leading)
        lines.append(f"  longitudinal eigenvalues {top}, ..., {np.min(stability.eigenvalues.real):.3g}")
    return "\n".join(lines)


def explanation_lines(solution: Solution) -> list[str]:
    """What `--explain` prints below a solution."""
    return ["why this rule:", *(f"  {sentence}" for sentence in solution.explanation)]


def multiplier_lines(solution: Solution | BrokenSolution) -> list[str]:
    """The ridge that keeps given norms, a strength a column of W with its error; nothing where none are given."""
    if solution.multipliers is None or solution.multipliers_error is None:
        return []
    return [multiplier_line(solution.multipliers, solution.multipliers_error)]


def multiplier_line(strengths: np.ndarray, errors: np.ndarray) -> str:
    """The strengths of a ridge that keeps given norms, with their errors."""
    return f"  the norms are kept by a ridge of {', '.join(map(with_error, strengths, errors))}"


def thermal_lines(solution: Solution) -> list[str]:
    """Free energy, energy and entropy, and the test errors of drawn weights and of their mean."""
    thermal = solution.thermal
    assert thermal is not None
    lines = []
    for context, (matrix, widths) in enumerate(zip(thermal.self_overlap, thermal.self_overlap_error, strict=True)):
        label = f"context {context + 1}: " if len(thermal.self_overlap) > 1 else ""
        values = ", ".join(map(with_error, np.diagonal(matrix), np.diagonal(widths)))
        lines.append(f"  {label}overlap of a sample with itself {values}")
    lines += [
        value_line("free entropy", f"{text_of(thermal, 'free_entropy')} per d"),
        value_line("training loss", f"{text_of(thermal, 'energy')} per d, of a sample"),
        value_line("entropy", f"{text_of(thermal, 'entropy')} per d"),
    ]
    if math.isfinite(thermal.test_error):
        both = text_of(thermal, "test_error"), text_of(solution, "test_error")
        lines.append(value_line("test error", "{} of a sample, {} of their mean".format(*both)))
    return lines


def problem_line(problem: Problem, shown: Symbols | None = None, without: str = "") -> str:
    """Return model and parameters, without the one that is varied."""
    shown = shown or symbols_of(problem)
    held = {name: value for name, value in problem.parameters.items() if column_of(name) != column_of(without)}
    has_alpha = problem.sample_complexity is not None and without != "alpha"
    return (
        f"{problem.solver.name}  "
        + (f"{shown['alpha'][0]} = {problem.alpha:g}  " if has_alpha else "")
        + "  ".join(f"{shown[column_of(n)][0]} = {_short(v)}" for n, v in held.items())
        + "".join(f"  {name} = {line.position:g}" for name, (_, line) in problem.lines.items())
        + ("" if problem.spectrum is None else f"  spectrum = {_short(problem.spectrum)}")
        + ("" if problem.inverse_temperature is None else f"  inverse temperature = {problem.inverse_temperature:g}")
    )


def overlap_lines(problem: Problem, overlaps: Overlaps, widths: Overlaps, shown: Symbols | None = None) -> list[str]:
    """The overlaps of every context with their errors, a line a column of W; what is not a number is left out."""
    shown = shown or symbols_of(problem)
    lines = block_lines(
        problem, [(shown[n][0], getattr(overlaps, n), getattr(widths, n), n in ("q", "V")) for n in OVERLAPS]
    )
    for number, value, width in zip(problem.trained, overlaps.phi, widths.phi, strict=True):
        held = f"ridge {float(number['ridge']):g}" if number["ridge"] else "no ridge"
        lines.append(f"  {shown[column_of(number['name'])][0]} {with_error(value, width)} (trained, {held})")
    return lines


def block_lines(problem: Problem, blocks: Iterable[tuple[str, np.ndarray, np.ndarray, bool]]) -> list[str]:
    """Return arrays with their errors, a line a context and column of W, the context named once.

    Args:
        blocks: symbol, values (C, s, ...), errors, and whether it is a symmetric matrix, of which the upper triangle is
            shown and what is not a number left out.
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
                value = (with_error if is_symmetric else near_zero)(float(row[b]), float(widths[b]))
                parts.append(f"{symbol}{index} {value}")
        label = problem.context_in_words(context) if a == 0 else ""
        lines.append(f"  {label:<10} " + "   ".join(parts))
    return lines


def _short(value: object) -> str:
    array = np.asarray(value)
    return (
        f"{array.item():g}"
        if array.size == 1
        else np.array2string(array, separator=",").replace("\n", "").replace(" ", "")
    )


def not_in_the_limit(evidence: Mapping[str, Any]) -> str:
    """Which parameters are taken as they stand though they are meant to vanish: the end of a sentence, or nothing."""
    held = ", ".join(f"{name} = {value:g}" for name, value in evidence.get("not_in_the_limit", {}).items())
    return f"; at {held} as it stands: these error bars do not contain its limit 0" if held else ""


@to_json.register(Solution)
def solution_json(solution: Solution) -> dict[str, Any]:
    """The object `solve --json` prints; `thermal` beside it at a finite temperature."""
    problem = solution.problem
    stability = solution.stability
    losses, widths = solution.losses, solution.half_widths
    members: dict[str, Any] = {
        **problem_json(problem),
        **chosen(solution, "start", "branch", "rank"),
        "status": solution.status.value,
        **chosen(solution, "residual", "iterations"),
        "overlaps": blocks_json(problem, solution.overlaps),
        "trained": trained_json(problem, solution.overlaps),
        "conjugates": blocks_json(problem, solution.conjugates) if solution.conjugates else None,
        **chosen(solution, "multipliers", "free_entropy", "training_loss"),
        "training_loss_parts": chosen(losses, "data", "penalty", "identity_gap") if losses else None,
        "test_error": solution.test_error,
        "test_errors": solution.test_errors or None,
        "baseline_error": solution.baseline_error,
        **chosen(solution, *FORMULAS),
        "errors": {
            "overlaps": blocks_json(problem, widths),
            "trained": trained_json(problem, widths),
            **errors_of(solution, ("multipliers", *OBSERVED)),
            "test_errors": widths.test_errors or None,
        },
        "error_kind": solution.error_kind,
        "integrator": solution.rule.describe(),
        "stability": stability.to_json() if stability else None,
    }
    if problem.inverse_temperature is None:
        return members
    # The training loss is that of weights drawn from the measure; the test error that of their mean.
    thermal, parts, errors = solution.thermal, members["training_loss_parts"], members["errors"]
    members["thermal"] = None if thermal is None else shaped(problem, thermal.to_json())
    members["free_entropy"] = None if thermal is None else thermal.free_entropy
    members["training_loss"] = None if thermal is None else thermal.energy
    members["training_loss_parts"] = parts and {**parts, "identity_gap": None}
    members["errors"] = {**errors, "training_loss": None if thermal is None else thermal.energy_error}
    return members


def shaped(problem: Problem, thermal: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a Gibbs measure with its matrices as r[l][k][a][b]."""

    def blocks(values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "self_overlap": by_context(problem, values["self_overlap"]).tolist()}

    return {**blocks(thermal), "errors": blocks(thermal["errors"])}


@to_json.register(Gibbs)
def gibbs_json(thermal: Gibbs) -> dict[str, Any]:
    """The object `thermal`, arrays as they are."""
    names = ("free_entropy", "free_energy", "energy", "entropy", "test_error")
    return {
        **chosen(thermal, "inverse_temperature", *names),
        "energy_parts": chosen(thermal, "data", "penalty"),
        "self_overlap": thermal.self_overlap,
        "errors": errors_of(thermal, (*names, "self_overlap")),
    }
