"""Numbers and solutions for people."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .naming import Symbols, column_of, symbols_of

if TYPE_CHECKING:
    from .overlaps import Overlaps
    from .problem import Problem
    from .sensitivity import Sensitivities
    from .solution import Solution
    from .tuning import Optimum


VANISHING = 1e-9  # an eigenvalue below is shown as zero


def with_error(value: float, error: float) -> str:
    """Value with its half width in the last digit, as 0.15816(1).

    >>> with_error(0.1581586, 0.0000123)
    '0.158159(13)'
    >>> with_error(12.6684, 0.0)
    '12.6684'
    """
    if value is None or not math.isfinite(value):
        return "-"
    if error is None or not math.isfinite(error):
        return f"{value:.6g}(?)"
    if error <= 0 or error < 1e-15 * abs(value):
        return f"{value:.15g}"
    exponent = math.floor(math.log10(error))
    digits = math.ceil(error / 10**exponent - 1e-9)
    if digits == 1:
        exponent -= 1
        digits = math.ceil(error / 10**exponent - 1e-9)
    if digits >= 100:
        exponent += 1
        digits = math.ceil(error / 10**exponent - 1e-9)
    shown = f"{value:.{max(-exponent, 0)}f}"
    if not float(shown):
        shown = shown.removeprefix("-")
    return f"{shown}({digits * 10 ** max(exponent, 0)})"


def solution_table(solution: Solution, names: Mapping[str, str] | None = None) -> str:
    """What `solve` prints: overlaps, losses, errors, rule and the RS verdict; `names` as in `naming.symbols_of`."""
    problem = solution.problem
    shown = symbols_of(problem, names)
    lines = [
        problem_line(problem, shown),
        f"start {solution.start}, reached {solution.branch}"
        + (f", rank {solution.rank} by training loss" if solution.rank else "")
        + f"; {solution.status.words}, residual "
        + (f"{solution.residual:.1e}" if np.isfinite(solution.residual) else "not known"),
    ]
    if solution.status.advice:
        lines.append(f"  {solution.status.advice}")
    lines += overlap_lines(problem, solution.overlaps, solution.half_widths, shown)
    if solution.thermal:
        lines += thermal_lines(solution)
    elif solution.losses:
        lines.append(f"  training loss {with_error(solution.training_loss, solution.training_loss_error)} per d")
        if math.isfinite(solution.test_error):
            text = f"  test error    {with_error(solution.test_error, solution.test_error_error)}"
            if math.isfinite(solution.baseline_error):
                text += f"   (linear baseline {solution.baseline_error:.12g})"
            lines.append(text)
    rule = solution.rule.describe()
    lines.append(f"  integrator {rule['rule']}, {rule['points']} points; errors are {solution.error_kind}")
    if solution.stability:
        lines.append(f"  {solution.stability.verdict}")
        leading = [v.real if abs(v) > VANISHING else 0.0 for v in solution.stability.eigenvalues[:3]]
        top = ", ".join(f"{value:.3g}" for value in leading)
        lines.append(f"  longitudinal eigenvalues {top}, ..., {np.min(solution.stability.eigenvalues.real):.3g}")
    return "\n".join(lines)


def thermal_lines(solution: Solution) -> list[str]:
    """Free energy, energy and entropy, and the test errors of drawn weights and of their mean."""
    found = solution.thermal
    assert found is not None
    lines = []
    for context, (matrix, widths) in enumerate(zip(found.self_overlap, found.self_overlap_error, strict=True)):
        values = [with_error(matrix[a, a], widths[a, a]) for a in range(len(matrix))]
        label = f"context {context + 1}: " if len(found.self_overlap) > 1 else ""
        lines.append(f"  {label}overlap of a sample with itself {', '.join(values)}")
    lines += [
        f"  free entropy  {with_error(found.free_entropy, found.free_entropy_error)} per d",
        f"  training loss {with_error(found.energy, found.energy_error)} per d, of a sample",
        f"  entropy       {with_error(found.entropy, found.entropy_error)} per d",
    ]
    if math.isfinite(found.test_error):
        mean = with_error(solution.test_error, solution.test_error_error)
        lines.append(
            f"  test error    {with_error(found.test_error, found.test_error_error)} of a sample, {mean} of their mean"
        )
    return lines


def problem_line(problem: Problem, shown: Symbols | None = None) -> str:
    """Model and parameters."""
    shown = shown or symbols_of(problem)
    return (
        f"{problem.solver.name}  {shown['alpha'][0]} = {problem.alpha:g}  "
        + "  ".join(f"{shown[column_of(n)][0]} = {_short(v)}" for n, v in problem.parameters.items())
        + ("" if problem.spectrum is None else f"  spectrum = {_short(problem.spectrum)}")
        + ("" if problem.inverse_temperature is None else f"  inverse temperature = {problem.inverse_temperature:g}")
    )


def overlap_lines(problem: Problem, overlaps: Overlaps, widths: Overlaps, shown: Symbols | None = None) -> list[str]:
    """The overlaps of every context with their errors, a line a column of W; what is not a number is left out."""
    shown = shown or symbols_of(problem)
    lines = []
    s, t = problem.student_rank, problem.teacher_rank
    for context in range(problem.contexts):
        token, cluster = divmod(context, problem.clusters)
        label = f"token {token + 1}" + (f", cluster {cluster + 1}" if problem.clusters > 1 else "")
        for a in range(s):
            parts = []
            for name in ("q", "V"):
                for b in range(a, s):
                    index = "" if s == 1 else f"_{a + 1}{b + 1}"
                    value, width = getattr(overlaps, name)[context, a, b], getattr(widths, name)[context, a, b]
                    if math.isfinite(value):
                        parts.append(f"{shown[name][0]}{index} {with_error(value, width)}")
            index = "" if s == 1 else f"_{a + 1}"
            parts.append(f"{shown['m'][0]}{index} {_near_zero(overlaps.m[context, a], widths.m[context, a])}")
            for b in range(t):
                index = "" if s == t == 1 else f"_{a + 1}{b + 1}"
                value = _near_zero(overlaps.theta[context, a, b], widths.theta[context, a, b])
                parts.append(f"{shown['theta'][0]}{index} {value}")
            lines.append(f"  {label if a == 0 else '':<10} " + "   ".join(parts))
    for number, value, width in zip(problem.trained, overlaps.phi, widths.phi, strict=True):
        lines.append(f"  {shown[column_of(number['name'])][0]} {with_error(value, width)} (trained)")
    return lines


def aligned(rows: list[list[str]]) -> list[str]:
    """Rows of cells as lines with aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def sensitivities_table(found: Sensitivities) -> str:
    """A row an observable, a column a parameter."""
    from .tables import block_columns

    entries = list(found)
    problem = found.solution.problem
    rows = [["d / d", *(entry.parameter for entry in entries)]]
    values = [block_columns(problem, entry.overlaps) for entry in entries]
    widths = [block_columns(problem, entry.half_widths) for entry in entries]
    for name in values[0] if entries else ():
        row, column = name.partition("_")[::2]
        if column and problem.student_rank > 1 and row in ("q", "V"):
            index = column.rpartition("_")[2]
            if index[0] > index[1]:
                continue  # symmetric
        rows.append([name, *(_near_zero(v[name], w[name]) for v, w in zip(values, widths, strict=True))])
    for k, number in enumerate(problem.trained):
        cells = [with_error(float(e.overlaps.phi[k]), float(e.half_widths.phi[k])) for e in entries]
        rows.append([number["name"], *cells])
    for name in ("training_loss", "test_error", "baseline_error"):
        if any(math.isfinite(entry.of(name)[0]) for entry in entries):
            rows.append([name.replace("_", " "), *(_near_zero(*entry.of(name)) for entry in entries)])
    return "\n".join(aligned(rows))


_PLACES = {
    "minimum": "",
    "lower_end": " (the lower end of the interval)",
    "upper_end": " (the upper end of the interval)",
    "branch_end": " (where the branch ends)",
    "jump": " (where the branch jumps)",
    "tried": " (the best of the values tried)",
}


def optimum_table(found: Optimum) -> str:
    """The best value, what its half width is made of, the observable there, and what else was weighed."""
    name = found.parameter.rstrip("_")
    value = with_error(found.value, found.error) if found.kind == "minimum" else f"{found.value:.6g}"
    verb = "most" if found.minimise.startswith("-") else "least"
    shown = found.minimise.removeprefix("-").replace("_", " ")
    lines = [
        f"{found.problem.solver.name}, {found.branch} branch: "
        f"{shown} is {verb} at {name} = {value}{_PLACES[found.kind]}",
        f"  {shown} {with_error(found.observed, found.observed_error)} there; {found.status.replace('_', ' ')}",
    ]
    if found.kind == "minimum":
        parts = found.evidence
        lines.append(
            f"  half width {found.error:.2g} = {parts['half_width_integration']:.2g} from integration "
            f"+ {parts['half_width_root']:.2g} from the root"
        )
    for other in found.others:
        kind = other.kind.replace("_", " ")
        lines.append(f"  beside it: {kind} at {name} = {other.value:.4g}, {shown} {other.observed:.6g}")
    return "\n".join(lines)


def _near_zero(value: float, width: float) -> str:
    """Zero by symmetry is shown as 0."""
    return "0" if abs(value) < 1e-12 else with_error(value, width)


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
    return f"; at {held} as it stands: these half widths do not hold its limit 0" if held else ""
