"""Broken replica symmetry as text and JSON of the command `solve --rsb`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..base.numbers import format_value_with_error
from ..base.presenting import table, to_json
from ..extensions.breaking.solution import BrokenSolution
from ..extensions.breaking.state import BrokenSymmetryState
from ..problems.columns import METRIC, OBSERVED, split_token_and_cluster_axes
from ..problems.observables import FORMULAS
from ..problems.symbols import symbols_of_table_columns
from .contract import attributes_by_name, error_bars_by_name, overlaps_json, problem_json
from .layout import format_attribute_with_error, labelled_value_line
from .solution import (
    matrix_entry_lines,
    model_and_parameters_line,
    norm_multiplier_lines_of_solution,
    overlap_lines,
    solution_table,
)


@table.register_renderer_of_class(BrokenSolution)
def broken_symmetry_table(solution: BrokenSolution, names: Mapping[str, str] | None = None) -> str:
    """Return a solution with broken symmetry as text: overlaps within and between states, energies and verdicts.

    Args:
        solution: the solution with broken symmetry.
        names: the user's own symbols by name of a quantity; None: the default symbols.
    """
    symmetric, problem = solution.symmetric, solution.problem
    if solution.state is None:
        return "\n".join([solution_table(symmetric, names, alone=False), f"  one step of breaking: {solution.found}"])
    steps = "one step" if solution.steps == 1 else "two steps"
    shown = symbols_of_table_columns(problem, names)
    widths = solution.state_error_bars
    assert widths is not None
    rates = ", ".join(map(format_value_with_error, solution.rates, solution.rate_errors))
    parisi = f"{solution.parisi:.6g}, given" if solution.given else rates
    lines = [
        model_and_parameters_line(problem, shown),
        f"start {solution.start}, reached {solution.branch}, {steps} of replica symmetry breaking; "
        f"{solution.status.words}, residual {solution.residual:.1e}",
    ]
    if solution.advice and not solution.found:
        lines.append(f"  {solution.advice}")
    lines.append(f"  y = {parisi} (Parisi parameter{'s' * (solution.steps > 1)})")
    lines += overlap_lines(problem, solution.overlaps, solution.error_bars, shown)
    lines += _overlaps_between_states_lines(solution, shown["q"][0])
    lines += norm_multiplier_lines_of_solution(solution)
    energy, symmetric_loss = (
        f"{format_attribute_with_error(solution, 'energy')} per d",
        format_attribute_with_error(symmetric, "training_loss"),
    )
    if solution.alone:
        text = f"{energy}; replica symmetry has no such solution, its {symmetric.branch} one has {symmetric_loss}"
    else:
        moved, width = solution.energy_moved
        text = f"{energy}, replica symmetric {symmetric_loss}, moved by {format_value_with_error(moved, width)}"
        if abs(moved) < width:
            text += f": not resolved, less than {abs(moved) + width:.2g}"
    lines.append(labelled_value_line("training loss", text))
    if solution.shallower is not None:
        once, further = (
            format_attribute_with_error(solution.shallower, "energy"),
            format_value_with_error(*solution.energy_moved_further),
        )
        lines.append(labelled_value_line("one step has  ", f"{once}, the second moved it by {further}"))
    if solution.given:
        lines.append(labelled_value_line("complexity", f"{format_attribute_with_error(solution, 'complexity')} per d"))
    for name, found in solution.observed.items():
        label = f"  {name.removeprefix(METRIC)}" if name.startswith(METRIC) else name.replace("_", " ")
        other = format_value_with_error(*symmetric.observed.get(name, (math.nan, math.nan)))
        lines.append(labelled_value_line(label, f"{format_value_with_error(*found)}, replica symmetric {other}"))
    rule = solution.rule.rule_description()
    lines.append(f"  integrator {rule['rule']}, {rule['points']} points; errors are estimated")
    lines += [f"  {one.stability.verdict}" for one in (solution, symmetric) if one.stability]
    return "\n".join([*lines, *([f"  {solution.found}"] if solution.found else [])])


def _overlaps_between_states_lines(solution: BrokenSolution, q: str) -> list[str]:
    """Return overlaps between states, and the excess Delta of those within, as text: a line per column of W."""
    problem, state, widths = solution.problem, solution.state, solution.state_error_bars
    assert state is not None and widths is not None
    deltas = ["Delta"] if solution.steps == 1 else ["Delta1", "Delta2"]
    every = [
        (f"{q} between {'states' if solution.steps == 1 else 'clusters'}", state.between.q, widths.between.q),
        *zip(deltas, state.distances, widths.distances, strict=True),
    ]
    return matrix_entry_lines(problem, [(*each, True) for each in every])


@to_json.register_renderer_of_class(BrokenSolution)
def broken_symmetry_json(solution: BrokenSolution) -> dict[str, Any]:
    """Return a solution with broken symmetry as the dict that `solve --rsb --json` prints.

    Its entry `breaking` is None if the solution is replica symmetric.
    """
    problem, widths = solution.problem, solution.error_bars
    return {
        **problem_json(problem),
        **attributes_by_name(solution, "start", "branch"),
        "status": solution.status.value,
        "rsb": solution.steps,
        "found": solution.found or None,
        **attributes_by_name(solution, "residual", "evaluations"),
        "overlaps": overlaps_json(problem, solution.overlaps),
        "breaking": _symmetry_breaking_json(solution),
        **attributes_by_name(solution, "multipliers", "training_loss"),
        "training_loss_parts": dict(zip(("data", "penalty"), solution.parts, strict=True)),
        "test_error": solution.test_error,
        "test_errors": solution.test_errors or None,
        **attributes_by_name(solution, *FORMULAS),
        "errors": {
            "overlaps": overlaps_json(problem, widths),
            **error_bars_by_name(solution, ("multipliers", *OBSERVED)),
            "test_errors": widths.test_errors or None,
        },
        "integrator": solution.rule.rule_description(),
        "shallower": solution.shallower and to_json(solution.shallower),
        "symmetric": to_json(solution.symmetric),
    }


def _symmetry_breaking_json(solution: BrokenSolution) -> dict[str, Any] | None:
    """Return what symmetry breaking adds to a solution, as a dict for JSON: Parisi parameters, q_0, Delta and others.

    None if the solution is replica symmetric.
    """
    problem, state, widths, verdict = solution.problem, solution.state, solution.state_error_bars, solution.stability
    if state is None or widths is None:
        return None
    complexity = solution.complexity, solution.complexity_error

    def symmetry_breaking_quantities(part: int, blocks: BrokenSymmetryState) -> dict[str, Any]:
        """Return overlaps, distances and energies of states of broken replica symmetry, or their error bars, as a dict.

        Args:
            part: 0 for values, 1 for error bars.
            blocks: overlaps between states and their distances, or the error bars of these.
        """
        return {
            "q_between": split_token_and_cluster_axes(problem, blocks.between.q).tolist(),
            "distances": [split_token_and_cluster_axes(problem, each).tolist() for each in blocks.distances],
            "complexity": complexity[part],
            "energy_moved": solution.energy_moved[part],
            "energy_moved_further": solution.energy_moved_further[part],
        }

    return {
        "rates": list(solution.rates),
        "given": solution.given,
        **symmetry_breaking_quantities(0, state),
        "errors": {"rates": list(solution.rate_errors), **symmetry_breaking_quantities(1, widths)},
        "stability": verdict and {**vars(verdict), "verdict": verdict.verdict},
    }
