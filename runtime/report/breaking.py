"""Broken replica symmetry: as `solve --rsb` prints it, for people and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..base.numbers import with_error
from ..base.presenting import table, to_json
from ..extensions.breaking.solution import BrokenSolution
from ..extensions.breaking.state import Broken
from ..problems.columns import METRIC, OBSERVED, by_context
from ..problems.observables import FORMULAS
from ..problems.symbols import symbols_of
from .contract import blocks_json, chosen, errors_of, problem_json
from .layout import text_of, value_line
from .solution import block_lines, multiplier_lines, overlap_lines, problem_line, solution_table


@table.register(BrokenSolution)
def broken_table(solution: BrokenSolution, names: Mapping[str, str] | None = None) -> str:
    """What `solve --rsb` prints: the overlaps of one minimiser, those between states, energies and verdicts."""
    symmetric, problem = solution.symmetric, solution.problem
    if solution.state is None:
        return "\n".join([solution_table(symmetric, names, alone=False), f"  one step of breaking: {solution.found}"])
    steps = "one step" if solution.steps == 1 else "two steps"
    shown = symbols_of(problem, names)
    widths = solution.state_half_widths
    assert widths is not None
    rates = ", ".join(map(with_error, solution.rates, solution.rate_errors))
    parisi = f"{solution.parisi:.6g}, given" if solution.given else rates
    lines = [
        problem_line(problem, shown),
        f"start {solution.start}, reached {solution.branch}, {steps} of replica symmetry breaking; "
        f"{solution.status.words}, residual {solution.residual:.1e}",
    ]
    if solution.advice and not solution.found:
        lines.append(f"  {solution.advice}")
    lines.append(f"  y = {parisi} (Parisi parameter{'s' * (solution.steps > 1)})")
    lines += overlap_lines(problem, solution.overlaps, solution.half_widths, shown)
    lines += _between_lines(solution, shown["q"][0])
    lines += multiplier_lines(solution)
    energy, beside = f"{text_of(solution, 'energy')} per d", text_of(symmetric, "training_loss")
    if solution.alone:
        told = f"{energy}; replica symmetry has no such solution, its {symmetric.branch} one has {beside}"
    else:
        moved, width = solution.energy_moved
        told = f"{energy}, replica symmetric {beside}, moved by {with_error(moved, width)}"
        if abs(moved) < width:
            told += f": not resolved, less than {abs(moved) + width:.2g}"
    lines.append(value_line("training loss", told))
    if solution.shallower is not None:
        once, further = text_of(solution.shallower, "energy"), with_error(*solution.energy_moved_further)
        lines.append(value_line("one step has  ", f"{once}, the second moved it by {further}"))
    if solution.given:
        lines.append(value_line("complexity", f"{text_of(solution, 'complexity')} per d"))
    for name, found in solution.observed.items():
        label = f"  {name.removeprefix(METRIC)}" if name.startswith(METRIC) else name.replace("_", " ")
        other = with_error(*symmetric.observed.get(name, (math.nan, math.nan)))
        lines.append(value_line(label, f"{with_error(*found)}, replica symmetric {other}"))
    rule = solution.rule.describe()
    lines.append(f"  integrator {rule['rule']}, {rule['points']} points; errors are estimated")
    lines += [f"  {one.stability.verdict}" for one in (solution, symmetric) if one.stability]
    return "\n".join([*lines, *([f"  {solution.found}"] if solution.found else [])])


def _between_lines(solution: BrokenSolution, q: str) -> list[str]:
    """q_0 and Delta of every step and context, a line a column of W."""
    problem, state, widths = solution.problem, solution.state, solution.state_half_widths
    assert state is not None and widths is not None
    deltas = ["Delta"] if solution.steps == 1 else ["Delta1", "Delta2"]
    every = [
        (f"{q} between {'states' if solution.steps == 1 else 'clusters'}", state.between.q, widths.between.q),
        *zip(deltas, state.distances, widths.distances, strict=True),
    ]
    return block_lines(problem, [(*each, True) for each in every])


@to_json.register(BrokenSolution)
def broken_json(solution: BrokenSolution) -> dict[str, Any]:
    """The object `solve --rsb --json` prints; null in `breaking` where none was found."""
    problem, widths = solution.problem, solution.half_widths
    return {
        **problem_json(problem),
        **chosen(solution, "start", "branch"),
        "status": solution.status.value,
        "rsb": solution.steps,
        "found": solution.found or None,
        **chosen(solution, "residual", "evaluations"),
        "overlaps": blocks_json(problem, solution.overlaps),
        "breaking": _breaking_json(solution),
        **chosen(solution, "multipliers", "training_loss"),
        "training_loss_parts": dict(zip(("data", "penalty"), solution.parts, strict=True)),
        "test_error": solution.test_error,
        "test_errors": solution.test_errors or None,
        **chosen(solution, *FORMULAS),
        "errors": {
            "overlaps": blocks_json(problem, widths),
            **errors_of(solution, ("multipliers", *OBSERVED)),
            "test_errors": widths.test_errors or None,
        },
        "integrator": solution.rule.describe(),
        "shallower": solution.shallower and to_json(solution.shallower),
        "symmetric": to_json(solution.symmetric),
    }


def _breaking_json(solution: BrokenSolution) -> dict[str, Any] | None:
    """Parisi parameters, q_0 and Delta of every step, energies and stability of states; None where there are none."""
    problem, state, widths, verdict = solution.problem, solution.state, solution.state_half_widths, solution.stability
    if state is None or widths is None:
        return None
    complexity = solution.complexity, solution.complexity_error

    def numbers(part: int, blocks: Broken) -> dict[str, Any]:
        """Values (part 0) or error bars (part 1)."""
        return {
            "q_between": by_context(problem, blocks.between.q).tolist(),
            "distances": [by_context(problem, each).tolist() for each in blocks.distances],
            "complexity": complexity[part],
            "energy_moved": solution.energy_moved[part],
            "energy_moved_further": solution.energy_moved_further[part],
        }

    return {
        "rates": list(solution.rates),
        "given": solution.given,
        **numbers(0, state),
        "errors": {"rates": list(solution.rate_errors), **numbers(1, widths)},
        "stability": verdict and {**vars(verdict), "verdict": verdict.verdict},
    }
